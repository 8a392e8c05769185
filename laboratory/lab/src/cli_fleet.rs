//! `hawser-lab fleet`: a fleet of hubs over days, in virtual time.

use std::num::NonZeroUsize;
use std::process::ExitCode;

use hawser_experiments::parallel;
use hawser_sim::fleet::{self, Config, Quantiles, Report};
use hawser_terminal::{refuse, say};
use hawser_units::Duration;
use serde_json::json;

use crate::progress;

/// Runs a fleet of hubs with many clients over days, in virtual time.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct FleetArgs {
    /// Number of clients.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    clients: u32,
    /// Number of hubs; each is assigned to the next region in turn.
    #[arg(long, value_name = "N", default_value_t = 20)]
    hubs: u16,
    /// Number of regions, at most that of hubs.
    #[arg(long, value_name = "N", default_value_t = 5)]
    regions: u16,
    /// Simulated time, in days, at most 366; fractions are permitted, e.g. `0.5`.
    #[arg(long, value_name = "DAYS", default_value_t = 1.0)]
    days: f64,
    /// Failures of each hub per day; a failure lasts 5 min on average.
    #[arg(long, value_name = "RATE", default_value_t = 1.0)]
    hub_failures: f64,
    /// Failures of each region per day, which affect all its hubs; a failure lasts 10 min on
    /// average.
    #[arg(long, value_name = "RATE", default_value_t = 0.2)]
    region_failures: f64,
    /// Failures of the database per day; a failure lasts 2 min on average.
    #[arg(long, value_name = "RATE", default_value_t = 2.0)]
    store_failures: f64,
    /// Drains of each hub per day; a drain lasts 10 min.
    #[arg(long, value_name = "RATE", default_value_t = 0.5)]
    drains: f64,
    /// Number of times per day that a client moves to another region.
    #[arg(long, value_name = "RATE", default_value_t = 0.5)]
    moves: f64,
    /// Number of times per day that a client restarts.
    #[arg(long, value_name = "RATE", default_value_t = 2.0)]
    starts: f64,
    /// Handshakes that a hub can process per second.
    #[arg(long, value_name = "RATE", default_value_t = 1_000.0)]
    handshakes: f64,
    /// Loss probability of packets of handshakes, 0 to 0.9.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    loss: f64,
    /// Seed of the first run; each further run uses the next seed.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of runs.
    #[arg(long, value_name = "N", default_value_t = NonZeroUsize::MIN)]
    runs: NonZeroUsize,
    /// Maximum number of concurrent runs [default: number of cores].
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Prints the results as JSON, one object per run.
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
The clients run the daemon's own machine, which chooses the hub, asks other hubs and changes \
between them. An outage is a time in which no hub forwards a client's packets although a hub would \
admit the client. The same seed gives the same result.

  hawser-lab fleet --clients 100000
  hawser-lab fleet --clients 500 --hubs 6 --hub-failures 24 --runs 50 --json | jq .outages.max";

/// Runs the command; exit code 0 success, 64 an impossible fleet.
///
/// # Errors
/// When nothing can be printed.
pub(crate) fn run(args: &FleetArgs) -> anyhow::Result<ExitCode> {
    let config = match config(args) {
        Ok(config) => config,
        Err(problem) => return Ok(refuse(problem)),
    };
    let (runs, jobs) = (args.runs.get(), args.jobs.unwrap_or_else(parallel::cores));
    let bar = progress::bar(runs);
    let one = |at: usize| {
        let report = fleet::run(&config, args.seed + at as u64);
        bar.inc(1);
        report
    };
    let reports = parallel::run(runs, jobs, &|| false, one);
    bar.finish_and_clear();
    let mut all = Vec::new();
    for report in reports.into_iter().flatten() {
        all.push(report.map_err(anyhow::Error::msg)?);
    }
    for (report, seed) in all.iter().zip(args.seed..) {
        if args.json {
            let mut value = serde_json::to_value(report)?;
            value["version"] = json!(1);
            value["seed"] = json!(seed);
            say!("{value}")?;
        } else if runs == 1 {
            say!("{}", words(report))?;
        }
    }
    if !args.json && runs > 1 {
        say!("{}", summary(&all))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn config(args: &FleetArgs) -> Result<Config, String> {
    let rates = [
        args.hub_failures,
        args.region_failures,
        args.store_failures,
        args.drains,
        args.moves,
        args.starts,
    ];
    if args.clients == 0 || args.hubs == 0 || args.regions == 0 {
        return Err("a fleet has at least one client, hub and region".to_owned());
    }
    if !(args.days > 0.0 && args.days <= 366.0) {
        return Err(format!(
            "--days {}: expected more than 0 and at most 366",
            args.days
        ));
    }
    if !rates.iter().all(|rate| (0.0..=10_000.0).contains(rate)) {
        return Err("a rate is from 0 to 10000 a day".to_owned());
    }
    let is_possible = args.handshakes >= 1.0 && args.handshakes.is_finite();
    if !(is_possible && (0.0..=0.9).contains(&args.loss)) {
        return Err("--handshakes is at least 1 a second, --loss from 0 to 0.9".to_owned());
    }
    let base = Config::default();
    Ok(Config {
        clients: args.clients,
        hubs: args.hubs,
        regions: args.regions.min(args.hubs),
        duration: Duration::from_secs_f64(args.days * 86_400.0),
        loss: args.loss,
        handshakes: args.handshakes,
        moves: args.moves,
        starts: args.starts,
        hub_failures: (args.hub_failures, base.hub_failures.1),
        region_failures: (args.region_failures, base.region_failures.1),
        store_failures: (args.store_failures, base.store_failures.1),
        drains: (args.drains, base.drains.1),
        ..base
    })
}

fn words(report: &Report) -> String {
    let Quantiles {
        count,
        median,
        p99,
        max,
    } = report.outages;
    let seconds = report.duration_s;
    format!(
        "{} clients, {:.1} days, {} failures; {} clients began, {} changes of hub\n\
         without a hub while one would let the client in: {count} times, median {median:.2} s, 99 % below {p99:.2} s, longest \
         {max:.2} s; longer than 3 s: {}\n\
         hubs: {:.2} handshakes/s in all, longest wait {:.2} s, {} found no place; the fullest has {:.1} times the mean (99 %)\n\
         clients at the nearest hub: {:.1} %; round trip longer by {:.0} ms (99 %); with two sessions: {:.2} %\n\
         database: {:.2} questions/s; control: {:.1} MB a day for each client",
        report.clients,
        seconds / 86_400.0,
        report.failures,
        report.starts,
        report.changes,
        report.longer_than_3_s,
        report.handshakes as f64 / seconds,
        report.longest_queue_s,
        report.dropped,
        report.imbalance.p99,
        report.at_nearest * 100.0,
        report.detour_ms.p99,
        report.with_two_sessions * 100.0,
        report.hellos as f64 / seconds,
        report.control_bytes_a_day / 1e6,
    )
}

fn summary(all: &[Report]) -> String {
    let failures: u64 = all.iter().map(|report| report.failures).sum();
    let outages: u64 = all.iter().map(|report| report.outages.count).sum();
    let long: u64 = all.iter().map(|report| report.longer_than_3_s).sum();
    let longest = all.iter().map(|report| report.outages.max).fold(0.0, f64::max);
    format!(
        "{} runs, {failures} failures: clients without a hub while one would let them in {outages} times, longest {longest:.2} s; \
         longer than 3 s: {long}",
        all.len()
    )
}
