//! Emulated network, one direction.
//!
//! A link starts empty and up. Steady state: a packet waits in the queue, is serialised at the
//! link's capacity (or passes at once, while a shaper's token bucket has tokens), may be lost, and
//! is delivered after delay and jitter. Failures are set by the driver: `down` and `blackhole` drop
//! the packets inside and all later ones. If the link has a middlebox, the driver calls
//! [`Link::inspect`] first.
//!
//! ```text
//!   handle_packet -> [ queue, bounded ] -> serialise -> lost? -> [ in flight: delay, jitter ] -> poll_transmit
//!                        | full: lost                     | lost
//!   up <-> blackhole <-> down <-> no carrier   (set; leaving `up` empties both boxes)
//! ```

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use hawser_units::{Bytes, Duration, Instant};

use crate::trace::Position;
use crate::{
    Capacity, FRAME_OVERHEAD, Header, Loss, LossProcess, Middlebox, MiddleboxChange, MiddleboxConfig, Random,
    Verdict,
};

/// Parameters of a link.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct LinkConfig {
    /// Rate.
    pub capacity: Capacity,
    /// Depth of the token bucket: the bytes that pass at once after a pause, on a link of fixed
    /// rate. Units: bytes of Ethernet frames; 0 for a link without a bucket.
    pub burst: Bytes,
    /// Queue limit.
    pub queue: QueueBound,
    /// Delay in one direction, after serialisation.
    pub delay: Duration,
    /// Variation of the delay.
    pub jitter: Jitter,
    /// Random loss after serialisation: a lost packet has used the link, as on a radio.
    pub loss: Loss,
    /// Middlebox before the queue, which drops or changes packets depending on their headers.
    pub middlebox: MiddleboxConfig,
}

/// Bound of a drop-tail queue. A packet that arrives at an empty queue is always accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueBound {
    /// Bytes of Ethernet frames, including the one in transmission.
    Bytes(Bytes),
    /// Bytes that the link serialises in this time at the present rate (of a trace: at its mean
    /// rate).
    Time(Duration),
}

impl Default for QueueBound {
    fn default() -> Self {
        Self::Time(Duration::from_millis(100))
    }
}

/// Variation of the delay: a normal distribution, truncated where the delay would be negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Jitter {
    /// Standard deviation.
    pub sd: Duration,
    /// Set if a packet may overtake another (as in netem); otherwise it waits for the one before
    /// it.
    pub reorder: bool,
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum State {
    /// Working.
    #[default]
    Up,
    /// Down: all packets are dropped, and the driver sets the device down.
    Down,
    /// Black hole: all packets are dropped without notice.
    Blackhole,
    /// No carrier: all packets are dropped and the device reports it; addresses and routes stay.
    NoCarrier,
}

impl State {
    /// Returns whether the device appears up.
    #[must_use]
    pub fn shows_up(self) -> bool {
        matches!(self, Self::Up | Self::Blackhole)
    }
}

/// Change to a running link; a field that is `None` is unchanged.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Change {
    /// New capacity; a trace starts now. The packet in transmission continues at the new capacity.
    pub capacity: Option<Capacity>,
    /// New delay, for packets whose serialisation ends later.
    pub delay: Option<Duration>,
    /// New jitter, for packets whose serialisation ends later.
    pub jitter: Option<Jitter>,
    /// New loss model, in its good state.
    pub loss: Option<Loss>,
    /// New queue bound; packets already waiting stay.
    pub queue: Option<QueueBound>,
    /// New depth of the token bucket.
    pub burst: Option<Bytes>,
    /// New state.
    pub state: Option<State>,
    /// Changes of the middlebox.
    pub middlebox: MiddleboxChange,
    /// Time until which the middlebox drops everything, because the opposite direction hangs.
    pub stop_until: Option<Instant>,
}

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes of delivered Ethernet frames.
    pub bytes: u64,
    /// Delivered packets.
    pub packets: u64,
    /// Packets that found the queue full.
    pub lost_queue: u64,
    /// Packets lost at random.
    pub lost_random: u64,
    /// Packets dropped while down or a black hole.
    pub lost_outage: u64,
    /// Packets that the middlebox or a translator dropped.
    pub lost_middlebox: u64,
}

impl Counters {
    /// Returns the sum of all losses.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost_queue + self.lost_random + self.lost_outage + self.lost_middlebox
    }
}

