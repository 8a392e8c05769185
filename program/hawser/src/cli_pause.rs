//! `hawser pause` and `resume`: a network that the tunnel leaves out for a while.

use std::process::ExitCode;

use hawser_host::control_socket::{Request, ask};
use hawser_terminal::say;

use crate::cli_status::list;
use crate::directories::Directories;

/// Leaves a network out of the tunnel until `hawser resume`, or until the daemon ends; what it
/// carried goes over the others, and connections live on.
///
/// For good, write its name into `exclude` in client.toml. What rules send past the hub
/// (via = "direct") is not concerned.
#[derive(Debug, clap::Args)]
pub(crate) struct PauseArgs {
    /// The network (interface), as `hawser status` names it.
    #[arg(value_name = "NETWORK")]
    network: String,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

/// Takes a network in again that was paused.
#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    args: PauseArgs,
}

pub(crate) fn pause(args: &PauseArgs) -> anyhow::Result<ExitCode> {
    set(args, true)
}

pub(crate) fn resume(args: &ResumeArgs) -> anyhow::Result<ExitCode> {
    set(&args.args, false)
}

fn set(args: &PauseArgs, is_on: bool) -> anyhow::Result<ExitCode> {
    let network = args.network.clone();
    let answer = ask(
        &args.directories.client_socket(),
        &Request::Pause { network, is_on },
    )?;
    if args.json {
        say!("{answer}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let what = if is_on { "paused" } else { "in use again" };
    let left: Vec<_> = list(&answer["left"])
        .iter()
        .filter_map(|name| name.as_str())
        .collect();
    match (is_on, left.is_empty()) {
        (true, true) => say!("{}: paused; no network is left to carry anything", args.network)?,
        (true, false) => say!("{}: {what}; {} carries everything", args.network, left.join(", "))?,
        (false, _) => say!("{}: {what}", args.network)?,
    }
    Ok(ExitCode::SUCCESS)
}
