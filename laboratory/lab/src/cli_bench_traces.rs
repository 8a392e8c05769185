//! `hawser-lab bench traces`: simulated pairs of recorded networks.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use hawser_experiments::parallel;
use hawser_netem::report::{Finding, Report, Spread};
use hawser_netem::scenario::{Direction, Scenario, Via};
use hawser_sim::run::{self, Watch};
use hawser_terminal::{refuse, say, show};
use hawser_units::Duration;
use serde::Serialize;

use crate::progress;
use crate::trace_pairs::{self, Pair};

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct TracesArgs {
    /// Directory of the recordings: pairs of X_wifi.csv and X_cellular.csv, or of X.down and X.up.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Maximum duration of a run, in seconds; shorter recordings run once.
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u64).range(2..=3600))]
    seconds: u64,
    /// Adds a call and a video to the transfer, and reports their delay and loss.
    #[arg(long)]
    live: bool,
    /// Maximum number of concurrent runs [default: number of cores].
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Runs one CUBIC transfer over every pair of networks, in virtual time: through Hawser, over each \
network alone, and by multipath TCP. The one-way delay is 10 ms for Wi-Fi and 30 ms for other \
networks. Queues hold 100 ms at the mean rate. A CSV recording is used for both directions of its \
network. X.down and X.up are the directions of one network, and every two such networks are a \
pair.

Examples:
  hawser-lab bench traces recordings
  hawser-lab bench traces recordings --live --json";

/// Runs the command; exit code 0 success, 64 a directory without pairs.
///
/// # Errors
/// When a run fails.
pub(crate) fn run(args: &TracesArgs) -> anyhow::Result<ExitCode> {
    let pairs = match trace_pairs::find(&args.directory) {
        Ok(pairs) => pairs,
        Err(error) => return Ok(refuse(format!("{error:#}"))),
    };
    let most = Duration::from_secs(args.seconds);
    let jobs = args.jobs.unwrap_or_else(parallel::cores);
    if args.live {
        let rows = on_all_cores(&pairs, jobs, &|pair| LiveRow::measure(pair, most))?;
        return print(args.json, &rows, LIVE_HEADING, LiveRow::to_text, String::new());
    }
    let rows = on_all_cores(&pairs, jobs, &|pair| Row::measure(pair, most))?;
    let last = medians(&rows);
    print(args.json, &rows, HEADING, Row::to_text, last)
}

fn on_all_cores<R: Send>(
    pairs: &[Pair],
    jobs: NonZeroUsize,
    measure: &(dyn Fn(&Pair) -> anyhow::Result<R> + Sync),
) -> anyhow::Result<Vec<R>> {
    let bar = progress::bar(pairs.len());
    let results = parallel::run(pairs.len(), jobs, &|| false, |n| {
        let row = measure(&pairs[n]);
        bar.inc(1);
        row
    });
    bar.finish_and_clear();
    let rows = results.into_iter().zip(pairs).map(|(result, pair)| {
        let result = result.context("a run was not started")?;
        let row = result.map_err(|panic| anyhow!(panic)).and_then(|row| row);
        row.with_context(|| pair.name.clone())
    });
    rows.collect()
}

fn print<R: Serialize>(
    is_json: bool,
    rows: &[R],
    heading: &str,
    to_text: fn(&R) -> String,
    last: String,
) -> anyhow::Result<ExitCode> {
    if is_json {
        say!("{}", serde_json::json!({ "version": 1, "pairs": rows }))?;
        return Ok(ExitCode::SUCCESS);
    }
    say!("{heading}")?;
    for row in rows {
        say!("{}", to_text(row))?;
    }
    show!("{last}")?;
    Ok(ExitCode::SUCCESS)
}

/// Results of one pair with a transfer. Units: goodput in bit/s.
#[derive(Debug, Serialize)]
struct Row {
    pair: String,
    direction: &'static str,
    hawser_bps: f64,
    /// Goodput of each network alone.
    single_bps: [f64; 2],
    mptcp_bps: f64,
    /// Sum of the recordings' rates, headers included.
    sum_bps: f64,
    of_best: f64,
    of_sum: f64,
}

impl Row {
    fn measure(pair: &Pair, most: Duration) -> anyhow::Result<Self> {
        let [hub, first, second, mptcp] = pair.systems();
        let goodput = |via: &Via| anyhow::Ok(report(&pair.bulk(via, most))?.goodput_bps.total);
        let (hawser_bps, single_bps) = (goodput(&hub)?, [goodput(&first)?, goodput(&second)?]);
        let sum_bps = pair.sum(most).as_bps() as f64;
        Ok(Self {
            pair: pair.name.clone(),
            direction: label(pair.direction),
            hawser_bps,
            single_bps,
            mptcp_bps: goodput(&mptcp)?,
            sum_bps,
            of_best: hawser_bps / single_bps[0].max(single_bps[1]),
            of_sum: hawser_bps / sum_bps,
        })
    }

