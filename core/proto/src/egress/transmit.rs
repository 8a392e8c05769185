//! Outputs of an egress for its driver.

use hawser_units::{Instant, PathId, Sequence};
use hawser_wire::data::{Class, Feedback, Inner, Kind};
use hawser_wire::parity::Parity;
use hawser_wire::stream::{Position, StreamId};

use super::splitting::Piece;
use crate::flow::Run;
use crate::path::Probe;

/// Datagrams to send. The driver adds headers, encrypts them and sends them on the path.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<B> {
    /// Path to send on.
    pub path: PathId,
    /// The packet number of its first packet; the others follow.
    pub packet_number: u64,
    /// Contents.
    pub body: Body<B>,
}

/// Contents of a [`Transmit`].
#[derive(Clone, Copy, Debug)]
pub enum Body<B> {
    /// `count` segments of a run from `run.next` on, or one of them in `count` pieces.
    Packets {
        /// The buffer and how it is cut.
        run: Run<B>,
        /// Number of datagrams: segments, or pieces of one segment.
        count: u16,
        /// The outer packets take over the ECN bits of the inner one; they are Not-ECT otherwise.
        ect: bool,
        /// Piece of the segment, if no path takes it whole.
        piece: Option<Piece>,
        /// The flow's slot.
        flow: u16,
        /// Class of the flow.
        class: Class,
        /// Marks packets whose order does not matter.
        unordered: bool,
        /// The sender keeps what it sends and sends it again when it is reported missing.
        backed: bool,
        /// Marks a retransmission.
        retransmission: bool,
        /// Sequence number of the first segment.
        sequence: Sequence,
        /// Parity packets are to follow: the driver shows the packets to [`super::Egress::cover`].
        covered: bool,
        /// The buffer is no longer needed after this.
        last: bool,
    },
    /// Bytes of a stream, in `count` datagrams.
    Stream {
        /// Number of the stream.
        id: StreamId,
        /// Offset of the first byte.
        offset: u64,
        /// Bytes in all.
        len: u32,
        /// Bytes in each datagram but the last.
        each: u16,
        /// Number of datagrams.
        count: u16,
        /// Class of the stream.
        class: Class,
        /// The stream ends with the last of these bytes.
        is_last: bool,
        /// Set if some of them were sent before.
        is_repeated: bool,
    },
    /// Frames about streams: [`super::Egress::stream_frames`].
    StreamFrames,
    /// Several small packets of a flow in one datagram: [`super::Egress::bundle`].
    Bundle {
        /// The flow's slot.
        flow: u16,
        /// Class of the flow.
        class: Class,
        /// Their transport checksums cover only the pseudo-header.
        checksum_partial: bool,
        /// Sequence number of the first packet.
        sequence: Sequence,
        /// Bytes of the body.
        len: usize,
    },
    /// A report on one of the peer's paths.
    Report(Feedback),
    /// A probe.
    Probe(Probe),
    /// The answer to a peer's probe.
    Reply(u64),
    /// A parity packet, whose symbol is [`super::Egress::symbol`].
    Parity {
        /// Inner header, except its time.
        inner: Inner,
        /// Header of the parity symbol.
        parity: Parity,
    },
}

impl<B> Body<B> {
    /// Returns the number of its datagrams.
    pub(crate) fn datagrams(&self) -> u16 {
        match self {
            Self::Packets { count, .. } | Self::Stream { count, .. } => *count,
            Self::StreamFrames
            | Self::Bundle { .. }
            | Self::Report(_)
            | Self::Probe(_)
            | Self::Reply(_)
            | Self::Parity { .. } => 1,
        }
    }

    /// Returns the inner header of packet `step`, sent at `sent`.
    #[must_use]
    pub fn header(&self, step: u16, sent: Instant) -> Inner {
        let of = |kind| Inner {
            sent_us: sent.as_micros_wrapping(),
            ..Inner::plain(kind)
        };
        match self {
            Self::Packets {
                run,
                piece,
                flow,
                class,
                unordered,
                backed,
                retransmission,
                sequence,
                ..
            } => Inner {
                class: *class,
                checksum_partial: run.checksum_partial,
                unordered: *unordered,
                backed: *backed,
                retransmission: *retransmission,
                form: run.form(run.next + piece.map_or(step, |_| 0)),
                flow: *flow,
                sequence: sequence.add(u32::from(piece.map_or(step, |_| 0))),
                ..of(piece.map_or(Kind::Packet, |_| Kind::Fragment))
            },
            Self::Stream {
                id,
                offset,
                each,
                class,
                is_repeated,
                ..
            } => {
                let offset = offset + u64::from(step) * u64::from(*each);
                let (flow, sequence) = Position::new(*id, offset, false).fields();
                Inner {
                    class: *class,
                    backed: true,
                    retransmission: *is_repeated,
                    flow,
                    sequence,
                    ..of(Kind::Stream)
                }
            }
            Self::StreamFrames => Inner {
                backed: true,
                ..of(Kind::StreamControl)
            },
            Self::Bundle {
                flow,
                class,
                checksum_partial,
                sequence,
                ..
            } => Inner {
                class: *class,
                checksum_partial: *checksum_partial,
                unordered: true,
                backed: true,
                flow: *flow,
                sequence: *sequence,
                ..of(Kind::Bundle)
            },
            Self::Report(_) => of(Kind::Feedback),
            Self::Probe(_) => of(Kind::Probe),
            Self::Reply(_) => of(Kind::ProbeReply),
            Self::Parity { inner, .. } => Inner {
                sent_us: sent.as_micros_wrapping(),
                ..*inner
            },
        }
    }
}
