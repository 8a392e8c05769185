//! Packets of one flow that wait for a gap before them.

use std::collections::VecDeque;

use hawser_units::{Instant, Sequence};

/// Number of adjacent positions for which memory is allocated at once. A packet far ahead of the
/// others takes no more. Source: our choice, 800 bytes; more waste memory for a single late packet,
/// fewer allocate more often. A power of two, since positions are computed from it for each packet.
const PAGE: usize = 32;
/// Number of emptied pages that a flow keeps. Source: our choice, 3 KB, for a gap of 128 positions
/// without an allocation; more take memory of each flow that has had a gap.
const SPARE: usize = 4;

/// Held packets of one flow, by sequence number.
///
/// Cost: O(1) a packet; finding the next one behind a gap O(span / 32). Memory: 800 bytes for each
/// 32 adjacent sequence numbers of which at least one is held, and 8 bytes for 16 to 32 sequence
/// numbers between the first and the last.
#[derive(Debug)]
pub(super) struct ReorderBuffer<T> {
    /// Pages by sequence number over [`PAGE`], modulo their number, which is a power of two.
    pages: Vec<Option<Box<Page<T>>>>,
    spare: Vec<Box<Page<T>>>,
    pub(super) len: usize,
    /// The lowest sequence held.
    pub(super) first: Sequence,
    /// Arrivals in order; entries of delivered packets are skipped when they reach the front.
    arrivals: VecDeque<(Sequence, Instant)>,
}

#[derive(Debug)]
struct Page<T> {
    /// Sequence numbers of its packets, divided by [`PAGE`].
    number: u32,
    packets: [Option<Packet<T>>; PAGE],
    len: usize,
}

#[derive(Debug)]
pub(super) struct Packet<T> {
    pub(super) item: T,
    pub(super) sent_us: u32,
    pub(super) at: Instant,
}

impl<T> ReorderBuffer<T> {
    pub(super) fn new() -> Self {
        Self {
            pages: Vec::new(),
            spare: Vec::new(),
            len: 0,
            first: Sequence(0),
            arrivals: VecDeque::new(),
        }
    }

    /// Prepares an empty buffer for another flow, and keeps its memory.
    pub(super) fn clear(&mut self) {
        debug_assert_eq!(self.len, 0);
        self.arrivals.clear();
    }

    /// Stores a packet that is `ahead` positions after the expected one; returns it if it is stored
    /// already.
    pub(super) fn insert(&mut self, sequence: Sequence, ahead: u32, packet: Packet<T>) -> Result<(), T> {
        self.grow(ahead as usize + 1);
        let at = self.page_of(sequence);
        let page = match &mut self.pages[at] {
            Some(page) => page,
            none => {
                let mut page = self.spare.pop().unwrap_or_else(Page::new);
                page.number = number(sequence);
                none.insert(page)
            }
        };
        let place = &mut page.packets[index(sequence)];
        if place.is_some() {
            return Err(packet.item);
        }
        if self.len == 0 || sequence.is_before(self.first) {
            self.first = sequence;
        }
        self.arrivals.push_back((sequence, packet.at));
        *place = Some(packet);
        page.len += 1;
        self.len += 1;
        Ok(())
    }

    /// Removes the packet with this sequence number, which is at the front or absent.
    pub(super) fn take(&mut self, sequence: Sequence) -> Option<Packet<T>> {
        if self.len == 0 {
            return None;
        }
        let at = self.page_of(sequence);
        let page = self.pages[at].as_mut()?;
        let packet = page.packets[index(sequence)].take()?;
        page.len -= 1;
        self.len -= 1;
        if page.len == 0 {
            let page = self.pages[at].take();
            if self.spare.len() < SPARE {
                self.spare.extend(page);
            }
        }
        Some(packet)
    }

    /// Finds the lowest sequence held, at `from` or after.
    pub(super) fn seek_first(&mut self, from: Sequence) {
        if self.len == 0 || !self.first.is_before(from) {
            return;
        }
        let mut at = from;
        for _ in 0..=self.pages.len() {
            if let Some(page) = &self.pages[self.page_of(at)] {
                let begin = index(at);
                let found = page.packets[begin..].iter().position(Option::is_some);
                if let Some(found) = found {
                    self.first = at.add(found as u32);
                    return;
                }
            }
            at = at.add((PAGE - index(at)) as u32);
        }
        self.first = from;
    }

