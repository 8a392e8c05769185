//! `hawser-lab conform`: comparison of the simulator with real packets.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context;
use hawser_netem::report::Spread;
use hawser_netem::scenario::Scenario;
use hawser_sim::run as sim;
use hawser_terminal::{refuse, say, show};
use hawser_testbed::{Kernel, Options, cards_wanted};
use serde::Serialize;

use crate::cli_uml;
use crate::committed;
use crate::committed::Set;
use crate::progress;
use crate::systems::lab_options;

/// Compares the simulator with the lab, by running the same scenarios in both.
///
/// Prints the goodput of both. Exits with 1 if the medians of a scenario differ by more than 10 %.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct ConformArgs {
    /// Scenario files or names of committed scenarios (`--list`) [default: all committed
    /// scenarios].
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// Number of runs of each scenario in the simulator and in the lab, each with the next seed.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    /// Runs the simulator only: without root, in a few seconds, and without a verdict.
    #[arg(long)]
    sim_only: bool,
    /// Selects the committed scenarios with 802.11 links, and runs them on real 802.11 stacks in a
    /// separate kernel (`hawser-lab uml`), in virtual time and without root.
    #[arg(long, conflicts_with = "sim_only")]
    air: bool,
    /// Lists the committed scenarios and runs nothing.
    #[arg(long)]
    list: bool,
}

const HELP: &str = "\
Examples:
  sudo hawser-lab conform                      all committed scenarios, three runs: twelve minutes
  sudo hawser-lab conform hub-delays my.toml   one of them and one of your own
  hawser-lab conform --air                     Wi-Fi networks, with real 802.11 stacks
  hawser-lab conform --sim-only --json         only the simulator, output for programs";

