//! `hawser-lab bench networks`: goodput of Hawser over several networks, compared with the best
//! single network, the kernel's MPTCP and the sum of the networks' rates.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use hawser_netem::scenario::{Direction, Scenario, Via, Workload};
use hawser_terminal::{refuse, say, show};
use hawser_testbed::{Options, Progress, Tool};

use crate::bench_page;
use crate::bench_rows::{Benchmark, Machine, Row};
use crate::committed;
use crate::committed::Set;
use crate::progress;
use crate::systems::{self, lab_options};

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct NetworksArgs {
    /// Scenario files or names of committed scenarios (`--list`) [default: all committed
    /// scenarios].
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// Number of runs of each system, interleaved with the others.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Replaces the first workload of each scenario.
    #[arg(long, value_enum)]
    inside: Option<Inside>,
    /// Replaces a field of each scenario, e.g. `--set workload.0.direction=up`. May be repeated.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    settings: Vec<String>,
    /// Also measures another tool, whose COMMAND starts one of its two ends (docs/manual/bench.md).
    /// May be repeated.
    #[arg(long = "tool", value_name = "NAME=COMMAND")]
    tools: Vec<Tool>,
    /// Also measures every tool in a directory, e.g. `scripts/tools`; tools that cannot run on this
    /// machine are skipped with a message.
    #[arg(long = "tools", value_name = "DIR")]
    tools_of: Option<PathBuf>,
    /// Writes a self-contained HTML page with plots to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    /// Lists the committed scenarios and runs nothing.
    #[arg(long)]
    list: bool,
}

/// A bulk transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Inside {
    /// TCP connection with CUBIC.
    Tcp,
    /// Sixteen TCP connections with CUBIC.
    #[value(name = "16-tcp")]
    SixteenTcp,
    /// QUIC connection.
    Quic,
}

impl Inside {
    fn workload(self, direction: Direction) -> Workload {
        let tcp = |streams| Workload::Tcp {
            direction,
            streams,
            congestion: "cubic".to_owned(),
        };
        match self {
            Self::Tcp => tcp(1),
            Self::SixteenTcp => tcp(16),
            Self::Quic => Workload::Quic {
                direction,
                streams: 1,
            },
        }
    }
}

const HELP: &str = "\
Runs in network namespaces with real sockets; needs root. A scenario takes its duration, \
multiplied by the number of systems and by the number of runs.

Examples:
  sudo hawser-lab bench networks                               all committed scenarios: 25 minutes
  sudo hawser-lab bench networks rtt-70 my.toml --runs 5
  sudo hawser-lab bench networks --inside quic
  sudo hawser-lab bench networks --html networks.html
  sudo hawser-lab bench networks --tools scripts/tools
  sudo hawser-lab bench networks --tool 'ecmp=scripts/tools/ecmp'
  sudo hawser-lab bench networks --set workload.0.direction=up --json";