    /// Returns when the first buffered packet was sent.
    pub(super) fn first_sent_us(&self) -> Option<u32> {
        let page = self.pages.get(self.page_of(self.first))?.as_ref()?;
        page.packets[index(self.first)]
            .as_ref()
            .map(|packet| packet.sent_us)
    }

    /// Returns the packet that has been held longest; `expected` is the next sequence number that
    /// the flow expects.
    pub(super) fn oldest(&mut self, expected: Sequence) -> Option<(Sequence, Instant)> {
        while self.arrivals.front()?.0.is_before(expected) {
            self.arrivals.pop_front();
        }
        self.arrivals.front().copied()
    }

    /// Returns the number of allocated pages.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.pages.iter().flatten().count() + self.spare.len()
    }

    fn page_of(&self, sequence: Sequence) -> usize {
        number(sequence) as usize & self.pages.len().wrapping_sub(1)
    }

    /// Makes room for pages of `span` sequence numbers, for every position of the first one in its
    /// page.
    fn grow(&mut self, span: usize) {
        let needed = span.div_ceil(PAGE) + 1;
        if needed <= self.pages.len() {
            return;
        }
        let len = needed.next_power_of_two();
        let mut pages: Vec<_> = (0..len).map(|_| None).collect();
        for page in self.pages.drain(..).flatten() {
            let at = page.number as usize & (len - 1);
            pages[at] = Some(page);
        }
        self.pages = pages;
    }
}

impl<T> Page<T> {
    fn new() -> Box<Self> {
        Box::new(Self {
            number: 0,
            packets: [const { None }; PAGE],
            len: 0,
        })
    }
}

fn number(sequence: Sequence) -> u32 {
    sequence.0 / PAGE as u32
}

fn index(sequence: Sequence) -> usize {
    sequence.0 as usize % PAGE
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn packet(item: u32) -> Packet<u32> {
        Packet {
            item,
            sent_us: item,
            at: Instant::ZERO,
        }
    }

    #[test]
    fn a_packet_far_ahead_takes_one_page() {
        let mut held = ReorderBuffer::new();
        assert!(held.insert(Sequence(8_191), 8_191, packet(1)).is_ok());
        assert_eq!(held.memory(), 1);
        assert!(held.pages.len() <= 512);
        assert!(held.take(Sequence(8_191)).is_some());
        assert_eq!(held.memory(), 1, "kept for the next gap");
    }

    #[test]
    fn no_more_than_a_few_emptied_pages_are_kept() {
        let mut held = ReorderBuffer::new();
        for n in 1..10 {
            assert!(held.insert(Sequence(n * 32), n * 32, packet(n)).is_ok());
        }
        assert_eq!(held.memory(), 9);
        for n in 1..10 {
            assert!(held.take(Sequence(n * 32)).is_some());
        }
        assert_eq!(held.memory(), SPARE);
    }

    proptest! {
        #[test]
        fn holds_what_a_map_holds(start: u32, ahead in prop::collection::vec(1u32..8_192, 1..200), skips in 0usize..40) {
            let mut expected = Sequence(start);
            let (mut held, mut model) = (ReorderBuffer::new(), BTreeMap::new());
            for (n, ahead) in ahead.into_iter().enumerate() {
                let n = n as u32;
                let sequence = expected.add(ahead);
                let is_new = held.insert(sequence, ahead, packet(n)).is_ok();
                let far = sequence.distance_from(Sequence(start));
                prop_assert_eq!(is_new, !model.contains_key(&far));
                model.entry(far).or_insert(n);
                prop_assert_eq!(held.first.distance_from(Sequence(start)), *model.keys().next().expect("one"));
                if n as usize % 40 == skips {
                    // The gap is given up, and what follows delivered.
                    expected = held.first;
                    while let Some(packet) = held.take(expected) {
                        let far = expected.distance_from(Sequence(start));
                        prop_assert_eq!(model.remove(&far), Some(packet.item));
                        expected = expected.add(1);
                    }
                    held.seek_first(expected);
                    prop_assert_eq!(held.len, model.len());
                    if let Some((far, item)) = model.iter().next() {
                        prop_assert_eq!(held.first.distance_from(Sequence(start)), *far);
                        prop_assert_eq!(held.first_sent_us(), Some(*item));
                    }
                }
                prop_assert!(held.memory() <= model.len() + SPARE);
            }
        }
    }
}
