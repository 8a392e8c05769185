//! One radio shared among many networks: each is active for its slot, in turn, while the others
//! keep what is for them.
//!
//! It starts without networks. Steady state: a network is active for its weight times the default
//! slot; then the radio tells its access point that it sleeps, retunes, tells the next one that it
//! is back, and sends what waited. An access point is joined when its first slot comes, and again
//! only when it has thrown the radio out. It fails softly: a null frame without an answer is
//! repeated a bounded number of times, then the radio leaves all the same (the access point will
//! send in vain); a step of joining without an answer is repeated in this slot or the next.
//!
//! ```text
//!   radio:    active -- slot over --> leaving -- acknowledged, or tried often enough --> tuning -- done --> active (next network)
//!                |                                                                         ^
//!                +-- slot over; not associated, ad hoc or scanning ------------------------+
//!
//!   network:  out -- slot --> authenticating --> associating --> awake <--> asleep
//!              ^                                                   ^           | slot
//!              |                                                   +- waking <-+
//!              +---- deauthenticated, from each of them ----------------/
//! ```
//!
//! Source: Juggler sections 2 and 3. Deviates: after the last PS-Poll a null frame ends power save,
//! as the standard asks for; slots lie on a grid, so that a slot includes the switch to it, which
//! is how section 5 counts its overhead.
//! Scope: one radio, one client identity. Does not model: NAT and ARP exchanges (the embedding's,
//! with [`VirtualNetwork::next_hop`]); encryption.

#[cfg(test)]
mod air_events;
mod alone;
pub mod bytes;
mod dhcp;
mod frames;
mod handoff;
mod network;
pub mod sequence;
mod shares;
mod switching;
#[cfg(test)]
mod tests;
pub mod tuning;

use std::collections::{BTreeMap, VecDeque};

use hawser_units::{Duration, Instant};
use hawser_wire::air::phy::DATA_OVERHEAD;
use hawser_wire::air::{Frame, Outgoing, StationId};

use crate::stations::Bssid;

pub use dhcp::{DhcpClient, DhcpConfig, DhcpKind, DhcpMessage, DhcpServer, DhcpServerConfig};
pub use handoff::{Handoff, HandoffConfig, HandoffEvent, Role};
pub use network::{IpConfig, Mode, NetworkConfig, NetworkId, State, VirtualNetwork};
pub use shares::{Shares, SharesConfig};

/// How a radio is shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The slot of weight one.
    ///
    /// Source: Juggler section 3.4 (100 ms).
    pub slot: Duration,
    /// How long the radio needs for another channel.
    ///
    /// Source: Juggler section 3.5: six writes, 500 us each.
    pub retune: Duration,
    /// How long it needs for another SSID, BSSID or mode. Not stated by the paper; with the null
    /// frame's exchange a switch on one channel stays below the 400 us that it measures.
    pub reconfigure: Duration,
    /// How the access point learns that the radio is back.
    pub wake: Wake,
    /// How often a null frame is handed to the radio, each time with all its attempts, before the
    /// radio leaves without an answer.
    pub null_tries: u8,
    /// How long one of them may take.
    pub null_wait: Duration,
    /// How long a step of joining or a poll may stay without an answer.
    pub answer_wait: Duration,
    /// Packets that wait for one network.
    pub queue: usize,
    /// Data frames handed to the radio at once. Few: what the radio holds has to be taken back at
    /// the end of a slot.
    pub window: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            slot: Duration::from_millis(100),
            retune: Duration::from_millis(3),
            reconfigure: Duration::from_micros(100),
            wake: Wake::PsPoll,
            null_tries: 2,
            null_wait: Duration::from_millis(10),
            answer_wait: Duration::from_millis(20),
            queue: 200,
            window: 8,
        }
    }
}

/// How an access point learns that a radio is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The radio asks for the packets one by one, then ends power save.
    PsPoll,
    /// A null frame ends power save; the access point sends everything.
    Null,
}

/// What the radio has to do, or its owner should know.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<P> {
    /// Take back what waits for this station and hand it to [`SlotSchedule::handle_returned`].
    Recall(StationId),
    /// Tune to a channel; the radio is away for `takes`. Then take back what still waits for
    /// `leaving`.
    Tune {
        /// Where.
        channel: u16,
        /// How long it takes.
        takes: Duration,
        /// Whose slot has ended.
        leaving: Option<StationId>,
    },
    /// A packet came from a network.
    Received {
        /// Which.
        network: NetworkId,
        /// What.
        packet: P,
    },
    /// The radio serves another network, after `took` of switching.
    Switched {
        /// Which.
        to: NetworkId,
        /// From the end of the last slot until now.
        took: Duration,
    },
    /// A network was joined.
    Associated(NetworkId),
    /// A network threw the radio out.
    Deauthenticated(NetworkId),
    /// An access point that is not among the networks was heard.
    Found {
        /// Its name.
        name: u32,
        /// Which it is.
        peer: StationId,
        /// Where.
        channel: u16,
    },
}

