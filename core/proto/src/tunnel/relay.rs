//! What the receiving half of a tunnel tells the sending half.

use hawser_units::{Duration, PathId};

use crate::ingress;

/// What the receiving half noticed that concerns sending. `S`: where a datagram came from.
#[derive(Clone, Copy, Debug)]
pub enum Relay<S> {
    /// A report to be sent, or the peer's report or probe.
    Machine(ingress::Event),
    /// Authentic bytes (UDP payload) came in on a path.
    Heard {
        /// On which path.
        path: PathId,
        /// How many packets since the last relay of this kind.
        packets: u32,
        /// Of how many bytes in all.
        bytes: u64,
    },
    /// The newest packet of a path came from another address than those before.
    Moved {
        /// Which path.
        path: PathId,
        /// Its address from now on.
        source: S,
    },
    /// The peer uses the newest key.
    Epoch(u8),
}

/// How often relays of a kind are made at most: each costs the sending half work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayIntervals {
    /// Between two relays that a path is heard.
    pub heard: Duration,
    /// Between two relays that a path has moved: the sending half forgets what it knows of the
    /// path.
    pub moved: Duration,
}

impl RelayIntervals {
    /// Every datagram is told of.
    pub const NONE: Self = Self {
        heard: Duration::ZERO,
        moved: Duration::ZERO,
    };

    /// What a daemon with two threads takes.
    ///
    /// `heard`: an address that is to be proven may be sent three times what it sent, so a relay
    /// each 50 ms lets a path be proven within a few round trips of most networks. `moved`: a peer
    /// that changes between two addresses with each packet costs ten restarts of a path a second.
    pub const THREADS: Self = Self {
        heard: Duration::from_millis(50),
        moved: Duration::from_millis(100),
    };
}