    fn to_text(&self) -> String {
        let [hawser, first, second, mptcp, sum] = [
            self.hawser_bps,
            self.single_bps[0],
            self.single_bps[1],
            self.mptcp_bps,
            self.sum_bps,
        ]
        .map(|bps| bps / 1e6);
        format!(
            "{:<42} {:<4} {hawser:8.2} {first:8.2} {second:8.2} {mptcp:8.2} {sum:8.2} {:8.3} {:8.3}",
            self.pair, self.direction, self.of_best, self.of_sum
        )
    }
}

fn medians(rows: &[Row]) -> String {
    let line = |name: &str, value: fn(&Row) -> f64| {
        let spread = Spread::of(rows.iter().map(value).collect());
        spread.map_or(String::new(), |spread| {
            format!(
                "{name}: median {:.3}, {:.3} to {:.3}\n",
                spread.median, spread.min, spread.max
            )
        })
    };
    line("of best", |row| row.of_best) + &line("of sum", |row| row.of_sum)
}

/// Results of one pair with a call and a video: with a transfer through Hawser, and without the
/// transfer on the network that delays each flow less.
#[derive(Debug, Serialize)]
struct LiveRow {
    pair: String,
    direction: &'static str,
    call: Live,
    video: Live,
    hawser_bps: f64,
}

/// Delay and loss of a real-time flow. Units: milliseconds; loss is a share.
#[derive(Clone, Copy, Debug, Serialize)]
struct Live {
    /// Through Hawser, with the transfer.
    delay_p99_ms: f64,
    loss: f64,
    /// Delay without the transfer, on the network alone that delays the flow less.
    idle_delay_p99_ms: f64,
    idle_loss: f64,
}

impl LiveRow {
    fn measure(pair: &Pair, most: Duration) -> anyhow::Result<Self> {
        let [hub, first, second, _] = pair.systems();
        let loaded = report(&pair.live(&hub, most, false))?;
        let idle = [
            report(&pair.live(&first, most, true))?,
            report(&pair.live(&second, most, true))?,
        ];
        let flow = |n: usize| {
            let (delay_p99_ms, loss) = datagrams(&loaded, n)?;
            let alone = [datagrams(&idle[0], n)?, datagrams(&idle[1], n)?];
            let better = if alone[0].0 <= alone[1].0 {
                alone[0]
            } else {
                alone[1]
            };
            Some(Live {
                delay_p99_ms,
                loss,
                idle_delay_p99_ms: better.0,
                idle_loss: better.1,
            })
        };
        Ok(Self {
            pair: pair.name.clone(),
            direction: label(pair.direction),
            call: flow(0).context("the call has no result")?,
            video: flow(1).context("the video has no result")?,
            hawser_bps: loaded.goodput_bps.workloads.first().copied().unwrap_or(0.0),
        })
    }

    fn to_text(&self) -> String {
        let flow = |flow: &Live| {
            format!(
                "{:8.1} {:8.1} {:8.3} {:8.3}",
                flow.delay_p99_ms,
                flow.idle_delay_p99_ms,
                flow.loss * 100.0,
                flow.idle_loss * 100.0
            )
        };
        format!(
            "{:<42} {:<4} {} {} {:8.2}",
            self.pair,
            self.direction,
            flow(&self.call),
            flow(&self.video),
            self.hawser_bps / 1e6
        )
    }
}

/// Returns delay and loss of the `n`-th datagram flow.
fn datagrams(report: &Report, n: usize) -> Option<(f64, f64)> {
    let mut found = report.workloads.iter().filter_map(|finding| {
        let Finding::Udp {
            delay_p99_ms, loss, ..
        } = finding
        else {
            return None;
        };
        Some((*delay_p99_ms, *loss))
    });
    found.nth(n)
}

fn report(scenario: &Scenario) -> anyhow::Result<Report> {
    Ok(run::run(scenario, &scenario.via, Watch::default(), &mut |_| {})?.report)
}

fn label(direction: Direction) -> &'static str {
    match direction {
        Direction::Down => "down",
        Direction::Up => "up",
    }
}

const HEADING: &str = "\
Mbit/s                                             hawser    first   second    mptcp      sum  of best   of sum";
const LIVE_HEADING: &str = "\
                                                call: 99 % delay, ms;  % lost            video
                                                   hawser     idle   hawser     idle   hawser     idle   hawser     idle transfer";
