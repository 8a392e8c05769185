//! Sending thread, from the TUN device to the networks.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use hawser_linux::clock::{now, use_precise_timers};
use hawser_linux::tun::{Tun, is_removed};
use hawser_linux::udp::DataSocket;
use hawser_linux::wait::{Waker, wait_readable};
use hawser_units::{Bytes, Duration, Instant};
use hawser_wire::frame::Format;
use hawser_wire::inner::FlowKey;
use hawser_wire::offload::{Offload, VIRTIO_LEN};

use super::batch::Batches;
use super::checkpoint::{ReceivingHalf, SessionCheckpoint};
use super::crypto::DataKey;
use super::events::Events;
use super::fragile::Fragile;
use super::handoff::Taker;
use super::lane::Lane;
use super::overhead::{overhead, path_config};
use super::relayed::Relayed;
use super::sessions::{Accepted, Session, Sessions, snapshot};
use super::share::Share;
use super::streams::ToSending;
use super::{Change, Event, OtherClients, Reply, SessionId, SessionSnapshot, SocketId};

pub(crate) mod streaming;

use streaming::Streams;

/// Packets that are read from the TUN before their datagrams are sent. Source: our choice, some 1
/// MB of segments; more delay the first packet of a batch, fewer make smaller batches of datagrams
/// for each system call.
const READS: usize = 16;
/// Retry interval of events that the control side had no room for. Source: our choice; events
/// concern users and not packets, so a delay of this order is not noticed.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Orders for the sending thread.
pub(super) enum Order {
    Change(Arc<Change>),
    /// Message of the receiving thread about a stream.
    Stream(SessionId, ToSending),
    /// Handover with the receiving thread's part, to be completed; the thread then ends.
    HandOver {
        received: BTreeMap<SessionId, ReceivingHalf>,
        reply: Reply<Vec<SessionCheckpoint>>,
    },
    /// Snapshot with the receiving thread's part, to be completed.
    Snapshot {
        received: BTreeMap<(u64, u16), (u32, u64)>,
        counters: Vec<(&'static str, u64)>,
        reply: Reply<super::Snapshot>,
    },
}

pub(super) struct Sender {
    tun: Tun,
    format: Format,
    orders: Taker<Order, Relayed, Waker>,
    events: Events,
    sockets: HashMap<SocketId, Arc<DataSocket>>,
    sessions: Sessions,
    /// Clients of a hub without sessions.
    others: Option<Arc<dyn OtherClients>>,
    /// Packet sizes that made networks fail.
    fragile: Fragile,
    batches: Batches,
    /// State of streams; `None` if connections are transferred as packets.
    streams: Option<Streams>,
    /// Datagrams that were not sent because of a missing key.
    no_key: u64,
    /// Receiving thread's part of the handover, and the receiver of the whole.
    leaving: Option<Leaving>,
}

type Leaving = (BTreeMap<SessionId, ReceivingHalf>, Reply<Vec<SessionCheckpoint>>);

impl Sender {
    pub(super) fn new(
        (tun, format): (Tun, Format),
        orders: Taker<Order, Relayed, Waker>,
        events: tokio::sync::mpsc::Sender<Event>,
        (seed, shares): (u64, (Share, Share)),
    ) -> Self {
        Self {
            tun,
            format,
            orders,
            events: Events::new(events),
            sockets: HashMap::new(),
            sessions: Sessions::new(format, seed, shares, now()),
            others: None,
            fragile: Fragile::default(),
            batches: Batches::new(),
            streams: None,
            no_key: 0,
            leaving: None,
        }
    }

    /// Enables streams; must be called before the first session is added.
    pub(super) fn set_streams(&mut self, streams: Option<Streams>) {
        self.streams = streams;
    }

    /// Limits the queue of a flow; must be called before the first session is added.
    pub(super) fn set_buffer(&mut self, buffer: Option<Bytes>) {
        self.sessions.buffer = buffer;
    }

