use std::collections::BTreeMap;

use hawser_units::{Instant, PathId, Rate};

use super::{Choice, Demand, PathView, Scheduler, lowest_rate, wait};

/// Round robin in bytes, weighted by the rates that paths will have soon ([`PathView::soon`]): the
/// approximation of bit-wise weighted round robin for whole packets.
///
/// Each turn gives a path credit in proportion to its rate; it sends while its credit is positive,
/// and what the last packet took too much (the surplus) is taken from its next turn. Over any span
/// the bytes of a path differ from its exact share by at most a packet and a turn. A path that is
/// not ready keeps the credit of its missed turns, up to [`MAX_SAVED_TURNS`], so that a short wait
/// for pacing does not cost it its share.
///
/// Source: Piconet section IV note 2 (names it); Adiseshu, Parulkar, Varghese, SIGCOMM 1996 section
/// 3 (the algorithm).
/// Deviates: weights are rates found by measuring, and missed turns are kept; with paths that are
/// always ready and differ by less than [`LONGEST_TURN`] it is the paper's.
/// Cost: O(paths) a packet.
#[derive(Clone, Debug, Default)]
pub struct SurplusRoundRobin {
    /// The path whose turn it is.
    current: Option<PathId>,
    /// Bytes that each path may still send in its turn.
    credit: BTreeMap<PathId, i64>,
}

impl SurplusRoundRobin {
    /// Creates a scheduler that starts with the first path and no credit.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The ready path whose turn is nearest: those that are ready are far slower than others, or
    /// packets have been larger than their turns.
    fn smallest_debt(&mut self, demand: &Demand, paths: &[PathView], now: Instant) -> Choice {
        let credit = |path: &PathView| self.credit.get(&path.id).copied().unwrap_or_default();
        let ready = paths.iter().enumerate().filter(|(_, path)| path.is_ready(now));
        let Some((path, view)) = ready.max_by_key(|(_, path)| credit(path)) else {
            return wait(paths, now);
        };
        *self.credit.entry(view.id).or_default() -= i64::from(demand.len);
        Choice::Send { path, packets: 1 }
    }

    /// The path after the current one gets its turn.
    fn advance(&mut self, demand: &Demand, paths: &[PathView], rates: Rates) -> usize {
        let after = self
            .current
            .map_or(0, |current| paths.partition_point(|path| path.id <= current));
        let next = after % paths.len();
        let path = &paths[next];
        let quantum = quantum(path, demand, rates);
        let credit = self.credit.entry(path.id).or_default();
        *credit = (*credit + quantum).min(quantum * MAX_SAVED_TURNS);
        self.current = Some(path.id);
        next
    }
}

/// Units in which turns are measured.
#[derive(Clone, Copy)]
struct Rates {
    /// Rate of a path whose rate is unknown.
    unknown: Rate,
    /// Rate of a path whose turn is one packet.
    unit: Rate,
}

impl Rates {
    fn of(paths: &[PathView]) -> Self {
        let unknown = lowest_rate(paths);
        let highest = paths.iter().map(|path| path.soon.rate()).max();
        let least = highest.unwrap_or_default().as_bps() / LONGEST_TURN;
        Self {
            unknown,
            unit: unknown.max(Rate::from_bps(least)),
        }
    }
}

/// Bytes of a turn: a packet of the largest size for the slowest path, so that every turn sends
/// something, unless it is far slower than others.
fn quantum(path: &PathView, demand: &Demand, rates: Rates) -> i64 {
    let packet = u64::from(u32::from(path.mtu).max(demand.len));
    let rate = path.soon.rate().max(rates.unknown);
    let bytes = u128::from(packet) * u128::from(rate.as_bps()) / u128::from(rates.unit.as_bps());
    i64::try_from(bytes).unwrap_or(i64::MAX).max(1)
}

impl Scheduler for SurplusRoundRobin {
    fn name(&self) -> &'static str {
        "surplus-round-robin"
    }

    fn choose(&mut self, demand: &Demand, paths: &[PathView], now: Instant) -> Choice {
        if !paths.iter().any(|path| path.is_ready(now)) {
            return wait(paths, now);
        }
        let rates = Rates::of(paths);
        if self.credit.len() > paths.len() {
            self.credit
                .retain(|id, _| paths.iter().any(|path| path.id == *id));
        }
        let mut turn = self
            .current
            .and_then(|current| paths.iter().position(|path| path.id == current));
        for _ in 0..3 * paths.len() {
            if let Some(path) = turn
                && paths[path].is_ready(now)
                && let Some(credit) = self.credit.get_mut(&paths[path].id)
                && *credit > 0
            {
                *credit -= i64::from(demand.len);
                return Choice::Send { path, packets: 1 };
            }
            turn = Some(self.advance(demand, paths, rates));
        }
        self.smallest_debt(demand, paths, now)
    }
}

