//! Detection of paths that share a bottleneck.
//!
//! Paths through one queue observe that it grows and shrinks: their one-way delays change by the
//! same amount at the same time. RFC 8382 compares statistics of delays over half a minute
//! (skewness, variability, crossings of the mean, loss), because its flows have no common clock.
//! Paths of a session have a common clock, that of the receiver. So their delays are compared
//! interval by interval, which needs some seconds.
//!
//! ```text
//!   share of independence = var(c_a - c_b) / (var c_a + var c_b)
//! ```
//!
//! `c` is the change of a path's delay in 131 ms. The value is near 0 if both paths pass one queue,
//! and near 1 if each has its own. With competing CUBIC connections, over queues of 30 to 300 ms,
//! it is 0.00 to 0.09 in the first case and 0.36 to 1.2 in the second. Delays cannot be used
//! instead of their changes: two queues of 300 ms that fill at the same time look like one queue
//! for 20 s. Two equal networks that begin at the same moment look like one for the first seconds,
//! so there is no result before that.
//!
//! Source: RFC 8382 sections 3.1 (intervals) and 3.3 (grouping) for the question. Deviates: the
//! statistic is our own. Units: delays in microseconds, plus the difference of the two ends'
//! clocks, which cancels.

use hawser_units::PathId;

/// Bits of the receiver's time in microseconds that form an interval: 65.5 ms, in which a busy path
/// is reported several times. RFC 8382 section 2.2 has 350 ms.
const INTERVAL_BITS: u32 = 16;
/// Weight of an interval against those before it. Source: docs/notebook/path-model.md, "Two paths
/// over one bottleneck", where some six seconds count.
const WEIGHT: f64 = 1.0 / 96.0;
/// Intervals of both paths before there is a result. Source: six seconds, since two equal networks
/// that begin together look like one for the first seconds (docs/notebook/path-model.md, "Two paths
/// over one bottleneck").
const FEWEST: u32 = 96;
/// Minimum deviation of changes that indicates a queue. No suite of docs/notebook/path-model.md,
/// "Sensitivity", changes by more than 3 % with half or twice of it. Units: microseconds.
const MIN_DEVIATION: f64 = 1_000.0;
/// Thresholds of independence: paths below share a bottleneck, and paths that share one are
/// separated from [`APART`] on. Source: docs/notebook/path-model.md, "Two paths over one
/// bottleneck", with measured values of at most 0.09 on one link and at least 0.36 on two.
const TOGETHER: f64 = 0.15;
const APART: f64 = 0.3;
/// Paths that are compared: those after them count as independent. Source: our choice, a bound on
/// work, 120 pairs; machines have a handful of paths, and two that share a bottleneck beyond the
/// sixteenth only count as independent.
const MAX: usize = 16;

/// The delays of one path in the interval that is under way.
#[derive(Clone, Copy, Debug)]
struct Track {
    id: PathId,
    interval: u16,
    first: i32,
    /// Sum of the differences from `first`.
    sum: i64,
    reports: u32,
    /// The two intervals before, the later first, and their means.
    before: [Option<(u16, i32)>; 2],
    /// The later one, and how much more its mean was than that of the one but one before it.
    change: Option<(u16, i32)>,
}

/// Two paths.
#[derive(Clone, Copy, Debug)]
struct Pair {
    ids: [PathId; 2],
    /// Means of the changes.
    means: [f64; 2],
    variances: [f64; 2],
    /// Variance of the difference.
    variance: f64,
    intervals: u32,
    is_one: bool,
}

/// Compares the delays of all paths of a session.
///
/// Cost: O(1) a report, O(paths) an interval of a path; memory bounded by [`MAX`] paths.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    tracks: Vec<Track>,
    pairs: Vec<Pair>,
}

