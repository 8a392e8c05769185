//! Sequence of one flow: delivered, missing and buffered packets.

use hawser_units::{Instant, Sequence};

use super::reorder_buffer::ReorderBuffer;

/// Distance below the expected sequence number within which a late packet is distinguished from a
/// duplicate. 8192 packets are 90 ms at 1 Gbit/s. No suite of docs/notebook/path-model.md,
/// "Sensitivity", changes by more than 3 % with half or twice of it.
pub(super) const HISTORY: u32 = (WORDS * 64) as u32;

/// Number of words of a flow's bitmap. Source: [`HISTORY`] of 8,192 packets, with 64 in a word.
const WORDS: usize = 128;

/// Number of refused packets in a row, each above those before it, after which the flow's numbering
/// counts as restarted. A packet that is repeated means nothing. Source: our choice; a slower path
/// also delivers packets in order that are too late, but rarely 32 without a newer one between
/// them. A larger one loses as many packets of a flow that restarted.
const STALE_RUN: u8 = 32;

#[derive(Debug)]
pub(super) struct Flow<T> {
    pub(super) id: u16,
    /// The next sequence to deliver in order.
    pub(super) expected: Sequence,
    history: History,
    stale_run: u8,
    /// The highest of that run; meaningless while it is 0.
    stale_highest: Sequence,
    /// Last value of [`super::Arrived::is_bulk`].
    pub(super) is_bulk: bool,
    /// Time when a gap was last filled.
    pub(super) filled: Instant,
    pub(super) held: Option<Box<ReorderBuffer<T>>>,
    /// Position of the flow in the list of flows with buffered packets; meaningless while `held` is
    /// absent.
    pub(super) waiting_at: usize,
    pub(super) used: Instant,
    /// Neighbours in the order of use.
    pub(super) newer: u16,
    pub(super) older: u16,
}

/// Outcome for a sequence number below the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Late {
    /// Never delivered: deliver it now.
    Missing,
    /// Delivered before.
    Duplicate,
    /// Too old to know.
    Stale,
    /// Restart of the numbering: the last of many refused packets.
    Restart,
}

impl<T> Flow<T> {
    pub(super) fn new(id: u16, first: Sequence, now: Instant) -> Self {
        Self {
            id,
            expected: first,
            history: History::new(first),
            stale_run: 0,
            stale_highest: first,
            is_bulk: false,
            filled: Instant::ZERO,
            held: None,
            waiting_at: 0,
            used: now,
            newer: u16::MAX,
            older: u16::MAX,
        }
    }

    /// Notes that the expected sequence is delivered.
    pub(super) fn advance(&mut self) {
        self.history.on_delivered(self.expected);
        self.expected = self.expected.add(1);
        self.stale_run = 0;
        if self.expected.0.is_multiple_of(HISTORY / 2) {
            self.history.tidy(self.expected);
        }
    }

    /// Gives up all sequence numbers before `to`, which is ahead.
    pub(super) fn skip_to(&mut self, to: Sequence) {
        self.history.on_skipped(self.expected, to);
        self.expected = to;
        self.history.tidy(to);
    }

    /// Returns whether any gap is recorded.
    #[cfg(test)]
    pub(super) fn notes_gaps(&self) -> bool {
        self.history.bits.is_some()
    }

    /// Returns the outcome for a sequence number below the expected one; a missing one counts as
    /// delivered from now on.
    pub(super) fn take_late(&mut self, sequence: Sequence) -> Late {
        if self.expected.distance_from(sequence).unsigned_abs() > HISTORY {
            if self.stale_run == 0 || self.stale_highest.is_before(sequence) {
                self.stale_run += 1;
                self.stale_highest = sequence;
            }
            return if self.stale_run >= STALE_RUN {
                Late::Restart
            } else {
                Late::Stale
            };
        }
        self.stale_run = 0;
        if self.history.take(sequence, self.expected) {
            Late::Missing
        } else {
            Late::Duplicate
        }
    }

    /// Restarts the numbering of the flow.
    pub(super) fn restart(&mut self, first: Sequence) {
        self.expected = first;
        self.history = History::new(first);
        self.stale_run = 0;
    }
}

/// Sequence numbers below the expected one that were never delivered. Nothing is stored while none
/// is missing.
#[derive(Debug)]
struct History {
    /// Set bits are missing; covers the last [`HISTORY`] sequences.
    bits: Option<Box<[u64; WORDS]>>,
    /// First expected sequence number while `bits` is absent: all before it are missing, none
    /// after.
    origin: Option<Sequence>,
    /// End of the missing sequence numbers, when `bits` is present.
    end: Sequence,
}

impl History {
    fn new(origin: Sequence) -> Self {
        Self {
            bits: None,
            origin: Some(origin),
            end: origin,
        }
    }

    fn on_delivered(&mut self, sequence: Sequence) {
        if let Some(bits) = &mut self.bits {
            let (word, bit) = index(sequence);
            bits[word] &= !bit;
        }
    }

    fn on_skipped(&mut self, from: Sequence, to: Sequence) {
        let bits = Self::materialise(&mut self.bits, &mut self.origin, from);
        let missing = to.distance_from(from).unsigned_abs();
        if missing >= HISTORY {
            bits.fill(u64::MAX);
        } else {
            each_word(from, missing, |word, mask| bits[word] |= mask);
        }
        self.end = to;
    }

    fn take(&mut self, sequence: Sequence, expected: Sequence) -> bool {
        if self.bits.is_none() && !self.origin.is_some_and(|origin| sequence.is_before(origin)) {
            return false;
        }
        let bits = Self::materialise(&mut self.bits, &mut self.origin, expected);
        let (word, bit) = index(sequence);
        let missing = bits[word] & bit != 0;
        bits[word] &= !bit;
        missing
    }

    /// Drops what has left the window: to be called at least once in [`HISTORY`] sequences.
    fn tidy(&mut self, expected: Sequence) {
        let left = |at: Sequence| expected.distance_from(at).unsigned_abs() >= HISTORY;
        if self.origin.is_some_and(left) {
            self.origin = None;
        }
        if self.bits.is_some() && left(self.end) {
            self.bits = None;
        }
    }

    fn materialise<'a>(
        bits: &'a mut Option<Box<[u64; WORDS]>>,
        origin: &mut Option<Sequence>,
        expected: Sequence,
    ) -> &'a mut [u64; WORDS] {
        bits.get_or_insert_with(|| {
            let mut bits = Box::new([0; WORDS]);
            if let Some(origin) = origin.take() {
                let delivered = expected.distance_from(origin).unsigned_abs().min(HISTORY);
                bits.fill(u64::MAX);
                let first = Sequence(expected.0.wrapping_sub(delivered));
                each_word(first, delivered, |word, mask| bits[word] &= !mask);
            }
            bits
        })
    }
}

fn index(sequence: Sequence) -> (usize, u64) {
    ((sequence.0 / 64) as usize % WORDS, 1 << (sequence.0 % 64))
}

/// Shows the words that `count` sequences from `first` on have a bit in, with these bits.
fn each_word(first: Sequence, count: u32, mut visit: impl FnMut(usize, u64)) {
    let (mut at, mut left) = (first, count);
    while left > 0 {
        let (word, bit) = index(at);
        let here = left.min(64 - at.0 % 64);
        // As many ones as are meant here, from the first of them on.
        visit(word, bit.wrapping_neg() & (u64::MAX >> (64 - at.0 % 64 - here)));
        at = at.add(here);
        left -= here;
    }
}
