//! `hawser history`.

use std::process::ExitCode;

use hawser_config::Span;
use hawser_host::{history, run_dir::Role};
use hawser_linux::clock::local_time_at;
use hawser_terminal::{columns, say};
use serde_json::Value;

use crate::amounts::rate;
use crate::cli_status::{list, number};
use crate::directories::Directories;
use crate::guests::span;

/// Shows rates, round trips and loss of each network over the last hour, day or year.
///
/// Recorded while a daemon is running, in steps of 10 s for a day and of 5 min for a year (history
/// = false in its configuration disables it). The last minute may be missing. It contains nothing
/// about flows and their destinations.
#[derive(Debug, clap::Args)]
pub(crate) struct HistoryArgs {
    /// Shows only networks of these names.
    network: Vec<String>,
    /// Time span to show, up to now: 10min, 1h, 1d, 365d.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = span)]
    last: Span,
    /// Shows the history of this machine's hub, for the paths of its clients.
    #[arg(long)]
    hub: bool,
    /// Prints the result as JSON.
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Prints the result as comma-separated values.
    #[arg(long)]
    csv: bool,
    #[command(flatten)]
    directories: Directories,
}

pub(crate) fn run(args: &HistoryArgs) -> anyhow::Result<ExitCode> {
    let role = if args.hub { Role::Hub } else { Role::Client };
    let mut history = history::read(&history::file(&args.directories.dir, role), args.last.0)?;
    if let Some(networks) = history["networks"].as_object_mut() {
        networks.retain(|name, _| args.network.is_empty() || args.network.contains(name));
    }
    match (args.json, args.csv) {
        (true, _) => say!("{history}")?,
        (false, true) => say!("{}", csv(&history))?,
        (false, false) => say!("{}", table(&history))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns each step of each network.
fn steps(history: &Value) -> impl Iterator<Item = (&String, &[Value])> {
    let networks = history["networks"].as_object().into_iter().flatten();
    networks.flat_map(|(name, steps)| list(steps).iter().map(move |step| (name, list(step))))
}

/// Formats a time with its year, such as `2026-11-25 09:41:10`, in the local time zone.
pub(crate) fn dated_clock(unix_s: u64) -> String {
    let year = local_time_at(i64::try_from(unix_s).unwrap_or(i64::MAX)).year;
    format!("{year}-{}", clock(unix_s))
}

/// Formats a time, such as `11-25 09:41:10`, in the local time zone.
pub(crate) fn clock(unix_s: u64) -> String {
    let time = local_time_at(i64::try_from(unix_s).unwrap_or(i64::MAX));
    let (hour, minute) = (time.minute / 60, time.minute % 60);
    format!(
        "{:02}-{:02} {hour:02}:{minute:02}:{:02}",
        time.month,
        time.day,
        unix_s % 60
    )
}

fn csv(history: &Value) -> String {
    let head = "network,unix_s,seconds,down_bps,up_bps,rtt_ms,rtt_min_ms,rtt_max_ms,loss";
    let rows = steps(history).map(|(name, step)| {
        let name = format!("\"{}\"", name.replace('"', "\"\""));
        let field = |value: &Value| {
            if value.is_null() {
                String::new()
            } else {
                value.to_string()
            }
        };
        let [at, rest @ ..] = step else { return name };
        let rest: Vec<_> = rest.iter().map(field).collect();
        format!("{name},{at},{},{}", history["step_s"], rest.join(","))
    });
    let all: Vec<_> = std::iter::once(head.to_owned()).chain(rows).collect();
    all.join("\n")
}

fn table(history: &Value) -> String {
    let rows: Vec<_> = steps(history)
        .filter_map(|(name, step)| {
            let [at, down, up, trip, least, most, loss] = step else {
                return None;
            };
            let ms = |value: &Value| value.as_f64().map_or("-".to_owned(), |ms| format!("{ms:.1} ms"));
            let loss = loss.as_f64();
            Some(vec![
                clock(number(at)),
                name.clone(),
                rate(number(down)),
                rate(number(up)),
                ms(trip),
                ms(least),
                ms(most),
                loss.map_or("-".to_owned(), |loss| format!("{:.1} %", loss * 100.0)),
            ])
        })
        .collect();
    if rows.is_empty() {
        return "no history of this time: a daemon records it while it is running".to_owned();
    }
    let heads = [
        "from",
        "network",
        "down",
        "up",
        "round trip",
        "min",
        "max",
        "loss",
    ];
    columns(&heads, &rows, "")
}
