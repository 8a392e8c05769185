//! Flow table: five-tuples, their classes, and the queue of each flow at the tunnel's entrance.
//!
//! A flow receives its congestion signal from its own queue at the entrance (CoDel: a drop, or a
//! mark if the flow supports ECN), never from a loss on a path. Deficit round robin serves the
//! queues, new flows first, so a sparse flow passes the queue of a download.
//!
//! Source: RFC 8289 (CoDel), RFC 8290 (FQ-CoDel). Deviates: the target is tens of milliseconds,
//! because the queue belongs to one flow and must feed all paths across the difference of their
//! delays.

pub mod behaviour;
mod checkpoint;
mod classes;
mod codel;
mod deadline;
mod hash;
mod run;
mod streams;
mod waiting;

use std::collections::{HashMap, VecDeque};

use hawser_units::{Duration, Instant, Rate, Sequence};
use hawser_wire::compression::{CONTEXT_SLOTS, Form};
use hawser_wire::data::Class;
use hawser_wire::inner::{FlowKey, Summary, protocol, tcp_flag};
use hawser_wire::layer::Layer;
use hawser_wire::stream::StreamId;

use behaviour::{Behaviour, CALL_BUDGET, Meter, VIDEO_BUDGET};
pub use classes::code_points;
use classes::{BY_BEHAVIOUR, CONFERENCING, TELEPHONY, classify, order_is_free};
pub use codel::Codel;
use deadline::Deadlines;
use hash::Seeded;
pub use run::Run;
use run::run_bytes;
use waiting::Arrivals;
pub use waiting::LONGEST_WAIT;

/// Slots in a table. A new flow of a full table replaces one that is idle. Source: a bound on
/// memory, some 12 MB with the queues of the flows.
pub const MAX_FLOWS: usize = 16_384;
/// Time without packets after which a flow gives up its slot. Source: the time for which a NAT has
/// to remember a UDP mapping, RFC 4787 REQ-5.
const IDLE: Duration = Duration::from_secs(120);
/// Slots of a full table that a new flow examines to find one to replace: enough to find an idle
/// flow in any ordinary mix. Source: our choice, a bound on work; half and twice of it change no
/// suite of docs/notebook/path-model.md, "Sensitivity", by more than 3 %. Fewer more often replace
/// a flow in use, more cost time for each new flow of an attacker.
const REPLACE_AMONG: usize = 64;
/// Bytes after which a TCP flow is bulk. Half and twice of it change goodput by at most 0.6 %, and
/// the share beside CUBIC by 1 and -2 % (docs/notebook/path-model.md, "Sensitivity").
const BULK_AFTER: u64 = 256 * 1024;
/// Bytes that a flow may send in its turn. Source: two full packets, as in the queue discipline
/// `fq` (linux/net/sched/sch_fq.c).
const QUANTUM: i64 = 3_000;
/// Packets of a layered stream that are examined to find one whose layer may be sent. Source: a
/// picture at 10 Mbit/s, 25 a second, has 36 packets of 1,400 bytes.
const LAYERED_EXAMINED: usize = 64;

/// State of one flow.
#[derive(Debug)]
pub struct Flow<B> {
    /// Five-tuple of all its packets.
    pub key: FlowKey,
    /// Present class.
    pub class: Class,
    /// Reason for its class.
    pub why: &'static str,
    /// Set if the order of the packets does not matter to the flow.
    pub unordered: bool,
    /// Sequence number of its next packet.
    pub next: Sequence,
    /// Next sequence number of unordered packets, which have a sequence number space of their own.
    pub next_unordered: Sequence,
    /// Inner bytes sent in all.
    pub sent: u64,
    /// Inner bytes sent on each open path.
    pub by_path: Vec<(u16, u64)>,
    queue: VecDeque<Run<B>>,
    backlog: u64,
    deficit: i64,
    /// Positions in the two lists of turns.
    turns: Turns,
    codel: Codel,
    used: Instant,
    /// Marks a TCP connection that this side has ended.
    ended: bool,
    /// Measures the flow's rate, where its class follows from that.
    meter: Option<Meter>,
    /// The time for which its packets are of use, beyond the delay of the nearest path; `None`: for
    /// ever.
    budget: Option<Duration>,
    /// The time for which its packets are of use, by a rule.
    deadline: Option<Duration>,
    /// The rules have been asked.
    is_ruled: bool,
    /// Packets sent, and those dropped because they would have arrived too late.
    packets: u64,
    late: u64,
    /// The stream that takes this flow's turns, and how much of it may be sent now, which is part
    /// of the backlog.
    stream: Option<(StreamId, u64)>,
    /// Time from which bytes of the stream have waited without a pause.
    backlogged_since: Instant,
}

