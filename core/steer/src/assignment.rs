//! Assignment of new flows to networks: rules in order, and shares where several networks may take
//! them.
//!
//! The kernel assigns, because it sees every first packet; this machine computes its table. It
//! starts with rules and without networks. After each change of the networks or their measurements
//! it evaluates the rules again. A rule names networks in order of preference (the first present
//! one, by [`Policy`], which delays changes) or shares flows among them by a [`Measure`]. The
//! default rule is the last.
//!
//! ```text
//!   networks, measurements --> rules (Policy | shares) --> decisions --> event, if one of them is another than before
//! ```
//!
//! Source: Juggler section 3.1 (a flow stays where its first packet went), Flow switch section 3.3
//! (rules). Deviates: Juggler gives a new flow to the network that the radio is tuned to at that
//! moment; turns in proportion to the networks' rates have the same effect for one radio and a
//! better one for several.

pub mod balance;

use std::collections::BTreeMap;

use hawser_units::{Duration, Instant, NetworkId, Rate};
use hawser_wire::data::Class;

use crate::policy::conditions::{Conditions, Facts, NetworkFacts};
use crate::policy::{Kind, Policy, Rule, Selector};

/// Properties of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// Kind of the network.
    pub kind: Kind,
    /// Support of IPv4 and IPv6.
    pub carries: [bool; 2],
    /// Configured share, instead of the capacity.
    pub weight: Option<u32>,
    /// Capacity, configured or measured.
    pub capacity: Option<Rate>,
    /// Round-trip time to the network's gateway.
    pub round_trip: Option<Duration>,
    /// Facts that conditions use.
    pub facts: NetworkFacts,
}

/// Measure by which flows are shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measure {
    /// Equal shares.
    Even,
    /// Shares in proportion to weights, or to capacities if no weight is set.
    #[default]
    Capacity,
    /// The network with the shortest round trip, and those within a quarter of it.
    RoundTrip,
    /// The networks with the lowest cost.
    Cost,
}

/// Action of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// First present network of these.
    Prefer(Vec<Selector>),
    /// Shares among these networks (all when empty).
    Spread(Vec<Selector>, Measure),
}

/// Condition and action of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Conditions of the rule for any flow, and for the networks that it may choose.
    pub when: Conditions,
    /// Action of the rule.
    pub way: RuleAction,
    /// Refuses the flow if none of its networks is present; otherwise later rules apply.
    pub strict: bool,
}

/// Assignment of the flows of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Networks that take one flow each in turn, repeated; for IPv4 and IPv6. Empty: a later rule
    /// decides.
    pub turns: [Vec<NetworkId>; 2],
    /// Set if flows without a network are refused.
    pub strict: bool,
}

/// Evaluates the rules and holds their decisions.
///
/// Cost: O(rules x networks) a change.
#[derive(Debug)]
pub struct Assignment {
    networks: BTreeMap<NetworkId, Network>,
    facts: Facts,
    wishes: Vec<Wish>,
    /// Preferred network for each rule and family, with a hold time.
    policies: Vec<[Policy; 2]>,
    decisions: Vec<Decision>,
    is_changed: bool,
}

impl Assignment {
    /// Creates an assignment from `rules`; the last one applies to all flows without another rule.
    #[must_use]
    pub fn new(wishes: Vec<Wish>) -> Self {
        let policies = wishes.iter().map(|wish| [policy(wish), policy(wish)]).collect();
        Self {
            networks: BTreeMap::new(),
            facts: Facts::default(),
            decisions: vec![Decision::default(); wishes.len()],
            wishes,
            policies,
            is_changed: true,
        }
    }

    /// Returns the networks that may take new flows.
    #[must_use]
    pub fn networks(&self) -> &BTreeMap<NetworkId, Network> {
        &self.networks
    }

    /// Returns the assignment of each rule.
    #[must_use]
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// Sets the networks that may take new flows.
    pub fn handle_networks(&mut self, networks: BTreeMap<NetworkId, Network>, now: Instant) {
        for (wish, policies) in self.wishes.iter().zip(&mut self.policies) {
            for (family, policy) in policies.iter_mut().enumerate() {
                let may = |network: &Network| network.carries[family] && wish.when.admit(&network.facts);
                let carrying = networks.iter().filter(|(_, network)| may(network));
                policy.handle_networks(carrying.map(|(id, network)| (*id, network.kind)).collect(), now);
            }
        }
        self.networks = networks;
        self.decide();
    }

    /// Sets the facts about the device; changes apply at once.
    pub fn handle_facts(&mut self, facts: Facts) {
        if self.facts != facts {
            self.facts = facts;
            self.decide();
        }
    }

    /// Returns for each rule whether its conditions hold now.
    pub fn holding(&self) -> impl Iterator<Item = bool> {
        self.wishes.iter().map(|wish| wish.when.hold(&self.facts))
    }

