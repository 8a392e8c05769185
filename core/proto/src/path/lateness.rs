//! Measures how often a path's packets arrive too late for a call, though none is lost: the rate of
//! a modem falls, or other traffic fills a queue.

use hawser_units::{Duration, Instant};

/// A packet that has met a longer queue is late. Source: two thirds of a call's budget
/// (`flow::behaviour`, ITU-T G.114); the rest is for the choice of another path.
const LATE: Duration = Duration::from_millis(100);
/// The time constant of the late share. Source: measured in the recorded drives of
/// docs/manual/schedulers.md: a modem that has stalled stalls again within some ten seconds.
const MEMORY: Duration = Duration::from_secs(30);
/// The longest time for which one report counts. Source: `KEEPALIVE_BUSY`, the interval of probes
/// of a quiet path, measured between reports.
const LONGEST_STEP: Duration = Duration::from_secs(1);

/// The share of time in which packets of a path were late, over the last half minute.
///
/// Cost: O(1) a report.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lateness {
    share: f64,
    reported: Option<Instant>,
}

impl Lateness {
    /// Records the queueing delay of a report's packets.
    pub(super) fn on_report(&mut self, queue: Duration, now: Instant) {
        let Some(before) = self.reported.replace(now) else {
            return;
        };
        let step = now.since(before).min(LONGEST_STEP);
        let is_late = if queue > LATE { 1.0 } else { 0.0 };
        let weight = (step.as_secs_f64() / MEMORY.as_secs_f64()).min(1.0);
        self.share += (is_late - self.share) * weight;
    }

    /// The share of time, 0 to 1.
    pub(super) fn share(&self) -> f64 {
        self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(10);

    /// Reports of such a queue for so long.
    fn pass(lateness: &mut Lateness, queue: Duration, time: Duration, now: &mut Instant) {
        let end = *now + time;
        while *now < end {
            *now += STEP;
            lateness.on_report(queue, *now);
        }
    }

    #[test]
    fn a_stall_is_remembered_for_as_long_as_another_is_likely() {
        let mut now = Instant::from_nanos(1_000_000_000);
        let mut lateness = Lateness::default();
        pass(
            &mut lateness,
            Duration::from_millis(20),
            Duration::from_secs(60),
            &mut now,
        );
        assert!(lateness.share() < 1e-9);
        pass(
            &mut lateness,
            Duration::from_millis(400),
            Duration::from_millis(300),
            &mut now,
        );
        let stalled = lateness.share();
        assert!((0.005..0.02).contains(&stalled), "{stalled}");
        pass(&mut lateness, Duration::ZERO, MEMORY, &mut now);
        let later = lateness.share();
        assert!((0.3..0.45).contains(&(later / stalled)), "{later}");
    }

    #[test]
    fn a_report_after_a_long_silence_speaks_for_a_second() {
        let now = Instant::from_nanos(1_000_000_000);
        let mut lateness = Lateness::default();
        lateness.on_report(Duration::ZERO, now);
        lateness.on_report(Duration::from_secs(2), now + Duration::from_secs(500));
        let most = LONGEST_STEP.as_secs_f64() / MEMORY.as_secs_f64();
        assert!((lateness.share() - most).abs() < 1e-9);
    }
}