/// Runs the command; exit code 0 all agree, 1 some differ, 64 a scenario that cannot be run.
///
/// # Errors
/// When the lab cannot be built or a run fails.
pub(crate) fn run(args: &ConformArgs) -> anyhow::Result<ExitCode> {
    let set = if args.air { &AIR } else { &SET };
    if args.list {
        show!("{}", set.list())?;
        return Ok(ExitCode::SUCCESS);
    }
    let scenarios = match set.find(&args.scenarios, &[]) {
        Ok(scenarios) => scenarios,
        Err(problem) => return Ok(refuse(problem)),
    };
    if args.air && !Kernel::is_here() {
        return in_kernel(args, &scenarios);
    }
    let lab = if args.sim_only {
        None
    } else {
        Some(lab_options(None)?)
    };
    let mut rows = Vec::new();
    if !args.json {
        say!("{}", heading(args.runs))?;
    }
    for (name, scenario) in &scenarios {
        let row = compare(name, scenario, args.runs, lab.as_ref())?;
        if !args.json {
            say!("{}", row.to_text())?;
        }
        rows.push(row);
    }
    let conformity = Conformity::new(args.runs, rows);
    if args.json {
        say!("{}", serde_json::to_string(&conformity)?)?;
    } else if lab.is_some() {
        say!("{}", conformity.to_text())?;
    }
    Ok(if conformity.beyond == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the same command in a kernel with the largest number of cards that a scenario needs.
fn in_kernel(args: &ConformArgs, scenarios: &[(String, Scenario)]) -> anyhow::Result<ExitCode> {
    let mut kernel = Kernel::find()?;
    let wanted = scenarios.iter().map(|(_, scenario)| cards_wanted(scenario));
    kernel.cards = wanted.max().unwrap_or_default();
    let mut words = vec!["conform".into(), "--air".into()];
    words.extend(["--runs".into(), args.runs.to_string().into()]);
    if args.json {
        words.push("--json".into());
    }
    words.extend(args.scenarios.iter().map(OsString::from));
    cli_uml::this_program(&kernel, &words)
}

fn compare(name: &str, scenario: &Scenario, runs: u32, lab: Option<&Options>) -> anyhow::Result<Row> {
    let (mut simulated, mut measured) = (Vec::new(), Vec::new());
    for round in 0..runs {
        let mut scenario = scenario.clone();
        scenario.seed = scenario.seed.wrapping_add(u64::from(round));
        let outcome = sim::run(&scenario, &scenario.via, sim::Watch::default(), &mut |_| {})
            .with_context(|| format!("{name}: simulator"))?;
        simulated.push(outcome.report.goodput_bps.total);
        if let Some(options) = lab {
            let line = format!("{name}: run {} of {runs}", round + 1);
            let report = hawser_testbed::run(&scenario, &scenario.via, options, &mut |_| {
                progress::line(|| line.clone());
            })
            .with_context(|| format!("{name}: lab"))?;
            progress::clear_line();
            measured.push(report.goodput_bps.total);
        }
    }
    Ok(Row::new(name, scenario, simulated, measured))
}

/// Results of all scenarios of one call.
#[derive(Debug, Serialize)]
struct Conformity {
    version: u32,
    runs: u32,
    /// Maximum deviation of `ratio` from 1.
    tolerance: f64,
    /// Number of scenarios whose `ratio` deviates more.
    beyond: usize,
    scenarios: Vec<Row>,
}

/// Results of one scenario in simulator and lab. Units: goodput in bit/s.
#[derive(Debug, Serialize)]
struct Row {
    scenario: String,
    via: String,
    sim: Option<Spread>,
    lab: Option<Spread>,
    sim_runs: Vec<f64>,
    lab_runs: Vec<f64>,
    /// Simulator's median divided by the lab's; `None` without the lab.
    ratio: Option<f64>,
    agrees: Option<bool>,
}

impl Row {
    fn new(name: &str, scenario: &Scenario, sim_runs: Vec<f64>, lab_runs: Vec<f64>) -> Self {
        let (sim, lab) = (Spread::of(sim_runs.clone()), Spread::of(lab_runs.clone()));
        let ratio = match (sim, lab) {
            // Equal medians agree, also when both are zero.
            (Some(sim), Some(lab)) if sim.median == lab.median => Some(1.0),
            (Some(sim), Some(lab)) => Some(sim.median / lab.median.max(1.0)),
            (Some(_) | None, None) | (None, Some(_)) => None,
        };
        Self {
            scenario: name.to_owned(),
            via: scenario.via.label(),
            sim,
            lab,
            sim_runs,
            lab_runs,
            ratio,
            agrees: ratio.map(|ratio| (ratio - 1.0).abs() <= TOLERANCE),
        }
    }

    fn to_text(&self) -> String {
        let world = |spread: Option<Spread>| {
            spread.map_or(String::new(), |s| {
                let range = format!("[{:.2}..{:.2}]", s.min / 1e6, s.max / 1e6);
                format!("{:>8.2} {range:<16}", s.median / 1e6)
            })
        };
        let ratio = self.ratio.map_or(String::new(), |ratio| format!("{ratio:>6.3}"));
        let verdict = if self.agrees == Some(false) {
            "  beyond"
        } else {
            ""
        };
        let line = format!(
            "  {:<22} {:<13} {} {:<25} {ratio}{verdict}",
            self.scenario,
            self.via,
            world(self.sim),
            world(self.lab)
        );
        line.trim_end().to_owned()
    }
}

impl Conformity {
    fn new(runs: u32, scenarios: Vec<Row>) -> Self {
        Self {
            version: 1,
            runs,
            tolerance: TOLERANCE,
            beyond: scenarios.iter().filter(|row| row.agrees == Some(false)).count(),
            scenarios,
        }
    }

    fn to_text(&self) -> String {
        let all = self.scenarios.len();
        format!("{} of {all} within {:.0} %", all - self.beyond, TOLERANCE * 100.0)
    }
}

fn heading(runs: u32) -> String {
    format!(
        "goodput in Mbit/s, medians of {runs}, min..max in brackets\n  {:<22} {:<13} {:>8} {:<16} {:>8} {:<16} {:>6}",
        "scenario", "via", "sim", "", "lab", "", "ratio"
    )
}

/// The committed scenarios.
const SET: Set = Set {
    directory: "conform",
    scenarios: committed!["conform":
        "single-tcp",
        "single-tcp-far",
        "single-tcp-loss",
        "single-tcp-trace",
        "single-tcp-outage",
        "single-udp",
        "hub-equal",
        "hub-rates",
        "hub-delays",
        "hub-rates-and-delays",
        "hub-loss",
        "hub-trace",
        "hub-outage",
        "hub-upload",
        "hub-udp",
        "mptcp-equal",
        "mptcp-unequal",
        "mptcp-outage",
        "single-mtu",
        "single-mtu-answered",
        "single-policer",
        "single-ecn",
        "single-hang",
        "hub-ecn",
        "hub-nat",
        "hub-carrier",
    ],
    trace: include_str!("../../../scenarios/conform/cell.csv"),
    listed_by: "hawser-lab conform --list",
};

/// The committed scenarios with 802.11 links.
const AIR: Set = Set {
    directory: "air",
    scenarios: committed!["air":
        "one",
        "lossy",
        "weak",
        "aggregated",
        "crowded",
        "one-channel",
        "one-channel-shared",
        "two-channels",
    ],
    trace: "",
    listed_by: "hawser-lab conform --air --list",
};

/// Tolerance of the ratio. Source: a choice between two systems whose results differ by more is the
/// same in simulator and lab.
const TOLERANCE: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::committed::assert_complete;

    fn row(sim: &[f64], lab: &[f64]) -> Row {
        let all = SET.find(&[], &[]).expect("scenarios");
        let (_, scenario) = &all[0];
        Row::new("x", scenario, sim.to_vec(), lab.to_vec())
    }

    #[test]
    fn a_tenth_is_the_limit() {
        let verdict = |sim, lab| row(&[sim], &[lab]).agrees;
        assert_eq!(verdict(109.0, 100.0), Some(true));
        assert_eq!(verdict(111.0, 100.0), Some(false));
        assert_eq!(verdict(89.0, 100.0), Some(false));
        assert_eq!(verdict(0.0, 0.0), Some(true));
        assert_eq!(verdict(5e6, 0.0), Some(false));
        assert_eq!(row(&[1.0], &[]).agrees, None);
    }

    #[test]
    fn medians_are_compared_and_what_differs_is_counted() {
        let near = row(&[1.0, 100.0, 101.0], &[99.0, 100.0, 500.0]);
        assert_eq!(near.ratio, Some(1.0));
        let far = row(&[50.0], &[100.0]);
        assert!(far.to_text().ends_with("0.500  beyond"), "{}", far.to_text());
        let conformity = Conformity::new(3, vec![near, far]);
        assert_eq!(conformity.beyond, 1);
        assert_eq!(conformity.to_text(), "1 of 2 within 10 %");
    }

    #[test]
    fn every_file_is_in_the_set_and_every_one_of_the_set_is_legal() {
        assert_complete(&SET);
        assert_complete(&AIR);
        assert!(SET.scenarios.len() >= 12);
    }

    #[test]
    fn an_unknown_scenario_is_refused() {
        let problem = SET.find(&["no-such".to_owned()], &[]).expect_err("there is none");
        assert!(
            problem.contains("no-such") && problem.contains("--list"),
            "{problem}"
        );
    }
}
