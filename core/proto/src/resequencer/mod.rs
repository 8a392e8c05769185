//! Resequencer: restores the order of the flows of one session at the receiving side.
//!
//! A flow starts with its first packet, or with sequence number zero if the first packet is close
//! to it. When a packet is missing, later packets are held until it arrives or is abandoned. Flows
//! do not wait for each other. A packet below the expected one is delivered at once, late, and
//! exactly once.
//!
//! ```text
//!                first packet                     a gap
//!   (unknown) ----------------> in order --------------------> holding
//!       ^                        |    ^                          |
//!       |  idle, or the least    |    |  the gap fills, or is    |
//!       +--- recently used <-----+    +---- given up <-----------+
//! ```
//!
//! Condition for abandoning a gap: let S be the send time of the first packet after the gap; the
//! missing packets were sent no later. They may still arrive over a path while neither of these
//! conditions holds:
//!
//! - a packet that the path transferred *after* S has arrived (allowing for the path's reordering):
//!   the path has passed them, so they are lost;
//! - S plus the path's delay, four deviations and a margin has passed: the path does not answer. A
//!   transfer waits a little longer ([`Arrived::is_bulk`]).
//!
//! When no path may deliver them, and no retransmission is expected
//! ([`Resequencer::expect_retransmissions`]), the gap is abandoned. So a gap on a busy session
//! lasts as long as the delays of its paths differ, without a configured timeout. Bounds: a packet
//! is held for at most [`Config::max_hold`]; a packet of a transfer for at most the time of a
//! retransmission, or for two seconds while gaps are being filled one after another.
//!
//! Failure: a wrong estimate or a clock that jumps costs order, never a packet.

mod delay;
mod flow;
mod reorder_buffer;
mod table;
#[cfg(test)]
mod tests;

use hawser_units::{Duration, Instant, PathId, Sequence};

use delay::PathDelay;
use flow::Late;
use reorder_buffer::{Packet, ReorderBuffer};
use table::Table;

/// The bounds of a [`Resequencer`].
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Maximum number of packets held in all; beyond it the flow that has waited longest gives up
    /// its gap.
    pub capacity: usize,
    /// Maximum distance of a buffered packet past the expected one of its flow; beyond it the flow
    /// gives up its oldest gaps.
    pub flow_capacity: u32,
    /// Maximum number of flows, at most 65,534; beyond it the least recently used flow is removed.
    pub max_flows: usize,
    /// Time added to each deadline, for the receiver's own scheduling and batching.
    pub margin: Duration,
    /// Maximum time for which a packet is held. Packets of a transfer may be held longer, if its
    /// retransmissions take longer or its gaps are being filled.
    pub max_hold: Duration,
    /// Time without packets after which a flow is removed.
    pub idle: Duration,
}

impl Config {
    /// Returns bounds without reordering: each packet is delivered on arrival, exactly once. A flow
    /// that may have one packet ahead of a gap gives the gap up at once.
    #[must_use]
    pub fn none() -> Self {
        Self {
            flow_capacity: 1,
            ..Self::default()
        }
    }
}

impl Default for Config {
    /// 16,384 packets are 180 ms at 1 Gbit/s; 400 ms is beyond what a TCP sender waits before it
    /// retransmits anyway (RFC 6298 section 2.4 and Linux's 200 ms minimum).
    fn default() -> Self {
        Self {
            capacity: 16_384,
            flow_capacity: 8_192,
            max_flows: 4_096,
            margin: Duration::from_millis(2),
            max_hold: Duration::from_millis(400),
            idle: Duration::from_secs(30),
        }
    }
}

/// Event counters of a [`Resequencer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets delivered without being held.
    pub in_order: u64,
    /// Packets that were held.
    pub held: u64,
    /// Packets that arrived after their gap was given up, or that precede the first of their flow,
    /// and were delivered at once.
    pub late: u64,
    /// Packets refused because they had been delivered or were held already.
    pub duplicates: u64,
    /// Packets refused because they were too old to distinguish from duplicates.
    pub stale: u64,
    /// Gaps given up.
    pub gaps_given_up: u64,
    /// Flows whose numbering restarted.
    pub restarts: u64,
    /// The longest that a packet was held.
    pub longest_hold: Duration,
}