impl<B: Copy> Flow<B> {
    /// The packet to send next.
    #[must_use]
    pub fn head(&self) -> Option<&Run<B>> {
        self.queue.front()
    }

    /// The packets that wait, in their order.
    pub fn waiting_runs(&self) -> impl Iterator<Item = &Run<B>> {
        self.queue.iter()
    }

    /// Bytes waiting.
    #[must_use]
    pub fn backlog(&self) -> u64 {
        self.backlog
    }

    /// Returns how late packets may arrive, relative to the delay of the fastest path; `None` if
    /// late packets are useful without a limit.
    #[must_use]
    pub fn budget(&self) -> Option<Duration> {
        self.budget
    }

    /// Returns whether it is still unknown if the flow is a call or a transfer.
    #[must_use]
    pub fn may_be_call(&self) -> bool {
        self.class == Class::Realtime && self.meter.is_some_and(|meter| meter.is_new())
    }

    /// Returns whether its rate is that of a call, so that all of it may be sent twice.
    #[must_use]
    pub fn is_call(&self) -> bool {
        self.budget == Some(CALL_BUDGET)
    }

    /// Arrival rate of its packets in the last second; zero if its class does not follow from the
    /// rate. Units: bit/s of inner packets.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.meter.map_or(Rate::ZERO, |meter| meter.rate())
    }

    /// Packets sent, and packets dropped because they would have arrived too late.
    #[must_use]
    pub fn sent_and_late(&self) -> (u64, u64) {
        (self.packets, self.late)
    }

    /// Records an arriving packet.
    fn on_packet(&mut self, bytes: u64, now: Instant) {
        let Some(meter) = &mut self.meter else {
            return;
        };
        let Some(behaviour) = meter.on_bytes(bytes, now) else {
            return;
        };
        if self.deadline.is_none() {
            self.why = behaviour.why();
        }
        let has_deadline = self.deadline.is_some();
        self.budget = match behaviour {
            Behaviour::Call => Some(CALL_BUDGET),
            Behaviour::Video => Some(VIDEO_BUDGET),
            Behaviour::Transfer if has_deadline => Some(VIDEO_BUDGET),
            Behaviour::Transfer => {
                // As TCP: spread over all paths, and in order.
                (self.class, self.unordered, self.meter) = (Class::Bulk, false, None);
                None
            }
        };
    }

    /// Returns the runs that may become the head.
    fn candidates(&self) -> impl Iterator<Item = &Run<B>> {
        self.queue.iter().take(LAYERED_EXAMINED)
    }

    fn move_to_head(&mut self, at: usize) {
        if let Some(run) = self.queue.remove(at) {
            self.queue.push_front(run);
        }
    }
}

/// Position of a flow in the lists of turns.
///
/// A flow whose queue becomes empty keeps its position in the old list until its turn comes, and
/// with it the rest of its share of the round. A packet that arrives before that is sent from the
/// new list while the share lasts. RFC 8290 lets it wait for the turn of the old list: with 300
/// flows, a ping every 20 ms then waits for a part of each round, 72 ms at 100 Mbit/s.
#[derive(Clone, Copy, Debug, Default)]
struct Turns {
    fresh: bool,
    rest: bool,
}

impl Turns {
    fn has_any(self) -> bool {
        self.fresh || self.rest
    }
}

/// Reason why a packet was not queued, or was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Full queue of the flow.
    QueueFull,
    /// No slot is free, and every flow that a new one could replace has packets waiting.
    TableFull,
}

