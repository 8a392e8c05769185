//! Reassembly of inner packets that arrive in pieces.
//!
//! Pieces arrive in any order, over any paths, some of them twice and split differently the second
//! time. A packet is complete when its pieces cover it. Memory and time are bounded: the oldest
//! packet is dropped for a new one, and incomplete packets are dropped after [`LONGEST`].
//!
//! ```text
//!   (unknown) --first piece--> gathering --covered--> whole (remembered, so a late piece is ignored)
//!                                 |                     |
//!                                 +--- LONGEST, or room is needed ---> (unknown)
//! ```

use std::collections::VecDeque;

use hawser_units::{Duration, Instant, Sequence};
use hawser_wire::data::{Inner, Kind};
use hawser_wire::fragment::Fragment;

/// Packets that are gathered or remembered at once. Source: a bound on the memory of a session; the
/// number was not measured.
const PACKETS: usize = 128;
/// Bytes of packets that are gathered at once. Source: a bound on the memory of a session, 128 KiB.
const BYTES: usize = 128 * 1024;
/// Maximum number of ranges of one packet that have arrived. Source: the longest packet is at most
/// 37 pieces (`MIN_PIECE` of `egress/splitting.rs`), so a path that loses every other piece leaves
/// 19 ranges.
const RANGES: usize = 32;
/// Time that a packet is gathered and then remembered. Source: its sender keeps it no longer
/// (`MAX_FAILED_PATH_BUFFERING` of `egress/retransmission_buffer.rs`).
const LONGEST: Duration = Duration::from_secs(3);

/// A packet that was reassembled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Inner header, as if the packet had arrived whole with its last piece.
    pub inner: Inner,
    /// Bytes of the packet.
    pub packet: Vec<u8>,
}

#[derive(Debug)]
struct Partial {
    flow: u16,
    unordered: bool,
    sequence: Sequence,
    bytes: Vec<u8>,
    /// Ranges of bytes that have arrived, in order; no two touch.
    have: Vec<(u16, u16)>,
    since: Instant,
    is_whole: bool,
}

impl Partial {
    fn is_of(&self, inner: &Inner) -> bool {
        (self.flow, self.unordered, self.sequence) == (inner.flow, inner.unordered, inner.sequence)
    }

    /// Processes a piece. Returns whether the packet is whole.
    fn add(&mut self, offset: u16, piece: &[u8]) -> bool {
        let at = usize::from(offset);
        self.bytes[at..at + piece.len()].copy_from_slice(piece);
        let (mut from, mut to) = (offset, offset + piece.len() as u16);
        self.have.retain(|(start, end)| {
            let touches = *start <= to && from <= *end;
            if touches {
                (from, to) = (from.min(*start), to.max(*end));
            }
            !touches
        });
        let place = self.have.partition_point(|(start, _)| *start < from);
        self.have.insert(place, (from, to));
        self.have.truncate(RANGES);
        self.have == [(0, self.bytes.len() as u16)]
    }
}

/// Packets of one session that arrive in pieces.
///
/// Cost: O(packets) a piece. Memory: at most 128 KB, and one packet more.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    partials: VecDeque<Partial>,
    /// Bytes that are gathered.
    held: usize,
    whole: VecDeque<Whole>,
}

impl Reassembly {
    /// Processes the body of a fragment.
    pub(super) fn handle_fragment(&mut self, inner: &Inner, body: &[u8], now: Instant) {
        let Some((fragment, piece)) = Fragment::parse(body) else {
            return;
        };
        self.forget(now);
        let partial = self.partial(inner, fragment, now);
        if partial.is_whole || partial.bytes.len() != usize::from(fragment.total) {
            return;
        }
        if partial.add(fragment.offset, piece) {
            partial.is_whole = true;
            let packet = std::mem::take(&mut partial.bytes);
            self.held -= packet.len();
            self.whole.push_back(Whole {
                inner: Inner {
                    kind: Kind::Packet,
                    ..*inner
                },
                packet,
            });
        }
    }

    /// The packet of a piece.
    fn partial(&mut self, inner: &Inner, fragment: Fragment, now: Instant) -> &mut Partial {
        if let Some(at) = self.partials.iter().position(|partial| partial.is_of(inner)) {
            return &mut self.partials[at];
        }
        let total = usize::from(fragment.total);
        while self.partials.len() >= PACKETS || self.held + total > BYTES {
            let Some(oldest) = self.partials.pop_front() else {
                break;
            };
            self.held -= oldest.bytes.len();
        }
        self.held += total;
        self.partials.push_back(Partial {
            flow: inner.flow,
            unordered: inner.unordered,
            sequence: inner.sequence,
            bytes: vec![0; total],
            have: Vec::new(),
            since: now,
            is_whole: false,
        });
        self.partials.back_mut().expect("it was added")
    }

