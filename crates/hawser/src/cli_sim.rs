//! `hawser sim`: scenarios in virtual time.

use std::process::ExitCode;

use anyhow::bail;
use hawser_netem::scenario::Scenario;
use hawser_sim::sweep::Row;

use crate::{cli_replay, cli_sweep};

/// Runs scenarios in virtual time: sweeps and replays.
#[derive(Debug, clap::Args)]
pub(crate) struct SimArgs {
    /// Replaces a field of a replay, e.g. `--set workload.0.streams=16`.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    settings: Vec<String>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sweep: cli_sweep::SweepArgs,
    #[command(flatten)]
    replay: cli_replay::ReplayArgs,
}

/// Runs the command; 0 done, 1 failed while running, 64 a file that cannot be used.
///
/// # Errors
/// When a run fails.
pub(crate) fn run(args: &SimArgs) -> anyhow::Result<ExitCode> {
    if let Some(code) = cli_sweep::run(&args.sweep, args.json, &simulate)? {
        return Ok(code);
    }
    if let Some(code) = cli_replay::run(&args.replay, &args.settings, args.json, &simulate)? {
        return Ok(code);
    }
    bail!("nothing to do: write --sweep FILE, --merge DIR or --replay FILE")
}

/// The columns of one run.
fn simulate(scenario: &Scenario) -> Result<Row, String> {
    Err(format!("{}: there is no simulator yet", scenario.name))
}
