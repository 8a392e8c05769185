//! Replay window: every packet number of a path is accepted once.
//!
//! A window is small at first, inside the struct, and allocates its bitmap for the 65th packet
//! number; so a path with few probes costs a few bytes. In its steady state it slides: the highest
//! accepted packet number is its upper edge, and numbers [`WINDOW`] or more below it are rejected.
//! It fails closed: packet numbers that it cannot decide about are rejected.
//!
//! ```text
//!            refused             |       the bitmap decides        |  accepted: the window slides
//!   0 ---------------------- floor ------------------------- highest --------------------> packet number
//! ```

/// Distance below the highest packet number within which a packet is accepted.
///
/// 16,320 packets of 1400 bytes are 180 ms at 1 Gbit/s: more than a path reorders. The bitmap has
/// one word more, so that sliding clears whole words (RFC 6479 section 2).
pub const WINDOW: u64 = ((WORDS - 1) * 64) as u64;

/// Number of words of the bitmap: 255 for [`WINDOW`] and one more (RFC 6479 section 2).
const WORDS: usize = 256;

/// Accepted packet numbers of one path and epoch.
///
/// Call [`check`](Self::check) before decryption, to refuse cheaply, and [`accept`](Self::accept)
/// after, when the packet is known to be authentic: a forged packet number must not move the
/// window.
///
/// Source: RFC 6479 (bitmap of words, never shifted). Deviates: the first 64 packet numbers live in
/// one word without allocation, see `allocates_only_past_the_first_word`. Cost: O(1) a packet,
/// O(words skipped) when the packet number jumps; 32 bytes, and 2 KiB once in use.
#[derive(Clone, Debug, Default)]
pub struct ReplayWindow {
    /// Successor of the highest accepted packet number; 0 before the first.
    next: u64,
    /// Packet numbers below are refused.
    floor: u64,
    /// The packet numbers `floor..floor + 64` while `words` is absent.
    first: u64,
    words: Option<Box<[u64; WORDS]>>,
}

impl ReplayWindow {
    /// Creates a window without accepted packet numbers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether a packet with this packet number may be new.
    #[must_use]
    pub fn check(&self, packet_number: u64) -> bool {
        packet_number >= self.lowest() && (packet_number >= self.next || !self.is_marked(packet_number))
    }

    /// Accepts an authentic packet; `false` when its packet number is a replay or too old, and
    /// nothing changes then.
    pub fn accept(&mut self, packet_number: u64) -> bool {
        if !self.check(packet_number) {
            return false;
        }
        if self.words.is_none() && packet_number - self.floor >= 64 {
            self.grow();
        }
        self.slide(packet_number);
        let (word, bit) = index(packet_number);
        match &mut self.words {
            Some(words) => words[word] |= bit,
            None => self.first |= 1 << (packet_number - self.floor),
        }
        true
    }

    /// Returns the state for a successor: the lowest packet number that may still be accepted, and
    /// from there on the runs of accepted ones, each a first packet number and a count.
    #[must_use]
    pub fn checkpoint(&self) -> (u64, Vec<(u64, u64)>) {
        let lowest = self.lowest();
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for packet_number in (lowest..self.next).filter(|packet_number| self.is_marked(*packet_number)) {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == packet_number => *count += 1,
                _ => runs.push((packet_number, 1)),
            }
        }
        (lowest, runs)
    }

    /// Creates a window with the state of [`checkpoint`](Self::checkpoint); `None` if the runs are
    /// not ascending, or exceed the window.
    #[must_use]
    pub fn restore(floor: u64, runs: &[(u64, u64)]) -> Option<Self> {
        let mut window = Self {
            floor,
            ..Self::default()
        };
        let mut next = floor;
        let mut left = WINDOW + 64;
        for (first, count) in runs.iter().copied() {
            left = left.checked_sub(count)?;
            let end = first.checked_add(count).filter(|_| first >= next)?;
            for packet_number in first..end {
                window.accept(packet_number);
            }
            next = end;
        }
        Some(window)
    }

    /// The highest packet number accepted.
    #[must_use]
    pub fn highest(&self) -> Option<u64> {
        self.next.checked_sub(1)
    }

    fn lowest(&self) -> u64 {
        self.next.saturating_sub(WINDOW).max(self.floor)
    }

    fn is_marked(&self, packet_number: u64) -> bool {
        let (word, bit) = index(packet_number);
        match &self.words {
            Some(words) => words[word] & bit != 0,
            None => self.first & (1 << (packet_number - self.floor)) != 0,
        }
    }

    fn grow(&mut self) {
        let mut words = Box::new([0; WORDS]);
        for packet_number in (self.floor..self.next).filter(|&c| self.is_marked(c)) {
            let (word, bit) = index(packet_number);
            words[word] |= bit;
        }
        self.words = Some(words);
    }

    /// Makes `packet number` the upper edge, if it is above: the words in between are cleared.
    fn slide(&mut self, packet_number: u64) {
        if packet_number < self.next {
            return;
        }
        if let Some(words) = &mut self.words {
            // The word of the old edge keeps its marks; when nothing was accepted yet there is no
            // such word, and it is empty.
            let edge = self.next.saturating_sub(1) / 64;
            let ahead = (packet_number / 64 - edge).min(WORDS as u64);
            for word in 1..=ahead {
                words[((edge + word) % WORDS as u64) as usize] = 0;
            }
        }
        self.next = packet_number + 1;
    }
}

