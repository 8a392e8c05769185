//! What a command says, and how it ends, when it cannot do what was asked.

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::NobodyReads;

/// A configuration or scenario is bad; said before anything is touched.
pub const BAD_CONFIGURATION: u8 = 64;
/// As clap ends on arguments it does not know.
const USAGE: u8 = 2;

/// Writes one line to standard error, after the name of the program. Standard error may be closed;
/// the exit code says it too.
pub fn complain(problem: impl Display) {
    let called = std::env::args_os().next().map(PathBuf::from);
    let name = called.as_deref().and_then(|path| path.file_name());
    let name = name.unwrap_or("hawser".as_ref()).display();
    let _ = writeln!(std::io::stderr(), "{name}: {problem}");
}

/// Says why a configuration or scenario cannot be used.
pub fn refuse(problem: impl Display) -> ExitCode {
    complain(problem);
    ExitCode::from(BAD_CONFIGURATION)
}

/// Says that nothing has the name that was given.
pub fn unknown(problem: impl Display) -> ExitCode {
    complain(problem);
    ExitCode::from(USAGE)
}

/// The exit code of a command that has ended; says what went wrong.
pub fn end(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        if error.is::<NobodyReads>() {
            return ExitCode::SUCCESS;
        }
        complain(format_args!("{error:#}"));
        ExitCode::FAILURE
    })
}
