//! Limits that a hub enforces for a client, as the control channel encodes them.

use core::fmt;

use hawser_units::{Bytes, Rate};

use crate::framing::{ParseError, Reader};

/// Limit of a client's traffic through its hub.
///
/// Units: rates and bytes are of UDP payload; a rate applies to each direction, a quota to both
/// directions of a calendar month together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    /// No limit.
    #[default]
    Unlimited,
    /// Maximum rate.
    Cap(Rate),
    /// The quota of the month is used up: traffic continues at a low rate.
    Slowed {
        /// Low rate.
        rate: Rate,
        /// Quota of the month.
        quota: Bytes,
    },
    /// The quota of the month is used up: nothing passes.
    Stopped {
        /// Quota of the month.
        quota: Bytes,
    },
}

impl Limit {
    /// Returns the rate in effect, zero if nothing passes; `None` without a limit.
    #[must_use]
    pub fn rate(self) -> Option<Rate> {
        match self {
            Self::Unlimited => None,
            Self::Cap(rate) | Self::Slowed { rate, .. } => Some(rate),
            Self::Stopped { .. } => Some(Rate::ZERO),
        }
    }

    /// Returns a word for the output of `status`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unlimited => "unlimited",
            Self::Cap(_) => "capped",
            Self::Slowed { .. } => "slowed",
            Self::Stopped { .. } => "stopped",
        }
    }

    pub(crate) fn parse(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(match r.u8()? {
            0 => Self::Unlimited,
            1 => Self::Cap(Rate::from_bps(r.u64()?)),
            2 => Self::Slowed {
                rate: Rate::from_bps(r.u64()?),
                quota: Bytes(r.u64()?),
            },
            3 => Self::Stopped {
                quota: Bytes(r.u64()?),
            },
            _ => return Err(ParseError::Field("limit")),
        })
    }

    pub(crate) fn emit(self, out: &mut Vec<u8>) {
        match self {
            Self::Unlimited => out.push(0),
            Self::Cap(rate) => {
                out.push(1);
                out.extend_from_slice(&rate.as_bps().to_be_bytes());
            }
            Self::Slowed { rate, quota } => {
                out.push(2);
                out.extend_from_slice(&rate.as_bps().to_be_bytes());
                out.extend_from_slice(&quota.0.to_be_bytes());
            }
            Self::Stopped { quota } => {
                out.push(3);
                out.extend_from_slice(&quota.0.to_be_bytes());
            }
        }
    }
}

impl fmt::Display for Limit {
    /// Formats the limit for the client's user.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Unlimited => f.write_str("the hub sets no limit"),
            Self::Cap(rate) => write!(f, "the hub limits this machine to {rate} in each direction"),
            Self::Slowed { rate, quota } => write!(
                f,
                "this month's quota at the hub ({}) is used up: {rate} in each direction until the month ends \
                 or the hub's operator raises the quota",
                Amount(quota)
            ),
            Self::Stopped { quota } => write!(
                f,
                "this month's quota at the hub ({}) is used up: no packets pass until the month ends \
                 or the hub's operator raises the quota",
                Amount(quota)
            ),
        }
    }
}

/// Amount of data, formatted for people.
struct Amount(Bytes);

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.0 as f64;
        match self.0.0 {
            0..1_000 => write!(f, "{} B", self.0.0),
            1_000..1_000_000 => write!(f, "{:.1} kB", count / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.1} MB", count / 1e6),
            _ => write!(f, "{:.1} GB", count / 1e9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_told_what_holds_and_why() {
        let rate = Rate::from_mbps(20);
        let quota = Bytes(100_000_000_000);
        let said = [
            Limit::Unlimited,
            Limit::Cap(rate),
            Limit::Slowed { rate, quota },
            Limit::Stopped { quota },
        ]
        .map(|limit| (limit.rate(), limit.name(), limit.to_string()));
        assert_eq!(
            said.each_ref().map(|limit| limit.0),
            [None, Some(rate), Some(rate), Some(Rate::ZERO)]
        );
        assert_eq!(
            said.each_ref().map(|limit| limit.1),
            ["unlimited", "capped", "slowed", "stopped"]
        );
        assert!(
            said[1].2.contains("20.0 Mbit/s in each direction"),
            "{}",
            said[1].2
        );
        assert!(
            said[2].2.contains("(100.0 GB) is used up: 20.0 Mbit/s"),
            "{}",
            said[2].2
        );
        assert!(said[3].2.contains("no packets pass"), "{}", said[3].2);
    }
}
