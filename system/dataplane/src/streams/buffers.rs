//! Buffers of streams: bytes that were read from a socket and are not acknowledged, and bytes that
//! have arrived and wait for a socket.
//!
//! Both allocate memory in pieces, so that nothing is moved when they grow, and use none while they
//! are empty.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use hawser_linux::stream_sockets::Connection;

/// Bytes of the first piece of an outbox: most requests fit.
///
/// Source: the window of ten packets that a TCP connection begins with (RFC 6928).
const FIRST_PIECE: usize = 16 << 10;
/// Bytes of the largest piece of an outbox.
///
/// Source: three times what goes at once (64 datagrams), so that few bursts span two pieces.
const LARGEST_PIECE: usize = 256 << 10;
/// Bytes of a piece of an inbox.
///
/// Source: a gap of one packet keeps at most this beside it.
const PIECE: usize = 16 << 10;
/// Pieces of one write.
///
/// Source: 1 MB at once, more than a socket takes.
const MAX_PIECES: usize = 64;

struct Piece {
    start: u64,
    bytes: Box<[u8]>,
    len: usize,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start + self.len as u64
    }
}

/// Bytes that were read from a socket, until they are acknowledged.
#[derive(Default)]
pub(crate) struct Outbox {
    pieces: VecDeque<Piece>,
    end: u64,
    memory: u64,
}

impl Outbox {
    /// Bytes of memory in use.
    pub(crate) fn memory(&self) -> u64 {
        self.memory
    }

    /// Reads at most `max` bytes from a socket; returns `None` if none are available and 0 at the
    /// end.
    pub(crate) fn read(&mut self, socket: &Connection, max: usize) -> io::Result<Option<usize>> {
        if self.pieces.back().is_none_or(|last| last.len == last.bytes.len()) {
            let stored = self.pieces.iter().map(|piece| piece.len).sum::<usize>();
            let size = (stored * 2).clamp(FIRST_PIECE, LARGEST_PIECE);
            self.memory += size as u64;
            self.pieces.push_back(Piece {
                start: self.end,
                bytes: vec![0; size].into_boxed_slice(),
                len: 0,
            });
        }
        let last = self.pieces.back_mut().expect("there is one with room");
        let room = &mut last.bytes[last.len..];
        let most = room.len().min(max);
        let result = socket.receive(&mut [IoSliceMut::new(&mut room[..most])]);
        if let Ok(Some(len)) = result {
            last.len += len;
            self.end += len as u64;
        }
        self.drop_empty();
        result
    }

    /// Continues with bytes that the previous process has read, which begin at an offset.
    pub(crate) fn restore(start: u64, bytes: &[u8]) -> Self {
        let mut outbox = Self {
            end: start,
            ..Self::default()
        };
        for part in bytes.chunks(LARGEST_PIECE) {
            outbox.pieces.push_back(Piece {
                start: outbox.end,
                bytes: part.into(),
                len: part.len(),
            });
            outbox.memory += part.len() as u64;
            outbox.end += part.len() as u64;
        }
        outbox
    }

    /// Drops bytes before an offset.
    pub(crate) fn release(&mut self, offset: u64) {
        while self.pieces.front().is_some_and(|first| {
            first.end() <= offset && (first.len == first.bytes.len() || first.end() == self.end)
        }) {
            let piece = self.pieces.pop_front().expect("there is a first");
            self.memory -= piece.bytes.len() as u64;
        }
    }

    /// Frees empty pieces: a socket that waits for its peer takes no memory.
    fn drop_empty(&mut self) {
        if self.pieces.back().is_some_and(|last| last.len == 0)
            && let Some(piece) = self.pieces.pop_back()
        {
            self.memory -= piece.bytes.len() as u64;
        }
    }

