//! The hub's end of WireGuard, for phones and other devices without Hawser.
//!
//! | question | file |
//! |---|---|
//! | handshakes, sessions, addresses of peers | `peers.rs`: a machine around the library |
//! | the thread between socket and TUN | `plane.rs` |
//! | packets and orders for the thread | `queue.rs` |
//! | peers that are held to a rate | `gates.rs` |
//! | keys in files | `keys.rs` |
//! | the configuration that an app imports | `client_config.rs` |
//!
//! ```text
//!   WireGuard app <--UDP--> [ plane ] --filter, gate--> TUN, as packets of sessions
//!                               ^
//!                               +--gate-- [ queue ] <-- sending threads <-- TUN
//! ```
//!
//! The hub's TUN, its rules (`hawser_linux::isolation`) and the filter of packets from clients are
//! those of all clients. The hub's store decides which peers exist, and their limits. New readers
//! start with [`WireGuard::start`].
#![forbid(unsafe_code)]

mod client_config;
mod gates;
mod keys;
mod peers;
mod plane;
mod queue;

use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use anyhow::Context;
use hawser_config::WireGuardKey;
use hawser_dataplane::OtherClients;
use hawser_linux::tun::Tun;
use hawser_linux::udp::DataSocket;
use hawser_linux::wait::Waker;
use hawser_proto::client_filter::Policy;
use tokio::sync::oneshot;

pub use client_config::ClientConfig;
pub use keys::PrivateKey;
pub use peers::{Endpoint, PeerConfig, PeerId, PeerStatus, Peers, Received, Refusal, Transmit};

use queue::{Order, Queue};

/// Parameters at the start.
pub struct Config {
    /// Key of the hub.
    pub key: PrivateKey,
    /// Socket to listen on.
    pub socket: UdpSocket,
    /// Handle to the interface of the hub, for packets from clients.
    pub tun: Tun,
    /// Destinations that clients may reach.
    pub policy: Arc<Policy>,
}

/// State of all peers.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Peers.
    pub peers: Vec<PeerStatus>,
    /// Counters, by name.
    pub counters: Vec<(&'static str, u64)>,
}

/// Handle to the running thread, which ends when the last handle is dropped.
#[derive(Clone)]
pub struct WireGuard(Arc<Running>);

struct Running {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl WireGuard {
    /// Starts the thread, without peers.
    ///
    /// # Errors
    /// No descriptor or thread is left.
    pub fn start(config: Config) -> anyhow::Result<Self> {
        let waker = Waker::new().context("cannot make an eventfd")?;
        let queue = Arc::new(Queue::new(waker));
        let socket = DataSocket::new(Arc::new(config.socket)).context("the socket cannot be used")?;
        let plane = plane::Plane::new(
            Peers::new(config.key),
            (Arc::new(socket), config.tun),
            config.policy,
            Arc::clone(&queue),
        );
        let thread = std::thread::Builder::new()
            .name("hawser-wireguard".to_owned())
            .spawn(move || plane.run())
            .context("cannot start a thread")?;
        let thread = Mutex::new(Some(thread));
        Ok(Self(Arc::new(Running { queue, thread })))
    }

    /// Returns the clients, for the data plane.
    #[must_use]
    pub fn others(&self) -> Arc<dyn OtherClients> {
        Arc::clone(&self.0.queue) as Arc<dyn OtherClients>
    }

    /// Sets the peers. The receiver is notified when the sessions of removed peers have ended.
    pub fn set_peers(&self, peers: Vec<PeerConfig>) -> oneshot::Receiver<()> {
        let (answer, answered) = oneshot::channel();
        self.0.queue.give(Order::SetPeers(peers, answer));
        answered
    }

    /// Changes the destinations that clients may reach.
    pub fn set_policy(&self, policy: Arc<Policy>) {
        self.0.queue.give(Order::SetPolicy(policy));
    }

    /// Starts handshakes with peers at their last addresses of the previous hub process.
    pub fn resume(&self, endpoints: Vec<(WireGuardKey, SocketAddr)>) {
        self.0.queue.give(Order::Resume(endpoints));
    }

    /// Returns the state of all peers; empty once the thread has ended.
    pub async fn status(&self) -> Status {
        let (answer, answered) = oneshot::channel();
        self.0.queue.give(Order::Status(answer));
        answered.await.unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.queue.stop();
        let thread = self.thread.lock().map(|mut thread| thread.take());
        if let Ok(Some(thread)) = thread {
            let _ = thread.join();
        }
    }
}
