//! `hawser-lab sim`: runs a scenario in virtual time.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use hawser_netem::report::Report;
use hawser_netem::scenario::{Scenario, Via};
use hawser_sim::network::Tap;
use hawser_sim::pcapng::PcapNg;
use hawser_sim::run::{self, Outcome, TapMaker, Watch};
use hawser_terminal::{refuse, say, show};
use hawser_testbed::{Comparison, read_scenario};
use hawser_units::Duration;

use crate::{progress, systems};

/// Runs a scenario in virtual time: without root, faster than real time, and reproducible.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct SimArgs {
    /// Scenario file, TOML.
    scenario: PathBuf,
    /// Replaces a field, e.g. `--set workload.0.streams=16` or `--set via=mptcp`. May be repeated.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    settings: Vec<String>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    /// Also runs each network alone.
    #[arg(long)]
    compare: bool,
    /// Also runs this system (hub, mptcp or single:NETWORK). May be repeated.
    #[arg(long = "vs", value_name = "VIA")]
    versus: Vec<String>,
    /// Runs each system N times, each round with the next seed, and prints medians.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Writes the packets of the first run of the scenario's own system to this file, for Wireshark
    /// (pcapng).
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Writes the bytes that each workload receives per 10 ms to this file (CSV, one column per
    /// workload).
    #[arg(long, value_name = "FILE")]
    series: Option<PathBuf>,
    /// Draws the 802.11 channels to this file (HTML, zoomable): who transmits when, lost frames,
    /// and queue lengths. For networks with `wifi`.
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Writes the tunnel's paths to this file (qlog, JSON text sequences): states, rates, windows,
    /// round trips and retransmissions, every 10 ms in which they changed.
    #[arg(long, value_name = "FILE")]
    qlog: Option<PathBuf>,
    /// Draws the tunnel's paths to this file (HTML): rates, windows, queues, hold times and
    /// retransmissions over time.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
}

/// Runs the command; exit code 0 success, 1 failure while running, 64 a scenario that cannot be
/// run.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn run(args: SimArgs) -> anyhow::Result<ExitCode> {
    let path = args.scenario.as_path();
    let scenario = match read_scenario(path, &args.settings) {
        Ok(scenario) => scenario,
        Err(error) => return Ok(refuse(error)),
    };
    let systems = match systems::asked(&scenario, args.compare, &args.versus) {
        Ok(systems) => systems,
        Err(problem) => return Ok(refuse(problem)),
    };
    let mut runs: Vec<Vec<Report>> = vec![Vec::new(); systems.len()];
    for round in 0..args.runs {
        let mut scenario = scenario.clone();
        scenario.seed = scenario.seed.wrapping_add(u64::from(round));
        for (index, via) in systems.iter().enumerate() {
            let is_first = index == 0 && round == 0;
            let pcap = args.pcap.as_deref().filter(|_| is_first);
            let timeline = args.timeline.as_deref().filter(|_| is_first);
            let qlog = args.qlog.as_deref().filter(|_| is_first);
            let picture = args.picture.as_deref().filter(|_| is_first);
            let watch = Watch {
                tap: None,
                air: timeline.is_some(),
                paths: qlog.is_some() || picture.is_some(),
            };
            let outcome = match simulate(&scenario, via, pcap, watch)? {
                Ok(outcome) => outcome,
                Err(error) => return Ok(refuse(format!("{}: {error}", path.display()))),
            };
            if let Some(file) = args.series.as_deref().filter(|_| is_first) {
                write_series(&outcome.report, file)
                    .with_context(|| format!("cannot write {}", file.display()))?;
            }
            let write = |file: &Path, text: String| {
                std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
            };
            if let (Some(page), Some(file)) = (outcome.timeline, timeline) {
                write(file, page)?;
            }
            if let Some(log) = outcome.log {
                qlog.map_or(Ok(()), |file| write(file, log.qlog()))?;
                picture.map_or(Ok(()), |file| write(file, log.html()))?;
            }
            runs[index].push(outcome.report);
        }
    }
    print(args.json, runs)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a single run as its report, and several runs as a table of medians, as `lab` does.
