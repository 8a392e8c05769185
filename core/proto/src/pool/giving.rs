//! Sharing of a pool member's uplinks: rate, quota, end, and the turns of takers.
//!
//! A member relays datagrams of *takers*. This machine decides which datagrams are sent: it applies
//! a rate cap for each direction, a quota for both together, an end, and fair turns between takers.
//! It stores waiting datagrams, and uses no sockets.
//!
//! ```text
//!   handle_packet --> queue of the taker --> poll_transmit (fair between takers, paced to the cap,
//!                                            and to the rate left on each uplink)
//!   pass          --> at once, where there is neither a cap nor a limit
//! ```
//!
//! Steady state: all queues together contain at most [`QUEUE_TIME`] at the cap. Beyond that, the
//! taker with the longest queue loses its newest datagram. Failure: when the quota is used up or
//! the end has come, nothing passes, and waiting datagrams are dropped.
//!
//! Pacing is the virtual scheduling algorithm of ITU-T I.371 annex A: a datagram may be sent when
//! the virtual clock of the direction is at most [`BURST`] ahead of time. Over any second, at most
//! `cap * (1 s + BURST)` and one datagram pass. An uplink may have a limit of its own, which is
//! paced in the same manner ([`super::yielding`] computes it). Units: sizes are bytes of IP
//! packets.

use std::collections::{BTreeMap, VecDeque};

use hawser_units::{Bytes, Duration, Instant, Rate};

/// A taker, numbered by the code that authenticates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TakerId(pub u64);

/// Uplink of the member, numbered by the caller that opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UplinkId(pub u16);

/// Direction of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Direction from the taker to its hub.
    Up,
    /// Direction from the hub to the taker.
    Down,
}

/// Terms set by the owner of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Maximum rate in each direction, all takers together.
    pub cap: Option<Rate>,
    /// Maximum bytes in both directions together, all takers together.
    pub quota: Option<Bytes>,
    /// End of the sharing.
    pub until: Option<Instant>,
}

/// Reason why sharing has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The quota is used up.
    Quota,
    /// The end has come.
    Time,
}

/// A datagram that may be sent now.
#[derive(Debug, PartialEq, Eq)]
pub struct Granted<P> {
    /// Taker of the datagram.
    pub taker: TakerId,
    /// The datagram.
    pub packet: P,
}

/// Decides when the datagrams of all takers are sent.
///
/// Cost: O(takers and their uplinks) per datagram, at most [`MAX_TAKERS`] of them; memory bounded
/// by [`QUEUE_TIME`] at the cap, and by [`LONGEST_QUEUE`] in each direction.
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
    queues: BTreeMap<(TakerId, UplinkId), Queue<P>>,
    bytes: u64,
    /// Virtual clock: time at which everything that was sent would have been sent at the cap.
    clock: Instant,
    /// Uplinks with a rate limit of their own.
    limits: BTreeMap<UplinkId, Limit>,
    /// Service that a taker is assumed to have received when it begins to wait.
    turn: u64,
}

/// Rate limit of an uplink.
#[derive(Clone, Copy, Debug)]
struct Limit {
    rate: Rate,
    /// Virtual clock, as that of a lane.
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
    /// Creates a member that has already relayed `carried` bytes, which count against the quota.
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

    /// Admits a taker; returns false if there are too many.
    pub fn handle_taker(&mut self, taker: TakerId) -> bool {
        if self.takers.contains_key(&taker) {
            return true;
        }
        let has_room = self.takers.len() < MAX_TAKERS;
        if has_room {
            self.takers.insert(taker, [0; 2]);
        }
        has_room
    }

    /// Ends sharing with a taker at once, and drops its waiting datagrams.
    pub fn handle_taker_left(&mut self, taker: TakerId) {
        self.takers.remove(&taker);
        for lane in &mut self.lanes {
            lane.queues.retain(|(whose, _), queue| {
                let stays = *whose != taker;
                lane.bytes -= if stays { 0 } else { queue.bytes };
                stays
            });
        }
    }

    /// Returns the reason why sharing has ended, if it has.
    #[must_use]
    pub fn over(&self, now: Instant) -> Option<Over> {
        if self.terms.until.is_some_and(|end| now >= end) {
            return Some(Over::Time);
        }
        let is_spent = self.terms.quota.is_some_and(|quota| self.carried >= quota.0);
        is_spent.then_some(Over::Quota)
    }

