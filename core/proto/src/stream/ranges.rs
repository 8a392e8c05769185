//! Sets of bytes of a stream.

use std::collections::VecDeque;
use std::ops::Range;

/// A set of offsets, as ordered ranges that neither overlap nor touch.
///
/// Cost: O(log ranges) to find one, O(ranges) to insert or remove in the middle, and O(1) at both
/// ends, where nearly everything happens; memory grows with the number of ranges and is reused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    ranges: VecDeque<(u64, u64)>,
    total: u64,
}

impl Ranges {
    /// Returns the ranges as pairs of a start and an end, the lowest first.
    pub(crate) fn to_pairs(&self) -> Vec<(u64, u64)> {
        self.ranges.iter().copied().collect()
    }

    /// Creates a set from pairs; `None` if one is empty or outside `within`.
    pub(crate) fn of_pairs(pairs: &[(u64, u64)], within: &Range<u64>) -> Option<Self> {
        let mut set = Self::default();
        for (start, end) in pairs {
            if start >= end || *start < within.start || *end > within.end {
                return None;
            }
            set.insert(*start..*end);
        }
        Some(set)
    }

    /// Returns whether the set is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Bytes in the set.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The lowest range.
    pub(crate) fn first(&self) -> Option<Range<u64>> {
        self.ranges.front().map(|(start, end)| *start..*end)
    }

    /// Iterates over the ranges, the lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(start, end)| *start..*end)
    }

    /// Adds a range; returns the number of bytes that were not in the set.
    pub(crate) fn insert(&mut self, range: Range<u64>) -> u64 {
        let Range { mut start, mut end } = range;
        if start >= end {
            return 0;
        }
        // Those that touch it are joined with it.
        let from = self.ranges.partition_point(|known| known.1 < start);
        let until = self.ranges.partition_point(|known| known.0 <= end);
        let mut known_bytes = 0;
        for (known_start, known_end) in self.ranges.range(from..until) {
            known_bytes += known_end - known_start;
            start = start.min(*known_start);
            end = end.max(*known_end);
        }
        match until - from {
            0 => self.ranges.insert(from, (start, end)),
            1 => self.ranges[from] = (start, end),
            _ => {
                self.ranges[from] = (start, end);
                self.ranges.drain(from + 1..until);
            }
        }
        let added = end - start - known_bytes;
        self.total += added;
        added
    }

    /// Removes a range from the set.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let from = self.ranges.partition_point(|known| known.1 <= range.start);
        let until = self.ranges.partition_point(|known| known.0 < range.end);
        if from >= until {
            return;
        }
        let head = (self.ranges[from].0, range.start);
        let tail = (range.end, self.ranges[until - 1].1);
        let before: u64 = self
            .ranges
            .range(from..until)
            .map(|known| known.1 - known.0)
            .sum();
        let mut after = 0;
        let mut kept = [None, None];
        for (slot, part) in kept.iter_mut().zip([head, tail]) {
            if part.0 < part.1 {
                after += part.1 - part.0;
                *slot = Some(part);
            }
        }
        self.total -= before - after;
        let kept = || kept.into_iter().flatten();
        let (count, needed) = (until - from, kept().count());
        for (at, part) in kept().take(count).enumerate() {
            self.ranges[from + at] = part;
        }
        if needed > count {
            self.ranges.insert(from + 1, tail);
        } else if needed < count {
            self.ranges.drain(from + needed..until);
        }
    }

    /// Returns the end of the range that contains or ends at `offset`; if there is none, `offset`.
    pub(crate) fn reaches(&self, offset: u64) -> u64 {
        let at = self.ranges.partition_point(|known| known.1 < offset);
        match self.ranges.get(at) {
            Some((start, end)) if *start <= offset => (*end).max(offset),
            _ => offset,
        }
    }

    /// The parts of a range that are not in the set, the lowest first.
    pub(crate) fn gaps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let from = self.ranges.partition_point(|known| known.1 <= range.start);
        let mut at = range.start;
        let mut known = self.ranges.range(from..);
        std::iter::from_fn(move || {
            while at < range.end {
                let (start, end) = known.next().copied().unwrap_or((range.end, range.end));
                let gap = at..start.min(range.end);
                at = end.max(at);
                if !gap.is_empty() {
                    return Some(gap);
                }
            }
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_that_touch_are_one() {
        let mut set = Ranges::default();
        assert_eq!(set.insert(5..10), 5);
        assert_eq!(set.insert(20..30), 10);
        assert_eq!(set.insert(10..20), 10);
        assert_eq!((set.first(), set.len()), (Some(5..30), 1));
        set.remove(8..12);
        assert_eq!(set.iter().collect::<Vec<_>>(), [5..8, 12..30]);
        assert_eq!(
            (set.total(), set.reaches(12), set.reaches(8), set.reaches(9)),
            (21, 30, 8, 9)
        );
        assert_eq!(set.gaps(0..40).collect::<Vec<_>>(), [0..5, 8..12, 30..40]);
    }

    proptest! {
        #[test]
        fn a_set_holds_what_a_naive_one_holds(
            steps in proptest::collection::vec((any::<bool>(), 0..60u64, 0..20u64), 0..60)
        ) {
            let mut set = Ranges::default();
            let mut naive = [false; 96];
            for (is_insertion, start, len) in steps {
                let range = start..start + len;
                let cells = &mut naive[start as usize..(start + len) as usize];
                if is_insertion {
                    let fresh = cells.iter().filter(|cell| !**cell).count() as u64;
                    prop_assert_eq!(set.insert(range), fresh);
                } else {
                    set.remove(range);
                }
                cells.fill(is_insertion);
                let held: Vec<u64> = set.iter().flatten().collect();
                let expected: Vec<u64> = (0..96).filter(|at| naive[*at as usize]).collect();
                prop_assert_eq!(&held, &expected);
                prop_assert_eq!(set.total(), expected.len() as u64);
                let missing: Vec<u64> = set.gaps(0..96).flatten().collect();
                prop_assert_eq!(missing.len() + held.len(), 96);
                let ranges: Vec<_> = set.iter().collect();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
        }
    }
}
