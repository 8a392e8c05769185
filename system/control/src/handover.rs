//! State that a hub passes to its successor at a planned restart, so that every flow continues.
//!
//! The service manager keeps three descriptors open between the end of one process and the start of
//! the next: the inner interface, the UDP socket, which queues arriving packets, and a memory file
//! with the sessions. Each thread pair of the data plane has its own queue of the interface and its
//! own socket. The successor continues with the same keys and higher packet numbers; clients notice
//! the restart only by their control connections, which they reopen. State that does not fit
//! (another interface, port, version or number of pairs) is dropped, and clients begin new
//! sessions.
//!
//! Each stream has a socket and bytes, which wait in the queue of a Unix socket that the manager
//! keeps ([`streams`]).
//!
//! The manager receives the interface and the socket at the start, so they also survive a crash;
//! the sessions do not. Without a service manager only the sessions are passed to the successor, in
//! a file ([`file`]).
//!
//! ```text
//!   running -- asked to hand over --> threads end --> sessions written --> manager has all --> process ends
//!      ^                                                                                          |
//!      +------------ sessions restored <-- interface and socket taken <-- next process starts <---+
//! ```

mod client;
mod file;
mod streams;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use hawser_dataplane::checkpoint::SessionCheckpoint;
use hawser_linux::service;
use hawser_linux::tun::Tun;
use hawser_proto::checkpoint::HubPaths;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

pub use client::{ClientCheckpoint, InheritedClient, hand_over_client};
pub use streams::{HOLD, hold};

/// Version of the format, which changes with every change of the contents. Source: the first
/// version.
const VERSION: u32 = 1;
/// Maximum length of a checkpoint. Source: ten thousand sessions with a thousand flows each, and
/// 107 bytes for each flow. Units: bytes.
const MAX_LEN: u64 = 1 << 30;

const INTERFACE: &str = "interface";
const SOCKET: &str = "socket";
const SESSIONS: &str = "sessions";
const STREAMS: &str = "streams";
/// Name of the other end of the socket with the streams.
const STREAMS_END: &str = "streams-end";

/// Checkpoint of all sessions of a hub.
#[derive(Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    version: u32,
    /// Sessions, one for each client.
    pub sessions: Vec<HubSessionCheckpoint>,
}

/// Session of a hub.
#[derive(Serialize, Deserialize)]
pub struct HubSessionCheckpoint {
    /// State of the control side.
    pub control: ControlCheckpoint,
    /// State of the data plane.
    pub plane: SessionCheckpoint,
}

/// State of a session in the control side.
#[derive(Serialize, Deserialize)]
pub struct ControlCheckpoint {
    /// The client's name.
    pub client: String,
    /// Key of the client, as text: the client with this name must have the same key after the
    /// restart.
    pub key: String,
    /// Inner addresses of the client, which packets of the session have.
    pub inner: Vec<IpAddr>,
    /// The epoch of the newest keys.
    pub epoch: u8,
    /// The paths.
    pub paths: HubPaths,
}

/// State that the previous process has left.
#[derive(Default)]
pub struct Inherited {
    /// Queues of the inner interface: one for each thread pair, or none.
    pub queues: Vec<Tun>,
    /// Sockets with waiting datagrams: one for each thread pair, or none.
    pub sockets: Vec<UdpSocket>,
    /// Sessions; none after a crash.
    pub sessions: Vec<HubSessionCheckpoint>,
}

impl Inherited {
    /// Takes the state from the service manager, as far as it matches an interface, an address and
    /// a number of thread pairs; without a manager, from the run directory.
    pub fn take((interface, mtu): (&str, u16), listen: SocketAddr, pairs: u32, run_dir: &Path) -> Self {
        // Unusable files are also removed.
        let from_file = file::Moment::now().and_then(|now| file::take(run_dir, &now));
        if !service::is_managed() {
            let mut sessions = from_file.unwrap_or_else(|error| {
                let error = format!("{error:#}");
                tracing::info!(error, "no sessions are taken over from the previous process");
                Vec::new()
            });
            let planes = sessions.iter_mut().map(|session| &mut session.plane);
            streams::restore(planes.collect(), streams::fetch(run_dir));
            return Self {
                sessions,
                ..Self::default()
            };
        }
        Self::from_manager((interface, mtu), listen, pairs)
    }

