//! Rate limit of a peer's requests: a token bucket, so that a flood of cheap messages is cut off
//! and an honest burst is not.

use std::time::{Duration, Instant};

/// Parameters of a [`Budget`].
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Maximum burst.
    pub burst: u32,
    /// Refill per second.
    pub per_second: u32,
}

/// Token bucket of a peer.
///
/// Cost: O(1).
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    pace: Pace,
    left: u32,
    /// Time up to which the bucket has been filled.
    filled: Instant,
}

impl Budget {
    /// Creates a full bucket.
    #[must_use]
    pub fn new(pace: Pace, now: Instant) -> Self {
        Self {
            pace,
            left: pace.burst,
            filled: now,
        }
    }

    /// Returns whether the bucket contains `cost`.
    #[must_use]
    pub fn has(&mut self, cost: u32, now: Instant) -> bool {
        self.fill(now);
        self.left >= cost
    }

    /// Spends `cost`. Returns false, and spends nothing, if less is left.
    #[must_use]
    pub fn spend(&mut self, cost: u32, now: Instant) -> bool {
        let is_enough = self.has(cost, now);
        self.left -= if is_enough { cost } else { 0 };
        is_enough
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.filled);
        let gained = passed.as_nanos() * u128::from(self.pace.per_second) / NANOS;
        if gained >= u128::from(self.pace.burst - self.left) {
            (self.left, self.filled) = (self.pace.burst, now);
        } else {
            let gained = gained as u32;
            self.left += gained;
            // The fraction of a message remains for the next call.
            self.filled += Duration::from_secs(gained.into()) / self.pace.per_second.max(1);
        }
    }
}

/// Nanoseconds in a second: the refill is counted in fractions of a message. Source: definition of
/// the unit.
const NANOS: u128 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PACE: Pace = Pace {
        burst: 10,
        per_second: 4,
    };

    #[test]
    fn a_burst_passes_and_a_flood_does_not() {
        let start = Instant::now();
        let mut budget = Budget::new(PACE, start);
        let spent = (0..100).filter(|_| budget.spend(1, start)).count();
        assert_eq!(spent, 10);
        assert!(!budget.spend(1, start + Duration::from_millis(249)));
        assert!(budget.spend(1, start + Duration::from_millis(250)));
        assert!(
            !budget.spend(11, start + Duration::from_secs(1_000)),
            "more than ever fits"
        );
        assert!(budget.spend(10, start + Duration::from_secs(1_000)));
    }

    proptest! {
        /// For any sequence of calls, the total never exceeds the burst plus the refill over the
        /// time.
        #[test]
        fn never_more_than_the_pace(steps in prop::collection::vec((0_u64..400, 1_u32..4), 0..200)) {
            let start = Instant::now();
            let (mut budget, mut now, mut spent) = (Budget::new(PACE, start), start, 0);
            for (wait, cost) in steps {
                now += Duration::from_millis(wait);
                if budget.spend(cost, now) {
                    spent += cost;
                }
                let most = f64::from(PACE.burst) + (now - start).as_secs_f64() * f64::from(PACE.per_second);
                prop_assert!(f64::from(spent) <= most);
            }
        }
    }
}
