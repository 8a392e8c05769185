//! Soft hand-off: prepares the next access point before the present one is lost.
//!
//! One network is primary and has most of the radio's time; the rest is for scanning and for
//! keeping a few other networks ready. A found access point is joined, configured and probed; a
//! slow one is dropped, a fast one stays with a small slot. When the primary is lost, the best
//! secondary replaces it at once.
//!
//! ```text
//!   found --> candidate -- associated, addresses, probe --> secondary -- primary lost --> primary
//!                 +-- too slow, or no room: dropped        lost: removed until it is found again
//! ```
//!
//! Source: Juggler section 6.1. Not stated there: the threshold and the criterion for the best
//! (here: the highest probed rate).

use std::collections::BTreeMap;

use hawser_units::{Duration, Instant};
use hawser_wire::air::StationId;

use super::network::{IpConfig, NetworkConfig, NetworkId};
use super::{Event, SlotSchedule};

/// Division of a radio between the present network and candidates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HandoffConfig {
    /// Weight of the primary.
    pub primary: u32,
    /// Weight that the secondaries, the candidates and the scanning slot share.
    pub background: u32,
    /// Weight of each candidate or secondary, out of `background`. The scanning slot has the rest,
    /// at least one.
    pub secondary: u32,
    /// Maximum number of candidates and secondaries.
    pub most: usize,
    /// Minimum quality: slower networks are dropped. Units: bit/s.
    pub least_quality: f64,
    /// Time for which a dropped network is not tried again.
    pub forget_after: Duration,
}

impl Default for HandoffConfig {
    /// Nine tenths for the primary.
    fn default() -> Self {
        Self {
            primary: 18,
            background: 2,
            secondary: 1,
            most: 2,
            least_quality: 100e3,
            forget_after: Duration::from_secs(60),
        }
    }
}

/// Role of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Transfers the flows.
    Primary,
    /// Ready to become primary.
    Secondary,
    /// Network whose addresses or probe are pending.
    Candidate,
}

/// Action for the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoffEvent {
    /// Request addresses on this network, and report them by [`Handoff::configured`].
    Configure(NetworkId),
    /// Measure its quality, and report it by [`Handoff::probed`].
    Probe(NetworkId),
    /// New primary network.
    Promoted(NetworkId),
    /// Network dropped as too slow.
    Dropped(NetworkId),
}

/// Decides which networks a [`SlotSchedule`] serves, and for how long.
#[derive(Debug)]
pub struct Handoff {
    config: HandoffConfig,
    roles: BTreeMap<NetworkId, Role>,
    dropped: BTreeMap<StationId, Instant>,
    events: std::collections::VecDeque<HandoffEvent>,
}

impl Handoff {
    /// Creates a hand-off without a primary.
    #[must_use]
    pub fn new(config: HandoffConfig) -> Self {
        Self {
            config,
            roles: BTreeMap::new(),
            dropped: BTreeMap::new(),
            events: std::collections::VecDeque::new(),
        }
    }

    /// Returns a network's role.
    #[must_use]
    pub fn role(&self, id: NetworkId) -> Option<Role> {
        self.roles.get(&id).copied()
    }

    /// Returns the network that transfers the flows.
    #[must_use]
    pub fn primary(&self) -> Option<NetworkId> {
        let found = self.roles.iter().find(|(_, role)| **role == Role::Primary);
        found.map(|(id, _)| *id)
    }

    /// Sets the role of a network of the radio, such as the first primary.
    pub fn set_role<P: Copy>(
        &mut self,
        id: NetworkId,
        role: Role,
        schedule: &mut SlotSchedule<P>,
        now: Instant,
    ) {
        self.roles.insert(id, role);
        let weight = match role {
            Role::Primary => self.config.primary,
            Role::Secondary | Role::Candidate => self.config.secondary,
        };
        schedule.set_weight(id, weight, now);
        self.share(schedule, now);
    }

    /// Sets the weight of the scanning slot to the rest of the background.
    fn share<P: Copy>(&self, schedule: &mut SlotSchedule<P>, now: Instant) {
        let others = self.roles.values().filter(|role| **role != Role::Primary);
        let taken = others.count() as u32 * self.config.secondary;
        let left = self.config.background.saturating_sub(taken).max(1);
        for id in schedule.rotation().to_vec() {
            if schedule.network(id).is_some_and(super::VirtualNetwork::is_scan) {
                schedule.set_weight(id, left, now);
            }
        }
    }