/// Maximum number of missed turns that a path makes up for: pacing delays it by a few packets, and
/// a failed path must not save turns. Source: our choice; fewer lose turns of a path that pacing
/// delays, more send a burst of as many packets.
const MAX_SAVED_TURNS: i64 = 4;

/// Packets that the fastest path may send in a turn: a path with a long queue counts as one of a
/// few hundred bit/s, and a packet for it would take seconds of the turns of others. Source: the
/// ratio of Piconet's links of 128 and 16 kbit/s (section IV).
const LONGEST_TURN: u64 = 8;

#[cfg(test)]
mod tests {
    use super::super::tests::{demand, open, selected_path, sent, shares};
    use super::*;
    use hawser_units::InnerBytes;

    #[test]
    fn shares_follow_the_rates_in_bytes() {
        let paths = [open(1, 10, 5), open(2, 50, 5), open(3, 20, 50)];
        // Sizes that beat with the order of the paths must not matter.
        let got = shares(
            &mut SurplusRoundRobin::new(),
            &paths,
            |n| if n % 2 == 0 { 1400 } else { 60 },
            40_000,
        );
        for (share, expected) in got.iter().zip([0.125, 0.625, 0.25]) {
            assert!((share - expected).abs() < 0.002, "{share} {expected}");
        }
    }

    #[test]
    fn a_path_that_is_far_slower_makes_no_turn_of_others_longer() {
        let paths = [open(1, 1, 5), open(2, 500, 5), open(3, 500, 5)];
        let mut scheduler = SurplusRoundRobin::new();
        let (mut longest, mut sent) = ([0; 3], [0; 3]);
        let (mut last, mut run) = (usize::MAX, 0);
        for _ in 0..20_020 {
            let path = selected_path(scheduler.choose(&demand(1500, 1), &paths, Instant::ZERO));
            run = if path == last { run + 1 } else { 1 };
            last = path;
            longest[path] = longest[path].max(run);
            sent[path] += 1;
        }
        assert!(
            longest[0] == 1 && longest[1..].iter().all(|run| *run <= 9),
            "{longest:?}"
        );
        assert!((15..=25).contains(&sent[0]), "{sent:?}");
    }

    #[test]
    fn a_path_that_is_gone_is_forgotten() {
        let paths = [open(1, 10, 5), open(2, 10, 5)];
        let mut scheduler = SurplusRoundRobin::new();
        for _ in 0..4 {
            scheduler.choose(&demand(1400, 1), &paths, Instant::ZERO);
        }
        scheduler.choose(&demand(1400, 1), &paths[..1], Instant::ZERO);
        assert!(scheduler.credit.keys().eq([&PathId(1)]));
    }

    #[test]
    fn the_surplus_is_taken_from_the_next_turn() {
        let paths = [open(1, 10, 5), open(2, 10, 5)];
        let mut scheduler = SurplusRoundRobin::new();
        let ids = [(); 7].map(|()| {
            paths[selected_path(scheduler.choose(&demand(1000, 1), &paths, Instant::ZERO))]
                .id
                .0
        });
        // A turn of 1400 bytes: two packets take 600 too much; then 800 are left for one.
        assert_eq!(ids, [1, 1, 2, 2, 1, 2, 1]);
    }

    #[test]
    fn a_path_that_waits_briefly_keeps_its_share() {
        let mut paths = [open(1, 10, 5), open(2, 10, 5)];
        let mut scheduler = SurplusRoundRobin::new();
        let mut sent = [0u32; 2];
        for n in 0..10_000 {
            paths[1].window = InnerBytes(if n % 4 < 2 { 0 } else { u64::MAX });
            sent[selected_path(scheduler.choose(&demand(1400, 1), &paths, Instant::ZERO))] += 1;
        }
        assert!(sent[0].abs_diff(sent[1]) < 20, "{sent:?}");
    }

    #[test]
    fn a_path_that_waits_long_makes_up_for_four_turns() {
        let mut paths = [open(1, 10, 5), open(2, 10, 5)];
        let mut scheduler = SurplusRoundRobin::new();
        paths[1].window = InnerBytes(0);
        assert_eq!(sent(&mut scheduler, &paths, 1400, 100), [100, 0]);
        paths[1].window = InnerBytes(u64::MAX);
        let [first, second] = sent(&mut scheduler, &paths, 1400, 40);
        assert_eq!(second - first, 4);
    }
}
