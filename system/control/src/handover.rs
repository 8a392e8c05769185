//! What a hub hands to its successor at a planned restart, so that every flow goes on.
//!
//! Three things stay open with the service manager while the one process ends and the next starts:
//! the inner interface, the UDP socket, which queues what arrives meanwhile, and a file in memory
//! with the sessions. Of the first two each pair of the data plane's threads has its own: a queue
//! of the interface, and a socket. The successor goes on under the same keys, with higher packet
//! numbers; clients notice the restart by their control connections alone, which they make anew.
//! What does not fit (another interface, port, version or count of pairs) is dropped, and clients
//! begin new sessions.
//!
//! The interface and the socket are given to the manager at start. So they outlive a crash, too;
//! the sessions do not. Without a service manager the sessions alone go to the successor, in a file
//! ([`file`]).
//!
//! ```text
//!   running -- asked to hand over --> threads end --> sessions written --> manager has all --> process ends
//!      ^                                                                                          |
//!      +------------ sessions restored <-- interface and socket taken <-- next process starts <---+
//! ```

mod file;

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

/// Changes with every change of what is written.
const VERSION: u32 = 1;
/// A session takes some kilobytes: room for ten thousand with a thousand flows each.
const MAX_LEN: u64 = 1 << 30;

const INTERFACE: &str = "interface";
const SOCKET: &str = "socket";
const SESSIONS: &str = "sessions";

/// All sessions of a hub.
#[derive(Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    version: u32,
    /// Each client's.
    pub sessions: Vec<HubSessionCheckpoint>,
}

/// One session.
#[derive(Serialize, Deserialize)]
pub struct HubSessionCheckpoint {
    /// What the control side knows.
    pub control: ControlCheckpoint,
    /// What the data plane knows.
    pub plane: SessionCheckpoint,
}

/// The control side's part of a session.
#[derive(Serialize, Deserialize)]
pub struct ControlCheckpoint {
    /// The client's name.
    pub client: String,
    /// The client's key, as text: whoever has the name by then must have the key, too.
    pub key: String,
    /// The client's inner addresses, which packets of the session have.
    pub inner: Vec<IpAddr>,
    /// The epoch of the newest keys.
    pub epoch: u8,
    /// The paths.
    pub paths: HubPaths,
}

/// What the process before has left.
#[derive(Default)]
pub struct Inherited {
    /// The inner interface: a queue for each pair of threads, or none.
    pub queues: Vec<Tun>,
    /// The sockets, in which datagrams wait: one for each pair of threads, or none.
    pub sockets: Vec<UdpSocket>,
    /// The sessions; none after a crash.
    pub sessions: Vec<HubSessionCheckpoint>,
}

impl Inherited {
    /// Takes what the service manager has kept, as far as it fits an interface, an address and a
    /// count of pairs of threads; without a manager, what the run directory has.
    pub fn take((interface, mtu): (&str, u16), listen: SocketAddr, pairs: u32, run_dir: &Path) -> Self {
        // Also what is of no use is removed.
        let from_file = file::Moment::now().and_then(|now| file::take(run_dir, &now));
        if !service::is_managed() {
            let sessions = from_file.unwrap_or_else(|error| {
                let error = format!("{error:#}");
                tracing::info!(error, "no sessions are taken over from the process before");
                Vec::new()
            });
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
        let kept = service::take_kept().unwrap_or_else(|error| {
            tracing::warn!(%error, "nothing is taken over from the process before");
            Vec::new()
        });
        let mut sessions = None;
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
                _ => Ok(()),
            };
            if let Err(error) = taken {
                let error = format!("{error:#}");
                tracing::info!(what = kept.name, error, "not taken over from the process before");
            }
            names.push(kept.name);
        }
        inherited.queues = complete(queues, pairs);
        inherited.sockets = complete(sockets, pairs);
        // What is of no use must be gone before there is another of its name or port.
        let is_used = |name: &&String| match parsed(name).0 {
            INTERFACE => !inherited.queues.is_empty(),
            SOCKET => !inherited.sockets.is_empty(),
            _ => true,
        };
        let useless: Vec<_> = names.iter().filter(|name| !is_used(name)).collect();
        if !useless.is_empty() {
            let forgotten = useless.into_iter().try_for_each(|name| service::forget(name));
            if let Err(error) = forgotten.and_then(|()| service::settle()) {
                tracing::warn!(%error, "the service manager keeps what is of no use");
            }
        }
        // A checkpoint is good for one successor: used twice, packet numbers would be, too.
        let is_gone = match &sessions {
            Some(_) => service::forget(SESSIONS).and_then(|()| service::settle()),
            None => service::forget(SESSIONS),
        };
        match (
            is_gone,
            !inherited.queues.is_empty() && !inherited.sockets.is_empty(),
        ) {
            (Ok(()), true) => inherited.sessions = sessions.map(|read| read.sessions).unwrap_or_default(),
            (Err(error), _) => tracing::warn!(%error, "sessions are not taken over"),
            (Ok(()), false) => {}
        }
        inherited
    }
}

