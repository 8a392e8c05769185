//! What a command says, and how it ends, when it cannot do what was asked.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

/// A configuration or scenario is bad; said before anything is touched.
pub(crate) const BAD_CONFIGURATION: u8 = 64;
/// As clap ends on arguments it does not know.
const USAGE: u8 = 2;

/// One line on standard error. That may be closed; the exit code says it too.
pub(crate) fn complain(problem: impl Display) {
    let _ = writeln!(std::io::stderr(), "hawser: {problem}");
}

/// Says why a configuration or scenario cannot be used.
pub(crate) fn refuse(problem: impl Display) -> ExitCode {
    complain(problem);
    ExitCode::from(BAD_CONFIGURATION)
}

/// Says that nothing has the name that was given.
pub(crate) fn unknown(problem: impl Display) -> ExitCode {
    complain(problem);
    ExitCode::from(USAGE)
}
