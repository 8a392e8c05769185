//! `hawser-lab oracle`: the best that any scheduler could have done.

use std::path::PathBuf;
use std::process::ExitCode;

use hawser_netem::oracle;
use hawser_netem::oracle::delay::Earliest;
use hawser_netem::scenario::Scenario;
use hawser_terminal::{refuse, say};
use hawser_testbed::read_scenario;
use hawser_units::Rate;
use serde_json::json;

/// Prints the most that any scheduler could have delivered over the networks of a scenario.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct OracleArgs {
    /// Scenarios, TOML files; a line for each.
    #[arg(required = true)]
    scenarios: Vec<PathBuf>,
    /// Replaces a field of each, e.g. `--set network.1.down.delay=80ms`.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    settings: Vec<String>,
    /// Prints the earliest arrival of the datagrams of each UDP flow and video in place of goodput.
    #[arg(long)]
    delay: bool,
    /// Prints the results as JSON, one object for each.
    #[arg(long)]
    json: bool,
}

/// Runs the command; 0 done, 64 a scenario that cannot be read or has no bound.
///
/// # Errors
/// When nothing can be printed.
pub(crate) fn run(args: &OracleArgs) -> anyhow::Result<ExitCode> {
    for file in &args.scenarios {
        let scenario = match read_scenario(file, &args.settings) {
            Ok(scenario) => scenario,
            Err(error) => return Ok(refuse(error)),
        };
        if args.delay {
            let bounds = oracle::delay::bound_delays(&scenario, &scenario.via);
            let Some(bounds) = bounds.filter(|bounds| !bounds.is_empty()) else {
                return Ok(refuse(format!(
                    "{}: no bound of delay is known: it needs a udp or video workload, and networks that are \
                     neither on the air nor shared nor a neighbour's",
                    file.display()
                )));
            };
            print_delays(&scenario, &bounds, args.json)?;
            continue;
        }
        let Some(all) = oracle::goodput(&scenario, &scenario.via, None) else {
            return Ok(refuse(format!(
                "{}: no bound is known: it needs bulk transfers (tcp, quic) in one direction, and a rate or \
                 a trace for every network",
                file.display()
            )));
        };
        print(&scenario, all, args.json)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(scenario: &Scenario, all: Rate, as_json: bool) -> anyhow::Result<()> {
    let mbps = |rate: Rate| rate.as_bps() as f64 / 1e6;
    let alone = |index| oracle::goodput(scenario, &scenario.via, Some(index)).map(mbps);
    let names = scenario.networks.iter().map(|network| network.name.as_str());
    let each: Vec<(&str, Option<f64>)> = names
        .enumerate()
        .map(|(index, name)| (name, alone(index)))
        .collect();
    if as_json {
        let networks: serde_json::Map<_, _> = each
            .iter()
            .map(|(name, rate)| ((*name).to_owned(), json!(rate.map(|rate| rate * 1e6))))
            .collect();
        say!(
            "{}",
            json!({
                "version": 1,
                "name": scenario.name,
                "oracle_bps": all.as_bps(),
                "stream_oracle_bps": oracle::stream_goodput(scenario, None).map(|rate| rate.as_bps()),
                "networks": networks,
            })
        )?;
        return Ok(());
    }
    let each: Vec<String> = each
        .iter()
        .map(|(name, rate)| format!("{name} {:.2}", rate.unwrap_or_default()))
        .collect();
    say!(
        "{}: at most {:.2} Mbit/s{}; alone: {}",
        scenario.name,
        mbps(all),
        oracle::stream_goodput(scenario, None)
            .map_or(String::new(), |rate| format!(", as streams {:.2}", mbps(rate))),
        each.join(", ")
    )?;
    Ok(())
}

/// Prints the bound of each flow of datagrams.
fn print_delays(scenario: &Scenario, bounds: &[Earliest], as_json: bool) -> anyhow::Result<()> {
    if as_json {
        let flows: Vec<_> = bounds
            .iter()
            .map(|bound| {
                json!({
                    "workload": bound.workload, "sent": bound.sent, "never": bound.never(),
                    "delay_p50_ms": bound.quantile_ms(0.5), "delay_p99_ms": bound.quantile_ms(0.99),
                })
            })
            .collect();
        say!(
            "{}",
            json!({ "version": 1, "name": scenario.name, "earliest": flows })
        )?;
        return Ok(());
    }
    let ms = |bound: &Earliest, share| {
        bound
            .quantile_ms(share)
            .map_or("never".to_owned(), |ms| format!("{ms:.1} ms"))
    };
    for bound in bounds {
        say!(
            "{}: workload {}: one-way at the earliest {} (99 %: {}), {:.3} % cannot arrive",
            scenario.name,
            bound.workload,
            ms(bound, 0.5),
            ms(bound, 0.99),
            bound.never() * 100.0
        )?;
    }
    Ok(())
}

const HELP: &str = "\
A bound by calculation, for the time after the warm-up: every network is kept full by somebody who knows all future
rates, delays, losses and outages; packets carry the tunnel's framing (40 bytes, and IP and UDP), or that of plain TCP
where the scenario's way is mptcp or single; random loss counts by its mean; slow start from ten packets over the
network with the least round trip bounds the beginning. \"As streams\": the same for connections that the tunnel splits,
which have 2 bytes more of framing and no slow start: every network is full from the moment that the request has
reached the far end. Left out, so that no scheduler reaches all of it: congestion
control after slow start, acknowledgements, retransmissions, jitter, other traffic. The simulator's reports hold each run
against it (`share_of_oracle`, \"of oracle\").

`--delay`: for each UDP flow and video, as if it were alone and always first, the arrival of its
datagrams over the networks where each is there first, with all that will happen known.
Percentages are of what was sent. Later than 2 s counts as never. Left out: jitter, random loss,
middleboxes.

  hawser-lab oracle scenarios/bench/*.toml
  hawser-lab oracle --delay scenarios/live/*.toml
  hawser-lab sim scenarios/bench/rtt-70.toml --runs 5

Exit codes: 0 done, 2 usage, 64 a scenario that cannot be read, or that has no bound.";
