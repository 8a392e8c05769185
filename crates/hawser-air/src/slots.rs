//! One card in slots: open networks on several channels in turn, by a station in user space
//! (Juggler).
//!
//! A thread for each card carries frames between a monitor interface, which acknowledges what comes
//! to its address, and an Ethernet device for each network, in which DHCP, ARP and all above are
//! the kernel's. `hawser_radio::juggler` decides: who is served now, what an access point is told,
//! when the card is tuned. What the access point of a sleeping network is to send, it keeps (some
//! 64 packets); what the machine sends there waits in the network's own queue.
//!
//! It fails by falling silent: a network whose access point is not heard, or does not let this
//! station in, is shown as lost, and the owner ends the slots.

mod rate;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Clock};

use anyhow::Context;
use hawser_linux::system::System;
use hawser_linux::wait::{Waker, wait_readable};
use hawser_linux::wireless::air::{AirSocket, EthernetTap};
use hawser_linux::wireless::cards::Wireless;
use hawser_netem::air::{Beacon, Frame, Outgoing, StationId};
use hawser_radio::juggler::bytes::{self, Notices, Radiotap, Writer};
use hawser_radio::juggler::{Config, Event, Juggler, NetworkConfig, NetworkId, State};
use hawser_radio::stations::{Heard, channel, frequency};
use hawser_units::Instant;

use rate::Rate;

/// A card that is shared by slots; ended with [`Slots::end`].
pub(super) struct Slots {
    pub(super) monitor: String,
    shown: AllShown,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    weights: mpsc::Sender<(usize, u32)>,
    thread: JoinHandle<()>,
}

/// How a network is doing.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    /// Its Ethernet device.
    pub(super) name: String,
    pub(super) joins: Heard,
    /// Its access point has let us in, and has been heard of late.
    pub(super) is_joined: bool,
    /// Since when it is, or is not.
    pub(super) since: Clock,
    /// Of the round of all networks, what is its own.
    pub(super) slot: Duration,
    pub(super) cycle: Duration,
    /// The longest of the latest switches to it, from the end of the slot before.
    pub(super) switch: Duration,
    pub(super) signal: Option<i8>,
}

impl Slots {
    /// Begins to serve these networks, each with an Ethernet device of that name.
    ///
    /// # Errors
    /// The card has no room, or refuses; nothing is left behind but what the journal knows.
    pub(super) async fn start(
        system: &mut System,
        wireless: &Wireless,
        (card, monitor): (u32, &str),
        address: [u8; 6],
        slot: Duration,
        networks: Vec<(String, Heard)>,
    ) -> anyhow::Result<Self> {
        let index = system.add_monitor(wireless, card, monitor, address).await?;
        let result = Self::begin(system, index, monitor, address, slot, networks).await;
        if result.is_err() {
            let _ = system.remove_station(monitor).await;
        }
        result
    }

    async fn begin(
        system: &mut System,
        index: u32,
        monitor: &str,
        address: [u8; 6],
        slot: Duration,
        networks: Vec<(String, Heard)>,
    ) -> anyhow::Result<Self> {
        let air = AirSocket::open(index).context("cannot open the monitor interface")?;
        let mut taps = Vec::new();
        for (name, heard) in networks {
            let tap = EthernetTap::create(&name, address).with_context(|| format!("cannot make {name}"))?;
            system.link_up(&name).await?;
            taps.push((name, heard, tap));
        }
        let cycle = slot * u32::try_from(taps.len()).unwrap_or(1);
        let shown = taps.iter().map(|(name, heard, _)| Shown {
            name: name.clone(),
            joins: heard.clone(),
            is_joined: false,
            since: Clock::now(),
            slot,
            cycle,
            switch: Duration::ZERO,
            signal: None,
        });
        let shown = Arc::new(Mutex::new(shown.collect()));
        let (stop, waker) = (Arc::new(AtomicBool::new(false)), Arc::new(Waker::new()?));
        let shared = (Arc::clone(&shown), Arc::clone(&stop), Arc::clone(&waker));
        let (weights, wanted) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("slots".to_owned())
            .spawn(move || {
                let (shown, stop, waker) = shared;
                let driver = Driver::new(air, index, address, slot, taps, (shown, wanted));
                match driver {
                    Ok(driver) => driver.run(&stop, &waker),
                    Err(error) => tracing::warn!(error = format!("{error:#}"), "no slots"),
                }
            })
            .context("cannot start a thread")?;
        Ok(Self {
            monitor: monitor.to_owned(),
            shown,
            stop,
            waker,
            weights,
            thread,
        })
    }

