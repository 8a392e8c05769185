//! `hawser radio`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use hawser_air as radio;
use hawser_config::{self as config, ClientConfig, Span};
use hawser_host::control_socket::{Request, ask, is_alive};
use hawser_host::finding::Finding;
use hawser_host::run_dir::Role;
use hawser_terminal::{columns, say};
use serde_json::{Value, json};

use crate::amounts::rate;
use crate::cli_status::{list, number, text};
use crate::directories::Directories;
use crate::guests::span;
use crate::logs::LogArgs;
use crate::runtime::runtime;

/// Shows the Wi-Fi cards: what Hawser can do with each, what limits it, and the joined networks.
///
/// While `hawser up` is running, it joins known networks automatically, as many at a time as a card
/// supports in addition to the interfaces of other programs. Known networks are those that
/// NetworkManager, iwd or wpa_supplicant has saved, and those under [[radio.network]] in
/// client.toml. [radio] selects among them.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct RadioArgs {
    #[command(subcommand)]
    command: Option<RadioCommand>,
    #[command(flatten)]
    how: How,
}

/// Form of the output, and location of the configuration.
#[derive(Debug, clap::Args)]
struct How {
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

#[derive(Debug, clap::Subcommand)]
enum RadioCommand {
    /// Scans all channels for some seconds, and lists the access points: name, channel, signal,
    /// security, and the program that has saved the network. Needs root.
    Scan(How),
    /// Tests the cards with the known networks in range, and writes a report about cards and
    /// drivers.
    ///
    /// Joins networks as `hawser up` does, asks the router behind each for echoes ten times a
    /// second, and leaves the networks again. `hawser up` must not run meanwhile. The report names
    /// cards, drivers and firmware, and no networks or addresses. Needs root.
    ///
    /// Fails if a finding is bad.
    Check(Check),
    /// Sets the number of consecutive slots of a network, if a card serves several channels in turn
    /// (slots = true under [radio]).
    Weight(Weigh),
}

/// Duration of the test, and the file for the report.
#[derive(Debug, clap::Args)]
struct Check {
    /// Time for which the networks are observed after the last one was joined: 10s to 30min.
    #[arg(long = "for", value_name = "TIME", default_value = "3min", value_parser = span)]
    duration: Span,
    /// File for the report, as JSON.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    how: How,
}

/// Network, and its share of the card.
#[derive(Debug, clap::Args)]
struct Weigh {
    /// The network's name.
    network: String,
    /// Number of consecutive slots, 1 to 10.
    weight: u32,
    #[command(flatten)]
    how: How,
}

pub(crate) fn run(args: &RadioArgs) -> anyhow::Result<ExitCode> {
    let (is_scan, how) = match &args.command {
        Some(RadioCommand::Weight(wanted)) => return weigh(wanted),
        Some(RadioCommand::Check(check)) => return examine(check),
        Some(RadioCommand::Scan(how)) => (true, how),
        None => (false, &args.how),
    };
    let config: ClientConfig = config::load_or_default(&how.directories.dir.join("client.toml"))?;
    let runtime = runtime()?;
    let said = if is_scan {
        runtime.block_on(radio::cards::scan(&config))?
    } else {
        let mut said = runtime.block_on(radio::cards::describe())?;
        said["known"] = radio::cards::known(&config.radio);
        let socket = how.directories.client_socket();
        said["joined"] = if is_alive(&socket) {
            ask(&socket, &Request::Status)?["radio"].take()
        } else {
            json!([])
        };
        said
    };
    if how.json {
        say!("{said}")?;
    } else {
        let shown = if is_scan {
            render_scan(&said)
        } else {
            render(&said)
        };
        say!("{}", shown.trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn weigh(wanted: &Weigh) -> anyhow::Result<ExitCode> {
    let request = Request::Weight {
        network: wanted.network.clone(),
        weight: wanted.weight,
    };
    let said = ask(&wanted.how.directories.client_socket(), &request)?;
    if wanted.how.json {
        say!("{said}")?;
    } else {
        say!("{} has {} consecutive slots", wanted.network, wanted.weight)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn examine(args: &Check) -> anyhow::Result<ExitCode> {
    let listen = args.duration.0;
    if !(Duration::from_secs(10)..=Duration::from_secs(1_800)).contains(&listen) {
        bail!("--for is 10s to 30min, for example --for 3min");
    }
    if !hawser_linux::process::is_root() {
        bail!("needs root to join networks: run `sudo hawser radio check`");
    }
    let places = &args.how.directories;
    let socket = places.client_socket();
    if is_alive(&socket) {
        bail!("`hawser up` uses the cards: run `hawser down` first");
    }
    let mut config: ClientConfig = config::load_or_default(&places.dir.join("client.toml"))?;
    config.radio.enabled = true;
    LogArgs::warn()?;
    let is_watched = std::io::stderr().is_terminal();
    // Each line replaces the one before (ECMA-48, erase in line).
    let tell = |line: String| {
        if is_watched {
            eprint!("\r{line}\x1b[K");
        }
    };
    let run_dir = places.run_dir(Role::Client);
    let checked = radio::check::check((&places.dir, &run_dir), &config, listen, tell);
    let report = runtime()?.block_on(checked);
    if is_watched {
        eprintln!();
    }
    let report = report?;
    if let Some(file) = &args.out {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if args.how.json {
        say!("{}", json!(report))?;
    } else {
        let lines: Vec<_> = report.findings.iter().flat_map(Finding::lines).collect();
        say!("{}", lines.join("\n"))?;
    }
    Ok(if report.is_good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn render(said: &Value) -> String {
    let mut out = String::new();
    for card in list(&said["cards"]) {
        let driver = card["driver"].as_str().unwrap_or("unknown");
        out += &format!(
            "{} (driver {driver}): {}\n",
            text(&card["card"]),
            text(&card["can"])
        );
        if let Some(cannot) = card["cannot"].as_str() {
            out += &format!("  not {cannot}\n");
        }
        for interface in list(&card["interfaces"]) {
            let where_to = match (interface["ssid"].as_str(), interface["channel"].as_u64()) {
                (Some(ssid), Some(channel)) => format!(", {ssid} (ch {channel})"),
                (_, Some(channel)) => format!(", ch {channel}"),
                _ => String::new(),
            };
            let up = if interface["up"] == true { "" } else { ", down" };
            out += &format!(
                "  {}: {}{up}{where_to}\n",
                text(&interface["name"]),
                text(&interface["kind"])
            );
        }
    }
    let joined: Vec<_> = list(&said["joined"]).iter().map(station).collect();
    if !joined.is_empty() {
        let heads = [
            "station", "network", "channel", "state", "signal", "rate", "retried", "share",
        ];
        out += &columns(&heads, &joined, "\n");
        out.push('\n');
    }
    let known: Vec<_> = list(&said["known"])
        .iter()
        .map(|known| {
            let (ssid, by) = (text(&known["ssid"]), text(&known["known_by"]));
            match known["not_joined"].as_str() {
                Some(why) => format!("{ssid} ({by}, not joined: {why})"),
                None => format!("{ssid} ({by})"),
            }
        })
        .collect();
    if known.is_empty() {
        out +=
            "no known network: save one in NetworkManager, or add a [[radio.network]] table to client.toml";
    } else {
        out += &format!("known networks: {}", known.join(", "));
    }
    out
}

fn station(station: &Value) -> Vec<String> {
    let percent = |part: &Value| {
        part.as_f64()
            .map_or("-".to_owned(), |part| format!("{:.0} %", part * 100.0))
    };
    vec![
        text(&station["interface"]).to_owned(),
        text(&station["ssid"]).to_owned(),
        station["channel"]
            .as_u64()
            .map_or("-".to_owned(), |channel| channel.to_string()),
        text(&station["state"]).to_owned(),
        station["signal_dbm"]
            .as_i64()
            .map_or("-".to_owned(), |signal| format!("{signal} dBm")),
        station["send_rate_bps"].as_u64().map_or("-".to_owned(), rate),
        percent(&station["retried"]),
        percent(&station["share"]),
    ]
}

fn render_scan(said: &Value) -> String {
    let rows: Vec<_> = list(&said["networks"])
        .iter()
        .map(|network| {
            let name = match text(&network["ssid"]) {
                "" => "(hidden)",
                name => name,
            };
            vec![
                name.to_owned(),
                text(&network["bssid"]).to_owned(),
                number(&network["channel"]).to_string(),
                format!("{} dBm", network["signal_dbm"]),
                text(&network["security"]).to_owned(),
                network["known_by"].as_str().unwrap_or("-").to_owned(),
                network["joined_by"].as_str().unwrap_or("-").to_owned(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "no access point was found".to_owned();
    }
    columns(
        &[
            "network",
            "bssid",
            "channel",
            "signal",
            "security",
            "known by",
            "joined by",
        ],
        &rows,
        "",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_and_stations_read_as_text() {
        let said = json!({
            "cards": [{ "card": "phy0", "driver": "iwlwifi", "can": "joins up to 2 access points at a time, all on one channel",
                "cannot": "several channels: its driver serves one at a time",
                "interfaces": [{ "name": "wlan0", "kind": "station", "up": true, "ssid": "home", "channel": 36 }] }],
            "joined": [{ "interface": "wlan0", "ssid": "home", "channel": 36, "state": "joined", "signal_dbm": -52,
                "send_rate_bps": 65_000_000, "retried": 0.07, "share": 0.62 }],
            "known": [{ "ssid": "home", "known_by": "NetworkManager" }],
        });
        let shown = render(&said);
        for part in [
            "phy0 (driver iwlwifi): joins up to 2",
            "wlan0: station, home (ch 36)",
            "-52 dBm",
            "62 %",
            "known networks: home (NetworkManager)",
        ] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
    }
}
