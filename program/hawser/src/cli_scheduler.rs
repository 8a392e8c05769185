//! `hawser scheduler`: what places the packets of a class, for a while.

use std::process::ExitCode;

use anyhow::bail;
use hawser_host::control_socket::{Request, ask};
use hawser_terminal::say;

use crate::directories::Directories;

/// Chooses what decides which network a packet of a class takes, at both ends, until the daemon
/// ends; connections live on.
///
/// For good, write it under [schedulers] in client.toml.
#[derive(Debug, clap::Args)]
pub(crate) struct SchedulerArgs {
    /// Of which flows: bulk, interactive, realtime or layered.
    #[arg(value_name = "CLASS")]
    class: String,
    /// Which one, such as min-rtt; a wrong name lists all.
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// What client.toml says, from now on.
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
        bail!("say which one: a name such as min-rtt, or --default");
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