impl Sharing {
    /// Processes the mean one-way delay in a report, of packets that arrived until some time of the
    /// receiver's clock. Returns whether a pair of paths begins or ceases to share a bottleneck.
    pub(super) fn on_report(&mut self, id: PathId, received_us: u32, delay_us: i32) -> bool {
        let interval = (received_us >> INTERVAL_BITS) as u16;
        let at = match self.tracks.iter().position(|track| track.id == id) {
            Some(at) => at,
            None if self.tracks.len() < MAX => {
                self.tracks.push(Track::new(id, interval, delay_us));
                self.tracks.len() - 1
            }
            None => return false,
        };
        let track = &mut self.tracks[at];
        if track.interval == interval {
            track.add(delay_us);
            return false;
        }
        track.end(interval, delay_us);
        let Some((ended, own)) = track.change else {
            return false;
        };
        let mut has_changed = false;
        for other in 0..self.tracks.len() {
            let (other, change) = (self.tracks[other].id, self.tracks[other].change);
            if let (true, Some((interval, change))) = (other != id, change)
                && interval == ended
            {
                has_changed |= self.pair(id, other).on_interval(id, own, change);
            }
        }
        has_changed
    }

    fn pair(&mut self, a: PathId, b: PathId) -> &mut Pair {
        let ids = [a.min(b), a.max(b)];
        let at = self.pairs.iter().position(|pair| pair.ids == ids);
        let at = at.unwrap_or_else(|| {
            self.pairs.push(Pair::new(ids));
            self.pairs.len() - 1
        });
        &mut self.pairs[at]
    }

    /// Removes a path that was closed, or whose route has changed.
    pub(super) fn forget(&mut self, id: PathId) {
        self.tracks.retain(|track| track.id != id);
        self.pairs.retain(|pair| !pair.ids.contains(&id));
    }

    /// The paths that share a bottleneck with this one.
    pub(super) fn with(&self, id: PathId) -> impl Iterator<Item = PathId> {
        self.pairs
            .iter()
            .filter(move |pair| pair.is_one && pair.ids.contains(&id))
            .map(move |pair| pair.ids[usize::from(pair.ids[0] == id)])
    }
}

impl Track {
    fn new(id: PathId, interval: u16, delay_us: i32) -> Self {
        Self {
            id,
            interval,
            first: delay_us,
            sum: 0,
            reports: 1,
            before: [None; 2],
            change: None,
        }
    }

    /// Begins another interval.
    fn end(&mut self, interval: u16, delay_us: i32) {
        let ended = (self.interval, self.mean());
        let [last, earlier] = self.before;
        let earlier = earlier.filter(|(interval, _)| interval.wrapping_add(2) == ended.0);
        *self = Self {
            before: [Some(ended), last],
            change: earlier.map(|(_, mean)| (ended.0, ended.1.wrapping_sub(mean))),
            ..Self::new(self.id, interval, delay_us)
        };
    }

    fn add(&mut self, delay_us: i32) {
        self.sum = self
            .sum
            .saturating_add(i64::from(delay_us.wrapping_sub(self.first)));
        self.reports = self.reports.saturating_add(1);
    }

    fn mean(&self) -> i32 {
        self.first
            .wrapping_add((self.sum / i64::from(self.reports)) as i32)
    }
}

impl Pair {
    fn new(ids: [PathId; 2]) -> Self {
        Self {
            ids,
            means: [0.0; 2],
            variances: [0.0; 2],
            variance: 0.0,
            intervals: 0,
            is_one: false,
        }
    }

    /// Processes an interval for which both paths have values: the changes of `id` and of the other
    /// one.
    fn on_interval(&mut self, id: PathId, own: i32, other: i32) -> bool {
        let changes = if self.ids[0] == id {
            [own, other]
        } else {
            [other, own]
        };
        self.intervals = self.intervals.saturating_add(1);
        // The mean of all so far, until that is the weight.
        let weight = WEIGHT.max(1.0 / f64::from(self.intervals));
        let mut differences = [0.0; 2];
        for n in 0..2 {
            differences[n] = f64::from(changes[n]) - self.means[n];
            self.means[n] += differences[n] * weight;
            self.variances[n] += (differences[n].powi(2) - self.variances[n]) * weight;
        }
        let apart = differences[0] - differences[1];
        self.variance += (apart.powi(2) - self.variance) * weight;
        let was_one = self.is_one;
        self.is_one = self.intervals >= FEWEST && self.is_one_queue();
        self.is_one != was_one
    }