/// What belongs to each of so many pairs, in their order; nothing where one is missing or too many.
fn complete<T>(found: BTreeMap<u32, T>, pairs: u32) -> Vec<T> {
    if !found.keys().copied().eq(0..pairs) {
        return Vec::new();
    }
    found.into_values().collect()
}

/// The name of what belongs to a pair. That of the first is as older versions have it.
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

/// For how many pairs of threads the process before has left sockets; `None` when there was none.
#[must_use]
pub fn kept_pairs() -> Option<u32> {
    let names = service::kept_names();
    let sockets = names.iter().filter(|name| parsed(name).0 == SOCKET);
    u32::try_from(sockets.count()).ok().filter(|count| *count > 0)
}

/// Gives the interface and the sockets to the service manager, if there is one.
pub fn keep_open(queues: &[Tun], sockets: &[Arc<UdpSocket>]) {
    if !service::is_managed() {
        return;
    }
    let queues = queues.iter().map(|queue| (INTERFACE, queue.as_fd())).enumerate();
    let sockets = sockets.iter().map(|socket| (SOCKET, socket.as_fd())).enumerate();
    for (pair, (what, descriptor)) in queues.chain(sockets) {
        let name = named(what, pair);
        if let Err(error) = service::keep(&name, descriptor) {
            tracing::warn!(%error, name, "a restart will not keep connections");
        }
    }
}

/// Writes the sessions for the successor. When this has returned, the process may end.
///
/// # Errors
/// There is no service manager, or it does not take them: nothing was handed over.
pub fn hand_over(sessions: Vec<HubSessionCheckpoint>) -> anyhow::Result<()> {
    let checkpoint = Checkpoint {
        version: VERSION,
        sessions,
    };
    let text = serde_json::to_vec(&checkpoint).map(Zeroizing::new)?;
    let file = service::memory_file(c"hawser sessions", &text).context("no memory for the sessions")?;
    service::keep(SESSIONS, file.as_fd()).context("the service manager does not take the sessions")?;
    service::settle().context("the service manager does not take the sessions")
}

/// Writes the sessions into the run directory, for a successor that no service manager starts. When
/// this has returned, the process may end.
///
/// # Errors
/// The disk refuses: nothing was handed over.
pub fn leave(run_dir: &Path, sessions: Vec<HubSessionCheckpoint>) -> anyhow::Result<()> {
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

fn read(descriptor: OwnedFd) -> anyhow::Result<Checkpoint> {
    let text = service::read_memory_file(descriptor, MAX_LEN).map(Zeroizing::new)?;
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let Versioned { version } = serde_json::from_slice(&text).context("damaged")?;
    if version != VERSION {
        bail!("it is of version {version}, this is version {VERSION}");
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
