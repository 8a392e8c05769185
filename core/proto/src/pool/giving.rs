//! What a member gives of its ways out: how fast, how much, until when, and to whom first.
//!
//! A member relays datagrams of *takers*. This machine decides which of them go: a rate cap for
//! each direction, a quota for both together, an end, and fair turns between takers. It holds the
//! datagrams that wait, and knows nothing of sockets.
//!
//! ```text
//!   handle_packet --> queue of the taker --> poll_transmit (fair between takers, paced to the cap,
//!                                            and to what each way out has left)
//!   pass          --> at once, where there is neither a cap nor a limit
//! ```
//!
//! Steady state: a queue of at most [`QUEUE_TIME`] at the cap, in all; beyond that, the taker whose
//! queue is longest loses its newest datagram. Failure: when the quota is used up or the end has
//! come, nothing passes any more, and what waits is dropped.
//!
//! Pacing is the virtual scheduling algorithm of ITU-T I.371 annex A: a datagram may go when the
//! virtual clock of the direction is at most [`BURST`] ahead of time. Over any second, at most
//! `cap * (1 s + BURST)` and one datagram pass. A way out may have a limit of its own, which is
//! paced in the same way ([`super::yielding`] finds it). Units: sizes are bytes of IP packets.

use std::collections::{BTreeMap, VecDeque};

use hawser_units::{Bytes, Duration, Instant, Rate};

/// A device that takes. Numbered by whoever authenticates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TakerId(pub u64);

/// A way out of the member. Numbered by whoever opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WayId(pub u16);

/// Which way a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the taker to its hub.
    Up,
    /// From the hub to the taker.
    Down,
}

/// What the owner of a member allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// At most this in each direction, all takers together.
    pub cap: Option<Rate>,
    /// At most this in both directions together, all takers together.
    pub quota: Option<Bytes>,
    /// Nothing any more from then on.
    pub until: Option<Instant>,
}

/// Why nothing is given any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The quota is used up.
    Quota,
    /// The end has come.
    Time,
}

/// A datagram that may go now.
#[derive(Debug, PartialEq, Eq)]
pub struct Granted<P> {
    /// Whose.
    pub taker: TakerId,
    /// The datagram.
    pub packet: P,
}

/// Decides about the datagrams of all takers.
///
/// Cost: O(takers and their ways out) a datagram, of which there are [`MOST_TAKERS`] at most;
/// memory bounded by [`QUEUE_TIME`] at the cap, and never more than [`LONGEST_QUEUE`] in each
/// direction.
#[derive(Debug)]
pub struct Giving<P> {
    terms: Terms,
    carried: u64,
    takers: BTreeMap<TakerId, [u64; 2]>,
    lanes: [Lane<P>; 2],
    dropped: u64,
}

#[derive(Debug)]
struct Lane<P> {
    queues: BTreeMap<(TakerId, WayId), Queue<P>>,
    bytes: u64,
    /// The virtual clock: when all that has gone would have gone at the cap.
    clock: Instant,
    /// Ways out that are to carry no more than so much.
    limits: BTreeMap<WayId, Limit>,
    /// What a taker that begins to wait is taken to have had.
    turn: u64,
}

/// A way out with its own pace.
#[derive(Clone, Copy, Debug)]
struct Limit {
    rate: Rate,
    /// As that of a lane.
    clock: Instant,
}

#[derive(Debug)]
struct Queue<P> {
    packets: VecDeque<(u64, P)>,
    bytes: u64,
    /// Bytes that it has had, from when it began to wait.
    had: u64,
}

impl<P> Default for Lane<P> {
    fn default() -> Self {
        Self {
            queues: BTreeMap::new(),
            bytes: 0,
            clock: START,
            limits: BTreeMap::new(),
            turn: 0,
        }
    }
}

impl<P> Giving<P> {
    /// One that has given nothing yet but `carried`, which counts for the quota.
    #[must_use]
    pub fn new(terms: Terms, carried: Bytes) -> Self {
        Self {
            terms,
            carried: carried.0,
            takers: BTreeMap::new(),
            lanes: [Lane::default(), Lane::default()],
            dropped: 0,
        }
    }

    /// Lets a taker in; false when there are too many.
    pub fn handle_taker(&mut self, taker: TakerId) -> bool {
        if self.takers.contains_key(&taker) {
            return true;
        }
        let has_room = self.takers.len() < MOST_TAKERS;
        if has_room {
            self.takers.insert(taker, [0; 2]);
        }
        has_room
    }

