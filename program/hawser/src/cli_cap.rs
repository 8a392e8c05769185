//! `hawser cap`: what a network may carry at most, for a while.

use std::process::ExitCode;

use anyhow::bail;
use hawser_config::Speed;
use hawser_host::control_socket::{Request, ask};
use hawser_terminal::say;
use serde_json::Value;

use crate::amounts::{rate, speed};
use crate::directories::Directories;

/// Holds a network to a rate in each direction until the daemon ends; connections live on.
///
/// What is not named stays as it is. For good, write cap_up and cap_down under [networks.NAME] in
/// client.toml. What rules send past the hub (via = "direct") is not concerned.
#[derive(Debug, clap::Args)]
pub(crate) struct CapArgs {
    /// The network (interface), as `hawser status` names it.
    #[arg(value_name = "NETWORK")]
    network: String,
    /// At most this towards the hub, such as 2mbit.
    #[arg(long, value_name = "RATE", value_parser = speed)]
    up: Option<Speed>,
    /// At most this from the hub, such as 10mbit.
    #[arg(long, value_name = "RATE", value_parser = speed)]
    down: Option<Speed>,
    /// No cap in either direction, whatever client.toml says.
    #[arg(long, conflicts_with_all = ["up", "down"])]
    none: bool,
    /// What client.toml says, from now on.
    #[arg(long, conflicts_with_all = ["up", "down", "none"])]
    default: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

pub(crate) fn run(args: &CapArgs) -> anyhow::Result<ExitCode> {
    let none = args.none.then_some(0);
    let wanted = |speed: Option<Speed>| speed.map(|speed| speed.0.as_bps()).or(none);
    let request = Request::Cap {
        network: args.network.clone(),
        up_bps: wanted(args.up),
        down_bps: wanted(args.down),
        is_default: args.default,
    };
    let is_nothing = args.up.is_none() && args.down.is_none() && !args.none && !args.default;
    if is_nothing {
        bail!("say what it may carry: --up RATE, --down RATE, --none or --default");
    }
    let answer = ask(&args.directories.client_socket(), &request)?;
    if args.json {
        say!("{answer}")?;
    } else {
        let shown = |cap: &Value| cap.as_u64().map_or("no cap".to_owned(), rate);
        let caps = &answer["cap_bps"];
        say!(
            "{}: up {}, down {}",
            args.network,
            shown(&caps["up"]),
            shown(&caps["down"])
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
