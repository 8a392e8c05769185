//! How long packets take on a path, with and without a queue: what every controller is shown.

use hawser_units::{Bytes, Duration, Instant, Rate};

use super::FULL_PACKET;
use super::delay::{Delay, Measured, QUEUE_ALLOWANCE};
use super::own_time::OwnTime;
use crate::smoothed::Smoothed;

/// How long reports of a busy path wait at the receiver: its interval between reports (`ingress`: 5
/// ms) and 1 ms. The window has room for it.
pub(super) const BUSY_REPORT_DELAY: Duration = Duration::from_millis(6);
/// Packets that keep their order wait for the latest before them: a stream takes so many deviations
/// of lone packets longer than they do.
const LONE_DEVIATIONS: u32 = 2;
/// A packet's own time on the link is no queue, as the least delay may be that of small probes; no
/// more than this where the rate is unknown.
const LONGEST_OWN: Duration = Duration::from_millis(50);

/// The round trips and one-way delays of a path.
///
/// Cost: O(1) a report.
#[derive(Debug)]
pub(super) struct Times {
    delay: Delay,
    own_time: OwnTime,
    /// Smoothed round trip and its variation; `None` before the first.
    smoothed: Option<Smoothed>,
}

impl Times {
    /// Times of which nothing is known.
    #[must_use]
    pub(super) fn new(now: Instant) -> Self {
        Self {
            delay: Delay::new(now),
            own_time: OwnTime::default(),
            smoothed: None,
        }
    }

    /// Learns from a report what packets take because of their size, and gives what it says without
    /// that; `rate`: what the path has delivered at its best.
    pub(super) fn without_size(&mut self, measured: &Measured, rate: Rate, now: Instant) -> Measured {
        self.own_time.on_report(measured, rate, now);
        let own = self.own_time.of(measured.size.into()).as_micros();
        let own = i32::try_from(own).unwrap_or(i32::MAX);
        Measured {
            forward_us: measured.forward_us.wrapping_sub(own),
            ..*measured
        }
    }

    /// What packets take because of their size.
    pub(super) fn own_time(&self) -> &OwnTime {
        &self.own_time
    }

    /// Takes in what a report says of delays.
    pub(super) fn on_report(&mut self, measured: &Measured, now: Instant) {
        self.delay.on_report(measured, now);
    }

    /// Takes in a round trip; one of a probe comes without anything else.
    pub(super) fn on_round_trip(&mut self, round_trip: Duration) {
        self.smoothed = Some(Smoothed::after(self.smoothed, round_trip));
    }

    /// A round of the path is over; `is_even`: what was sent in it was paced alike ([`Delay`]).
    pub(super) fn on_round(&mut self, is_even: bool, own: Duration) {
        self.delay.on_round(is_even, own);
    }

    /// Lets the least delay grow no older: no round is without a queue at present.
    pub(super) fn keep_least(&mut self, now: Instant) {
        self.delay.retain_min(now);
        self.own_time.keep(now);
    }

    /// Lets the least delay grow no older, as a slow link is never idle at present. What packets
    /// take because of their size is learnt on.
    pub(super) fn retain_min_delay(&mut self, now: Instant) {
        self.delay.retain_min(now);
    }

    /// Smoothed round trip (RFC 6298); zero when nothing is known.
    #[must_use]
    pub(super) fn round_trip(&self) -> Duration {
        self.smoothed.map_or(Duration::ZERO, |known| known.mean)
    }

    /// The round trip without a queue on the way forward; zero when nothing is known.
    #[must_use]
    pub(super) fn base_round_trip(&self) -> Duration {
        self.delay.base_round_trip().unwrap_or(self.round_trip())
    }

    /// The path's delays.
    #[must_use]
    pub(super) fn delay(&self) -> &Delay {
        &self.delay
    }

    /// How much longer than the least a one-way delay is.
    #[must_use]
    pub(super) fn queue(&self, forward_us: i32) -> Duration {
        self.delay.queue(forward_us)
    }

    /// How long a report may take before the path is suspected: two round trips or four deviations,
    /// and what reports wait.
    #[must_use]
    pub(super) fn timeout(&self) -> Duration {
        let Some(Smoothed { mean, deviation }) = self.smoothed else {
            return Duration::from_millis(300);
        };
        mean + (deviation * 4).max(mean / 2) + Duration::from_millis(30)
    }

    /// Whether a queue is more than the path's own irregularity; `peak`: what the link can do.
    #[must_use]
    pub(super) fn stands(&self, queue: Duration, peak: Rate) -> bool {
        queue
            > QUEUE_ALLOWANCE
                + own(peak)
                + self.base_round_trip() / 8
                + self.delay.jitter()
                + self.delay.spread()
                + self.delay.lone_deviation() * LONE_DEVIATIONS
    }
}

/// A full packet's own time on a link of this rate.
pub(super) fn own(peak: Rate) -> Duration {
    peak.time_for(Bytes(FULL_PACKET)).min(LONGEST_OWN)
}
