//! Notifications from the receiving half of a tunnel to the sending half.

use hawser_units::{Duration, PathId};

use crate::ingress;

/// Observation of the receiving half that concerns sending. `S`: source of a datagram.
#[derive(Clone, Copy, Debug)]
pub enum Relay<S> {
    /// A report to be sent, or the peer's report or probe.
    Machine(ingress::Event),
    /// Authentic bytes (UDP payload) arrived on a path.
    Heard {
        /// Path of the packets.
        path: PathId,
        /// Number of packets since the last relay of this kind.
        packets: u32,
        /// Bytes of these packets in all.
        bytes: u64,
    },
    /// The newest packet of a path came from another address than those before.
    Moved {
        /// Path that moved.
        path: PathId,
        /// New address of the peer.
        source: S,
    },
    /// The peer uses the newest key.
    Epoch(u8),
}

/// Minimum intervals between relays of a kind, since each costs the sending half work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayIntervals {
    /// Interval between two relays that a path delivered a packet.
    pub heard: Duration,
    /// Interval between two relays that a path has moved: the sending half forgets its model of the
    /// path.
    pub moved: Duration,
}

impl RelayIntervals {
    /// No intervals: every datagram is relayed.
    pub const NONE: Self = Self {
        heard: Duration::ZERO,
        moved: Duration::ZERO,
    };

    /// Intervals of a daemon with two threads.
    ///
    /// `heard`: an unvalidated address may be sent three times what it sent, so a relay every 50 ms
    /// lets a path be validated within a few round trips of most networks. `moved`: a peer that
    /// changes between two addresses with each packet causes ten restarts of a path per second.
    pub const THREADS: Self = Self {
        heard: Duration::from_millis(50),
        moved: Duration::from_millis(100),
    };
}