    /// Runs until it is asked to stop.
    pub(super) fn run(mut self) {
        use_precise_timers();
        let mut readable = true;
        let (mut orders, mut relays) = (Vec::new(), Vec::new());
        let mut goes_on = true;
        while goes_on {
            if !readable {
                readable = self.wait();
            } else if self.streams.is_some() {
                self.poll_sockets();
            }
            goes_on = self.orders.take(&mut orders, &mut relays);
            orders.drain(..).for_each(|order| self.obey(order));
            relays.drain(..).for_each(|relay| self.relay(relay, now()));
            if let Some((received, reply)) = self.leaving.take() {
                self.hand_over(received, reply);
            }
            self.events.retry();
            if readable {
                match self.read_tun() {
                    Ok(more) => readable = more,
                    Err(error) => {
                        // The daemon ends with its data plane, and so its user learns of it.
                        // Otherwise this thread would poll a descriptor that is always readable.
                        let interface = self.tun.name();
                        tracing::error!(interface, %error, "another program has removed the interface");
                        return;
                    }
                }
            }
            self.service();
            if self.streams.is_some() {
                self.settle_streams();
            }
            self.batches.flush();
        }
    }

    /// Waits for packets, orders or a deadline. Returns whether packets wait.
    fn wait(&mut self) -> bool {
        let mut due = self.sessions.due();
        if self.events.is_waiting() {
            due = due.min(now() + RETRY_INTERVAL);
        }
        if let Some(streams) = &self.streams {
            due = due.min(streams.due());
        }
        let timeout = (due != Instant::FAR_FUTURE).then(|| due.since(now()));
        let waker = self.orders.waker();
        let sockets = self
            .streams
            .as_ref()
            .map_or(waker.as_fd(), |streams| streams.sockets.as_fd());
        let mut ready = [false; 3];
        if let Err(error) = wait_readable(&[self.tun.as_fd(), waker.as_fd(), sockets], timeout, &mut ready) {
            tracing::error!(%error, "waiting failed");
            std::thread::sleep(Duration::from_millis(100));
        }
        if ready[1] {
            waker.clear();
        }
        if ready[2] {
            self.poll_sockets();
        }
        ready[0]
    }

