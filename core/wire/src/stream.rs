//! Streams: the bytes of a split TCP connection, and their control frames.
//!
//! Bytes of a stream are sent in a datagram of a separate kind ([`crate::data::Kind::Stream`]). The
//! inner header contains the low bits of the stream's number in its flow field, and the low 32 bits
//! of the offset in its sequence number field; two bytes follow:
//!
//! ```text
//!   | last (1) | high bits of the stream's number (15) | bytes of the stream from the offset on ...
//! ```
//!
//! Outer header, inner header and tag add up to 42 bytes of framing for any number of bytes. `last`
//! is set if the stream ends with these bytes. A datagram of the other kind
//! ([`crate::data::Kind::StreamControl`]) contains a sequence of [`Frame`]s. Both kinds are sent
//! only to peers whose [`crate::data::Feedback::takes_streams`] is set.
//!
//! Source: RFC 9000 section 2 (streams), sections 19.3 to 19.10 (frames). Deviates: offsets are
//! truncated like packet numbers (RFC 9000 section 17.1); acknowledgements are of bytes of a stream
//! instead of packets, because a path's own reports detect losses.

use std::net::{IpAddr, SocketAddr};

use hawser_units::Sequence;

use crate::data::Inner;

/// Bytes between the inner header and the bytes of a stream. Source: the layout above.
pub const STREAM_LEN: usize = 2;
/// Maximum number of ranges in one acknowledgement, the lowest first.
///
/// Source: a sender acts only on the missing ranges at the head of a stream; an acknowledgement
/// without losses has no range.
pub const ACK_RANGES: usize = 8;
/// Maximum size of an emitted [`Frame`]. Source: an acknowledgement with [`ACK_RANGES`], each with
/// a begin and a length of 32 bits. Units: bytes.
pub const FRAME_LEN: usize = ACK_FIXED + 8 * ACK_RANGES;

/// Bytes of an acknowledgement without ranges. Source: docs/manual/streams.md.
const ACK_FIXED: usize = 1 + 4 + 8 + 8 + 1;
/// Bit next to the high bits of the number. Source: docs/manual/streams.md.
const LAST: u16 = 0x8000;

/// Number of a stream: the client opens even ones, the hub odd ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(u32);

impl StreamId {
    /// The highest number. Source: 16 bits in the flow field and 15 in the layout of this module.
    pub const MAX: Self = Self(0x7fff_ffff);

    /// Returns the stream with a number; `None` beyond [`Self::MAX`].
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        (number <= Self::MAX.0).then_some(Self(number))
    }

    /// Returns the number.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    /// Returns the stream that the same side opens next; `None` if all numbers are used.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        Self::new(self.0 + 2)
    }

    /// Returns whether the hub opens the stream.
    #[must_use]
    pub fn is_of_hub(self) -> bool {
        self.0 & 1 != 0
    }
}

/// Reasons of [`Frame::Reset`] and [`Frame::Stop`].
pub mod reason {
    /// Reset or timeout of the connection. Source: docs/manual/streams.md.
    pub const RESET: u16 = 1;
    /// End of the process that had the stream's state. Source: docs/manual/streams.md.
    pub const UNKNOWN: u16 = 2;
    /// Loss of the right to reach the destination. Source: docs/manual/streams.md.
    pub const FORBIDDEN: u16 = 3;
}

/// Position of a datagram's bytes in their stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Number of the stream.
    pub id: StreamId,
    /// Low 32 bits of the offset of the first byte.
    pub offset: u32,
    /// Set if the stream ends after these bytes.
    pub is_last: bool,
}

impl Position {
    /// Returns the position of bytes at an offset of a stream.
    #[must_use]
    pub fn new(id: StreamId, offset: u64, is_last: bool) -> Self {
        Self {
            id,
            offset: offset as u32,
            is_last,
        }
    }

    /// Returns the inner header's fields for flow and sequence number.
    #[must_use]
    pub fn fields(&self) -> (u16, Sequence) {
        (self.id.0 as u16, Sequence(self.offset))
    }

