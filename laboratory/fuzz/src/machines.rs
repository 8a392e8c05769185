//! Fuzz targets of state machines that process messages of peers or damaged files.

use std::collections::BTreeMap;

use hawser_proto::checkpoint::{Receiving, ReceivingStreams, Sending};
use hawser_proto::egress::Egress;
use hawser_proto::ingress::Ingress;
use hawser_proto::path;
use hawser_proto::session::{ClientAction, ClientSession, HubAction, HubSession, SessionConfig};
use hawser_proto::stream;
use hawser_units::{Duration, Instant, NetworkId, PathId};
use hawser_wire::control::{MAX_OTHER_HUBS, MAX_SUBNETS, Message};
use hawser_wire::data::{Inner, Kind};
use hawser_wire::stream::{FRAME_LEN, Frame};

/// Passes a stream of messages to a hub's session and to a client's session, while the client's
/// networks appear and disappear.
pub(crate) fn session(input: &[u8]) {
    let mut hub = Hub::default();
    let mut client = Client::new();
    let mut rest = input;
    let mut step = 0;
    while let Ok(Some((message, taken))) = Message::parse(rest) {
        rest = &rest[taken..];
        step += 1;
        hub.take(&message);
        client.take(&message, step);
    }
}

/// Passes datagrams of streams to both halves: two bytes of length, one that distinguishes frames
/// from bytes, and the rest. Neither half stores or answers more than it announced.
pub(crate) fn stream(input: &[u8]) {
    let config = stream::Config {
        capacity: 64 << 10,
        first_capacity: 16 << 10,
        window: 8 << 10,
        max_window: 32 << 10,
        max_streams: 8,
        connects: None,
    };
    let (mut receiving, mut sending) = (stream::Receiving::new(config), stream::Sending::default());
    let mut now = Instant::ZERO + Duration::from_secs(1);
    let mut rest = input;
    while let Some(([high, low, kind], behind)) = rest.split_first_chunk::<3>() {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(behind.len());
        let (datagram, behind) = behind.split_at(len);
        rest = behind;
        now += Duration::from_millis(3);
        if kind & 1 == 0 {
            take_frames(datagram, &mut receiving, now);
        } else if let Some((inner, body)) = Inner::parse(datagram) {
            let inner = Inner {
                kind: Kind::Stream,
                ..inner
            };
            if let Some(accepted) = receiving.handle_bytes(&inner, body, now) {
                assert!(accepted.skip + accepted.len <= body.len());
            }
        }
        receiving.flush(now);
        let mut events = 0;
        while let Some(event) = receiving.poll_event() {
            events += 1;
            sending.handle_event(event, now);
        }
        // Each frame has at most one answer, or two for an unknown stream.
        assert!(events <= 2 * len + 8, "{events} events of {len} bytes");
        assert!(receiving.stored() <= config.capacity);
        assert!(receiving.len() <= config.max_streams);
        while receiving.poll_notice().is_some() {}
        while sending.poll_notice().is_some() {}
    }
}

fn take_frames(datagram: &[u8], receiving: &mut stream::Receiving, now: Instant) {
    let mut rest = datagram;
    while let Some((frame, behind)) = Frame::parse(rest) {
        let mut out = [0; FRAME_LEN];
        let len = frame.emit(&mut out).expect("the longest fits");
        assert_eq!(&out[..len], &rest[..rest.len() - behind.len()]);
        receiving.handle_frame(&frame, now);
        rest = behind;
    }
}

#[derive(Default)]
struct Hub {
    machine: HubSession,
    drawn: u32,
    /// Paths that the driver was asked to open, with the index of each.
    open: BTreeMap<u16, u32>,
    highest: Option<u16>,
}

impl Hub {
    fn take(&mut self, message: &Message) {
        let drawn = &mut self.drawn;
        let answer = self.machine.handle_message(message, || {
            *drawn += 1;
            *drawn
        });
        while let Some(action) = self.machine.poll_action() {
            assert!(answer.is_ok(), "a refused message changes nothing");
            match action {
                HubAction::OpenPath {
                    path, local_index, ..
                } => {
                    assert!(
                        self.highest.is_none_or(|highest| path > highest),
                        "ids rise: {path}"
                    );
                    self.highest = Some(path);
                    self.open.insert(path, local_index);
                }
                HubAction::ClosePath { path } => {
                    assert!(self.open.remove(&path).is_some(), "it was open: {path}");
                }
                HubAction::SetCap { path, .. }
                | HubAction::SetAirtime { path, .. }
                | HubAction::SetPause { path, .. }
                | HubAction::SetPreference { path, .. }
                | HubAction::SignReceipts { path, .. } => {
                    assert!(self.open.contains_key(&path));
                }
                HubAction::SetScheduler { .. }
                | HubAction::SetDeadlines { .. }
                | HubAction::SetDeclared { .. }
                | HubAction::Closed(_) => {}
            }
        }
        assert_eq!(self.machine.paths(), self.open.len());
        assert!(self.open.len() <= hawser_proto::session::MAX_PATHS);
        let answers = std::iter::from_fn(|| self.machine.poll_transmit()).count();
        assert!(answers <= 1, "{answers} answers to one message");
    }
}

