//! Discrete events in virtual time.
//!
//! A queue of timers, each with a small payload that says what happens. A timer is registered once and then armed, re-armed
//! and cancelled without allocation; an event that happens once is a timer that ends by firing. Events of equal time fire in
//! the order in which they were armed, so a run is the same on every machine.
//!
//! ```text
//!   register -> [ idle ] -- arm --> [ armed ] -- pop --> [ idle ]        schedule -> [ armed ] -- pop --> gone
//!                  ^                 |     ^ arm: moves                                 | cancel
//!                  +----- cancel ----+-----+                                            v gone
//! ```

use hawser_units::Instant;

/// Names a timer of one [`EventQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId(u32);

/// What will happen, in order of time and, where times are equal, of arming.
///
/// The entries form a 4-ary heap: its levels are few and the four children lie beside each other in memory. A popped root stays in
/// place until the next change, because most events are followed by a timer that is armed again, which then takes its place
/// with one sift instead of two.
///
/// Cost: O(log4 n) to arm, cancel and pop; 24 bytes for an armed timer, 8 and the payload for a registered one.
#[derive(Debug)]
pub struct EventQueue<E> {
    heap: Vec<Entry>,
    /// The root has fired; its key is still not above any other, so the heap's order holds.
    is_root_spent: bool,
    timers: Vec<Timer<E>>,
    free: Vec<u32>,
    next_order: u64,
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
    happens_once: bool,
    event: E,
}

impl<E: Copy> Default for EventQueue<E> {
    fn default() -> Self {
        Self {
            heap: Vec::new(),
            is_root_spent: false,
            timers: Vec::new(),
            free: Vec::new(),
            next_order: 0,
        }
    }
}

impl<E: Copy> EventQueue<E> {
    /// A new timer that is not armed and fires `event` whenever it is.
    pub fn register(&mut self, event: E) -> TimerId {
        self.insert(event, false)
    }

    /// Lets `event` happen once, at `at`. The timer's name is void once it has fired or was cancelled.
    pub fn schedule(&mut self, at: Instant, event: E) -> TimerId {
        let timer = self.insert(event, true);
        self.arm(timer, at);
        timer
    }

    /// Sets a timer to fire at `at`, whether or not it was armed.
    ///
    /// A timer that is armed again counts as armed last among those of equal time.
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
        let position = self.timers[timer.0 as usize].position;
        if position != IDLE {
            let position = position as usize;
            if entry.is_before(&self.heap[position]) {
                self.sift_up(position, entry);
            } else {
                self.sift_down(position, entry);
            }
        } else if self.is_root_spent {
            self.is_root_spent = false;
            self.sift_down(0, entry);
        } else {
            self.heap.push(entry);
            self.sift_up(self.heap.len() - 1, entry);
        }
    }

    /// Disarms a timer; nothing happens when it is idle.
    pub fn cancel(&mut self, timer: TimerId) {
        let position = self.timers[timer.0 as usize].position;
        if position == IDLE {
            return;
        }
        self.retire(timer.0);
        let position = position as usize;
        let Some(last) = self.heap.pop() else { return };
        if position == self.heap.len() {
            return;
        }
        if last.is_before(&self.heap[position]) {
            self.sift_up(position, last);
        } else {
            self.sift_down(position, last);
        }
    }

    /// When a timer fires; `None` when it is idle.
    #[must_use]
    pub fn due(&self, timer: TimerId) -> Option<Instant> {
        let position = self.timers[timer.0 as usize].position;
        (position != IDLE).then(|| Instant::from_nanos(self.heap[position as usize].at))
    }

    /// Takes the next event that happens at or before `until`.
    pub fn pop(&mut self, until: Instant) -> Option<(Instant, E)> {
        self.settle();
        let first = *self.heap.first()?;
        if first.at > until.as_nanos() {
            return None;
        }
        let event = self.timers[first.timer as usize].event;
        self.retire(first.timer);
        self.is_root_spent = true;
        Some((Instant::from_nanos(first.at), event))
    }

    /// How many timers are armed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len() - usize::from(self.is_root_spent)
    }

    /// Whether nothing will happen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn insert(&mut self, event: E, happens_once: bool) -> TimerId {
        let timer = Timer {
            position: IDLE,
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

    /// Replaces a root that has fired.
    fn settle(&mut self) {
        if !self.is_root_spent {
            return;
        }
        self.is_root_spent = false;
        if let Some(last) = self.heap.pop()
            && !self.heap.is_empty()
        {
            self.sift_down(0, last);
        }
    }

    fn put(&mut self, position: usize, entry: Entry) {
        self.timers[entry.timer as usize].position = position as u32;
        self.heap[position] = entry;
    }

    fn sift_up(&mut self, mut position: usize, entry: Entry) {
        while position > 0 {
            let parent = (position - 1) / ARITY;
            let above = self.heap[parent];
            if !entry.is_before(&above) {
                break;
            }
            self.put(position, above);
            position = parent;
        }
        self.put(position, entry);
    }

    fn sift_down(&mut self, mut position: usize, entry: Entry) {
        loop {
            let first = position * ARITY + 1;
            let end = (first + ARITY).min(self.heap.len());
            if first >= end {
                break;
            }
            let mut least = first;
            for child in first + 1..end {
                if self.heap[child].is_before(&self.heap[least]) {
                    least = child;
                }
            }
            let below = self.heap[least];
            if !below.is_before(&entry) {
                break;
            }
            self.put(position, below);
            position = least;
        }
        self.put(position, entry);
    }
}

const ARITY: usize = 4;
const IDLE: u32 = u32::MAX;

#[cfg(test)]
mod tests;
