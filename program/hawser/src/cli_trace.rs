//! `hawser trace`: state of each path of a running daemon over time, as qlog and as a chart.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hawser_host::control_socket::status;
use hawser_host::signals::Signals;
use hawser_recording::trace::{Qlog, Sampler, picture};
use hawser_terminal::say;
use serde_json::Value;

use crate::directories::DaemonArgs;
use crate::runtime::runtime;

/// Records the paths of a client, a hub or a repeater over time: state, rate, window, round trip,
/// loss, queue and retransmissions.
///
/// The file is qlog (JSON text sequences, like that of `hawser-lab sim --qlog`), which qvis and
/// other viewers read. It contains the names of networks (on a hub, of clients), but no payload,
/// addresses or flows. It is valid after every write, so a trace survives Ctrl-C, a crash and the
/// end of the daemon.
#[derive(Debug, clap::Args)]
pub(crate) struct TraceArgs {
    /// File of the trace; it must not exist.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Also writes a page for a browser with charts to this file when the trace ends; it must not
    /// exist.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Milliseconds between two samples.
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    every_ms: u64,
    /// Ends after this many seconds; by default with Ctrl-C.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// Runs the command; returns 0 if done, 1 without a daemon, or if a file cannot be written.
///
/// # Errors
/// The daemon does not answer at the start, has no paths, or a file cannot be written.
pub(crate) fn run(args: &TraceArgs) -> anyhow::Result<ExitCode> {
    runtime()?.block_on(trace(args))
}

async fn trace(args: &TraceArgs) -> anyhow::Result<ExitCode> {
    let socket = args.daemon.socket()?;
    let mut signals = Signals::new()?;
    let mut now = status(&socket).await?;
    if now["role"] == "direct" {
        bail!(
            "direct mode has no paths to trace: run `hawser trace` on a client of a hub, a hub or a repeater"
        );
    }
    let mut file = new(&args.out)?;
    let drawn = args
        .picture
        .as_deref()
        .map(|place| Ok::<_, anyhow::Error>((place, new(place)?)));
    let drawn = drawn.transpose()?;
    let failed = || format!("cannot write {}", args.out.display());
    let title = title(&now);
    let vantage_point = if now["role"] == "hub" { "server" } else { "client" };
    file.write_all(Qlog::header(&title, vantage_point).as_bytes())
        .with_context(failed)?;
    let every = Duration::from_millis(args.every_ms);
    let (start, mut samples) = (Instant::now(), Vec::new());
    let (mut sampler, mut qlog) = (Sampler::default(), Qlog::default());
    for look in 1_u32.. {
        let sample = sampler.sample(start.elapsed().as_secs_f64() * 1e3, &now);
        // Written in one call, so that a sample is complete or missing.
        file.write_all(qlog.records(sampler.networks(), &sample).as_bytes())
            .with_context(failed)?;
        if drawn.is_some() && samples.len() < MAX_DRAWN {
            samples.push(sample);
        }
        let next = every.saturating_mul(look);
        if args.seconds.is_some_and(|seconds| next.as_secs() >= seconds) {
            break;
        }
        tokio::select! {
            () = signals.end() => break,
            () = tokio::time::sleep(next.saturating_sub(start.elapsed())) => {}
        }
        now = match status(&socket).await {
            Ok(now) => now,
            Err(error) => {
                say!("the trace has ended: {error:#}")?;
                break;
            }
        };
    }
    say!(
        "wrote {}: a trace of {} paths",
        args.out.display(),
        sampler.networks().len()
    )?;
    if let Some((place, mut file)) = drawn {
        let page = picture(&title, sampler.networks(), every.as_secs_f64(), &samples);
        file.write_all(page.as_bytes())
            .with_context(|| format!("cannot write {}", place.display()))?;
        say!("wrote {}: its charts", place.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn new(place: &Path) -> anyhow::Result<File> {
    let opened = OpenOptions::new().write(true).create_new(true).open(place);
    opened.with_context(|| format!("cannot make {}", place.display()))
}

fn title(status: &Value) -> String {
    let role = status["role"].as_str().unwrap_or("client");
    format!("{role} {}", status["interface"].as_str().unwrap_or_default())
}

/// Maximum number of samples in a chart; the trace itself continues. Source: one hour at ten
/// samples per second.
const MAX_DRAWN: usize = 36_000;
