use std::collections::BTreeMap;

use hawser_units::{Instant, PathId};
use hawser_wire::layer::Layer;

use super::{Choice, Demand, PathView, Scheduler, SurplusRoundRobin, wait};

/// Assigns a path of its own to each description of a flow, so that the failure of one path costs
/// one description.
///
/// A new description gets the most reliable path among those with the fewest descriptions of its
/// flow, and stays there: moving it would make losses of different descriptions alike. It moves
/// when its path fails, or when it shares a path while another has none. Packets without a mark use
/// all paths by surplus round robin.
///
/// Source: Piconet section III-D (independent-path striping). Cost: O(paths x descriptions of a
/// flow) a packet; memory grows with the flows whose paths still exist.
#[derive(Debug, Default)]
pub struct IndependentPath {
    places: BTreeMap<(u16, Layer), PathId>,
    unmarked: SurplusRoundRobin,
}

impl IndependentPath {
    /// Creates a scheduler without a path for any description.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns how many descriptions of a flow, other than `but`, are on a path.
    fn crowd(&self, flow: u16, but: Layer, path: PathId) -> usize {
        let of_flow = self.places.range((flow, Layer(0))..=(flow, Layer(u8::MAX)));
        of_flow
            .filter(|&(&(_, layer), &place)| layer != but && place == path)
            .count()
    }

    /// Returns the path of a description; every assigned path is among `paths`.
    fn assign(&mut self, flow: u16, layer: Layer, paths: &[PathView]) -> Option<PathId> {
        let best = paths.iter().min_by(|a, b| {
            let crowds = self.crowd(flow, layer, a.id).cmp(&self.crowd(flow, layer, b.id));
            crowds.then(a.loss.total_cmp(&b.loss)).then(a.id.cmp(&b.id))
        })?;
        let least = self.crowd(flow, layer, best.id);
        let kept = self.places.get(&(flow, layer)).copied();
        let kept = kept.filter(|&place| self.crowd(flow, layer, place) <= least);
        let place = kept.unwrap_or(best.id);
        self.places.insert((flow, layer), place);
        Some(place)
    }
}

impl Scheduler for IndependentPath {
    fn name(&self) -> &'static str {
        "independent-path"
    }

    fn choose(&mut self, demand: &Demand, paths: &[PathView], now: Instant) -> Choice {
        let Some(layer) = demand.layer else {
            return self.unmarked.choose(demand, paths, now);
        };
        self.places
            .retain(|_, place| paths.iter().any(|path| path.id == *place));
        let Some(place) = self.assign(demand.flow, layer, paths) else {
            return wait(paths, now);
        };
        let path = paths.iter().position(|path| path.id == place).unwrap_or_default();
        if paths[path].is_ready(now) {
            Choice::Send { path, packets: 1 }
        } else {
            wait(paths, now)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{demand, open, selected_path};
    use super::*;
    use proptest::prelude::*;

    fn places(scheduler: &mut IndependentPath, paths: &[PathView], descriptions: u8) -> Vec<u16> {
        (0..descriptions)
            .map(|description| {
                let demand = Demand {
                    layer: Some(Layer(description)),
                    ..demand(200, 1)
                };
                paths[selected_path(scheduler.choose(&demand, paths, Instant::ZERO))]
                    .id
                    .0
            })
            .collect()
    }

    #[test]
    fn one_path_for_each_and_only_the_lost_one_moves() {
        let mut scheduler = IndependentPath::new();
        let mut paths = vec![open(1, 1, 5), open(2, 1, 5), open(3, 1, 5)];
        paths[0].loss = 0.2;
        assert_eq!(places(&mut scheduler, &paths, 3), [2, 3, 1]);
        paths.retain(|path| path.id.0 != 3);
        assert_eq!(places(&mut scheduler, &paths, 3), [2, 2, 1]);
        paths.push(open(4, 1, 5));
        assert_eq!(places(&mut scheduler, &paths, 3), [4, 2, 1]);
        paths[0].loss = 0.0;
        assert_eq!(places(&mut scheduler, &paths, 3), [4, 2, 1]);
    }

    proptest! {
        #[test]
        fn descriptions_are_spread_as_evenly_as_they_can(steps in prop::collection::vec((1u8..64, 1u8..7), 1..20)) {
            let mut scheduler = IndependentPath::new();
            for (present, descriptions) in steps {
                let paths: Vec<_> = (0..6).filter(|id| present >> id & 1 == 1).map(|id| open(id, 1, 5)).collect();
                prop_assume!(!paths.is_empty());
                for _ in 0..2 {
                    places(&mut scheduler, &paths, 7);
                }
                let places = places(&mut scheduler, &paths, 7);
                let crowd = |id| places.iter().filter(|&&place| place == id).count();
                let crowds: Vec<_> = paths.iter().map(|path| crowd(path.id.0)).collect();
                prop_assert!(crowds.iter().max().unwrap() - crowds.iter().min().unwrap() <= 1, "{:?} {}", crowds, descriptions);
            }
        }
    }
}
