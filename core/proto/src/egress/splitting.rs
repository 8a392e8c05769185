//! Fragmentation of packets that are larger than every path's packet size.
//!
//! A packet is split when it is sent, not when it arrives. So packets that were accepted while a
//! larger size passed, and retransmissions, are split too, and never wait for a size that does not
//! return. All pieces of one transmission use one path. A lost piece is retransmitted alone, in
//! smaller pieces if the size of the path has decreased. A peer of a version without fragments gets
//! none: packets that fit no path are dropped, and the entrance sends an ICMP error.

use std::ops::Range;

use hawser_units::Instant;
use hawser_wire::compression::Form;
use hawser_wire::fragment::{FRAGMENT_LEN, MAX_SPLIT};

use super::Egress;
use super::choosing::Excess;
use super::preferring::in_use;
use crate::flow::Run;
use crate::path::Path;

/// Smallest size of a path that is used for pieces. Source: [`MAX_SPLIT`] is at most 37 pieces
/// then, and the record of a transmission has 64 bits for its pieces. Units: bytes of inner packet.
pub(super) const MIN_PIECE: u32 = 256;
/// Answers one of this many split packets with an ICMP error to its sender: a flow that costs twice
/// as many datagrams is notified early, and a single packet (a ping that must not be fragmented) is
/// delivered without an error. A flood of large packets causes no flood of answers. Source: our
/// choice, 90 kB of packets of 1,400 bytes, a fraction of what a sender of too large packets
/// transfers; fewer packets would also answer a short exchange, which is delivered anyway.
const ADVICE_EVERY: u64 = 64;

/// Bytes of an inner packet that are sent in datagrams of nearly equal sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    from: u16,
    to: u16,
    /// Bytes of the packet in each datagram but the last.
    size: u16,
}

impl Piece {
    /// Splits `range` for a path that takes bodies of `room` bytes.
    fn of(range: &Range<u16>, room: u16) -> Self {
        let len = (range.end - range.start).max(1);
        let most = room.saturating_sub(FRAGMENT_LEN as u16).max(1);
        Self {
            from: range.start,
            to: range.end,
            size: len.div_ceil(len.div_ceil(most)),
        }
    }

    /// Returns the number of datagrams.
    #[must_use]
    pub fn count(&self) -> u16 {
        (self.to - self.from).div_ceil(self.size).max(1)
    }

    /// The bytes of the packet that one of its datagrams holds.
    #[must_use]
    pub fn range(&self, step: u16) -> Range<u16> {
        let from = self.from + step * self.size;
        from..self.to.min(from.saturating_add(self.size))
    }

    /// Bytes of the body of one of its datagrams.
    #[must_use]
    pub fn body_len(&self, step: u16) -> usize {
        FRAGMENT_LEN + self.range(step).len()
    }

    /// Returns the range of one of its datagrams.
    pub(super) fn one(&self, step: u16) -> Self {
        let range = self.range(step);
        Self {
            from: range.start,
            to: range.end,
            size: self.size,
        }
    }
}

impl<B> Run<B> {
    /// Returns how the next segment, or a part of it, is split on a path; `None` if it is sent
    /// whole. A split segment includes its headers.
    pub(super) fn split_on(&mut self, path: &Path, part: Option<Piece>) -> Option<Piece> {
        if self.body_len(part, 0) <= usize::from(path.mtu()) {
            return part;
        }
        if self.form(self.next) == Form::Compressed {
            self.context = None;
        }
        let whole = 0..u16::try_from(self.len_of(self.next)).unwrap_or(u16::MAX);
        let range = part.map_or(whole, |part| part.from..part.to);
        Some(Piece::of(&range, path.mtu()))
    }

