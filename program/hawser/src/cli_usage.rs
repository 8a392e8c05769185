//! `hawser usage`.

use std::process::ExitCode;

use hawser_config::{self as config, ClientConfig};
use hawser_host::usage;
use hawser_terminal::{columns, say};
use serde_json::Value;

use crate::amounts::bytes;
use crate::cli_status::{list, number, text};
use crate::directories::Directories;

/// Shows the usage of each network by month, and the remainder of its quota.
///
/// A month begins on the network's reset_day (client.toml). Traffic is counted while `hawser up` is
/// running, with and without a hub. The last 5 s may be missing.
#[derive(Debug, clap::Args)]
pub(crate) struct UsageArgs {
    /// Shows only networks of these names.
    network: Vec<String>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

pub(crate) fn run(args: &UsageArgs) -> anyhow::Result<ExitCode> {
    let config: ClientConfig = config::load_or_default(&args.directories.dir.join("client.toml"))?;
    let mut usage = usage::read(&args.directories.dir, &config)?;
    if let Some(networks) = usage["networks"].as_array_mut() {
        networks.retain(|network| {
            args.network.is_empty() || args.network.iter().any(|name| network["name"] == name.as_str())
        });
    }
    if args.json {
        say!("{usage}")?;
    } else {
        say!("{}", render(&usage))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn render(usage: &Value) -> String {
    let rows: Vec<_> = list(&usage["networks"])
        .iter()
        .flat_map(|network| list(&network["months"]).iter().map(|month| row(network, month)))
        .collect();
    if rows.is_empty() {
        return "nothing has been counted yet: `hawser up` counts traffic while it is running, and stores it every 5 s"
            .to_owned();
    }
    columns(
        &["network", "from", "until", "received", "sent", "total", "quota"],
        &rows,
        "",
    )
}

fn row(network: &Value, month: &Value) -> Vec<String> {
    let mut row = vec![
        text(&network["name"]).to_owned(),
        text(&month["from"]).to_owned(),
        text(&month["until"]).to_owned(),
    ];
    let counts = ["received_bytes", "sent_bytes", "total_bytes"];
    row.extend(counts.map(|key| bytes(number(&month[key]))));
    row.extend(month["quota_bytes"].as_u64().map(|quota| {
        let percent = number(&month["total_bytes"]) as f64 * 100.0 / quota as f64;
        format!("{percent:.0} % of {}", bytes(quota))
    }));
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn months_read_as_a_table() {
        let usage = json!({ "networks": [{ "name": "lte", "months": [{ "from": "2026-11-01", "until": "2026-12-01",
            "received_bytes": 8_000_000_000_u64, "sent_bytes": 500_000, "total_bytes": 8_000_500_000_u64,
            "quota_bytes": 10_000_000_000_u64 }] }] });
        let shown = render(&usage);
        assert!(
            shown.contains("lte      2026-11-01  2026-12-01  8.00 GB   500.0 kB  8.00 GB  80 % of 10.00 GB"),
            "{shown}"
        );
    }
}
