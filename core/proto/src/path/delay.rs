//! Delays of a path in both directions, from its receiver's reports.
//!
//! The two ends' clocks differ by an unknown offset. One-way delays in this module contain this
//! offset, which is the same for all paths of a session and cancels in sums of both directions. All
//! of them wrap at 2^32 us.
//!
//! The base delay is the delay of a path without a queue. On a path with jitter the minimum over
//! single packets has no meaning. Instead, the minimum is taken over means of as many packets as
//! limit the effect of jitter to one millisecond. Where packets keep their order, the packets of
//! one report deviate together. There the swing is measured between reports, and a mean covers as
//! many reports.

use hawser_units::{Duration, Instant};

/// Time after which a minimum delay is replaced: the minimum is that of this window and the one
/// before. Source: draft-ietf-ccwg-bbr, `BBR.MinRTTFilterLen`, which is 10 s, as both windows
/// together.
pub(super) const WINDOW: Duration = Duration::from_secs(5);
/// Standing queue that is allowed, in addition to an eighth of the round trip and the jitter.
/// Source: docs/notebook/traces.md, where 30 ms gave recorded drives 3 % of goodput more, at the
/// expense of all others who use the path.
pub(super) const QUEUE_ALLOWANCE: Duration = Duration::from_millis(4);
/// Maximum effect of jitter on the mean of a batch, in microseconds. No suite of
/// docs/notebook/path-model.md, "Sensitivity", changes by more than 3 % with half or twice of it.
const PRECISION_US: u64 = 1_000;
/// Minimum deviation of an irregular path. Half and twice of it change goodput by at most 1.3 %,
/// and the share beside CUBIC by -4 and 0 % (docs/notebook/path-model.md, "Sensitivity"). Units:
/// microseconds.
const IRREGULAR_US: u64 = 4_000;
/// Maximum deviation that counts, in microseconds. No suite of docs/notebook/path-model.md,
/// "Sensitivity", changes by more than 3 % with half or twice of it.
const MAX_SPREAD_US: u32 = 200_000;
/// Maximum swing that counts, in microseconds: the queue of other senders that come and go swings
/// as well. No suite of docs/notebook/path-model.md, "Sensitivity", changes by more than 3 % with
/// half or twice of it.
const MAX_SWING_US: u32 = 50_000;
/// Mean deviations from the lowest to the highest point of a swing. Source: values that are spread
/// evenly over an interval deviate from their mean by a quarter of the interval on average.
const SWING_DEVIATIONS: u64 = 4;
/// Decay of the swing in a quiet round: an eighth. Half and twice of it change goodput by at most
/// 0.3 % (docs/notebook/path-model.md, "Sensitivity").
const SWING_DECAY: u32 = 8;
/// Decay per isolated packet of what earlier ones showed: a sixteenth. No suite of
/// docs/notebook/path-model.md, "Sensitivity", changes by more than 3 % with half or twice of it.
const LONE_DECAY: i32 = 16;
/// Minimum number of isolated packets that show what is typical. No suite of
/// docs/notebook/path-model.md, "Sensitivity", changes by more than 3 % with half or twice of it.
const LONE_FEW: i32 = 4;
/// Deviation of isolated packets, in microseconds, below which the machines themselves cause it. No
/// suite of docs/notebook/path-model.md, "Sensitivity", changes by more than 3 % with half or twice
/// of it.
const LONE_JITTER_US: u32 = 1_000;
/// Maximum duration of a batch, after which its deviation is added to it instead. No suite of
/// docs/notebook/path-model.md, "Sensitivity", changes by more than 3 % with half or twice of it.
const LONGEST_BATCH: Duration = Duration::from_secs(1);

/// Measurements of one report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Mean one-way delay to the receiver, us.
    pub forward_us: i32,
    /// Delay of the report in the reverse direction, us.
    pub reverse_us: i32,
    /// Mean deviation of single packets, us.
    pub spread_us: u32,
    /// Number of packets of which the means were computed.
    pub packets: u32,
    /// Their mean size, UDP payload bytes.
    pub size: u32,
    /// Marks small packets with almost nothing else in flight, which met no queue of the path's own
    /// traffic.
    pub is_lone: bool,
}

impl Measured {
    /// Returns the sum of both one-way delays, which is never negative for any report of the peer.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        micros(self.forward_us.wrapping_add(self.reverse_us))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    first: i32,
    /// Sum of the differences from `first`, weighted by packets.
    sum: i64,
    spread: u64,
    packets: u64,
    reports: u64,
}

