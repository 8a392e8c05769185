//! The delivery rate of a path: the largest of the last few round trips.

use hawser_units::{Duration, Instant, Rate};

use super::{Sample, TRAIN};

/// Rate buckets: the estimate is the largest of the last eight.
const BUCKETS: usize = 8;
/// The shortest bucket: on a short path a round is too short to measure a rate in.
const BUCKET: Duration = Duration::from_millis(40);
/// What a round leaves of the highest rate.
const PEAK_DECAY: f64 = 0.99;

/// A maximum over eight round trips.
#[derive(Debug)]
pub(super) struct Rates {
    buckets: [Rate; BUCKETS],
    since: Instant,
    /// The highest rate of late: what the link can do, also while others take most of it.
    peak: Rate,
}

impl Rates {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            buckets: [Rate::ZERO; BUCKETS],
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
        let Some(rate) = sample.rate else { return };
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
