//! One card in slots: networks on several channels in turn (Juggler).
//!
//! A thread for each card carries frames between a monitor interface, which acknowledges what comes
//! to its address, and an interface for each network: a station of the kernel's ([`relay`]), which
//! wpa_supplicant joins, keys and all, or where there are no such stations an Ethernet device, for
//! which the station is in user space and serves open networks only. `hawser_radio::slots`
//! decides: who is served now, what an access point is told, when the card is tuned. What the
//! access point of a sleeping network is to send, it keeps (some 64 packets); what the machine
//! sends there waits in the network's own queue.
//!
//! It fails by falling silent: a network whose access point is not heard, or does not let this
//! station in, is shown as lost, and the owner ends the slots.

mod frames;
mod packets;
mod rate;
mod relay;

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Clock};

use anyhow::{Context, bail};
use hawser_config::identity::random;
use hawser_linux::clock::use_precise_timers;
use hawser_linux::hwsim::Cards;
use hawser_linux::system::System;
use hawser_linux::wait::{Waker, wait_readable};
use hawser_linux::wireless::air::{AirSocket, EthernetTap};
use hawser_linux::wireless::cards::Wireless;
use hawser_radio::slots::bytes::{Radiotap, Writer};
use hawser_radio::slots::sequence::{Duplicates, SequenceNumbers};
use hawser_radio::slots::tuning::Tuning;
use hawser_radio::slots::{
    Config, Event, NetworkConfig, NetworkId, Shares, SharesConfig, SlotSchedule, State, Wake,
};
use hawser_radio::stations::{Heard, channel, frequency};
use hawser_units::Instant;
use hawser_wire::air::{Frame, Outgoing, StationId};

use frames::SILENT;
use packets::{Packet, Packets};
use rate::Rate;
use relay::Relay;

/// A card that is shared by slots; ended with [`Slots::end`].
pub(super) struct Slots {
    pub(super) monitor: String,
    shown: AllShown,
    /// Reason why it has ended by itself.
    ended: Arc<Mutex<Option<String>>>,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    weights: mpsc::Sender<(usize, u32)>,
    thread: JoinHandle<()>,
    /// Stations of the kernel that wpa_supplicant has been told of.
    handed: BTreeSet<String>,
}

/// How networks take turns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turns {
    /// What each has in the mean.
    pub(super) slot: Duration,
    /// Whether one may be served nearly alone.
    pub(super) may_serve_one: bool,
}

