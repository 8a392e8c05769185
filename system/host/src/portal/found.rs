//! What a look has found.

use std::time::Duration;

use hawser_steer::portal::Outcome;
use serde::Serialize;

/// What a look has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Whether a portal is there.
    pub outcome: Outcome,
    /// Where to log in; where nobody has to, where to make the login last longer, if that can be.
    pub login: Option<String>,
    /// What is left of the login.
    pub left: Left,
}

/// What is left of a login.
///
/// Source: RFC 8908 section 5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Left {
    /// Until it ends, s.
    pub seconds: Option<u64>,
    /// Until it ends, both ways together.
    pub bytes: Option<u64>,
}

impl Left {
    /// Whether the network says anything of it.
    #[must_use]
    pub fn is_said(self) -> bool {
        self != Self::default()
    }

    /// The same some time later.
    #[must_use]
    pub fn after(self, passed: Duration) -> Self {
        let seconds = self.seconds.map(|left| left.saturating_sub(passed.as_secs()));
        Self { seconds, ..self }
    }
}
