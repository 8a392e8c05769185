//! One direction of an emulated network.
//!
//! It starts empty and up. Steady state: a packet waits in the queue, is serialised at the link's
//! capacity (of a shaper's token bucket as long as it has no tokens), may be lost on the way, and
//! comes out after delay and jitter. It fails as told: `down` and `blackhole` swallow what is
//! inside and what comes in. Where it has a middlebox, the driver asks [`Link::inspect`] first.
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

/// What a link is like.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct LinkConfig {
    /// How fast it sends.
    pub capacity: Capacity,
    /// What passes at once after a pause, a token bucket's depth, of a link with a fixed rate.
    /// Bytes of Ethernet frames; 0 for a line, which has none.
    pub burst: Bytes,
    /// How much it holds before the sender.
    pub queue: QueueBound,
    /// One way, after serialisation.
    pub delay: Duration,
    /// How the delay varies.
    pub jitter: Jitter,
    /// Random loss after serialisation: a lost packet has used the link, as on the air.
    pub loss: Loss,
    /// Middlebox before the queue, which drops or changes packets by their headers.
    pub middlebox: MiddleboxConfig,
}

/// The bound of a drop-tail queue. A packet that finds the queue empty is always taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueBound {
    /// In bytes of Ethernet frames, the one in transmission included.
    Bytes(Bytes),
    /// As many bytes as pass in this time at the present rate (of a trace: at its mean rate).
    Time(Duration),
}

impl Default for QueueBound {
    fn default() -> Self {
        Self::Time(Duration::from_millis(100))
    }
}

/// The variation of the delay: a normal distribution, cut where the delay would be negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Jitter {
    /// Standard deviation.
    pub sd: Duration,
    /// Whether a packet may overtake another (as in netem); otherwise it waits for the one before
    /// it.
    pub reorder: bool,
}

/// Whether a link works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum State {
    /// It carries packets.
    #[default]
    Up,
    /// It carries nothing, and its driver makes the device show it.
    Down,
    /// It swallows everything and shows nothing.
    Blackhole,
    /// Lost carrier: nothing passes and the device shows it; addresses and routes stay.
    NoCarrier,
}

impl State {
    /// Returns whether the device shows that the link is up.
    #[must_use]
    pub fn shows_up(self) -> bool {
        matches!(self, Self::Up | Self::Blackhole)
    }
}

/// A change to a running link; a field that is `None` stays as it is.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Change {
    /// A new capacity, of which a trace starts now; a packet in transmission continues at it.
    pub capacity: Option<Capacity>,
    /// A new delay, for packets that are serialised from now on.
    pub delay: Option<Duration>,
    /// A new jitter, likewise.
    pub jitter: Option<Jitter>,
    /// A new loss model, in its good state.
    pub loss: Option<Loss>,
    /// A new bound; packets already waiting stay.
    pub queue: Option<QueueBound>,
    /// Another depth of the token bucket.
    pub burst: Option<Bytes>,
    /// Another state.
    pub state: Option<State>,
    /// Another behaviour of the middlebox.
    pub middlebox: MiddleboxChange,
    /// Time until which the middlebox drops everything, because the opposite direction hangs.
    pub stop_until: Option<Instant>,
}

/// What a link has carried and lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Ethernet frame bytes handed out.
    pub bytes: u64,
    /// Packets handed out.
    pub packets: u64,
    /// Packets that found the queue full.
    pub lost_queue: u64,
    /// Packets lost at random.
    pub lost_random: u64,
    /// Packets swallowed while down or blackholed.
    pub lost_outage: u64,
    /// Packets that the middlebox or a translator dropped.
    pub lost_middlebox: u64,
}

impl Counters {
    /// All losses together.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost_queue + self.lost_random + self.lost_outage + self.lost_middlebox
    }
}

/// One direction of an emulated network that carries items of type `T`.
///
/// Drive it as every machine of this level: one mutation, then drain [`Self::poll_transmit`], then
/// sleep until [`Self::poll_timeout`]. Calling late is harmless: serialisation is reckoned from
/// when packets were ready, not from when the driver looked.
///
/// Units: lengths are IP packets; capacity and queue count Ethernet frames ([`FRAME_OVERHEAD`]
/// more).
/// Cost: O(1) a packet (O(log n) with reordering jitter); nothing is allocated once the queues have
/// grown.
#[derive(Clone, Debug)]
pub struct Link<T> {
    state: State,
    /// Whether loss, jitter or reordering may happen to a packet at all: mostly not, and then
    /// `rare` is left alone.
    is_lossy: bool,
    is_jittery: bool,
    reorders: bool,
    /// True if packets need a verdict of the middlebox first; false on most links.
    has_middlebox: bool,
    /// Whether packets ever could overtake, so that some may still be on their way.
    may_overtake: bool,
    /// Those in flight, in order, then those that wait: a packet stays in its place until it comes
    /// out.
    packets: VecDeque<Held<T>>,
    flying: usize,
    queued_bytes: u64,
    bound: u64,
    in_service: Option<Service>,
    free_at: Instant,
    capacity: Capacity,
    /// How far the link may be ahead of its rate: what a full token bucket lets pass.
    ahead: Duration,
    delay: Duration,
    last_delivery: Instant,
    counters: Counters,
    rare: Box<Rare<T>>,
}

