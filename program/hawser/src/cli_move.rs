//! `hawser move`.

use std::process::ExitCode;

use anyhow::bail;
use hawser_host::control_socket::{Request, ask};
use hawser_terminal::{say, unknown};
use serde_json::Value;

use crate::cli_status::{list, text};
use crate::directories::Directories;

/// Moves a live connection to another network, transparently for both programs (with `up
/// --direct`).
///
/// The other host must run Hawser too and be a peer of this one (`hawser peer --help`). The
/// connection continues from the address of the new network. Both hosts rewrite its packets, so the
/// sockets of the programs keep their original addresses. The old network may be up or down.
/// Connections to peers are moved automatically when their network fails. With --through, the
/// packets pass a waypoint, a hub that this machine has joined as a peer; a later move without
/// --through returns the connection to the direct route. `hawser explain` then shows its network
/// and the reason.
///
/// For example: hawser move 203.0.113.2:443 --to wlan0
#[derive(Debug, clap::Args)]
pub(crate) struct MoveArgs {
    /// Part of the descriptions of the connections, as `hawser explain` shows them, such as
    /// 203.0.113.2:443.
    flow: String,
    /// Network (interface) to which the connections are moved.
    #[arg(long, value_name = "NETWORK")]
    to: String,
    /// Waypoint, by its name in `hawser peer list`.
    #[arg(long, value_name = "PEER")]
    through: Option<String>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

/// Runs the command; returns 2 for a network that does not exist, 1 if a connection is not moved.
///
/// # Errors
/// Hawser is not running here without a hub, or knows no such flow or peer.
pub(crate) fn run(args: &MoveArgs) -> anyhow::Result<ExitCode> {
    let socket = args.directories.client_socket();
    let status = ask(&socket, &Request::Status)?;
    if status["role"] != "direct" {
        bail!(
            "a client of a hub is running here, which sends every flow over all networks: `hawser move` works with `hawser up --direct` only"
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
            "--to {}: there is no such network now; available: {names}",
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
            say!("{}", result_text(flow, is_moved))?;
        }
    }
    Ok(if all_moved {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn result_text(flow: &Value, is_moved: bool) -> String {
    let (name, network) = (text(&flow["flow"]), text(&flow["network"]));
    if is_moved {
        let took = flow["took_ms"].as_f64().unwrap_or(0.0);
        format!("{name}: moved to {network} in {took:.0} ms")
    } else {
        format!("{name}: not moved to {network}: {}", text(&flow["why"]))
    }
}