    /// Parses a datagram's body; `None` if it is too short, or has neither bytes nor an end.
    #[must_use]
    pub fn parse<'a>(inner: &Inner, body: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (head, bytes) = body.split_first_chunk::<STREAM_LEN>()?;
        let head = u16::from_be_bytes(*head);
        let position = Self {
            id: StreamId(u32::from(head & !LAST) << 16 | u32::from(inner.flow)),
            offset: inner.sequence.0,
            is_last: head & LAST != 0,
        };
        (position.is_last || !bytes.is_empty()).then_some((position, bytes))
    }

    /// Writes the header before the bytes.
    pub fn emit(&self, out: &mut [u8; STREAM_LEN]) {
        let high = (self.id.0 >> 16) as u16;
        *out = (high | if self.is_last { LAST } else { 0 }).to_be_bytes();
    }

    /// Returns the whole offset: the candidate nearest to `expected`; zero if that is negative.
    ///
    /// Source: RFC 9000 appendix A.3.
    #[must_use]
    pub fn offset_near(&self, expected: u64) -> u64 {
        let ahead = i64::from(self.offset.wrapping_sub(expected as u32).cast_signed());
        expected
            .checked_add_signed(ahead)
            .unwrap_or(u64::from(self.offset))
    }
}

/// Request to the peer to open a connection for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Number of the stream.
    pub id: StreamId,
    /// Source of the connection that is split.
    pub source: SocketAddr,
    /// Destination of that connection.
    pub destination: SocketAddr,
    /// Code point of its packets (RFC 2474).
    pub dscp: u8,
    /// Initial credit: bytes of the stream that the requesting side accepts.
    pub credit: u64,
}

/// Outcome of an [`Open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The connection is established.
    Connected,
    /// The destination refused the connection.
    Refused,
    /// No route to the destination exists.
    Unreachable,
    /// The destination did not answer.
    TimedOut,
    /// The peer may not reach that destination.
    Forbidden,
    /// The peer has no room for another stream.
    Exhausted,
}

impl Outcome {
    const ALL: [Self; 6] = [
        Self::Connected,
        Self::Refused,
        Self::Unreachable,
        Self::TimedOut,
        Self::Forbidden,
        Self::Exhausted,
    ];

    /// Returns the number of the outcome in a frame.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Returns the outcome with a number; `None` for an unknown number.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// Acknowledgement of a stream's bytes, with the receiver's credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Number of the stream.
    pub id: StreamId,
    /// End of the bytes that have arrived without a gap.
    pub next: u64,
    /// Credit: the receiver accepts bytes before this offset.
    pub credit: u64,
    /// Set if the whole stream has arrived, its end included.
    pub is_complete: bool,
    ranges: [(u32, u32); ACK_RANGES],
    len: u8,
}

impl Ack {
    /// Creates an acknowledgement without ranges.
    #[must_use]
    pub fn new(id: StreamId, next: u64, credit: u64, is_complete: bool) -> Self {
        Self {
            id,
            next,
            credit,
            is_complete,
            ranges: [(0, 0); ACK_RANGES],
            len: 0,
        }
    }

    /// Adds a range that has arrived beyond `next`; returns whether there was room.
    pub fn push(&mut self, start: u64, end: u64) -> bool {
        let Some(range) = self.ranges.get_mut(usize::from(self.len)) else {
            return false;
        };
        let begin = u32::try_from(start.saturating_sub(self.next));
        let len = u32::try_from(end.saturating_sub(start));
        let (Ok(begin), Ok(len)) = (begin, len) else {
            return false;
        };
        *range = (begin, len);
        self.len += 1;
        true
    }

    /// Returns the ranges beyond `next` that have arrived, the lowest first, as start and end.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (next, ranges) = (self.next, self.ranges);
        ranges
            .into_iter()
            .take(usize::from(self.len))
            .map(move |(begin, len)| {
                let start = next.saturating_add(u64::from(begin));
                (start, start.saturating_add(u64::from(len)))
            })
    }
}

