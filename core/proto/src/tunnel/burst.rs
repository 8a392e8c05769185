//! Burst: datagrams that are sent together on one path.

use std::ops::Range;

use hawser_units::{Instant, PathId};
use hawser_wire::data::{FEEDBACK_LEN, FRAMING, Feedback, INNER_LEN, Inner, OUTER_LEN, Outer, TAG_LEN};
use hawser_wire::fragment::{FRAGMENT_LEN, Fragment};
use hawser_wire::inner::Ecn;
use hawser_wire::parity::{PARITY_LEN, Parity};
use hawser_wire::stream::{Position, STREAM_LEN, StreamId};

use super::Seal;
use crate::egress::{Body, PROBE_LEN, Transmit};
use crate::flow::Run;

/// Datagrams of one path with consecutive packet numbers.
///
/// It holds all that there is to write but the inner packet itself, which lies where the driver put
/// it ([`Self::run`]).
#[derive(Clone, Copy, Debug)]
pub struct Burst<'a, B, K> {
    pub(super) transmit: Transmit<B>,
    /// Key of the epoch; `None` while the session has none.
    pub(super) key: Option<(u8, &'a K)>,
    pub(super) symbol: &'a [u8],
    pub(super) sent: Instant,
    /// Bytes between the body of a datagram and its outer IP packet on this path.
    pub(super) overhead: u16,
}

/// Writes a piece of the next segment of a run.
fn write_piece<B>(run: &Run<B>, range: &Range<u16>, packet: &[u8], body: &mut [u8]) {
    let mut segment = vec![0; run.len_of(run.next)];
    run.emit(packet, run.next, &mut segment);
    let fragment = Fragment {
        offset: range.start,
        total: segment.len() as u16,
    };
    let (head, piece) = body.split_first_chunk_mut().expect("room for both");
    fragment.emit(head);
    piece.copy_from_slice(&segment[usize::from(range.start)..usize::from(range.end)]);
}

/// Datagram: its packet number, its inner header and its body.
#[derive(Clone, Debug)]
pub struct Datagram<'a, B> {
    /// Packet number on the path.
    pub number: u64,
    /// Inner header.
    pub inner: Inner,
    part: Part<'a, B>,
}

#[derive(Clone, Debug)]
enum Part<'a, B> {
    Segment(Run<B>, u16),
    /// Range of bytes of the next segment of a run.
    Piece(Run<B>, Range<u16>),
    Report(Feedback),
    Token {
        token: u64,
        len: usize,
    },
    Parity(Parity, &'a [u8]),
    /// Some of the burst's bytes of a stream.
    Stream(Position, Range<u32>),
    /// A whole body: frames of streams, or a bundle.
    Bytes(&'a [u8]),
}

/// Bytes of a stream in a burst.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamBytes {
    /// Their stream.
    pub id: StreamId,
    /// Their offsets.
    pub range: Range<u64>,
}

impl<'a, B: Copy, K> Burst<'a, B, K> {
    /// Returns the path on which it is sent.
    #[must_use]
    pub fn path(&self) -> PathId {
        self.transmit.path
    }

    /// The epoch and key that protect it; `None` while the session has no key.
    #[must_use]
    pub fn key(&self) -> Option<(u8, &'a K)> {
        self.key
    }

    /// Returns the inner packet from which its datagrams are cut, if they contain one.
    ///
    /// Its buffer stays filled until the next burst is requested.
    #[must_use]
    pub fn run(&self) -> Option<&Run<B>> {
        match &self.transmit.body {
            Body::Packets { run, .. } => Some(run),
            Body::Stream { .. }
            | Body::StreamFrames
            | Body::Bundle { .. }
            | Body::Report(_)
            | Body::Probe(_)
            | Body::Reply(_)
            | Body::Parity { .. } => None,
        }
    }

    /// Returns the bytes of a stream in its datagrams, if there are any: the driver passes them to
    /// [`Datagram::write_body`], all together.
    #[must_use]
    pub fn stream(&self) -> Option<StreamBytes> {
        match self.transmit.body {
            Body::Stream { id, offset, len, .. } => Some(StreamBytes {
                id,
                range: offset..offset + u64::from(len),
            }),
            Body::Packets { .. }
            | Body::StreamFrames
            | Body::Bundle { .. }
            | Body::Report(_)
            | Body::Probe(_)
            | Body::Reply(_)
            | Body::Parity { .. } => None,
        }
    }

    /// The ECN bits of its outer packets; `inner`: those of the inner packet, if there is one.
    ///
    /// Source: RFC 6040 section 4.1, the normal mode where the path is known to treat them well,
    /// else the compatibility mode.
    #[must_use]
    pub fn outer_ecn(&self, inner: Ecn) -> Ecn {
        match &self.transmit.body {
            Body::Packets { ect: true, .. } => inner,
            Body::Probe(probe) if probe.ect => Ecn::Ect0,
            Body::Packets { .. }
            | Body::Stream { .. }
            | Body::StreamFrames
            | Body::Bundle { .. }
            | Body::Report(_)
            | Body::Probe(_)
            | Body::Reply(_)
            | Body::Parity { .. } => Ecn::NotEct,
        }
    }