/// How a network is doing.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    /// Its interface.
    pub(super) name: String,
    pub(super) joins: Heard,
    /// The interface is a station of the kernel's.
    pub(super) is_station: bool,
    /// Its access point has been heard, so that a station can join it.
    pub(super) is_found: bool,
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
    /// Begins to serve these networks, each with an interface of that name: a station of the
    /// kernel's, which is down, where there is a medium for them.
    ///
    /// # Errors
    /// The card has no room, or refuses; nothing is left behind but what the journal knows.
    pub(super) async fn start(
        system: &mut System,
        wireless: &Wireless,
        (card, monitor, address): (u32, &str, [u8; 6]),
        turns: Turns,
        networks: Vec<(String, Heard)>,
        medium: Option<Cards>,
    ) -> anyhow::Result<Self> {
        let index = system.add_monitor(wireless, card, monitor, address).await?;
        let names: Vec<_> = networks.iter().map(|(name, _)| name.clone()).collect();
        let on = (index, monitor, address);
        let result = Self::begin(system, wireless, on, turns, networks, medium).await;
        if result.is_err() {
            for name in names.iter().map(String::as_str).chain([monitor]) {
                let _ = system.remove_station(name).await;
            }
        }
        result
    }

    async fn begin(
        system: &mut System,
        wireless: &Wireless,
        (index, monitor, address): (u32, &str, [u8; 6]),
        turns: Turns,
        networks: Vec<(String, Heard)>,
        mut medium: Option<Cards>,
    ) -> anyhow::Result<Self> {
        let air = AirSocket::open(index).context("cannot open the monitor interface")?;
        let mut surfaces = Vec::new();
        for (name, heard) in networks {
            let surface = match &mut medium {
                None => Surface::device(system, &name, address).await,
                Some(cards) => Surface::station(system, wireless, cards, (&name, address)).await,
            };
            let surface = surface.with_context(|| format!("cannot make {name}"))?;
            surfaces.push((name, heard, surface));
        }
        let slot = turns.slot;
        let cycle = slot * u32::try_from(surfaces.len()).unwrap_or(1);
        let shown = surfaces.iter().map(|(name, heard, surface)| Shown {
            name: name.clone(),
            joins: heard.clone(),
            is_station: matches!(surface, Surface::Station(_)),
            is_found: false,
            is_joined: false,
            since: Clock::now(),
            slot,
            cycle,
            switch: Duration::ZERO,
            signal: None,
        });
        let shown = Arc::new(Mutex::new(shown.collect()));
        let ended = Arc::new(Mutex::new(None));
        let end = Arc::clone(&ended);
        let (stop, waker) = (Arc::new(AtomicBool::new(false)), Arc::new(Waker::new()?));
        let shared = (Arc::clone(&shown), Arc::clone(&stop), Arc::clone(&waker));
        let (weights, wanted) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("slots".to_owned())
            .spawn(move || {
                use_precise_timers();
                let (shown, stop, waker) = shared;
                let on = (air, medium, index, address);
                let driver = Driver::new(on, turns, surfaces, (shown, wanted));
                if let Err(error) = driver.and_then(|driver| driver.run(&stop, &waker)) {
                    let text = format!("{error:#}");
                    *end.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
                }
            })
            .context("cannot start a thread")?;
        Ok(Self {
            monitor: monitor.to_owned(),
            shown,
            ended,
            stop,
            waker,
            weights,
            thread,
            handed: BTreeSet::new(),
        })
    }

    /// The networks whose station can join now, and has not been told to.
    pub(super) fn joinable(&mut self) -> Vec<(String, Heard)> {
        let ready = |shown: &Shown| shown.is_station && shown.is_found;
        let all = self.shown().into_iter().filter(ready);
        all.filter(|shown| self.handed.insert(shown.name.clone()))
            .map(|shown| (shown.name, shown.joins))
            .collect()
    }

    /// The stations that wpa_supplicant has been told of.
    pub(super) fn handed(&self) -> &BTreeSet<String> {
        &self.handed
    }

    /// Whether it still runs.
    pub(super) fn is_alive(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Returns why it has ended by itself, in words.
    pub(super) fn reason(&self) -> Option<String> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
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

    /// Ends it; the interfaces of its networks go. What stations have said on leaving their access
    /// points is sent first.
    pub(super) async fn end(self, system: &mut System) {
        let shown = self.shown();
        let stations = || shown.iter().filter(|shown| shown.is_station);
        if let Some(shown) = stations().next() {
            tokio::time::sleep(shown.cycle.min(LONGEST_FAREWELL)).await;
        }
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        let _ = tokio::task::spawn_blocking(move || self.thread.join()).await;
        // The stations have gone with their simulated cards; the journal does not know.
        let names = stations().map(|shown| &shown.name).chain([&self.monitor]);
        for name in names {
            if let Err(error) = system.remove_station(name).await {
                tracing::warn!(error = format!("{:#}", anyhow::anyhow!(error)), "Wi-Fi");
            }
        }
    }
}

/// How each network is doing, for whoever asks.
type AllShown = Arc<Mutex<Vec<Shown>>>;

/// Where the packets of a network surface in the machine.
enum Surface {
    /// An Ethernet device; the station is this program.
    Device(EthernetTap),
    /// A station of the kernel's.
    Station(Relay),
}

impl Surface {
    async fn device(system: &System, name: &str, address: [u8; 6]) -> anyhow::Result<Self> {
        let tap = EthernetTap::create(name, address)?;
        system.link_up(name).await?;
        Ok(Self::Device(tap))
    }