/// Why a timer is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The slot is over.
    SlotEnds,
    /// A null frame should have been answered.
    NullAnswer,
    /// The radio is tuned.
    Tuned,
    /// A step of joining, or a poll, should have been answered.
    Answer,
}

/// What was done with packets, and what was lost.
///
/// Invariant: of the packets taken in, each is delivered, waits, is with the radio, or is counted
/// in one of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Taken in.
    pub accepted: u64,
    /// Acknowledged on the air.
    pub delivered: u64,
    /// Given up by the radio.
    pub given_up: u64,
    /// Thrown away with the network that they waited for.
    pub abandoned: u64,
    /// Refused: the network's queue was full.
    pub overflowed: u64,
    /// Refused: no network could take the flow.
    pub unroutable: u64,
    /// Packets received.
    pub received: u64,
    /// Switches.
    pub switches: u64,
    /// Switches without an acknowledged null frame.
    pub unannounced: u64,
    /// Associations.
    pub associations: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There is no network.
    Idle,
    Active,
    Leaving {
        tries: u8,
        until: Instant,
    },
    Tuning {
        until: Instant,
    },
}

/// The machine: owns the networks and decides what the radio does.
///
/// Drive it: mutators and `handle_*`; then [`Self::poll_event`] until it is empty,
/// [`Self::poll_transmit`] until it is empty, and sleep until [`Self::poll_timeout`]. Frames go to
/// the radio at once and in order.
///
/// Cost: O(log n) a packet in flows and networks; memory bounded by [`Config::queue`] packets a
/// network.
#[derive(Debug)]
pub struct SlotSchedule<P> {
    config: Config,
    networks: BTreeMap<NetworkId, VirtualNetwork<P>>,
    rotation: Vec<NetworkId>,
    current: Option<NetworkId>,
    phase: Phase,
    channel: u16,
    slot_started: Instant,
    slot_ends: Instant,
    flows: BTreeMap<u64, NetworkId>,
    preferences: BTreeMap<u64, NetworkId>,
    outgoing: VecDeque<Outgoing<Frame<P>>>,
    events: VecDeque<Event<P>>,
    in_radio: usize,
    heard: BTreeMap<StationId, Instant>,
    next_id: u16,
    urgent_next: Option<NetworkId>,
    counters: Counters,
}

impl<P: Copy> SlotSchedule<P> {
    /// A radio without networks, tuned to `channel`.
    #[must_use]
    pub fn new(config: Config, channel: u16, now: Instant) -> Self {
        Self {
            config,
            networks: BTreeMap::new(),
            rotation: Vec::new(),
            current: None,
            phase: Phase::Idle,
            channel,
            slot_started: now,
            slot_ends: now,
            flows: BTreeMap::new(),
            preferences: BTreeMap::new(),
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            in_radio: 0,
            heard: BTreeMap::new(),
            next_id: 0,
            urgent_next: None,
            counters: Counters::default(),
        }
    }

    /// A network.
    #[must_use]
    pub fn network(&self, id: NetworkId) -> Option<&VirtualNetwork<P>> {
        self.networks.get(&id)
    }

    /// A network, to teach it neighbours.
    pub fn network_mut(&mut self, id: NetworkId) -> Option<&mut VirtualNetwork<P>> {
        self.networks.get_mut(&id)
    }

    /// All networks in the order of their slots.
    #[must_use]
    pub fn rotation(&self) -> &[NetworkId] {
        &self.rotation
    }

