//! Rate limit of a whole session, independent of its paths.
//!
//! A hub enforces caps of its clients. In the sending direction, packets wait in the queues of
//! their flows ([`crate::egress`]), and [`Limit`] returns how many bytes may be sent. In the
//! receiving direction, packets wait in a [`Gate`] before they are delivered. The gate of a client
//! that obeys its cap stays empty; the gate of another client fills, and excess packets are
//! dropped.
//!
//! ```text
//!   session sends:     flows ----> Limit ----> schedulers, paths
//!   session receives:  paths, resequencer ----> Gate ----> delivered
//! ```
//!
//! Both pace like a path ([`Pacer`]): over any time, the rate and [`CATCH_UP`] of it pass. With a
//! rate of zero no bytes pass. Units: bytes of UDP payload.

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
    /// Creates a limit of this rate; zero blocks all packets.
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

    /// Returns whether the limit blocks all packets.
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

    /// Returns when a packet of `packet` bytes may pass.
    #[must_use]
    pub fn ready_at(&self, packet: u64) -> Instant {
        if self.is_shut() {
            return Instant::FAR_FUTURE;
        }
        self.pacer.ready_at(Some(self.rate), packet)
    }

    /// Records `bytes` that have passed.
    pub fn on_sent(&mut self, bytes: u64, now: Instant) {
        if !self.is_shut() {
            self.pacer.on_sent(Some(self.rate), bytes, now);
        }
    }
}

/// Limits the rate of the packets that a session has received; `T` is the driver's handle of a
/// packet.
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
    /// Creates a gate with this rate; zero blocks all packets.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        Self {
            limit: Limit::new(rate),
            queue: VecDeque::new(),
            bytes: 0,
            dropped: 0,
        }
    }

    /// Changes the rate; waiting packets remain in the queue.
    pub fn set_rate(&mut self, rate: Rate) {
        if rate != self.limit.rate() {
            self.limit = Limit::new(rate);
        }
    }

    /// Queues a packet of `len` bytes; returns it if it must be dropped.
    pub fn handle_packet(&mut self, packet: T, len: u64) -> Option<T> {
        let most = self.limit.rate().bytes_in(QUEUE_TIME).0;
        let most = most.clamp(SHORTEST_QUEUE, LONGEST_QUEUE);
        let is_full = self.bytes + len > most || self.queue.len() >= MAX_PACKETS;
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

    /// Returns when [`poll_packet`](Self::poll_packet) has an output; far in the future if no
    /// packet waits.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        let next = self.queue.front();
        next.map_or(Instant::FAR_FUTURE, |(_, len)| self.limit.ready_at(*len))
    }

    /// Releases all waiting packets regardless of the rate, because the limit is removed.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.bytes = 0;
        self.queue.drain(..).map(|(packet, _)| packet)
    }

    /// Returns the limit, for bytes of streams, which bypass the queue.
    pub fn limit_mut(&mut self) -> &mut Limit {
        &mut self.limit
    }

    /// Returns the number of packets that were refused.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// Lateness of the driver that is compensated: the longest wait of a thread for its turn on a busy
/// machine. A link behind a limit has a higher rate, so this builds no queue. Source: our choice;
/// less loses a part of the limit on a machine that is late, more sends a longer burst after it.
pub const CATCH_UP: Duration = Duration::from_millis(25);
/// Queue limit in time, at the rate: what accumulates while a path does not respond, and arrives as
/// a burst on its return. Source: `SUSPECT_FOR` in `core/proto/src/path/mod.rs`, after which the
/// path counts as dead.
pub const QUEUE_TIME: Duration = Duration::from_millis(400);
/// Minimum queue limit: the segments of one large packet. Source: the total length of an IPv4
/// packet has 16 bits (RFC 791 section 3.1), which is 44.5 full packets.
const SHORTEST_QUEUE: u64 = 44 * FULL_PACKET;
/// Maximum queue limit. Source: a bound on the memory of a session, 4 MiB, and for small packets
/// 4,096 of them.
const LONGEST_QUEUE: u64 = 4 << 20;
const MAX_PACKETS: usize = 4_096;

#[cfg(test)]
mod tests;