    /// Ends it for a taker at once: what waits for it is dropped.
    pub fn handle_taker_gone(&mut self, taker: TakerId) {
        self.takers.remove(&taker);
        for lane in &mut self.lanes {
            lane.queues.retain(|(whose, _), queue| {
                let stays = *whose != taker;
                lane.bytes -= if stays { 0 } else { queue.bytes };
                stays
            });
        }
    }

    /// Why nothing is given any more, if that is so.
    #[must_use]
    pub fn over(&self, now: Instant) -> Option<Over> {
        if self.terms.until.is_some_and(|end| now >= end) {
            return Some(Over::Time);
        }
        let is_spent = self.terms.quota.is_some_and(|quota| self.carried >= quota.0);
        is_spent.then_some(Over::Quota)
    }

    /// Sets how much a way out carries at most in a direction from now on; `None`: no limit of its
    /// own.
    pub fn handle_limit(&mut self, way: WayId, direction: Direction, rate: Option<Rate>, now: Instant) {
        let limits = &mut self.lanes[direction as usize].limits;
        match rate {
            Some(rate) => {
                let limit = limits.entry(way).or_insert(Limit { rate, clock: now });
                limit.rate = rate;
                // What a slower rate has put off is not put off any longer.
                limit.clock = limit
                    .clock
                    .min(now + LIMIT_BURST + rate.time_for(Bytes(FULL_PACKET)));
            }
            None => drop(limits.remove(&way)),
        }
    }

    /// Whether datagrams have to be queued one by one; without cap and limit they
    /// [`pass`](Self::pass).
    #[must_use]
    pub fn is_paced(&self, way: WayId, direction: Direction) -> bool {
        let lane = &self.lanes[direction as usize];
        self.terms.cap.is_some() || lane.limits.contains_key(&way) || lane.bytes > 0
    }