    /// Whether it still runs.
    pub(super) fn is_alive(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Serves the network at that place for so many slots in turn.
    pub(super) fn set_weight(&self, place: usize, weight: u32) {
        // One that has ended serves nobody.
        let _ = self.weights.send((place, weight));
        self.waker.wake();
    }

    /// How each network is doing.
    pub(super) fn shown(&self) -> Vec<Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends it; the Ethernet devices go.
    pub(super) async fn end(self, system: &mut System) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        let _ = tokio::task::spawn_blocking(move || self.thread.join()).await;
        if let Err(error) = system.remove_station(&self.monitor).await {
            tracing::warn!(error = format!("{:#}", anyhow::anyhow!(error)), "Wi-Fi");
        }
    }
}

/// How each network is doing, for whoever asks.
type AllShown = Arc<Mutex<Vec<Shown>>>;

/// A packet in one of the driver's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packet(u32);

/// Buffers by number.
#[derive(Default)]
struct Packets {
    all: Vec<Vec<u8>>,
    free: Vec<u32>,
}

impl Packets {
    fn put(&mut self, bytes: &[u8]) -> Packet {
        let number = self.free.pop().unwrap_or_else(|| {
            self.all.push(Vec::new());
            u32::try_from(self.all.len() - 1).expect("queues have bounds")
        });
        let buffer = &mut self.all[number as usize];
        buffer.clear();
        buffer.extend_from_slice(bytes);
        Packet(number)
    }

    fn get(&self, packet: Packet) -> &[u8] {
        &self.all[packet.0 as usize]
    }

    fn release(&mut self, packet: Packet) {
        self.free.push(packet.0);
    }
}

/// A network of the card.
struct Member {
    id: NetworkId,
    tap: EthernetTap,
    writer: Writer,
    ssid: Vec<u8>,
    is_5ghz: bool,
    last_sequence: Option<u16>,
    /// When its access point was last heard.
    heard_at: Clock,
}

/// A frame that the card has not said to be sent.
struct Flying {
    bytes: Vec<u8>,
    what: Outgoing<Frame<Packet>>,
    at: Clock,
}

struct Driver {
    juggler: Juggler<Packet>,
    air: AirSocket,
    monitor: u32,
    slot: Duration,
    runtime: tokio::runtime::Runtime,
    wireless: Wireless,
    own: [u8; 6],
    members: Vec<Member>,
    packets: Packets,
    flying: VecDeque<Flying>,
    rate: Rate,
    started: Clock,
    shown: AllShown,
    wanted: mpsc::Receiver<(usize, u32)>,
}