/// Table of all flows of a session in the sending direction.
///
/// Cost: O(1) a packet, a bounded search for a new flow in a full table; memory is bounded by
/// [`MAX_FLOWS`] slots and by the driver's buffers.
#[derive(Debug)]
pub struct Flows<B> {
    slots: Vec<Option<Flow<B>>>,
    free: Vec<u16>,
    /// Next sequence numbers of each slot, in order and unordered.
    sequences: Vec<(Sequence, Sequence)>,
    index: HashMap<FlowKey, u16, Seeded>,
    fresh: VecDeque<u16>,
    rest: VecDeque<u16>,
    backlog: u64,
    /// Arrival times of waiting packets.
    arrivals: Arrivals,
    deadlines: Deadlines,
    swept: Instant,
    /// Earliest time at which a flow may have been idle for long enough.
    idle_at: Instant,
    last: Option<(FlowKey, u16)>,
    /// Position at which the next search for a flow to replace begins.
    hand: usize,
}

impl<B: Copy> Flows<B> {
    /// Creates an empty table. `seed` keeps outsiders from choosing flows that collide.
    #[must_use]
    pub fn new(seed: u64, now: Instant) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            sequences: Vec::new(),
            index: HashMap::with_hasher(Seeded(seed)),
            fresh: VecDeque::new(),
            rest: VecDeque::new(),
            backlog: 0,
            arrivals: Arrivals::default(),
            deadlines: Deadlines::default(),
            swept: now,
            idle_at: Instant::FAR_FUTURE,
            last: None,
            hand: 0,
        }
    }

    /// Bytes waiting in all queues.
    #[must_use]
    pub fn backlog(&self) -> u64 {
        self.backlog
    }

    /// The flow in a slot.
    #[must_use]
    pub fn get(&self, slot: u16) -> Option<&Flow<B>> {
        self.slots.get(usize::from(slot))?.as_ref()
    }

    /// Returns all flows in order of their slots.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &Flow<B>)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(slot, flow)| Some((slot as u16, flow.as_ref()?)))
    }

    /// Returns the slot of a flow that is in the table: it has sent a packet recently.
    #[must_use]
    pub fn slot(&self, key: &FlowKey) -> Option<u16> {
        self.index.get(key).copied()
    }

    /// Returns how many connections are open: TCP connections that this side has not ended and that
    /// are not streams, and UDP flows that have sent a packet since `since`.
    #[must_use]
    pub fn open_since(&self, since: Instant) -> usize {
        let goes_on = |flow: &Flow<B>| match flow.key.protocol {
            protocol::TCP => !flow.ended && !flow.is_stream(),
            protocol::UDP => flow.used >= since,
            _ => false,
        };
        self.slots.iter().flatten().filter(|flow| goes_on(flow)).count()
    }

    fn slot_of(&mut self, summary: &Summary, now: Instant) -> Option<u16> {
        if let Some((key, slot)) = self.last.filter(|(key, _)| *key == summary.key) {
            debug_assert_eq!(self.index.get(&key), Some(&slot), "the last flow is in the table");
            return Some(slot);
        }
        let slot = match self.index.get(&summary.key) {
            Some(slot) => *slot,
            None => self.open(summary, now)?,
        };
        self.last = Some((summary.key, slot));
        Some(slot)
    }

    fn open(&mut self, summary: &Summary, now: Instant) -> Option<u16> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < MAX_FLOWS => {
                self.slots.push(None);
                if self.sequences.len() < self.slots.len() {
                    self.sequences.push((Sequence(0), Sequence(0)));
                }
                (self.slots.len() - 1) as u16
            }
            None => self.replace()?,
        };
        let (class, why) = classify(summary);
        let unordered = order_is_free(summary);
        let is_realtime = class == Class::Realtime && unordered;
        self.slots[usize::from(slot)] = Some(Flow {
            class,
            why,
            unordered,
            meter: (is_realtime && why == BY_BEHAVIOUR).then(|| Meter::new(now)),
            budget: match why {
                TELEPHONY if unordered => Some(CALL_BUDGET),
                CONFERENCING if unordered => Some(VIDEO_BUDGET),
                _ => None,
            },
            ..self.new_flow(slot, summary.key, now)
        });
        self.index.insert(summary.key, slot);
        self.idle_at = self.idle_at.min(now + IDLE);
        Some(slot)
    }

    /// A flow that has sent nothing; the caller sets its class.
    fn new_flow(&self, slot: u16, key: FlowKey, now: Instant) -> Flow<B> {
        let (next, next_unordered) = self.sequences[usize::from(slot)];
        Flow {
            key,
            class: Class::Bulk,
            why: "",
            unordered: true,
            next,
            next_unordered,
            sent: 0,
            by_path: Vec::new(),
            queue: VecDeque::new(),
            backlog: 0,
            deficit: 0,
            turns: Turns::default(),
            codel: Codel::default(),
            used: now,
            ended: false,
            meter: None,
            budget: None,
            deadline: None,
            is_ruled: false,
            packets: 0,
            late: 0,
            stream: None,
            backlogged_since: now,
        }
    }

    /// Takes the slot of a flow without waiting packets: among the examined ones, the one that has
    /// been idle longest.
    fn replace(&mut self) -> Option<u16> {
        let looked_at = (self.hand..self.hand + REPLACE_AMONG).map(|at| at % self.slots.len());
        let used = |at: usize| {
            self.slots[at]
                .as_ref()
                .filter(|flow| !flow.turns.has_any())
                .map(|flow| flow.used)
        };
        let (_, slot) = looked_at.filter_map(|at| Some((used(at)?, at))).min()?;
        self.hand = (self.hand + REPLACE_AMONG) % self.slots.len();
        let gone = self.slots[slot].take()?;
        self.index.remove(&gone.key);
        self.last = None;
        Some(slot as u16)
    }

    /// Queues a packet at the end of its flow. `limit`: bytes that one flow may have waiting.
    ///
    /// # Errors
    /// [`Refusal`]: nothing was changed, the buffer is the caller's.
    pub fn enqueue(
        &mut self,
        summary: &Summary,
        run: Run<B>,
        limit: u64,
        now: Instant,
    ) -> Result<(), Refusal> {
        let slot = self.slot_of(summary, now).ok_or(Refusal::TableFull)?;
        let flow = self.slots[usize::from(slot)]
            .as_mut()
            .expect("an indexed slot is filled");
        let bytes = run_bytes(&run);
        if flow.backlog + bytes > limit && flow.backlog > 0 {
            return Err(Refusal::QueueFull);
        }
        if !flow.is_ruled {
            flow.set_deadline(self.deadlines.of(summary), now);
        }
        flow.used = now;
        flow.ended = summary.tcp_flags & (tcp_flag::FIN | tcp_flag::RST) != 0
            || (flow.ended && summary.tcp_flags & tcp_flag::SYN == 0);
        if run.layer.is_some() && flow.class != Class::Layered {
            flow.class = Class::Layered;
            flow.why = "it has layer marks";
            (flow.meter, flow.budget) = (None, None);
        }
        flow.on_packet(bytes, now);
        let was_empty = flow.queue.is_empty();
        flow.backlog += bytes;
        self.backlog += bytes;
        flow.queue.push_back(run);
        if !flow.turns.has_any() {
            flow.deficit = QUANTUM;
        }
        // A flow that has some of its share of this round left is served before those that have
        // not: it sends less than its share, however many flows a round has.
        if !flow.turns.fresh && (!flow.turns.rest || (was_empty && flow.deficit > 0)) {
            flow.turns.fresh = true;
            self.fresh.push_back(slot);
        }
        self.note_arrival(slot, run.since);
        Ok(())
    }

    /// Bytes that are sent until all waiting packets of a slot have been sent, as flows take turns.
    #[must_use]
    pub fn backlog_until(&self, slot: u16) -> u64 {
        let own = self.get(slot).map_or(0, Flow::backlog);
        own.saturating_mul(self.waiting() as u64).min(self.backlog)
    }

    /// Returns the number of waiting flows.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.fresh.len() + self.rest.len()
    }

    /// Returns the slot of the flow whose turn is `skip` positions after the first; new flows come
    /// first.
    #[must_use]
    pub fn turn(&mut self, skip: usize) -> Option<u16> {
        let (queue, at) = match skip.checked_sub(self.fresh.len()) {
            None => (&self.fresh, skip),
            Some(at) => (&self.rest, at),
        };
        queue.get(at).copied()
    }

    /// Makes the next packet of a layer not in `waiting` (bit i is layer i) the head of its flow:
    /// the layers of a stream are sub-flows, and a layer that waits for its paths does not block
    /// the others. Returns whether there is one among the first [`LAYERED_EXAMINED`], in a flow
    /// whose order is free.
    pub fn bring_forward(&mut self, slot: u16, waiting: u64) -> bool {
        let waits = |run: &Run<B>| run.layer.is_none_or(|layer| waiting & layer_bit(layer) != 0);
        let flow = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut);
        flow.filter(|flow| flow.unordered).is_some_and(|flow| {
            let Some(at) = flow.candidates().position(|run| !waits(run)) else {
                return false;
            };
            flow.move_to_head(at);
            true
        })
    }

    /// Makes the packet that arrived first the head of its flow again: the age of the head is that
    /// of the queue.
    pub fn bring_oldest_forward(&mut self, slot: u16) {
        let flow = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut);
        if let Some(flow) = flow {
            let oldest = flow.candidates().enumerate().min_by_key(|(_, run)| run.since);
            if let Some((at, _)) = oldest {
                flow.move_to_head(at);
            }
        }
    }

    /// Drops or marks the head of a flow if it has waited too long and is not exempt. Returns a
    /// buffer to free, if that was its last segment, and whether anything was dropped.
    pub fn police(
        &mut self,
        slot: u16,
        target: Duration,
        is_exempt: bool,
        now: Instant,
    ) -> (Option<B>, bool) {
        let Some(flow) = self.slots[usize::from(slot)].as_mut() else {
            return (None, false);
        };
        let Some(run) = flow.queue.front_mut() else {
            return (None, false);
        };
        // Sent pieces of a packet would be useless without the others.
        if run.mark || run.begun.is_some() {
            return (None, false);
        }
        // The last packet of a queue is never dropped: nothing behind it would tell the sender.
        if is_exempt || flow.backlog <= u64::from(run.cut.packet_len()) {
            flow.codel.pardon();
            return (None, false);
        }
        if !flow.codel.on_dequeue(now.since(run.since), target, now) {
            return (None, false);
        }
        if run.ecn_capable {
            run.mark = true;
            // Its headers are its own.
            run.context = None;
            return (None, false);
        }
        (self.skip(slot, 1), true)
    }

    /// Drops `count` segments at the head of a flow. Returns its buffer after the last segment.
    pub fn skip(&mut self, slot: u16, count: u16) -> Option<B> {
        let head = self.slots[usize::from(slot)].as_mut()?.queue.front_mut()?;
        // The following segment is no longer at the position of its context.
        head.context = None;
        self.advance(slot, count)
    }

    /// Counts packets of a flow that are dropped because they would arrive too late.
    pub fn note_late(&mut self, slot: u16, count: u64) {
        if let Some(flow) = self.slots[usize::from(slot)].as_mut() {
            flow.late += count;
        }
    }

    /// Makes the segment at the head of a flow the compression context of the following segments,
    /// if this saves bytes.
    pub fn compress(&mut self, slot: u16) {
        let head = self.slots[usize::from(slot)]
            .as_mut()
            .and_then(|flow| flow.queue.front_mut());
        let Some(run) = head.filter(|run| run.left() > 1 && run.checksum_partial && !run.mark) else {
            return;
        };
        if slot < CONTEXT_SLOTS && run.form(run.next) == Form::Whole {
            run.context = Some(run.next);
        }
    }

    /// Removes `count` segments at the head of a flow. Returns its buffer after the last segment.
    pub fn advance(&mut self, slot: u16, count: u16) -> Option<B> {
        let flow = self.slots[usize::from(slot)].as_mut()?;
        let run = flow.queue.front_mut()?;
        let before = run_bytes(run);
        run.next += count;
        run.mark = false;
        run.begun = None;
        let done = run.left() == 0;
        let after = if done { 0 } else { run_bytes(run) };
        flow.backlog -= before - after;
        self.backlog -= before - after;
        if !done {
            return None;
        }
        let buffer = flow.queue.pop_front().map(|run| run.buffer);
        self.note_departure();
        buffer
    }

    /// Records that the segment at the head of a flow has been sent up to a byte, in pieces.
    pub fn on_piece(&mut self, slot: u16, to: u16, place: Sequence) {
        let flow = self.slots[usize::from(slot)].as_mut();
        if let Some(run) = flow.and_then(|flow| flow.queue.front_mut()) {
            run.begun = Some((to, place));
        }
    }

    /// Removes a path that is closed permanently. Its number is not used again, so flows keep no
    /// record of it: the records of a flow that uses hundreds of networks in its life stay small.
    pub fn forget_path(&mut self, path: u16) {
        for flow in self.slots.iter_mut().flatten() {
            flow.by_path.retain(|(id, _)| *id != path);
        }
    }

    /// Accounts for `count` segments of `bytes` in all sent on `path`, and returns the first of
    /// their sequence numbers.
    pub fn on_sent(
        &mut self,
        slot: u16,
        (count, unordered): (u16, bool),
        bytes: u64,
        path: u16,
        now: Instant,
    ) -> Sequence {
        let flow = self.slots[usize::from(slot)]
            .as_mut()
            .expect("a flow that sends is in its slot");
        let next = if unordered {
            &mut flow.next_unordered
        } else {
            &mut flow.next
        };
        let first = *next;
        *next = first.add(u32::from(count));
        self.sequences[usize::from(slot)] = (flow.next, flow.next_unordered);
        flow.sent += bytes;
        flow.packets += u64::from(count);
        flow.used = now;
        flow.deficit -= bytes as i64;
        match flow.by_path.iter_mut().find(|(id, _)| *id == path) {
            Some((_, total)) => *total += bytes,
            None => flow.by_path.push((path, bytes)),
        }
        if flow.class == Class::Interactive && flow.key.protocol == protocol::TCP && flow.sent > BULK_AFTER {
            flow.class = Class::Bulk;
            flow.why = "has sent more than 256 KB";
        }
        first
    }

    /// Refunds bytes that a flow has sent, so that they do not count against its share.
    pub fn refund(&mut self, slot: u16, bytes: u64) {
        if let Some(flow) = self.slots[usize::from(slot)].as_mut() {
            flow.deficit += bytes as i64;
        }
    }

    /// Returns whether a flow has sent more than its share: a run is sent as a whole and charged to
    /// the flow's next turns.
    #[must_use]
    pub fn is_in_debt(&self, slot: u16) -> bool {
        self.get(slot).is_some_and(|flow| flow.deficit <= 0)
    }

    /// Ends the turn of the flow at `skip` if it has used up its share or has nothing to send.
    pub fn end_turn(&mut self, skip: usize) {
        let fresh = skip < self.fresh.len();
        let alone = self.waiting() == 1;
        let Some(slot) = self.turn(skip) else { return };
        let Some(flow) = self.slots[usize::from(slot)].as_mut() else {
            return;
        };
        let empty = !flow.waits();
        if !empty && flow.deficit > 0 {
            return;
        }
        let (queue, at) = if fresh {
            flow.turns.fresh = false;
            (&mut self.fresh, skip)
        } else {
            flow.turns.rest = false;
            (&mut self.rest, skip - self.fresh.len())
        };
        queue.remove(at);
        if !empty {
            // A flow without competitors has no debt, since no other flow waits.
            flow.deficit = QUANTUM + if alone { 0 } else { flow.deficit };
        }
        // A new flow that ran empty goes through the old list once, or it could starve the others
        // (RFC 8290 section 4.2).
        if (fresh || !empty) && !flow.turns.rest {
            flow.turns.rest = true;
            self.rest.push_back(slot);
        }
    }
}

/// Returns the bit of a layer in a set of layers; layers beyond the 63rd share one bit.
#[must_use]
pub fn layer_bit(Layer(layer): Layer) -> u64 {
    1 << layer.min(63)
}

#[cfg(test)]
mod tests;
