//! `hawser-lab oracle`: upper bound of goodput, lower bound of delay.

use std::path::PathBuf;
use std::process::ExitCode;

use hawser_netem::oracle;
use hawser_netem::oracle::delay::Earliest;
use hawser_netem::scenario::Scenario;
use hawser_terminal::{refuse, say};
use hawser_testbed::read_scenario;
use hawser_units::Rate;
use serde_json::json;

/// Prints the maximum goodput that any scheduler could deliver over the networks of a scenario.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct OracleArgs {
    /// Scenario files, TOML; one line is printed per file.
    #[arg(required = true)]
    scenarios: Vec<PathBuf>,
    /// Replaces a field of each scenario, e.g. `--set network.1.down.delay=80ms`. May be repeated.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    settings: Vec<String>,
    /// Prints the earliest possible arrival of the datagrams of each UDP flow, video and capture,
    /// instead of goodput.
    #[arg(long)]
    delay: bool,
    /// Prints the results as JSON, one object per scenario.
    #[arg(long)]
    json: bool,
}

/// Runs the command; exit code 0 success, 64 a scenario that cannot be read or has no bound.
///
/// # Errors
/// When the output cannot be written.
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
                    "{}: no bound of delay is known: it needs a udp, video or capture workload, and networks that are \
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

/// Prints the bound of each datagram flow.
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
Calculates an upper bound for the time after the warm-up. The assumed scheduler knows all future \
rates, delays, losses and outages, and keeps every network full. Packets have the framing of the \
tunnel (40 bytes, and IP and UDP), or that of plain TCP if via is mptcp or single. Random loss \
counts with its mean. The bound begins with slow start from ten packets over the network with the \
shortest round trip. \"As streams\" is the bound for connections that the tunnel splits: they have \
2 more bytes of framing and no slow start, so every network is full from the arrival of the \
request at the far end. The bound ignores congestion control after slow start, acknowledgements, \
retransmissions, jitter and other traffic, so no scheduler reaches it. Reports of the simulator \
compare each run with it (`share_of_oracle`, \"of oracle\").

With --delay, calculates for each UDP flow, video and capture the earliest possible arrival of its \
datagrams, as if the flow were alone, with each datagram on the network over which it arrives \
first. Percentages refer to the sent datagrams. An arrival after more than 2 s counts as a loss. \
The calculation ignores jitter, random loss and middleboxes.

  hawser-lab oracle scenarios/bench/*.toml
  hawser-lab oracle --delay scenarios/live/*.toml
  hawser-lab sim scenarios/bench/rtt-70.toml --runs 5

Exit codes: 0 success, 2 usage error, 64 a scenario that cannot be read, or that has no bound.";
