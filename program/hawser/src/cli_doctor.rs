//! `hawser doctor`.

use std::process::ExitCode;

use anyhow::bail;
use hawser_client::doctor::{Examination, examine};
use hawser_host::finding::Finding;
use hawser_terminal::say;
use serde_json::json;

use crate::directories::Directories;
use crate::runtime::runtime;

/// Tests each network and the hub, and prints remedies for problems.
///
/// It tests each network separately, outside the tunnel, even while `hawser up` is running, and
/// changes nothing: link, address, names, login pages, the hub by UDP and by TLS on TCP, and the
/// size of packets. Fails if the hub is reachable over no network.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Shows only networks of these names.
    network: Vec<String>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    if !hawser_linux::process::is_root() {
        bail!("needs root to test each network separately: run `sudo hawser doctor`");
    }
    let mut found = runtime()?.block_on(examine(&args.directories.dir, &args.directories.client_socket()))?;
    found
        .networks
        .retain(|network| args.network.is_empty() || args.network.contains(&network.name));
    if args.json {
        say!("{}", json!(found))?;
    } else {
        say!("{}", render(&found))?;
    }
    let is_reached = found.networks.iter().any(|network| network.reaches_hub);
    Ok(if is_reached {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn render(found: &Examination) -> String {
    let mut lines: Vec<_> = found.findings.iter().flat_map(Finding::lines).collect();
    if found.networks.is_empty() {
        lines.push("this machine has no network interface except loopback".to_owned());
    }
    for network in &found.networks {
        let used = if network.used {
            ""
        } else {
            " (excluded in client.toml)"
        };
        lines.push(format!("{}{used}", network.name));
        for finding in &network.findings {
            lines.extend(finding.lines());
        }
    }
    let reached: Vec<_> = found
        .networks
        .iter()
        .filter(|network| network.reaches_hub)
        .collect();
    let names: Vec<_> = reached.iter().map(|network| network.name.as_str()).collect();
    lines.push(match (names.is_empty(), found.hub.is_empty()) {
        (_, true) => "this machine has not joined a hub".to_owned(),
        (true, false) => format!(
            "the hub {} is not reachable over any network",
            found.hub.join(", ")
        ),
        (false, false) => format!(
            "the hub {} is reachable over {}",
            found.hub.join(", "),
            names.join(", ")
        ),
    });
    lines.join("\n")
}
