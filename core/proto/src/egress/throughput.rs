//! How much the paths carry together, smoothed.

use hawser_units::{Duration, Instant, Rate};

/// A sum of bytes that fades: divided by its time constant, the rate of late.
#[derive(Debug)]
pub(super) struct Throughput {
    bytes: f64,
    at: Instant,
    time: Duration,
}

/// Longer than the holds of one packet that is late, shorter than a sender needs to find more
/// capacity.
const TIME: Duration = Duration::from_millis(100);

impl Default for Throughput {
    fn default() -> Self {
        Self::over(TIME)
    }
}

impl Throughput {
    /// Smoothed over that time.
    pub(super) fn over(time: Duration) -> Self {
        Self {
            bytes: 0.0,
            at: Instant::ZERO,
            time,
        }
    }

    /// So many UDP payload bytes went out.
    pub(super) fn add(&mut self, bytes: u64, now: Instant) {
        self.bytes = self.left(now) + bytes as f64;
        self.at = now;
    }

    /// The rate of late.
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