    fn from_manager((interface, mtu): (&str, u16), listen: SocketAddr, pairs: u32) -> Self {
        let mut inherited = Self::default();
        let (mut queues, mut sockets) = (BTreeMap::new(), BTreeMap::new());
        let mut names = Vec::new();
        let kept = service::take_inherited().unwrap_or_else(|error| {
            tracing::warn!(%error, "nothing is taken over from the previous process");
            Vec::new()
        });
        let (mut sessions, mut streams) = (None, None);
        for kept in kept {
            let (what, pair) = parsed(&kept.name);
            let taken = match what {
                INTERFACE => Tun::adopt(kept.descriptor, interface, mtu, pairs)
                    .map(|queue| drop(queues.insert(pair, queue)))
                    .map_err(Into::into),
                SOCKET => {
                    adopt_socket(kept.descriptor, listen).map(|socket| drop(sockets.insert(pair, socket)))
                }
                SESSIONS => read(kept.descriptor).map(|read| sessions = Some(read)),
                STREAMS => {
                    streams = Some(kept.descriptor);
                    Ok(())
                }
                _ => Ok(()),
            };
            if let Err(error) = taken {
                let error = format!("{error:#}");
                tracing::info!(
                    what = kept.name,
                    error,
                    "not taken over from the previous process"
                );
            }
            names.push(kept.name);
        }
        inherited.queues = complete(queues, pairs);
        inherited.sockets = complete(sockets, pairs);
        // Unusable descriptors must be closed before new ones with the same name or port are
        // created.
        let is_used = |name: &&String| match parsed(name).0 {
            INTERFACE => !inherited.queues.is_empty(),
            SOCKET => !inherited.sockets.is_empty(),
            _ => true,
        };
        let useless: Vec<_> = names.iter().filter(|name| !is_used(name)).collect();
        if !useless.is_empty() {
            let forgotten = useless.into_iter().try_for_each(|name| service::forget(name));
            if let Err(error) = forgotten.and_then(|()| service::settle()) {
                tracing::warn!(%error, "cannot remove an unused descriptor from the service manager");
            }
        }
        // A checkpoint is valid for one successor, because a second use would repeat packet
        // numbers. Streams that remain at the manager would never be closed.
        let mut names = [STREAMS, STREAMS_END, SESSIONS].into_iter();
        let is_forgotten = names.try_for_each(service::forget);
        let is_gone = match &sessions {
            Some(_) => is_forgotten.and_then(|()| service::settle()),
            None => is_forgotten,
        };
        match (
            is_gone,
            !inherited.queues.is_empty() && !inherited.sockets.is_empty(),
        ) {
            (Ok(()), true) => {
                inherited.sessions = sessions.map(|read| read.sessions).unwrap_or_default();
                let planes = inherited.sessions.iter_mut().map(|session| &mut session.plane);
                streams::restore(planes.collect(), streams);
            }
            (Err(error), _) => tracing::warn!(%error, "sessions are not taken over"),
            (Ok(()), false) => {}
        }
        inherited
    }
}

/// Returns the items of all pairs in their order; empty if one is missing or there are too many.
fn complete<T>(found: BTreeMap<u32, T>, pairs: u32) -> Vec<T> {
    if !found.keys().copied().eq(0..pairs) {
        return Vec::new();
    }
    found.into_values().collect()
}

/// Returns the name of a pair's descriptor. The first pair has the name of older versions.
fn named(what: &str, pair: usize) -> String {
    match pair {
        0 => what.to_owned(),
        _ => format!("{what}-{pair}"),
    }
}

fn parsed(name: &str) -> (&str, u32) {
    let parts = name.rsplit_once('-');
    let numbered = parts.and_then(|(what, pair)| Some((what, pair.parse().ok()?)));
    numbered.unwrap_or((name, 0))
}

/// Returns the number of thread pairs for which the previous process has left sockets; `None`
/// without a previous process.
#[must_use]
pub fn inherited_pairs() -> Option<u32> {
    let names = service::inherited_names();
    let sockets = names.iter().filter(|name| parsed(name).0 == SOCKET);
    u32::try_from(sockets.count()).ok().filter(|count| *count > 0)
}

