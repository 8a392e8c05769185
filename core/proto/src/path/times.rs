//! Delays of packets on a path, with and without a queue: the input of every controller.

use hawser_units::{Bytes, Duration, Instant, Rate};

use super::FULL_PACKET;
use super::delay::{Delay, Measured, QUEUE_ALLOWANCE};
use super::own_time::OwnTime;
use crate::smoothed::Smoothed;

/// Delay of a busy path's reports at the receiver. Source: the interval between reports
/// (`REPORT_INTERVAL` of `ingress.rs`, 5 ms) and 1 ms, as far as the window allows. Half and twice
/// of it change goodput by at most 1.5 % (docs/notebook/path-model.md, "Sensitivity").
pub(super) const BUSY_REPORT_DELAY: Duration = Duration::from_millis(6);
/// Deviations of isolated packets by which a stream takes longer: packets that keep their order
/// wait for the latest before them. No suite of docs/notebook/path-model.md, "Sensitivity", changes
/// by more than 3 % with half or twice of it.
const LONE_DEVIATIONS: u32 = 2;
/// A packet's own time on the link is no queue, as the least delay may be that of small probes; no
/// more than this where the rate is unknown. No suite of docs/notebook/path-model.md,
/// "Sensitivity", changes by more than 3 % with half or twice of it.
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
    /// Creates a state without measurements.
    #[must_use]
    pub(super) fn new(now: Instant) -> Self {
        Self {
            delay: Delay::new(now),
            own_time: OwnTime::default(),
            smoothed: None,
        }
    }

    /// Measures the size-dependent delay from a report, and returns the report's values without it;
    /// `rate`: the highest delivery rate of the path.
    pub(super) fn without_size(&mut self, measured: &Measured, rate: Rate, now: Instant) -> Measured {
        self.own_time.on_report(measured, rate, now);
        let own = self.own_time.of(measured.size.into()).as_micros();
        let own = i32::try_from(own).unwrap_or(i32::MAX);
        Measured {
            forward_us: measured.forward_us.wrapping_sub(own),
            ..*measured
        }
    }

    /// Returns the size-dependent delay of packets.
    pub(super) fn own_time(&self) -> &OwnTime {
        &self.own_time
    }

    /// Processes the delays in a report.
    pub(super) fn on_report(&mut self, measured: &Measured, now: Instant) {
        self.delay.on_report(measured, now);
    }

    /// Processes a round trip; a probe provides no other measurement.
    pub(super) fn on_round_trip(&mut self, round_trip: Duration) {
        self.smoothed = Some(Smoothed::after(self.smoothed, round_trip));
    }

    /// Processes the end of a round of the path; `is_even` means that its packets were paced evenly
    /// ([`Delay`]).
    pub(super) fn on_round(&mut self, is_even: bool, own: Duration) {
        self.delay.on_round(is_even, own);
    }

    /// Keeps the minimum delay from expiring, because no round is without a queue at present.
    pub(super) fn update_minimum(&mut self, now: Instant) {
        self.delay.retain_min(now);
        self.own_time.keep(now);
    }

    /// Keeps the minimum delay from expiring, because a slow link is never idle at present.
    /// Size-dependent delays are still measured.
    pub(super) fn retain_min_delay(&mut self, now: Instant) {
        self.delay.retain_min(now);
    }

    /// Smoothed round trip (RFC 6298); zero when nothing is known.
    #[must_use]
    pub(super) fn round_trip(&self) -> Duration {
        self.smoothed.map_or(Duration::ZERO, |known| known.mean)
    }

    /// Returns the round trip without a queue in the forward direction; zero if nothing is known.
    #[must_use]
    pub(super) fn base_round_trip(&self) -> Duration {
        self.delay.base_round_trip().unwrap_or(self.round_trip())
    }

    /// The path's delays.
    #[must_use]
    pub(super) fn delay(&self) -> &Delay {
        &self.delay
    }

    /// Returns by how much a one-way delay exceeds the base delay.
    #[must_use]
    pub(super) fn queue(&self, forward_us: i32) -> Duration {
        self.delay.queue(forward_us)
    }

    /// Returns how late a report may be before the path becomes suspect: two round trips or four
    /// deviations, and the delay of reports.
    #[must_use]
    pub(super) fn timeout(&self) -> Duration {
        let Some(Smoothed { mean, deviation }) = self.smoothed else {
            return Duration::from_millis(300);
        };
        mean + (deviation * 4).max(mean / 2) + Duration::from_millis(30)
    }

    /// Returns whether a queue exceeds the path's own irregularity; `peak`: capacity of the link.
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

/// Returns the transmission time of a full packet on a link of this rate.
pub(super) fn own(peak: Rate) -> Duration {
    peak.time_for(Bytes(FULL_PACKET)).min(LONGEST_OWN)
}