impl Batch {
    fn mean(&self) -> i32 {
        self.first
            .wrapping_add((self.sum / self.packets.cast_signed()) as i32)
    }
}

/// The minimum of the current window and the previous one. Values wrap.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Minimum {
    /// Minimum of this window and of the preceding one; `None` before the first.
    least: Option<(i32, i32)>,
    since: Option<Instant>,
}

impl Minimum {
    pub(super) fn add(&mut self, value: i32, now: Instant) {
        let is_over = self.since.is_none_or(|since| now.since(since) > WINDOW);
        if is_over || self.least.is_none() {
            self.since = Some(now);
        }
        self.least = match self.least {
            Some((newest, _)) if is_over => Some((value, newest)),
            Some((newest, before)) if value.wrapping_sub(newest) < 0 => Some((value, before)),
            Some(both) => Some(both),
            None => Some((value, value)),
        };
    }

    /// Extends the current window, so that the minimum does not expire.
    pub(super) fn keep(&mut self, now: Instant) {
        self.since = self.since.map(|_| now);
    }

    pub(super) fn get(&self) -> Option<i32> {
        let (newest, before) = self.least?;
        Some(if newest.wrapping_sub(before) < 0 {
            newest
        } else {
            before
        })
    }

    /// Discards the previous values and sets this one.
    pub(super) fn set(&mut self, value: i32, now: Instant) {
        self.forget();
        self.add(value, now);
    }

    pub(super) fn forget(&mut self) {
        self.least = None;
    }

    fn map(&mut self, change: impl Fn(i32) -> i32) {
        self.least = self
            .least
            .map(|(newest, before)| (change(newest), change(before)));
    }
}

/// Range of the delays since a round began, us.
#[derive(Clone, Copy, Debug, Default)]
struct Range {
    low: i32,
    high: i32,
    rise: u32,
    fall: u32,
}

impl Range {
    fn from(forward: i32) -> Self {
        Self {
            low: forward,
            high: forward,
            ..Self::default()
        }
    }

    fn add(&mut self, forward: i32) {
        let (up, down) = (forward.wrapping_sub(self.low), self.high.wrapping_sub(forward));
        self.rise = self.rise.max(up.max(0).cast_unsigned());
        self.fall = self.fall.max(down.max(0).cast_unsigned());
        if up < 0 {
            self.low = forward;
        }
        if down < 0 {
            self.high = forward;
        }
    }

    /// Returns the smaller of rise and fall.
    fn swing(&self) -> u32 {
        self.rise.min(self.fall)
    }

    /// Reduces the weight of old measurements.
    fn fade(&mut self, forward: i32) {
        self.low = self.low.wrapping_add(forward.wrapping_sub(self.low) / LONE_DECAY);
        self.high = self
            .high
            .wrapping_sub(self.high.wrapping_sub(forward) / LONE_DECAY);
        self.rise -= self.rise / LONE_DECAY.cast_unsigned();
        self.fall -= self.fall / LONE_DECAY.cast_unsigned();
    }
}

/// Delays of packets that meet no queue of the path's own traffic.
#[derive(Clone, Copy, Debug)]
struct Lone {
    range: Range,
    /// Mean, and mean deviation from it, us: of the first few, then smoothed.
    mean: i32,
    deviation: i32,
    packets: i32,
}

impl Lone {
    fn from(forward: i32) -> Self {
        Self {
            range: Range::from(forward),
            mean: forward,
            deviation: 0,
            packets: 0,
        }
    }

    fn add(&mut self, forward: i32) {
        self.range.fade(forward);
        self.range.add(forward);
        self.packets = (self.packets + 1).min(LONE_DECAY);
        let error = forward.wrapping_sub(self.mean);
        self.mean = self.mean.wrapping_add(error / self.packets);
        self.deviation += (error.saturating_abs() - self.deviation) / self.packets;
    }

    /// Returns the deviation of isolated packets; zero while they are too few, or if they only rose
    /// or only fell, which is another route or a queue of others.
    fn deviation_us(&self) -> u32 {
        if self.packets < LONE_FEW {
            return 0;
        }
        let deviation = self.deviation.cast_unsigned();
        deviation.min(self.range.swing()).min(MAX_SWING_US)
    }
}