    /// Applies preferred networks whose hold time has passed at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        for policy in self.policies.iter_mut().flatten() {
            policy.handle_timeout(now);
        }
        self.decide();
    }

    /// Returns when [`Self::handle_timeout`] has an effect.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.policies
            .iter()
            .flatten()
            .filter_map(Policy::poll_timeout)
            .min()
    }

    /// Returns whether the decisions have changed since the last call.
    pub fn poll_event(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    fn decide(&mut self) {
        for (index, wish) in self.wishes.iter().enumerate() {
            let decision = if wish.when.hold(&self.facts) {
                Decision {
                    turns: [0, 1].map(|family| self.turns(index, family)),
                    strict: wish.strict,
                }
            } else {
                Decision::default()
            };
            if self.decisions[index] != decision {
                self.decisions[index] = decision;
                self.is_changed = true;
            }
        }
        for policy in self.policies.iter_mut().flatten() {
            while policy.poll_event().is_some() {}
        }
    }

    fn turns(&self, index: usize, family: usize) -> Vec<NetworkId> {
        let wish = &self.wishes[index];
        let (among, measure) = match &wish.way {
            RuleAction::Prefer(_) => {
                let preferred = self.policies[index][family].network(Class::Bulk);
                return preferred.into_iter().collect();
            }
            RuleAction::Spread(among, measure) => (among, *measure),
        };
        let fits = |id: NetworkId, network: &Network| {
            among.is_empty() || among.iter().any(|selector| selects(*selector, id, network.kind))
        };
        let may = |network: &Network| network.carries[family] && wish.when.admit(&network.facts);
        let candidates: Vec<_> = self
            .networks
            .iter()
            .filter(|(id, network)| may(network) && fits(**id, network))
            .map(|(id, network)| (*id, network))
            .collect();
        turns(&weights(&candidates, measure))
    }
}

fn policy(wish: &Wish) -> Policy {
    let prefer = match &wish.way {
        RuleAction::Prefer(selectors) => selectors.clone(),
        RuleAction::Spread(..) => Vec::new(),
    };
    let rule = Rule {
        when: Vec::new(),
        class: None,
        prefer,
    };
    Policy::new(vec![rule], HOLD)
}

fn selects(selector: Selector, id: NetworkId, kind: Kind) -> bool {
    match selector {
        Selector::Network(wanted) => id == wanted,
        Selector::Kind(wanted) => kind == wanted,
        Selector::Any => true,
    }
}

/// Returns the weight of each candidate by the measure, without the excluded candidates.
fn weights(candidates: &[(NetworkId, &Network)], measure: Measure) -> Vec<(NetworkId, u64)> {
    let even = |keep: &dyn Fn(&Network) -> bool| {
        let kept = candidates.iter().filter(|(_, network)| keep(network));
        kept.map(|(id, _)| (*id, 1)).collect()
    };
    match measure {
        Measure::Even => even(&|_| true),
        Measure::Capacity => by_capacity(candidates),
        Measure::RoundTrip => {
            let best = candidates.iter().filter_map(|(_, n)| n.round_trip).min();
            // Differences within a quarter depend on queues at the moment, which are unknown.
            even(&|network| {
                best.is_none_or(|best| network.round_trip.is_some_and(|trip| trip <= best * 5 / 4))
            })
        }
        Measure::Cost => {
            let least = candidates.iter().map(|(_, n)| n.facts.cost).min();
            even(&|network| Some(network.facts.cost) == least)
        }
    }
}

/// Returns the configured weights, with 1 for networks without one; if no network has a weight, the
/// capacities, with the mean for unknown ones.
fn by_capacity(candidates: &[(NetworkId, &Network)]) -> Vec<(NetworkId, u64)> {
    if candidates.iter().any(|(_, network)| network.weight.is_some()) {
        let weight = |network: &Network| u64::from(network.weight.unwrap_or(1));
        return candidates.iter().map(|(id, n)| (*id, weight(n))).collect();
    }
    let known = candidates.iter().filter_map(|(_, network)| network.capacity);
    let (count, sum) = known.fold((0, 0), |(count, sum), rate| (count + 1, sum + rate.as_bps()));
    let mean = u64::checked_div(sum, count).unwrap_or(1);
    let worth = |network: &Network| network.capacity.map_or(mean, Rate::as_bps).max(1);
    candidates.iter().map(|(id, n)| (*id, worth(n))).collect()
}

/// Returns the order in which networks take flows: in proportion to their weights, evenly mixed,
/// with at least one turn for each positive weight.
///
/// Weights are rounded to steps of the square root of two, so that small changes of a rate keep the
/// order. Source: smooth weighted round robin of nginx: each turn goes to the network with the most
/// credit.
#[must_use]
pub fn turns(weights: &[(NetworkId, u64)]) -> Vec<NetworkId> {
    let most = weights.iter().map(|(_, weight)| *weight).max().unwrap_or(0);
    let step = |weight: u64| {
        let halvings = (2.0 * (most as f64 / weight as f64).log2()).round() / 2.0;
        (f64::from(MAX_TURNS) * (-halvings).exp2()).round().max(1.0) as i64
    };
    let mut owed: Vec<_> = weights
        .iter()
        .filter(|(_, weight)| *weight > 0)
        .map(|(id, weight)| (*id, step(*weight), 0_i64))
        .collect();
    let shrink = owed
        .iter()
        .fold(0, |divisor, (_, share, _)| gcd(divisor, *share))
        .max(1);
    owed.iter_mut().for_each(|(_, share, _)| *share /= shrink);
    let total: i64 = owed.iter().map(|(_, share, _)| share).sum();
    (0..total)
        .filter_map(|_| {
            owed.iter_mut().for_each(|(_, share, credit)| *credit += *share);
            // Equal credits: the lowest id first.
            let next = owed.iter_mut().rev().max_by_key(|(_, _, credit)| *credit)?;
            next.2 -= total;
            Some(next.0)
        })
        .collect()
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Time for which a better network must be present before new flows return to it: longer than an
/// access point takes to restart a station. Source: our choice; a shorter one moves new flows to a
/// network that fails again, with a longer one they use the second-best network for as long.
const HOLD: Duration = Duration::from_secs(2);
/// Maximum number of turns of the largest network, so that ratios up to 32 are kept. Source: our
/// choice; a network that is slower than a thirty-second part gets as many flows as one of that
/// part, and more turns only allow a longer run of flows on one network.
const MAX_TURNS: u32 = 32;

#[cfg(test)]
mod tests;