    /// Sets the maximum rate of an uplink in a direction from now on; `None`: no limit of its own.
    pub fn handle_limit(&mut self, way: UplinkId, direction: Direction, rate: Option<Rate>, now: Instant) {
        let limits = &mut self.lanes[direction as usize].limits;
        match rate {
            Some(rate) => {
                let limit = limits.entry(way).or_insert(Limit { rate, clock: now });
                limit.rate = rate;
                // Packets delayed by the slower rate are no longer delayed.
                limit.clock = limit
                    .clock
                    .min(now + LIMIT_BURST + rate.time_for(Bytes(FULL_PACKET)));
            }
            None => drop(limits.remove(&way)),
        }
    }

    /// Returns whether datagrams have to be queued singly; without cap and limit they
    /// [`pass`](Self::pass).
    #[must_use]
    pub fn is_paced(&self, way: UplinkId, direction: Direction) -> bool {
        let lane = &self.lanes[direction as usize];
        self.terms.cap.is_some() || lane.limits.contains_key(&way) || lane.bytes > 0
    }

    /// Returns whether any datagram waits.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.lanes.iter().any(|lane| lane.bytes > 0)
    }

    /// Returns how many of the first datagrams of these sizes may be sent at once, if nothing is
    /// paced. The caller drops the rest.
    pub fn pass(
        &mut self,
        (taker, way): (TakerId, UplinkId),
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

    /// Queues a datagram if something is paced. [`poll_transmit`](Self::poll_transmit) returns when
    /// it is sent, unless the queue is full.
    pub fn handle_packet(
        &mut self,
        (taker, way): (TakerId, UplinkId),
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

    /// Returns the next datagram that may be sent in a direction now.
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
        let is_free = |way: &UplinkId| {
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

    /// Returns when [`poll_transmit`](Self::poll_transmit) has an output, or when the sharing ends.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = self.lanes.iter().filter_map(|lane| {
            let waiting = lane.queues.iter().filter(|(_, queue)| !queue.packets.is_empty());
            let limit = |way: &UplinkId| lane.limits.get(way).map_or(START, |limit| limit.clock);
            let free = |way: &UplinkId| before(lane.clock, BURST).max(before(limit(way), LIMIT_BURST));
            waiting.map(|((_, way), _)| free(way)).min()
        });
        due.chain(self.terms.until).min()
    }

    /// Returns the bytes of IP packets relayed for all takers together, which count against the
    /// quota.
    #[must_use]
    pub fn relayed(&self) -> Bytes {
        Bytes(self.carried)
    }

    /// Returns the bytes relayed for a taker since it arrived: up and down.
    #[must_use]
    pub fn relayed_for(&self, taker: TakerId) -> [Bytes; 2] {
        self.takers
            .get(&taker)
            .map_or([Bytes(0); 2], |both| both.map(Bytes))
    }

    /// Returns the number of datagrams dropped because queues were full, the quota was used up, or
    /// sharing had ended.
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

const START: Instant = Instant::ZERO;

/// Maximum number of takers. Source: a bound on memory against one device that shows many keys; the
/// number was not measured.
pub const MAX_TAKERS: usize = 64;
/// Maximum advance of a direction against its cap: several times the lateness of a timer. Source:
/// half of the 2 % of a second by which a cap may be exceeded (docs/manual/neighbours.md).
pub const BURST: Duration = Duration::from_millis(10);
/// Maximum advance of an uplink against its limit: the lateness of a timer. A larger one would
/// build a queue at the modem. Source: our choice, twice the 1 ms of the driver's timers; less
/// loses a part of the limit.
const LIMIT_BURST: Duration = Duration::from_millis(2);
/// Queue limit at the cap: the taker's path model sees the queue grow and reduces its rate; a
/// longer one would delay all packets behind it. Source: our choice, a round trip of most paths
/// (the `INTERVAL` of RFC 8289 section 4.3), so that a window that was halved still fills the
/// limit.
pub const QUEUE_TIME: Duration = Duration::from_millis(100);
/// Unit: bytes (RFC 894).
const FULL_PACKET: u64 = 1_500;
/// Minimum queue limit: a burst of segments of one large packet. Source: the total length of an
/// IPv4 packet has 16 bits (RFC 791 section 3.1).
const SHORTEST_QUEUE: u64 = 64 << 10;
/// Maximum queue limit of a direction. Source: a bound on the memory that takers can make a member
/// use, 4 MiB.
pub const LONGEST_QUEUE: u64 = 4 << 20;

#[cfg(test)]
mod tests;
