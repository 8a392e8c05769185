//! Smoothed sum of the paths' throughput.

use hawser_units::{Duration, Instant, Rate};

/// Exponentially decaying byte count; divided by the time constant it is the current rate.
#[derive(Debug)]
pub(super) struct Throughput {
    bytes: f64,
    at: Instant,
    time: Duration,
}

/// Averaging time of a flow's throughput: longer than one late packet delays those behind it,
/// shorter than a sender needs to find more capacity. Half and twice of it change goodput by at
/// most 0.3 % (docs/notebook/path-model.md, "Sensitivity").
const TIME: Duration = Duration::from_millis(100);
/// Averaging time of the throughput of real-time flows: some ten packets of a slow one. Source: our
/// choice; a shorter time takes single pictures of a video for a rate, a longer one keeps the room
/// of a call that has ended.
const REALTIME_TIME: Duration = Duration::from_millis(500);

impl Default for Throughput {
    fn default() -> Self {
        Self::over(TIME)
    }
}

impl Throughput {
    /// Creates a throughput that is smoothed over this time.
    pub(super) fn over(time: Duration) -> Self {
        Self {
            bytes: 0.0,
            at: Instant::ZERO,
            time,
        }
    }

    /// Smoothed for real-time flows.
    pub(super) fn of_realtime() -> Self {
        Self::over(REALTIME_TIME)
    }

    /// Adds UDP payload bytes that were sent.
    pub(super) fn add(&mut self, bytes: u64, now: Instant) {
        self.bytes = self.left(now) + bytes as f64;
        self.at = now;
    }

    /// Returns the current rate.
    pub(super) fn rate(&self, now: Instant) -> Rate {
        Rate::from_bps((self.left(now) * 8.0 / self.time.as_secs_f64()) as u64)
    }

    fn left(&self, now: Instant) -> f64 {
        self.bytes * (-now.since(self.at).as_secs_f64() / self.time.as_secs_f64()).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_is_found_and_a_pause_forgotten() {
        let mut carried = Throughput::default();
        for millisecond in 0..1_000 {
            carried.add(1_250, Instant::from_nanos(millisecond * 1_000_000));
        }
        let rate = |at: u64| carried.rate(Instant::from_nanos(at * 1_000_000)).as_bps() as f64 / 1e7;
        assert!((0.98..1.02).contains(&rate(1_000)), "{}", rate(1_000));
        assert!((0.35..0.40).contains(&rate(1_100)), "{}", rate(1_100));
        assert!(rate(3_000) < 1e-6);
    }
}
