//! What tasks tell the event loop of direct mode.

use std::net::IpAddr;

use hawser_host::dns::{NameServers, Place};
use hawser_host::portals::Looked;
use hawser_steer::destinations::Probe;
use hawser_units::Duration;
use tokio::sync::oneshot;

/// What tasks tell the event loop.
pub(super) enum Told {
    /// These are the resolvers now.
    Servers(NameServers),
    /// Who is to be asked for a name?
    Question {
        name: String,
        chosen: Option<u8>,
        places: oneshot::Sender<Vec<Place>>,
    },
    /// A network has answered; the program waits until the rules know.
    Answer {
        name: String,
        number: u8,
        addresses: Vec<(IpAddr, u32)>,
        done: oneshot::Sender<()>,
    },
    /// A connection was tried; how long it took, where somebody answered.
    Tried(Probe, Option<Duration>),
    /// A look for a captive portal is over.
    Looked(Looked<u8>),
}

impl From<NameServers> for Told {
    fn from(servers: NameServers) -> Self {
        Self::Servers(servers)
    }
}

impl From<Looked<u8>> for Told {
    fn from(looked: Looked<u8>) -> Self {
        Self::Looked(looked)
    }
}
