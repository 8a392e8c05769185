//! `hawser-lab bench faster`: what rules with `via = "faster"` make of random topologies, and what
//! `hub = "faster"` does.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use hawser_terminal::say;
use hawser_testbed::faster::{Through, Topology, Way};
use hawser_testing::Postgres;
use serde_json::json;

use crate::ways::lab_options;

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct FasterArgs {
    /// How many topologies.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    topologies: u32,
    /// The number of the first one.
    #[arg(long, default_value_t = 0)]
    first: u32,
    /// Seed of the topologies.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long the rule learns before anything is measured, seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    learn: u64,
    /// How long is measured, seconds.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// With two hubs: through which of them, in place of through the hub or past it. Needs
    /// PostgreSQL.
    #[arg(long)]
    two_hubs: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
A topology has one to three networks of 3 to 50 Mbit/s and 2 to 60 ms, a hub behind 10 to 200 Mbit/s and 1 to 40 ms, and a server that is reached past
the hub over 10 to 200 Mbit/s and 1 to 80 ms. A client downloads one file of 10 kB to 3 MB after the other, each over a connection of its own. Printed
are the mean time of a download with each way, and that of the rule over that of the better one.
With --two-hubs, there is a second hub behind a link of its own, and from either hub one of 10 to 200 Mbit/s and 1 to 80 ms to the server; the ways are each
hub alone, and hub = \"faster\".
In virtual time, where nothing that runs beside it matters: scripts/uml --virtual-time --memory 2G -- hawser-lab bench faster";

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
        for (way, through) in Way::ALL.into_iter().zip(Through::ALL) {
            let mean = if args.two_hubs {
                // Hubs of earlier runs would be further ones of the fleet.
                let database = Postgres::start();
                let database = database.context("--two-hubs needs PostgreSQL (Debian: postgresql)")?;
                topology.run_with_fleet(through, &database.url(), &options, times)?
            } else {
                topology.run(way, &options, times)?
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
