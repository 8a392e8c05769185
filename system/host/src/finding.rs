//! What a doctor command has found.

use serde::Serialize;

/// One thing that was examined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The subject, such as `link`, `dns` or `mtu`.
    pub what: &'static str,
    /// Whether it is as it should be.
    pub good: bool,
    /// Its state, in words.
    pub said: String,
    /// The remedy, where one is needed.
    pub next: Option<String>,
}

impl Finding {
    /// A subject that is as it should be.
    #[must_use]
    pub fn good(what: &'static str, said: &str) -> Self {
        Self {
            what,
            good: true,
            said: said.to_owned(),
            next: None,
        }
    }

    /// A subject that is not, and what to do about it.
    #[must_use]
    pub fn bad(what: &'static str, said: &str, next: &str) -> Self {
        Self {
            what,
            good: false,
            said: said.to_owned(),
            next: Some(next.to_owned()),
        }
    }

    /// Two lines of text at most, indented: the state, and the remedy.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mark = if self.good { "ok " } else { "-- " };
        let mut lines = vec![format!("  {mark} {:<8} {}", self.what, self.said)];
        lines.extend(self.next.iter().map(|next| format!("               -> {next}")));
        lines
    }
}