/// Frame of a control datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Request for a connection.
    Open(Open),
    /// Answer to an [`Open`].
    Answer {
        /// Number of the stream.
        id: StreamId,
        /// Outcome of the connection.
        outcome: Outcome,
        /// Bytes of the stream that the answering side accepts.
        credit: u64,
    },
    /// Acknowledgement of bytes of a stream.
    Ack(Ack),
    /// Session credit: accepted bytes of all streams together since the session began.
    Session(u64),
    /// The sender of a stream aborts it: its receiver need not wait for the rest.
    Reset {
        /// Number of the stream.
        id: StreamId,
        /// Reason, see [`reason`].
        code: u16,
        /// Number of bytes that were sent.
        sent: u64,
    },
    /// The receiver of a stream does not want the rest.
    Stop {
        /// Number of the stream.
        id: StreamId,
        /// Reason, see [`reason`].
        code: u16,
    },
    /// The sender of a stream uses more than half of its credit, or has none left: requests more
    /// credit and an acknowledgement.
    Blocked {
        /// Number of the stream.
        id: StreamId,
        /// Present credit.
        credit: u64,
    },
}

/// Type of the frame. Source: docs/manual/streams.md.
const OPEN: u8 = 1;
/// Type of the frame. Source: docs/manual/streams.md.
const ANSWER: u8 = 2;
/// Type of the frame. Source: docs/manual/streams.md.
const ACK: u8 = 3;
/// Type of the frame. Source: docs/manual/streams.md.
const SESSION: u8 = 4;
/// Type of the frame. Source: docs/manual/streams.md.
const RESET: u8 = 5;
/// Type of the frame. Source: docs/manual/streams.md.
const STOP: u8 = 6;
/// Type of the frame. Source: docs/manual/streams.md.
const BLOCKED: u8 = 7;
/// Bit next to the number of ranges. Source: docs/manual/streams.md.
const COMPLETE: u8 = 0x80;

impl Frame {
    /// Parses the frame at the front of `bytes`; returns it and the rest. `None` if there is no
    /// frame that this version knows.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let mut reader = Reader(bytes);
        let frame = match reader.byte()? {
            OPEN => Self::Open(Open {
                id: reader.id()?,
                dscp: reader.byte()?,
                credit: reader.long()?,
                source: reader.address()?,
                destination: reader.address()?,
            }),
            ANSWER => Self::Answer {
                id: reader.id()?,
                outcome: Outcome::of_number(reader.byte()?)?,
                credit: reader.long()?,
            },
            ACK => Self::Ack(reader.ack()?),
            SESSION => Self::Session(reader.long()?),
            RESET => Self::Reset {
                id: reader.id()?,
                code: reader.short()?,
                sent: reader.long()?,
            },
            STOP => Self::Stop {
                id: reader.id()?,
                code: reader.short()?,
            },
            BLOCKED => Self::Blocked {
                id: reader.id()?,
                credit: reader.long()?,
            },
            _ => return None,
        };
        Some((frame, reader.0))
    }

    /// Writes the frame at the front of `out`; returns its length, or `None` if it does not fit.
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        let mut writer = Writer { out, at: 0 };
        match self {
            Self::Open(open) => {
                writer.bytes(&[OPEN])?;
                writer.bytes(&open.id.0.to_be_bytes())?;
                writer.bytes(&[open.dscp])?;
                writer.bytes(&open.credit.to_be_bytes())?;
                writer.address(open.source)?;
                writer.address(open.destination)?;
            }
            Self::Answer { id, outcome, credit } => {
                writer.bytes(&[ANSWER])?;
                writer.bytes(&id.0.to_be_bytes())?;
                writer.bytes(&[outcome.number()])?;
                writer.bytes(&credit.to_be_bytes())?;
            }
            Self::Ack(ack) => writer.ack(ack)?,
            Self::Session(credit) => {
                writer.bytes(&[SESSION])?;
                writer.bytes(&credit.to_be_bytes())?;
            }
            Self::Reset { id, code, sent } => {
                writer.bytes(&[RESET])?;
                writer.bytes(&id.0.to_be_bytes())?;
                writer.bytes(&code.to_be_bytes())?;
                writer.bytes(&sent.to_be_bytes())?;
            }
            Self::Stop { id, code } => {
                writer.bytes(&[STOP])?;
                writer.bytes(&id.0.to_be_bytes())?;
                writer.bytes(&code.to_be_bytes())?;
            }
            Self::Blocked { id, credit } => {
                writer.bytes(&[BLOCKED])?;
                writer.bytes(&id.0.to_be_bytes())?;
                writer.bytes(&credit.to_be_bytes())?;
            }
        }
        Some(writer.at)
    }

    /// Returns the stream of the frame; `None` for a frame that concerns all streams.
    #[must_use]
    pub fn stream(&self) -> Option<StreamId> {
        match self {
            Self::Open(open) => Some(open.id),
            Self::Ack(ack) => Some(ack.id),
            Self::Answer { id, .. }
            | Self::Reset { id, .. }
            | Self::Stop { id, .. }
            | Self::Blocked { id, .. } => Some(*id),
            Self::Session(_) => None,
        }
    }
}

