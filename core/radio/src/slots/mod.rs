//! Time sharing of one radio among several networks: each is active for its slot, in turn, while
//! the others buffer their packets.
//!
//! It starts without networks. Steady state: a network is active for its weight times the default
//! slot; then the radio notifies its access point that it sleeps, retunes, notifies the next one
//! that it is back, and sends the waiting packets. An access point is joined in its first slot, and
//! again only after it deauthenticated the radio. It fails softly: an unacknowledged null frame is
//! repeated a bounded number of times, then the radio leaves all the same (the access point will
//! send without success); an unanswered association step is repeated in this slot or the next.
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
//! as the standard requires; slots are on a grid, so that a slot includes the switch to it, which
//! is how section 5 counts its overhead.
//! Scope: one radio, one client identity. Does not model: NAT and ARP exchanges (the embedding does
//! them, with [`VirtualNetwork::next_hop`]); encryption.

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

/// Parameters of sharing a radio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Duration of a slot of weight one.
    ///
    /// Source: Juggler section 3.4 (100 ms).
    pub slot: Duration,
    /// Time that the radio needs to change the channel.
    ///
    /// Source: Juggler section 3.5: six writes, 500 us each.
    pub retune: Duration,
    /// Time that the radio needs to change the SSID, BSSID or mode. The paper does not state it;
    /// together with the null frame's exchange, a switch on one channel stays below the 400 us that
    /// the paper measures.
    pub reconfigure: Duration,
    /// Method by which the access point is notified that the radio is back.
    pub wake: Wake,
    /// Maximum number of null frames before the radio leaves without an acknowledgement; the radio
    /// makes all its attempts for each.
    pub null_tries: u8,
    /// Maximum duration of one of these null frames.
    pub null_wait: Duration,
    /// Timeout of an association step or of a poll.
    pub answer_wait: Duration,
    /// Maximum number of packets that wait for one network.
    pub queue: usize,
    /// Maximum number of data frames in the radio. Small, because the radio must return them at the
    /// end of a slot.
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

/// Method by which an access point is notified that a radio is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The radio requests the packets one by one, then ends power save.
    PsPoll,
    /// A null frame ends power save; the access point sends everything.
    Null,
}

/// Action for the radio, or notification of the owner.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<P> {
    /// Take back the waiting frames for this station and pass them to
    /// [`SlotSchedule::handle_returned`].
    Recall(StationId),
    /// Tune to a channel; the radio is unavailable for `takes`. Then take back the waiting frames
    /// for `leaving`.
    Tune {
        /// Channel to tune to.
        channel: u16,
        /// Duration of the switch.
        takes: Duration,
        /// Station whose slot has ended.
        leaving: Option<StationId>,
    },
    /// A packet arrived from a network.
    Received {
        /// Network of the packet.
        network: NetworkId,
        /// Packet to deliver.
        packet: P,
    },
    /// The radio serves another network; the switch took `took`.
    Switched {
        /// Network that became active.
        to: NetworkId,
        /// Time from the end of the last slot until now.
        took: Duration,
    },
    /// A network has been joined.
    Associated(NetworkId),
    /// A network deauthenticated the radio.
    Deauthenticated(NetworkId),
    /// A frame arrived from an access point that is not among the networks.
    Found {
        /// Name of the network.
        name: u32,
        /// Station id of the access point.
        peer: StationId,
        /// Channel of the access point.
        channel: u16,
    },
}

/// Reason of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// End of the slot.
    SlotEnds,
    /// Timeout of a null frame.
    NullAnswer,
    /// End of retuning.
    Tuned,
    /// Timeout of an association step, or of a poll.
    Answer,
}

/// Counters of transferred and lost packets.
///
/// Invariant: each accepted packet is delivered, waits, is in the radio, or is counted as given up
/// or abandoned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Accepted for sending.
    pub accepted: u64,
    /// Acknowledged on the air.
    pub delivered: u64,
    /// Given up by the radio.
    pub given_up: u64,
    /// Dropped when their network was removed.
    pub abandoned: u64,
    /// Rejected because the network's queue was full.
    pub overflowed: u64,
    /// Rejected because no network could take the flow.
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
    /// No network.
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