fn print(is_json: bool, mut runs: Vec<Vec<Report>>) -> anyhow::Result<()> {
    if let [own] = runs.as_mut_slice()
        && own.len() == 1
        && let Some(report) = own.pop()
    {
        if is_json {
            say!("{}", serde_json::to_string(&report)?)?;
        } else {
            show!("{}", report.to_text())?;
        }
        return Ok(());
    }
    let comparison = Comparison::of(runs);
    if is_json {
        say!("{}", serde_json::to_string(&comparison)?)?;
    } else {
        show!("{}", comparison.to_text())?;
    }
    Ok(())
}

fn simulate(
    scenario: &Scenario,
    via: &Via,
    pcap: Option<&Path>,
    watch: Watch<'_>,
) -> anyhow::Result<Result<Outcome, run::RunError>> {
    let mut on_progress = |elapsed: Duration| {
        progress::line(|| {
            let (now, all) = (elapsed.as_secs_f64(), scenario.duration.as_secs_f64());
            format!("{} {now:.1}/{all:.0} s", via.label())
        });
    };
    let outcome = match pcap {
        None => run::run(scenario, via, watch, &mut on_progress),
        Some(path) => {
            let cannot = || format!("cannot write {}", path.display());
            let file = BufWriter::new(File::create(path).with_context(cannot)?);
            let mut trace = Some(file);
            let mut make = |links: &[String]| -> Box<dyn Tap> {
                let file = trace.take().expect("a run makes one tap");
                Box::new(PcapNg::new(file, links))
            };
            let tap: Option<TapMaker<'_>> = Some(&mut make);
            let outcome = run::run(scenario, via, Watch { tap, ..watch }, &mut on_progress);
            match outcome {
                Ok(mut outcome) => {
                    let tap = outcome.network.take_tap::<PcapNg<BufWriter<File>>>();
                    ensure!(tap.is_some(), "the trace is lost");
                    if let Some(tap) = tap {
                        tap.finish().with_context(cannot)?;
                    }
                    Ok(outcome)
                }
                Err(error) => Err(error),
            }
        }
    };
    progress::clear_line();
    Ok(outcome)
}

fn write_series(report: &Report, file: &Path) -> std::io::Result<()> {
    let mut out = BufWriter::new(File::create(file)?);
    let columns = (0..report.series.workloads.len()).map(|index| format!(",workload_{index}_bytes"));
    writeln!(out, "seconds,bytes{}", columns.collect::<String>())?;
    for (bin, bytes) in report.series.bytes.iter().enumerate() {
        write!(
            out,
            "{:.3},{bytes}",
            bin as f64 * report.series.bin_ms as f64 / 1e3
        )?;
        for workload in &report.series.workloads {
            write!(out, ",{}", workload.get(bin).copied().unwrap_or(0))?;
        }
        writeln!(out)?;
    }
    out.flush()
}

const HELP: &str = "\
The scenario file and the form of the result are those of `hawser-lab lab`. The traffic is \
modelled: TCP (cubic, reno), multipath TCP (also lia, olia, balia), datagrams or video. With via = \
\"hub\", the machines of the daemon process it.

Would a second modem help?
  hawser-lab sim scenarios/sum-20-20.toml --compare --vs mptcp
The same with a slower modem:
  hawser-lab sim scenarios/sum-20-20.toml --set network.1.down.rate=5mbit --json
Which of two access points uses their common channel, and when:
  hawser-lab sim scenarios/wifi-two-aps.toml --timeline air.html
An outage, packet by packet:
  hawser-lab sim scenarios/blackhole.toml --pcap trace.pcapng --series series.csv
The same, path by path:
  hawser-lab sim scenarios/blackhole.toml --qlog run.sqlog --picture run.html

Exit codes: 0 success, 1 failure while running, 2 usage error, 64 a scenario that cannot be run.";
