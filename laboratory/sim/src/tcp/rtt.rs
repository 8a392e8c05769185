use hawser_units::{Duration, Instant};

/// Derivation of the retransmission timeout from round trips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtoBounds {
    /// Timeout before the first measurement.
    pub initial: Duration,
    /// Minimum timeout.
    pub min: Duration,
    /// Maximum timeout, back-off included.
    pub max: Duration,
    /// Minimum of the variation term (`4 * RTTVAR`).
    pub variation: Duration,
}

impl RtoBounds {
    /// Bounds of the standard: at least one second.
    ///
    /// Source: RFC 6298 section 2.
    pub const STANDARD: Self = Self {
        initial: Duration::from_secs(1),
        min: Duration::from_secs(1),
        max: Duration::from_secs(60),
        variation: Duration::from_millis(1),
    };

    /// Bounds of Linux: 200 ms in addition to the round trip.
    ///
    /// Source: Linux `net/ipv4/tcp_input.c`, `tcp_rtt_estimator`; `TCP_RTO_MIN`, `TCP_RTO_MAX`.
    pub const LINUX: Self = Self {
        initial: Duration::from_secs(1),
        min: Duration::from_millis(200),
        max: Duration::from_secs(120),
        variation: Duration::from_millis(200),
    };
}

/// Smoothed round-trip time and retransmission timeout.
///
/// Source: RFC 6298 section 2.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundTrip {
    bounds: RtoBounds,
    smoothed: Option<Duration>,
    variation: Duration,
    min: Duration,
    backoff: u32,
}

impl RoundTrip {
    pub(crate) fn new(bounds: RtoBounds) -> Self {
        Self {
            bounds,
            smoothed: None,
            variation: Duration::ZERO,
            min: Duration::MAX,
            backoff: 0,
        }
    }

    pub(crate) fn measure(&mut self, sample: Duration) {
        self.min = self.min.min(sample);
        match self.smoothed {
            None => {
                self.smoothed = Some(sample);
                self.variation = sample / 2;
            }
            Some(smoothed) => {
                self.variation = self.variation * 3 / 4 + smoothed.abs_diff(sample) / 4;
                self.smoothed = Some(smoothed * 7 / 8 + sample / 8);
            }
        }
    }

    pub(crate) fn timeout(&self) -> Duration {
        let base = match self.smoothed {
            None => self.bounds.initial,
            Some(smoothed) => smoothed + (self.variation * 4).max(self.bounds.variation),
        };
        let base = base.max(self.bounds.min);
        base.saturating_mul(1 << self.backoff.min(16))
            .min(self.bounds.max)
    }

    /// Source: RFC 6298 section 5.5.
    pub(crate) fn back_off(&mut self) {
        self.backoff += 1;
    }

    pub(crate) fn forgive(&mut self) {
        self.backoff = 0;
    }

    pub(crate) fn backoff(&self) -> u32 {
        self.backoff
    }

    /// Zero before the first measurement.
    pub(crate) fn smoothed(&self) -> Duration {
        self.smoothed.unwrap_or_default()
    }

    /// Zero before the first measurement.
    pub(crate) fn min(&self) -> Duration {
        if self.smoothed.is_some() {
            self.min
        } else {
            Duration::ZERO
        }
    }

    pub(crate) fn deadline(&self, now: Instant) -> Instant {
        now + self.timeout()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn follows_the_standard() {
        let mut trip = RoundTrip::new(RtoBounds::STANDARD);
        assert_eq!(trip.timeout(), Duration::from_secs(1));
        trip.measure(800 * MS);
        assert_eq!(trip.timeout(), 2400 * MS, "SRTT + 4 * SRTT / 2");
        trip.measure(400 * MS);
        // RTTVAR 3/4 * 400 + 400 / 4 = 400, SRTT 7/8 * 800 + 400 / 8 = 750.
        assert_eq!(trip.timeout(), 2350 * MS);
    }

    #[test]
    fn backs_off_up_to_its_bound() {
        let mut trip = RoundTrip::new(RtoBounds::STANDARD);
        trip.measure(10 * MS);
        let timeouts: Vec<u64> = (0..8)
            .map(|_| {
                trip.back_off();
                trip.timeout().as_secs()
            })
            .collect();
        assert_eq!(timeouts, [2, 4, 8, 16, 32, 60, 60, 60]);
    }

    #[test]
    fn linux_adds_its_floor_to_the_round_trip() {
        let mut trip = RoundTrip::new(RtoBounds::LINUX);
        for _ in 0..50 {
            trip.measure(40 * MS);
        }
        assert_eq!(trip.timeout().as_millis(), 240);
    }
}