    /// Drops pieces that have been stored for too long.
    pub(super) fn forget(&mut self, now: Instant) {
        while let Some(oldest) = self
            .partials
            .front()
            .filter(|oldest| now.since(oldest.since) >= LONGEST)
        {
            self.held -= oldest.bytes.len();
            self.partials.pop_front();
        }
    }

    /// Returns when [`Self::forget`] has something to drop.
    pub(super) fn due(&self) -> Option<Instant> {
        self.partials.front().map(|oldest| oldest.since + LONGEST)
    }

    /// A packet that was reassembled.
    pub(super) fn poll_whole(&mut self) -> Option<Whole> {
        self.whole.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_wire::fragment::FRAGMENT_LEN;
    use proptest::prelude::*;

    const NOW: Instant = Instant::from_nanos(1_000_000_000);

    fn body(offset: u16, packet: &[u8], len: u16) -> Vec<u8> {
        let mut head = [0; FRAGMENT_LEN];
        Fragment {
            offset,
            total: packet.len() as u16,
        }
        .emit(&mut head);
        let piece = &packet[usize::from(offset)..usize::from(offset + len)];
        [&head[..], piece].concat()
    }

    fn inner(sequence: u32) -> Inner {
        Inner {
            sequence: Sequence(sequence),
            flow: 3,
            ..Inner::plain(Kind::Fragment)
        }
    }

    fn packet(len: usize) -> Vec<u8> {
        (0..len).map(|at| at as u8).collect()
    }

    #[test]
    fn joins_pieces_that_overlap_and_come_twice() {
        let mut reassembly = Reassembly::default();
        let packet = packet(1_000);
        for (offset, len) in [(600, 400), (0, 300), (600, 400), (200, 300), (500, 100), (0, 300)] {
            reassembly.handle_fragment(&inner(7), &body(offset, &packet, len), NOW);
        }
        let whole = reassembly.poll_whole().expect("it is covered");
        assert_eq!(whole.packet, packet);
        assert_eq!(
            whole.inner,
            Inner {
                kind: Kind::Packet,
                ..inner(7)
            }
        );
        assert_eq!(
            reassembly.poll_whole(),
            None,
            "a late piece makes no second packet"
        );
        assert_eq!(reassembly.held, 0);
    }

    #[test]
    fn what_stays_incomplete_is_dropped_in_time_and_for_room() {
        let mut reassembly = Reassembly::default();
        for sequence in 0..1_000 {
            reassembly.handle_fragment(&inner(sequence), &body(0, &packet(9_000), 10), NOW);
            assert!(reassembly.held <= BYTES && reassembly.partials.len() <= PACKETS);
        }
        let due = reassembly.due().expect("something is gathered");
        reassembly.forget(due);
        assert_eq!(
            (reassembly.held, reassembly.partials.len(), reassembly.due()),
            (0, 0, None)
        );
    }

    #[test]
    fn a_piece_of_another_length_is_ignored() {
        let mut reassembly = Reassembly::default();
        reassembly.handle_fragment(&inner(1), &body(0, &packet(100), 50), NOW);
        reassembly.handle_fragment(&inner(1), &body(50, &packet(120), 70), NOW);
        assert_eq!(reassembly.poll_whole(), None);
        reassembly.handle_fragment(&inner(1), &body(50, &packet(100), 50), NOW);
        assert!(reassembly.poll_whole().is_some());
    }

    proptest! {
        /// Against a naive model: a packet is whole as soon as each of its bytes has arrived.
        #[test]
        fn a_packet_is_whole_when_each_byte_has_come(len in 1_u16..200,
                pieces in proptest::collection::vec((any::<u16>(), any::<u16>()), 1..60)) {
            let packet = packet(usize::from(len));
            let mut reassembly = Reassembly::default();
            let mut seen = vec![false; usize::from(len)];
            for (offset, piece) in pieces {
                let offset = offset % len;
                let piece = 1 + piece % (len - offset);
                reassembly.handle_fragment(&inner(1), &body(offset, &packet, piece), NOW);
                let before = seen.iter().all(|seen| *seen);
                seen[usize::from(offset)..usize::from(offset + piece)].fill(true);
                let whole = reassembly.poll_whole();
                prop_assert_eq!(whole.is_some(), !before && seen.iter().all(|seen| *seen));
                prop_assert!(whole.is_none_or(|whole| whole.packet == packet));
            }
        }

        #[test]
        fn any_bytes_are_taken(bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..40)) {
            let mut reassembly = Reassembly::default();
            for (at, body) in bodies.iter().enumerate() {
                reassembly.handle_fragment(&inner(at as u32 % 3), body, NOW);
                prop_assert!(reassembly.held <= BYTES);
            }
        }
    }
}
