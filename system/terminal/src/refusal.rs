//! Error message and exit code of a command that cannot execute a request.

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::NobodyReads;

/// Exit code for a configuration or scenario that is invalid; reported before anything is changed.
/// Source: `EX_USAGE` of sysexits(3head), 64. `EX_CONFIG`, 78, would be more exact, but 64 is
/// documented (docs/manual/conform.md, docs/manual/direct.md), and scripts of users depend on it.
pub const BAD_CONFIGURATION: u8 = 64;
/// Exit code for unknown arguments. Source: `Error::exit_code` of clap.
const USAGE: u8 = 2;

/// Writes one line to standard error, after the name of the program. Errors are ignored if standard
/// error is closed; the exit code reports the failure too.
pub fn complain(problem: impl Display) {
    let called = std::env::args_os().next().map(PathBuf::from);
    let name = called.as_deref().and_then(|path| path.file_name());
    let name = name.unwrap_or("hawser".as_ref()).display();
    let _ = writeln!(std::io::stderr(), "{name}: {problem}");
}

/// Reports why a configuration or scenario cannot be used.
pub fn refuse(problem: impl Display) -> ExitCode {
    complain(problem);
    ExitCode::from(BAD_CONFIGURATION)
}

/// Reports that no object has the given name.
pub fn unknown(problem: impl Display) -> ExitCode {
    complain(problem);
    ExitCode::from(USAGE)
}

/// Returns the exit code of a command that has ended, and reports its error.
pub fn end(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        if error.is::<NobodyReads>() {
            return ExitCode::SUCCESS;
        }
        complain(format_args!("{error:#}"));
        ExitCode::FAILURE
    })
}
