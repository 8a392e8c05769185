//! Choice of the network for a flow, by rules over facts about the device and its networks.
//!
//! It starts with no decision. Steady state: the first rule whose facts hold names networks in
//! order, and the first present one is the choice. Facts can change for a short time (a device that
//! stops at a traffic light), so a new choice must last for the hold time before it applies; a
//! network that disappears is left at once.
//!
//! ```text
//!                other choice                held long enough, or the present one is gone
//!     Settled ------------------> Pending -------------------------------------------------> Settled (event)
//!        ^                          |
//!        +-- the old choice again --+
//! ```
//!
//! Source: Flow switch section 3.3.

pub mod conditions;
pub mod motion;
pub mod signal;

use std::collections::{BTreeMap, BTreeSet};

use hawser_units::{Duration, Instant, NetworkId};
use hawser_wire::data::Class;

/// Fact that holds or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fact {
    /// The device moves, by its accelerometer.
    Moving,
    /// The device is on battery power.
    OnBattery,
    /// The screen is off.
    ScreenOff,
    /// The monthly quota is nearly used up.
    VolumeLow,
}

/// Kind of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Wired network.
    Wired,
    /// Wireless LAN.
    Wifi,
    /// Wide area radio network: WiMAX, LTE, 5G.
    Cellular,
    /// Network of a neighbour.
    Neighbour,
}

/// Selector of networks in a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector {
    /// Network with this id.
    Network(NetworkId),
    /// Any network of a kind, the lowest id first.
    Kind(Kind),
    /// Any network.
    Any,
}

/// Rule: if all conditions hold, prefers these networks in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Required value of each fact.
    pub when: Vec<(Fact, bool)>,
    /// Class of the flows; `None` for all.
    pub class: Option<Class>,
    /// Networks in order of preference.
    pub prefer: Vec<Selector>,
}

/// Change of the choice for flows of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Class of the flows.
    pub class: Class,
    /// Network to use from now on; `None` if no network is present.
    pub network: Option<NetworkId>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Choice {
    settled: Option<NetworkId>,
    pending: Option<(Option<NetworkId>, Instant)>,
}

/// Evaluates the rules and holds the choices.
///
/// Cost: O(rules x networks) a change.
#[derive(Debug)]
pub struct Policy {
    rules: Vec<Rule>,
    hold: Duration,
    facts: BTreeSet<Fact>,
    networks: BTreeMap<NetworkId, Kind>,
    choices: [Choice; 4],
    events: Vec<Changed>,
}

impl Policy {
    /// Creates a policy by these rules, of which the first that holds decides. `hold`: time for
    /// which a new choice must last before it applies.
    #[must_use]
    pub fn new(rules: Vec<Rule>, hold: Duration) -> Self {
        Self {
            rules,
            hold,
            facts: BTreeSet::new(),
            networks: BTreeMap::new(),
            choices: [Choice::default(); 4],
            events: Vec::new(),
        }
    }

    /// Returns the network for flows of a class.
    #[must_use]
    pub fn network(&self, class: Class) -> Option<NetworkId> {
        self.choices[class as usize].settled
    }

    /// Sets whether a fact holds.
    pub fn handle_fact(&mut self, fact: Fact, is_so: bool, now: Instant) {
        let changed = if is_so {
            self.facts.insert(fact)
        } else {
            self.facts.remove(&fact)
        };
        if changed {
            self.decide(now);
        }
    }

    /// Adds a network with its kind, or removes it with `None`.
    pub fn handle_network(&mut self, network: NetworkId, kind: Option<Kind>, now: Instant) {
        match kind {
            Some(kind) => drop(self.networks.insert(network, kind)),
            None => drop(self.networks.remove(&network)),
        }
        self.decide(now);
    }

    /// Sets the present networks as a single change.
    pub fn handle_networks(&mut self, networks: BTreeMap<NetworkId, Kind>, now: Instant) {
        self.networks = networks;
        self.decide(now);
    }

    /// Returns the choice of the rules at this moment.
    fn wanted(&self, class: Class) -> Option<NetworkId> {
        let holds = |rule: &&Rule| {
            rule.class.is_none_or(|wanted| wanted == class)
                && rule
                    .when
                    .iter()
                    .all(|(fact, is_so)| self.facts.contains(fact) == *is_so)
        };
        self.rules.iter().filter(holds).find_map(|rule| {
            rule.prefer.iter().find_map(|selector| {
                let fits = |(id, kind): &(&NetworkId, &Kind)| match selector {
                    Selector::Network(wanted) => *id == wanted,
                    Selector::Kind(wanted) => *kind == wanted,
                    Selector::Any => true,
                };
                self.networks.iter().find(fits).map(|(&id, _)| id)
            })
        })
    }

    fn decide(&mut self, now: Instant) {
        for class in Class::ALL {
            let wanted = self.wanted(class);
            let choice = &mut self.choices[class as usize];
            if wanted == choice.settled {
                choice.pending = None;
                continue;
            }
            let is_lost = choice
                .settled
                .is_none_or(|network| !self.networks.contains_key(&network));
            let since = choice
                .pending
                .filter(|(pending, _)| *pending == wanted)
                .map_or(now, |(_, since)| since);
            if is_lost || now.since(since) >= self.hold {
                *choice = Choice {
                    settled: wanted,
                    pending: None,
                };
                self.events.push(Changed {
                    class,
                    network: wanted,
                });
            } else {
                choice.pending = Some((wanted, since));
            }
        }
    }

