//! Card in slots: it serves networks on several channels in turn (Juggler).
//!
//! A thread for each card transfers frames between a monitor interface, which acknowledges frames
//! to its address, and an interface for each network. This interface is a kernel station
//! ([`relay`]), which wpa_supplicant associates, including keys; without such stations it is an
//! Ethernet device whose station is in user space and supports open networks only.
//! `hawser_radio::slots` decides which network is served, which power-management frames an access
//! point receives, and when the card is tuned. While a network sleeps, its access point buffers
//! packets to this machine (some 64), and packets from the machine wait in the network's own queue.
//!
//! Failure: a network whose access point is not received or rejects the station is reported as
//! lost, and the owner ends the slots.

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

/// Card shared by slots; [`Slots::end`] ends them.
pub(super) struct Slots {
    pub(super) monitor: String,
    shown: NetworkStates,
    /// Reason for the end of the thread, if it ended by itself.
    ended: Arc<Mutex<Option<String>>>,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    weights: mpsc::Sender<(usize, u32)>,
    thread: JoinHandle<()>,
    /// Kernel stations that wpa_supplicant controls.
    handed: BTreeSet<String>,
}

/// Parameters of the networks' slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turns {
    /// Mean slot of each network.
    pub(super) slot: Duration,
    /// Set if a network may get nearly all of the time.
    pub(super) may_serve_one: bool,
}

/// State of a network.
#[derive(Clone, Debug)]
pub(super) struct NetworkState {
    /// Interface of the network.
    pub(super) name: String,
    pub(super) joins: Heard,
    /// Set if the interface is a kernel station.
    pub(super) is_station: bool,
    /// Set if its access point has been heard, so that a station can join it.
    pub(super) is_found: bool,
    /// Set if its access point has accepted the station, and has been heard recently.
    pub(super) is_joined: bool,
    /// Time of the last change of `is_joined`.
    pub(super) since: Clock,
    /// Slot of the network in the cycle of all networks.
    pub(super) slot: Duration,
    pub(super) cycle: Duration,
    /// Longest recent switch to the network, from the end of the previous slot.
    pub(super) switch: Duration,
    pub(super) signal: Option<i8>,
}

