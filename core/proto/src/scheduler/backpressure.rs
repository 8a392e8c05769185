//! Backpressure striping: the reports of paths determine how much each path gets.
//!
//! ```text
//!                 every path was given its threshold of packets
//!   bootstrap ------------------------------------------------------> steady
//!   (round robin)                                       +------------+  |  ^
//!       ^                                few unreported |               |  | more unreported
//!       |  a new path                    on all paths   v               |  | on some path
//!       +------------------------------------------- low demand <-------+--+
//!                                                   (round robin)
//! ```
//!
//! In steady state a path gets a new packet for each packet that it has reported as received or
//! lost, within a threshold of packets in flight. So a faster path reports more often and gets more
//! packets, and a path that stalls gets none.

use std::collections::BTreeMap;

use hawser_units::{Bytes, Instant, PathId};

use super::{Choice, Demand, PathView, RoundRobin, Scheduler, wait};

/// Sends on a path with fewer unreported packets than its threshold.
///
/// Source: Multifacet section 3.1. Deviates: its device reports within a frame time, a tunnel's far
/// end within a round trip, so a threshold is at least twice the packets of a round trip at the
/// rate of [`PathView::soon`], unless it was fixed with [`Backpressure::with_threshold`]. Among
/// paths below their threshold the one with the most room is taken; the paper does not say.
/// Cost: O(paths) a packet.
#[derive(Clone, Debug)]
pub struct Backpressure {
    fixed: Option<u32>,
    /// Thresholds set from outside (throttling).
    throttled: BTreeMap<PathId, u32>,
    /// Packets that each path still gets in its bootstrap.
    bootstrap: BTreeMap<PathId, u32>,
    turn: RoundRobin,
}

impl Default for Backpressure {
    fn default() -> Self {
        Self::new()
    }
}

impl Backpressure {
    /// Creates a scheduler whose thresholds follow the paths' rates and round trips.
    #[must_use]
    pub fn new() -> Self {
        Self {
            fixed: None,
            throttled: BTreeMap::new(),
            bootstrap: BTreeMap::new(),
            turn: RoundRobin::new(),
        }
    }

    /// Creates a scheduler with the same threshold for every path, as in the paper.
    #[must_use]
    pub fn with_threshold(packets: u32) -> Self {
        Self {
            fixed: Some(packets.max(1)),
            ..Self::new()
        }
    }

    /// Sets one path's threshold: the handle of Multifacet's transmission throttling (section 3.2).
    pub fn set_threshold(&mut self, path: PathId, packets: u32) {
        self.throttled.insert(path, packets.max(1));
    }

    fn threshold(&self, path: &PathView, demand: &Demand) -> u32 {
        let set = self.throttled.get(&path.id).copied().or(self.fixed);
        set.unwrap_or_else(|| {
            let Bytes(in_round_trip) = path.soon.rate().bytes_in(path.round_trip);
            let packets = in_round_trip.saturating_mul(2) / u64::from(demand.len.max(1));
            u32::try_from(packets).unwrap_or(u32::MAX).max(DEVICE_THRESHOLD)
        })
    }

    /// Bootstrap: fills every path to its threshold in turn.
    fn fill(&mut self, demand: &Demand, paths: &[PathView], now: Instant) -> Option<usize> {
        for path in paths {
            if !self.bootstrap.contains_key(&path.id) {
                self.bootstrap.insert(path.id, self.threshold(path, demand));
            }
        }
        if self.bootstrap.len() > paths.len() {
            self.bootstrap
                .retain(|id, _| paths.iter().any(|path| path.id == *id));
        }
        let left = &self.bootstrap;
        let eligible =
            |path: &PathView| path.is_ready(now) && left.get(&path.id).is_some_and(|&left| left > 0);
        let path = self.turn.next(paths, eligible)?;
        if let Some(left) = self.bootstrap.get_mut(&paths[path].id) {
            *left -= 1;
        }
        Some(path)
    }

    /// Steady state: where there is the most room.
    fn refill(&self, demand: &Demand, paths: &[PathView], now: Instant) -> Option<usize> {
        let ready = paths.iter().enumerate().filter(|(_, path)| path.is_ready(now));
        ready
            .map(|(index, path)| {
                (
                    self.threshold(path, demand)
                        .saturating_sub(path.packets_in_flight),
                    index,
                )
            })
            .filter(|&(room, _)| room > 0)
            .max_by_key(|&(room, index)| (room, core::cmp::Reverse(index)))
            .map(|(_, index)| index)
    }
}

impl Scheduler for Backpressure {
    fn name(&self) -> &'static str {
        "backpressure"
    }

    fn choose(&mut self, demand: &Demand, paths: &[PathView], now: Instant) -> Choice {
        let choice = match self.fill(demand, paths, now) {
            Some(path) => Some(path),
            None if paths.iter().all(|path| path.packets_in_flight <= LOW_DEMAND) => {
                self.turn.next(paths, |path| path.is_ready(now))
            }
            None => self.refill(demand, paths, now),
        };
        choice.map_or_else(|| wait(paths, now), |path| Choice::Send { path, packets: 1 })
    }
}

/// Packets that a path may hold unreported before its rate is known. The paper gives no figure; 16
/// is a little more than TCP's initial window (RFC 6928) and fills a 20 Mbit/s path with a round
/// trip of 9 ms.
const DEVICE_THRESHOLD: u32 = 16;

