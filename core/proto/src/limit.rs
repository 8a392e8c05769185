//! A rate that a whole session is held to, whatever its paths carry.
//!
//! A hub holds its clients to caps. Where a session sends, its packets wait in the queues of their
//! flows ([`crate::egress`]), and [`Limit`] says how many may go. Where a session receives, they
//! wait in a [`Gate`] before they are delivered: a client that keeps to its cap by itself has
//! nothing there, and one that does not fills it and loses the rest.
//!
//! ```text
//!   session sends:     flows ----> Limit ----> schedulers, paths
//!   session receives:  paths, resequencer ----> Gate ----> delivered
//! ```
//!
//! Both pace as a path does ([`Pacer`]): over any time pass the rate and [`CATCH_UP`] of it.
//! A rate of zero shuts: nothing passes. Units: bytes of UDP payload.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant, Rate};

use crate::path::FULL_PACKET;
use crate::path::model::Pacer;

/// A rate limit of one direction of a session.
#[derive(Debug)]
pub struct Limit {
    rate: Rate,
    pacer: Pacer,
}

impl Limit {
    /// A limit of that rate; zero shuts.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        Self {
            rate,
            pacer: Pacer::new(CATCH_UP),
        }
    }

    /// The rate.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Whether nothing passes at all.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.rate == Rate::ZERO
    }

    /// Bytes that may pass now: 0, or at least a packet of `packet` bytes.
    #[must_use]
    pub fn credit(&self, packet: u64, now: Instant) -> u64 {
        if self.is_shut() {
            return 0;
        }
        self.pacer.credit(Some(self.rate), packet, now)
    }

    /// When a packet of `packet` bytes may pass.
    #[must_use]
    pub fn ready_at(&self, packet: u64) -> Instant {
        if self.is_shut() {
            return Instant::FAR_FUTURE;
        }
        self.pacer.ready_at(Some(self.rate), packet)
    }

    /// Takes note of `bytes` that passed.
    pub fn on_sent(&mut self, bytes: u64, now: Instant) {
        if !self.is_shut() {
            self.pacer.on_sent(Some(self.rate), bytes, now);
        }
    }
}

/// Holds the packets that a session has received to a rate: `T` names a packet of the driver.
///
/// Steady state: first in, first out; at most [`QUEUE_TIME`] at the rate waits, and the newest
/// packet is dropped beyond that. Cost: O(1) a packet; no allocation once the queue has grown.
#[derive(Debug)]
pub struct Gate<T> {
    limit: Limit,
    queue: VecDeque<(T, u64)>,
    bytes: u64,
    dropped: u64,
}

impl<T> Gate<T> {
    /// A gate for that rate; zero shuts.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        Self {
            limit: Limit::new(rate),
            queue: VecDeque::new(),
            bytes: 0,
            dropped: 0,
        }
    }

    /// Changes the rate; what waits stays.
    pub fn set_rate(&mut self, rate: Rate) {
        if rate != self.limit.rate() {
            self.limit = Limit::new(rate);
        }
    }

    /// Takes in a packet of `len` bytes; gives it back when it is to be dropped.
    pub fn handle_packet(&mut self, packet: T, len: u64) -> Option<T> {
        let most = self.limit.rate().bytes_in(QUEUE_TIME).0;
        let most = most.clamp(SHORTEST_QUEUE, LONGEST_QUEUE);
        let is_full = self.bytes + len > most || self.queue.len() >= MOST_PACKETS;
        if self.limit.is_shut() || is_full {
            self.dropped += 1;
            return Some(packet);
        }
        self.bytes += len;
        self.queue.push_back((packet, len));
        None
    }

    /// The next packet that may pass now.
    pub fn poll_packet(&mut self, now: Instant) -> Option<T> {
        let (_, len) = self.queue.front()?;
        if self.limit.credit(*len, now) == 0 {
            return None;
        }
        let (packet, len) = self.queue.pop_front()?;
        self.bytes -= len;
        self.limit.on_sent(len, now);
        Some(packet)
    }

    /// When [`poll_packet`](Self::poll_packet) has something; far away when nothing waits.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        let next = self.queue.front();
        next.map_or(Instant::FAR_FUTURE, |(_, len)| self.limit.ready_at(*len))
    }

    /// Lets everything go that waits, whatever the rate: the gate is taken away.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.bytes = 0;
        self.queue.drain(..).map(|(packet, _)| packet)
    }

    /// The limit, for what passes beside the queue: bytes of streams.
    pub fn limit_mut(&mut self) -> &mut Limit {
        &mut self.limit
    }

    /// Packets that were given back.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// How much lateness of the driver is made up for: a thread of a busy machine waits so long for its
/// turn. A link behind a limit carries more, so this makes no queue.
pub const CATCH_UP: Duration = Duration::from_millis(25);
/// What may wait, at the rate: what gathers until a path that has fallen silent counts as suspect,
/// and comes at once when it is back.
pub const QUEUE_TIME: Duration = Duration::from_millis(400);
/// Whatever the rate: the packets of one large one fit.
const SHORTEST_QUEUE: u64 = 44 * FULL_PACKET;
/// Memory that a session can take, and the same for packets that are small.
const LONGEST_QUEUE: u64 = 4 << 20;
const MOST_PACKETS: usize = 4_096;

#[cfg(test)]
mod tests;