/// Emulated network of items of type `T`, one direction.
///
/// Drive it as every machine of this level: one mutation, then drain [`Self::poll_transmit`], then
/// sleep until [`Self::poll_timeout`]. A late call is harmless: serialisation is computed from the
/// times at which packets were ready, not from the time of the call.
///
/// Units: lengths are IP packets; capacity and queue count Ethernet frames ([`FRAME_OVERHEAD`]
/// more).
/// Cost: O(1) a packet (O(log n) with reordering jitter); nothing is allocated once the queues have
/// grown.
#[derive(Clone, Debug)]
pub struct Link<T> {
    state: State,
    /// Set if loss, jitter or reordering is possible; on most links it is not, and `rare` is not
    /// accessed.
    is_lossy: bool,
    is_jittery: bool,
    reorders: bool,
    /// Set if packets need a verdict of the middlebox first; false on most links.
    has_middlebox: bool,
    /// Set if packets may overtake each other, or some in flight still may.
    may_overtake: bool,
    /// Packets in flight, in order, followed by waiting packets: a packet keeps its entry until it
    /// is delivered.
    packets: VecDeque<QueuedItem<T>>,
    flying: usize,
    queued_bytes: u64,
    bound: u64,
    in_service: Option<Service>,
    free_at: Instant,
    capacity: Capacity,
    /// Maximum advance of the link against its rate: the time that a full token bucket saves.
    ahead: Duration,
    delay: Duration,
    last_delivery: Instant,
    counters: Counters,
    rare: Box<Rare<T>>,
}

/// State that packets on a link without impairments do not need; kept separate, so that many links
/// fit into a processor's cache.
#[derive(Clone, Debug)]
struct Rare<T> {
    config: LinkConfig,
    epoch: Instant,
    position: Position,
    overtaking: BinaryHeap<Reverse<Overtaking<T>>>,
    next_order: u64,
    jitter_random: Random,
    loss: LossProcess,
    middlebox: Middlebox,
    /// Items lost at random or in an outage, which the driver can reuse.
    swallowed: Vec<T>,
}

#[derive(Clone, Debug)]
struct QueuedItem<T> {
    item: T,
    /// Arrival time; for a packet in flight, delivery time.
    at: Instant,
    frame: u32,
}

#[derive(Clone, Copy, Debug)]
struct Service {
    start: Instant,
    end: Instant,
    /// Time at which service of the next packet may start: before `end`, while there are tokens.
    free_at: Instant,
}

/// A packet that may overtake others; packets with equal times keep their order.
#[derive(Clone, Debug)]
struct Overtaking<T> {
    queued: QueuedItem<T>,
    order: u64,
}

impl<T> Link<T> {
    /// Creates an empty link that is up. A trace starts at `now`.
    #[must_use]
    pub fn new(config: LinkConfig, seed: u64, now: Instant) -> Self {
        let mut link = Self {
            state: State::Up,
            is_lossy: false,
            is_jittery: false,
            reorders: false,
            has_middlebox: !config.middlebox.is_transparent(),
            may_overtake: false,
            packets: VecDeque::new(),
            flying: 0,
            queued_bytes: 0,
            bound: 0,
            in_service: None,
            free_at: now,
            capacity: Capacity::Unlimited,
            ahead: Duration::ZERO,
            delay: Duration::ZERO,
            last_delivery: now,
            counters: Counters::default(),
            rare: Box::new(Rare {
                epoch: now,
                position: Position::default(),
                overtaking: BinaryHeap::new(),
                next_order: 0,
                jitter_random: Random::new(seed, "jitter"),
                loss: LossProcess::new(config.loss, Random::new(seed, "loss")),
                middlebox: Middlebox::new(config.middlebox, now),
                swallowed: Vec::new(),
                config,
            }),
        };
        link.configure();
        link
    }

