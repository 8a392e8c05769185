//! `hawser record`: the daemon's measurements of its networks over time.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hawser_host::control_socket::{Request, ask};
use hawser_recording::Recorder;

use crate::directories::Directories;
use hawser_terminal::say;

/// Records rates, delays, losses and outages of the networks, for `hawser-lab replay`.
///
/// Works with and without a hub. Without a hub, round trips are those to gateways, and loss is not
/// measured. The file contains no payload, addresses or flows. Networks are numbered, unless
/// --names is given. The file grows by about 200 bytes per second for each network. It is valid
/// after every write, so a recording survives Ctrl-C, a crash and the end of the daemon.
#[derive(Debug, clap::Args)]
pub(crate) struct RecordArgs {
    /// File of the recording; it must not exist.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Seconds between two samples; rates are averages over at least half a second.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
    /// Ends after this many seconds; by default with Ctrl-C.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Records the names of networks instead of numbers.
    #[arg(long)]
    names: bool,
    #[command(flatten)]
    directories: Directories,
}

/// Runs the command; returns 0 if done, 1 without a daemon, or if the file cannot be written.
///
/// # Errors
/// The daemon does not answer at the start, or the file cannot be written.
pub(crate) fn run(args: &RecordArgs) -> anyhow::Result<ExitCode> {
    let socket = args.directories.client_socket();
    let mut status = ask(&socket, &Request::Status)?;
    if status["role"] == "hub" {
        bail!("this is a hub, whose paths are the networks of its clients: record on a client");
    }
    let shown = args.out.display();
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&args.out)
        .with_context(|| format!("cannot make {shown}"))?;
    let mut recorder = Recorder::new(args.names);
    let every = Duration::from_secs(args.every);
    let failed = || format!("cannot write {shown}");
    file.write_all(Recorder::header(every.as_millis() as u64).as_bytes())
        .with_context(failed)?;
    let start = Instant::now();
    for look in 0.. {
        let line = recorder.sample(start.elapsed().as_millis() as u64, &status);
        // Written in one call, so that a sample is complete or missing.
        file.write_all(line.as_bytes()).with_context(failed)?;
        let next = every * (look + 1);
        if args.seconds.is_some_and(|seconds| next.as_secs() >= seconds) {
            break;
        }
        std::thread::sleep(next.saturating_sub(start.elapsed()));
        status = match ask(&socket, &Request::Status) {
            Ok(status) => status,
            Err(error) => {
                say!("the recording has ended: {error:#}")?;
                break;
            }
        };
    }
    say!("wrote {shown}: `hawser-lab replay {shown}` replays it")?;
    Ok(ExitCode::SUCCESS)
}