    /// Reads packets of applications. Returns whether more wait.
    ///
    /// # Errors
    /// The interface was removed.
    fn read_tun(&mut self) -> io::Result<bool> {
        for _ in 0..READS {
            match self.tun.read(self.sessions.reading()) {
                Ok(Some(len)) => {
                    if !self.take_for_stream(len) {
                        self.take_packet(len);
                    }
                }
                Ok(None) => return Ok(false),
                Err(error) if is_removed(&error) => return Err(error),
                Err(error) => {
                    // EIO while the interface is down, for example while it is being set up.
                    tracing::trace!(%error, "TUN not readable");
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Queues the packet of `len` bytes that was read last.
    fn take_packet(&mut self, len: usize) {
        match self.sessions.accept(len, now()) {
            Accepted::TooLarge(mtu) if !self.fragment(len, mtu) => self.say_too_large(len, mtu),
            Accepted::Advised(answer) => self.answer(&answer),
            Accepted::NoSession(to) => {
                let packet = &self.sessions.reading()[..len];
                let is_taken = |others: &Arc<dyn OtherClients>| others.handle_packet(to, packet);
                if !self.others.as_ref().is_some_and(is_taken) {
                    self.sessions.dropped.no_session += 1;
                }
            }
            Accepted::TooLarge(_) | Accepted::Queued | Accepted::Dropped => {}
        }
    }

    /// Queues the last read packet, which is larger than any path, in fragments. Returns false if
    /// it must not be fragmented.
    fn fragment(&mut self, len: usize, mtu: u16) -> bool {
        let reading = &mut self.sessions.reading()[..len];
        let Some((virtio, packet)) = reading.split_first_chunk_mut::<VIRTIO_LEN>() else {
            return false;
        };
        // This check is first, because the report to a packet's sender quotes the packet as it
        // arrived.
        if self.format.fragments(packet, mtu).is_none() || Offload::completed(virtio, packet).is_none() {
            return false;
        }
        let fragments = self.format.fragments(packet, mtu).unwrap_or_default();
        for fragment in fragments {
            let len = VIRTIO_LEN + fragment.len();
            let room = &mut self.sessions.reading()[..len];
            room[..VIRTIO_LEN].fill(0);
            room[VIRTIO_LEN..].copy_from_slice(&fragment);
            self.sessions.accept(len, now());
        }
        true
    }

    /// Reports the permitted size to the sender of the last read packet, which is larger than any
    /// path.
    fn say_too_large(&mut self, len: usize, mtu: u16) {
        let packet = &self.sessions.reading()[VIRTIO_LEN..len];
        if let Some(answer) = self.format.too_large(packet, mtu) {
            self.answer(&answer);
        }
    }

    /// Writes an answer to the sender of the last read packet.
    fn answer(&mut self, answer: &[u8]) {
        let virtio = [0; VIRTIO_LEN];
        let pieces = [std::io::IoSlice::new(&virtio), std::io::IoSlice::new(answer)];
        if let Err(error) = self.tun.write(&pieces) {
            tracing::debug!(%error, "cannot report that a packet is too large");
        }
    }

    /// Makes each session with pending work send the permitted packets.
    fn service(&mut self) {
        let Self {
            sessions,
            batches,
            events,
            no_key,
            format,
            ..
        } = self;
        sessions.service(
            now,
            |_, lane, burst, packet| *no_key += u64::from(!lane.send(burst, *format, packet, batches)),
            |event| events.notify(event),
        );
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Change(change) => self.change(&change),
            Order::Stream(session, order) => self.handle_stream(session, order),
            Order::HandOver { received, reply } => self.leaving = Some((received, reply)),
            Order::Snapshot {
                received,
                mut counters,
                reply,
            } => {
                counters.extend(self.counters());
                let sessions = self.snapshots(&received, now());
                reply(super::Snapshot {
                    sessions,
                    counters,
                    pairs: Vec::new(),
                });
            }
        }
    }

    /// Passes all sessions on, after the receiving thread's last relays. The thread ends.
    fn hand_over(
        &mut self,
        received: BTreeMap<SessionId, ReceivingHalf>,
        reply: Reply<Vec<SessionCheckpoint>>,
    ) {
        // Permitted packets are sent now; afterwards nothing can be sent.
        self.service();
        if self.streams.is_some() {
            self.settle_streams();
        }
        self.batches.flush();
        let mut sessions = self.sessions.hand_over(received);
        self.save_near(&mut sessions);
        reply(sessions);
    }

    /// Executes the sending half of a change.
    fn change(&mut self, change: &Change) {
        let at = now();
        match change {
            Change::AddSocket { id, socket, .. } => {
                self.sessions.equip(socket);
                self.sockets.insert(*id, Arc::clone(socket));
            }
            // This change concerns the receiving direction only.
            Change::SetClientPolicy(_) => {}
            Change::SetOtherClients(clients) => self.others = Some(Arc::clone(clients)),
            Change::RemoveSocket { id } => {
                self.sockets.remove(id);
            }
            Change::AddSession { session, role, inner } => self.sessions.add(*session, *role, inner, at),
            Change::SetSubnets { session, subnets } => self.sessions.set_subnets(*session, subnets),
            Change::RemoveSession { session } => {
                self.note_fragile(*session);
                let ids = self.sessions.get(*session).map(|state| state.streams.ids());
                self.sessions.remove(*session);
                self.forget_streams(*session, &ids.unwrap_or_default());
            }
            Change::BeginWith { session } => {
                self.sessions.begin_with(*session);
                self.ask_again(*session);
            }
            Change::GoOnWith { session } => self.sessions.go_on_with(*session),
            Change::SetDestinations {
                session,
                destinations,
            } => self.sessions.set_destinations(*session, destinations),
            Change::Assign { session, flow } => self.sessions.assign(*session, *flow),
            Change::RestoreSession {
                session,
                role,
                inner,
                checkpoint,
            } => {
                let sending = &checkpoint.sending;
                match self.sessions.restore(*session, *role, inner, sending, at) {
                    Ok(sockets) => self.restore_streams(*session, sockets, sending.streams.near.as_ref()),
                    Err(error) => tracing::error!(session = session.0, %error, "a session is lost"),
                }
            }
            Change::InstallKeys { session, epoch, keys } => self.sessions.with(*session, |state| {
                let key = DataKey::new(keys.cipher, &keys.send);
                state.tunnel.install(*epoch, key);
            }),
            Change::OpenPath {
                session,
                path,
                socket,
                remote,
                peer_index,
                name,
                mtu,
                cap,
                ..
            } => {
                let socket = self.sockets.get(socket).cloned();
                let fragile = &self.fragile;
                self.sessions.with(*session, |state| {
                    let config = path_config(*path, state.tunnel.role(), *mtu, *cap, remote.as_ref());
                    let lane = Lane::new(socket, *remote, *peer_index, name.clone());
                    state.lanes.insert(*path, lane);
                    state.tunnel.open_path(config, remote.is_some(), at);
                    fragile.apply(state, *path, at);
                });
            }
            Change::RebindPath {
                session,
                path,
                socket,
            } => {
                let socket = self.sockets.get(socket).cloned();
                self.sessions.with(*session, |state| {
                    if let Some(lane) = state.lanes.get_mut(path) {
                        lane.socket = socket;
                        if let Some(remote) = &lane.remote {
                            state.tunnel.handle_rebound(*path, overhead(remote), at);
                        }
                    }
                });
            }
            Change::ClosePath { session, path } => {
                self.note_fragile(*session);
                self.sessions.with(*session, |state| {
                    state.lanes.remove(path);
                    state.tunnel.close_path(*path, at);
                });
            }
            Change::SetScheduler {
                session,
                class,
                scheduler,
            } => self.sessions.with(*session, |state| {
                if let Err(error) = state.tunnel.egress_mut().set_scheduler(*class, scheduler) {
                    tracing::warn!(%error, "scheduler unchanged");
                }
            }),
            Change::SetController { session, controller } => self.sessions.with(*session, |state| {
                state.tunnel.egress_mut().set_control(*controller, at);
            }),
            Change::SetLayerRules { session, rules } => self.sessions.with(*session, |state| {
                state.tunnel.egress_mut().set_layer_rules(rules.clone());
            }),
            Change::SetDeadlines {
                session,
                rules,
                is_from_client,
            } => self.sessions.with(*session, |state| {
                let egress = state.tunnel.egress_mut();
                egress.set_deadlines(rules.clone(), *is_from_client);
            }),
            Change::SetForms(forms) => self.set_forms(forms),
            Change::SetDeclared { session, flows } => self.sessions.with(*session, |state| {
                state.tunnel.egress_mut().set_declared(flows, at);
            }),
            Change::SetLimit { session, limit } => self.sessions.with(*session, |state| {
                state.tunnel.egress_mut().set_limit(*limit);
            }),
            Change::SetAirtime {
                session,
                path,
                airtime,
            } => self.sessions.with(*session, |state| {
                state.tunnel.egress_mut().set_airtime(*path, *airtime, at);
            }),
            Change::SetPause { session, path, pause } => self.sessions.with(*session, |state| {
                state.tunnel.egress_mut().set_pause(*path, *pause);
            }),
            Change::SetPreference {
                session,
                path,
                preference,
            } => self.sessions.with(*session, |state| {
                state.tunnel.egress_mut().set_preference(*path, *preference);
            }),
            Change::SetCap { session, path, cap } => self.sessions.with(*session, |state| {
                state.tunnel.egress_mut().set_cap(*path, *cap);
            }),
        }
    }

    /// Records sizes that made networks of a session fail, before its paths are removed.
    fn note_fragile(&mut self, session: SessionId) {
        if let Some(session) = self.sessions.get(session) {
            self.fragile.note(session);
        }
    }

    fn relay(&mut self, Relayed { session: name, relay }: Relayed, at: Instant) {
        let (sockets, fragile) = (&self.sockets, &self.fragile);
        self.sessions.with(name, |session| {
            let Some((path, source)) = session.tunnel.handle_relay(relay, at) else {
                return;
            };
            if let Some(lane) = session.lanes.get_mut(&path) {
                let from = source.from;
                tracing::debug!(session = name.0, path = path.0, %from, to = ?source.to, "path has a new address");
                lane.remote = Some(from);
                lane.local = source.to;
                lane.socket = sockets.get(&source.socket).cloned().or_else(|| lane.socket.take());
                fragile.apply(session, path, at);
            }
        });
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let sum = |of: fn(&Session) -> u64| self.sessions.iter().map(of).sum();
        let dropped = &self.sessions.dropped;
        let mut counts = self.sessions.stream_counts;
        self.sessions
            .iter()
            .for_each(|session| counts.add(session.streams.counts));
        vec![
            ("egress_no_session", dropped.no_session),
            ("egress_malformed", dropped.malformed),
            ("egress_too_large", dropped.too_large),
            ("egress_queue_full", dropped.queue_full),
            ("egress_no_buffer", dropped.no_buffer),
            ("egress_no_key", self.no_key),
            ("egress_stopped", dropped.stopped),
            (
                "egress_shed",
                sum(|session| session.tunnel.egress().counters().shed),
            ),
            (
                "egress_unkept",
                sum(|session| session.tunnel.egress().counters().unkept),
            ),
            (
                "egress_expired",
                sum(|session| session.tunnel.egress().counters().expired),
            ),
            (
                "egress_late",
                sum(|session| session.tunnel.egress().counters().late),
            ),
            ("egress_held_bytes", self.sessions.buffered_bytes()),
            ("egress_relays_refused", self.orders.refused()),
            (
                "egress_backlog_bytes",
                sum(|session| session.tunnel.egress().flows().backlog()),
            ),
            (
                "egress_policed",
                sum(|session| session.tunnel.egress().counters().policed),
            ),
            (
                "egress_split",
                sum(|session| session.tunnel.egress().counters().split),
            ),
            (
                "egress_retransmitted",
                sum(|session| session.tunnel.egress().counters().retransmitted),
            ),
            (
                "egress_covered",
                sum(|session| session.tunnel.egress().counters().covered),
            ),
            (
                "egress_parity",
                sum(|session| session.tunnel.egress().counters().parity),
            ),
            (
                "egress_parity_bytes",
                sum(|session| session.tunnel.egress().counters().parity_bytes),
            ),
            (
                "egress_parity_late",
                sum(|session| session.tunnel.egress().counters().parity_late),
            ),
            ("streams_open", sum(|session| session.streams.len() as u64)),
            ("streams_connected", counts.connected),
            ("streams_completed", counts.completed),
            ("streams_reset", counts.reset),
            ("streams_left_to_packets", self.left_to_packets()),
            ("streams_read_bytes", counts.bytes),
            ("streams_held_bytes", sum(|session| session.streams.memory())),
            (
                "streams_repeated_bytes",
                sum(|session| session.tunnel.egress().streams().repeated().0),
            ),
            (
                "streams_copied_bytes",
                sum(|session| session.tunnel.egress().streams().repeated().1),
            ),
            ("egress_refused_by_network", self.batches.refused),
            ("egress_datagrams", self.batches.sent.0),
            ("egress_calls", self.batches.sent.1),
        ]
    }

    fn snapshots(
        &mut self,
        received: &BTreeMap<(u64, u16), (u32, u64)>,
        at: Instant,
    ) -> Vec<SessionSnapshot> {
        let accepting = self
            .streams
            .as_ref()
            .and_then(|streams| streams.accepting.as_ref());
        let whole = |key: &FlowKey| accepting?.reason(key);
        self.sessions
            .iter_mut()
            .map(|(name, session)| snapshot::of_session(name, session, received, whole, at))
            .collect()
    }
}