    /// Returns the datagrams in order of their packet numbers.
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'a, B>> + use<'a, B, K> {
        let Self {
            transmit,
            symbol,
            sent,
            overhead,
            ..
        } = *self;
        let count = transmit.body.datagrams();
        (0..count).map(move |step| Datagram {
            number: transmit.packet_number + u64::from(step),
            inner: transmit.body.header(step, sent),
            part: match transmit.body {
                Body::Packets {
                    run,
                    piece: Some(piece),
                    ..
                } => Part::Piece(run, piece.range(step)),
                Body::Packets { run, .. } => Part::Segment(run, run.next + step),
                Body::Stream {
                    id,
                    offset,
                    len,
                    each,
                    count,
                    is_last,
                    ..
                } => {
                    let start = u32::from(step) * u32::from(each);
                    let is_last = is_last && step + 1 == count;
                    let position = Position::new(id, offset + u64::from(start), is_last);
                    Part::Stream(position, start..len.min(start + u32::from(each)))
                }
                Body::StreamFrames | Body::Bundle { .. } => Part::Bytes(symbol),
                Body::Report(report) => Part::Report(report),
                Body::Probe(probe) => Part::Token {
                    token: probe.token,
                    len: usize::from(probe.outer_len.saturating_sub(overhead)).max(PROBE_LEN),
                },
                Body::Reply(token) => Part::Token {
                    token,
                    len: PROBE_LEN,
                },
                Body::Parity { parity, .. } => Part::Parity(parity, symbol),
            },
        })
    }
}

impl<B: Copy> Datagram<'_, B> {
    /// Returns the run and the index of its segment, whole or a piece of it; `None` if it contains
    /// no inner packet.
    #[must_use]
    pub fn segment(&self) -> Option<(&Run<B>, u16)> {
        match &self.part {
            Part::Segment(run, index) => Some((run, *index)),
            Part::Piece(run, _) => Some((run, run.next)),
            Part::Report(_) | Part::Token { .. } | Part::Parity(..) | Part::Stream(..) | Part::Bytes(_) => {
                None
            }
        }
    }

    /// Returns the number of bytes after its inner header.
    #[must_use]
    pub fn body_len(&self) -> usize {
        match &self.part {
            Part::Segment(run, index) => run.len_of(*index),
            Part::Piece(_, range) => FRAGMENT_LEN + range.len(),
            Part::Report(report) => report.emitted_len(),
            Part::Token { len, .. } => *len,
            Part::Parity(_, symbol) => PARITY_LEN + symbol.len(),
            Part::Stream(_, range) => STREAM_LEN + range.len(),
            Part::Bytes(bytes) => bytes.len(),
        }
    }

    /// Bytes of UDP payload.
    #[must_use]
    pub fn udp_len(&self) -> usize {
        self.body_len() + FRAMING
    }

    /// Writes the bytes after the inner header. `packet`: the inner packet in the burst's buffer,
    /// or the bytes of [`Burst::stream`]; empty where there is neither.
    ///
    /// # Panics
    /// When `body` is not [`Self::body_len`] bytes long.
    pub fn write_body(&self, packet: &[u8], body: &mut [u8]) {
        match &self.part {
            Part::Segment(run, index) => run.emit(packet, *index, body),
            Part::Piece(run, range) => write_piece(run, range, packet, body),
            Part::Report(report) => {
                let mut whole = [0; FEEDBACK_LEN];
                report.emit(&mut whole);
                body.copy_from_slice(&whole[..body.len()]);
            }
            Part::Token { token, .. } => {
                let (head, padding) = body.split_at_mut(PROBE_LEN);
                head.copy_from_slice(&token.to_be_bytes());
                padding.fill(0);
            }
            Part::Parity(parity, symbol) => {
                let (head, tail) = body.split_first_chunk_mut().expect("room for both");
                parity.emit(head);
                tail.copy_from_slice(symbol);
            }
            Part::Stream(position, range) => {
                let (head, tail) = body.split_first_chunk_mut().expect("room for both");
                position.emit(head);
                tail.copy_from_slice(&packet[range.start as usize..range.end as usize]);
            }
            Part::Bytes(bytes) => body.copy_from_slice(bytes),
        }
    }

    /// Writes the whole UDP payload, encrypted. `index`: the number that the peer gave to the path.
    ///
    /// # Panics
    /// When `datagram` is not [`Self::udp_len`] bytes long.
    pub fn seal<K: Seal>(
        &self,
        path: PathId,
        index: u32,
        (epoch, key): (u8, &K),
        packet: &[u8],
        datagram: &mut [u8],
    ) {
        let outer = Outer {
            epoch,
            index,
            packet_number: self.number,
        };
        outer.emit(datagram.first_chunk_mut().expect("a datagram holds its headers"));
        let end = datagram.len() - TAG_LEN;
        let body = &mut datagram[OUTER_LEN..end];
        self.inner
            .emit(body.first_chunk_mut().expect("a datagram holds its headers"));
        self.write_body(packet, &mut body[INNER_LEN..]);
        key.seal(path, self.number, datagram);
    }
}