/// A packet as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived<T> {
    /// The flow's number.
    pub flow: u16,
    /// Sequence number of the packet in the flow.
    pub sequence: Sequence,
    /// Send time: microseconds of the sender's clock, wrapping.
    pub sent_us: u32,
    /// Marks a packet of a transfer, whose receiver cannot use what follows a gap: it tolerates a
    /// pausing path better than a loss, which halves its rate.
    pub is_bulk: bool,
    /// The handle of its buffer.
    pub item: T,
}

/// Puts the flows of one session back in order.
///
/// For every batch received: [`on_arrival`](Self::on_arrival) for each packet of any kind;
/// [`insert`](Self::insert) for each that has an order; then [`release`](Self::release) once. At
/// [`poll_timeout`](Self::poll_timeout): [`handle_timeout`](Self::handle_timeout). Packets are
/// delivered through the `out` argument, those of one flow in order except late ones.
///
/// `T` is a handle to a packet's buffer; nothing else is known of it.
///
/// Cost: O(1) per in-order packet; O(1) amortised per buffered one; `release` O(paths) for each
/// waiting flow, of which it examines at most 64. Memory for buffered packets is allocated when a
/// flow has its first gap and released when the flow is in order again: with the default bounds at
/// most 25 MB, when each buffered packet lies far from all others.
#[derive(Debug)]
pub struct Resequencer<T> {
    config: Config,
    paths: Vec<PathDelay>,
    flows: Table<T>,
    /// Slots of the flows that hold packets.
    waiting: Vec<usize>,
    /// Position at which the next examination begins if there are too many flows for one.
    rotation: usize,
    /// Emptied memory of flows that held packets.
    #[expect(clippy::vec_box, reason = "the boxes move to the flows as they are")]
    spare: Vec<Box<ReorderBuffer<T>>>,
    /// Packets held in all.
    len: usize,
    /// Time until which retransmissions may arrive, and the duration of one.
    retransmissions: Option<(Instant, Duration)>,
    /// The earliest that a gap is to be given up; never too late, perhaps too early.
    due: Option<Instant>,
    counters: Counters,
    /// Number of flows examined.
    steps: u64,
}

