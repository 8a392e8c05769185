//! Result of a check.

use std::time::Duration;

use hawser_steer::portal::Outcome;
use serde::Serialize;

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// State of the portal.
    pub outcome: Outcome,
    /// Login page, or, if access is open, the page that extends the login, if there is one.
    pub login: Option<String>,
    /// Remaining validity of the login.
    pub left: Left,
}

/// Remaining validity of a login.
///
/// Source: RFC 8908 section 5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Left {
    /// Time until it ends, s.
    pub seconds: Option<u64>,
    /// Bytes until it ends, both directions together.
    pub bytes: Option<u64>,
}

impl Left {
    /// Returns whether the network reports a remaining validity.
    #[must_use]
    pub fn is_said(self) -> bool {
        self != Self::default()
    }

    /// Returns the remaining validity after some time.
    #[must_use]
    pub fn after(self, passed: Duration) -> Self {
        let seconds = self.seconds.map(|left| left.saturating_sub(passed.as_secs()));
        Self { seconds, ..self }
    }
}