    /// Derives the fields that every packet needs from the configuration.
    fn configure(&mut self) {
        let config = &self.rare.config;
        self.is_lossy = config.loss != Loss::NONE;
        self.is_jittery = !config.jitter.sd.is_zero();
        self.reorders = config.jitter.reorder;
        self.may_overtake |= self.reorders;
        self.capacity = config.capacity.clone();
        self.ahead = match &config.capacity {
            Capacity::Rate(rate) => rate.time_for(config.burst),
            Capacity::Unlimited | Capacity::Trace(_) => Duration::ZERO,
        };
        self.delay = config.delay;
        self.bound = match config.queue {
            QueueBound::Bytes(bytes) => bytes.0,
            QueueBound::Time(time) => config
                .capacity
                .mean()
                .map_or(u64::MAX, |rate| rate.bytes_in(time).0),
        };
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the present state.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the bytes of waiting frames, including the one in transmission, at the last call.
    #[must_use]
    pub fn queued(&self) -> Bytes {
        Bytes(self.queued_bytes)
    }

    /// Returns whether [`Self::inspect`] must be called before [`Self::handle_packet`].
    #[must_use]
    pub fn has_middlebox(&self) -> bool {
        self.has_middlebox
    }

    /// Returns the middlebox's verdict about a packet that [`Self::handle_packet`] is to receive,
    /// and counts the packet if it is dropped.
    pub fn inspect(&mut self, header: Header, now: Instant) -> Verdict {
        if self.state != State::Up {
            return Verdict::Forward;
        }
        let verdict = self.rare.middlebox.handle_packet(header, now);
        let is_dropped = match verdict {
            Verdict::Forward | Verdict::Rewrite(_) => false,
            Verdict::Drop | Verdict::TooBig(_) | Verdict::Hang(_) => true,
        };
        self.counters.lost_middlebox += u64::from(is_dropped);
        self.has_middlebox = !self.rare.middlebox.is_transparent(now);
        verdict
    }

    /// Counts a packet that a translator dropped before it reached this link.
    pub fn count_untranslated(&mut self) {
        self.counters.lost_middlebox += 1;
    }

    /// Accepts a packet; returns the item if the packet is dropped, so that its buffer can be
    /// reused.
    #[must_use = "a lost item's buffer can be used again"]
    pub fn handle_packet(&mut self, item: T, ip_len: u64, now: Instant) -> Option<T> {
        if self.state != State::Up {
            self.counters.lost_outage += 1;
            return Some(item);
        }
        self.advance(now);
        let frame = ip_len + FRAME_OVERHEAD;
        if self.queued_bytes > 0 && self.queued_bytes + frame > self.bound {
            self.counters.lost_queue += 1;
            return Some(item);
        }
        self.queued_bytes += frame;
        self.packets.push_back(QueuedItem {
            item,
            at: now,
            frame: u32::try_from(frame).unwrap_or(u32::MAX),
        });
        None
    }

    /// Returns the next packet that is due for delivery.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<T> {
        self.advance(now);
        self.poll_arrived(now)
    }

    /// Returns the next packet due by `now`, among packets whose serialisation [`Self::advance`]
    /// has ended. For a driver whose receiver is ahead in time of its sender, which may still add
    /// packets.
    pub fn poll_arrived(&mut self, now: Instant) -> Option<T> {
        let overtakes = |rare: &Rare<T>| {
            let first = rare.overtaking.peek();
            first.is_some_and(|Reverse(first)| first.queued.at <= now)
        };
        let due = if self.may_overtake && overtakes(&self.rare) {
            self.rare.overtaking.pop().map(|Reverse(first)| first.queued)
        } else if self.first_in_flight().is_some_and(|first| first.at <= now) {
            self.flying -= 1;
            self.packets.pop_front()
        } else {
            None
        }?;
        self.counters.bytes += u64::from(due.frame);
        self.counters.packets += 1;
        Some(due.item)
    }

    /// Returns a packet that was lost at random or in an outage after it had been accepted, so that
    /// its buffer can be reused.
    pub fn poll_lost(&mut self) -> Option<T> {
        self.rare.swallowed.pop()
    }

