//! Memory limit for all pairs of threads together.
//!
//! Half of it is divided among the pairs, so that no pair can exhaust another's part; the other
//! half is available to all pairs. A single pair has the whole. Cost: nothing while a pair uses
//! only its own part, otherwise one atomic operation per buffer.
//!
//! Two pairs that take memory at the same moment may both get the rest, so the limit may be
//! exceeded by one buffer for each pair.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Share of a pair in a limit. Units: bytes.
#[derive(Debug)]
pub(super) struct Share {
    /// Reserved part of the pair.
    own: u64,
    used: u64,
    /// Bytes that all pairs use beyond their reserved parts.
    lent: Arc<AtomicU64>,
    lendable: u64,
}

impl Share {
    /// Divides `capacity` among this number of pairs.
    pub(super) fn divide(capacity: u64, pairs: usize) -> Vec<Self> {
        let lendable = capacity / 2;
        let own = (capacity - lendable) / pairs as u64;
        let lent = Arc::new(AtomicU64::new(0));
        let share = |_| Self {
            own,
            used: 0,
            lent: Arc::clone(&lent),
            lendable,
        };
        (0..pairs).map(share).collect()
    }

    /// Creates a share of the whole for one pair.
    #[cfg(test)]
    pub(super) fn whole(capacity: u64) -> Self {
        Self::divide(capacity, 1).remove(0)
    }

    /// Returns whether `bytes` more would exceed the limit.
    pub(super) fn lacks(&self, bytes: u64) -> bool {
        let more = self.beyond(self.used + bytes) - self.beyond(self.used);
        more > 0 && self.lent.load(Ordering::Relaxed) + more > self.lendable
    }

    /// Returns whether this pair has to release memory.
    pub(super) fn is_over(&self) -> bool {
        self.used > self.own && self.lent.load(Ordering::Relaxed) > self.lendable
    }

    /// Returns the bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Takes bytes regardless of the limit.
    pub(super) fn take(&mut self, bytes: u64) {
        let before = self.beyond(self.used);
        self.used += bytes;
        let more = self.beyond(self.used) - before;
        if more > 0 {
            self.lent.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Returns bytes to the share.
    pub(super) fn give_back(&mut self, bytes: u64) {
        let before = self.beyond(self.used);
        self.used -= bytes;
        let less = before - self.beyond(self.used);
        if less > 0 {
            self.lent.fetch_sub(less, Ordering::Relaxed);
        }
    }

    fn beyond(&self, used: u64) -> u64 {
        used.saturating_sub(self.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pair_has_all_and_no_more() {
        let mut share = Share::whole(1_000);
        for _ in 0..10 {
            assert!(!share.lacks(100));
            share.take(100);
        }
        assert!(share.lacks(1) && !share.is_over());
        share.take(1);
        assert!(share.is_over());
        share.give_back(1_001);
        assert_eq!(share.used(), 0);
        assert!(!share.lacks(1_000) && share.lacks(1_001));
    }

    #[test]
    fn each_of_several_has_its_own_and_all_together_never_more_than_all() {
        for pairs in [2, 3, 16] {
            let mut shares = Share::divide(4_800, pairs);
            let own = 2_400 / pairs as u64;
            // The first pair takes all that it can get: its own part, and the shared half.
            let mut first = shares.remove(0);
            while !first.lacks(10) {
                first.take(10);
            }
            assert_eq!(first.used(), own + 2_400);
            for share in &mut shares {
                while !share.lacks(10) {
                    share.take(10);
                }
                assert_eq!(share.used(), own, "what is its own is there all the same");
            }
            let all: u64 = shares.iter().map(Share::used).sum();
            assert_eq!(all + first.used(), 4_800);
            // Returned memory is available to others.
            first.give_back(100);
            assert!(!shares[0].lacks(100) && shares[0].lacks(110));
        }
    }
}
