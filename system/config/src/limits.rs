//! What a hub's clients may use: `[limits]` of `hub.toml`.

use hawser_units::Rate;
use serde::Deserialize;

use super::{Size, Speed};

/// `[limits]`: of every client that has no limits of its own.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// At most this in each direction; no cap unless set.
    pub cap: Option<Speed>,
    /// At most this in a calendar month, both directions together; no quota unless set.
    pub quota: Option<Size>,
    /// What happens to a client whose quota is used up.
    pub when_used: WhenUsed,
    /// What a client is slowed to.
    pub slow: SlowTo,
}

/// What happens to a client whose quota is used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenUsed {
    /// It goes on at a trickle, so that mail, messages and the operator's page still work.
    #[default]
    Slow,
    /// Nothing passes.
    Stop,
}

/// The trickle of a client whose quota is used up, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SlowTo(pub Speed);

impl Default for SlowTo {
    /// What providers of mobile networks slow to, and enough for text.
    fn default() -> Self {
        Self(Speed(Rate::from_bps(256_000)))
    }
}
