//! Delivery rate of a path: the maximum of the last few round trips.
//!
//! A shaper is a token bucket: after a pause it passes a burst at the rate of the link before it,
//! and then its own rate. Arrivals while a queue persists show this rate. The excess of deliveries
//! before that queue shows the depth of the bucket. While deliveries are ahead by less than this
//! depth, a higher rate is not used.
//!
//! Source: RFC 2697 section 3 for the bucket (its committed rate and burst size).

use hawser_units::{Duration, Instant, Rate};

use super::{Sample, TRAIN};

/// Rate buckets: the estimate is the largest of the last eight. Source: the longest cycle of probes
/// in `short_queue.rs` has eight rounds.
const BUCKETS: usize = 8;
/// The shortest bucket: on a short path a round is too short to measure a rate in. Half and twice
/// of it change goodput by at most 0.1 %, and the share beside CUBIC by 0 and -1 %
/// (docs/notebook/path-model.md, "Sensitivity").
const BUCKET: Duration = Duration::from_millis(40);
/// Decay of the highest rate per round. With 0.995 and 0.98 goodput does not change, and the share
/// beside CUBIC changes by -5 and -1 % (docs/notebook/path-model.md, "Sensitivity").
const PEAK_DECAY: f64 = 0.99;

/// Maximum depth of a bucket, as time at its rate: a longer burst is another rate. Shapers are
/// configured with 5 to 100 ms. The sweep scenarios/sweeps/token-buckets.toml was run with it
/// (docs/notebook/path-model.md, "Token buckets"); other values were not tried.
const DEEPEST: Duration = Duration::from_millis(128);
/// Ratio of two rates up to which they are the same. Without this condition recorded walks have
/// 0.93 of the goodput (docs/notebook/path-model.md, "Token buckets"); other values were not tried.
const SAME: f64 = 1.1;
/// Decay of a bucket's depth at a shallower burst: seven eighths remain. Source: our choice; five
/// shallower bursts halve the depth, so one short burst does not end the use of a deep bucket, and
/// a bucket that became shallower is overrun a few times only.
const DEPTH_DECAY: u64 = 8;

/// Measures by how much deliveries are ahead of the sustained rate of a link.
///
/// It fails if the rate of a link changes and returns to the same value within [`DEEPEST`]: a rate
/// in between counts later than it should, once the deliveries exceed the assumed depth.
#[derive(Debug, Default)]
struct TokenBucket {
    /// Rate of arrivals while a queue stood; zero before the first one.
    sustained: Rate,
    /// Depth of the bucket, as far as it is known. Units: bytes.
    depth: u64,
    /// Used part of the bucket; its minimum since a queue stood, and its maximum beyond that.
    used: u64,
    least: u64,
    burst: u64,
    at: Instant,
}

impl TokenBucket {
    /// Adds bytes that arrived since the last call.
    fn on_delivered(&mut self, bytes: u64, now: Instant) {
        let refilled = self.sustained.bytes_in(now.since(self.at)).0;
        self.at = now;
        self.least = self.least.min(self.used.saturating_sub(refilled));
        self.used = self.used.saturating_add(bytes).saturating_sub(refilled);
        self.burst = self.burst.max(self.used - self.least);
    }

    /// Returns whether a rate may result from the bucket's contents.
    fn explains(&self, rate: Rate) -> bool {
        rate > self.sustained && self.used < self.depth
    }

    /// Records the arrival rate while a queue persists. `is_less`: the rate is below the expected
    /// one. The rate of a shaper is the same each time.
    fn on_queue(&mut self, rate: Rate, is_less: bool) {
        let is_same = rate < self.sustained.scale(SAME) && self.sustained < rate.scale(SAME);
        if !is_same || self.burst > rate.bytes_in(DEEPEST).0 {
            self.depth = 0;
        } else if is_less {
            self.depth = self.burst.max(self.depth - self.depth / DEPTH_DECAY);
        }
        self.sustained = rate;
        (self.used, self.least, self.burst) = (self.depth, self.depth, 0);
    }
}

/// A maximum over eight round trips.
#[derive(Debug)]
pub(super) struct Rates {
    buckets: [Rate; BUCKETS],
    tokens: TokenBucket,
    since: Instant,
    /// Highest recent rate: the capacity of the link, also while other senders use most of it.
    peak: Rate,
}

