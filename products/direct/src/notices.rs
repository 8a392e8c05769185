//! Results of tasks for the event loop of direct mode.

use std::net::IpAddr;

use hawser_host::dns::{NameServers, NetworkAccess};
use hawser_host::portals::PortalCheckResult;
use hawser_steer::destinations::Probe;
use hawser_units::Duration;
use tokio::sync::oneshot;

/// Result of a task for the event loop.
pub(super) enum TaskResult {
    /// Present resolvers.
    Servers(NameServers),
    /// Query for the resolvers of a name.
    Question {
        name: String,
        chosen: Option<u8>,
        reply: oneshot::Sender<Vec<NetworkAccess>>,
    },
    /// Answer of a network; the program waits until the rules contain it.
    Answer {
        name: String,
        number: u8,
        addresses: Vec<(IpAddr, u32)>,
        done: oneshot::Sender<()>,
    },
    /// Attempt at a connection, with its duration if it was answered.
    Tried(Probe, Option<Duration>),
    /// Result of a check for a captive portal.
    PortalCheckResult(PortalCheckResult<u8>),
}

impl From<NameServers> for TaskResult {
    fn from(servers: NameServers) -> Self {
        Self::Servers(servers)
    }
}

impl From<PortalCheckResult<u8>> for TaskResult {
    fn from(looked: PortalCheckResult<u8>) -> Self {
        Self::PortalCheckResult(looked)
    }
}
