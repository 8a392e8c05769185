//! Checkpoint of a session: state of its machines that outlives the process, so that a successor
//! continues the session with the same keys.
//!
//! A checkpoint contains what both ends must agree on, and nothing that a machine measures again
//! within a few round trips. Packet numbers continue, so that no nonce is used twice. Replay
//! windows continue, so that no packet is delivered twice. Sequence numbers of flows continue, so
//! that the far resequencer observes one sequence. Queues, stored packets, open gaps and most of
//! the path model are left out: they are outdated after a round trip.
//!
//! All fields are public and consist of texts and numbers, so the driver can choose the encoding.
//! Restoring validates them, because the file may be damaged.

use serde::{Deserialize, Serialize};

/// Sending half of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sending {
    /// The paths, by id.
    pub paths: Vec<SendingPath>,
    /// The scheduler of each class, in the order of [`hawser_wire::data::Class::ALL`].
    pub schedulers: Vec<String>,
    /// Set if the peer supports parity packets.
    pub peer_takes_parity: bool,
    /// Set if the peer supports fragments.
    #[serde(default)]
    pub peer_takes_fragments: bool,
    /// Next sequence numbers of each flow slot: in order, and unordered.
    pub places: Vec<(u32, u32)>,
    /// The flows in use.
    pub flows: Vec<SendingFlow>,
    /// The streams. Older versions do not know them.
    #[serde(default)]
    pub streams: SendingStreams,
}

/// Path in the sending direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendingPath {
    /// Id of the path.
    pub id: u16,
    /// Next packet number. Every lower number may have been used.
    pub next_packet_number: u64,
    /// UDP payload sent in all, bytes.
    pub sent: u64,
    /// UDP payload reported received in all, bytes.
    pub delivered: u64,
    /// Packets reported received in all, wrapping.
    pub reported_packets: u32,
    /// Marks a path whose peer address is validated and has recently answered.
    pub is_active: bool,
    /// Largest outer IP packet that is known to pass, bytes.
    pub outer_mtu: u16,
    /// Round-trip time without queues, microseconds; 0 if unknown.
    pub round_trip_us: u32,
    /// Delivery rate, bit/s; 0 if unknown.
    pub rate_bps: u64,
}

/// Flow in the sending direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendingFlow {
    /// Slot of the flow, which its packets contain.
    pub number: u16,
    /// IP protocol.
    pub protocol: u8,
    /// Source address and port.
    pub source: core::net::SocketAddr,
    /// Destination address and port.
    pub destination: core::net::SocketAddr,
    /// Class of the flow, as an index in [`hawser_wire::data::Class::ALL`].
    pub class: u8,
    /// Set if the order of the flow's packets does not matter.
    pub unordered: bool,
    /// Inner bytes sent in all.
    pub sent: u64,
}

/// Receiving half of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receiving {
    /// The paths, by id.
    pub paths: Vec<ReceivingPath>,
    /// The streams, if this side accepts streams. Older versions do not know them.
    #[serde(default)]
    pub streams: Option<ReceivingStreams>,
}

/// Path in the receiving direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceivingPath {
    /// Id of the path.
    pub id: u16,
    /// Highest received packet number.
    pub highest: u64,
    /// Packets received in all, wrapping.
    pub packets: u32,
    /// UDP payload received in all, bytes.
    pub bytes: u64,
    /// Lower bound of accepted packet numbers.
    pub floor: u64,
    /// Received packet numbers from `floor` on: runs of a first number and a count.
    pub received: Vec<(u64, u64)>,
}

/// The streams of a session in the sending direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendingStreams {
    /// Set if the peer supports streams.
    pub peer_takes_streams: bool,
    /// Bytes that the peer accepts for all streams together.
    pub session_credit: u64,
    /// Bytes sent on all streams, without retransmissions.
    pub session_sent: u64,
    /// Last reported credit of all streams together, bytes.
    pub granted: u64,
    /// The streams that are not closed.
    pub all: Vec<SendingStream>,
}

