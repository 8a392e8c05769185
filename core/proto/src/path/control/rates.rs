//! The delivery rate of a path: the largest of the last few round trips.
//!
//! A shaper is a token bucket: after a pause it lets a burst pass at the rate of the line before
//! it, and then what it is set to. What arrives while a queue stands shows the latter, and how far
//! deliveries got ahead of it before that queue shows the depth of the bucket. As long as they are
//! not further ahead than that, more says nothing of the rate.
//!
//! Source: RFC 2697 section 3 for the bucket (its committed rate and burst size).

use hawser_units::{Duration, Instant, Rate};

use super::{Sample, TRAIN};

/// Rate buckets: the estimate is the largest of the last eight.
const BUCKETS: usize = 8;
/// The shortest bucket: on a short path a round is too short to measure a rate in.
const BUCKET: Duration = Duration::from_millis(40);
/// What a round leaves of the highest rate.
const PEAK_DECAY: f64 = 0.99;

/// No bucket is deeper than what passes in this time: what is more is another rate. Shapers are
/// given 5 to 100 ms.
const DEEPEST: Duration = Duration::from_millis(128);
/// Two rates that differ by less are the same one.
const SAME: f64 = 1.1;
/// What a shallower burst leaves of a bucket's depth: seven eighths.
const DEPTH_DECAY: u64 = 8;

/// How far deliveries are ahead of the rate that a link keeps up.
///
/// It fails where a rate that goes up and down comes back to the same one within [`DEEPEST`]: what
/// it carries in between is then believed later, once it is more than before.
#[derive(Debug, Default)]
struct TokenBucket {
    /// What arrived while a queue stood; zero before the first one.
    sustained: Rate,
    /// Its depth, as far as is known. Units: bytes.
    depth: u64,
    /// How much of it is used; the least since a queue stood, and the most beyond that.
    used: u64,
    least: u64,
    burst: u64,
    at: Instant,
}

impl TokenBucket {
    /// So many bytes arrived since the last call.
    fn on_delivered(&mut self, bytes: u64, now: Instant) {
        let refilled = self.sustained.bytes_in(now.since(self.at)).0;
        self.at = now;
        self.least = self.least.min(self.used.saturating_sub(refilled));
        self.used = self.used.saturating_add(bytes).saturating_sub(refilled);
        self.burst = self.burst.max(self.used - self.least);
    }

    /// Whether a rate may come of what was saved up.
    fn explains(&self, rate: Rate) -> bool {
        rate > self.sustained && self.used < self.depth
    }

    /// A queue stands, while so much arrives; `is_less`: than was reckoned with. A shaper's rate is
    /// the same each time.
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
    /// The highest rate of late: what the link can do, also while others take most of it.
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

    /// The highest rate of late, as of the last round's end.
    pub(super) fn peak(&self) -> Rate {
        self.peak
    }

    /// Takes in what a report says of the rate.
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

    /// A round is over.
    pub(super) fn on_round(&mut self) {
        self.peak = self.peak.scale(PEAK_DECAY).max(self.measured());
    }

    /// A queue stood for a round, in which so much arrived.
    pub(super) fn on_queue(&mut self, rate: Rate) {
        if rate != Rate::ZERO {
            self.tokens.on_queue(rate, rate.scale(SAME) < self.measured());
        }
    }

    /// Leaves only this share of what was measured.
    pub(super) fn cut(&mut self, share: f64) {
        for rate in &mut self.buckets {
            *rate = rate.scale(share);
        }
    }

    /// Forgets everything but this.
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
