//! `hawser-lab replay`: replays a recording, unchanged and with changes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use hawser_config::Size;
use hawser_experiments::replay::Replay;
use hawser_experiments::sweep::{self, Cell, Row};
use hawser_netem::scenario::Scenario;
use hawser_recording::Recording;
use hawser_terminal::{columns, refuse, say, show};
use hawser_testbed::read_file;
use serde_json::{Value, json};

/// Replays a recording (`hawser record`) in virtual time, unchanged and with changes.
///
/// The changes are those of --set, --policy, --quota and --add-network.
#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// Recording file.
    recording: PathBuf,
    /// Replaces a field, e.g. `--set workload.0.streams=16` or `--set 'schedulers={ bulk =
    /// "min-rtt" }'`. May be repeated.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    settings: Vec<String>,
    /// System that transfers the traffic instead of Hawser and a hub: direct (Hawser without a
    /// hub), mptcp or single:NETWORK.
    #[arg(long, value_name = "VIA")]
    policy: Option<String>,
    /// Removes a network once it has transferred this amount in the recording, e.g.
    /// `network-2=500MB`. May be repeated.
    #[arg(long = "quota", value_name = "NETWORK=AMOUNT", value_parser = quota)]
    quotas: Vec<(String, Size)>,
    /// Adds the [[network]] tables of this file. May be repeated.
    #[arg(long, value_name = "TOML")]
    add_network: Vec<PathBuf>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Scenarios of a replay.
struct Runs {
    as_recorded: Scenario,
    what_if: Option<Scenario>,
    recorded_bps: f64,
    notes: Vec<String>,
}

/// Runs the command; exit code 0 success, 1 a failed run, 64 an unusable recording or change.
///
/// # Errors
/// When a run fails.
pub(crate) fn run(args: &ReplayArgs) -> anyhow::Result<ExitCode> {
    let runs = match prepare(args) {
        Ok(runs) => runs,
        Err(problem) => return Ok(refuse(problem)),
    };
    let measure = |scenario: &Scenario| sweep::simulated(scenario).map_err(anyhow::Error::msg);
    let as_recorded = measure(&runs.as_recorded)?;
    let what_if = runs.what_if.as_ref().map(measure).transpose()?;
    if args.json {
        say!(
            "{}",
            json!({ "version": 1, "recorded_receive_bps": runs.recorded_bps, "notes": runs.notes,
                "as_recorded": object(&as_recorded), "what_if": what_if.as_ref().map(object) })
        )?;
    } else {
        show!("{}", text(&runs, &as_recorded, what_if.as_ref()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn prepare(args: &ReplayArgs) -> Result<Runs, String> {
    let path = args.recording.as_path();
    let read = |path: &Path| {
        let text = std::fs::read_to_string(path);
        text.map_err(|error| format!("{}: cannot be read: {error}", path.display()))
    };
    let in_file = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let recording = Recording::parse(&read(path)?).map_err(|error| in_file(&error))?;
    let mut replay = Replay::of(&recording).map_err(|error| in_file(&error))?;
    let mut files = read_file;
    let parse = |replay: &Replay, settings: &[String]| {
        let scenario = replay.parse(path, settings, &mut read_file);
        scenario.map_err(|error| error.to_string())
    };
    let as_recorded = parse(&replay, &[])?;
    if !args.quotas.is_empty() {
        let mut limited = recording.clone();
        for (network, Size(bytes)) in &args.quotas {
            limited = limited
                .with_quota(network, *bytes)
                .ok_or_else(|| format!("--quota {network}: the recording has no network of this name"))?;
        }
        replay = Replay::of(&limited).map_err(|error| in_file(&error))?;
    }
    let mut changes: Vec<String> = args.policy.iter().map(|via| format!("via={via}")).collect();
    changes.extend_from_slice(&args.settings);
    for added in &args.add_network {
        replay
            .add_networks(&read(added)?, added, &mut files)
            .map_err(|error| error.to_string())?;
    }
    let is_changed = !changes.is_empty() || !args.quotas.is_empty() || !args.add_network.is_empty();
    Ok(Runs {
        as_recorded,
        what_if: is_changed.then(|| parse(&replay, &changes)).transpose()?,
        recorded_bps: recording.mean_receive_bps(),
        notes: replay.notes,
    })
}

fn quota(text: &str) -> Result<(String, Size), String> {
    let expected = "expected a network and an amount with its unit, such as network-2=500MB";
    let (network, amount) = text.split_once('=').ok_or(expected)?;
    let amount = amount.parse().map_err(|()| expected)?;
    Ok((network.to_owned(), amount))
}

fn object(row: &Row) -> Value {
    let fields = row.0.iter().map(|(name, cell)| (name.clone(), json!(cell)));
    Value::Object(fields.collect())
}

fn text(runs: &Runs, as_recorded: &Row, what_if: Option<&Row>) -> String {
    let mut out = format!(
        "received while recording: {:.2} Mbit/s on average\n",
        runs.recorded_bps / 1e6
    );
    for note in &runs.notes {
        out += &format!("note: {note}\n");
    }
    let rows: Vec<Vec<String>> = PRINTED
        .iter()
        .filter_map(|(field, unit, factor)| {
            let cell = |row: &Row| number(row, field).map(|value| format!("{:.2}", value * factor));
            let before = cell(as_recorded)?;
            let after = what_if.map_or(Some(String::new()), cell).unwrap_or_default();
            Some(vec![format!("{field} ({unit})"), before, after])
        })
        .collect();
    let heads: &[&str] = match what_if {
        Some(_) => &["simulated", "as recorded", "what if"],
        None => &["simulated", "as recorded"],
    };
    out + &columns(heads, &rows, "\n")
}

fn number(row: &Row, field: &str) -> Option<f64> {
    let (_, cell) = row.0.iter().find(|(name, _)| name == field)?;
    match cell {
        Cell::Int(value) => Some(*value as f64),
        Cell::Float(value) => Some(*value),
        Cell::Null | Cell::Bool(_) | Cell::Text(_) => None,
    }
}

/// Fields to print, where the simulator reports them: field, printed unit, and the factor from the
/// field's own unit.
const PRINTED: [(&str, &str, f64); 6] = [
    ("goodput_bps.total", "Mbit/s", 1e-6),
    ("longest_gap_ms", "ms", 1.0),
    ("rtt_ms.p50", "ms", 1.0),
    ("rtt_ms.p99", "ms", 1.0),
    ("retransmitted", "segments", 1.0),
    ("reordered", "packets", 1.0),
];