/// "A very small number of packets" unreported (section 3.1): a delayed report's worth.
const LOW_DEMAND: u32 = 2;

#[cfg(test)]
mod tests {
    use super::super::tests::{demand, open};
    use super::*;

    fn choose(scheduler: &mut Backpressure, paths: &[PathView]) -> Choice {
        scheduler.choose(&demand(1400, 50), paths, Instant::ZERO)
    }

    /// Drives the two paths for `ticks`; path i reports a packet every `every[i]` ticks, the queue
    /// is never empty.
    fn saturate(scheduler: &mut Backpressure, every: [u32; 2], ticks: u32) -> [u32; 2] {
        let mut paths = [open(1, 0, 5), open(2, 0, 5)];
        let mut sent = [0; 2];
        for tick in 1..=ticks {
            for (path, every) in paths.iter_mut().zip(every) {
                if tick % every == 0 {
                    path.packets_in_flight = path.packets_in_flight.saturating_sub(1);
                }
            }
            while let Choice::Send { path, .. } = choose(scheduler, &paths) {
                paths[path].packets_in_flight += 1;
                sent[path] += 1;
            }
        }
        sent
    }

    #[test]
    fn bootstrap_fills_all_paths_in_turn() {
        let mut scheduler = Backpressure::with_threshold(4);
        assert_eq!(saturate(&mut scheduler, [u32::MAX, u32::MAX], 1), [4, 4]);
    }

    #[test]
    fn the_faster_link_gets_what_it_reports() {
        let [fast, slow] = saturate(&mut Backpressure::with_threshold(4), [2, 10], 10_000);
        assert!(
            fast.abs_diff(5_004) <= 4 && slow.abs_diff(1_004) <= 4,
            "{fast} {slow}"
        );
    }

    #[test]
    fn a_stalled_link_gets_no_more_than_its_threshold() {
        let [good, stalled] = saturate(&mut Backpressure::with_threshold(4), [2, u32::MAX], 10_000);
        assert!(good >= 5_000 && stalled == 4, "{good} {stalled}");
    }

    #[test]
    fn low_demand_takes_turns() {
        let mut scheduler = Backpressure::with_threshold(4);
        saturate(&mut scheduler, [u32::MAX, u32::MAX], 1);
        let mut paths = [open(1, 100, 5), open(2, 1, 5)];
        paths[0].packets_in_flight = 2;
        let turns = [(); 4].map(|()| choose(&mut scheduler, &paths));
        let first = turns[0];
        assert_ne!(turns[1], first);
        assert_eq!([turns[2], turns[3]], [first, turns[1]]);
    }

    #[test]
    fn bootstrap_takes_turns_also_where_one_path_has_more_room() {
        let mut scheduler = Backpressure::with_threshold(8);
        scheduler.set_threshold(PathId(2), 5);
        let mut paths = [open(1, 1, 5), open(2, 1, 5)];
        for path in &mut paths {
            path.packets_in_flight = 3;
        }
        let turns = [(); 4].map(|()| choose(&mut scheduler, &paths));
        let send = |path| Choice::Send { path, packets: 1 };
        assert_eq!(turns, [send(0), send(1), send(0), send(1)]);
    }

    /// Fills these paths, of which nothing is reported.
    fn fill_all(scheduler: &mut Backpressure, paths: &mut [PathView]) {
        while let Choice::Send { path, .. } = choose(scheduler, paths) {
            paths[path].packets_in_flight += 1;
        }
    }

    #[test]
    fn a_path_holds_what_it_carries_in_two_round_trips() {
        // 100 Mbit/s bring 125,000 bytes in 10 ms.
        let mut paths = [open(1, 100, 5), open(2, 0, 5)];
        fill_all(&mut Backpressure::new(), &mut paths);
        let held = paths.each_ref().map(|path| path.packets_in_flight);
        assert_eq!(held, [2 * 125_000 / 1400, DEVICE_THRESHOLD]);
    }

    #[test]
    fn a_path_that_comes_back_is_filled_as_a_new_one() {
        let mut scheduler = Backpressure::with_threshold(4);
        let mut paths = [open(1, 1, 5), open(2, 1, 5)];
        fill_all(&mut scheduler, &mut paths);
        fill_all(&mut scheduler, &mut paths[..1]);
        let mut paths = [open(1, 1, 5), open(2, 1, 5)];
        // In the steady state this one has more room.
        paths[0].packets_in_flight = 3;
        paths[1].packets_in_flight = 3;
        let returned = [(); 4].map(|()| choose(&mut scheduler, &paths));
        assert_eq!(returned, [Choice::Send { path: 1, packets: 1 }; 4]);
    }

    #[test]
    fn throttling_lowers_one_path() {
        let mut scheduler = Backpressure::with_threshold(8);
        scheduler.set_threshold(PathId(2), 1);
        let [free, throttled] = saturate(&mut scheduler, [2, 2], 1_000);
        assert!(free >= 500 && throttled <= 501, "{free} {throttled}");
        let mut paths = [open(1, 1, 5), open(2, 1, 5)];
        paths[0].packets_in_flight = 8;
        paths[1].packets_in_flight = 1;
        assert_eq!(choose(&mut scheduler, &paths), Choice::Wait(Instant::FAR_FUTURE));
    }
}
