//! Discrete events in virtual time.
//!
//! A queue of timers, each with a small payload that describes the event. A timer is registered
//! once and then armed, re-armed and cancelled without allocation; a scheduled event is a timer
//! that ends when it fires. Events with equal times fire in the order in which they were armed, so
//! a run is the same on every machine.
//!
//! ```text
//!   register -> [ idle ] -- arm --> [ armed ] -- pop --> [ idle ]        schedule -> [ armed ] -- pop --> gone
//!                  ^                 |     ^ arm: moves                                 | cancel
//!                  +----- cancel ----+-----+                                            v gone
//! ```

use hawser_units::Instant;

/// Identifies a timer of one [`EventQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId(u32);

/// Future events, ordered by time and, at equal times, by arming.
///
/// Timers may be divided among *lanes*, each with an order of its own. [`Self::pop`] takes timers
/// of the lane entered last. A new queue has one lane.
///
/// Cost: O(log4 n) in the lane's armed timers to arm, cancel and pop; 24 bytes for an armed timer,
/// 8 bytes and the payload for a registered one.
#[derive(Debug)]
pub struct EventQueue<E> {
    lanes: Vec<Heap>,
    lane: u16,
    timers: Vec<Timer<E>>,
    free: Vec<u32>,
    next_order: u64,
}

/// Armed timers of one lane.
///
/// A 4-ary heap: it has few levels, and the four children are adjacent in memory. A fired root
/// stays in place until the next change: most events arm another timer, which then replaces the
/// root with one sift instead of two.
#[derive(Debug, Default)]
struct Heap {
    entries: Vec<Entry>,
    /// Set if the root has fired; its key is still minimal, so the heap is valid.
    is_root_spent: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u64,
    order: u64,
    timer: u32,
}

impl Entry {
    fn is_before(&self, other: &Self) -> bool {
        self.at < other.at || (self.at == other.at && self.order < other.order)
    }
}

#[derive(Clone, Copy, Debug)]
struct Timer<E> {
    position: u32,
    lane: u16,
    happens_once: bool,
    event: E,
}

impl<E: Copy> Default for EventQueue<E> {
    fn default() -> Self {
        Self {
            lanes: vec![Heap::default()],
            lane: 0,
            timers: Vec::new(),
            free: Vec::new(),
            next_order: 0,
        }
    }
}

impl<E: Copy> EventQueue<E> {
    /// Registers an idle timer in the present lane, which fires `event`.
    pub fn register(&mut self, event: E) -> TimerId {
        self.insert(event, false)
    }

    /// Schedules `event` once, at `at`. The id is invalid after the timer has fired or was
    /// cancelled.
    pub fn schedule(&mut self, at: Instant, event: E) -> TimerId {
        let timer = self.insert(event, true);
        self.arm(timer, at);
        timer
    }

    /// Arms or re-arms a timer to fire at `at`.
    ///
    /// A re-armed timer counts as armed last among timers with equal times.
    ///
    /// # Panics
    /// When the timer is not of this queue.
    pub fn arm(&mut self, timer: TimerId, at: Instant) {
        let entry = Entry {
            at: at.as_nanos(),
            order: self.next_order,
            timer: timer.0,
        };
        self.next_order += 1;
        let Timer { lane, position, .. } = self.timers[timer.0 as usize];
        self.lanes[usize::from(lane)].arm(position, entry, &mut self.timers);
    }

    /// Disarms a timer; does nothing if it is idle.
    pub fn cancel(&mut self, timer: TimerId) {
        let Timer { lane, position, .. } = self.timers[timer.0 as usize];
        if position == IDLE {
            return;
        }
        self.retire(timer.0);
        self.lanes[usize::from(lane)].remove(position as usize, &mut self.timers);
    }

    /// Returns when a timer fires; `None` if it is idle.
    #[must_use]
    pub fn due(&self, timer: TimerId) -> Option<Instant> {
        let Timer { lane, position, .. } = self.timers[timer.0 as usize];
        let heap = &self.lanes[usize::from(lane)];
        (position != IDLE).then(|| Instant::from_nanos(heap.entries[position as usize].at))
    }

    /// Removes and returns the present lane's next event at or before `until`.
    pub fn pop(&mut self, until: Instant) -> Option<(Instant, E)> {
        let heap = &mut self.lanes[usize::from(self.lane)];
        heap.settle(&mut self.timers);
        let first = *heap.entries.first()?;
        if first.at > until.as_nanos() {
            return None;
        }
        heap.is_root_spent = true;
        let event = self.timers[first.timer as usize].event;
        self.retire(first.timer);
        Some((Instant::from_nanos(first.at), event))
    }

