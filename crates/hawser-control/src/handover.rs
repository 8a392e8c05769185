//! What a hub hands to its successor at a planned restart, so that every flow goes on.
//!
//! Three things stay open with the service manager while the one process ends and the next starts:
//! the inner interface, the UDP socket, which queues what arrives meanwhile, and a file in memory
//! with the sessions. The successor goes on under the same keys, with higher packet numbers;
//! clients notice the restart by their control connections alone, which they make anew. What does
//! not fit (another interface, port or version) is dropped, and clients begin new sessions.
//!
//! The interface and the socket are given to the manager at start. So they outlive a crash, too;
//! the sessions do not.
//!
//! ```text
//!   running -- asked to hand over --> threads end --> sessions written --> manager has all --> process ends
//!      ^                                                                                          |
//!      +------------ sessions restored <-- interface and socket taken <-- next process starts <---+
//! ```

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

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
    /// The inner interface.
    pub tun: Option<Tun>,
    /// The socket, in which datagrams wait.
    pub socket: Option<UdpSocket>,
    /// The sessions; none after a crash.
    pub sessions: Vec<HubSessionCheckpoint>,
}

impl Inherited {
    /// Takes what the service manager has kept, as far as it fits an interface and an address.
    pub fn take((interface, mtu): (&str, u16), listen: SocketAddr) -> Self {
        let mut inherited = Self::default();
        let kept = service::take_kept().unwrap_or_else(|error| {
            tracing::warn!(%error, "nothing is taken over from the process before");
            Vec::new()
        });
        let mut sessions = None;
        for kept in kept {
            let taken = match kept.name.as_str() {
                INTERFACE => Tun::adopt(kept.descriptor, interface, mtu)
                    .map(|tun| inherited.tun = Some(tun))
                    .map_err(Into::into),
                SOCKET => adopt_socket(kept.descriptor, listen).map(|socket| inherited.socket = Some(socket)),
                SESSIONS => read(kept.descriptor).map(|read| sessions = Some(read)),
                _ => Ok(()),
            };
            if let Err(error) = taken {
                let error = format!("{error:#}");
                tracing::info!(what = kept.name, error, "not taken over from the process before");
            }
        }
        // A checkpoint is good for one successor: used twice, packet numbers would be, too.
        let is_gone = match &sessions {
            Some(_) => service::forget(SESSIONS).and_then(|()| service::settle()),
            None => service::forget(SESSIONS),
        };
        match (is_gone, inherited.tun.is_some() && inherited.socket.is_some()) {
            (Ok(()), true) => inherited.sessions = sessions.map(|read| read.sessions).unwrap_or_default(),
            (Err(error), _) => tracing::warn!(%error, "sessions are not taken over"),
            (Ok(()), false) => {}
        }
        inherited
    }
}

/// Gives the interface and the socket to the service manager, if there is one.
pub fn keep_open(tun: &Tun, socket: &UdpSocket) {
    if !service::is_managed() {
        return;
    }
    for (name, descriptor) in [(INTERFACE, tun.as_fd()), (SOCKET, socket.as_fd())] {
        if let Err(error) = service::keep(name, descriptor) {
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