/// The delays of one path.
///
/// Cost: O(1) a report.
#[derive(Debug)]
pub struct Delay {
    /// Towards us, smoothed over eight reports.
    reverse: i32,
    /// Mean difference between successive reports, us.
    jitter: u32,
    /// Deviation of single packets, us; rises at once.
    spread: u32,
    /// Away from us, by the newest report.
    last: Option<i32>,
    range: Range,
    /// Delays of isolated packets; `None` before the first.
    lone: Option<Lone>,
    /// Range by which reports both rise and fall within a round, us; rises at once. A queue of the
    /// path's own traffic does only one of the two, as the packets of a round are paced alike:
    /// where packets keep their order and a late one delays those behind it, it is the path that
    /// does both.
    swing: u32,
    /// Swing that is included in the minimum delay, us.
    widest: u32,
    batch: Batch,
    batch_since: Instant,
    /// The least of means.
    least: Minimum,
    /// Jitter that is included in the minimum delay, us; zero on a path with few measurements.
    reckoned: u64,
    trend: f64,
    newest_at: Instant,
}

impl Delay {
    /// Creates a state without measurements.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            reverse: 0,
            jitter: 0,
            spread: 0,
            last: None,
            range: Range::default(),
            lone: None,
            swing: 0,
            widest: 0,
            batch: Batch::default(),
            batch_since: now,
            least: Minimum::default(),
            reckoned: 0,
            trend: 0.0,
            newest_at: now,
        }
    }

    /// Processes a report.
    pub fn on_report(&mut self, measured: &Measured, now: Instant) {
        let forward = measured.forward_us;
        if let Some(last) = self.last {
            self.reverse = self
                .reverse
                .wrapping_add(measured.reverse_us.wrapping_sub(self.reverse) / 8);
            let change = forward.wrapping_sub(last);
            self.jitter =
                (u64::from(self.jitter) * 15 + u64::from(change.unsigned_abs())).div_ceil(16) as u32;
            let time = now.since(self.newest_at).as_secs_f64();
            if time > 0.0 {
                self.trend += (f64::from(change) / 1e6 / time - self.trend) * time.min(0.5);
            }
        } else {
            self.reverse = measured.reverse_us;
            self.range = Range::from(forward);
        }
        self.range.add(forward);
        if measured.is_lone && self.keeps_order() {
            self.on_lone(forward);
        }
        self.last = Some(forward);
        self.spread = measured
            .spread_us
            .min(MAX_SPREAD_US)
            .max(self.spread - self.spread / 16);
        self.newest_at = now;
        self.add_to_batch(measured, now);
    }

    fn add_to_batch(&mut self, measured: &Measured, now: Instant) {
        let packets = u64::from(measured.packets.max(1));
        if self.batch.packets == 0 {
            self.batch.first = measured.forward_us;
            self.batch_since = now;
        }
        let batch = &mut self.batch;
        batch.sum +=
            i64::from(measured.forward_us.wrapping_sub(batch.first)) * packets.min(1 << 16).cast_signed();
        batch.spread += u64::from(measured.spread_us.min(MAX_SPREAD_US)) * packets;
        batch.packets += packets.min(1 << 16);
        batch.reports += 1;
        let (single, means) = (
            batch.spread / batch.packets,
            u64::from(self.swing) / SWING_DEVIATIONS,
        );
        let (packets, reports) = (batch.packets, batch.reports);
        let is_enough = is_precise(single, packets) && is_precise(means, reports);
        let error = uncertainty(single, packets).max(uncertainty(means, reports));
        let mean = batch.mean().wrapping_add(error as i32);
        if single > IRREGULAR_US.max(2 * self.reckoned) {
            // The previous minimum was due to chance.
            self.reckoned = single;
            self.least.forget();
        }
        if is_enough || now.since(self.batch_since) >= LONGEST_BATCH {
            self.least.add(mean, now);
            self.batch = Batch::default();
        } else if self.least.get().is_none() {
            self.least.add(mean, now);
        }
    }

    /// Ends a round of the path. `is_even`: the packets of the round were paced evenly, so a queue
    /// of the path's own only grew or only shrank, apart from `own`, the time of a few packets.
    pub fn on_round(&mut self, is_even: bool, own: Duration) {
        let amplitude = if is_even && self.keeps_order() {
            self.range.swing()
        } else {
            0
        };
        let own = u32::try_from(own.as_micros()).unwrap_or(u32::MAX);
        self.swing -= self.swing / SWING_DECAY;
        self.on_swing(amplitude.saturating_sub(own));
        self.range = Range::from(self.last.unwrap_or_default());
    }

    /// Returns whether no packets were reordered recently: where they are, each deviates by itself,
    /// and so do means of few.
    fn keeps_order(&self) -> bool {
        self.spread == 0
    }

    fn on_swing(&mut self, amplitude: u32) {
        self.swing = self.swing.max(amplitude.min(MAX_SWING_US));
        if u64::from(self.swing) > 2 * IRREGULAR_US.max(u64::from(self.widest)) {
            // The least so far was a lucky report. It is not forgotten: what swings now may be the
            // queue of others, who come or go.
            let more = (self.swing - self.widest).cast_signed();
            self.least.map(|least| least.wrapping_add(more));
            self.widest = self.swing;
        }
    }

    fn on_lone(&mut self, forward: i32) {
        let lone = self.lone.get_or_insert(Lone::from(forward));
        lone.add(forward);
        let (amplitude, mean) = (lone.range.swing(), lone.mean);
        let deviates = lone.deviation_us() > LONE_JITTER_US;
        self.on_swing(amplitude);
        if deviates {
            // Smaller values were due to chance.
            self.least
                .map(|own| if own.wrapping_sub(mean) < 0 { mean } else { own });
        }
    }

    /// Keeps the minimum delay from expiring.
    pub fn retain_min(&mut self, now: Instant) {
        self.least.keep(now);
    }

    /// The one-way delay without a queue, us; `None` before the first report.
    #[must_use]
    pub fn base_us(&self) -> Option<i32> {
        self.least.get()
    }

    /// Returns by how much a one-way delay exceeds the base delay.
    #[must_use]
    pub fn queue(&self, forward_us: i32) -> Duration {
        self.base_us()
            .map_or(Duration::ZERO, |least| micros(forward_us.wrapping_sub(least)))
    }

    /// Returns the round trip without a queue in the forward direction; `None` before the first
    /// report.
    #[must_use]
    pub fn base_round_trip(&self) -> Option<Duration> {
        Some(micros(self.base_us()?.wrapping_add(self.reverse)))
    }

    /// Returns the queueing delay of the newest report.
    #[must_use]
    pub fn last_queue(&self) -> Duration {
        self.last.map_or(Duration::ZERO, |last| self.queue(last))
    }

    /// Returns the mean difference between successive reports.
    #[must_use]
    pub fn jitter(&self) -> Duration {
        Duration::from_micros(u64::from(self.jitter))
    }

    /// Returns the deviation of packets that meet no queue of the path's own traffic; zero where
    /// few have been seen, or where packets are reordered.
    #[must_use]
    pub fn lone_deviation(&self) -> Duration {
        let deviation = self.lone.as_ref().map_or(0, Lone::deviation_us);
        Duration::from_micros(u64::from(deviation))
    }

    /// Returns the deviation of single packets on a path that reorders; zero on a path that keeps
    /// the order.
    #[must_use]
    pub fn spread(&self) -> Duration {
        Duration::from_micros(u64::from(self.spread))
    }

    /// Returns whether packets deviate by much, singly or together, so that a single one is
    /// meaningless.
    #[must_use]
    pub fn is_irregular(&self) -> bool {
        self.reckoned > 0 || self.widest > 0
    }

    /// Returns the slope of the one-way delay, in seconds per second.
    #[must_use]
    pub fn trend(&self) -> f64 {
        self.trend
    }
}