    /// Returns the number of armed timers, in all lanes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lanes.iter().map(Heap::len).sum()
    }

    /// Returns whether no timer is armed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Divides all timers among `lanes` lanes, by their events, and enters the first lane.
    ///
    /// # Panics
    /// When `lane_of` returns a lane that does not exist.
    pub fn divide(&mut self, lanes: u16, lane_of: impl Fn(&E) -> u16) {
        let mut armed: Vec<Entry> = Vec::new();
        for mut heap in std::mem::take(&mut self.lanes) {
            heap.settle(&mut self.timers);
            armed.append(&mut heap.entries);
        }
        self.lane = 0;
        self.lanes.resize_with(usize::from(lanes.max(1)), Heap::default);
        for timer in &mut self.timers {
            timer.lane = lane_of(&timer.event);
        }
        for entry in armed {
            let lane = self.timers[entry.timer as usize].lane;
            self.lanes[usize::from(lane)].arm(IDLE, entry, &mut self.timers);
        }
    }

    /// Makes `lane` the present one.
    pub fn enter(&mut self, lane: u16) {
        self.lane = lane;
    }

    fn insert(&mut self, event: E, happens_once: bool) -> TimerId {
        let timer = Timer {
            position: IDLE,
            lane: self.lane,
            happens_once,
            event,
        };
        if let Some(free) = self.free.pop() {
            self.timers[free as usize] = timer;
            return TimerId(free);
        }
        let id = u32::try_from(self.timers.len()).expect("fewer than 2^32 timers exist at once");
        self.timers.push(timer);
        TimerId(id)
    }

    fn retire(&mut self, timer: u32) {
        let known = &mut self.timers[timer as usize];
        known.position = IDLE;
        if known.happens_once {
            self.free.push(timer);
        }
    }
}

impl Heap {
    fn len(&self) -> usize {
        self.entries.len() - usize::from(self.is_root_spent)
    }

    /// Puts an entry in, in place of the one at `position` if there is one.
    fn arm<E>(&mut self, position: u32, entry: Entry, timers: &mut [Timer<E>]) {
        if position != IDLE {
            self.replace(position as usize, entry, timers);
        } else if self.is_root_spent {
            self.is_root_spent = false;
            self.sift_down(0, entry, timers);
        } else {
            self.entries.push(entry);
            self.sift_up(self.entries.len() - 1, entry, timers);
        }
    }

    fn remove<E>(&mut self, position: usize, timers: &mut [Timer<E>]) {
        let last = self.entries.pop().expect("an armed timer has an entry");
        if position < self.entries.len() {
            self.replace(position, last, timers);
        }
    }

    fn replace<E>(&mut self, position: usize, entry: Entry, timers: &mut [Timer<E>]) {
        if entry.is_before(&self.entries[position]) {
            self.sift_up(position, entry, timers);
        } else {
            self.sift_down(position, entry, timers);
        }
    }

    /// Removes a root that has fired.
    fn settle<E>(&mut self, timers: &mut [Timer<E>]) {
        if !self.is_root_spent {
            return;
        }
        self.is_root_spent = false;
        if let Some(last) = self.entries.pop()
            && !self.entries.is_empty()
        {
            self.sift_down(0, last, timers);
        }
    }

    fn put<E>(&mut self, position: usize, entry: Entry, timers: &mut [Timer<E>]) {
        timers[entry.timer as usize].position = position as u32;
        self.entries[position] = entry;
    }

    fn sift_up<E>(&mut self, mut position: usize, entry: Entry, timers: &mut [Timer<E>]) {
        while position > 0 {
            let parent = (position - 1) / ARITY;
            let above = self.entries[parent];
            if !entry.is_before(&above) {
                break;
            }
            self.put(position, above, timers);
            position = parent;
        }
        self.put(position, entry, timers);
    }

    fn sift_down<E>(&mut self, mut position: usize, entry: Entry, timers: &mut [Timer<E>]) {
        loop {
            let first = position * ARITY + 1;
            let end = (first + ARITY).min(self.entries.len());
            if first >= end {
                break;
            }
            let mut least = first;
            for child in first + 1..end {
                if self.entries[child].is_before(&self.entries[least]) {
                    least = child;
                }
            }
            let below = self.entries[least];
            if !below.is_before(&entry) {
                break;
            }
            self.put(position, below, timers);
            position = least;
        }
        self.put(position, entry, timers);
    }
}

/// Children of an entry of a heap. Source: our choice; four children of 24 bytes lie in two cache
/// lines, and the heap is half as deep as with two.
const ARITY: usize = 4;
/// Position of a timer that is not armed. Source: the largest number.
const IDLE: u32 = u32::MAX;

#[cfg(test)]
mod tests;
