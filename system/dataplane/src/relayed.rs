//! Relays from the receiving thread to the sending thread.

use std::net::{IpAddr, SocketAddr};

use hawser_proto::tunnel::{self, Relay};

use super::overhead::overhead;
use super::{SessionId, SocketId};

/// Observation of the receiving thread about a session.
pub(super) struct Relayed {
    pub(super) session: SessionId,
    pub(super) relay: Relay<Source>,
}

/// Origin of a datagram: a hub answers over the same route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// Socket that received it.
    pub(super) socket: SocketId,
    /// Source address of the peer.
    pub(super) from: SocketAddr,
    /// Destination address on this machine: it may have several, and firewalls accept only answers
    /// from the right one.
    pub(super) to: Option<IpAddr>,
}

impl tunnel::Source for Source {
    fn overhead(&self) -> u16 {
        overhead(&self.from)
    }
}
