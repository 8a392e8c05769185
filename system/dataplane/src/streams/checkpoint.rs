//! Hand-over of a session's streams to the next process: numbers in the session's checkpoint, and a
//! [`Parcel`] of sockets and bytes.
//!
//! A stream continues if both threads know it. Messages between the threads that were not yet
//! delivered are accounted for when the two halves are joined ([`join`]), and in the next process
//! by the state machines.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hawser_linux::stream_sockets::{Connection, Listener};
use hawser_proto::checkpoint::{self as machine, BadCheckpoint, StreamRequest};
use hawser_wire::stream::StreamId;
use serde::{Deserialize, Serialize};

/// Sockets and bytes that are handed from one process to the next, in the order given by a
/// checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Parcel {
    /// TCP sockets of the streams.
    pub sockets: Vec<Arc<Connection>>,
    /// Bytes of streams that were read from one side and not yet delivered to the other.
    pub bytes: Vec<u8>,
}

/// Length of a [`Parcel`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParcelLen {
    /// Count of the sockets.
    pub sockets: usize,
    /// Count of the bytes.
    pub bytes: usize,
}

impl Parcel {
    /// Returns the length.
    #[must_use]
    pub fn len(&self) -> ParcelLen {
        ParcelLen {
            sockets: self.sockets.len(),
            bytes: self.bytes.len(),
        }
    }

    /// Adds a socket; returns its number.
    pub(crate) fn add(&mut self, socket: &Arc<Connection>) -> usize {
        self.sockets.push(Arc::clone(socket));
        self.sockets.len() - 1
    }
}

/// The streams of a session on the sending thread.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SendingStreams {
    /// Number of the last stream opened by this side.
    pub last: Option<u32>,
    /// Streams that are not closed, in order of their number.
    pub all: Vec<SendingStream>,
    /// Length of the parcel.
    pub len: ParcelLen,
    /// Sockets, and the unacknowledged bytes of each stream, concatenated.
    #[serde(skip)]
    pub parcel: Parcel,
    /// Connections of a client's machine.
    pub near: Option<NearTable>,
}

/// Stream on the sending thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendingStream {
    /// Number of the stream.
    pub id: u32,
    /// Index of its socket in the parcel; `None` before it is connected.
    pub socket: Option<usize>,
    /// Set if the socket has reported the end of its bytes.
    pub has_ended: bool,
    /// Set if the peer has received all of them.
    pub is_delivered: bool,
    /// Set if all bytes of the peer were written to the socket.
    pub is_received: bool,
    /// Set if this side has reset the stream.
    pub is_aborted: bool,
}

/// The streams of a session on the receiving thread.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReceivingStreams {
    /// Streams of which bytes are still to be written to the socket, in order of their number.
    pub all: Vec<ReceivingStream>,
    /// Length of the parcel.
    pub len: ParcelLen,
    /// Sockets of connections that are being established, and the bytes of all ranges.
    #[serde(skip)]
    pub parcel: Parcel,
}

/// Stream on the receiving thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceivingStream {
    /// Number of the stream.
    pub id: u32,
    /// Request of the peer, if the peer has opened the stream.
    pub request: Option<StreamRequest>,
    /// Index of its socket in the parcel while the connection is being established.
    pub opening: Option<usize>,
    /// Stream offsets of its bytes in the parcel, as pairs of start and end.
    pub ranges: Vec<(u64, u64)>,
}

/// Connections of a client's machine that are, or may become, streams.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NearTable {
    /// Next alias port.
    pub next: u16,
    /// The connections.
    pub all: Vec<NearConnection>,
    /// The socket that accepts them.
    #[serde(skip)]
    pub listener: Option<Arc<Listener>>,
}

/// Connection of a client's machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NearConnection {
    /// Alias port.
    pub alias: u16,
    /// Address and port of the program.
    pub source: SocketAddr,
    /// Address and port to which the program connects.
    pub destination: SocketAddr,
    /// Number of its stream.
    pub stream: u32,
    /// SYN after a virtio header, until the hub has answered.
    pub syn: Option<Vec<u8>>,
    /// Set if the stream is closed.
    pub is_closing: bool,
    /// Set if the listener has answered its SYN.
    pub is_heard: bool,
    /// Set if the listener has accepted it.
    pub is_accepted: bool,
}