impl<T> Resequencer<T> {
    /// Creates a resequencer without flows and paths.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            paths: Vec::new(),
            flows: Table::new(),
            waiting: Vec::new(),
            rotation: 0,
            spare: Vec::new(),
            len: 0,
            retransmissions: None,
            due: None,
            counters: Counters::default(),
            steps: 0,
        }
    }

    /// Returns the event counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns how many waiting flows were examined: the work that is not proportional to packets.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the number of held packets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no packet is buffered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of flows.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Records the arrival of an authenticated packet of any kind on `path`, with the send time
    /// `sent_us`.
    ///
    /// For a batch of one path, the first and the last packet are sufficient.
    pub fn on_arrival(&mut self, path: PathId, sent_us: u32, now: Instant) {
        match self.paths.iter_mut().find(|known| known.id == path) {
            Some(known) => known.on_arrival(sent_us, now),
            None => self.paths.push(PathDelay::new(path, sent_us, now)),
        }
    }

    /// Removes a path that was closed or declared dead: no packets are expected from it.
    pub fn forget_path(&mut self, path: PathId) {
        self.paths.retain(|known| known.id != path);
    }

    /// Returns when a skipped packet that was sent at a time or later counts as lost: now, or later
    /// if the path delivers nothing more; `None` for an unknown path.
    #[must_use]
    pub fn overtaken_at(&self, path: PathId, sent_us: u32, now: Instant) -> Option<Instant> {
        let known = self.paths.iter().find(|known| known.id == path)?;
        Some(known.overtaken_at(sent_us, self.config.margin, now))
    }

    /// Returns when a path that delivers nothing more counts as silent beyond its own delays;
    /// `None` if it is unknown, or if no packet waits for it.
    #[must_use]
    pub fn silent_at(&self, path: PathId) -> Option<Instant> {
        if self.is_empty() {
            return None;
        }
        let known = self.paths.iter().find(|known| known.id == path)?;
        Some(known.silent_at())
    }

    /// Sets the time until which packets that were reported missing may arrive again, and the
    /// duration of a retransmission; `None` if none is expected. Gaps stay open for them.
    pub fn expect_retransmissions(&mut self, retransmissions: Option<(Instant, Duration)>) {
        self.retransmissions = retransmissions;
    }

    /// Inserts a packet and adds the packets that can now be delivered to `out`.
    ///
    /// Returns the item if the packet is refused: it is a duplicate, or too old to distinguish from
    /// one.
    #[must_use = "a refused item's buffer must be freed"]
    pub fn insert(&mut self, packet: Arrived<T>, now: Instant, out: &mut Vec<T>) -> Option<T> {
        let Arrived { flow, sequence, .. } = packet;
        let slot = match self.flows.find(flow, now) {
            Some(slot) => slot,
            None => self.open(flow, sequence, now, out),
        };
        let state = &mut self.flows[slot];
        state.is_bulk = packet.is_bulk;
        let ahead = sequence.distance_from(state.expected);
        if ahead == 0 {
            state.advance();
            self.counters.in_order += 1;
            out.push(packet.item);
            if state.held.is_some() {
                state.filled = now;
                self.drain_ready(slot, now, out);
            }
            return None;
        }
        if ahead < 0 {
            self.late(slot, packet, now, out)
        } else {
            self.hold(slot, packet, now, out)
        }
    }

    /// Gives up every gap that no path can still fill: once after each batch.
    pub fn release(&mut self, now: Instant, out: &mut Vec<T>) {
        if self.waiting.is_empty() {
            self.due = None;
            return;
        }
        let mut due = Instant::FAR_FUTURE;
        let (mut at, mut left) = self.first_examination(EXAMINED);
        while left > 0
            && let Some(&slot) = self.waiting.get(at)
        {
            self.steps += 1;
            match self.deadline(slot, now) {
                Some(deadline) => {
                    due = due.min(deadline);
                    at += 1;
                    left -= 1;
                }
                // The flow's next gap follows; if there is none, another flow has taken its
                // position in the list.
                None => self.give_up(slot, now, out),
            }
        }
        if self.waiting.len() > EXAMINED {
            self.rotation = at;
            due = due.min(now + RETRY_INTERVAL);
        }
        self.due = (!self.waiting.is_empty()).then_some(due);
    }

    /// Returns where an examination of the waiting flows begins and how many it covers: all, or
    /// `most` in rotation.
    fn first_examination(&mut self, most: usize) -> (usize, usize) {
        if self.waiting.len() <= most {
            return (0, usize::MAX);
        }
        if self.rotation >= self.waiting.len() {
            self.rotation = 0;
        }
        (self.rotation, most)
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let idle = self
            .flows
            .oldest()
            .map(|slot| self.flows[slot].used + self.config.idle);
        match (self.due, idle) {
            (Some(due), Some(idle)) => Some(due.min(idle)),
            (due, idle) => due.or(idle),
        }
    }

    /// Gives up overdue gaps and removes idle flows.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut Vec<T>) {
        self.release(now, out);
        while let Some(slot) = self.flows.oldest() {
            if now < self.flows[slot].used + self.config.idle {
                break;
            }
            self.close(slot, now, out);
        }
    }

    /// Ends the session: adds all held packets to `out` and removes all flows.
    pub fn drain(&mut self, now: Instant, out: &mut Vec<T>) {
        while let Some(slot) = self.flows.oldest() {
            self.close(slot, now, out);
        }
    }

    fn open(&mut self, flow: u16, first: Sequence, now: Instant, out: &mut Vec<T>) -> usize {
        let full = self.flows.len() >= self.config.max_flows.clamp(1, usize::from(table::NONE));
        if let (true, Some(slot)) = (full, self.flows.oldest()) {
            self.close(slot, now, out);
        }
        // Numbers begin at zero: what is missing of the first flight has been overtaken.
        let first = if first.0 < FIRST_FLIGHT {
            Sequence(0)
        } else {
            first
        };
        self.flows.add(flow, first, now)
    }

    fn close(&mut self, slot: usize, now: Instant, out: &mut Vec<T>) {
        self.flush(slot, now, out);
        self.flows.remove(slot);
    }

    fn late(&mut self, slot: usize, packet: Arrived<T>, now: Instant, out: &mut Vec<T>) -> Option<T> {
        let sequence = packet.sequence;
        match self.flows[slot].take_late(sequence) {
            Late::Missing => self.counters.late += 1,
            Late::Duplicate => {
                self.counters.duplicates += 1;
                return Some(packet.item);
            }
            Late::Stale => {
                self.counters.stale += 1;
                return Some(packet.item);
            }
            Late::Restart => {
                self.counters.restarts += 1;
                self.flush(slot, now, out);
                self.flows[slot].restart(sequence);
                self.flows[slot].advance();
            }
        }
        out.push(packet.item);
        None
    }

    fn hold(&mut self, slot: usize, packet: Arrived<T>, now: Instant, out: &mut Vec<T>) -> Option<T> {
        let sequence = packet.sequence;
        let span = self.config.flow_capacity.max(1);
        if sequence.distance_from(self.flows[slot].expected) >= span.cast_signed() {
            self.slide(slot, Sequence(sequence.0.wrapping_sub(span - 1)), now, out);
        }
        let state = &mut self.flows[slot];
        let ahead = sequence.distance_from(state.expected).unsigned_abs();
        if ahead == 0 {
            // Sliding ended right before it.
            state.advance();
            self.counters.in_order += 1;
            out.push(packet.item);
            return None;
        }
        let held = match &mut state.held {
            Some(held) => held,
            none => {
                state.waiting_at = self.waiting.len();
                self.waiting.push(slot);
                none.insert(self.spare.pop().unwrap_or_else(|| Box::new(ReorderBuffer::new())))
            }
        };
        let packet = Packet {
            item: packet.item,
            sent_us: packet.sent_us,
            at: now,
        };
        if let Err(item) = held.insert(sequence, ahead, packet) {
            self.counters.duplicates += 1;
            return Some(item);
        }
        self.len += 1;
        self.counters.held += 1;
        if self.len > self.config.capacity {
            self.relieve(now, out);
        }
        if self.waiting.len() > MAX_WAITING
            && let Some(slot) = self.longest()
        {
            self.flush(slot, now, out);
        }
        self.due = Some(now); // Settled by `release` at the end of the batch.
        None
    }

    /// Gives up the gaps of a flow until it expects `to` or a later packet.
    fn slide(&mut self, slot: usize, to: Sequence, now: Instant, out: &mut Vec<T>) {
        while let Some(held) = &self.flows[slot].held {
            if !held.first.is_before(to) {
                break;
            }
            self.give_up(slot, now, out);
        }
        if self.flows[slot].expected.is_before(to) {
            self.counters.gaps_given_up += 1;
            self.flows[slot].skip_to(to);
            self.drain_ready(slot, now, out);
        }
    }

    /// Frees memory: the flow whose packet has been held longest gives up its gap; returns false if
    /// no packet is held.
    pub(crate) fn relieve(&mut self, now: Instant, out: &mut Vec<T>) -> bool {
        let longest = self.longest();
        if let Some(slot) = longest {
            self.give_up(slot, now, out);
        }
        longest.is_some()
    }

    /// The flow whose packet has been held longest, of those that one examination covers.
    fn longest(&mut self) -> Option<usize> {
        let (from, most) = self.first_examination(EXAMINED);
        let mut longest = None;
        for &slot in self.waiting[from..].iter().take(most) {
            self.steps += 1;
            let flow = &mut self.flows[slot];
            let oldest = flow.held.as_mut().and_then(|held| held.oldest(flow.expected));
            if let Some((_, at)) = oldest
                && longest.is_none_or(|(since, _)| at < since)
            {
                longest = Some((at, slot));
            }
        }
        if self.waiting.len() > most {
            self.rotation = from + most;
        }
        longest.map(|(_, slot)| slot)
    }

    /// Gives up all gaps of a flow.
    fn flush(&mut self, slot: usize, now: Instant, out: &mut Vec<T>) {
        while self.flows[slot].held.is_some() {
            self.give_up(slot, now, out);
        }
    }

    /// Gives up the first gap of a flow that holds packets, and delivers what follows it.
    fn give_up(&mut self, slot: usize, now: Instant, out: &mut Vec<T>) {
        let flow = &mut self.flows[slot];
        if let Some(held) = &flow.held {
            self.counters.gaps_given_up += 1;
            let first = held.first;
            flow.skip_to(first);
        }
        self.drain_ready(slot, now, out);
    }

    /// Delivers the held packets that have become in order.
    fn drain_ready(&mut self, slot: usize, now: Instant, out: &mut Vec<T>) {
        let flow = &mut self.flows[slot];
        let Some(mut held) = flow.held.take() else { return };
        while let Some(packet) = held.take(flow.expected) {
            flow.advance();
            self.len -= 1;
            self.counters.longest_hold = self.counters.longest_hold.max(now.since(packet.at));
            out.push(packet.item);
        }
        if held.len > 0 {
            held.seek_first(flow.expected);
            flow.held = Some(held);
            return;
        }
        let place = flow.waiting_at;
        self.waiting.swap_remove(place);
        if let Some(&moved) = self.waiting.get(place) {
            self.flows[moved].waiting_at = place;
        }
        if self.spare.len() < SPARE {
            held.clear();
            self.spare.push(held);
        }
    }

    /// Returns when the first gap of a waiting flow is to be given up; `None` for now.
    fn deadline(&mut self, slot: usize, now: Instant) -> Option<Instant> {
        let flow = &mut self.flows[slot];
        let held = flow.held.as_mut()?;
        let sent_us = held.first_sent_us()?;
        let (_, since) = held.oldest(flow.expected)?;
        let pause = if flow.is_bulk { PAUSE } else { Duration::ZERO };
        // Gap after gap is being filled: packets of a failed path arrive over another one, and take
        // as long as that needs.
        let filling = flow.filled + pause;
        let longest = match self.retransmissions {
            _ if filling > now => LONGEST_FILLING,
            Some((_, takes)) if flow.is_bulk => self.config.max_hold.max(takes),
            _ => self.config.max_hold,
        };
        let last = since + longest;
        if last <= now {
            return None;
        }
        let live = || self.paths.iter().filter(|path| path.is_live(now));
        // A retransmission that gets lost is retransmitted once more.
        let retransmitted = self
            .retransmissions
            .map(|(until, takes)| until.min(since + takes * 3).min(last));
        // A packet that the failed path dropped with others is retransmitted as well.
        let swallowed = live()
            .map(|path| path.silent_at())
            .filter(|at| flow.is_bulk && *at <= now)
            .map(|at| (at + PAUSE).min(last))
            .max();
        let retransmitted = retransmitted.max(swallowed).filter(|until| *until > now);
        let mut alone = live();
        if let (Some(only), None) = (alone.next(), alone.next())
            && only.is_in_order()
        {
            return retransmitted;
        }
        let wait = live()
            .filter(|path| !path.has_passed(sent_us))
            .map(|path| path.remaining(sent_us, self.config.margin + pause, now))
            .max();
        let wait = wait.map(|wait| (now + wait).max(filling).min(last));
        retransmitted.max(wait.filter(|until| *until > now))
    }
}

