//! Redistribution of live flows to the shares that the rules assign now, so that a network that
//! returns gets its share again.
//!
//! A flow on a network that its rule excludes moves to one that the rule allows. A heavy flow also
//! moves between the networks of its rule if its share grows by half or more. Turns follow weights
//! in steps of the square root of two ([`super::turns`]), so a weight that varies by one step moves
//! no flow.

use std::collections::BTreeMap;

use hawser_units::NetworkId;

/// Flow and its present network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Present network of the flow.
    pub at: NetworkId,
    /// Networks that would take the flow in turn if it began now ([`super::Decision::turns`]).
    /// Empty: the flow does not move.
    pub turns: Vec<NetworkId>,
    /// Heavy flow: limited by its network's rate. Other flows take no share of a network.
    pub is_heavy: bool,
    /// Set if the flow can be moved now.
    pub is_movable: bool,
}

impl Placed {
    /// Returns the networks of its rule, each with its number of turns.
    fn shares(&self) -> BTreeMap<NetworkId, u64> {
        let mut shares = BTreeMap::new();
        self.turns
            .iter()
            .for_each(|id| *shares.entry(*id).or_default() += 1);
        shares
    }
}

/// Returns the moves that are worth making: indices of `flows`, and their new networks. Each flow
/// moves at most once.
///
/// Cost: O(flows x networks) for each pass; at most one pass for each flow that moves, typically
/// two in all.
#[must_use]
pub fn moves(flows: &[Placed]) -> Vec<(usize, NetworkId)> {
    let mut loads: BTreeMap<NetworkId, u64> = BTreeMap::new();
    let heavy = flows.iter().filter(|flow| flow.is_heavy);
    heavy.for_each(|flow| *loads.entry(flow.at).or_default() += 1);
    let mut left: Vec<_> = flows
        .iter()
        .enumerate()
        .filter(|(_, flow)| flow.is_movable)
        .map(|(index, flow)| (index, flow, flow.shares()))
        .collect();
    let mut found = Vec::new();
    loop {
        let before = found.len();
        left.retain(|(index, flow, shares)| {
            let Some(to) = better(flow, shares, &loads) else {
                return true;
            };
            if flow.is_heavy {
                *loads.entry(flow.at).or_default() -= 1;
                *loads.entry(to).or_default() += 1;
            }
            found.push((*index, to));
            false
        });
        if found.len() == before {
            return found;
        }
    }
}

/// Returns a better network for the flow, if any.
fn better(
    flow: &Placed,
    shares: &BTreeMap<NetworkId, u64>,
    loads: &BTreeMap<NetworkId, u64>,
) -> Option<NetworkId> {
    let load = |id: NetworkId| loads.get(&id).copied().unwrap_or(0);
    let others = shares.iter().filter(|(id, _)| **id != flow.at);
    // Flows per turn, including this flow: a / b < c / d if a d < c b.
    let (to, turns) = others.min_by(|(a, turns_a), (b, turns_b)| {
        ((load(**a) + 1) * **turns_b).cmp(&((load(**b) + 1) * **turns_a))
    })?;
    let Some(turns_here) = shares.get(&flow.at) else {
        return Some(*to);
    };
    let (here, there) = (load(flow.at) * turns, (load(*to) + 1) * turns_here);
    (flow.is_heavy && 2 * here >= 3 * there).then_some(*to)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flow(at: u32, turns: &[u32]) -> Placed {
        Placed {
            at: NetworkId(at),
            turns: turns.iter().copied().map(NetworkId).collect(),
            is_heavy: true,
            is_movable: true,
        }
    }

    fn counts(flows: &[Placed]) -> BTreeMap<u32, usize> {
        let mut places: Vec<u32> = flows.iter().map(|flow| flow.at.0).collect();
        for (index, to) in moves(flows) {
            places[index] = to.0;
        }
        let mut counts = BTreeMap::new();
        places
            .into_iter()
            .for_each(|place| *counts.entry(place).or_default() += 1);
        counts
    }

    #[test]
    fn a_network_that_is_back_gets_its_part() {
        let gathered = vec![flow(2, &[1, 2, 1]); 6];
        assert_eq!(counts(&gathered), BTreeMap::from([(1, 4), (2, 2)]));
        let one = [flow(2, &[1, 2, 1])];
        assert_eq!(
            moves(&one),
            [(0, NetworkId(1))],
            "twice as much is there, and nobody uses it"
        );
    }

    #[test]
    fn little_is_no_reason_to_move() {
        assert_eq!(moves(&[flow(2, &[1, 2])]), [], "alike");
        assert_eq!(
            moves(&[flow(1, &[1, 2]), flow(1, &[1, 2]), flow(2, &[1, 2])]),
            [],
            "three cannot be halved"
        );
        assert_eq!(
            moves(&[flow(2, &[1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 1])]),
            [],
            "seven to five is not by half more"
        );
    }

    #[test]
    fn a_flow_follows_its_rule() {
        let mut call = flow(3, &[1]);
        call.is_heavy = false;
        assert_eq!(moves(&[call.clone()]), [(0, NetworkId(1))]);
        call.turns = vec![NetworkId(3), NetworkId(1), NetworkId(1)];
        assert_eq!(moves(&[call.clone()]), [], "a light flow stays");
        call.turns.clear();
        assert_eq!(moves(&[call]), [], "its program has chosen");
    }

    #[test]
    fn what_cannot_be_moved_still_counts() {
        let mut fixed = flow(1, &[]);
        fixed.is_movable = false;
        let flows = [
            fixed.clone(),
            fixed.clone(),
            fixed,
            flow(2, &[1, 2]),
            flow(2, &[1, 2]),
            flow(2, &[1, 2]),
        ];
        assert_eq!(moves(&flows), []);
    }

    proptest! {
        #[test]
        fn moves_end_and_never_make_the_worst_part_worse(
            flows in prop::collection::vec((0u32..4, 0usize..3, any::<bool>(), any::<bool>()), 0..40),
            weights in prop::array::uniform4(1u64..9),
        ) {
            let all = crate::assignment::turns(&std::array::from_fn::<_, 4, _>(|id| (NetworkId(id as u32), weights[id])));
            let choices = [Vec::new(), all.clone(), vec![NetworkId(0)]];
            let flows: Vec<Placed> = flows
                .into_iter()
                .map(|(at, choice, is_heavy, is_movable)| Placed {
                    at: NetworkId(at),
                    turns: choices[choice].clone(),
                    is_heavy,
                    is_movable,
                })
                .collect();
            let found = moves(&flows);
            let mut after = flows.clone();
            for (index, to) in &found {
                prop_assert!(flows[*index].is_movable && flows[*index].turns.contains(to));
                prop_assert_ne!(flows[*index].at, *to);
                after[*index].at = *to;
            }
            // Where all may go everywhere: the most crowded network is no more crowded than before.
            if flows.iter().all(|flow| flow.turns == all) {
                let worst = |flows: &[Placed]| {
                    let part = |id: u32| {
                        let load = flows.iter().filter(|flow| flow.is_heavy && flow.at.0 == id).count();
                        load as f64 / all.iter().filter(|turn| turn.0 == id).count() as f64
                    };
                    (0..4).map(part).fold(0.0, f64::max)
                };
                prop_assert!(worst(&after) <= worst(&flows) + 1e-9);
                prop_assert_eq!(moves(&after), []);
            }
        }
    }
}
