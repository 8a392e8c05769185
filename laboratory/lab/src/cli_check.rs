//! `hawser-lab check`.

use std::path::PathBuf;
use std::process::ExitCode;

use hawser_terminal::checked;
use hawser_testbed::read_scenario;

/// Tests a scenario, and touches nothing.
///
/// Says file, line and remedy of the first error, and exits with 64 then. `hawser check` does so
/// for configurations.
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
