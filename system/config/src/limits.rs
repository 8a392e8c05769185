//! Limits of a hub's clients: `[limits]` of `hub.toml`.

use hawser_units::Rate;
use serde::Deserialize;

use super::{Size, Speed};

/// `[limits]`: default limits of clients.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Maximum rate in each direction; no cap unless set.
    pub cap: Option<Speed>,
    /// Maximum bytes in a calendar month, both directions together; no quota unless set.
    pub quota: Option<Size>,
    /// Action when the quota is used up.
    pub when_used: WhenUsed,
    /// Rate after the quota is used up.
    pub slow: SlowTo,
}

/// Action when a client's quota is used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenUsed {
    /// Low rate, at which mail, messages and the operator's page still work.
    #[default]
    Slow,
    /// No traffic.
    Stop,
}

/// Rate of a client with an exhausted quota, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SlowTo(pub Speed);

impl Default for SlowTo {
    /// Returns the reduced rate of mobile network operators, sufficient for text.
    fn default() -> Self {
        Self(Speed(Rate::from_bps(256_000)))
    }
}