fn index(packet_number: u64) -> (usize, u64) {
    (
        (packet_number / 64 % WORDS as u64) as usize,
        1 << (packet_number % 64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn refuses_what_it_has_seen() {
        let mut window = ReplayWindow::new();
        assert!(window.accept(0));
        assert!(!window.check(0));
        assert!(!window.accept(0));
        assert!(window.accept(2));
        assert!(window.accept(1));
        assert!(!window.accept(1));
    }

    #[test]
    fn checking_changes_nothing() {
        let window = ReplayWindow::new();
        assert!(window.check(1 << 40));
        assert_eq!(window.highest(), None);
    }

    #[test]
    fn a_packet_may_be_as_late_as_the_documentation_says() {
        let mut window = ReplayWindow::new();
        window.accept(20_000);
        assert!(window.check(20_001 - 16_320));
        assert!(!window.check(20_000 - 16_320));
    }

    /// One word of the bitmap is never part of the window; otherwise sliding into it would discard
    /// its bits.
    #[test]
    fn what_was_seen_is_refused_while_the_window_slides_over_its_word() {
        let words = WORDS as u64;
        for seen in [0, 1, 62, 63] {
            let mut window = ReplayWindow::new();
            window.accept(seen);
            for next in 64..=(words + 1) * 64 {
                window.accept(next);
                assert!(!window.check(seen), "{seen} after {next}");
            }
        }
    }

    #[test]
    fn a_damaged_checkpoint_is_not_restored() {
        assert!(ReplayWindow::restore(10, &[(9, 1)]).is_none());
        assert!(ReplayWindow::restore(0, &[(5, 2), (6, 1)]).is_none());
        assert!(ReplayWindow::restore(0, &[(0, u64::MAX)]).is_none());
        assert!(ReplayWindow::restore(0, &[(u64::MAX, 1)]).is_none());
    }

    #[test]
    fn a_checkpoint_has_a_run_for_each_stretch() {
        let mut window = ReplayWindow::new();
        for packet_number in [3, 5, 4, 9, 11, 12] {
            window.accept(packet_number);
        }
        let runs = vec![(3, 3), (9, 1), (11, 2)];
        assert_eq!(window.checkpoint(), (0, runs.clone()));
        let window = ReplayWindow::restore(0, &runs).expect("ascending");
        assert_eq!(window.highest(), Some(12));
        let open: Vec<_> = (0..14)
            .filter(|packet_number| window.check(*packet_number))
            .collect();
        assert_eq!(open, [0, 1, 2, 6, 7, 8, 10, 13]);
    }

    #[test]
    fn what_is_below_the_floor_of_a_checkpoint_is_refused() {
        for runs in [&[][..], &[(1_002, 1)]] {
            let window = ReplayWindow::restore(1_000, runs).expect("ascending");
            let open: Vec<_> = (990..1_004)
                .filter(|packet_number| window.check(*packet_number))
                .collect();
            let run = if runs.is_empty() { vec![1_002] } else { vec![] };
            assert_eq!(open, [&[1_000, 1_001][..], &run, &[1_003]].concat());
            assert!(!window.clone().accept(999));
        }
    }

    #[test]
    fn a_checkpoint_holds_no_more_than_a_window() {
        assert!(ReplayWindow::restore(0, &[(0, WINDOW + 64)]).is_some());
        assert!(ReplayWindow::restore(0, &[(0, WINDOW + 65)]).is_none());
    }

    #[test]
    fn refuses_what_is_older_than_the_window() {
        let mut window = ReplayWindow::new();
        assert!(window.accept(WINDOW + 10));
        assert!(!window.accept(10));
        assert!(window.accept(11));
    }

    #[test]
    fn allocates_only_past_the_first_word() {
        let mut window = ReplayWindow::new();
        assert!((0..64).all(|packet_number| window.accept(packet_number)));
        assert!(window.words.is_none());
        assert!(window.accept(64));
        assert!(window.words.is_some());
        assert!((0..=64).all(|packet_number| !window.accept(packet_number)));
    }

    /// Remembers everything.
    #[derive(Default)]
    struct Model {
        seen: BTreeSet<u64>,
    }

    impl Model {
        fn accept(&mut self, packet_number: u64) -> bool {
            let next = self.seen.last().map_or(0, |highest| highest + 1);
            packet_number + WINDOW >= next && self.seen.insert(packet_number)
        }
    }

    fn steps() -> impl Strategy<Value = Vec<i64>> {
        let step =
            prop_oneof![8 => -20..20i64, 2 => -20_000..20_000i64, 1 => -200_000..200_000i64, 1 => Just(64)];
        prop::collection::vec(step, 1..400)
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(start in 0..100_000u64, steps in steps()) {
            let (mut window, mut model, mut at) = (ReplayWindow::new(), Model::default(), start);
            for step in steps {
                at = at.saturating_add_signed(step);
                let expected = model.accept(at);
                prop_assert_eq!(window.check(at), expected);
                prop_assert_eq!(window.accept(at), expected);
            }
        }

        #[test]
        fn a_restored_window_agrees_with_a_set(start in 0..100_000u64, steps in steps(), again in steps()) {
            let (mut window, mut model, mut at) = (ReplayWindow::new(), Model::default(), start);
            for step in steps {
                at = at.saturating_add_signed(step);
                window.accept(at);
                model.accept(at);
            }
            let (floor, runs) = window.checkpoint();
            let mut window = ReplayWindow::restore(floor, &runs).expect("what was written can be read");
            for step in again {
                at = at.saturating_add_signed(step);
                prop_assert_eq!(window.accept(at), model.accept(at));
            }
        }
    }
}
