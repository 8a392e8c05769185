//! Which networks take the flows that begin now: rules in their order, and shares where several
//! networks may take them.
//!
//! The kernel assigns (it sees every first packet); this decides what it is told. It starts with
//! rules and without networks. Networks come, go and are measured; after each change the decisions
//! are what the rules make of it. A rule names networks in order of preference (the first that is
//! there, by [`Policy`], which holds on to a choice that flickers) or shares flows out among them
//! by a [`Measure`]. Behind all rules stands the default.
//!
//! ```text
//!   networks, measurements --> rules (Policy | shares) --> decisions --> event, if one of them is another than before
//! ```
//!
//! Source: Juggler section 3.1 (a flow stays where its first packet went), Flow switch section 3.3
//! (rules). Deviates: Juggler gives a new flow to the network on which the radio is at that moment;
//! turns in proportion to what networks carry do the same for one radio and better for several.

pub mod balance;

use std::collections::BTreeMap;

use hawser_units::{Duration, Instant, NetworkId, Rate};
use hawser_wire::data::Class;

use crate::policy::conditions::{Conditions, Facts, NetworkFacts};
use crate::policy::{Kind, Policy, Rule, Selector};

/// What is known of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// What it is.
    pub kind: Kind,
    /// Whether it carries IPv4 and IPv6.
    pub carries: [bool; 2],
    /// A share set by hand, in place of the capacity.
    pub weight: Option<u32>,
    /// What it can carry, set or measured.
    pub capacity: Option<Rate>,
    /// The round trip to its gateway.
    pub round_trip: Option<Duration>,
    /// What conditions ask of it.
    pub facts: NetworkFacts,
}

/// How flows are shared out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measure {
    /// Every network the same.
    Even,
    /// In proportion to weights, or to capacities where no weight is set.
    #[default]
    Capacity,
    /// On the network of the shortest round trip, and those that are nearly as good.
    RoundTrip,
    /// On the cheapest networks.
    Cost,
}

/// What a rule does with the flows that it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the first of these that is there.
    Prefer(Vec<Selector>),
    /// Shared out among these (all when empty).
    Spread(Vec<Selector>, Measure),
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// When it is for any flow at all, and which networks it may choose.
    pub when: Conditions,
    /// What it does.
    pub way: Way,
    /// Refuses the flow when none of its networks is there, where otherwise later rules apply.
    pub strict: bool,
}

/// What is to be done with the flows of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whose turn it is, flow after flow and then from the start; for IPv4 and IPv6. Empty: not for
    /// this rule to say.
    pub turns: [Vec<NetworkId>; 2],
    /// Flows without a network are refused.
    pub strict: bool,
}

/// The rules and what follows from them.
///
/// Cost: O(rules x networks) a change.
#[derive(Debug)]
pub struct Assignment {
    networks: BTreeMap<NetworkId, Network>,
    facts: Facts,
    wishes: Vec<Wish>,
    /// For each wish and family: who is preferred, with a hold.
    policies: Vec<[Policy; 2]>,
    decisions: Vec<Decision>,
    is_changed: bool,
}

impl Assignment {
    /// With these rules; the last one stands for all flows that no other is for.
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

    /// The networks that may take new flows.
    #[must_use]
    pub fn networks(&self) -> &BTreeMap<NetworkId, Network> {
        &self.networks
    }

    /// What is to be done, rule by rule.
    #[must_use]
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// These networks may take new flows, and no others.
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

    /// This is known of the device; what changes counts at once.
    pub fn handle_facts(&mut self, facts: Facts) {
        if self.facts != facts {
            self.facts = facts;
            self.decide();
        }
    }

    /// Which rules are for any flow at all at this moment.
    pub fn holding(&self) -> impl Iterator<Item = bool> {
        self.wishes.iter().map(|wish| wish.when.hold(&self.facts))
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Instant) {
        for policy in self.policies.iter_mut().flatten() {
            policy.handle_timeout(now);
        }
        self.decide();
    }

    /// When [`Self::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.policies
            .iter()
            .flatten()
            .filter_map(Policy::poll_timeout)
            .min()
    }

    /// Whether the decisions are others than when this was last asked.
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
            Way::Prefer(_) => {
                let preferred = self.policies[index][family].network(Class::Bulk);
                return preferred.into_iter().collect();
            }
            Way::Spread(among, measure) => (among, *measure),
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
        Way::Prefer(selectors) => selectors.clone(),
        Way::Spread(..) => Vec::new(),
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

/// What each candidate is worth by the measure; nothing for those that are out.
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
            // Within a quarter the queues of the moment decide, and nobody knows these.
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

/// A weight set by hand counts as it is; a network of which nothing is known counts as the mean of
/// the others.
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

/// The order in which networks take flows: in proportion to their weights, evenly mixed, none left
/// out that has a weight.
///
/// A weight is followed in steps of the square root of two, so that a rate that flickers does not
/// change the order. Source: smooth weighted round robin, as nginx has it: each turn goes to whom
/// most is owed.
#[must_use]
pub fn turns(weights: &[(NetworkId, u64)]) -> Vec<NetworkId> {
    let most = weights.iter().map(|(_, weight)| *weight).max().unwrap_or(0);
    let step = |weight: u64| {
        let halvings = (2.0 * (most as f64 / weight as f64).log2()).round() / 2.0;
        (f64::from(MOST_TURNS) * (-halvings).exp2()).round().max(1.0) as i64
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
            // The first of equals, so that the order is that of the ids.
            let next = owed.iter_mut().rev().max_by_key(|(_, _, credit)| *credit)?;
            next.2 -= total;
            Some(next.0)
        })
        .collect()
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// How long a better network must be there before new flows go back to it: longer than an access
/// point takes to restart a station.
const HOLD: Duration = Duration::from_secs(2);
/// Turns of the largest network: ratios up to 32 are kept.
const MOST_TURNS: u32 = 32;

#[cfg(test)]
mod tests;
