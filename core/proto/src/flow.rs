//! Flows: the table of five-tuples, their classes, and the queue of each at the tunnel's entrance.
//!
//! Congestion is told to a flow here, at the entrance, by its own queue (CoDel: a drop, or a mark
//! where the flow understands ECN), never by loss on a path. Queues are served by deficit round
//! robin with new flows first, so that a sparse flow passes a download's queue.
//!
//! Source: RFC 8289 (CoDel), RFC 8290 (FQ-CoDel). Deviates: the target is tens of milliseconds,
//! because the queue is the flow's own and must feed all paths across the difference of their
//! delays.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::ops::RangeInclusive;

use hawser_units::{Duration, Instant, Rate, Sequence};
use hawser_wire::bundle::Shape;
use hawser_wire::compression::{CONTEXT_SLOTS, Form, MAX_BACK};
use hawser_wire::data::Class;
use hawser_wire::frame::NOT_IP;
use hawser_wire::inner::{self, Ecn, FlowKey, Signature, Summary, protocol, tcp_flag};
use hawser_wire::layer::Layer;
use hawser_wire::offload::Segmenter;
use hawser_wire::stream::StreamId;

use deadline::Deadlines;

use behaviour::{Behaviour, CALL_BUDGET, Meter, VIDEO_BUDGET};
use waiting::Arrivals;
pub use waiting::LONGEST_WAIT;

/// Slots in a table: with their queues some 12 MB. A new flow of a full table replaces one that is
/// idle.
pub const MAX_FLOWS: usize = 16_384;
/// A flow without packets for this long gives up its slot.
const IDLE: Duration = Duration::from_secs(120);
/// Slots of a full table that a new flow looks at to find one to replace: enough to meet an idle
/// one in any ordinary mix.
const REPLACE_AMONG: usize = 64;
/// A TCP flow that has sent this much is bulk.
const BULK_AFTER: u64 = 256 * 1024;
/// Bytes a flow may send in its turn.
const QUANTUM: i64 = 3_000;
/// Packets of a layered stream that are looked at to find one whose layer may go: more than a
/// picture at 10 Mbit/s has.
const LAYERED_LOOKED_AT: usize = 64;
/// CoDel's interval beyond the round trip.
const INTERVAL: Duration = Duration::from_millis(100);

/// A packet in the queue, possibly one that is cut into many.
#[derive(Clone, Copy, Debug)]
pub struct Run<B> {
    /// The driver's buffer.
    pub buffer: B,
    /// How it is cut.
    pub cut: Segmenter,
    /// The next segment to send.
    pub next: u16,
    /// The segment whose headers stand for those of the segments behind it.
    pub context: Option<u16>,
    /// Its transport checksum covers only the pseudo-header.
    pub checksum_partial: bool,
    /// The flow understands congestion marks.
    pub ecn_capable: bool,
    /// Mark the next segment sent.
    pub mark: bool,
    /// Its order does not matter, whatever its flow's does.
    pub order_free: bool,
    /// Bytes of the next segment that have gone in pieces, and the place of all of them.
    pub begun: Option<(u16, Sequence)>,
    /// Its place in a layered stream.
    pub layer: Option<Layer>,
    /// Set where it may go in one datagram with others of its flow.
    pub shape: Option<Shape>,
    /// When it came in.
    pub since: Instant,
}

impl<B> Run<B> {
    /// Segments left.
    #[must_use]
    pub fn left(&self) -> u16 {
        self.cut.count().saturating_sub(self.next)
    }

    /// In which form a segment goes.
    #[must_use]
    pub fn form(&self, index: u16) -> Form {
        match self.context.map(|context| index.checked_sub(context)) {
            Some(Some(0)) => Form::Context,
            Some(Some(back)) if back <= MAX_BACK => Form::Compressed,
            _ => Form::Whole,
        }
    }

    /// Bytes of a segment in its form.
    #[must_use]
    pub fn len_of(&self, index: u16) -> usize {
        match self.form(index) {
            Form::Whole | Form::Context => self.cut.len_of(index),
            Form::Compressed => self.cut.compressed_len(index),
        }
    }

