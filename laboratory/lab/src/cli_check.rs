//! `hawser-lab check`: validates a scenario file.

use std::path::PathBuf;
use std::process::ExitCode;

use hawser_terminal::checked;
use hawser_testbed::read_scenario;

/// Checks a scenario file without running it.
///
/// Prints file, line and remedy of the first error, and exits with 64 if there is one. `hawser
/// check` does the same for configurations.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// The scenario, a TOML file.
    file: PathBuf,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let read = read_scenario(&args.file, &[]);
    checked(&args.file, "scenario", read.map(drop), args.json)
}