struct Client {
    machine: ClientSession,
    drawn: u32,
    open: BTreeMap<u16, NetworkId>,
}

impl Client {
    fn new() -> Self {
        let mut machine = ClientSession::new(SessionConfig::default());
        machine.handle_control_up(1, Instant::ZERO, || 1);
        Self {
            machine,
            drawn: 1,
            open: BTreeMap::new(),
        }
    }

    fn take(&mut self, message: &Message, step: u32) {
        self.drawn += 1;
        let network = NetworkId(step % 3);
        if step.is_multiple_of(7) {
            self.machine.handle_network_removed(network);
        } else {
            self.machine.handle_network_added(network, self.drawn);
        }
        self.machine
            .handle_timeout(Instant::ZERO + Duration::from_secs(u64::from(step)));
        // A violation ends the connection; the next connection continues the session.
        if self.machine.handle_message(message).is_err() {
            self.machine.handle_control_down();
            self.machine
                .handle_control_up(1, Instant::ZERO, || u32::MAX - step);
        }
        while let Some(action) = self.machine.poll_action() {
            match action {
                ClientAction::OpenPath { network, path, .. } => {
                    assert!(self.open.insert(path, network).is_none(), "opened twice: {path}");
                }
                ClientAction::ClosePath { path, .. } => {
                    assert!(self.open.remove(&path).is_some(), "it was open: {path}");
                }
                ClientAction::End { .. } => self.open.clear(),
                ClientAction::NameHubs => {
                    assert!(self.machine.other_hubs().len() <= usize::from(MAX_OTHER_HUBS));
                }
                ClientAction::Subnets => assert!(self.machine.subnets().len() <= MAX_SUBNETS),
                ClientAction::Start { .. }
                | ClientAction::Reconnect
                | ClientAction::Rekey
                | ClientAction::Leave
                | ClientAction::Limit(_)
                | ClientAction::KeyExpires(_)
                | ClientAction::Receipt(_)
                | ClientAction::Renew
                | ClientAction::Closed(_) => {}
            }
        }
        let mut networks: Vec<_> = self.open.values().collect();
        networks.sort_unstable();
        networks.dedup();
        assert_eq!(networks.len(), self.open.len(), "a network has at most one path");
        while self.machine.poll_transmit().is_some() {}
    }
}

/// Restores the streams of a checkpoint if they are valid.
fn restore_streams(ingress: &mut Ingress<u32>, saved: Option<&ReceivingStreams>, now: Instant) {
    if let Some(saved) = saved {
        let (config, reserve) = (stream::Config::default(), stream::Reserve::unbounded());
        // Invalid streams are ignored.
        let _ = ingress.restore_streams(config, reserve, saved, now);
    }
}

/// Restores a session's checkpoint from an arbitrary file: the restored state can be written and
/// restored again.
pub(crate) fn checkpoint(input: &[u8]) {
    let now = Instant::ZERO + Duration::from_secs(1);
    if let Ok(saved) = serde_json::from_slice::<Receiving>(input)
        && let Ok(ingress) = Ingress::<u32>::restore(&saved, now)
    {
        let mut ingress = ingress;
        restore_streams(&mut ingress, saved.streams.as_ref(), now);
        let again = ingress.checkpoint();
        let mut ingress = Ingress::<u32>::restore(&again, now).expect("what was written can be read");
        restore_streams(&mut ingress, again.streams.as_ref(), now);
        assert_eq!(ingress.checkpoint(), again);
        // Packets below the receive window are rejected, wherever the window begins.
        for path in &again.paths {
            let below = path.floor.saturating_sub(1);
            assert!(path.floor == 0 || !ingress.accepts(PathId(path.id), below));
        }
    }
    let Ok(saved) = serde_json::from_slice::<Sending>(input) else {
        return;
    };
    let Ok(mut egress) = Egress::<u32>::restore(&saved, 1, now) else {
        return;
    };
    for path in &saved.paths {
        let config = path::Config {
            id: PathId(path.id),
            probing: path::Probing::OnHearing,
            cap: None,
            mtu: 1500,
            overhead: 68,
        };
        // A rejected path does not change the others.
        let _ = egress.restore_path(config, path, true, now);
    }
    let written = egress.checkpoint();
    while let Some(transmit) = egress.poll_transmit(now) {
        let path = written.paths.iter().find(|path| path.id == transmit.path.0);
        let next = path.map(|path| path.next_packet_number);
        assert!(
            next.is_some_and(|next| transmit.packet_number >= next),
            "a number is used twice"
        );
    }
}