    async fn station(
        system: &mut System,
        wireless: &Wireless,
        cards: &mut Cards,
        (name, address): (&str, [u8; 6]),
    ) -> anyhow::Result<Self> {
        let mut card: [u8; 6] = random();
        // Of one device, and not of a maker's.
        card[0] = (card[0] | 2) & !1;
        cards.add(name, card)?;
        let all = wireless.cards().await?;
        let made = all.iter().find(|one| one.name == name);
        let made = made.context("its simulated card is gone at once")?;
        system.add_station(wireless, made.number, name, address).await?;
        Ok(Self::Station(Relay::new(card)))
    }
}

/// A network of the card.
struct Member {
    id: NetworkId,
    surface: Surface,
    writer: Writer,
    ssid: Vec<u8>,
    is_5ghz: bool,
    numbers: SequenceNumbers,
    duplicates: Duplicates,
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
    schedule: SlotSchedule<Packet>,
    /// What slots are made from, but for those with weights that somebody wants.
    shares: Shares,
    weights: Option<Vec<u32>>,
    measured_at: Clock,
    air: AirSocket,
    /// What carries the frames of kernel stations, where there are any.
    medium: Option<Cards>,
    monitor: u32,
    /// The channel that the card was last tuned to; none where it has not followed.
    tuned: Option<u16>,
    /// Proof, by received frames, that it is there.
    tuning: Tuning,
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
        (air, medium, monitor, own): (AirSocket, Option<Cards>, u32, [u8; 6]),
        turns: Turns,
        surfaces: Vec<(String, Heard, Surface)>,
        (shown, wanted): (AllShown, mpsc::Receiver<(usize, u32)>),
    ) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let wireless = runtime.block_on(async { Wireless::open() })?;
        let config = Config {
            // A network's weight is its slot in milliseconds.
            slot: MILLISECOND,
            // Both are waited for where they are done.
            retune: Duration::ZERO,
            reconfigure: Duration::ZERO,
            // One exchange, after which all that is kept comes, whoever the station is.
            wake: Wake::Null,
            ..Config::default()
        };
        let now = Instant::ZERO;
        // No channel is zero: the first one is tuned to.
        let mut schedule = SlotSchedule::new(config, 0, now);
        let mut members = Vec::new();
        for (place, (_, heard, surface)) in surfaces.into_iter().enumerate() {
            let number = u16::try_from(place).context("too many networks")?;
            let at = u16::try_from(channel(heard.frequency)).context("no such channel")?;
            let configured = match &surface {
                Surface::Device(_) => NetworkConfig::access_point(number.into(), StationId(number), at),
                Surface::Station(_) => NetworkConfig::relayed(number.into(), StationId(number), at),
            };
            let weight = u32::try_from(turns.slot.as_millis()).unwrap_or(u32::MAX);
            members.push(Member {
                id: schedule.add(configured.weight(weight), now),
                surface,
                writer: Writer {
                    own,
                    bssid: heard.bssid,
                },
                ssid: heard.ssid,
                is_5ghz: heard.frequency > 5000,
                numbers: SequenceNumbers::default(),
                duplicates: Duplicates::default(),
                heard_at: Clock::now(),
            });
        }
        let shares = SharesConfig {
            cycle: turns.slot * u32::try_from(members.len()).unwrap_or(1),
            may_serve_one: turns.may_serve_one,
            ..SharesConfig::default()
        };
        Ok(Self {
            schedule,
            shares: Shares::new(shares, members.len()),
            weights: None,
            measured_at: Clock::now(),
            air,
            medium,
            monitor,
            tuned: None,
            tuning: Tuning::default(),
            slot: turns.slot,
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

    fn run(mut self, stop: &AtomicBool, waker: &Waker) -> anyhow::Result<()> {
        let mut buffer = vec![0; LONGEST_FRAME];
        let mut looked_at = Clock::now();
        while !stop.load(Ordering::Acquire) {
            self.turn(waker, &mut buffer)?;
            if looked_at.elapsed() > LOOK {
                looked_at = Clock::now();
                self.look();
            }
        }
        // Nobody is left with packets for somebody who does not come back.
        let own = |member: &&mut Member| matches!(member.surface, Surface::Device(_));
        for member in self.members.iter_mut().filter(own) {
            let header = Radiotap::to_send(Rate::lowest(member.is_5ghz));
            let mut goodbye = member.writer.deauthenticate();
            member.numbers.assign(&mut goodbye);
            let _ = self.air.send(&header, &goodbye);
        }
        Ok(())
    }

    fn turn(&mut self, waker: &Waker, buffer: &mut [u8]) -> anyhow::Result<()> {
        let now = self.now();
        self.give_up_silent();
        self.follow_needs();
        self.schedule.handle_timeout(now);
        self.carry_out();
        let until = self.schedule.poll_timeout();
        let mut timeout = until.map_or(LOOK, |(at, _)| at.since(self.now()));
        if !self.flying.is_empty() {
            timeout = timeout.min(SILENT);
        }
        let mut ready = [false; 64];
        let sources: Vec<BorrowedFd<'_>> = [waker.as_fd(), self.air.as_fd()]
            .into_iter()
            .chain(self.members.iter().map(|member| match &member.surface {
                Surface::Device(tap) => tap.as_fd(),
                // The same for all of them.
                Surface::Station(_) => self.medium.as_ref().map_or(waker.as_fd(), AsFd::as_fd),
            }))
            .collect();
        if let Some(mhz) = self.tuning.stuck_on() {
            bail!("it does not follow to other channels: it stays on {mhz} MHz");
        }
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
            match &self.members[place].surface {
                _ if !ready[2 + place] => {}
                Surface::Device(_) => self.read_tap(place, buffer)?,
                Surface::Station(_) => self.read_medium(),
            }
        }
        Ok(())
    }

    /// Takes up the weights that somebody wants: slots are theirs then, and follow what networks
    /// need again when all are one.
    fn weigh(&mut self) {
        while let Ok((place, weight)) = self.wanted.try_recv() {
            let weights = self.weights.get_or_insert_with(|| vec![1; self.members.len()]);
            if let Some(known) = weights.get_mut(place) {
                *known = weight;
            }
        }
        if let Some(weights) = self
            .weights
            .take_if(|weights| weights.iter().all(|one| *one == 1))
        {
            self.set_slots(weights.iter().map(|_| self.slot).collect());
        } else if let Some(weights) = &self.weights {
            self.set_slots(weights.iter().map(|weight| self.slot * *weight).collect());
        }
    }

    /// Makes the slots of the next cycle.
    fn follow_needs(&mut self) {
        let cycle = self.slot * u32::try_from(self.members.len()).unwrap_or(1);
        if self.measured_at.elapsed() < cycle {
            return;
        }
        self.measured_at = Clock::now();
        let slots = self.shares.next_cycle(self.now());
        if self.weights.is_none() {
            self.set_slots(slots);
        }
    }

    fn set_slots(&mut self, slots: Vec<Duration>) {
        let now = self.now();
        for (member, slot) in self.members.iter().zip(&slots) {
            let weight = u32::try_from(slot.as_millis()).unwrap_or(u32::MAX);
            self.schedule.set_weight(member.id, weight, now);
        }
        let cycle = slots.iter().sum();
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for (shown, slot) in shown.iter_mut().zip(slots) {
            (shown.slot, shown.cycle) = (slot, cycle);
        }
    }

    /// Whether something still waits for the network that is served.
    fn has_left(&self) -> bool {
        let served = self.shares.served().and_then(|place| self.members.get(place));
        served
            .and_then(|member| self.schedule.network(member.id))
            .is_some_and(|network| network.queued() > 0)
    }

    /// What the machine sends into a network.
    fn read_tap(&mut self, place: usize, buffer: &mut [u8]) -> anyhow::Result<()> {
        for _ in 0..AT_ONCE {
            let Surface::Device(tap) = &self.members[place].surface else {
                break;
            };
            let Some(length) = tap.read(buffer).context("a network's device")? else {
                break;
            };
            let packet = self.packets.put(&buffer[..length]);
            let bytes = u32::try_from(length).unwrap_or(u32::MAX);
            if let Err(packet) = self
                .schedule
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
            while let Some(event) = self.schedule.poll_event() {
                is_idle = false;
                self.on_event(event);
            }
            while let Some(outgoing) = self.schedule.poll_transmit() {
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
                self.shares.handle_left(self.has_left(), self.now());
                self.tune(channel);
                let now = self.now();
                self.schedule.handle_timeout(now);
            }
            Event::Received { network, packet } => {
                if let Some(tap) = self.device(network) {
                    let _ = tap.write(self.packets.get(packet));
                }
                self.packets.release(packet);
            }
            Event::Switched { to, took } => {
                self.show(to, |shown| {
                    // A peak that fades.
                    shown.switch = took.max(shown.switch - shown.switch / 16);
                });
                if let Some(place) = self.members.iter().position(|member| member.id == to) {
                    self.shares.handle_switched(place, false, self.now());
                }
            }
            Event::Associated(id) => {
                if let Some(tap) = self.device(id) {
                    let _ = tap.set_carrier(true);
                }
            }
            Event::Deauthenticated(_) | Event::Recall(_) | Event::Found { .. } => {}
        }
    }

    /// Tunes the card, where it is elsewhere: the kernel takes its time even for a channel that it
    /// is on.
    fn tune(&mut self, channel: u16) {
        if self.tuned == Some(channel) {
            return;
        }
        let mhz = frequency(channel.into());
        let tuned = self.runtime.block_on(self.wireless.tune(self.monitor, mhz));
        self.tuned = tuned.is_ok().then_some(channel);
        self.tuning.handle_tuned(mhz, self.now());
        if let Err(error) = tuned {
            tracing::debug!(
                error = format!("{:#}", anyhow::anyhow!(error)),
                channel,
                "not tuned"
            );
        }
    }

    /// Returns the channel of a network.
    fn channel_of(&self, place: usize) -> Option<u16> {
        let member = self.members.get(place)?;
        Some(self.schedule.network(member.id)?.config().channel)
    }

    fn device(&self, id: NetworkId) -> Option<&EthernetTap> {
        let member = self.members.iter().find(|member| member.id == id)?;
        match &member.surface {
            Surface::Device(tap) => Some(tap),
            Surface::Station(_) => None,
        }
    }

    fn show(&self, id: NetworkId, change: impl FnOnce(&mut Shown)) {
        let place = self.members.iter().position(|member| member.id == id);
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shown) = place.and_then(|place| shown.get_mut(place)) {
            change(shown);
        }
    }

    /// Brings what others see up to date.
    fn look(&mut self) {
        self.repeat_beacons();
        for member in &self.members {
            let network = self.schedule.network(member.id);
            let is_in = network.is_some_and(|network| match member.surface {
                Surface::Device(_) => {
                    matches!(network.state(), State::Asleep | State::Waking | State::Awake)
                }
                Surface::Station(_) => network.aid().is_some(),
            });
            let is_joined = is_in && member.heard_at.elapsed() < UNHEARD;
            self.show(member.id, |shown| {
                shown.is_found = member.is_found();
                if shown.is_joined != is_joined {
                    shown.is_joined = is_joined;
                    shown.since = Clock::now();
                }
            });
        }
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);
/// How long stations that leave may take for that.
const LONGEST_FAREWELL: Duration = Duration::from_millis(500);
/// A frame of 2,304 bytes of packet with its headers and radiotap's.
const LONGEST_FRAME: usize = 4096;
/// Frames taken at one look.
const AT_ONCE: usize = 64;
/// How often what is shown is brought up to date.
const LOOK: Duration = Duration::from_millis(100);
/// Beacons come ten times a second, and a network is away for a cycle.
const UNHEARD: Duration = Duration::from_secs(3);
