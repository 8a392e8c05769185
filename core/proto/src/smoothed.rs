//! Smoothed mean and deviation of a repeatedly measured time.

use hawser_units::Duration;

/// The mean of a time and its mean deviation.
///
/// Source: RFC 6298 section 2, with its gains of an eighth and a quarter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Smoothed {
    pub(crate) mean: Duration,
    pub(crate) deviation: Duration,
}

impl Smoothed {
    /// Returns the estimate after a sample; the first sample's deviation is half of its value.
    pub(crate) fn after(known: Option<Self>, sample: Duration) -> Self {
        let Some(Self { mean, deviation }) = known else {
            return Self {
                mean: sample,
                deviation: sample / 2,
            };
        };
        Self {
            mean: (mean * 7 + sample) / 8,
            deviation: (deviation * 3 + mean.abs_diff(sample)) / 4,
        }
    }
}