/// Runs the command; exit code 0 success, 64 a scenario that cannot be run.
///
/// # Errors
/// When the lab cannot be built or a run fails.
pub(crate) fn run(args: &NetworksArgs) -> anyhow::Result<ExitCode> {
    if args.list {
        show!("{}", SET.list())?;
        return Ok(ExitCode::SUCCESS);
    }
    let tools = match tools(args) {
        Ok(tools) => tools,
        Err(problem) => return Ok(refuse(format!("{problem:#}"))),
    };
    let scenarios = match find(args, &tools) {
        Ok(scenarios) => scenarios,
        Err(problem) => return Ok(refuse(problem)),
    };
    let options = Options {
        tools,
        ..lab_options(None)?
    };
    let result = Benchmark {
        version: 1,
        runs: args.runs,
        machine: Machine::here(),
        scenarios: measure(args, scenarios, &options)?,
        tools: options.tools,
    };
    if let Some(file) = &args.html {
        std::fs::write(file, bench_page::write(&result))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if args.json {
        say!("{}", serde_json::to_string(&result)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs all measurements, and prints each scenario's line as soon as it is complete.
fn measure(
    args: &NetworksArgs,
    scenarios: Vec<(String, Scenario, Vec<Via>)>,
    options: &Options,
) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    if !args.json {
        say!("{}", heading(args.runs, &options.tools))?;
    }
    for (name, scenario, systems) in scenarios {
        let mut on_progress = |now: &Progress<'_>| {
            let share = now.elapsed.as_secs_f64() / now.duration.as_secs_f64().max(1e-9);
            progress::line(|| format!("{name}: {} {:.0} %", now.via.label(), share * 100.0));
        };
        let comparison = hawser_testbed::compare(&scenario, &systems, args.runs, options, &mut on_progress)?;
        progress::clear_line();
        let row = Row::new(name, &scenario, comparison);
        if !args.json {
            say!("{}", row.to_text(&options.tools))?;
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Returns the requested tools; of a directory, only those that can run on this machine.
fn tools(args: &NetworksArgs) -> anyhow::Result<Vec<Tool>> {
    let mut tools = args.tools.clone();
    if let Some(directory) = &args.tools_of {
        let (found, left_out) = Tool::all_of(directory)?;
        for tool in left_out {
            progress::note(&format!("{} is left out: {}", tool.name, tool.why));
        }
        for tool in &found {
            let version = tool.version.as_deref().unwrap_or_default();
            progress::note(&format!("{}: {version}", tool.name));
        }
        tools.extend(found);
    }
    Ok(tools)
}

/// Returns the requested scenarios, each with the systems to measure.
fn find(args: &NetworksArgs, tools: &[Tool]) -> Result<Vec<(String, Scenario, Vec<Via>)>, String> {
    let scenarios = SET.find(&args.scenarios, &args.settings)?.into_iter();
    scenarios
        .map(|(name, mut scenario)| {
            let direction = scenario.bulk_direction();
            if let (Some(inside), Some(first)) = (args.inside, scenario.workloads.first_mut()) {
                *first = inside.workload(direction);
            }
            let mut systems = systems_of(&name, &scenario)?;
            systems.extend(tools.iter().map(|tool| Via::Tool(tool.name.clone())));
            Ok((name, scenario, systems))
        })
        .collect()
}

/// Returns the scenario's own system, each network alone, and MPTCP if all workloads are TCP.
fn systems_of(name: &str, scenario: &Scenario) -> Result<Vec<Via>, String> {
    let is_tcp = scenario
        .workloads
        .iter()
        .all(|workload| matches!(workload, Workload::Tcp { .. }));
    let versus = if is_tcp {
        vec![Via::Mptcp.label()]
    } else {
        Vec::new()
    };
    systems::in_lab(name, scenario, true, &versus)
}

fn heading(runs: u32, tools: &[Tool]) -> String {
    let names = ["hawser", "best one", "mptcp"].into_iter();
    let names = names.chain(tools.iter().map(|tool| tool.name.as_str()));
    let columns: String = names.map(|name| format!(" {name:>25}")).collect();
    format!(
        "goodput in Mbit/s, medians of {runs} (min..max)\n{:<20}{columns} {:>8} {:>8}",
        "scenario", "of best", "of sum"
    )
}

/// The committed scenarios.
const SET: Set = Set {
    directory: "bench",
    scenarios: committed!["bench": "baseline", "rtt-70", "loss-2", "bw-10to1", "fiber-lte", "jit-20", "four"],
    trace: "",
    listed_by: "hawser-lab bench networks --list",
};

#[cfg(test)]
mod tests {
    use hawser_netem::report::Spread;

    use super::*;
    use crate::bench_rows::cell;
    use crate::committed::assert_complete;

    #[test]
    fn the_set_is_complete() {
        assert_complete(&SET);
    }

    #[test]
    fn each_network_and_mptcp_stand_beside_hawser() {
        let all = SET.find(&["four".to_owned()], &[]).expect("a scenario");
        let labels: Vec<String> = systems_of(&all[0].0, &all[0].1)
            .expect("legal")
            .iter()
            .map(Via::label)
            .collect();
        assert_eq!(
            labels,
            ["hub", "single:a", "single:b", "single:c", "single:d", "mptcp"]
        );
    }

    #[test]
    fn a_tool_is_a_way_and_a_column_with_its_spread() {
        let heading = heading(3, &["ecmp=./ecmp".parse().expect("a tool")]);
        let last = heading.lines().last().expect("two lines");
        let spread = Spread {
            median: 93.5e6,
            min: 90e6,
            max: 94.25e6,
        };
        assert_eq!(cell(Some(spread)), "    93.50   (90.00..94.25)");
        assert_eq!(cell(None).len(), 26);
        assert_eq!(last.find("ecmp"), Some(20 + 4 * 26 - 4));
    }
}