/// Drops streams that only the receiving half knows: the sending half has already closed them.
/// Streams that the peer requests and that are not yet connected stay.
pub(crate) fn join(sending: &SendingStreams, receiving: &mut ReceivingStreams) {
    let known: BTreeMap<u32, &SendingStream> = sending.all.iter().map(|stream| (stream.id, stream)).collect();
    let mut joined = Vec::new();
    let mut at = 0;
    let mut bytes = Vec::new();
    for stream in std::mem::take(&mut receiving.all) {
        let len = length(&stream.ranges);
        let own = receiving.parcel.bytes.get(at..at + len).unwrap_or_default();
        at += len;
        let is_known = known
            .get(&stream.id)
            .is_some_and(|known| !known.is_aborted && !known.is_received);
        if is_known || stream.opening.is_some() {
            bytes.extend_from_slice(own);
            joined.push(stream);
        }
    }
    (receiving.all, receiving.parcel.bytes) = (joined, bytes);
    receiving.len = receiving.parcel.len();
}

/// Bytes in some ranges.
fn length(ranges: &[(u64, u64)]) -> usize {
    ranges
        .iter()
        .map(|(start, end)| end.saturating_sub(*start) as usize)
        .sum()
}

impl SendingStreams {
    /// Checks it against the machine's checkpoint.
    ///
    /// # Errors
    /// A stream is unknown there, or bytes or sockets are missing.
    pub(crate) fn check(&self, machine: &machine::SendingStreams) -> Result<(), BadCheckpoint> {
        let bytes: BTreeMap<u32, u64> = machine
            .all
            .iter()
            .map(|stream| (stream.id, stream.bytes.written - stream.bytes.acknowledged))
            .collect();
        let mut needed = 0;
        for stream in &self.all {
            StreamId::new(stream.id).ok_or(BadCheckpoint::Impossible)?;
            let is_there = stream
                .socket
                .is_none_or(|socket| socket < self.parcel.sockets.len());
            let stored = match bytes.get(&stream.id) {
                Some(stored) => *stored,
                None if stream.is_aborted => 0,
                None => return Err(BadCheckpoint::Impossible),
            };
            if !is_there {
                return Err(BadCheckpoint::Impossible);
            }
            needed += stored;
        }
        if self.parcel.len() != self.len || needed != self.parcel.bytes.len() as u64 {
            return Err(BadCheckpoint::Impossible);
        }
        Ok(())
    }
}

impl ReceivingStreams {
    /// Checks it against the machine's checkpoint.
    ///
    /// # Errors
    /// A stream is unknown there, or bytes or sockets are missing.
    pub(crate) fn check(&self, machine: &machine::ReceivingStreams) -> Result<(), BadCheckpoint> {
        let known: BTreeMap<u32, &machine::ReceivingStream> =
            machine.all.iter().map(|stream| (stream.id, stream)).collect();
        let mut needed = 0;
        for stream in &self.all {
            let known = known.get(&stream.id).ok_or(BadCheckpoint::Impossible)?;
            let is_within =
                |(start, end): &(u64, u64)| start < end && *start >= known.consumed && *end <= known.highest;
            let is_there = stream
                .opening
                .is_none_or(|socket| socket < self.parcel.sockets.len());
            if !is_there || !stream.ranges.iter().all(is_within) {
                return Err(BadCheckpoint::Impossible);
            }
            if let Some(request) = &stream.request {
                request.open()?;
            }
            needed += length(&stream.ranges);
        }
        if self.parcel.len() != self.len || needed != self.parcel.bytes.len() {
            return Err(BadCheckpoint::Impossible);
        }
        Ok(())
    }
}

/// Addresses of a checkpoint's connection, as the key of a flow.
impl NearConnection {
    /// Returns whether both ends have one family.
    pub(crate) fn is_sound(&self) -> bool {
        let family = |address: &SocketAddr| matches!(address.ip(), IpAddr::V4(_));
        family(&self.source) == family(&self.destination) && StreamId::new(self.stream).is_some()
    }
}
