//! `hawser record`: what the daemon sees of its own networks, over time.

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

/// Records the rates, delays, losses and outages of this machine's networks, for
/// `hawser-lab replay`.
///
/// With a hub and without one. Without, round trips are those of gateways, and loss is not seen.
/// The file holds no payload, no address and no flow; networks are numbered, not named. It grows by
/// about 200 bytes a second for each network and is good whenever the recording ends: Ctrl-C, a
/// crash, the end of the daemon.
#[derive(Debug, clap::Args)]
pub(crate) struct RecordArgs {
    /// The recording; must not exist.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Seconds between two looks; rates are those of the last half second at least.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
    /// Ends after so many seconds; by default with Ctrl-C.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Keeps the names of networks.
    #[arg(long)]
    names: bool,
    #[command(flatten)]
    directories: Directories,
}

/// Runs the command; 0 done, 1 no daemon, or the file cannot be written.
///
/// # Errors
/// When the daemon does not answer at first, or the file cannot be written.
pub(crate) fn run(args: &RecordArgs) -> anyhow::Result<ExitCode> {
    let socket = args.directories.client_socket();
    let mut status = ask(&socket, &Request::Status)?;
    if status["role"] == "hub" {
        bail!("this is a hub, whose paths are its clients' networks; record on a client");
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
        let line = recorder.look(start.elapsed().as_millis() as u64, &status);
        // In one write: a look is there or not.
        file.write_all(line.as_bytes()).with_context(failed)?;
        let next = every * (look + 1);
        if args.seconds.is_some_and(|seconds| next.as_secs() >= seconds) {
            break;
        }
        std::thread::sleep(next.saturating_sub(start.elapsed()));
        status = match ask(&socket, &Request::Status) {
            Ok(status) => status,
            Err(error) => {
                say!("the recording ends: {error:#}")?;
                break;
            }
        };
    }
    say!("{shown}: `hawser-lab replay {shown}` runs it again")?;
    Ok(ExitCode::SUCCESS)
}