/// Passes the interface and the sockets to the service manager, if there is one.
pub fn keep_open(queues: &[Tun], sockets: &[Arc<UdpSocket>]) {
    if !service::is_managed() {
        return;
    }
    let queues = queues.iter().map(|queue| (INTERFACE, queue.as_fd())).enumerate();
    let sockets = sockets.iter().map(|socket| (SOCKET, socket.as_fd())).enumerate();
    for (pair, (what, descriptor)) in queues.chain(sockets) {
        let name = named(what, pair);
        if let Err(error) = service::keep(&name, descriptor) {
            tracing::warn!(%error, name, "a restart will end connections");
        }
    }
}

/// Writes the sessions for the successor. After the return the process may end.
///
/// # Errors
/// If there is no service manager, or it does not accept them; nothing was handed over.
pub fn hand_over(mut sessions: Vec<HubSessionCheckpoint>) -> anyhow::Result<()> {
    let parcel = streams::pack(sessions.iter_mut().map(|session| &mut session.plane));
    let checkpoint = Checkpoint {
        version: VERSION,
        sessions,
    };
    let file = write_text(c"hawser sessions", &checkpoint)?;
    service::keep(SESSIONS, file.as_fd()).context("the service manager does not accept the sessions")?;
    if let Some((parcel, end)) = &parcel {
        let kept =
            service::keep(STREAMS, parcel.as_fd()).and_then(|()| service::keep(STREAMS_END, end.as_fd()));
        kept.context("the service manager does not accept the streams")?;
    }
    service::settle().context("the service manager does not accept the sessions")
}

/// Writes the sessions to the run directory, for a successor that no service manager starts. After
/// the return the process may end.
///
/// # Errors
/// The disk refuses: nothing was handed over.
pub fn leave(run_dir: &Path, mut sessions: Vec<HubSessionCheckpoint>) -> anyhow::Result<()> {
    let parcel = streams::pack(sessions.iter_mut().map(|session| &mut session.plane));
    if let Some(Err(error)) = parcel.map(|parcel| streams::leave(run_dir, parcel)) {
        tracing::warn!(%error, "streams are not handed over");
    }
    file::write(run_dir, file::Moment::now()?, sessions)
}

fn adopt_socket(descriptor: OwnedFd, wanted: SocketAddr) -> anyhow::Result<UdpSocket> {
    let socket = UdpSocket::from(descriptor);
    let address = socket.local_addr()?;
    if address.port() != wanted.port() || (address.ip() != wanted.ip() && !address.ip().is_unspecified()) {
        bail!("the socket listens on {address} and not on {wanted}");
    }
    Ok(socket)
}

/// Writes a checkpoint into memory.
fn write_text(name: &std::ffi::CStr, checkpoint: &impl Serialize) -> anyhow::Result<std::fs::File> {
    let text = serde_json::to_vec(checkpoint).map(Zeroizing::new)?;
    service::memory_file(name, &text).context("no memory for the sessions")
}

fn read_text<T: for<'de> Deserialize<'de>>(descriptor: OwnedFd) -> anyhow::Result<T> {
    let text = service::read_memory_file(descriptor, MAX_LEN).map(Zeroizing::new)?;
    serde_json::from_slice(&text).context("damaged")
}

fn read(descriptor: OwnedFd) -> anyhow::Result<Checkpoint> {
    let text = service::read_memory_file(descriptor, MAX_LEN).map(Zeroizing::new)?;
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let Versioned { version } = serde_json::from_slice(&text).context("damaged")?;
    if version != VERSION {
        bail!("it has version {version}, and this program needs version {VERSION}");
    }
    serde_json::from_slice(&text).context("damaged")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_belongs_to_which_pair() {
        for what in [INTERFACE, SOCKET, SESSIONS] {
            for pair in [0, 1, 15] {
                let name = named(what, pair);
                assert_eq!(parsed(&name), (what, pair as u32), "{name}");
            }
        }
        assert_eq!(named(SOCKET, 0), "socket", "as older versions have it");
        assert_eq!(parsed("some-thing"), ("some-thing", 0));
    }

    #[test]
    fn a_set_is_taken_whole_or_not_at_all() {
        let found = |pairs: &[u32]| pairs.iter().map(|pair| (*pair, *pair)).collect();
        assert_eq!(complete(found(&[1, 0]), 2), [0, 1]);
        assert_eq!(complete(found(&[0]), 1), [0]);
        for (pairs, count) in [(&[0][..], 2), (&[0, 1], 1), (&[1], 1), (&[0, 2], 2), (&[], 1)] {
            assert!(complete(found(pairs), count).is_empty(), "{pairs:?} of {count}");
        }
    }
}