impl Slots {
    /// Starts to serve these networks, each with an interface of the same name: a kernel station,
    /// initially down, if there is a medium for such stations.
    ///
    /// # Errors
    /// If the card has no room or refuses; only state that is in the journal remains.
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
            let surface = surface.with_context(|| format!("cannot create {name}"))?;
            surfaces.push((name, heard, surface));
        }
        let slot = turns.slot;
        let cycle = slot * u32::try_from(surfaces.len()).unwrap_or(1);
        let shown = surfaces.iter().map(|(name, heard, surface)| NetworkState {
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

    /// Returns the networks whose station can join now and has not been started.
    pub(super) fn joinable(&mut self) -> Vec<(String, Heard)> {
        let ready = |shown: &NetworkState| shown.is_station && shown.is_found;
        let all = self.report().into_iter().filter(ready);
        all.filter(|shown| self.handed.insert(shown.name.clone()))
            .map(|shown| (shown.name, shown.joins))
            .collect()
    }

    /// Returns the stations that wpa_supplicant controls.
    pub(super) fn handed(&self) -> &BTreeSet<String> {
        &self.handed
    }

    /// Returns whether the thread still runs.
    pub(super) fn is_alive(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Returns the reason if the thread has ended by itself.
    pub(super) fn reason(&self) -> Option<String> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the weight of the network at that index.
    pub(super) fn set_weight(&self, place: usize, weight: u32) {
        // A thread that has ended serves no network.
        let _ = self.weights.send((place, weight));
        self.waker.wake();
    }

    /// Returns the state of each network.
    pub(super) fn report(&self) -> Vec<NetworkState> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the slots and removes the networks' interfaces, after sending the stations'
    /// deauthentication frames.
    pub(super) async fn end(self, system: &mut System) {
        let shown = self.report();
        let stations = || shown.iter().filter(|shown| shown.is_station);
        if let Some(shown) = stations().next() {
            tokio::time::sleep(shown.cycle.min(LONGEST_FAREWELL)).await;
        }
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        let _ = tokio::task::spawn_blocking(move || self.thread.join()).await;
        // The stations were removed with their simulated cards, which the journal does not contain.
        let names = stations().map(|shown| &shown.name).chain([&self.monitor]);
        for name in names {
            if let Err(error) = system.remove_station(name).await {
                tracing::warn!(error = format!("{:#}", anyhow::anyhow!(error)), "Wi-Fi");
            }
        }
    }
}

/// Shared state of each network.
type NetworkStates = Arc<Mutex<Vec<NetworkState>>>;

/// Interface of a network in the machine.
enum Surface {
    /// Ethernet device, whose station is this program.
    Device(EthernetTap),
    /// Kernel station.
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
        // The address is individual and locally administered.
        card[0] = (card[0] | 2) & !1;
        cards.add(name, card)?;
        let all = wireless.cards().await?;
        let made = all.iter().find(|one| one.name == name);
        let made = made.context("its simulated card disappeared immediately after its creation")?;
        system.add_station(wireless, made.number, name, address).await?;
        Ok(Self::Station(Relay::new(card)))
    }
}

/// Network of the card.
struct Member {
    id: NetworkId,
    surface: Surface,
    writer: Writer,
    ssid: Vec<u8>,
    is_5ghz: bool,
    numbers: SequenceNumbers,
    duplicates: Duplicates,
    /// Time when its access point was last heard.
    heard_at: Clock,
}

/// Frame that the card has not yet reported as sent.
struct Flying {
    bytes: Vec<u8>,
    what: Outgoing<Frame<Packet>>,
    at: Clock,
}

struct Driver {
    schedule: SlotSchedule<Packet>,
    /// Rule of the slots, except those with requested weights.
    shares: Shares,
    weights: Option<Vec<u32>>,
    measured_at: Clock,
    air: AirSocket,
    /// Medium of the frames of kernel stations, if there are any.
    medium: Option<Cards>,
    monitor: u32,
    /// Channel to which the card was last tuned; `None` if that failed.
    tuned: Option<u16>,
    /// Verification, by received frames, that the card is on that channel.
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
    shown: NetworkStates,
    wanted: mpsc::Receiver<(usize, u32)>,
}

impl Driver {
    fn new(
        (air, medium, monitor, own): (AirSocket, Option<Cards>, u32, [u8; 6]),
        turns: Turns,
        surfaces: Vec<(String, Heard, Surface)>,
        (shown, wanted): (NetworkStates, mpsc::Receiver<(usize, u32)>),
    ) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let wireless = runtime.block_on(async { Wireless::open() })?;
        let config = Config {
            // A network's weight is its slot in milliseconds.
            slot: MILLISECOND,
            // The thread waits for both when it executes them.
            retune: Duration::ZERO,
            reconfigure: Duration::ZERO,
            // A single exchange, after which all buffered packets are delivered for every station.
            wake: Wake::Null,
            ..Config::default()
        };
        let now = Instant::ZERO;
        // Channel 0 does not exist, so the card is tuned to the first channel.
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
            if looked_at.elapsed() > POLL_INTERVAL {
                looked_at = Clock::now();
                self.update();
            }
        }
        // Packets of a previous station are discarded.
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
        let mut timeout = until.map_or(POLL_INTERVAL, |(at, _)| at.since(self.now()));
        if !self.flying.is_empty() {
            timeout = timeout.min(SILENT);
        }
        let mut ready = [false; 64];
        let sources: Vec<BorrowedFd<'_>> = [waker.as_fd(), self.air.as_fd()]
            .into_iter()
            .chain(self.members.iter().map(|member| match &member.surface {
                Surface::Device(tap) => tap.as_fd(),
                // All stations share the same descriptor.
                Surface::Station(_) => self.medium.as_ref().map_or(waker.as_fd(), AsFd::as_fd),
            }))
            .collect();
        if let Some(mhz) = self.tuning.stuck_on() {
            bail!("it does not follow channel changes: it stays on {mhz} MHz");
        }
        wait_readable(
            &sources,
            Some(timeout.min(POLL_INTERVAL)),
            &mut ready[..sources.len()],
        )?;
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

    /// Applies requested weights: they determine the slots, unless all weights are one; then the
    /// networks' needs do.
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

    /// Computes the slots of the next cycle.
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

    /// Returns whether packets wait for the network that is served.
    fn has_left(&self) -> bool {
        let served = self.shares.served().and_then(|place| self.members.get(place));
        served
            .and_then(|member| self.schedule.network(member.id))
            .is_some_and(|network| network.queued() > 0)
    }

    /// Reads the packets that the machine sends to a network.
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
                // The queue is full; TCP detects the loss.
                self.packets.release(packet);
            }
        }
        Ok(())
    }

    /// Executes the machine's outputs until none remains.
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
                    // A decaying maximum.
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

    /// Tunes the card if it is on another channel: the kernel needs time even for the current one.
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

    fn show(&self, id: NetworkId, change: impl FnOnce(&mut NetworkState)) {
        let place = self.members.iter().position(|member| member.id == id);
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shown) = place.and_then(|place| shown.get_mut(place)) {
            change(shown);
        }
    }

    /// Updates the published state.
    fn update(&mut self) {
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

/// Slot of weight one. Source: definition of the unit.
const MILLISECOND: Duration = Duration::from_millis(1);
/// Maximum time for stations to leave. Source: our choice, five default slots of 100 ms; access
/// points forget stations that leave without a word after minutes, so a longer time gains little.
const LONGEST_FAREWELL: Duration = Duration::from_millis(500);
/// Buffer for a frame with its headers and the radiotap header. Source: the 2,304 bytes of a packet
/// (IEEE 802.11-2020 section 9.2.4.7), rounded up to a power of two. Units: bytes.
const LONGEST_FRAME: usize = 4096;
/// Maximum number of frames read at once. Source: our choice, as many as an access point holds for
/// an absent station (docs/notebook/slots.md); more delay the next slot.
const AT_ONCE: usize = 64;
/// Interval of updates of the published state. Source: our choice, a default slot; a shorter one
/// takes a lock more often.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time without frames after which a network is lost: beacons are sent ten times a second, and a
/// network is absent for up to a cycle. Source: our choice, thirty beacons of a network that is
/// always heard, seven cycles of 400 ms; a shorter one leaves networks at a burst of interference.
const UNHEARD: Duration = Duration::from_secs(3);