/// Stream in the sending direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendingStream {
    /// Number of the stream.
    pub id: u32,
    /// Source and destination of its bytes.
    pub ends: (core::net::SocketAddr, core::net::SocketAddr),
    /// Request, if this side opened the stream.
    pub request: Option<StreamRequest>,
    /// Answer to the peer's request: its number on the wire, and the initial credit.
    pub answer: Option<(u8, u64)>,
    /// Reason why this side has reset the stream.
    pub reset: Option<u16>,
    /// Reason why this side accepts no more data.
    pub stop: Option<u16>,
    /// Set if the connection is established at both ends.
    pub is_open: bool,
    /// Set if the peer has acknowledged the request or the answer.
    pub is_confirmed: bool,
    /// Offsets of the bytes.
    pub bytes: SentBytes,
}

/// A request for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamRequest {
    /// Number of the stream for the connection.
    pub id: u32,
    /// Source of the connection.
    pub source: core::net::SocketAddr,
    /// Destination of the connection.
    pub destination: core::net::SocketAddr,
    /// DSCP of its packets.
    pub dscp: u8,
    /// Initial credit of the requesting side, bytes.
    pub credit: u64,
}

/// Offsets of a stream in the sending direction. Ranges are pairs of a start and an end, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentBytes {
    /// End of the bytes that have arrived without a gap.
    pub acknowledged: u64,
    /// Ranges that have arrived after a gap.
    pub arrived: Vec<(u64, u64)>,
    /// Ranges to be sent or retransmitted.
    pub unsent: Vec<(u64, u64)>,
    /// End of the highest byte that was sent.
    pub highest: u64,
    /// End of the bytes that the driver has provided.
    pub written: u64,
    /// End of the bytes that the peer accepts.
    pub credit: u64,
    /// Set if the driver has no more bytes.
    pub is_finished: bool,
    /// Set if the peer has acknowledged all bytes and the end.
    pub is_end_acknowledged: bool,
}

/// The streams of a session in the receiving direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceivingStreams {
    /// The lowest unused numbers of the client and of the hub.
    pub opened: [u32; 2],
    /// Numbers below them that were not opened yet.
    pub awaited: Vec<u32>,
    /// Bytes of all streams up to the highest of each.
    pub received: u64,
    /// Bytes of all streams that were read.
    pub consumed: u64,
    /// The credit of all streams that the peer knows.
    pub promised: u64,
    /// Window of all streams.
    pub capacity: u64,
    /// The streams that are not closed.
    pub all: Vec<ReceivingStream>,
}

/// Stream in the receiving direction. Ranges are pairs of a start and an end, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceivingStream {
    /// Number of the stream.
    pub id: u32,
    /// End of the bytes that have arrived without a gap.
    pub next: u64,
    /// Ranges that have arrived after a gap.
    pub beyond: Vec<(u64, u64)>,
    /// End of the bytes that were read.
    pub consumed: u64,
    /// End of the highest byte.
    pub highest: u64,
    /// Window of the stream.
    pub window: u64,
    /// The credit that the peer knows.
    pub promised: u64,
    /// The credit after the last growth of the window.
    pub grown_to: u64,
    /// End of the stream, once that is known.
    pub end: Option<u64>,
    /// The driver has been notified of the end.
    pub is_end_told: bool,
    /// The driver accepts no more data of the stream.
    pub is_stopped: bool,
}

/// The paths of a session as the hub's side of the control channel knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubPaths {
    /// Id, the index of arriving packets, the index of departing packets.
    pub open: Vec<(u16, u32, u32)>,
    /// The lowest id that was never used; 65,536 when all were.
    pub next_id: u32,
}

/// The paths of a session as the client's side of the control channel knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientPaths {
    /// The session.
    pub session: u64,
    /// Ids that the hub may know: a client that starts again closes them, and opens others.
    pub used: Vec<u16>,
    /// The lowest id that was never used; 65,536 when all were.
    pub next_id: u32,
}

/// Maximum count of bytes; more is damage. Source: a quarter of what a `u64` counts, so that
/// additions do not overflow; at 10 Gbit/s it takes a century.
pub(crate) const MAX_BYTES: u64 = 1 << 62;

/// Reason why a checkpoint cannot be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadCheckpoint {
    /// Numbers are inconsistent, or outside the range that the machines can reach.
    #[error("a checkpoint's numbers make no sense")]
    Impossible,
    /// The checkpoint contains a scheduler or a class that this version does not know.
    #[error("a checkpoint names something unknown")]
    Unknown,
}
