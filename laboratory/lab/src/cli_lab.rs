//! `hawser-lab lab`: runs a scenario on real packets.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use hawser_netem::scenario::Scenario;
use hawser_testbed::{Progress, read_scenario};

use crate::progress;
use crate::systems::{self, lab_options};
use hawser_terminal::{refuse, say, show};

/// Runs a scenario with real kernel sockets and emulated networks.
#[derive(Debug, clap::Args)]
pub(crate) struct LabArgs {
    /// Scenario file, TOML.
    pub(crate) scenario: PathBuf,
    /// Replaces a field, e.g. `--set workload.0.streams=16` or `--set via=mptcp`. May be repeated.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    pub(crate) settings: Vec<String>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    /// Also runs each network alone, interleaved with the scenario's own system.
    #[arg(long)]
    pub(crate) compare: bool,
    /// Also runs this system (hub, direct, direct-mptcp, peer, repeater, mptcp or single:NETWORK),
    /// interleaved with the others. May be repeated.
    #[arg(long = "vs", value_name = "VIA")]
    pub(crate) versus: Vec<String>,
    /// Runs each system N times, each round with the next seed, and prints medians.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Keeps the daemons' configurations and logs in this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
}

impl LabArgs {
    /// Returns the equivalent command line.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let mut words = vec![self.scenario.clone().into_os_string()];
        for (name, values) in [("--set", &self.settings), ("--vs", &self.versus)] {
            words.extend(values.iter().flat_map(|value| [name.into(), value.into()]));
        }
        words.extend(["--runs".into(), self.runs.to_string().into()]);
        let flags = [("--json", self.json), ("--compare", self.compare)];
        words.extend(
            flags
                .iter()
                .filter(|(_, is_set)| *is_set)
                .map(|(name, _)| name.into()),
        );
        if let Some(keep) = &self.keep {
            words.extend(["--keep".into(), keep.into()]);
        }
        words
    }
}

/// Runs the command; exit code 0 success, 1 failure while running, 64 a scenario that cannot be
/// run.
///
/// # Errors
/// When the lab cannot be built or a run fails.
pub(crate) fn run(args: LabArgs) -> anyhow::Result<ExitCode> {
    let scenario = match read_scenario(&args.scenario, &args.settings) {
        Ok(scenario) => scenario,
        Err(error) => return Ok(refuse(error)),
    };
    let file = args.scenario.display();
    let systems = match systems::in_lab(file, &scenario, args.compare, &args.versus) {
        Ok(systems) => systems,
        Err(problem) => return Ok(refuse(problem)),
    };
    let options = lab_options(args.keep.as_deref())?;
    let mut on_progress = |now: &Progress<'_>| progress::line(|| describe(&scenario, now));
    if systems.len() == 1 && args.runs == 1 {
        let report = hawser_testbed::run(&scenario, &systems[0], &options, &mut on_progress)?;
        progress::clear_line();
        print(args.json, || serde_json::to_string(&report), &report.to_text())?;
    } else {
        let comparison = hawser_testbed::compare(&scenario, &systems, args.runs, &options, &mut on_progress)?;
        progress::clear_line();
        print(
            args.json,
            || serde_json::to_string(&comparison),
            &comparison.to_text(),
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(as_json: bool, json: impl FnOnce() -> serde_json::Result<String>, text: &str) -> anyhow::Result<()> {
    if as_json {
        say!("{}", json()?)?;
    } else {
        show!("{text}")?;
    }
    Ok(())
}

/// Returns a progress line of a run: system, time, and goodput per network in Mbit/s.
fn describe(scenario: &Scenario, now: &Progress<'_>) -> String {
    let networks: Vec<String> = scenario
        .networks
        .iter()
        .zip(&now.networks_bps)
        .map(|(network, bps)| format!("{} {:.1}", network.name, bps / 1e6))
        .collect();
    format!(
        "{} {:.1}/{:.0} s: {:.1} Mbit/s ({})",
        now.via.label(),
        now.elapsed.as_secs_f64(),
        now.duration.as_secs_f64(),
        now.goodput_bps / 1e6,
        networks.join(", ")
    )
}
