//! What the receiving thread passes on to the sending one.

use std::net::{IpAddr, SocketAddr};

use hawser_proto::tunnel::{self, Relay};

use super::overhead::overhead;
use super::{SessionId, SocketId};

/// What the receiving thread noticed of a session.
pub(super) struct Relayed {
    pub(super) session: SessionId,
    pub(super) relay: Relay<Source>,
}

/// The way that a datagram came: a hub answers by the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// By which socket.
    pub(super) socket: SocketId,
    /// From which address of the peer.
    pub(super) from: SocketAddr,
    /// To which address of this machine: a machine may have several, and firewalls let in only
    /// answers from the right one.
    pub(super) to: Option<IpAddr>,
}

impl tunnel::Source for Source {
    fn overhead(&self) -> u16 {
        overhead(&self.from)
    }
}