/// Returns whether the standard error of a mean over `count` packets is at most [`PRECISION_US`].
fn is_precise(deviation_us: u64, count: u64) -> bool {
    let ratio = deviation_us / PRECISION_US;
    count >= ratio.saturating_mul(ratio)
}

/// Returns the uncertainty of a mean over `count` packets, us.
fn uncertainty(deviation_us: u64, count: u64) -> f64 {
    (2 * deviation_us) as f64 / (count as f64).sqrt()
}

fn micros(us: i32) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: Instant = Instant::from_nanos(1_000_000_000);

    fn measured(forward_us: i32, spread_us: u32) -> Measured {
        Measured {
            forward_us,
            reverse_us: 20_000,
            spread_us,
            packets: 20,
            size: 1_472,
            is_lone: false,
        }
    }

    #[test]
    fn a_clean_path_knows_its_least_delay_at_once_and_forgets_it_in_time() {
        let mut delay = Delay::new(BEGIN);
        let mut now = BEGIN;
        for forward in [30_000, 25_000, 40_000] {
            delay.on_report(&measured(forward, 100), now);
            now += Duration::from_millis(5);
        }
        assert!((25_000..25_100).contains(&delay.base_us().expect("reported")));
        assert!(delay.queue(40_000) > Duration::from_millis(14));
        for _ in 0..2_200 {
            now += Duration::from_millis(5);
            delay.on_report(&measured(40_000, 100), now);
        }
        assert!(delay.base_us() >= Some(40_000));
    }

    #[test]
    fn jitter_does_not_lower_the_least_delay() {
        let mut delay = Delay::new(BEGIN);
        let mut now = BEGIN;
        for n in 0..1_000 {
            now += Duration::from_millis(5);
            // Means of 20 packets with a deviation of 16 ms, which differ by some 4 ms.
            let forward = 40_000 + [-9_000, 4_000, 0, 6_000, -1_000][n % 5];
            delay.on_report(&measured(forward, 16_000), now);
        }
        let least = delay.base_us().expect("reported");
        assert!((38_000..43_000).contains(&least), "{least}");
        assert!(delay.base_round_trip().expect("reported") > Duration::from_millis(58));
    }

    #[test]
    fn jitter_that_turns_out_larger_disproves_the_least_delay() {
        let mut delay = Delay::new(BEGIN);
        let mut now = BEGIN;
        // A few probes by chance alike, and then what the path is like.
        let few = Measured {
            packets: 1,
            ..measured(10_000, 5_000)
        };
        delay.on_report(&few, now);
        for n in 0..100 {
            now += Duration::from_millis(5);
            let forward = 40_000 + [-9_000, 4_000, 0, 6_000, -1_000][n % 5];
            delay.on_report(&measured(forward, 16_000), now);
        }
        assert!(delay.base_us() > Some(35_000), "{:?}", delay.base_us());
    }

    #[test]
    fn where_jitter_keeps_the_order_the_least_is_no_single_report() {
        let mut delay = Delay::new(BEGIN);
        let mut now = BEGIN;
        // Thirty milliseconds up at once, and down as what was held up comes out; now and then a
        // lucky one.
        for n in 0..2_000 {
            now += Duration::from_millis(5);
            let forward = if n % 97 == 0 {
                2_000
            } else {
                30_000 + 5_000 * (n % 7)
            };
            delay.on_report(&measured(forward, 0), now);
            if n % 14 == 13 {
                delay.on_round(true, Duration::ZERO);
            }
        }
        let least = delay.base_us().expect("reported");
        assert!((30_000..52_000).contains(&least), "{least}");
        assert!(delay.is_irregular());
    }

    #[test]
    fn probes_of_a_quiet_path_tell_its_jitter_before_it_carries_anything() {
        let mut delay = Delay::new(BEGIN);
        let mut now = BEGIN;
        let mut probe = |after_us: i32| {
            now += Duration::from_millis(100);
            let probe = Measured {
                packets: 1,
                is_lone: true,
                ..measured(after_us, 0)
            };
            delay.on_report(&probe, now);
            delay.on_round(false, Duration::ZERO);
            let least = delay.base_us().expect("reported");
            (least, delay.is_irregular(), delay.lone_deviation())
        };
        // One step is another route, not jitter.
        for after_us in [40_000, 40_100, 60_000, 60_100] {
            let (least, is_irregular, deviation) = probe(after_us);
            assert_eq!((least, is_irregular), (40_000, false));
            assert!(deviation < Duration::from_millis(1), "{deviation:?}");
        }
        let mut last = (0, false, Duration::ZERO);
        for after_us in [45_000, 70_000, 42_000, 66_000, 41_000] {
            last = probe(after_us);
        }
        assert!((50_000..75_000).contains(&last.0) && last.1, "{last:?}");
        assert!(last.2 > Duration::from_millis(8), "{last:?}");
        // Forgotten after its end.
        for _ in 0..200 {
            last = probe(41_000);
        }
        assert!((41_000..41_100).contains(&last.0), "{last:?}");
    }

    #[test]
    fn a_queue_that_only_grows_in_one_round_and_shrinks_in_another_is_no_jitter() {
        let mut delay = Delay::new(BEGIN);
        let mut now = BEGIN;
        for round in 0..50 {
            for n in 0..10 {
                now += Duration::from_millis(5);
                let queue = if round % 2 == 0 { n } else { 9 - n };
                delay.on_report(&measured(20_000 + 3_000 * queue, 0), now);
            }
            delay.on_round(true, Duration::ZERO);
        }
        assert!(!delay.is_irregular());
        assert_eq!(delay.base_us(), Some(20_000));
    }

    #[test]
    fn clocks_that_wrap_change_nothing() {
        let mut delay = Delay::new(BEGIN);
        for forward in [i32::MAX - 10, i32::MAX, i32::MIN + 10] {
            delay.on_report(&measured(forward, 0), BEGIN);
        }
        assert_eq!(delay.base_us(), Some(i32::MAX - 10));
        assert_eq!(delay.queue(i32::MIN + 10), Duration::from_micros(21));
    }
}
