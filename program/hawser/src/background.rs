//! Starts daemons in the background, waits for them, and ends them.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hawser_host::control_socket::{Request, ask, is_alive};
use hawser_host::run_dir::{self, RunDir};
use hawser_linux::journal::Journal;
use hawser_linux::system::System;
use serde_json::Value;

use crate::logs::LogArgs;
use crate::runtime::runtime;

/// Starts this program with other arguments; its log is in the run directory. `secret` is written
/// to its standard input.
pub(crate) fn start(arguments: &[OsString], secret: Option<&str>, run_dir: &Path) -> anyhow::Result<Child> {
    let log = run_dir.join(LOG);
    let file = std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(arguments);
    command.stdin(if secret.is_some() {
        Stdio::piped()
    } else {
        Stdio::null()
    });
    let mut child = command
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .context("cannot start the daemon")?;
    if let (Some(secret), Some(mut stdin)) = (secret, child.stdin.take()) {
        stdin
            .write_all(secret.as_bytes())
            .context("cannot pass the invitation to the daemon")?;
    }
    Ok(child)
}

/// Waits until the daemon reports that it is ready; returns its last status, and whether it is
/// ready.
///
/// # Errors
/// The daemon has ended; the error contains its last message.
pub(crate) fn wait(
    child: &mut Child,
    run_dir: &Path,
    is_ready: impl Fn(&Value) -> bool,
) -> anyhow::Result<(Value, bool)> {
    let socket = run_dir::socket(run_dir);
    let deadline = Instant::now() + TIMEOUT;
    let mut last = Value::Null;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            let log = run_dir.join(LOG);
            bail!(
                "{}",
                last_words(&log).unwrap_or_else(|| format!("the daemon ended ({status})"))
            );
        }
        if is_alive(&socket)
            && let Ok(status) = ask(&socket, &Request::Status)
        {
            if is_ready(&status) {
                return Ok((status, true));
            }
            last = status;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok((last, false))
}

/// Ends the daemon of a run directory, or undoes changes left by one; returns a description of the
/// action, or `None` if there was nothing to do.
pub(crate) fn end(place: &Path) -> anyhow::Result<Option<&'static str>> {
    let socket = run_dir::socket(place);
    if is_alive(&socket) {
        ask(&socket, &Request::Down)?;
        wait_for_end(place)?;
        return Ok(Some("down"));
    }
    if !run_dir::journal(place).exists() {
        return Ok(None);
    }
    let run_dir = RunDir::take(place)?;
    LogArgs::warn()?;
    runtime()?.block_on(async {
        System::open(&run_dir.journal()).await?.undo_left().await;
        anyhow::Ok(())
    })?;
    if run_dir.journal().exists() {
        let journal = run_dir.journal();
        match Journal::open(&journal) {
            Ok(left) if left.entries().is_empty() => bail!(
                "{} lists changes of another version of Hawser, or is damaged: run `hawser down` of that version, or restart the machine",
                journal.display()
            ),
            _ => bail!("some changes could not be undone (see above): are you root?"),
        }
    }
    Ok(Some("was not running; undid the changes that it had left"))
}

/// Returns the reason in the daemon's log, which the command prints when it fails.
fn last_words(log: &Path) -> Option<String> {
    let text = std::fs::read_to_string(log).ok()?;
    let said = text.lines().rev().find_map(|line| line.strip_prefix("hawser: "));
    said.map(ToOwned::to_owned)
}

fn wait_for_end(run_dir: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        if RunDir::take(run_dir).is_ok() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("the daemon has not ended: see its log")
}

/// Name of the log in the run directory.
const LOG: &str = "hawser.log";
/// Maximum wait for the daemon: the slowest usable networks need a few seconds for a handshake.
/// Source: our choice; a longer one lets a script wait in vain, a shorter one reports a failure on
/// satellites.
const TIMEOUT: Duration = Duration::from_secs(20);