    /// Writes a segment of `packet` in its form into `out`, which must be [`Self::len_of`] bytes
    /// long; the first with the congestion mark, if it is to have one.
    ///
    /// # Panics
    /// When `packet` is not the one planned for, or `index` or the length of `out` is out of range.
    pub fn emit(&self, packet: &[u8], index: u16, out: &mut [u8]) {
        match self.context.filter(|_| self.form(index) == Form::Compressed) {
            Some(context) => self.cut.emit_compressed(packet, index, context, out),
            None => self.cut.emit(packet, index, out),
        }
        if self.mark && index == self.next {
            inner::set_ecn(&mut out[self.cut.ip_at()..], Ecn::Ce);
        }
    }
}

/// One flow.
#[derive(Debug)]
pub struct Flow<B> {
    /// Five-tuple of all its packets.
    pub key: FlowKey,
    /// Its class at present.
    pub class: Class,
    /// Why it has it.
    pub why: &'static str,
    /// Order does not matter to it.
    pub unordered: bool,
    /// The place of its next packet.
    pub next: Sequence,
    /// The same of those whose order is free, which have places of their own.
    pub next_unordered: Sequence,
    /// Inner bytes sent in all.
    pub sent: u64,
    /// Inner bytes by path, of the paths that are open.
    pub by_path: Vec<(u16, u64)>,
    queue: VecDeque<Run<B>>,
    backlog: u64,
    deficit: i64,
    /// Its places in the two lists of turns.
    turns: Turns,
    codel: Codel,
    used: Instant,
    /// This side has ended it, as TCP does.
    ended: bool,
    /// Measures the flow's rate, where its class follows from that.
    meter: Option<Meter>,
    /// The time for which its packets are of use, beyond the delay of the nearest path; `None`: for
    /// ever.
    budget: Option<Duration>,
    /// The time for which its packets are of use, as a rule says.
    deadline: Option<Duration>,
    /// The rules have been asked.
    is_ruled: bool,
    /// Packets sent, and those dropped because they would have come too late.
    packets: u64,
    late: u64,
    /// The stream that takes this flow's turns, and how much of it may be sent now, which is part
    /// of the backlog.
    stream: Option<(StreamId, u64)>,
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

    /// Returns how late its packets may arrive, beyond the delay of the nearest path; `None` where
    /// they are of use however late.
    #[must_use]
    pub fn budget(&self) -> Option<Duration> {
        self.budget
    }

    /// Returns true while it is not known whether it is a call or a transfer.
    #[must_use]
    pub fn may_be_call(&self) -> bool {
        self.class == Class::Realtime && self.meter.is_some_and(|meter| meter.is_new())
    }

    /// Returns whether its rate is that of a call, so that all of it may be sent twice.
    #[must_use]
    pub fn is_call(&self) -> bool {
        self.budget == Some(CALL_BUDGET)
    }

    /// The rate at which its packets came in, in its last second; zero where its class does not
    /// follow from that. Units: bit/s of inner packets.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.meter.map_or(Rate::ZERO, |meter| meter.rate())
    }

    /// Packets sent, and packets dropped because they would have come too late.
    #[must_use]
    pub fn sent_and_late(&self) -> (u64, u64) {
        (self.packets, self.late)
    }

    /// Takes note of a packet that comes in.
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

    /// Those that may become the head.
    fn looked_at(&self) -> impl Iterator<Item = &Run<B>> {
        self.queue.iter().take(LAYERED_LOOKED_AT)
    }

    fn move_to_head(&mut self, at: usize) {
        if let Some(run) = self.queue.remove(at) {
            self.queue.push_front(run);
        }
    }
}

/// The lists of turns in which a flow has a place.
///
/// A flow that runs empty keeps its place in the old list until its turn comes, and with it the
/// rest of its share of the round. A packet that comes in before that is sent from the new list
/// while the share lasts. RFC 8290 lets it wait for the old list's turn: with 300 flows, a ping
/// every 20 ms waits for a part of each round, 72 ms at 100 Mbit/s.
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

