//! `hawser pause` and `resume`: temporary exclusion of a network from the tunnel.

use std::process::ExitCode;

use hawser_host::control_socket::{Request, ask};
use hawser_terminal::say;

use crate::cli_status::list;
use crate::directories::Directories;

/// Excludes a network from the tunnel until `hawser resume`, or until the daemon ends; connections
/// continue over the other networks.
///
/// For a permanent exclusion, add the network to `exclude` in client.toml. Flows that rules send
/// outside the tunnel (via = "direct") are not affected.
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

/// Resumes the use of a paused network.
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
        (true, true) => say!(
            "{}: paused; no other network is usable, so no packets pass",
            args.network
        )?,
        (true, false) => say!("{}: {what}; all traffic uses {}", args.network, left.join(", "))?,
        (false, _) => say!("{}: {what}", args.network)?,
    }
    Ok(ExitCode::SUCCESS)
}