    /// Whether any datagram waits.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.lanes.iter().any(|lane| lane.bytes > 0)
    }

    /// How many of the first datagrams of these sizes go at once, where nothing is paced. The rest
    /// is to be dropped.
    pub fn pass(
        &mut self,
        (taker, way): (TakerId, WayId),
        direction: Direction,
        sizes: impl IntoIterator<Item = Bytes>,
        now: Instant,
    ) -> usize {
        let mut count = 0;
        for size in sizes {
            if self.is_paced(way, direction) || !self.charge(taker, direction, size.0, now) {
                self.dropped += 1;
            } else {
                count += 1;
            }
        }
        count
    }

    /// Takes in a datagram, where something is paced. [`poll_transmit`](Self::poll_transmit) says
    /// when it goes, unless the queue is full.
    pub fn handle_packet(
        &mut self,
        (taker, way): (TakerId, WayId),
        direction: Direction,
        size: Bytes,
        packet: P,
        now: Instant,
    ) {
        if !self.takers.contains_key(&taker) || self.over(now).is_some() {
            self.dropped += 1;
            return;
        }
        let most = self.longest_queue();
        let lane = &mut self.lanes[direction as usize];
        let turn = lane.turn;
        let queue = lane.queues.entry((taker, way)).or_insert_with(|| Queue {
            packets: VecDeque::new(),
            bytes: 0,
            had: turn,
        });
        if queue.packets.is_empty() {
            // Who had nothing to send has no claim to what the others had meanwhile.
            queue.had = queue.had.max(turn);
        }
        queue.packets.push_back((size.0, packet));
        queue.bytes += size.0;
        lane.bytes += size.0;
        if let Some(limit) = lane.limits.get(&way) {
            // Slow ways have short queues: two packets, so that one can wait while one is sent.
            let most = limit.rate.bytes_in(QUEUE_TIME).0.max(2 * FULL_PACKET);
            while queue.bytes > most
                && let Some((size, _)) = queue.packets.pop_back()
            {
                queue.bytes -= size;
                lane.bytes -= size;
                self.dropped += 1;
            }
        }
        while lane.bytes > most {
            let longest = lane.queues.values_mut().max_by_key(|queue| queue.bytes);
            let Some((size, _)) = longest.and_then(|queue| {
                let last = queue.packets.pop_back();
                queue.bytes -= last.as_ref().map_or(0, |(size, _)| *size);
                last
            }) else {
                break;
            };
            lane.bytes -= size;
            self.dropped += 1;
        }
    }

    /// The next datagram that may go in a direction now.
    pub fn poll_transmit(&mut self, direction: Direction, now: Instant) -> Option<Granted<P>> {
        if self.over(now).is_some() {
            self.clear();
            return None;
        }
        let lane = &mut self.lanes[direction as usize];
        if lane.clock > now + BURST {
            return None;
        }
        let limits = &lane.limits;
        let is_free = |way: &WayId| {
            limits
                .get(way)
                .is_none_or(|limit| limit.clock <= now + LIMIT_BURST)
        };
        let waiting = lane.queues.iter_mut();
        let waiting = waiting.filter(|((_, way), queue)| !queue.packets.is_empty() && is_free(way));
        let (&(taker, way), queue) = waiting.min_by_key(|(_, queue)| queue.had)?;
        let (size, packet) = queue.packets.pop_front()?;
        queue.bytes -= size;
        lane.turn = queue.had;
        queue.had += size;
        lane.bytes -= size;
        if !self.charge(taker, direction, size, now) {
            self.dropped += 1;
            return None;
        }
        let lane = &mut self.lanes[direction as usize];
        if let Some(cap) = self.terms.cap {
            lane.clock = lane.clock.max(now) + cap.time_for(Bytes(size));
        }
        if let Some(limit) = lane.limits.get_mut(&way) {
            limit.clock = limit.clock.max(now) + limit.rate.time_for(Bytes(size));
        }
        Some(Granted { taker, packet })
    }

    /// When [`poll_transmit`](Self::poll_transmit) has something, or the end comes.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = self.lanes.iter().filter_map(|lane| {
            let waiting = lane.queues.iter().filter(|(_, queue)| !queue.packets.is_empty());
            let limit = |way: &WayId| lane.limits.get(way).map_or(START, |limit| limit.clock);
            let free = |way: &WayId| before(lane.clock, BURST).max(before(limit(way), LIMIT_BURST));
            waiting.map(|((_, way), _)| free(way)).min()
        });
        due.chain(self.terms.until).min()
    }

    /// What all takers have had together, in bytes of IP packets: what counts for the quota.
    #[must_use]
    pub fn carried(&self) -> Bytes {
        Bytes(self.carried)
    }

    /// What a taker has had since it came: up and down.
    #[must_use]
    pub fn carried_for(&self, taker: TakerId) -> [Bytes; 2] {
        self.takers
            .get(&taker)
            .map_or([Bytes(0); 2], |both| both.map(Bytes))
    }

    /// Datagrams that were dropped: queues were full, the quota was used up, the end had come.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Counts a datagram that is about to go; false when it may not.
    fn charge(&mut self, taker: TakerId, direction: Direction, size: u64, now: Instant) -> bool {
        let fits = self.over(now).is_none()
            && self
                .terms
                .quota
                .is_none_or(|quota| self.carried + size <= quota.0);
        if !fits {
            // One that does not fit ends it: a smaller one behind it would only trickle.
            if let Some(quota) = self.terms.quota {
                self.carried = self.carried.max(quota.0);
            }
            return false;
        }
        let Some(both) = self.takers.get_mut(&taker) else {
            return false;
        };
        both[direction as usize] += size;
        self.carried += size;
        true
    }

    fn clear(&mut self) {
        for lane in &mut self.lanes {
            self.dropped += lane
                .queues
                .values()
                .map(|queue| queue.packets.len() as u64)
                .sum::<u64>();
            lane.queues.clear();
            lane.bytes = 0;
        }
    }

    fn longest_queue(&self) -> u64 {
        let at_cap = self
            .terms
            .cap
            .map_or(LONGEST_QUEUE, |cap| cap.bytes_in(QUEUE_TIME).0);
        at_cap.clamp(SHORTEST_QUEUE, LONGEST_QUEUE)
    }
}

fn before(at: Instant, time: Duration) -> Instant {
    Instant::from_nanos(at.since(START).saturating_sub(time).as_nanos() as u64)
}

const START: Instant = Instant::from_nanos(0);

/// Takers at once, against one device that shows many keys.
pub const MOST_TAKERS: usize = 64;
/// How far a direction may be ahead of its cap: half of the 2 % of a second that a cap may be off,
/// and several times what a timer is late.
pub const BURST: Duration = Duration::from_millis(10);
/// How far a way out may be ahead of its limit: what a timer is late. More would be a queue at the
/// modem.
const LIMIT_BURST: Duration = Duration::from_millis(2);
/// What waits at most, at the cap: the path's model of the taker sees the queue grow and holds
/// back; a longer one would delay all that is behind it.
pub const QUEUE_TIME: Duration = Duration::from_millis(100);
/// Unit: bytes (RFC 894).
const FULL_PACKET: u64 = 1_500;
/// Whatever the cap: a burst of segments of one large packet fits.
const SHORTEST_QUEUE: u64 = 64 << 10;
/// Memory that takers can make a member use, in each direction.
pub const LONGEST_QUEUE: u64 = 4 << 20;

#[cfg(test)]
mod tests;