/// CoDel's memory of one queue.
///
/// Source: RFC 8289.
#[derive(Clone, Copy, Debug, Default)]
pub struct Codel {
    above_since: Option<Instant>,
    dropping: bool,
    drop_next: Instant,
    count: u32,
}

impl Codel {
    /// The queue is as it should be: whatever comes next, it is given an interval.
    fn pardon(&mut self) {
        self.above_since = None;
        self.dropping = false;
    }

    /// Whether to drop or mark a packet that waited for `sojourn`; the interval is 100 ms and
    /// `target`.
    pub fn on_dequeue(&mut self, sojourn: Duration, target: Duration, now: Instant) -> bool {
        let interval = INTERVAL + target;
        if sojourn < target {
            self.pardon();
            return false;
        }
        let since = *self.above_since.get_or_insert(now);
        if self.dropping {
            if now < self.drop_next {
                return false;
            }
            self.count += 1;
            self.drop_next += interval.div_f64(f64::from(self.count).sqrt());
            return true;
        }
        if now.since(since) < interval {
            return false;
        }
        self.dropping = true;
        // Coming back soon after: resume near the rate that was needed (RFC 8289 section 4.2).
        let recent = now.since(self.drop_next) < interval * 8;
        self.count = if recent && self.count > 2 {
            self.count - 2
        } else {
            1
        };
        self.drop_next = now + interval.div_f64(f64::from(self.count).sqrt());
        true
    }
}

/// Why a packet was not queued or was thrown away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its flow's queue is full.
    QueueFull,
    /// No slot is free, and every flow that a new one could replace has packets waiting.
    TableFull,
}

/// All flows of a session in the sending direction.
///
/// Cost: O(1) a packet, a bounded search for a new flow in a full table; memory is bounded by
/// [`MAX_FLOWS`] slots and by the driver's buffers.
#[derive(Debug)]
pub struct Flows<B> {
    slots: Vec<Option<Flow<B>>>,
    free: Vec<u16>,
    /// The next places of each slot, in order and unordered.
    sequences: Vec<(Sequence, Sequence)>,
    index: HashMap<FlowKey, u16, Seeded>,
    fresh: VecDeque<u16>,
    rest: VecDeque<u16>,
    backlog: u64,
    /// When each packet that waits came in.
    arrivals: Arrivals,
    deadlines: Deadlines,
    swept: Instant,
    /// No flow has been idle for long enough before.
    idle_at: Instant,
    last: Option<(FlowKey, u16)>,
    /// Where the next search for a flow to replace begins.
    hand: usize,
}

impl<B: Copy> Flows<B> {
    /// An empty table. `seed` keeps outsiders from choosing flows that collide.
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

