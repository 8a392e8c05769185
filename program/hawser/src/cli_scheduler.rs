//! `hawser scheduler`: temporary scheduler of a class.

use std::process::ExitCode;

use anyhow::bail;
use hawser_host::control_socket::{Request, ask};
use hawser_terminal::say;

use crate::directories::Directories;

/// Sets the scheduler of a class of flows at both ends, until the daemon ends; connections
/// continue.
///
/// A scheduler chooses the network of each packet.
///
/// For a permanent setting, write it under [schedulers] in client.toml.
#[derive(Debug, clap::Args)]
pub(crate) struct SchedulerArgs {
    /// Class of the flows: bulk, interactive, realtime or layered.
    #[arg(value_name = "CLASS")]
    class: String,
    /// Name of the scheduler, such as min-rtt; an unknown name prints the list.
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Returns to the values of client.toml.
    #[arg(long, conflicts_with = "name")]
    default: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

pub(crate) fn run(args: &SchedulerArgs) -> anyhow::Result<ExitCode> {
    if args.name.is_none() && !args.default {
        bail!("no scheduler is given: add a name such as min-rtt, or --default");
    }
    let request = Request::Scheduler {
        class: args.class.clone(),
        scheduler: args.name.clone(),
    };
    let answer = ask(&args.directories.client_socket(), &request)?;
    if args.json {
        say!("{answer}")?;
    } else {
        say!("{}: {}", args.class, answer["scheduler"].as_str().unwrap_or("-"))?;
    }
    Ok(ExitCode::SUCCESS)
}
