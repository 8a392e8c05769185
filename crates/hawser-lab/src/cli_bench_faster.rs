//! `hawser-lab bench faster`: what rules with `via = "faster"` make of random topologies.

use std::process::ExitCode;
use std::time::Duration;

use hawser_terminal::say;
use hawser_testbed::faster::{Topology, Way};
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
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
A topology has one to three networks of 3 to 50 Mbit/s and 2 to 60 ms, a hub behind 10 to 200 Mbit/s and 1 to 40 ms, and a server that is reached past
the hub over 10 to 200 Mbit/s and 1 to 80 ms. A client downloads one file of 10 kB to 3 MB after the other, each over a connection of its own. Printed
are the mean time of a download with each way, and that of the rule over that of the better one.
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
        for way in Way::ALL {
            let mean = topology.run(way, &options, times)?;
            millis.push(mean.as_secs_f64() * 1e3);
        }
        let [hub, past, faster] = millis[..] else { continue };
        let ratio = faster / hub.min(past);
        ratios.push(ratio);
        if !args.json {
            say!(
                "{number}: {}: hub {hub:.0} ms, past {past:.0} ms, faster {faster:.0} ms, {ratio:.2}",
                topology.described()
            )?;
        }
        rows.push(json!({
            "number": number,
            "topology": topology.described(),
            "hub_ms": hub,
            "past_ms": past,
            "faster_ms": faster,
            "ratio": ratio,
        }));
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
