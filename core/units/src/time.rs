use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A point in time: nanoseconds since an epoch that the driver chooses.
///
/// Only differences carry meaning. Arithmetic saturates, so a clock that jumps backwards gives a
/// zero difference instead of a panic. Units: nanoseconds; `u64` lasts 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// Epoch of the driver. Source: definition.
    pub const ZERO: Self = Self(0);
    /// Later than every instant that occurs. Source: the largest number.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the epoch.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the epoch.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Microseconds since the epoch, truncated to 32 bits: what a tunnel header carries.
    #[must_use]
    pub const fn as_micros_wrapping(self) -> u32 {
        (self.0 / 1_000) as u32
    }

    /// The time since `earlier`; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(nanos(rhs)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(rhs)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignores_a_backward_clock() {
        let late = Instant::from_nanos(5);
        assert_eq!(Instant::ZERO.since(late), Duration::ZERO);
        assert_eq!(Instant::ZERO - Duration::from_secs(1), Instant::ZERO);
    }

    #[test]
    fn header_time_wraps_after_71_minutes() {
        let at = Instant::from_nanos((1 << 32) * 1_000 + 7_000);
        assert_eq!(at.as_micros_wrapping(), 7);
    }
}
