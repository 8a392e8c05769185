//! Report of a command about a file that it has checked.

use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use crate::{BAD_CONFIGURATION, complain, say};

/// Prints whether `file` is valid for its `kind`, as text or JSON; the exit code reports it too.
///
/// # Errors
/// Standard output cannot be written.
pub fn checked(file: &Path, kind: &str, found: Result<(), impl Display>, as_json: bool) -> Result<ExitCode> {
    let problem = found.err().map(|problem| problem.to_string());
    match (&problem, as_json) {
        (_, true) => say!(
            "{}",
            json!({ "version": 1, "kind": kind, "ok": problem.is_none(), "problem": problem })
        )?,
        (None, false) => say!("{}: valid {kind}", file.display())?,
        (Some(problem), false) => complain(problem),
    }
    Ok(problem.map_or(ExitCode::SUCCESS, |_| ExitCode::from(BAD_CONFIGURATION)))
}