/// Pause of a path beyond its known delay after which it counts as silent for a transfer: shorter
/// than the time after which a TCP sender retransmits a whole window (RFC 6298, and a queue at the
/// entrance), so that late packets and retransmissions over another path fill the gap. Chosen by a
/// sweep (docs/notebook/traces.md).
const PAUSE: Duration = Duration::from_millis(350);

/// Maximum time for which a packet of a transfer is buffered while gaps before it are being filled.
/// Source: the experiment of docs/notebook/outages.md used it; other values were not tried.
const LONGEST_FILLING: Duration = Duration::from_secs(2);

/// Packets that a flow sends before its first round trip is over: the window of RFC 6928 several
/// times.
const FIRST_FLIGHT: u32 = 64;

/// Number of emptied buffers that are kept for the next gaps: flows rarely have gaps at the same
/// time. Source: our choice; with fewer, more gaps allocate memory, and more only take memory.
const SPARE: usize = 8;

/// Maximum number of flows that one examination covers, in rotation if more wait. Source: a bound
/// on the cost of a batch against a sender that causes gaps in thousands of flows; the number was
/// not measured.
const EXAMINED: usize = 64;

/// Interval until the next examination if one does not cover all waiting flows. Source: timers of
/// the driver have a resolution of 1 ms.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Flows that wait at once; with one more, the one that has waited longest of some gives up its
/// gaps. Source: a bound on the memory of a session; the number was not measured.
const MAX_WAITING: usize = 1_024;