    /// The network that the radio is tuned to and may use now.
    #[must_use]
    pub fn active(&self) -> Option<NetworkId> {
        self.current.filter(|_| self.phase == Phase::Active)
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Packets that wait here or are with the radio.
    #[must_use]
    pub fn held(&self) -> usize {
        self.in_radio + self.networks.values().map(VirtualNetwork::queued).sum::<usize>()
    }

    /// Adds a network at the end of the rotation.
    pub fn add(&mut self, config: NetworkConfig, now: Instant) -> NetworkId {
        let id = NetworkId(self.next_id);
        self.next_id += 1;
        self.networks.insert(id, VirtualNetwork::new(config));
        self.rotation.push(id);
        if self.phase == Phase::Idle {
            self.slot_ends = now;
            self.tune_to(id, now);
        }
        id
    }

    /// Forgets a network and what waits for it. When it is active, the radio goes on to the next
    /// one first.
    pub fn remove(&mut self, id: NetworkId, now: Instant) {
        let Some(network) = self.networks.remove(&id) else {
            return;
        };
        self.counters.abandoned += network.queue.len() as u64;
        let place = self.rotation.iter().position(|known| *known == id);
        let place = place.unwrap_or_default();
        self.rotation.retain(|known| *known != id);
        self.flows.retain(|_, network| *network != id);
        self.preferences.retain(|_, network| *network != id);
        if self.current != Some(id) {
            return;
        }
        self.outgoing.clear();
        self.current = None;
        self.slot_ends = now;
        let urgent = self.urgent_next.take().filter(|id| self.rotation.contains(id));
        let next = urgent
            .or_else(|| self.rotation.get(place).copied())
            .or_else(|| self.rotation.first().copied());
        match next {
            Some(next) => self.retune(next, Some(network.config.peer), now),
            None => {
                self.events.push_back(Event::Recall(network.config.peer));
                self.phase = Phase::Idle;
            }
        }
    }

    /// Changes a network's share. An active one's slot changes with it.
    pub fn set_weight(&mut self, id: NetworkId, weight: u32, now: Instant) {
        if let Some(network) = self.networks.get_mut(&id) {
            network.config.weight = weight.max(1);
            if self.current == Some(id) && self.phase == Phase::Active {
                self.slot_ends = now.max(self.slot_started + self.config.slot * weight.max(1));
            }
        }
    }

    /// Changes what the radio needs for another channel, and for another network on the same one.
    pub fn set_switch(&mut self, retune: Duration, reconfigure: Duration) {
        self.config.retune = retune;
        self.config.reconfigure = reconfigure;
    }

    /// Gives a network its addresses; from then on flows may use it.
    pub fn set_ip(&mut self, id: NetworkId, ip: Option<IpConfig>) {
        if let Some(network) = self.networks.get_mut(&id) {
            network.config.ip = ip;
        }
    }

    /// Says that the station of a [`Mode::Relayed`] network has joined, with which association id,
    /// or that it has not any more.
    pub fn set_association(&mut self, id: NetworkId, aid: Option<u8>) {
        let Some(network) = self.networks.get_mut(&id) else {
            return;
        };
        if network.config.mode != Mode::Relayed || network.aid == aid {
            return;
        }
        network.aid = aid;
        self.set_state(id, State::Awake, None);
        if aid.is_some() {
            self.counters.associations += 1;
        }
    }

    /// Remembers the quality of a network as probed. Units: bit/s.
    pub fn set_quality(&mut self, id: NetworkId, bps: f64) {
        if let Some(network) = self.networks.get_mut(&id) {
            let before = network.quality.unwrap_or(bps);
            network.quality = Some(before + QUALITY_GAIN * (bps - before));
        }
    }

    /// Ends the present slot now and makes `id` the next one.
    pub fn activate(&mut self, id: NetworkId, now: Instant) {
        if self.networks.contains_key(&id) && self.current != Some(id) {
            self.urgent_next = Some(id);
            self.slot_ends = now;
            if self.phase == Phase::Active {
                self.leave(now);
            }
        }
    }

    /// Forgets a network that has gone and makes `next` active at once, without a word to the one
    /// that would not hear it.
    pub fn replace(&mut self, gone: NetworkId, next: NetworkId, now: Instant) {
        let is_served = self.current == Some(gone);
        self.urgent_next = Some(next);
        self.remove(gone, now);
        if !is_served {
            self.urgent_next = None;
            self.activate(next, now);
        }
    }

    /// An application's own choice for a flow that has not begun.
    pub fn prefer(&mut self, flow: u64, network: NetworkId) {
        self.preferences.insert(flow, network);
    }

    /// The network of a flow.
    #[must_use]
    pub fn network_of(&self, flow: u64) -> Option<NetworkId> {
        self.flows.get(&flow).copied()
    }

    /// Forgets a flow that has ended.
    pub fn forget(&mut self, flow: u64) {
        self.flows.remove(&flow);
        self.preferences.remove(&flow);
    }

    /// Takes in an IP packet of `len` bytes of a flow. A new flow is given to the network of its
    /// choice, or to the one that is active.
    ///
    /// # Errors
    /// No network can take the flow, or its queue is full: the packet comes back, counted.
    pub fn handle_packet(&mut self, flow: u64, packet: P, len: u32) -> Result<NetworkId, P> {
        let Some(id) = self.assign(flow) else {
            self.counters.unroutable += 1;
            return Err(packet);
        };
        self.enqueue(id, packet, len).map(|()| id)
    }

    /// Takes in a packet for a network that flows may not use yet, such as a request for its
    /// addresses.
    ///
    /// # Errors
    /// As [`Self::handle_packet`].
    pub fn handle_packet_on(&mut self, id: NetworkId, packet: P, len: u32) -> Result<(), P> {
        self.enqueue(id, packet, len)
    }

    fn enqueue(&mut self, id: NetworkId, packet: P, len: u32) -> Result<(), P> {
        let Some(network) = self.networks.get_mut(&id) else {
            self.counters.unroutable += 1;
            return Err(packet);
        };
        if network.queue.len() >= self.config.queue {
            self.counters.overflowed += 1;
            return Err(packet);
        }
        self.counters.accepted += 1;
        network.queue.push_back((packet, len));
        Ok(())
    }

    fn assign(&mut self, flow: u64) -> Option<NetworkId> {
        if let Some(id) = self.flows.get(&flow) {
            return Some(*id);
        }
        let can = |id: &NetworkId| self.networks.get(id).is_some_and(VirtualNetwork::takes_flows);
        let preferred = self.preferences.get(&flow).copied().filter(can);
        let id = preferred
            .or_else(|| self.current.filter(can))
            .or_else(|| self.rotation.iter().copied().find(can))?;
        self.flows.insert(flow, id);
        Some(id)
    }

    /// When something is due, and what.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        match self.phase {
            Phase::Idle => None,
            Phase::Leaving { until, .. } => Some((until, Reason::NullAnswer)),
            Phase::Tuning { until } => Some((until, Reason::Tuned)),
            Phase::Active => {
                let network = &self.networks[&self.current?];
                let slot = (self.slot_ends, Reason::SlotEnds);
                let retry = network.retry_at.map(|at| (at, Reason::Answer));
                retry.into_iter().chain([slot]).min_by_key(|(at, _)| *at)
            }
        }
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, reason)) = self.poll_timeout() {
            if at > now {
                break;
            }
            let Some(id) = self.current else { break };
            match reason {
                Reason::SlotEnds => self.leave(now),
                Reason::Tuned => self.arrive(id, now),
                Reason::NullAnswer => {
                    if let Phase::Leaving { tries, .. } = self.phase {
                        self.on_goodbye(id, tries, false, now);
                    }
                }
                Reason::Answer => self.try_again(id, now),
            }
        }
    }

    /// The next frame for the radio. Every one is for the network that it is tuned to.
    pub fn poll_transmit(&mut self) -> Option<Outgoing<Frame<P>>> {
        if let Some(frame) = self.outgoing.pop_front() {
            return Some(frame);
        }
        let id = self.active()?;
        let window = self.config.window;
        let network = self.networks.get_mut(&id)?;
        if network.state != State::Awake || self.in_radio >= window || network.is_scan() {
            return None;
        }
        let (packet, len) = network.queue.pop_front()?;
        self.in_radio += 1;
        let body = Frame::Data {
            packet,
            more: false,
            power_save: false,
        };
        Some(Outgoing {
            to: Some(network.config.peer),
            body,
            len: len + DATA_OVERHEAD,
            urgent: false,
        })
    }

    /// The next thing to do or to know.
    pub fn poll_event(&mut self) -> Option<Event<P>> {
        self.events.pop_front()
    }

    fn state(&self, id: NetworkId) -> State {
        self.networks[&id].state
    }

    fn is_active(&self, id: NetworkId) -> bool {
        self.active() == Some(id)
    }

    fn set_state(&mut self, id: NetworkId, state: State, retry_at: Option<Instant>) {
        if let Some(network) = self.networks.get_mut(&id) {
            network.state = state;
            network.retry_at = retry_at;
        }
    }

    fn say(&mut self, id: NetworkId, body: Frame<P>, len: u32) {
        let to = Some(self.networks[&id].config.peer);
        self.outgoing.push_back(Outgoing {
            to,
            body,
            len,
            urgent: true,
        });
    }
}

/// The weight of a new probe.
const QUALITY_GAIN: f64 = 0.5;