    /// All flows, by slot.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &Flow<B>)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(slot, flow)| Some((slot as u16, flow.as_ref()?)))
    }

    /// The slot of a flow that has its place here: it has sent a packet of late.
    #[must_use]
    pub fn slot(&self, key: &FlowKey) -> Option<u16> {
        self.index.get(key).copied()
    }

    /// How many connections go on: those of TCP that this side has not ended, and flows of UDP that
    /// have sent something since `since`.
    #[must_use]
    pub fn open_since(&self, since: Instant) -> usize {
        let goes_on = |flow: &Flow<B>| match flow.key.protocol {
            protocol::TCP => !flow.ended,
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

    /// A flow that has sent nothing; its class is for the caller to say.
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
        }
    }

    /// Takes the slot of a flow that has nothing waiting: of those the search looks at, the one
    /// that has been quiet longest.
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

    /// Queues a packet behind its flow. `limit`: bytes that one flow may have waiting.
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
            flow.why = "carries layer marks";
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

    /// Bytes that go until all that waits in a slot has gone, as flows take turns.
    #[must_use]
    pub fn backlog_until(&self, slot: u16) -> u64 {
        let own = self.get(slot).map_or(0, Flow::backlog);
        own.saturating_mul(self.waiting() as u64).min(self.backlog)
    }

    /// How many flows wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.fresh.len() + self.rest.len()
    }

    /// The slot of the flow whose turn is `skip` places after the first; new flows come first.
    #[must_use]
    pub fn turn(&mut self, skip: usize) -> Option<u16> {
        let (queue, at) = match skip.checked_sub(self.fresh.len()) {
            None => (&self.fresh, skip),
            Some(at) => (&self.rest, at),
        };
        queue.get(at).copied()
    }

    /// Makes the next packet of a layer not in `waiting` (bit i is layer i) the head of its flow:
    /// the layers of a stream are sub-flows, and one that waits for its paths holds no other up.
    /// Returns whether there is one among the first [`LAYERED_LOOKED_AT`], in a flow whose order is
    /// free.
    pub fn bring_forward(&mut self, slot: u16, waiting: u64) -> bool {
        let waits = |run: &Run<B>| run.layer.is_none_or(|layer| waiting & layer_bit(layer) != 0);
        let flow = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut);
        flow.filter(|flow| flow.unordered).is_some_and(|flow| {
            let Some(at) = flow.looked_at().position(|run| !waits(run)) else {
                return false;
            };
            flow.move_to_head(at);
            true
        })
    }

    /// Makes the packet that came in first the head of its flow again: the head's age is that of
    /// its queue.
    pub fn bring_oldest_forward(&mut self, slot: u16) {
        let flow = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut);
        if let Some(flow) = flow {
            let oldest = flow.looked_at().enumerate().min_by_key(|(_, run)| run.since);
            if let Some((at, _)) = oldest {
                flow.move_to_head(at);
            }
        }
    }

    /// Throws away or marks the head of a flow if it has waited too long and is not exempt.
    /// Returns a buffer to free, if that was its last segment, and whether anything was dropped.
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
        // What has gone of a packet in pieces would be of no use without the rest.
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

    /// Throws away `count` segments at the head of a flow. Returns its buffer once the last segment
    /// is gone.
    pub fn skip(&mut self, slot: u16, count: u16) -> Option<B> {
        let head = self.slots[usize::from(slot)].as_mut()?.queue.front_mut()?;
        // What follows is not where its context says.
        head.context = None;
        self.advance(slot, count)
    }

    /// Counts packets of a flow that are dropped because they would come too late.
    pub fn note_late(&mut self, slot: u16, count: u64) {
        if let Some(flow) = self.slots[usize::from(slot)].as_mut() {
            flow.late += count;
        }
    }

    /// Lets the segment at the head of a flow be the context of those behind it, if that is of use.
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

    /// Takes `count` segments off the head of a flow. Returns its buffer once the last segment is
    /// gone.
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

    /// Takes note that the segment at the head of a flow has gone up to a byte, in pieces.
    pub fn on_piece(&mut self, slot: u16, to: u16, place: Sequence) {
        let flow = self.slots[usize::from(slot)].as_mut();
        if let Some(run) = flow.and_then(|flow| flow.queue.front_mut()) {
            run.begun = Some((to, place));
        }
    }

    /// A path is closed for good: its number does not come back, so nothing is kept of it. A flow
    /// that lives through hundreds of networks is looked up among those that are there.
    pub fn forget_path(&mut self, path: u16) {
        for flow in self.slots.iter_mut().flatten() {
            flow.by_path.retain(|(id, _)| *id != path);
        }
    }

    /// Accounts for `count` segments of `bytes` in all sent on `path`, and returns the first of
    /// their places.
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

    /// Lets bytes that a flow has sent count as nobody's share.
    pub fn refund(&mut self, slot: u16, bytes: u64) {
        if let Some(flow) = self.slots[usize::from(slot)].as_mut() {
            flow.deficit += bytes as i64;
        }
    }

    /// Whether a flow has sent ahead of its share: a run goes out in one piece, and is paid for in
    /// the turns after it.
    #[must_use]
    pub fn is_in_debt(&self, slot: u16) -> bool {
        self.get(slot).is_some_and(|flow| flow.deficit <= 0)
    }

    /// Ends the turn of the flow at `skip` if it has used up its share or has nothing left.
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
            // Nobody is kept waiting by the debt of a flow that is alone.
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