    fn is_one_queue(&self) -> bool {
        let [a, b] = self.variances;
        let most = if self.is_one { APART } else { TOGETHER };
        a.min(b) > MIN_DEVIATION.powi(2) && self.variance < most * (a + b)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    const IDS: [PathId; 3] = [PathId(0), PathId(1), PathId(2)];

    /// A number of a lottery, 0 to 1.
    fn lot(n: u64) -> f64 {
        let mut z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A queue that fills within `period` seconds and loses three tenths then. Units: microseconds.
    fn sawtooth(at: f64, period: f64, depth: f64) -> f64 {
        depth * (0.7 + 0.3 * (at / period).fract())
    }

    /// Reports of three paths, 10 ms apart, by the queues of each.
    fn run(sharing: &mut Sharing, seconds: Range<u32>, noise: f64, queue: impl Fn(usize, f64) -> f64) -> u32 {
        let mut changes = 0;
        for n in seconds.start * 100..seconds.end * 100 {
            // The clock wraps on the way.
            let at = (u32::MAX - 2_000_000).wrapping_add(n * 10_000);
            for (path, id) in IDS.into_iter().enumerate() {
                let own = noise * lot(u64::from(n) * 3 + path as u64);
                let delay = queue(path, f64::from(n) / 100.0) + own + 20_000.0 * path as f64;
                changes += u32::from(sharing.on_report(id, at, delay as i32 - 1_000_000));
            }
        }
        changes
    }

    fn groups(sharing: &Sharing) -> [Vec<PathId>; 3] {
        IDS.map(|id| sharing.with(id).collect())
    }

    #[test]
    fn paths_through_one_queue_are_found_in_seconds_and_others_are_not_among_them() {
        for noise in [0.0, 3_000.0] {
            let mut sharing = Sharing::default();
            let queue = |path, at| match path {
                0 | 2 => sawtooth(at, 3.7, 60_000.0),
                _ => sawtooth(at + 1.3, 4.9, 60_000.0),
            };
            run(&mut sharing, 0..5, noise, queue);
            assert_eq!(groups(&sharing), [vec![], vec![], vec![]], "too early to say");
            run(&mut sharing, 5..20, noise, queue);
            assert_eq!(groups(&sharing), [vec![IDS[2]], vec![], vec![IDS[0]]], "{noise}");
            assert_eq!(run(&mut sharing, 20..80, noise, queue), 0, "it stays so");
        }
    }

    #[test]
    fn quiet_paths_and_paths_that_shuffle_share_nothing() {
        let mut sharing = Sharing::default();
        run(&mut sharing, 0..60, 500.0, |_, _| 0.0);
        assert_eq!(groups(&sharing), [vec![], vec![], vec![]]);
        run(&mut sharing, 60..120, 60_000.0, |_, _| 0.0);
        assert_eq!(groups(&sharing), [vec![], vec![], vec![]]);
    }

    #[test]
    fn paths_that_part_are_told_apart_and_one_that_is_closed_is_forgotten() {
        let mut sharing = Sharing::default();
        run(&mut sharing, 0..20, 0.0, |_, at| sawtooth(at, 3.7, 60_000.0));
        assert_eq!(sharing.with(IDS[0]).count(), 2);
        sharing.forget(IDS[1]);
        assert_eq!(groups(&sharing), [vec![IDS[2]], vec![], vec![IDS[0]]]);
        run(&mut sharing, 20..50, 0.0, |path, at| {
            sawtooth(at * (1.0 + 0.3 * path as f64), 3.7, 60_000.0)
        });
        assert_eq!(groups(&sharing), [vec![], vec![], vec![]]);
    }

    #[test]
    fn more_paths_than_are_compared_cost_nothing() {
        let mut sharing = Sharing::default();
        for n in 0..4_000_u32 {
            for id in 0..64 {
                sharing.on_report(PathId(id), n * 20_000, (n % 50) as i32 * 1_000);
            }
        }
        assert_eq!(sharing.tracks.len(), MAX);
        assert_eq!(sharing.pairs.len(), MAX * (MAX - 1) / 2);
        assert_eq!(sharing.with(PathId(40)).count(), 0);
    }
}
