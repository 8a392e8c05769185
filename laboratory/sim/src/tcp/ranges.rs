/// Disjoint, sorted, non-adjacent ranges of sequence numbers.
///
/// A receiver's data beyond its cumulative acknowledgement, and the sender's knowledge of it. The
/// number of ranges is that of the holes, which is small.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    ranges: Vec<(u64, u64)>,
}

impl Ranges {
    /// Adds `start..end`; calls `on_new` for each part that was missing. Returns whether any was.
    pub(crate) fn insert(&mut self, start: u64, end: u64, mut on_new: impl FnMut(u64, u64)) -> bool {
        if start >= end {
            return false;
        }
        let first = self.ranges.partition_point(|(_, known)| *known < start);
        let (mut low, mut high, mut at, mut last) = (start, end, start, first);
        let mut has_new = false;
        while let Some((known_start, known_end)) = self.ranges.get(last).copied() {
            if known_start > end {
                break;
            }
            if at < known_start {
                on_new(at, known_start);
                has_new = true;
            }
            at = at.max(known_end);
            low = low.min(known_start);
            high = high.max(known_end);
            last += 1;
        }
        if at < end {
            on_new(at, end);
            has_new = true;
        }
        if last == first {
            self.ranges.insert(first, (low, high));
        } else {
            self.ranges[first] = (low, high);
            self.ranges.drain(first + 1..last);
        }
        has_new
    }

    /// Removes everything below `edge`; returns the edge of the range that starts at or below it,
    /// or `edge` itself.
    pub(crate) fn advance(&mut self, edge: u64) -> u64 {
        let count = self.ranges.partition_point(|(start, _)| *start <= edge);
        let reached = match count.checked_sub(1) {
            Some(last) => self.ranges[last].1.max(edge),
            None => edge,
        };
        self.ranges.drain(..count);
        reached
    }

    /// Returns the range that contains `at`.
    pub(crate) fn around(&self, at: u64) -> Option<(u64, u64)> {
        let index = self.ranges.partition_point(|(_, end)| *end <= at);
        self.ranges.get(index).copied().filter(|(start, _)| *start <= at)
    }

    pub(crate) fn iter_from_the_end(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().rev().copied()
    }

    pub(crate) fn last(&self) -> Option<(u64, u64)> {
        self.ranges.last().copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Beside a bit for each number.
        #[test]
        fn agrees_with_a_set_of_numbers(ops in prop::collection::vec((0..60_u64, 0..15_u64, any::<bool>()), 1..60)) {
            let mut ranges = Ranges::default();
            let mut model = [false; 100];
            for (start, len, advances) in ops {
                if advances {
                    let mut reached = start;
                    while model[reached as usize] { reached += 1; }
                    prop_assert_eq!(ranges.advance(start), reached);
                    model[..reached as usize].fill(false);
                    continue;
                }
                let mut fresh = Vec::new();
                let any = ranges.insert(start, start + len, |from, to| fresh.extend(from..to));
                let expected: Vec<u64> = (start..start + len).filter(|n| !model[*n as usize]).collect();
                prop_assert_eq!(any, !expected.is_empty());
                prop_assert_eq!(fresh, expected);
                model[start as usize..(start + len) as usize].fill(true);
                for n in 0..99 {
                    prop_assert_eq!(ranges.around(n).is_some(), model[n as usize]);
                }
            }
        }
    }
}
