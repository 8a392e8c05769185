//! The flows of one session, found by number and kept in the order of their last use.

use hawser_units::{Instant, Sequence};

use super::flow::Flow;

/// Maps flow numbers to [`Flow`]s; the number of flows is bounded.
///
/// Cost: O(1) for everything; two bytes for every flow number up to the highest seen.
#[derive(Debug)]
pub(super) struct Table<T> {
    /// Positions in `slots`, by flow number.
    index: Vec<u16>,
    slots: Vec<Flow<T>>,
    free: Vec<u16>,
    newest: u16,
    oldest: u16,
}

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        Self {
            index: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Finds a flow and notes its use.
    pub(super) fn find(&mut self, flow: u16, now: Instant) -> Option<usize> {
        let slot = *self.index.get(usize::from(flow))?;
        if slot == NONE {
            return None;
        }
        self.slots[usize::from(slot)].used = now;
        if slot != self.newest {
            self.unlink(slot);
            self.link(slot);
        }
        Some(usize::from(slot))
    }

    /// Adds a flow that is not in the table.
    pub(super) fn add(&mut self, id: u16, first: Sequence, now: Instant) -> usize {
        let flow = Flow::new(id, first, now);
        let slot = if let Some(slot) = self.free.pop() {
            self.slots[usize::from(slot)] = flow;
            slot
        } else {
            self.slots.push(flow);
            (self.slots.len() - 1) as u16
        };
        if self.index.len() <= usize::from(id) {
            self.index.resize(usize::from(id) + 1, NONE);
        }
        self.index[usize::from(id)] = slot;
        self.link(slot);
        usize::from(slot)
    }

    pub(super) fn remove(&mut self, slot: usize) {
        let id = self.slots[slot].id;
        self.index[usize::from(id)] = NONE;
        self.unlink(slot as u16);
        self.slots[slot].held = None;
        self.free.push(slot as u16);
    }

    /// The flow that was used longest ago.
    pub(super) fn oldest(&self) -> Option<usize> {
        (self.oldest != NONE).then_some(usize::from(self.oldest))
    }

    fn unlink(&mut self, slot: u16) {
        let Flow { newer, older, .. } = self.slots[usize::from(slot)];
        match self.slots.get_mut(usize::from(newer)) {
            Some(flow) => flow.older = older,
            None => self.newest = older,
        }
        match self.slots.get_mut(usize::from(older)) {
            Some(flow) => flow.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link(&mut self, slot: u16) {
        let second = core::mem::replace(&mut self.newest, slot);
        let flow = &mut self.slots[usize::from(slot)];
        flow.newer = NONE;
        flow.older = second;
        match self.slots.get_mut(usize::from(second)) {
            Some(flow) => flow.newer = slot,
            None => self.oldest = slot,
        }
    }
}

impl<T> core::ops::Index<usize> for Table<T> {
    type Output = Flow<T>;

    fn index(&self, slot: usize) -> &Flow<T> {
        &self.slots[slot]
    }
}

impl<T> core::ops::IndexMut<usize> for Table<T> {
    fn index_mut(&mut self, slot: usize) -> &mut Flow<T> {
        &mut self.slots[slot]
    }
}

/// Marks the absence of a slot: a table has at most this many flows. Source: the flow of an inner
/// header has 16 bits ([`hawser_wire::data::Inner`]).
pub(super) const NONE: u16 = u16::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_order_of_use() {
        let mut table = Table::<()>::new();
        let at = Instant::from_nanos;
        for id in [7, 3, 9] {
            table.add(id, Sequence(0), at(u64::from(id)));
        }
        assert!(table.find(7, at(10)).is_some());
        assert!(table.find(4, at(10)).is_none());
        let mut order = Vec::new();
        while let Some(slot) = table.oldest() {
            order.push(table[slot].id);
            table.remove(slot);
        }
        assert_eq!(order, [3, 9, 7]);
        assert_eq!(table.len(), 0);
        table.add(3, Sequence(5), at(11));
        assert_eq!(table.len(), 1);
    }
}
