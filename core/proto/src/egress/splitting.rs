//! Packets that fit no path whole: they go in pieces.
//!
//! A packet is split when it is sent, not when it comes in, so a packet that was accepted while a
//! larger size passed, and a retransmission, are split too and never wait for a size that does not
//! come back. All pieces of one transmission go on one path; a lost one is sent again alone, in
//! smaller pieces where the path takes less by then. A peer of a version that does not know
//! fragments gets none: what fits no path is dropped there, and the entrance answers its sender.

use std::ops::Range;

use hawser_units::Instant;
use hawser_wire::compression::Form;
use hawser_wire::fragment::{FRAGMENT_LEN, MAX_SPLIT};

use super::Egress;
use super::preferring::in_use;
use crate::flow::Run;
use crate::path::Path;

/// Paths that take less than this are not used for pieces: the longest packet would be more pieces
/// than a record of sent packets has bits. Units: bytes of inner packet.
pub(super) const LEAST_PIECE: u32 = 256;
/// One of so many packets that have to be split is answered to its sender: a flow that costs twice
/// as many datagrams hears of it soon, and a lone packet (a ping that must not be fragmented) is
/// delivered without an error. A flood of large packets causes no flood of answers.
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

    /// How many datagrams it takes.
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

    /// What one of its datagrams holds, alone.
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
    /// How the next segment, or a part of it, goes on a path; `None` when it goes whole. A segment
    /// that is split takes its headers along.
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

    /// The next piece of a packet that goes in pieces of `room` bytes, one at a time, or that has
    /// begun to; `None` when it goes at once.
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

    /// Returns the byte that follows a piece of the packet; `None` behind the last.
    pub(super) fn rest_from(&self, piece: Piece) -> Option<u16> {
        (usize::from(piece.to) < self.len_of(self.next)).then_some(piece.to)
    }

    /// Bytes of the body of a datagram: of a segment behind the next one, or of a piece of the
    /// next.
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

    /// Fills the views with the paths for a packet of `len` bytes: those that take it whole, or,
    /// where none does, those that take pieces of it. Returns whether any path is usable at all.
    pub(super) fn build_views_for(&mut self, len: u32, sparse: bool, now: Instant) -> bool {
        let usable = self.build_views(len, sparse, now);
        if usable && self.views.is_empty() && self.may_split(len as usize) {
            self.build_views(LEAST_PIECE.min(len), sparse, now);
        }
        usable
    }

    /// Whether a packet of `len` bytes is sure to fit no path that is in use, whole or in pieces.
    pub(super) fn fits_nowhere(&self, len: u32) -> bool {
        let mut mtus = in_use(&self.lanes).map(|(_, lane)| u32::from(lane.path.likely_mtu()));
        let least = if self.may_split(len as usize) {
            LEAST_PIECE.min(len)
        } else {
            len
        };
        !mtus.any(|mtu| mtu >= least)
    }

    /// Takes note that a packet which came in has to be split.
    pub(super) fn on_split_at_intake(&mut self, fits: u16) {
        let is_settled = !self.active().any(Path::mtu_may_rise);
        self.split_at_intake += u64::from(is_settled);
        if is_settled && self.split_at_intake.is_multiple_of(ADVICE_EVERY) {
            self.advice = Some(fits);
        }
    }

    /// The largest inner packet that goes whole, when the sender of the packet that was queued last
    /// should hear of it: the packet goes in pieces, which costs more.
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