    /// Handles an event of the radio.
    pub fn handle_event<P: Copy>(&mut self, event: &Event<P>, schedule: &mut SlotSchedule<P>, now: Instant) {
        match *event {
            Event::Found { name, peer, channel } => self.on_found(name, peer, channel, schedule, now),
            Event::Associated(id) if self.role(id) == Some(Role::Candidate) => {
                let has_ip = schedule
                    .network(id)
                    .is_some_and(|network| network.config().ip.is_some());
                self.events.push_back(if has_ip {
                    HandoffEvent::Probe(id)
                } else {
                    HandoffEvent::Configure(id)
                });
            }
            Event::Associated(_)
            | Event::Deauthenticated(_)
            | Event::Recall(_)
            | Event::Tune { .. }
            | Event::Received { .. }
            | Event::Switched { .. } => {}
        }
    }

    fn on_found<P: Copy>(
        &mut self,
        name: u32,
        peer: StationId,
        channel: u16,
        schedule: &mut SlotSchedule<P>,
        now: Instant,
    ) {
        self.dropped
            .retain(|_, since| now.since(*since) < self.config.forget_after);
        let is_known = |id: &NetworkId| schedule.network(*id).is_some_and(|n| n.config().peer == peer);
        let others = self.roles.values().filter(|role| **role != Role::Primary);
        if self.dropped.contains_key(&peer)
            || self.roles.keys().any(is_known)
            || others.count() >= self.config.most
        {
            return;
        }
        let config = NetworkConfig::access_point(name, peer, channel).weight(self.config.secondary);
        let id = schedule.add(config, now);
        self.roles.insert(id, Role::Candidate);
        self.share(schedule, now);
        // Its access point is known to be in range now.
        schedule.activate(id, now);
    }

    /// Handles the addresses of a network.
    pub fn configured<P: Copy>(&mut self, id: NetworkId, ip: IpConfig, schedule: &mut SlotSchedule<P>) {
        schedule.set_ip(id, Some(ip));
        self.events.push_back(HandoffEvent::Probe(id));
    }

    /// Handles a probe's result. Units: bit/s.
    pub fn probed<P: Copy>(&mut self, id: NetworkId, bps: f64, schedule: &mut SlotSchedule<P>, now: Instant) {
        schedule.set_quality(id, bps);
        if self.role(id) == Some(Role::Primary) {
            return;
        }
        if bps >= self.config.least_quality {
            self.set_role(id, Role::Secondary, schedule, now);
        } else if let Some(network) = schedule.network(id) {
            self.dropped.insert(network.config().peer, now);
            self.roles.remove(&id);
            schedule.remove(id, now);
            self.share(schedule, now);
            self.events.push_back(HandoffEvent::Dropped(id));
        }
    }

    /// Handles the failure of the primary: the best secondary replaces it, and its slot begins now.
    /// `None` if there is no secondary.
    pub fn primary_failed<P: Copy>(
        &mut self,
        schedule: &mut SlotSchedule<P>,
        now: Instant,
    ) -> Option<NetworkId> {
        let quality = |id: &NetworkId| {
            let network = schedule.network(*id);
            network.and_then(|network| network.quality()).unwrap_or(0.0)
        };
        let secondaries = self.roles.iter().filter(|(_, role)| **role == Role::Secondary);
        let best = secondaries
            .map(|(id, _)| *id)
            .max_by(|a, b| quality(a).total_cmp(&quality(b)))?;
        let old = self.primary();
        self.set_role(best, Role::Primary, schedule, now);
        match old {
            Some(old) => {
                self.roles.remove(&old);
                schedule.replace(old, best, now);
            }
            None => schedule.activate(best, now),
        }
        self.share(schedule, now);
        self.events.push_back(HandoffEvent::Promoted(best));
        Some(best)
    }

    /// Returns the next action.
    pub fn poll_event(&mut self) -> Option<HandoffEvent> {
        self.events.pop_front()
    }
}
