//! Waiting times of packets and lifetime of flows: the oldest packet of all flows, and flows that
//! are no longer used.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant};

use super::{Flow, Flows, IDLE, Turns};

/// Maximum time for which a packet waits for a path.
///
/// Source: the time for which Linux's access points buffer packets of a station that sleeps
/// (`STA_TX_BUFFER_EXPIRE`).
pub const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Interval between two searches for unused flows. Source: our choice, a small part of `IDLE`,
/// which such a flow exceeds by this at most; half and twice of it change no suite of
/// docs/notebook/path-model.md, "Sensitivity", by more than 3 %.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Minimum number of remembered arrivals before departed ones are removed. Source: our choice, 1 KB
/// of entries, below which a search saves no memory; half and twice of it change no suite of
/// docs/notebook/path-model.md, "Sensitivity", by more than 3 %.
const FEW: usize = 64;

/// Arrival times of packets in order, each with the slot of its flow.
///
/// The entry of a packet stays after it was sent: an entry is valid while the head of its flow is
/// no younger. The first entry is always valid. Cost: amortised O(1) a packet; at most twice as
/// many entries as there were packets at the last search.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    entries: VecDeque<(Instant, u16)>,
    /// Number of entries at which departed ones are removed.
    search_at: usize,
}

impl<B: Copy> Flows<B> {
    pub(super) fn note_arrival(&mut self, slot: u16, since: Instant) {
        let Self { arrivals, slots, .. } = self;
        if arrivals.entries.len() >= arrivals.search_at.max(FEW) {
            arrivals.entries.retain(|entry| waits(slots, *entry));
            arrivals.search_at = 2 * arrivals.entries.len();
        }
        arrivals.entries.push_back((since, slot));
    }

    /// Handles the departure of a packet: removes entries until the first one is valid.
    pub(super) fn note_departure(&mut self) {
        let Self { arrivals, slots, .. } = self;
        while let Some(first) = arrivals.entries.front()
            && !waits(slots, *first)
        {
            arrivals.entries.pop_front();
        }
        if arrivals.entries.is_empty() {
            *arrivals = Arrivals::default();
        }
    }

    /// Returns the slot whose head has waited longest of all, and its time of arrival.
    #[must_use]
    pub fn oldest(&self) -> Option<(Instant, u16)> {
        self.arrivals.entries.front().copied()
    }

    /// Returns the slot whose head has waited longer than the maximum.
    #[must_use]
    pub fn overdue(&self, now: Instant) -> Option<u16> {
        self.oldest()
            .filter(|(since, _)| *since + LONGEST_WAIT <= now)
            .map(|(_, slot)| slot)
    }

    /// Returns when a packet will have waited too long, or flows may be expired.
    #[must_use]
    pub fn due(&self) -> Instant {
        let oldest = self
            .oldest()
            .map_or(Instant::FAR_FUTURE, |(since, _)| since + LONGEST_WAIT);
        oldest.min(self.idle_at.max(self.swept + SWEEP_EVERY))
    }

    /// Frees the slots of idle flows; meant to be called each second. `is_stuck`: nothing can be
    /// sent, so no turn of a flow detects that its queue is empty.
    pub fn sweep(&mut self, is_stuck: bool, now: Instant) {
        if now.since(self.swept) < SWEEP_EVERY || now < self.idle_at {
            return;
        }
        self.swept = now;
        if is_stuck {
            self.end_empty_turns();
        }
        self.idle_at = Instant::FAR_FUTURE;
        for (slot, entry) in self.slots.iter_mut().enumerate() {
            let Some(flow) = entry else { continue };
            if flow.turns.has_any() || now.since(flow.used) <= IDLE {
                // A moment later than the last at which it is not idle.
                self.idle_at = self.idle_at.min(flow.used + IDLE + Duration::from_nanos(1));
                continue;
            }
            self.index.remove(&flow.key);
            self.free.push(slot as u16);
            self.last = None;
            *entry = None;
        }
        if self.index.is_empty() {
            self.forget_slots();
        }
    }

    /// Takes the turns of flows that have nothing left.
    fn end_empty_turns(&mut self) {
        let Self {
            fresh, rest, slots, ..
        } = self;
        for turns in [fresh, rest] {
            turns.retain(|slot| {
                let flow = slots[usize::from(*slot)].as_ref();
                flow.is_some_and(Flow::waits)
            });
        }
        for flow in slots.iter_mut().flatten().filter(|flow| !flow.waits()) {
            flow.turns = Turns::default();
        }
    }

    /// Releases the memory of a table without flows. The sequence numbers of flows stay, because a
    /// receiver may remember them.
    fn forget_slots(&mut self) {
        self.slots = Vec::new();
        self.free = Vec::new();
        self.index.shrink_to_fit();
        self.fresh.shrink_to_fit();
        self.rest.shrink_to_fit();
    }

    /// Empties all queues and returns their buffers.
    pub fn drain(&mut self) -> Vec<B> {
        let mut buffers = Vec::new();
        for flow in self.slots.iter_mut().flatten() {
            buffers.extend(flow.queue.drain(..).map(|run| run.buffer));
            flow.backlog = 0;
            flow.turns = Turns::default();
        }
        self.fresh.clear();
        self.rest.clear();
        self.backlog = 0;
        self.arrivals = Arrivals::default();
        buffers
    }
}

/// Returns whether the packet of an entry, or another of its flow that arrived at the same time,
/// still waits.
fn waits<B>(slots: &[Option<Flow<B>>], (since, slot): (Instant, u16)) -> bool {
    let flow = slots.get(usize::from(slot)).and_then(Option::as_ref);
    flow.and_then(|flow| flow.queue.front())
        .is_some_and(|head| head.since <= since)
}