impl Driver {
    fn new(
        air: AirSocket,
        monitor: u32,
        own: [u8; 6],
        slot: Duration,
        taps: Vec<(String, Heard, EthernetTap)>,
        (shown, wanted): (AllShown, mpsc::Receiver<(usize, u32)>),
    ) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let wireless = runtime.block_on(async { Wireless::open() })?;
        let config = Config {
            slot,
            // Both are waited for where they are done.
            retune: Duration::ZERO,
            reconfigure: Duration::ZERO,
            ..Config::default()
        };
        let now = Instant::ZERO;
        // No channel is zero: the first one is tuned to.
        let mut juggler = Juggler::new(config, 0, now);
        let mut members = Vec::new();
        for (place, (_, heard, tap)) in taps.into_iter().enumerate() {
            let number = u16::try_from(place).context("too many networks")?;
            let at = u16::try_from(channel(heard.frequency)).context("no such channel")?;
            let configured = NetworkConfig::access_point(number.into(), StationId(number), at);
            members.push(Member {
                id: juggler.add(configured, now),
                tap,
                writer: Writer {
                    own,
                    bssid: heard.bssid,
                },
                ssid: heard.ssid,
                is_5ghz: heard.frequency > 5000,
                last_sequence: None,
                heard_at: Clock::now(),
            });
        }
        Ok(Self {
            juggler,
            air,
            monitor,
            slot,
            runtime,
            wireless,
            own,
            members,
            packets: Packets::default(),
            flying: VecDeque::new(),
            rate: Rate::default(),
            started: Clock::now(),
            shown,
            wanted,
        })
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    fn run(mut self, stop: &AtomicBool, waker: &Waker) {
        let mut buffer = vec![0; LONGEST_FRAME];
        let mut looked_at = Clock::now();
        while !stop.load(Ordering::Acquire) {
            if let Err(error) = self.turn(waker, &mut buffer) {
                tracing::warn!(error = format!("{error:#}"), "the card's slots end");
                return;
            }
            if looked_at.elapsed() > LOOK {
                looked_at = Clock::now();
                self.look();
            }
        }
        // Nobody is left with packets for somebody who does not come back.
        for member in &self.members {
            let header = Radiotap::to_send(Rate::lowest(member.is_5ghz));
            let _ = self.air.send(&header, &member.writer.deauthenticate());
        }
    }

    fn turn(&mut self, waker: &Waker, buffer: &mut [u8]) -> anyhow::Result<()> {
        let now = self.now();
        self.give_up_silent();
        self.juggler.handle_timeout(now);
        self.carry_out();
        let until = self.juggler.poll_timeout();
        let mut timeout = until.map_or(LOOK, |(at, _)| at.since(self.now()));
        if !self.flying.is_empty() {
            timeout = timeout.min(SILENT);
        }
        let mut ready = [false; 64];
        let sources: Vec<BorrowedFd<'_>> = [waker.as_fd(), self.air.as_fd()]
            .into_iter()
            .chain(self.members.iter().map(|member| member.tap.as_fd()))
            .collect();
        wait_readable(&sources, Some(timeout.min(LOOK)), &mut ready[..sources.len()])?;
        if ready[0] {
            waker.clear();
            self.weigh();
        }
        if ready[1] {
            for _ in 0..AT_ONCE {
                let Some(length) = self.air.receive(buffer).context("the monitor interface")? else {
                    break;
                };
                self.on_air(&buffer[..length]);
            }
        }
        for place in 0..self.members.len() {
            if ready[2 + place] {
                self.read_tap(place, buffer)?;
            }
        }
        Ok(())
    }

    /// Takes up the weights that somebody wants.
    fn weigh(&mut self) {
        while let Ok((place, weight)) = self.wanted.try_recv() {
            let now = self.now();
            if let Some(member) = self.members.get(place) {
                self.juggler.set_weight(member.id, weight, now);
            }
        }
        let slot = self.slot;
        let slots: Vec<_> = self
            .members
            .iter()
            .filter_map(|member| self.juggler.network(member.id))
            .map(|network| slot * network.config().weight)
            .collect();
        let cycle = slots.iter().sum();
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for (shown, slot) in shown.iter_mut().zip(slots) {
            (shown.slot, shown.cycle) = (slot, cycle);
        }
    }

    /// What the machine sends into a network.
    fn read_tap(&mut self, place: usize, buffer: &mut [u8]) -> anyhow::Result<()> {
        for _ in 0..AT_ONCE {
            let Some(length) = self.members[place]
                .tap
                .read(buffer)
                .context("a network's device")?
            else {
                break;
            };
            let packet = self.packets.put(&buffer[..length]);
            let bytes = u32::try_from(length).unwrap_or(u32::MAX);
            if let Err(packet) = self
                .juggler
                .handle_packet_on(self.members[place].id, packet, bytes)
            {
                // Its queue is full: TCP hears of it by the loss.
                self.packets.release(packet);
            }
        }
        Ok(())
    }

    /// Does what the machine wants until it wants nothing more.
    fn carry_out(&mut self) {
        loop {
            let mut is_idle = true;
            while let Some(event) = self.juggler.poll_event() {
                is_idle = false;
                self.on_event(event);
            }
            while let Some(outgoing) = self.juggler.poll_transmit() {
                is_idle = false;
                self.transmit(outgoing);
            }
            if is_idle {
                return;
            }
        }
    }