    /// Returns the unacknowledged bytes at some offsets; bytes of several pieces are joined in
    /// `scratch`. Returns `None` if some are not stored here.
    pub(crate) fn bytes<'a>(&'a self, range: &Range<u64>, scratch: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        if range.is_empty() {
            return Some(&[]);
        }
        let at = self.pieces.partition_point(|piece| piece.end() <= range.start);
        let within = |piece: &'a Piece| {
            let from = range.start.max(piece.start) - piece.start;
            let to = range.end.min(piece.end()) - piece.start;
            piece.bytes.get(from as usize..to as usize)
        };
        let first = self.pieces.get(at).filter(|first| first.start <= range.start)?;
        if range.end <= first.end() {
            return within(first);
        }
        scratch.clear();
        for piece in self
            .pieces
            .range(at..)
            .take_while(|piece| piece.start < range.end)
        {
            scratch.extend_from_slice(within(piece)?);
        }
        (scratch.len() as u64 == range.end - range.start).then_some(scratch)
    }
}

/// Bytes that have arrived, until they are written to a socket; they may have gaps.
#[derive(Default)]
pub(crate) struct Inbox {
    /// Pieces, beginning with the one that contains `read`.
    pieces: VecDeque<Option<Box<[u8]>>>,
    read: u64,
    highest: u64,
}

impl Inbox {
    /// Creates an inbox whose bytes before an offset were written by the previous process.
    pub(crate) fn restore(read: u64) -> Self {
        Self {
            read,
            highest: read,
            ..Self::default()
        }
    }

    /// Appends the stored bytes at some offsets to `out`.
    pub(crate) fn copy(&self, range: Range<u64>, out: &mut Vec<u8>) {
        let base = self.read / PIECE as u64;
        let mut at = range.start;
        while at < range.end {
            let from = (at % PIECE as u64) as usize;
            let len = (range.end - at).min((PIECE - from) as u64) as usize;
            let place = (at / PIECE as u64).saturating_sub(base) as usize;
            match self.pieces.get(place) {
                Some(Some(piece)) => out.extend_from_slice(&piece[from..from + len]),
                Some(None) | None => out.resize(out.len() + len, 0),
            }
            at += len as u64;
        }
    }

    /// Returns the offset up to which bytes were written.
    pub(crate) fn read(&self) -> u64 {
        self.read
    }

    /// Stores bytes at an offset that were not yet written.
    pub(crate) fn store(&mut self, mut offset: u64, mut bytes: &[u8]) {
        let base = self.read / PIECE as u64;
        while !bytes.is_empty() {
            let Some(at) = (offset / PIECE as u64).checked_sub(base) else {
                return;
            };
            let at = at as usize;
            if self.pieces.len() <= at {
                self.pieces.resize_with(at + 1, || None);
            }
            let piece = self.pieces[at].get_or_insert_with(|| vec![0; PIECE].into_boxed_slice());
            let from = (offset % PIECE as u64) as usize;
            let len = bytes.len().min(PIECE - from);
            piece[from..from + len].copy_from_slice(&bytes[..len]);
            bytes = &bytes[len..];
            offset += len as u64;
        }
        self.highest = self.highest.max(offset);
    }