    /// Returns the next piece of a packet that is sent in pieces of `room` bytes, one at a time;
    /// `None` if it is sent at once.
    pub(super) fn piece_on(&mut self, path: &Path, room: Option<u16>) -> Option<Piece> {
        let from = self.begun.map_or(0, |(from, _)| from);
        let room = room.unwrap_or(u16::MAX).min(path.mtu());
        if from == 0 && (room == path.mtu() || self.len_of(self.next) <= usize::from(room)) {
            return None;
        }
        if self.form(self.next) == Form::Compressed {
            self.context = None;
        }
        let len = u16::try_from(self.len_of(self.next)).unwrap_or(u16::MAX);
        Some(Piece::of(&(from..len), room).one(0))
    }

    /// Returns the byte that follows a piece of the packet; `None` after the last.
    pub(super) fn rest_from(&self, piece: Piece) -> Option<u16> {
        (usize::from(piece.to) < self.len_of(self.next)).then_some(piece.to)
    }

    /// Bytes of the body of a datagram that contains a later segment, or a piece of the next
    /// segment.
    pub(super) fn body_len(&self, piece: Option<Piece>, step: u16) -> usize {
        match piece {
            Some(piece) => piece.body_len(step),
            None => self.len_of(self.next + step),
        }
    }
}

impl<B: Copy> Egress<B> {
    /// Returns whether the peer reassembles packets of `len` bytes.
    pub(super) fn may_split(&self, len: usize) -> bool {
        self.peer_takes_fragments && len <= MAX_SPLIT
    }

    /// Fills the views with the paths for a packet of `len` bytes: those on which it fits whole,
    /// or, if there is none, those on which its pieces fit. Returns whether any path is usable at
    /// all.
    pub(super) fn build_views_for(&mut self, len: u32, excess: Excess, now: Instant) -> bool {
        let usable = self.build_views(len, excess, now);
        if usable && self.views.is_empty() && self.may_split(len as usize) {
            self.build_views(MIN_PIECE.min(len), excess, now);
        }
        usable
    }

    /// Returns whether a packet of `len` bytes certainly fits no path in use, neither whole nor
    /// split.
    pub(super) fn fits_nowhere(&self, len: u32) -> bool {
        let mut mtus = in_use(&self.lanes).map(|(_, lane)| u32::from(lane.path.likely_mtu()));
        let least = if self.may_split(len as usize) {
            MIN_PIECE.min(len)
        } else {
            len
        };
        !mtus.any(|mtu| mtu >= least)
    }

    /// Records that an arriving packet has to be split.
    pub(super) fn on_split_at_intake(&mut self, fits: u16) {
        let is_settled = !self.active().any(Path::mtu_may_rise);
        self.split_at_intake += u64::from(is_settled);
        if is_settled && self.split_at_intake.is_multiple_of(ADVICE_EVERY) {
            self.advice = Some(fits);
        }
    }

    /// Returns the size of the largest inner packet that fits whole, if the sender of the last
    /// queued packet should be notified of it, because the packet has to be sent in pieces, which
    /// costs more.
    pub fn poll_size_advice(&mut self) -> Option<u16> {
        self.advice.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_cover_their_range_once_and_fit(from in 0_u16..9_000, len in 1_u16..9_216, room in 5_u16..9_000) {
            let range = from..from + len;
            let piece = Piece::of(&range, room);
            let mut next = range.start;
            for step in 0..piece.count() {
                let part = piece.range(step);
                prop_assert_eq!(part.start, next);
                prop_assert!(!part.is_empty());
                prop_assert!(piece.body_len(step) <= usize::from(room));
                prop_assert_eq!(piece.one(step).range(0), part.clone());
                prop_assert_eq!(piece.one(step).count(), 1);
                next = part.end;
            }
            prop_assert_eq!(next, range.end);
        }
    }

    #[test]
    fn the_longest_packet_takes_no_more_pieces_than_a_record_has_bits() {
        let piece = Piece::of(&(0..MAX_SPLIT as u16), crate::path::pmtu::MIN - 108);
        assert!(piece.count() <= 64, "{}", piece.count());
    }
}