/// What a packet on an even path does not need; apart, so that many links fit into a processor's
/// cache.
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
    /// Items lost at random or swallowed by an outage, for the driver to take back.
    swallowed: Vec<T>,
}

#[derive(Clone, Debug)]
struct Held<T> {
    item: T,
    /// When it arrived; in flight, when it comes out.
    at: Instant,
    frame: u32,
}

#[derive(Clone, Copy, Debug)]
struct Service {
    start: Instant,
    end: Instant,
    /// From when on the next one is served: before the end, while there are tokens.
    free_at: Instant,
}

/// A packet that may overtake others; those of equal time keep their order.
#[derive(Clone, Debug)]
struct Overtaking<T> {
    held: Held<T>,
    order: u64,
}

impl<T> Link<T> {
    /// An empty link that is up. A trace starts at `now`.
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

    /// Derives what packets need from the configuration.
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

    /// What it has carried and lost.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Its present state.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Bytes of frames waiting, the one in transmission included, when the link was last driven.
    #[must_use]
    pub fn queued(&self) -> Bytes {
        Bytes(self.queued_bytes)
    }

    /// Returns whether [`Self::inspect`] must be asked before a packet is taken in.
    #[must_use]
    pub fn has_middlebox(&self) -> bool {
        self.has_middlebox
    }

    /// Decides what the middlebox does with a packet before [`Self::handle_packet`] may take it in,
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

    /// Takes a packet in; gives the item back when it is lost here, so that its buffer can serve
    /// again.
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
        self.packets.push_back(Held {
            item,
            at: now,
            frame: u32::try_from(frame).unwrap_or(u32::MAX),
        });
        None
    }

    /// The next packet whose time has come.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<T> {
        self.advance(now);
        self.poll_arrived(now)
    }

    /// The next packet that arrives by `now` among those that [`Self::advance`] has seen leave: for
    /// a driver whose far end is ahead in time of its near end, which may still put packets in.
    pub fn poll_arrived(&mut self, now: Instant) -> Option<T> {
        let overtakes = |rare: &Rare<T>| {
            let first = rare.overtaking.peek();
            first.is_some_and(|Reverse(first)| first.held.at <= now)
        };
        let due = if self.may_overtake && overtakes(&self.rare) {
            self.rare.overtaking.pop().map(|Reverse(first)| first.held)
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

    /// A packet that was lost at random or by an outage after it had been taken in; its buffer can
    /// serve again.
    pub fn poll_lost(&mut self) -> Option<T> {
        self.rare.swallowed.pop()
    }

    /// When [`Self::poll_transmit`] may next have something; `None` while the link is empty.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        let mut due = self.first_in_flight().map(|first| first.at);
        if self.may_overtake
            && let Some(Reverse(first)) = self.rare.overtaking.peek()
        {
            let overtaking = first.held.at;
            due = Some(due.map_or(overtaking, |due| due.min(overtaking)));
        }
        // Whoever is in service comes out later than everyone before it, unless it may overtake.
        if due.is_some() && !self.reorders {
            return due;
        }
        self.start_service();
        let Some(service) = self.in_service else {
            return due;
        };
        let served = service.end + self.least_delay();
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
            .extend(self.packets.drain(self.flying..).map(|held| held.item));
        rare.swallowed
            .extend(self.packets.drain(..).map(|held| held.item));
        rare.swallowed
            .extend(rare.overtaking.drain().map(|Reverse(first)| first.held.item));
        self.flying = 0;
        self.counters.lost_outage += (rare.swallowed.len() - before) as u64;
        self.queued_bytes = 0;
        self.in_service = None;
        self.free_at = now;
    }

    /// The least time between a packet's way in and its way out, whatever is waiting.
    #[must_use]
    pub fn least_delay(&self) -> Duration {
        if self.is_jittery || self.reorders {
            Duration::ZERO
        } else {
            self.delay
        }
    }

    /// Moves every packet whose serialisation ended by `now` on its way.
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

    fn first_in_flight(&self) -> Option<&Held<T>> {
        if self.flying == 0 {
            return None;
        }
        self.packets.front()
    }

    fn first_waiting(&self) -> Option<&Held<T>> {
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

    /// Puts the first waiting packet, whose serialisation ended at `departed`, on its way.
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
            if let Some(held) = self.packets.remove(self.flying) {
                let order = self.rare.next_order;
                self.rare.next_order += 1;
                let held = Held { at, ..held };
                self.rare.overtaking.push(Reverse(Overtaking { held, order }));
            }
        } else if let Some(held) = self.packets.get_mut(self.flying) {
            held.at = at.max(self.last_delivery);
            self.last_delivery = held.at;
            self.flying += 1;
        }
    }
}

impl<T> PartialEq for Overtaking<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.held.at, self.order) == (other.held.at, other.order)
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
        (self.held.at, self.order).cmp(&(other.held.at, other.order))
    }
}

#[cfg(test)]
mod tests;