    fn on_event(&mut self, event: Event<Packet>) {
        match event {
            Event::Tune { channel, .. } => {
                let mhz = frequency(channel.into());
                let tuned = self.runtime.block_on(self.wireless.tune(self.monitor, mhz));
                if let Err(error) = tuned {
                    tracing::debug!(
                        error = format!("{:#}", anyhow::anyhow!(error)),
                        channel,
                        "not tuned"
                    );
                }
                let now = self.now();
                self.juggler.handle_timeout(now);
            }
            Event::Received { network, packet } => {
                if let Some(member) = self.members.iter().find(|member| member.id == network) {
                    let _ = member.tap.write(self.packets.get(packet));
                }
                self.packets.release(packet);
            }
            Event::Switched { to, took } => self.show(to, |shown| {
                // A peak that fades.
                shown.switch = took.max(shown.switch - shown.switch / 16);
            }),
            Event::Associated(id) => {
                if let Some(member) = self.members.iter().find(|member| member.id == id) {
                    let _ = member.tap.set_carrier(true);
                }
            }
            Event::Deauthenticated(_) | Event::Recall(_) | Event::Found { .. } => {}
        }
    }

    fn show(&self, id: NetworkId, change: impl FnOnce(&mut Shown)) {
        let place = self.members.iter().position(|member| member.id == id);
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shown) = place.and_then(|place| shown.get_mut(place)) {
            change(shown);
        }
    }

    fn transmit(&mut self, outgoing: Outgoing<Frame<Packet>>) {
        let Some(place) = outgoing.to.map(|to| usize::from(to.0)) else {
            return;
        };
        let Some(member) = self.members.get(place) else {
            return;
        };
        let writer = &member.writer;
        let bytes = match outgoing.body {
            Frame::Data { packet, .. } => writer.data(self.packets.get(packet)),
            Frame::Null { power_save } => Some(writer.null(power_save)),
            Frame::PsPoll => {
                let aid = self.juggler.network(member.id).and_then(|network| network.aid());
                aid.map(|aid| writer.ps_poll(aid.into()))
            }
            Frame::Authenticate => Some(writer.authenticate()),
            Frame::Associate => Some(writer.associate(&member.ssid, member.is_5ghz)),
            Frame::Striped { .. }
            | Frame::Beacon(_)
            | Frame::ProbeRequest
            | Frame::ProbeResponse { .. }
            | Frame::Authenticated
            | Frame::Associated { .. }
            | Frame::Deauthenticate => None,
        };
        match bytes {
            Some(bytes) => self.send_frame(place, bytes, outgoing),
            None => self.finish(&outgoing, false),
        }
    }

    fn send_frame(&mut self, place: usize, bytes: Vec<u8>, what: Outgoing<Frame<Packet>>) {
        let rate = if matches!(what.body, Frame::Data { .. }) {
            self.rate.units()
        } else {
            Rate::lowest(self.members[place].is_5ghz)
        };
        if matches!(self.air.send(&Radiotap::to_send(rate), &bytes), Ok(true)) {
            self.flying.push_back(Flying {
                bytes,
                what,
                at: Clock::now(),
            });
        } else {
            self.finish(&what, false);
        }
    }

    /// The card is done with a frame.
    fn finish(&mut self, what: &Outgoing<Frame<Packet>>, is_acknowledged: bool) {
        let now = self.now();
        if let Frame::Data { packet, .. } = what.body {
            self.packets.release(packet);
            self.rate.handle(is_acknowledged);
        }
        self.juggler
            .handle_finished(what.to, &what.body, is_acknowledged, now);
    }

    /// A card that never says what became of a frame has lost it.
    fn give_up_silent(&mut self) {
        while let Some(oldest) = self.flying.front() {
            if oldest.at.elapsed() < SILENT {
                return;
            }
            if let Some(flying) = self.flying.pop_front() {
                self.finish(&flying.what, false);
            }
        }
    }

    fn on_air(&mut self, bytes: &[u8]) {
        let Some((said, frame)) = Radiotap::parse(bytes) else {
            return;
        };
        if let Some(is_acknowledged) = said.sent {
            let place = self
                .flying
                .iter()
                .position(|flying| bytes::is_same(&flying.bytes, frame));
            if let Some(flying) = place.and_then(|place| self.flying.remove(place)) {
                self.finish(&flying.what, is_acknowledged);
                self.carry_out();
            }
            return;
        }
        if said.is_damaged {
            return;
        }
        if let Some(frame) = bytes::parse(frame) {
            self.on_frame(&frame, said.signal);
            self.carry_out();
        }
    }

    fn on_frame(&mut self, frame: &bytes::Frame<'_>, signal: Option<i8>) {
        let Some(place) = self
            .members
            .iter()
            .position(|member| member.writer.bssid == frame.from)
        else {
            return;
        };
        let (now, own) = (self.now(), self.own);
        let member = &mut self.members[place];
        let peer = StationId(u16::try_from(place).unwrap_or(u16::MAX));
        let is_ours = frame.to == own;
        let is_for_all = frame.to[0] & 1 != 0;
        member.heard_at = Clock::now();
        let body = match frame.heard {
            bytes::Heard::Beacon { elements, .. } => {
                let notices = Notices::parse(elements);
                let id = member.id;
                self.show(id, |shown| shown.signal = signal.or(shown.signal));
                Frame::Beacon(Beacon {
                    network: place as u32,
                    due: now,
                    traffic: notices.traffic,
                    moves: notices.moves,
                })
            }
            bytes::Heard::Authenticated(0) if is_ours => Frame::Authenticated,
            bytes::Heard::Associated { status: 0, aid } if is_ours => match u8::try_from(aid) {
                // The machine knows the first 63: no access point of ours has more stations.
                Ok(aid @ 1..64) => Frame::Associated { aid },
                _ => return,
            },
            bytes::Heard::Deauthenticated if is_ours || is_for_all => Frame::Deauthenticate,
            bytes::Heard::Null if is_ours => Frame::Null { power_save: false },
            bytes::Heard::Data {
                destination,
                source,
                ether: (kind, payload),
                more,
                sequence: (number, is_again),
            } if is_ours || (is_for_all && source != own) => {
                if is_again && member.last_sequence == Some(number) {
                    return;
                }
                member.last_sequence = Some(number);
                let ethernet = [&destination[..], &source, &kind.to_be_bytes(), payload].concat();
                if is_for_all {
                    let _ = member.tap.write(&ethernet);
                    return;
                }
                Frame::Data {
                    packet: self.packets.put(&ethernet),
                    more,
                    power_save: false,
                }
            }
            bytes::Heard::Authenticated(_)
            | bytes::Heard::Associated { .. }
            | bytes::Heard::Deauthenticated
            | bytes::Heard::Null
            | bytes::Heard::Data { .. } => return,
        };
        self.juggler.handle_frame(peer, &body, now);
    }

    /// Brings what others see up to date.
    fn look(&mut self) {
        for member in &self.members {
            let state = self.juggler.network(member.id).map(|network| network.state());
            let is_in = matches!(state, Some(State::Asleep | State::Waking | State::Awake));
            let is_joined = is_in && member.heard_at.elapsed() < UNHEARD;
            self.show(member.id, |shown| {
                if shown.is_joined != is_joined {
                    shown.is_joined = is_joined;
                    shown.since = Clock::now();
                }
            });
        }
    }
}

/// A frame of 2,304 bytes of packet with its headers and radiotap's.
const LONGEST_FRAME: usize = 4096;
/// Frames taken at one look.
const AT_ONCE: usize = 64;
/// Longer than a frame with all its repetitions takes at 1 Mbit/s.
const SILENT: Duration = Duration::from_millis(60);
/// How often what is shown is brought up to date.
const LOOK: Duration = Duration::from_millis(100);
/// Beacons come ten times a second, and a network is away for a cycle.
const UNHEARD: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again() {
        let mut packets = Packets::default();
        let first = packets.put(b"one");
        packets.release(first);
        let second = packets.put(b"two");
        assert_eq!((first, packets.get(second)), (second, &b"two"[..]));
        assert_eq!(packets.all.len(), 1);
    }
}
