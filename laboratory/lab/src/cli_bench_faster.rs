//! `hawser-lab bench faster`: the effect of rules with `via = "faster"` in random topologies, and
//! of `hub = "faster"`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use hawser_terminal::say;
use hawser_testbed::faster::{DownloadRoute, Through, Topology};
use hawser_testing::Postgres;
use serde_json::json;

use crate::systems::lab_options;

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct FasterArgs {
    /// Number of topologies.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    topologies: u32,
    /// Number of the first topology; with `--topologies`, it selects a range of the topologies of a
    /// seed.
    #[arg(long, default_value_t = 0)]
    first: u32,
    /// Seed of the random topologies.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Time for which the rule learns before the measurement, seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    learn: u64,
    /// Duration of the measurement, seconds.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Compares two hubs, instead of the hub and the direct route. Needs PostgreSQL.
    #[arg(long)]
    two_hubs: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
A topology has one to three networks of 3 to 50 Mbit/s and 2 to 60 ms, a hub behind 10 to 200 \
Mbit/s and 1 to 40 ms, and a server that is reached directly over 10 to 200 Mbit/s and 1 to 80 ms. \
A client downloads files of 10 kB to 3 MB one after the other, each over a new connection. Prints \
the mean time of a download over each route, and the ratio of the rule's time to that of the \
better route.

With --two-hubs, there is a second hub behind its own link, and each hub has a link of 10 to 200 \
Mbit/s and 1 to 80 ms to the server. The compared routes are each hub alone and hub = \"faster\".

In virtual time, unaffected by other load of the machine:
  scripts/uml --virtual-time --memory 2G -- hawser-lab bench faster";

/// Runs the command.
///
/// # Errors
/// When the lab cannot be built or a download breaks.
pub(crate) fn run(args: &FasterArgs) -> anyhow::Result<ExitCode> {
    let options = lab_options(None)?;
    let times = (Duration::from_secs(args.learn), Duration::from_secs(args.seconds));
    let (mut rows, mut ratios) = (Vec::new(), Vec::new());
    for number in args.first..args.first + args.topologies {
        let topology = Topology::random(args.seed, number);
        let mut millis = Vec::new();
        for (route, through) in DownloadRoute::ALL.into_iter().zip(Through::ALL) {
            let mean = if args.two_hubs {
                // Every run has a new database, so that hubs of earlier runs do not join the fleet.
                let database = Postgres::start();
                let database = database.context("--two-hubs needs PostgreSQL (Debian: postgresql)")?;
                topology.run_with_fleet(through, &database.url(), &options, times)?
            } else {
                topology.run(route, &options, times)?
            };
            millis.push(mean.as_secs_f64() * 1e3);
        }
        let [first, second, faster] = millis[..] else {
            continue;
        };
        let ratio = faster / first.min(second);
        ratios.push(ratio);
        let (described, names) = if args.two_hubs {
            (topology.described_with_fleet(), ["first", "second"])
        } else {
            (topology.described(), ["hub", "past"])
        };
        if !args.json {
            let [one, other] = names;
            say!(
                "{number}: {described}: {one} {first:.0} ms, {other} {second:.0} ms, faster {faster:.0} ms, {ratio:.2}"
            )?;
        }
        let mut row = json!({
            "number": number,
            "topology": described,
            "faster_ms": faster,
            "ratio": ratio,
        });
        for (name, ms) in names.into_iter().zip([first, second]) {
            row[format!("{name}_ms")] = json!(ms);
        }
        rows.push(row);
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN);
    let worst = ratios.last().copied().unwrap_or(f64::NAN);
    let slower = ratios.iter().filter(|ratio| **ratio > 1.05).count();
    if args.json {
        let result = json!({
            "version": 1,
            "seed": args.seed,
            "median_ratio": median,
            "worst_ratio": worst,
            "slower_by_5_percent": slower,
            "topologies": rows,
        });
        say!("{result}")?;
    } else {
        say!(
            "the rule takes {median:.2} of the better way's time in the median, {worst:.2} at worst; more than 1.05 in {slower} of {}",
            ratios.len()
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
