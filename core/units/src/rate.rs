use core::fmt;
use core::time::Duration;

use crate::Bytes;

/// A data rate in bit/s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// No data at all. Source: definition.
    pub const ZERO: Self = Self(0);

    /// A rate of `bps` bit/s.
    #[must_use]
    pub const fn from_bps(bps: u64) -> Self {
        Self(bps)
    }

    /// A rate of `mbps` million bit/s.
    #[must_use]
    pub const fn from_mbps(mbps: u64) -> Self {
        Self(mbps * 1_000_000)
    }

    /// The rate at which `bytes` pass in `time`; `None` when `time` is zero.
    #[must_use]
    pub fn of(bytes: Bytes, time: Duration) -> Option<Self> {
        let nanos = time.as_nanos();
        if nanos == 0 {
            return None;
        }
        let bps = u128::from(bytes.0) * 8 * 1_000_000_000 / nanos;
        Some(Self(u64::try_from(bps).unwrap_or(u64::MAX)))
    }

    /// The rate in bit/s.
    #[must_use]
    pub const fn as_bps(self) -> u64 {
        self.0
    }

    /// Returns the time to transfer `bytes` at this rate; [`Duration::MAX`] at rate zero.
    #[must_use]
    pub fn time_for(self, bytes: Bytes) -> Duration {
        if self.0 == 0 {
            return Duration::MAX;
        }
        // Packets take the first way: a division of 128 bits costs as much as a small function.
        if let Some(bits) = bytes.0.checked_mul(8_000_000_000) {
            return Duration::from_nanos(bits / self.0);
        }
        let nanos = u128::from(bytes.0) * 8 * 1_000_000_000 / u128::from(self.0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The bytes that pass in `time` at this rate, rounded down.
    #[must_use]
    pub fn bytes_in(self, time: Duration) -> Bytes {
        let bytes = u128::from(self.0) * time.as_nanos() / 8_000_000_000;
        Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// Returns this rate multiplied by `factor`, which must be finite and not negative (otherwise
    /// the result is zero).
    #[must_use]
    pub fn scale(self, factor: f64) -> Self {
        Self((self.0 as f64 * factor) as u64)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bps = self.0 as f64;
        match self.0 {
            0..1_000 => write!(f, "{} bit/s", self.0),
            1_000..1_000_000 => write!(f, "{:.1} kbit/s", bps / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.1} Mbit/s", bps / 1e6),
            _ => write!(f, "{:.2} Gbit/s", bps / 1e9),
        }
    }
}

/// A rate that was measured: what a path delivered.
///
/// Units: UDP payload. Not a prediction: [`PredictedRate`] is made from it with a growth, and
/// nothing is made from that, so no growth is applied twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MeasuredRate(Rate);

impl MeasuredRate {
    /// `rate` was measured; [`Rate::ZERO`] when nothing has been measured yet.
    #[must_use]
    pub const fn new(rate: Rate) -> Self {
        Self(rate)
    }

    /// The rate.
    #[must_use]
    pub const fn rate(self) -> Rate {
        self.0
    }

    /// The rate in bit/s.
    #[must_use]
    pub const fn as_bps(self) -> u64 {
        self.0.as_bps()
    }
}

/// A rate that a path is expected to deliver some time ahead.
///
/// Units: UDP payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PredictedRate(Rate);

impl PredictedRate {
    /// Creates the prediction of a path with a constant rate: a channel with known capacity, or a
    /// path that does not grow.
    #[must_use]
    pub const fn steady(rate: Rate) -> Self {
        Self(rate)
    }

    /// Creates the prediction of a path that will transfer `growth` times the measured rate at the
    /// time in question.
    #[must_use]
    pub fn grown(measured: MeasuredRate, growth: f64) -> Self {
        Self(measured.0.scale(growth))
    }

    /// The rate; [`Rate::ZERO`] when nothing is known.
    #[must_use]
    pub const fn rate(self) -> Rate {
        self.0
    }

    /// Returns the prediction for traffic that gets this share of the rate.
    #[must_use]
    pub fn scale(self, share: f64) -> Self {
        Self(self.0.scale(share))
    }

    /// Returns whether a rate is known.
    #[must_use]
    pub fn is_known(self) -> bool {
        self.0 != Rate::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_time_are_inverse() {
        let rate = Rate::from_mbps(20);
        assert_eq!(rate.time_for(Bytes(2_500_000)), Duration::from_secs(1));
        assert_eq!(rate.bytes_in(Duration::from_secs(1)), Bytes(2_500_000));
        assert_eq!(Rate::of(Bytes(2_500_000), Duration::from_secs(1)), Some(rate));
    }

    #[test]
    fn large_sizes_take_as_long_as_small_ones_together() {
        let rate = Rate::from_mbps(20);
        let time = |bytes| rate.time_for(Bytes(bytes));
        assert_eq!(time(2_500_000_000_000), time(2_500_000_000) * 1000);
    }

    #[test]
    fn zero_is_no_trap() {
        assert_eq!(Rate::ZERO.time_for(Bytes(1)), Duration::MAX);
        assert_eq!(Rate::of(Bytes(1), Duration::ZERO), None);
    }
}
