//! What of a session's machines outlives the process: a successor continues from it under the same
//! keys.
//!
//! A checkpoint holds what both ends must agree on, and nothing that a machine finds again by
//! itself within a few round trips. Packet numbers continue, so that no nonce is used twice; the
//! replay windows continue, so that no packet is delivered twice; the places of flows continue, so
//! that the far resequencer sees one sequence. Queues, kept packets, open gaps and most of the path
//! model are left out: they last as long as a round trip.
//!
//! Text and numbers only, in public fields: the driver chooses how it is encoded. What is read back
//! is checked where it is restored, because a file may be damaged.

use serde::{Deserialize, Serialize};

/// The sending half of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sending {
    /// The paths, by id.
    pub paths: Vec<SendingPath>,
    /// The scheduler of each class, in the order of [`hawser_wire::data::Class::ALL`].
    pub schedulers: Vec<String>,
    /// The peer understands parity packets.
    pub peer_takes_parity: bool,
    /// The peer understands fragments.
    #[serde(default)]
    pub peer_takes_fragments: bool,
    /// The next places of each flow number: in order, and unordered.
    pub places: Vec<(u32, u32)>,
    /// The flows in use.
    pub flows: Vec<SendingFlow>,
}

/// One path in the sending direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendingPath {
    /// Its id.
    pub id: u16,
    /// The packet number to send next. Every lower one may have been used.
    pub next_packet_number: u64,
    /// UDP payload sent in all, bytes.
    pub sent: u64,
    /// UDP payload reported received in all, bytes.
    pub delivered: u64,
    /// Packets reported received in all, wrapping.
    pub reported_packets: u32,
    /// The peer's address is proven and answered lately.
    pub is_active: bool,
    /// The largest outer IP packet that is known to pass, bytes.
    pub outer_mtu: u16,
    /// The round trip without queues, microseconds; 0 when not known.
    pub round_trip_us: u32,
    /// The delivery rate, bit/s; 0 when not known.
    pub rate_bps: u64,
}

/// One flow in the sending direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendingFlow {
    /// Its number, which its packets carry.
    pub number: u16,
    /// IP protocol.
    pub protocol: u8,
    /// Source address and port.
    pub source: core::net::SocketAddr,
    /// Destination address and port.
    pub destination: core::net::SocketAddr,
    /// Its class, as [`hawser_wire::data::Class::ALL`] counts.
    pub class: u8,
    /// Its order does not matter.
    pub unordered: bool,
    /// Inner bytes sent in all.
    pub sent: u64,
}

/// The receiving half of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receiving {
    /// The paths, by id.
    pub paths: Vec<ReceivingPath>,
}

/// One path in the receiving direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceivingPath {
    /// Its id.
    pub id: u16,
    /// The highest packet number received.
    pub highest: u64,
    /// Packets received in all, wrapping.
    pub packets: u32,
    /// UDP payload received in all, bytes.
    pub bytes: u64,
    /// Packet numbers below this are refused.
    pub floor: u64,
    /// The packet numbers from `floor` on that were received: runs of a first number and a count.
    pub received: Vec<(u64, u64)>,
}

/// The paths of a session as the hub's side of the control channel knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubPaths {
    /// Id, the index of arriving packets, the index of departing packets.
    pub open: Vec<(u16, u32, u32)>,
    /// The lowest id that was never used; 65,536 when all were.
    pub next_id: u32,
}

/// A count of bytes beyond this is damage: at 10 Gbit/s it takes a century, and what is added later
/// does not overflow.
pub(crate) const MOST_BYTES: u64 = 1 << 62;

/// Why a checkpoint cannot be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadCheckpoint {
    /// Numbers contradict one another or lie outside of what the machines can reach.
    #[error("a checkpoint's numbers make no sense")]
    Impossible,
    /// It names a scheduler or a class that this version does not know.
    #[error("a checkpoint names something unknown")]
    Unknown,
}
