//! Segmentation offload of the tunnel's device: what a kernel hands over and takes as one packet.
//!
//! Scope: neighbours of one TCP flow at one instant become one large packet, at the entrance (as a
//! sender's kernel leaves them uncut) and at the exit (as the far end joins what is in order). So a
//! full queue refuses whole bursts, and a burst is answered once.
//!
//! Source: Linux `tcp_gro_receive` for what may be joined; `hawser_wire::offload` does the same
//! with bytes.

use hawser_units::Instant;

use crate::packet::{Body, Packet, Segment};
use crate::tcp::QUIC_HEADER;

/// A packet that neighbours may be joined to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Large {
    pub(super) packet: Packet,
    /// Payload of all pieces but the last.
    pub(super) segment: u16,
    is_closed: bool,
}

impl Large {
    pub(super) fn new(packet: Packet) -> Self {
        Self {
            segment: segment_of(&packet).map_or(0, |segment| segment.payload),
            packet,
            is_closed: false,
        }
    }

    /// Says whether `next` was taken as the continuation of what is here.
    pub(super) fn join(&mut self, next: &Packet) -> bool {
        let (Some(own), Some(segment)) = (segment_of(&self.packet), segment_of(next)) else {
            return false;
        };
        let (own, segment) = (*own, *segment);
        let len = u64::from(own.payload);
        let continues = own.sequence + len == segment.sequence && own.data + len == segment.data;
        let is_like = Segment {
            sequence: own.sequence,
            data: own.data,
            payload: own.payload,
            ..segment
        } == own;
        let fits = segment.payload > 0 && segment.payload <= self.segment;
        let size = self.packet.size.checked_add(segment.payload);
        let (Some(size), true) = (size, continues && is_like && fits && !self.is_closed) else {
            return false;
        };
        if !is_neighbour(&self.packet, next) {
            return false;
        }
        self.is_closed = segment.payload < self.segment;
        self.packet.size = size;
        self.packet.body = Body::Tcp(Segment {
            payload: own.payload + segment.payload,
            ..own
        });
        true
    }
}

/// Piece `index` of a packet, `len` bytes long with its headers, where all but the last are `full`
/// bytes long.
pub(super) fn cut(packet: &Packet, index: u16, full: u32, len: usize) -> Packet {
    let Some(segment) = segment_of(packet) else {
        return *packet;
    };
    let headers = packet.size - segment.payload;
    let offset = u64::from(index) * u64::from(full - u32::from(headers));
    Packet {
        size: len as u16,
        body: Body::Tcp(Segment {
            sequence: segment.sequence + offset,
            data: segment.data + offset,
            payload: len as u16 - headers,
            ..*segment
        }),
        ..*packet
    }
}

/// Returns the part of a packet that may be joined and segmented. QUIC's packets are sealed, and
/// handed over one at a time here.
fn segment_of(packet: &Packet) -> Option<&Segment> {
    match &packet.body {
        Body::Tcp(segment) => Some(segment).filter(|segment| packet.size - segment.payload != QUIC_HEADER),
        Body::Datagram(_) | Body::Tunnel(_) => None,
    }
}

/// The same connection and marks, sent at the same tick of the sender's clock.
fn is_neighbour(a: &Packet, b: &Packet) -> bool {
    let key = |packet: &Packet| {
        let ports = (packet.source_port, packet.destination_port);
        (packet.source, packet.destination, ports)
    };
    let tick = |at: Instant| at.as_nanos() / TICK;
    key(a) == key(b) && a.ecn == b.ecn && tick(a.sent) == tick(b.sent)
}

/// Resolution of the timestamps in TCP's option. Source: `TCP_TS_HZ` of include/net/tcp.h of Linux,
/// 1,000. Units: ns.
const TICK: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::flag;

    fn piece(sequence: u64, payload: u16) -> Packet {
        Packet {
            source: Default::default(),
            destination: Default::default(),
            source_port: 1,
            destination_port: 2,
            flow: Default::default(),
            size: 52 + payload,
            ecn: Default::default(),
            sent: Instant::ZERO,
            body: Body::Tcp(Segment {
                sequence,
                data: sequence,
                payload,
                flags: flag::ACK,
                ..Segment::default()
            }),
        }
    }

    #[test]
    fn what_was_joined_is_cut_into_the_same_pieces() {
        let pieces = [piece(100, 1380), piece(1480, 1380), piece(2860, 700)];
        let mut large = Large::new(pieces[0]);
        assert!(pieces[1..].iter().all(|piece| large.join(piece)));
        assert_eq!(large.packet.size, 52 + 3460);
        for (index, piece) in pieces.iter().enumerate() {
            let len = usize::from(piece.size);
            assert_eq!(cut(&large.packet, index as u16, 1432, len), *piece);
        }
        // A short piece ends it.
        assert!(!large.join(&piece(3560, 1380)));
    }

    #[test]
    fn only_neighbours_of_one_kind_are_joined() {
        let mut large = Large::new(piece(0, 1380));
        let late = Packet {
            sent: Instant::from_nanos(TICK),
            ..piece(1380, 1380)
        };
        for other in [
            piece(0, 1380),
            piece(2760, 1380),
            piece(1380, 0),
            piece(1380, 1400),
            late,
        ] {
            assert!(!large.join(&other), "{other:?}");
        }
        for step in 1.. {
            if !large.join(&piece(step * 1380, 1380)) {
                assert_eq!(step, 47, "as many as 65,535 bytes hold");
                break;
            }
        }
    }
}
