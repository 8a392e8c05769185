//! `hawser move`.

use std::process::ExitCode;

use anyhow::bail;
use hawser_host::control_socket::{Request, ask};
use hawser_terminal::{say, unknown};
use serde_json::Value;

use crate::cli_status::{list, text};
use crate::directories::Directories;

/// Moves a live connection to another network, and neither program notices (with `up --direct`).
///
/// The far host must run Hawser too and be known here (`hawser peer --help`). Its connection goes
/// on from the new network's address: both hosts rewrite what they send and receive, so the
/// programs' sockets keep the addresses with which it began. The network that it leaves may be up
/// or gone; connections to known hosts are moved by themselves when their network dies. --through
/// sends it by a waypoint, a hub that this machine has joined as a peer; a further move without
/// brings it back to the straight way. `hawser explain` says afterwards where it is and why.
///
/// For example: hawser move 203.0.113.2:443 --to wlan0
#[derive(Debug, clap::Args)]
pub(crate) struct MoveArgs {
    /// Part of the descriptions of the connections, as `hawser explain` shows them, such as
    /// 203.0.113.2:443.
    flow: String,
    /// The network (interface) to which they go.
    #[arg(long, value_name = "NETWORK")]
    to: String,
    /// The waypoint, by its name among the peers.
    #[arg(long, value_name = "PEER")]
    through: Option<String>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

/// Runs the command; 2 for a network that does not exist, 1 when something is not moved.
///
/// # Errors
/// Hawser does not run here without a hub, or knows no such flow or peer.
pub(crate) fn run(args: &MoveArgs) -> anyhow::Result<ExitCode> {
    let socket = args.directories.client_socket();
    let status = ask(&socket, &Request::Status)?;
    if status["role"] != "direct" {
        bail!(
            "hawser runs with a hub here, which carries every flow over all networks: there is nothing to move"
        );
    }
    let used: Vec<_> = list(&status["networks"])
        .iter()
        .filter(|network| network["used"] == true)
        .map(|network| text(&network["name"]))
        .collect();
    if !used.contains(&args.to.as_str()) {
        let names = if used.is_empty() {
            "none".to_owned()
        } else {
            used.join(", ")
        };
        return Ok(unknown(format_args!(
            "--to {}: there is no such network now; there are: {names}",
            args.to
        )));
    }
    let request = Request::Move {
        flow: args.flow.clone(),
        to: args.to.clone(),
        through: args.through.clone(),
    };
    let answer = ask(&socket, &request)?;
    if args.json {
        say!("{answer}")?;
    }
    let mut all_moved = true;
    for flow in list(&answer["flows"]) {
        let is_moved = flow["moved"] == true;
        all_moved &= is_moved;
        if !args.json {
            say!("{}", told(flow, is_moved))?;
        }
    }
    Ok(if all_moved {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn told(flow: &Value, is_moved: bool) -> String {
    let (name, network) = (text(&flow["flow"]), text(&flow["network"]));
    if is_moved {
        let took = flow["took_ms"].as_f64().unwrap_or(0.0);
        format!("{name}: moved to {network} in {took:.0} ms")
    } else {
        format!("{name}: not moved to {network}: {}", text(&flow["why"]))
    }
}
