//! Numbers with the papers' units.

use core::fmt;

use serde::{Deserialize, Serialize};

/// A number with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantity {
    /// Number.
    pub value: f64,
    /// Unit.
    pub unit: Unit,
}

/// A unit as printed by a paper. Units of one [`Dimension`] can be converted into each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// A share of one.
    #[serde(rename = "ratio")]
    Ratio,
    /// A multiple: a share of one in another notation.
    #[serde(rename = "x")]
    Times,
    /// Hundredths.
    #[serde(rename = "%")]
    Percent,
    /// A difference of percentages (percentage points).
    #[serde(rename = "points")]
    Points,
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Millis,
    /// Microseconds.
    #[serde(rename = "us")]
    Micros,
    /// Bits per second.
    #[serde(rename = "b/s")]
    Bps,
    /// Thousands of bits per second.
    #[serde(rename = "kb/s")]
    Kbps,
    /// Millions of bits per second.
    #[serde(rename = "Mb/s")]
    Mbps,
    /// 1024 bytes per second, as Juggler counts them.
    #[serde(rename = "KB/s")]
    KilobytesPerSecond,
    /// Bytes.
    #[serde(rename = "B")]
    Bytes,
    /// 1024 bytes.
    #[serde(rename = "KB")]
    Kilobytes,
    /// Packets.
    #[serde(rename = "packets")]
    Packets,
    /// Items without a unit of their own: clients, flows, runs.
    #[serde(rename = "count")]
    Count,
    /// Feet, the papers' unit of distance.
    #[serde(rename = "ft")]
    Feet,
    /// Links.
    #[serde(rename = "links")]
    Links,
    /// Beacons of an access point.
    #[serde(rename = "beacons")]
    Beacons,
    /// Decibels.
    #[serde(rename = "dB")]
    Decibels,
}

/// Dimension of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// A share.
    Share,
    /// Time.
    Time,
    /// Bits over time.
    Rate,
    /// Bytes.
    Size,
    /// Packets.
    Packets,
    /// Other counted items.
    Count,
    /// Distance.
    Length,
    /// Links.
    Links,
    /// Beacons.
    Beacons,
    /// Decibels.
    Decibels,
}

impl Quantity {
    /// Creates a quantity of `value` in `unit`.
    #[must_use]
    pub const fn new(value: f64, unit: Unit) -> Self {
        Self { value, unit }
    }

    /// Converts to another unit; `None` if the dimensions differ.
    #[must_use]
    pub fn value_in(self, unit: Unit) -> Option<f64> {
        if self.unit == unit {
            return Some(self.value); // no rounding by two factors
        }
        let ((from, factor), (to, divisor)) = (self.unit.scale(), unit.scale());
        (from == to).then(|| self.value * factor / divisor)
    }
}

impl Unit {
    /// Returns the dimension, and the number of that dimension's smallest steps.
    fn scale(self) -> (Dimension, f64) {
        match self {
            Self::Ratio | Self::Times => (Dimension::Share, 1.0),
            Self::Percent | Self::Points => (Dimension::Share, 0.01),
            Self::Seconds => (Dimension::Time, 1.0),
            Self::Millis => (Dimension::Time, 1e-3),
            Self::Micros => (Dimension::Time, 1e-6),
            Self::Bps => (Dimension::Rate, 1.0),
            Self::Kbps => (Dimension::Rate, 1e3),
            Self::Mbps => (Dimension::Rate, 1e6),
            Self::KilobytesPerSecond => (Dimension::Rate, 8.0 * 1024.0),
            Self::Bytes => (Dimension::Size, 1.0),
            Self::Kilobytes => (Dimension::Size, 1024.0),
            Self::Packets => (Dimension::Packets, 1.0),
            Self::Count => (Dimension::Count, 1.0),
            Self::Feet => (Dimension::Length, 1.0),
            Self::Links => (Dimension::Links, 1.0),
            Self::Beacons => (Dimension::Beacons, 1.0),
            Self::Decibels => (Dimension::Decibels, 1.0),
        }
    }

    /// Returns the unit as printed.
    #[must_use]
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Ratio => "ratio",
            Self::Times => "x",
            Self::Percent => "%",
            Self::Points => "points",
            Self::Seconds => "s",
            Self::Millis => "ms",
            Self::Micros => "us",
            Self::Bps => "b/s",
            Self::Kbps => "kb/s",
            Self::Mbps => "Mb/s",
            Self::KilobytesPerSecond => "KB/s",
            Self::Bytes => "B",
            Self::Kilobytes => "KB",
            Self::Packets => "packets",
            Self::Count => "count",
            Self::Feet => "ft",
            Self::Links => "links",
            Self::Beacons => "beacons",
            Self::Decibels => "dB",
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.symbol())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_within_a_dimension_only() {
        let rate = Quantity::new(40.0, Unit::KilobytesPerSecond);
        assert_eq!(rate.value_in(Unit::Kbps), Some(327.68));
        assert_eq!(
            Quantity::new(0.25, Unit::Ratio).value_in(Unit::Percent),
            Some(25.0)
        );
        assert_eq!(rate.value_in(Unit::Seconds), None);
        assert_eq!(Quantity::new(3.3, Unit::Millis).value_in(Unit::Millis), Some(3.3));
    }
}