    /// Returns when [`Self::poll_transmit`] may next have an item; `None` while the link is empty.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        let mut due = self.first_in_flight().map(|first| first.at);
        if self.may_overtake
            && let Some(Reverse(first)) = self.rare.overtaking.peek()
        {
            let overtaking = first.queued.at;
            due = Some(due.map_or(overtaking, |due| due.min(overtaking)));
        }
        // The packet in service is delivered after all earlier ones, unless it may overtake them.
        if due.is_some() && !self.reorders {
            return due;
        }
        self.start_service();
        let Some(service) = self.in_service else {
            return due;
        };
        let served = service.end + self.min_delay();
        Some(due.map_or(served, |due| due.min(served)))
    }

    /// Changes a running link.
    pub fn set(&mut self, change: Change, now: Instant) {
        self.advance(now);
        if let Some(capacity) = change.capacity {
            self.change_capacity(capacity, now);
        }
        let rare = &mut *self.rare;
        if let Some(delay) = change.delay {
            rare.config.delay = delay;
        }
        if let Some(jitter) = change.jitter {
            rare.config.jitter = jitter;
        }
        if let Some(loss) = change.loss {
            rare.config.loss = loss;
            rare.loss.set(loss);
        }
        if let Some(queue) = change.queue {
            rare.config.queue = queue;
        }
        if let Some(burst) = change.burst {
            rare.config.burst = burst;
        }
        rare.middlebox.set(change.middlebox, now);
        if let Some(until) = change.stop_until {
            rare.middlebox.stop_until(until);
        }
        self.has_middlebox = !rare.middlebox.is_transparent(now);
        self.configure();
        if let Some(state) = change.state {
            self.state = state;
            if state != State::Up {
                self.swallow_everything(now);
            }
        }
    }

    fn change_capacity(&mut self, capacity: Capacity, now: Instant) {
        self.rare.config.capacity = capacity.clone();
        self.rare.epoch = now;
        self.rare.position = Position::default();
        self.capacity = capacity;
        let (Some(service), Some(head)) = (self.in_service, self.first_waiting()) else {
            return;
        };
        let whole = service.end.since(service.start).as_nanos().max(1);
        let left = service.end.since(now.max(service.start)).as_nanos();
        let bytes = (u128::from(head.frame) * left).div_ceil(whole) as u64;
        let rare = &mut *self.rare;
        let end = self.capacity.finish(rare.epoch, now, bytes, &mut rare.position);
        self.in_service = Some(Service {
            start: now,
            end,
            free_at: end,
        });
    }

    fn swallow_everything(&mut self, now: Instant) {
        let rare = &mut *self.rare;
        let before = rare.swallowed.len();
        rare.swallowed
            .extend(self.packets.drain(self.flying..).map(|queued| queued.item));
        rare.swallowed
            .extend(self.packets.drain(..).map(|queued| queued.item));
        rare.swallowed
            .extend(rare.overtaking.drain().map(|Reverse(first)| first.queued.item));
        self.flying = 0;
        self.counters.lost_outage += (rare.swallowed.len() - before) as u64;
        self.queued_bytes = 0;
        self.in_service = None;
        self.free_at = now;
    }

    /// Returns the minimum time between a packet's arrival and its delivery, for any queue.
    #[must_use]
    pub fn min_delay(&self) -> Duration {
        if self.is_jittery || self.reorders {
            Duration::ZERO
        } else {
            self.delay
        }
    }

    /// Moves every packet whose serialisation ended by `now` into flight, or drops it.
    pub fn advance(&mut self, now: Instant) {
        loop {
            self.start_service();
            let Some(service) = self.in_service.filter(|service| service.end <= now) else {
                return;
            };
            let Some(done) = self.first_waiting() else { return };
            self.queued_bytes -= u64::from(done.frame);
            self.in_service = None;
            self.free_at = service.free_at;
            if self.is_lossy && self.rare.loss.is_lost() {
                self.counters.lost_random += 1;
                let lost = self.packets.remove(self.flying);
                self.rare.swallowed.extend(lost.map(|lost| lost.item));
            } else {
                self.fly(service.end);
            }
        }
    }

    fn first_in_flight(&self) -> Option<&QueuedItem<T>> {
        if self.flying == 0 {
            return None;
        }
        self.packets.front()
    }

    fn first_waiting(&self) -> Option<&QueuedItem<T>> {
        self.packets.get(self.flying)
    }

    fn start_service(&mut self) {
        if self.in_service.is_some() {
            return;
        }
        let Some(head) = self.first_waiting() else { return };
        let (at, frame) = (head.at, u64::from(head.frame));
        let start = self.free_at.max(at - self.ahead);
        let end = match &self.capacity {
            Capacity::Rate(rate) => start + rate.time_for(Bytes(frame)),
            capacity @ (Capacity::Unlimited | Capacity::Trace(_)) => {
                let rare = &mut *self.rare;
                capacity.finish(rare.epoch, start, frame, &mut rare.position)
            }
        };
        self.in_service = Some(Service {
            start,
            end: end.max(at),
            free_at: end,
        });
    }

    /// Moves the first waiting packet, whose serialisation ended at `departed`, into flight.
    fn fly(&mut self, departed: Instant) {
        let mut at = departed + self.delay;
        if self.is_jittery {
            let sd = self.rare.config.jitter.sd.as_secs_f64();
            let shift = self.rare.jitter_random.normal() * sd;
            let by = Duration::from_secs_f64(shift.abs());
            at = if shift < 0.0 {
                (at - by).max(departed)
            } else {
                at + by
            };
        }
        if self.reorders {
            if let Some(queued) = self.packets.remove(self.flying) {
                let order = self.rare.next_order;
                self.rare.next_order += 1;
                let queued = QueuedItem { at, ..queued };
                self.rare.overtaking.push(Reverse(Overtaking { queued, order }));
            }
        } else if let Some(queued) = self.packets.get_mut(self.flying) {
            queued.at = at.max(self.last_delivery);
            self.last_delivery = queued.at;
            self.flying += 1;
        }
    }
}

impl<T> PartialEq for Overtaking<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.queued.at, self.order) == (other.queued.at, other.order)
    }
}

impl<T> Eq for Overtaking<T> {}

impl<T> PartialOrd for Overtaking<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Overtaking<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.queued.at, self.order).cmp(&(other.queued.at, other.order))
    }
}

#[cfg(test)]
mod tests;
