//! `hawser cap`: temporary rate limits of a network.

use std::process::ExitCode;

use anyhow::bail;
use hawser_config::Speed;
use hawser_host::control_socket::{Request, ask};
use hawser_terminal::say;
use serde_json::Value;

use crate::amounts::{rate, speed};
use crate::directories::Directories;

/// Limits the rates of a network until the daemon ends; connections continue.
///
/// Values that are not given stay unchanged. For a permanent limit, write cap_up and cap_down under
/// [networks.NAME] in client.toml. Flows that rules send outside the tunnel (via = "direct") are
/// not limited.
#[derive(Debug, clap::Args)]
pub(crate) struct CapArgs {
    /// The network (interface), as `hawser status` names it.
    #[arg(value_name = "NETWORK")]
    network: String,
    /// Maximum rate towards the hub, such as 2mbit.
    #[arg(long, value_name = "RATE", value_parser = speed)]
    up: Option<Speed>,
    /// Maximum rate from the hub, such as 10mbit.
    #[arg(long, value_name = "RATE", value_parser = speed)]
    down: Option<Speed>,
    /// Removes the caps of both directions, also those of client.toml.
    #[arg(long, conflicts_with_all = ["up", "down"])]
    none: bool,
    /// Returns to the values of client.toml.
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
        bail!("no limit is given: add --up RATE, --down RATE, --none or --default");
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
