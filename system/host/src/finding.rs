//! Finding of a doctor command.

use serde::Serialize;

/// Result of one examination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The subject, such as `link`, `dns` or `mtu`.
    pub what: &'static str,
    /// Set if the result is good.
    pub good: bool,
    /// Description of the state.
    pub said: String,
    /// Remedy, if one is needed.
    pub next: Option<String>,
}

impl Finding {
    /// Creates the finding of a subject in a good state.
    #[must_use]
    pub fn good(what: &'static str, said: &str) -> Self {
        Self {
            what,
            good: true,
            said: said.to_owned(),
            next: None,
        }
    }

    /// Creates the finding of a subject in a bad state, with its remedy.
    #[must_use]
    pub fn bad(what: &'static str, said: &str, next: &str) -> Self {
        Self {
            what,
            good: false,
            said: said.to_owned(),
            next: Some(next.to_owned()),
        }
    }

    /// Returns at most two indented lines of text: the state and the remedy.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mark = if self.good { "ok " } else { "-- " };
        let mut lines = vec![format!("  {mark} {:<8} {}", self.what, self.said)];
        lines.extend(self.next.iter().map(|next| format!("               -> {next}")));
        lines
    }
}