/// Returns the frames of a control datagram, up to the first unknown one.
pub fn frames(body: &[u8]) -> impl Iterator<Item = Frame> + '_ {
    let mut rest = body;
    std::iter::from_fn(move || {
        let (frame, behind) = Frame::parse(rest)?;
        rest = behind;
        Some(frame)
    })
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*chunk)
    }

    fn byte(&mut self) -> Option<u8> {
        self.chunk::<1>().map(|[byte]| byte)
    }

    fn short(&mut self) -> Option<u16> {
        self.chunk().map(u16::from_be_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.chunk().map(u64::from_be_bytes)
    }

    fn id(&mut self) -> Option<StreamId> {
        StreamId::new(self.chunk().map(u32::from_be_bytes)?)
    }

    fn address(&mut self) -> Option<SocketAddr> {
        let address = match self.byte()? {
            4 => IpAddr::from(self.chunk::<4>()?),
            6 => IpAddr::from(self.chunk::<16>()?),
            _ => return None,
        };
        Some(SocketAddr::new(address, self.short()?))
    }

    fn ack(&mut self) -> Option<Ack> {
        let (id, next, credit) = (self.id()?, self.long()?, self.long()?);
        let count = self.byte()?;
        let mut ack = Ack::new(id, next, credit, count & COMPLETE != 0);
        ack.len = count & !COMPLETE;
        let ranges = ack.ranges.get_mut(..usize::from(ack.len))?;
        for range in ranges {
            let begin = self.chunk().map(u32::from_be_bytes)?;
            *range = (begin, self.chunk().map(u32::from_be_bytes)?);
        }
        Some(ack)
    }
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.at + bytes.len();
        self.out.get_mut(self.at..end)?.copy_from_slice(bytes);
        self.at = end;
        Some(())
    }

    fn address(&mut self, address: SocketAddr) -> Option<()> {
        match address.ip() {
            IpAddr::V4(ip) => {
                self.bytes(&[4])?;
                self.bytes(&ip.octets())?;
            }
            IpAddr::V6(ip) => {
                self.bytes(&[6])?;
                self.bytes(&ip.octets())?;
            }
        }
        self.bytes(&address.port().to_be_bytes())
    }

    fn ack(&mut self, ack: &Ack) -> Option<()> {
        self.bytes(&[ACK])?;
        self.bytes(&ack.id.0.to_be_bytes())?;
        self.bytes(&ack.next.to_be_bytes())?;
        self.bytes(&ack.credit.to_be_bytes())?;
        self.bytes(&[ack.len | if ack.is_complete { COMPLETE } else { 0 }])?;
        for (begin, len) in &ack.ranges[..usize::from(ack.len)] {
            self.bytes(&begin.to_be_bytes())?;
            self.bytes(&len.to_be_bytes())?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{FRAMING, Kind};
    use proptest::prelude::*;

    fn id(number: u32) -> StreamId {
        StreamId::new(number).expect("a legal number")
    }

    #[test]
    fn bytes_of_a_stream_have_42_bytes_of_framing() {
        assert_eq!(FRAMING + STREAM_LEN, 42);
    }

    #[test]
    fn a_position_has_its_bytes() {
        let position = Position::new(id(0x7abc_1234), 0x1_0000_0002, true);
        let (flow, sequence) = position.fields();
        assert_eq!((flow, sequence), (0x1234, Sequence(2)));
        let mut head = [0; STREAM_LEN];
        position.emit(&mut head);
        assert_eq!(head, [0xfa, 0xbc]);
        let inner = Inner {
            flow,
            sequence,
            ..Inner::plain(Kind::Stream)
        };
        assert_eq!(Position::parse(&inner, &head), Some((position, &[][..])));
        assert_eq!(Position::parse(&inner, &head[..1]), None);
        head[0] &= 0x7f;
        assert_eq!(Position::parse(&inner, &head), None, "neither bytes nor an end");
    }

    #[test]
    fn an_offset_is_the_nearest_one() {
        let at = |offset: u64, expected: u64| Position::new(id(0), offset, false).offset_near(expected);
        for offset in [0, 5, 0xffff_ffff, 0x1_0000_0000, 0x1_ffff_0000, u64::MAX / 3] {
            for near in [
                offset,
                offset + 1000,
                offset.saturating_sub(1000),
                offset + (1 << 30),
            ] {
                assert_eq!(at(offset, near), offset, "near {near}");
            }
        }
    }

    #[test]
    fn a_frame_that_is_cut_short_or_unknown_ends_the_datagram() {
        let mut out = [0; FRAME_LEN];
        let frame = Frame::Stop { id: id(2), code: 7 };
        let len = frame.emit(&mut out).expect("room");
        assert_eq!(frames(&out[..len]).collect::<Vec<_>>(), [frame]);
        assert_eq!(Frame::parse(&out[..len - 1]), None);
        assert_eq!(Frame::parse(&[99, 0, 0]), None);
        assert_eq!(Frame::parse(&[STOP, 0x80, 0, 0, 0, 0, 0]), None, "no such stream");
        assert_eq!(frame.emit(&mut out[..len - 1]), None);
    }

    fn address() -> impl Strategy<Value = SocketAddr> {
        (any::<IpAddr>(), any::<u16>()).prop_map(SocketAddr::from)
    }

    fn frame() -> impl Strategy<Value = Frame> {
        let stream = || (0..=StreamId::MAX.0).prop_map(StreamId);
        prop_oneof![
            (stream(), address(), address(), any::<u8>(), any::<u64>()).prop_map(
                |(id, source, destination, dscp, credit)| Frame::Open(Open {
                    id,
                    source,
                    destination,
                    dscp,
                    credit
                })
            ),
            (stream(), 0..6usize, any::<u64>()).prop_map(|(id, outcome, credit)| Frame::Answer {
                id,
                outcome: Outcome::ALL[outcome],
                credit
            }),
            (
                stream(),
                0..u64::MAX / 2,
                any::<u64>(),
                any::<bool>(),
                proptest::collection::vec(any::<(u32, u32)>(), 0..=ACK_RANGES)
            )
                .prop_map(|(id, next, credit, is_complete, ranges)| {
                    let mut ack = Ack::new(id, next, credit, is_complete);
                    for (begin, len) in ranges {
                        let start = next + u64::from(begin);
                        assert!(ack.push(start, start + u64::from(len)));
                    }
                    Frame::Ack(ack)
                }),
            any::<u64>().prop_map(Frame::Session),
            (stream(), any::<u16>(), any::<u64>()).prop_map(|(id, code, sent)| Frame::Reset {
                id,
                code,
                sent
            }),
            (stream(), any::<u16>()).prop_map(|(id, code)| Frame::Stop { id, code }),
            (stream(), any::<u64>()).prop_map(|(id, credit)| Frame::Blocked { id, credit }),
        ]
    }

    proptest! {
        #[test]
        fn frames_survive_the_wire(all in proptest::collection::vec(frame(), 0..6)) {
            let mut body = Vec::new();
            for frame in &all {
                let mut out = [0; FRAME_LEN];
                let len = frame.emit(&mut out).expect("the longest fits");
                body.extend_from_slice(&out[..len]);
            }
            prop_assert_eq!(frames(&body).collect::<Vec<_>>(), all);
        }

        #[test]
        fn what_parses_emits_the_same_bytes(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut rest = &body[..];
            while let Some((frame, behind)) = Frame::parse(rest) {
                let mut out = [0; FRAME_LEN];
                let len = frame.emit(&mut out).expect("the longest fits");
                prop_assert_eq!(&out[..len], &rest[..rest.len() - behind.len()]);
                rest = behind;
            }
        }
    }
}
