//! One bound of memory for all pairs of threads together.
//!
//! Half of it is shared out, so that no pair is without any because of another; the other half is
//! for whichever pair needs it. With one pair that is all. Cost: nothing while a pair makes do with
//! its own part, else one atomic operation for each buffer.
//!
//! Two pairs that take at the same moment may both get what was left: the bound may be passed by
//! one buffer for each pair.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a pair may use of a bound. Units: bytes.
#[derive(Debug)]
pub(super) struct Share {
    /// What is its own.
    own: u64,
    used: u64,
    /// What all pairs use beyond their own.
    lent: Arc<AtomicU64>,
    lendable: u64,
}

impl Share {
    /// `capacity` for so many pairs.
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

    /// All of it for one.
    #[cfg(test)]
    pub(super) fn whole(capacity: u64) -> Self {
        Self::divide(capacity, 1).remove(0)
    }

    /// Whether so many bytes more are too much.
    pub(super) fn lacks(&self, bytes: u64) -> bool {
        let more = self.beyond(self.used + bytes) - self.beyond(self.used);
        more > 0 && self.lent.load(Ordering::Relaxed) + more > self.lendable
    }

    /// Whether this pair is to let go of something.
    pub(super) fn is_over(&self) -> bool {
        self.used > self.own && self.lent.load(Ordering::Relaxed) > self.lendable
    }

    /// Bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Takes some, whether there are or not.
    pub(super) fn take(&mut self, bytes: u64) {
        let before = self.beyond(self.used);
        self.used += bytes;
        let more = self.beyond(self.used) - before;
        if more > 0 {
            self.lent.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Gives some back.
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
            // The first takes all that it gets: its own, and what can be lent.
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
            // What one gives back is there for others.
            first.give_back(100);
            assert!(!shares[0].lacks(100) && shares[0].lacks(110));
        }
    }
}