    /// Returns when [`Self::handle_timeout`] has an effect.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let pending = self.choices.iter().filter_map(|choice| choice.pending);
        pending.map(|(_, since)| since + self.hold).min()
    }

    /// Applies the choices whose hold time has passed at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.decide(now);
    }

    /// Returns the next change of a choice, in order of time.
    pub fn poll_event(&mut self) -> Option<Changed> {
        (!self.events.is_empty()).then(|| self.events.remove(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WIFI: NetworkId = NetworkId(1);
    const WIMAX: NetworkId = NetworkId(2);
    const HOLD: Duration = Duration::from_secs(2);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// Cellular coverage while moving, otherwise the free and faster network.
    fn rules() -> Vec<Rule> {
        let rule = |when, class, prefer: &[Selector]| Rule {
            when,
            class,
            prefer: prefer.to_vec(),
        };
        let (wifi, cellular) = (Selector::Kind(Kind::Wifi), Selector::Kind(Kind::Cellular));
        vec![
            rule(vec![(Fact::VolumeLow, true)], Some(Class::Bulk), &[wifi]),
            rule(vec![(Fact::Moving, true)], None, &[cellular, wifi]),
            rule(vec![], None, &[wifi, Selector::Any]),
        ]
    }

    fn policy() -> Policy {
        let mut policy = Policy::new(rules(), HOLD);
        policy.handle_fact(Fact::Moving, true, at(0));
        policy.handle_network(WIMAX, Some(Kind::Cellular), at(0));
        policy.handle_network(WIFI, Some(Kind::Wifi), at(0));
        policy
    }

    #[test]
    fn follows_a_stop_after_the_hold_but_not_a_red_light() {
        let mut policy = policy();
        assert_eq!(policy.network(Class::Bulk), Some(WIMAX));
        policy.handle_fact(Fact::Moving, false, at(1_000));
        policy.handle_fact(Fact::Moving, true, at(2_000));
        assert_eq!(policy.poll_timeout(), None);
        policy.handle_fact(Fact::Moving, false, at(3_000));
        assert_eq!(policy.poll_timeout(), Some(at(5_000)));
        policy.handle_timeout(at(4_999));
        assert_eq!(policy.network(Class::Bulk), Some(WIMAX));
        policy.handle_timeout(at(5_000));
        assert_eq!(policy.network(Class::Bulk), Some(WIFI));
    }

    #[test]
    fn leaves_a_network_that_goes_at_once_and_says_when_none_is_left() {
        let mut policy = policy();
        while policy.poll_event().is_some() {}
        policy.handle_network(WIMAX, None, at(1_000));
        assert_eq!(policy.network(Class::Realtime), Some(WIFI));
        policy.handle_network(WIFI, None, at(1_000));
        let last = std::iter::from_fn(|| policy.poll_event()).last();
        assert_eq!(last.map(|changed| changed.network), Some(None));
    }

    #[test]
    fn networks_that_come_together_are_one_choice() {
        let mut policy = Policy::new(rules(), HOLD);
        policy.handle_networks(
            BTreeMap::from([(WIFI, Kind::Wifi), (WIMAX, Kind::Cellular)]),
            at(0),
        );
        assert_eq!(policy.network(Class::Bulk), Some(WIFI));
        policy.handle_networks(BTreeMap::from([(WIMAX, Kind::Cellular)]), at(1));
        assert_eq!(policy.network(Class::Bulk), Some(WIMAX));
    }

    #[test]
    fn a_rule_for_a_class_leaves_the_others_alone() {
        let mut policy = policy();
        policy.handle_fact(Fact::VolumeLow, true, at(1_000));
        policy.handle_timeout(at(3_000));
        assert_eq!(
            (policy.network(Class::Bulk), policy.network(Class::Realtime)),
            (Some(WIFI), Some(WIMAX))
        );
    }

    // A choice is none, the rules' present one, or pending; events report each change once.
    proptest! {
        #[test]
        fn choices_settle_and_are_told(ops in prop::collection::vec((0u8..6, any::<bool>(), 0u64..3_000), 1..80)) {
            let mut policy = Policy::new(rules(), HOLD);
            let mut now = at(0);
            let mut told = [None; 4];
            for (what, is_so, ms) in ops {
                now += Duration::from_millis(ms);
                match what {
                    0 => policy.handle_fact(Fact::Moving, is_so, now),
                    1 => policy.handle_fact(Fact::VolumeLow, is_so, now),
                    2 => policy.handle_network(WIFI, is_so.then_some(Kind::Wifi), now),
                    3 => policy.handle_network(WIMAX, is_so.then_some(Kind::Cellular), now),
                    _ => policy.handle_timeout(now),
                }
                policy.handle_timeout(now);
                while let Some(changed) = policy.poll_event() {
                    let class = changed.class as usize;
                    prop_assert_ne!(told[class], changed.network);
                    told[class] = changed.network;
                }
                prop_assert!(policy.poll_timeout().is_none_or(|due| due > now));
                for class in Class::ALL {
                    let network = policy.network(class);
                    prop_assert_eq!(network, told[class as usize]);
                    prop_assert!(network.is_none_or(|network| policy.networks.contains_key(&network)));
                    let pending = policy.choices[class as usize].pending;
                    prop_assert!(network == policy.wanted(class) || pending.map(|(wanted, _)| wanted) == Some(policy.wanted(class)));
                }
            }
        }
    }
}
