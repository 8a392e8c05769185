//! Transfer of all sessions' streams to a successor: a parcel of sockets and bytes, in the order of
//! the sessions.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use hawser_dataplane::checkpoint::{Parcel, SessionCheckpoint};
use hawser_linux::parcel;
use hawser_linux::stream_sockets::Connection;

/// Bytes of all streams. Source: twice the default of `[streams] memory`.
pub(super) const MAX_BYTES: u64 = 2 << 30;

/// Packs the sockets and bytes of the sessions. Returns both ends of the socket pair that contains
/// them. `None` if there are no streams, or if the kernel refuses, so that the successor drops
/// them.
pub(super) fn pack<'a>(
    sessions: impl Iterator<Item = &'a mut SessionCheckpoint>,
) -> Option<(OwnedFd, OwnedFd)> {
    let mut all = Parcel::default();
    for session in sessions {
        let parcel = session.take_parcel();
        all.sockets.extend(parcel.sockets);
        all.bytes.extend(parcel.bytes);
    }
    if all.sockets.is_empty() {
        return None;
    }
    let descriptors: Vec<_> = all.sockets.iter().map(|socket| socket.as_fd()).collect();
    let packed = parcel::pack(&all.bytes, &descriptors);
    packed
        .inspect_err(|error| tracing::warn!(%error, "streams are not handed over"))
        .ok()
}

/// Starts a process that holds a parcel until this process's successor takes it.
///
/// # Errors
/// If the directory cannot be written, or no process can be started.
pub(super) fn leave(run_dir: &Path, (parcel, end): (OwnedFd, OwnedFd)) -> std::io::Result<()> {
    let listener = parcel::listen(&path(run_dir))?;
    // Signals to this process's group must not end it.
    let mut holder = Command::new("/proc/self/exe");
    holder.arg(HOLD).process_group(0).current_dir("/");
    holder.stdin(Stdio::from(listener));
    holder.stdout(Stdio::from(parcel));
    holder.stderr(Stdio::from(end));
    holder.spawn().map(drop)
}

/// Takes a parcel that [`leave`] has left, if there is one.
pub(super) fn fetch(run_dir: &Path) -> Option<OwnedFd> {
    let path = path(run_dir);
    if !path.exists() {
        return None;
    }
    let fetched = parcel::fetch(&path);
    let _ = std::fs::remove_file(&path);
    fetched
        .inspect_err(|error| tracing::info!(%error, "streams are not taken over"))
        .ok()
}

/// Holds the parcel in this process's standard streams: the command [`HOLD`].
///
/// # Errors
/// If the kernel refuses.
pub fn hold() -> std::io::Result<()> {
    let listener = std::io::stdin().as_fd().try_clone_to_owned()?;
    let parcel = std::io::stdout().as_fd().try_clone_to_owned()?;
    let end = std::io::stderr().as_fd().try_clone_to_owned()?;
    parcel::hold(listener, [parcel, end], HOLDS)
}

/// Command of the program that calls [`hold`].
pub const HOLD: &str = "hold-streams";

/// Time for which a parcel is held. Source: as long as a file with sessions is used (`GOOD_FOR`,
/// `file.rs`).
const HOLDS: Duration = Duration::from_secs(300);

fn path(run_dir: &Path) -> PathBuf {
    run_dir.join("streams")
}

/// Restores what [`pack`] took from the sessions. If it is missing, their streams are dropped.
pub(super) fn restore(sessions: Vec<&mut SessionCheckpoint>, packed: Option<OwnedFd>) {
    if !sessions.iter().any(|session| session.has_streams()) {
        return;
    }
    let mut all = packed.and_then(unpack).unwrap_or_default();
    for session in sessions {
        session.put_parcel(&mut all);
        if session.check().is_err() {
            tracing::info!(session = session.session, "its streams are not taken over");
            session.drop_streams();
        }
    }
}

fn unpack(packed: OwnedFd) -> Option<Parcel> {
    let unpacked = parcel::unpack(packed, MAX_BYTES).and_then(|(bytes, descriptors)| {
        let sockets = descriptors.into_iter().map(Connection::adopt);
        let sockets = sockets.map(|socket| socket.map(Arc::new));
        Ok(Parcel {
            sockets: sockets.collect::<Result<_, _>>()?,
            bytes,
        })
    });
    unpacked
        .inspect_err(|error| tracing::warn!(%error, "streams are not taken over"))
        .ok()
}