impl Rates {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            buckets: [Rate::ZERO; BUCKETS],
            tokens: TokenBucket::default(),
            since: now,
            peak: Rate::ZERO,
        }
    }

    /// The delivery rate; zero when nothing is known.
    pub(super) fn measured(&self) -> Rate {
        self.buckets.iter().copied().max().unwrap_or_default()
    }

    /// Returns the highest recent rate, as of the end of the last round.
    pub(super) fn peak(&self) -> Rate {
        self.peak
    }

    /// Processes the rate in a report.
    pub(super) fn on_report(&mut self, sample: &Sample, round_trip: Duration, now: Instant) {
        self.tokens.on_delivered(sample.reported, now);
        let Some(rate) = sample.rate else { return };
        let is_saved_up = self.tokens.explains(rate);
        let rate = if is_saved_up { self.tokens.sustained } else { rate };
        if now.since(self.since) >= BUCKET.max(round_trip) && !sample.app_limited {
            self.buckets.rotate_right(1);
            self.buckets[0] = Rate::ZERO;
            self.since = now;
        }
        let train = sample.delivered >= TRAIN && rate > self.measured();
        if !sample.app_limited || train {
            self.buckets[0] = self.buckets[0].max(rate);
        }
    }

    /// Processes the end of a round.
    pub(super) fn on_round(&mut self) {
        self.peak = self.peak.scale(PEAK_DECAY).max(self.measured());
    }

    /// Processes the rate of arrivals in a part of a round trip in which the link was busy.
    pub(super) fn on_busy(&mut self, rate: Rate) {
        self.buckets[0] = self.buckets[0].max(rate);
    }

    /// Processes a round in which there was always a queue, with the rate of arrival.
    pub(super) fn on_queue(&mut self, rate: Rate) {
        if rate != Rate::ZERO {
            self.tokens.on_queue(rate, rate.scale(SAME) < self.measured());
        }
    }

    /// Reduces the measured rates to this share.
    pub(super) fn cut(&mut self, share: f64) {
        for rate in &mut self.buckets {
            *rate = rate.scale(share);
        }
    }

    /// Discards all measurements and begins with this rate.
    pub(super) fn restart(&mut self, rate: Rate) {
        self.buckets = [Rate::ZERO; BUCKETS];
        self.buckets[0] = rate;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUSTAINED: Rate = Rate::from_mbps(10);
    const STEP: Duration = Duration::from_millis(5);

    /// A link that is taken for one of [`SUSTAINED`], at first and after a burst of 20 ms at five
    /// times as much, at the end of which a queue stood at `rate`.
    fn after_a_burst(rate: Rate) -> (TokenBucket, Instant) {
        let mut now = Instant::from_nanos(1_000_000_000);
        let mut tokens = TokenBucket::default();
        tokens.on_delivered(0, now);
        tokens.on_queue(SUSTAINED, false);
        arrive(&mut tokens, &mut now, 5.0, 4);
        tokens.on_queue(rate, true);
        (tokens, now)
    }

    fn arrive(tokens: &mut TokenBucket, now: &mut Instant, times: f64, steps: u32) {
        for _ in 0..steps {
            *now += STEP;
            tokens.on_delivered(SUSTAINED.scale(times).bytes_in(STEP).0, *now);
        }
    }

    #[test]
    fn a_burst_that_passed_before_at_once_says_nothing_of_the_rate_and_a_longer_one_does() {
        let (mut tokens, mut now) = after_a_burst(SUSTAINED);
        let fast = SUSTAINED.scale(5.0);
        assert!((99_000..101_000).contains(&tokens.depth), "{}", tokens.depth);
        arrive(&mut tokens, &mut now, 1.0, 1);
        assert!(!tokens.explains(SUSTAINED), "it is what is reckoned with");
        arrive(&mut tokens, &mut now, 5.0, 1);
        assert!(!tokens.explains(fast), "nothing was saved up meanwhile");
        now += Duration::from_millis(200);
        arrive(&mut tokens, &mut now, 5.0, 4);
        assert!(tokens.explains(fast), "after a pause");
        arrive(&mut tokens, &mut now, 5.0, 2);
        assert!(!tokens.explains(fast), "longer than before");
    }

    #[test]
    fn a_link_whose_rate_is_another_one_each_time_is_no_shaper() {
        let (tokens, _) = after_a_burst(SUSTAINED.scale(1.5));
        assert_eq!(tokens.depth, 0);
    }

    #[test]
    fn what_passes_for_longer_than_any_bucket_holds_is_a_rate() {
        let (mut tokens, mut now) = after_a_burst(SUSTAINED);
        arrive(&mut tokens, &mut now, 5.0, 40);
        tokens.on_queue(SUSTAINED, true);
        assert_eq!(tokens.depth, 0);
    }
}