/// Machine that owns the networks and controls the radio.
///
/// Call mutators and `handle_*`; then [`Self::poll_event`] and [`Self::poll_transmit`] until they
/// are empty; then sleep until [`Self::poll_timeout`]. Pass frames to the radio at once and in
/// order.
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
    /// Creates a machine without networks on a radio that is tuned to `channel`.
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

    /// Returns a network.
    #[must_use]
    pub fn network(&self, id: NetworkId) -> Option<&VirtualNetwork<P>> {
        self.networks.get(&id)
    }

    /// Returns a network for modification, such as adding neighbours.
    pub fn network_mut(&mut self, id: NetworkId) -> Option<&mut VirtualNetwork<P>> {
        self.networks.get_mut(&id)
    }

    /// Returns all networks in order of their slots.
    #[must_use]
    pub fn rotation(&self) -> &[NetworkId] {
        &self.rotation
    }

    /// Returns the network that the radio is tuned to and may use now.
    #[must_use]
    pub fn active(&self) -> Option<NetworkId> {
        self.current.filter(|_| self.phase == Phase::Active)
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the number of packets that wait or are in the radio.
    #[must_use]
    pub fn pending(&self) -> usize {
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

    /// Removes a network and its waiting packets. If it is active, the radio switches to the next
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

    /// Changes a network's weight. The slot of an active network changes at once.
    pub fn set_weight(&mut self, id: NetworkId, weight: u32, now: Instant) {
        if let Some(network) = self.networks.get_mut(&id) {
            network.config.weight = weight.max(1);
            if self.current == Some(id) && self.phase == Phase::Active {
                self.slot_ends = now.max(self.slot_started + self.config.slot * weight.max(1));
            }
        }
    }

    /// Changes the time to switch to another channel, and to another network on the same channel.
    pub fn set_switch(&mut self, retune: Duration, reconfigure: Duration) {
        self.config.retune = retune;
        self.config.reconfigure = reconfigure;
    }

    /// Sets the addresses of a network; from then on flows may use it.
    pub fn set_ip(&mut self, id: NetworkId, ip: Option<IpConfig>) {
        if let Some(network) = self.networks.get_mut(&id) {
            network.config.ip = ip;
        }
    }

    /// Sets the association of the station of a [`Mode::Relayed`] network: its association id, or
    /// `None` while not associated.
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

    /// Adds a probe's result to the smoothed quality of a network. Units: bit/s.
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

    /// Removes an unreachable network and makes `next` active at once, without notifying the old
    /// access point.
    pub fn replace(&mut self, gone: NetworkId, next: NetworkId, now: Instant) {
        let is_served = self.current == Some(gone);
        self.urgent_next = Some(next);
        self.remove(gone, now);
        if !is_served {
            self.urgent_next = None;
            self.activate(next, now);
        }
    }

    /// Sets the network for a flow that has not begun, as its application requested.
    pub fn prefer(&mut self, flow: u64, network: NetworkId) {
        self.preferences.insert(flow, network);
    }

    /// Returns the network of a flow.
    #[must_use]
    pub fn network_of(&self, flow: u64) -> Option<NetworkId> {
        self.flows.get(&flow).copied()
    }

    /// Removes a flow that has ended.
    pub fn forget(&mut self, flow: u64) {
        self.flows.remove(&flow);
        self.preferences.remove(&flow);
    }

    /// Accepts an IP packet of `len` bytes of a flow. A new flow is assigned to its preferred
    /// network, or to the active one.
    ///
    /// # Errors
    /// Returns the packet, and counts it, if no network can take the flow or its queue is full.
    pub fn handle_packet(&mut self, flow: u64, packet: P, len: u32) -> Result<NetworkId, P> {
        let Some(id) = self.assign(flow) else {
            self.counters.unroutable += 1;
            return Err(packet);
        };
        self.enqueue(id, packet, len).map(|()| id)
    }

    /// Accepts a packet for a network that flows may not use yet, such as a request for its
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

    /// Returns the next deadline, and its reason.
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

    /// Executes the timer that is due at `now`.
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

    /// Returns the next frame for the radio, always for the network that it is tuned to.
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

    /// Returns the next action or notification.
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

/// Weight of a new probe. Source: our choice; probes are rare, so half of a change counts at once,
/// and a wrong probe is forgotten after a few.
const QUALITY_GAIN: f64 = 0.5;
