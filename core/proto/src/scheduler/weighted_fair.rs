use std::collections::BTreeMap;

use hawser_units::{Bytes, Instant, PathId};

use super::{Choice, Demand, PathView, Scheduler, lowest_rate, wait};

/// Sends each packet on the path that would finish it first in virtual time, at the rates of
/// [`PathView::soon`].
///
/// A path's virtual finish time grows by a packet's length over its rate; the packet is sent where
/// the result is lowest. Over any span a path's bytes are in proportion to its rate, and packets of
/// different paths alternate as evenly as possible. A path that was not ready keeps a claim to at
/// most [`MAX_SAVED_PACKETS`] packets of full size.
///
/// Source: Demers, Keshav, Shenker, SIGCOMM 1989 (finish times); Goyal, Vin, Cheng, SIGCOMM 1996
/// (virtual time is the start tag of the packet in service). Cost: O(paths) a packet. Units:
/// virtual time in ns.
#[derive(Clone, Debug, Default)]
pub struct WeightedFair {
    finish: BTreeMap<PathId, u64>,
    virtual_time: u64,
}

impl WeightedFair {
    /// Creates a scheduler in which all paths begin with equal shares.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Scheduler for WeightedFair {
    fn name(&self) -> &'static str {
        "weighted-fair"
    }

    fn choose(&mut self, demand: &Demand, paths: &[PathView], now: Instant) -> Choice {
        let lowest = lowest_rate(paths);
        let mut best: Option<(u64, u64, usize)> = None;
        for (index, path) in paths.iter().enumerate().filter(|(_, path)| path.is_ready(now)) {
            let rate = path.soon.rate().max(lowest);
            let cost = rate.time_for(Bytes(u64::from(demand.len))).as_nanos() as u64;
            let kept = rate
                .time_for(Bytes(MAX_SAVED_PACKETS * u64::from(path.mtu)))
                .as_nanos() as u64;
            // A path that is new starts level with the others.
            let start = self.finish.entry(path.id).or_insert(self.virtual_time);
            *start = (*start).max(self.virtual_time.saturating_sub(kept));
            let start = *start;
            let finish = start.saturating_add(cost);
            if best.is_none_or(|(least, ..)| finish < least) {
                best = Some((finish, start, index));
            }
        }
        let Some((finish, start, path)) = best else {
            return wait(paths, now);
        };
        self.virtual_time = self.virtual_time.max(start);
        self.finish.insert(paths[path].id, finish);
        if self.finish.len() > paths.len() {
            self.finish
                .retain(|id, _| paths.iter().any(|path| path.id == *id));
        }
        Choice::Send { path, packets: 1 }
    }
}

/// Maximum number of packets that a path makes up for after a wait: pacing delays it by a few, and
/// more would be a burst. Source: our choice; fewer lose a part of the rate of a path whose timers
/// are late, more send a burst of as many packets.
const MAX_SAVED_PACKETS: u64 = 8;

#[cfg(test)]
mod tests {
    use super::super::tests::{demand, open, selected_path, sent, shares};
    use super::*;
    use hawser_units::InnerBytes;

    #[test]
    fn shares_follow_the_rates_in_bytes() {
        let paths = [open(1, 10, 5), open(2, 50, 5), open(3, 20, 50)];
        let got = shares(
            &mut WeightedFair::new(),
            &paths,
            |n| if n % 2 == 0 { 1400 } else { 60 },
            40_000,
        );
        for (share, expected) in got.iter().zip([0.125, 0.625, 0.25]) {
            assert!((share - expected).abs() < 0.002, "{share} {expected}");
        }
    }

    #[test]
    fn a_path_that_is_gone_is_forgotten() {
        let paths = [open(1, 30, 5), open(2, 10, 5)];
        let mut scheduler = WeightedFair::new();
        for paths in [&paths[..], &paths[..], &paths[..1]] {
            scheduler.choose(&demand(1000, 1), paths, Instant::ZERO);
        }
        assert!(scheduler.finish.keys().eq([&PathId(1)]));
    }

    #[test]
    fn the_first_of_equal_paths_begins() {
        let paths = [open(1, 10, 5), open(2, 10, 5)];
        let mut scheduler = WeightedFair::new();
        let taken =
            [(); 4].map(|()| selected_path(scheduler.choose(&demand(1000, 1), &paths, Instant::ZERO)));
        assert_eq!(taken, [0, 1, 0, 1]);
    }

    #[test]
    fn interleaves_as_evenly_as_it_can() {
        let paths = [open(1, 30, 5), open(2, 10, 5)];
        let mut scheduler = WeightedFair::new();
        let ids: Vec<_> = (0..12)
            .map(|_| {
                paths[selected_path(scheduler.choose(&demand(1000, 1), &paths, Instant::ZERO))]
                    .id
                    .0
            })
            .collect();
        for four in ids.windows(4) {
            assert_eq!(four.iter().filter(|&&id| id == 2).count(), 1, "{ids:?}");
        }
    }

    #[test]
    fn a_path_that_waits_briefly_keeps_its_share_but_a_long_wait_is_forgotten() {
        let mut paths = [open(1, 10, 5), open(2, 10, 5)];
        let mut scheduler = WeightedFair::new();
        let mut run = |paths: &[PathView; 2], count| sent(&mut scheduler, paths, 1000, count);
        run(&paths, 100);
        paths[1].window = InnerBytes(0);
        run(&paths, 4);
        paths[1].window = InnerBytes(u64::MAX);
        let [a, b] = run(&paths, 20);
        assert!(b >= a + 3, "{a} {b}");
        paths[1].window = InnerBytes(0);
        run(&paths, 1000);
        paths[1].window = InnerBytes(u64::MAX);
        let [a, b] = run(&paths, 100);
        assert!(b <= a + 12, "{a} {b}");
    }
}