/// The bit of a layer in a set of them; those beyond the 63rd share one.
#[must_use]
pub fn layer_bit(Layer(layer): Layer) -> u64 {
    1 << layer.min(63)
}

/// Bytes of the packets of a run that are left.
fn run_bytes<B>(run: &Run<B>) -> u64 {
    let left = u64::from(run.left());
    let last = run.cut.len_of(run.cut.count() - 1) as u64;
    (left - 1) * u64::from(run.cut.packet_len()) + last
}

/// The code points by which a packet says what its flow needs, and what they say.
///
/// Source: RFC 4594, RFC 8622.
static MARKS: [(RangeInclusive<u8>, Class, &str); 8] = [
    (1..=1, Class::Bulk, LOW_PRIORITY),
    (8..=8, Class::Bulk, LOW_PRIORITY),
    (18..=18, Class::Interactive, LOW_LATENCY),
    (20..=20, Class::Interactive, LOW_LATENCY),
    (22..=22, Class::Interactive, LOW_LATENCY),
    (32..=38, Class::Realtime, CONFERENCING),
    (44..=44, Class::Realtime, TELEPHONY),
    (46..=46, Class::Realtime, TELEPHONY),
];
const LOW_PRIORITY: &str = "marked as low priority (DSCP)";
const LOW_LATENCY: &str = "marked as low-latency data (DSCP)";
const CONFERENCING: &str = "marked as conferencing (DSCP)";
const TELEPHONY: &str = "marked as telephony (DSCP)";
/// The reason for the class of a flow whose rate is not known yet.
const BY_BEHAVIOUR: &str = "UDP";

/// The code points by which a packet says what its flow needs.
pub fn code_points() -> impl Iterator<Item = u8> {
    MARKS.iter().flat_map(|(codes, ..)| codes.clone())
}

/// A flow's class by its first packet: hints only, behaviour overrides them.
fn classify(summary: &Summary) -> (Class, &'static str) {
    let key = &summary.key;
    let port = |port: u16| key.source_port == port || key.destination_port == port;
    if let Some((_, class, why)) = MARKS.iter().find(|(codes, ..)| codes.contains(&summary.dscp)) {
        return (*class, why);
    }
    match key.protocol {
        protocol::TCP => (Class::Interactive, "TCP that has sent little so far"),
        protocol::UDP if summary.signature == Some(Signature::Quic) => {
            (Class::Bulk, "opens a QUIC connection")
        }
        protocol::UDP if summary.signature == Some(Signature::WireGuard) => (Class::Bulk, "WireGuard"),
        protocol::UDP if port(443) => (Class::Bulk, "UDP on port 443 (QUIC)"),
        protocol::UDP if port(53) => (Class::Interactive, "DNS"),
        protocol::UDP => (Class::Realtime, BY_BEHAVIOUR),
        _ => (Class::Interactive, "neither TCP nor UDP"),
    }
}

/// Returns whether reordering does the flow no harm: all of IP but TCP, QUIC and WireGuard.
fn order_is_free(summary: &Summary) -> bool {
    let key = &summary.key;
    match key.protocol {
        protocol::TCP => false,
        protocol::UDP => summary.signature.is_none() && key.source_port != 443 && key.destination_port != 443,
        NOT_IP => false,
        _ => true,
    }
}

/// A keyed multiply-and-fold hasher: flows are chosen by outsiders, the seed is not known to them.
#[derive(Clone, Copy, Debug)]
struct Seeded(u64);

impl BuildHasher for Seeded {
    type Hasher = Fold;

    fn build_hasher(&self) -> Fold {
        Fold(self.0)
    }
}

#[derive(Debug)]
struct Fold(u64);

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

pub mod behaviour;
mod checkpoint;
mod deadline;
mod streams;
mod waiting;

#[cfg(test)]
mod tests;
