//! Packets as values with the fields that a model needs, without bytes.

use hawser_netem::Codepoint;
use hawser_units::Instant;
use hawser_wire::inner;

/// Interface of a node. A node may have several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u32);

/// Connection of a packet, in both directions, for accounting and for schedulers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u32);

/// Explicit congestion notification.
///
/// Source: RFC 3168 section 5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// The transport does not support ECN.
    #[default]
    NotCapable,
    /// The transport supports ECN (ECT).
    Capable,
    /// Congestion was experienced (CE).
    Marked,
}

impl From<Codepoint> for Ecn {
    fn from(codepoint: Codepoint) -> Self {
        match codepoint {
            Codepoint::NotEct => Self::NotCapable,
            Codepoint::Ect => Self::Capable,
            Codepoint::Ce => Self::Marked,
        }
    }
}

impl From<Ecn> for Codepoint {
    fn from(ecn: Ecn) -> Self {
        match ecn {
            Ecn::NotCapable => Self::NotEct,
            Ecn::Capable => Self::Ect,
            Ecn::Marked => Self::Ce,
        }
    }
}

impl From<inner::Ecn> for Ecn {
    fn from(ecn: inner::Ecn) -> Self {
        match ecn {
            inner::Ecn::NotEct => Self::NotCapable,
            inner::Ecn::Ect0 | inner::Ecn::Ect1 => Self::Capable,
            inner::Ecn::Ce => Self::Marked,
        }
    }
}

impl From<Ecn> for inner::Ecn {
    fn from(ecn: Ecn) -> Self {
        match ecn {
            Ecn::NotCapable => Self::NotEct,
            Ecn::Capable => Self::Ect0,
            Ecn::Marked => Self::Ce,
        }
    }
}

/// Simulated packet.
///
/// Units: `size` counts IP bytes, headers included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Packet {
    /// Interface of the sender.
    pub source: Address,
    /// Interface of the receiver.
    pub destination: Address,
    /// Port of the sender.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
    /// Id of its flow.
    pub flow: FlowId,
    /// Size of the packet. Units: IP bytes.
    pub size: u16,
    /// Congestion notification.
    pub ecn: Ecn,
    /// Send time.
    pub sent: Instant,
    /// Contents.
    pub body: Body,
}

/// Contents of a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Body {
    /// A datagram.
    Datagram(Datagram),
    /// A TCP segment.
    Tcp(Segment),
    /// A request for an echo, or the echo; the number names a slot of the node that tunnels it.
    Tunnel(u32),
}

/// A datagram of an application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Datagram {
    /// Counted by the sender from zero.
    pub number: u64,
    /// Time when the application sent it, or for an echo when the request was sent.
    pub stamp: Instant,
    /// Mark for schedulers, such as a layer or a frame kind.
    pub mark: u16,
}

/// The fields of a TCP segment that the models use.
///
/// Sequence numbers have 64 bits and do not wrap; the first payload byte is 0. Multipath TCP's data
/// sequence signal (RFC 8684 section 3.3) is in `data` and `data_ack`; plain TCP leaves them zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Sequence number of the first payload byte.
    pub sequence: u64,
    /// The next byte its sender expects.
    pub ack: u64,
    /// Position of the first payload byte in the data stream of the whole connection.
    pub data: u64,
    /// The next byte of the data stream its sender expects.
    pub data_ack: u64,
    /// Bytes its sender takes beyond `ack` (beyond `data_ack` with multipath TCP).
    pub window: u32,
    /// Payload bytes.
    pub payload: u16,
    /// Payload bytes that had arrived before: a duplicate selective acknowledgement (RFC 2883).
    pub duplicate: u16,
    /// Flags of [`flag`].
    pub flags: u8,
    /// Send time of the segment that this one answers; zero without timestamps (RFC 7323).
    pub echo: Instant,
    /// Ranges that have arrived beyond `ack`.
    pub sack: Sack,
}

impl Segment {
    /// Returns whether any of `flags` is set.
    #[must_use]
    pub const fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }
}

/// The bits of [`Segment::flags`], where TCP has them.
pub mod flag {
    /// No more data (RFC 9293 section 3.1).
    pub const FIN: u8 = 0x01;
    /// Opens a connection (RFC 9293 section 3.1).
    pub const SYN: u8 = 0x02;
    /// `ack` counts (RFC 9293 section 3.1).
    pub const ACK: u8 = 0x10;
    /// ECN echo: a mark was seen (RFC 3168 section 6.1).
    pub const ECE: u8 = 0x40;
    /// Congestion window reduced: the echo was received (RFC 3168 section 6.1).
    pub const CWR: u8 = 0x80;
}

/// Up to three blocks of selective acknowledgement, the latest first.
///
/// Source: RFC 2018. With timestamps three blocks fit into a header. Units: bytes beyond the
/// segment's `ack`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sack {
    blocks: [(u32, u32); 3],
    count: u8,
}

impl Sack {
    /// Adds a block from `start` to `end`, both counted from the segment's `ack`; says whether
    /// there was room.
    pub fn push(&mut self, start: u32, end: u32) -> bool {
        let Some(block) = self.blocks.get_mut(usize::from(self.count)) else {
            return false;
        };
        *block = (start, end);
        self.count += 1;
        true
    }

    /// The blocks, the latest first.
    #[must_use]
    pub fn blocks(&self) -> &[(u32, u32)] {
        &self.blocks[..usize::from(self.count)]
    }
}