    /// Returns at most `max` bytes from the first unwritten one up to `until`, all of which have
    /// arrived.
    fn slices(&self, until: u64, max: u64) -> ([IoSlice<'_>; MAX_PIECES], usize) {
        let mut slices = [IoSlice::new(&[]); MAX_PIECES];
        let (mut count, mut at) = (0, self.read);
        let until = until.min(self.read.saturating_add(max));
        let pieces = self.pieces.iter().take(MAX_PIECES);
        for piece in pieces.map_while(Option::as_ref) {
            if at >= until {
                break;
            }
            let from = (at % PIECE as u64) as usize;
            let len = (until - at).min((PIECE - from) as u64) as usize;
            slices[count] = IoSlice::new(&piece[from..from + len]);
            count += 1;
            at += len as u64;
        }
        (slices, count)
    }

    /// Writes at most `max` bytes up to `until` to a socket; returns the number of bytes written,
    /// `None` if the socket has no room.
    pub(crate) fn write(&mut self, socket: &Connection, until: u64, max: u64) -> io::Result<Option<usize>> {
        let (slices, count) = self.slices(until, max);
        let taken = socket.send(&slices[..count])?;
        if let Some(taken) = taken {
            self.take(taken as u64);
        }
        Ok(taken)
    }

    fn take(&mut self, bytes: u64) {
        let before = self.read / PIECE as u64;
        self.read += bytes;
        if self.read == self.highest {
            self.pieces.clear();
            return;
        }
        for _ in before..self.read / PIECE as u64 {
            self.pieces.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn byte(offset: u64) -> u8 {
        (offset.wrapping_mul(0x9e37_79b9) >> 9) as u8
    }

    fn bytes(range: Range<u64>) -> Vec<u8> {
        range.map(byte).collect()
    }

    impl Outbox {
        fn put(&mut self, mut len: usize, size: usize) {
            while len > 0 {
                let part = len.min(size);
                self.pieces.push_back(Piece {
                    start: self.end,
                    bytes: bytes(self.end..self.end + part as u64).into_boxed_slice(),
                    len: part,
                });
                self.memory += part as u64;
                self.end += part as u64;
                len -= part;
            }
        }
    }

    #[test]
    fn an_outbox_gives_ranges_of_one_piece_and_of_several() {
        let mut outbox = Outbox::default();
        outbox.put(10_000, 1_000);
        let mut scratch = Vec::new();
        for range in [0..10, 990..1_000, 990..1_010, 500..9_999, 0..10_000, 1_000..2_000] {
            assert_eq!(
                outbox.bytes(&range, &mut scratch),
                Some(&bytes(range.clone())[..])
            );
        }
        assert_eq!(outbox.bytes(&(9_000..10_001), &mut scratch), None);
        let restored = Outbox::restore(1_500, &bytes(1_500..10_000));
        assert_eq!(
            restored.bytes(&(1_500..9_999), &mut scratch),
            Some(&bytes(1_500..9_999)[..])
        );
        assert_eq!(restored.bytes(&(1_499..1_600), &mut scratch), None);
        outbox.release(2_500);
        assert_eq!(outbox.memory(), 8_000);
        assert_eq!(outbox.bytes(&(1_999..2_001), &mut scratch), None);
        assert_eq!(
            outbox.bytes(&(2_500..3_500), &mut scratch),
            Some(&bytes(2_500..3_500)[..])
        );
        outbox.release(10_000);
        assert_eq!((outbox.memory(), outbox.pieces.len()), (0, 0));
    }

    proptest! {
        #[test]
        fn an_inbox_gives_what_was_stored_in_order(
            steps in proptest::collection::vec((0..60_000_u64, 1..2_000_usize, 0..40_000_u64), 1..60),
        ) {
            let mut inbox = Inbox::default();
            let mut is_here = vec![false; 200_000];
            let mut taken = Vec::new();
            for (ahead, len, max) in steps {
                let from = inbox.read() + ahead;
                inbox.store(from, &bytes(from..from + len as u64));
                is_here[from as usize..from as usize + len].fill(true);
                let read = inbox.read() as usize;
                let until = is_here[read..].iter().take_while(|here| **here).count() + read;
                let (slices, count) = inbox.slices(until as u64, max);
                let found: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                prop_assert_eq!(found.len(), (until - read).min(max as usize));
                let mut copied = Vec::new();
                inbox.copy(inbox.read()..until as u64, &mut copied);
                let mut restored = Inbox::restore(inbox.read());
                restored.store(inbox.read(), &copied);
                let (slices, again) = restored.slices(until as u64, max);
                let same: Vec<u8> = slices[..again].iter().flat_map(|slice| slice.to_vec()).collect();
                prop_assert_eq!(&same, &found);
                inbox.take(found.len() as u64);
                taken.extend(found);
            }
            prop_assert_eq!(&taken, &bytes(0..taken.len() as u64));
            if inbox.read() == inbox.highest {
                prop_assert!(inbox.pieces.is_empty(), "an idle stream takes no memory");
            }
        }
    }
}
