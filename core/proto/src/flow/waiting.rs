//! How long packets wait and flows stay: the oldest packet of all flows, and flows that are not
//! used any more.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant};

use super::{Flow, Flows, IDLE, Turns};

/// No packet waits longer for a path to take it.
///
/// Source: the time for which Linux's access points keep packets of a station that sleeps
/// (`STA_TX_BUFFER_EXPIRE`).
pub const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Between two searches for flows that are not used any more.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// So many arrivals are remembered before those that have gone are looked for.
const FEW: usize = 64;

/// When packets came in, in this order, each with the slot of its flow.
///
/// A packet that has gone leaves its entry: an entry counts while the head of its flow is no
/// younger. The first one always counts.
/// Cost: amortised O(1) a packet; at most twice as many entries as there were packets at the last
/// search.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    entries: VecDeque<(Instant, u16)>,
    /// With so many entries those that have gone are looked for.
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

    /// A packet has gone: lets the first entry be one that counts.
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

    /// The slot whose head has waited longest of all, and since when.
    #[must_use]
    pub fn oldest(&self) -> Option<(Instant, u16)> {
        self.arrivals.entries.front().copied()
    }

    /// The slot whose head has waited longer than any packet is to wait.
    #[must_use]
    pub fn overdue(&self, now: Instant) -> Option<u16> {
        self.oldest()
            .filter(|(since, _)| *since + LONGEST_WAIT <= now)
            .map(|(_, slot)| slot)
    }

    /// When a packet will have waited too long, or flows may be swept.
    #[must_use]
    pub fn due(&self) -> Instant {
        let oldest = self
            .oldest()
            .map_or(Instant::FAR_FUTURE, |(since, _)| since + LONGEST_WAIT);
        oldest.min(self.idle_at.max(self.swept + SWEEP_EVERY))
    }

    /// Frees the slots of flows that have been idle; cheap enough to be called each second.
    /// `is_stuck`: nothing can be sent, so that no turn comes which would find out that a flow has
    /// nothing left.
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

    /// Gives the memory of a table without flows back. The places of flows stay: a receiver may
    /// remember them.
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

/// Whether the packet of an entry, or one of its flow that came in at the same time, still waits.
fn waits<B>(slots: &[Option<Flow<B>>], (since, slot): (Instant, u16)) -> bool {
    let flow = slots.get(usize::from(slot)).and_then(Option::as_ref);
    flow.and_then(|flow| flow.queue.front())
        .is_some_and(|head| head.since <= since)
}
