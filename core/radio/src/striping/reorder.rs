//! Reorder buffer of the repeater: packets that arrive early wait for a bounded time.
//!
//! ```text
//!   next number --------------------------------------> delivered, with waiting successors
//!   later number --> waits --(hold over, or too many)--> delivered; missing ones are given up
//!   earlier number (given up before) ------------------> delivered at once, late
//! ```
//!
//! Source: Multifacet sections 3.3 and 4. The daemon's resequencer adapts to the paths' delays
//! instead of using one bound.

use std::collections::{BTreeMap, VecDeque};

use hawser_units::{Duration, Instant};

/// Bounds of the reorder buffer. Source: [`super::REORDER_HOLD`], [`super::REORDER_PACKETS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Maximum waiting time of a packet.
    pub hold: Duration,
    /// Maximum number of waiting packets.
    pub packets: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            hold: super::REORDER_HOLD,
            packets: super::REORDER_PACKETS,
        }
    }
}

/// Counters of delivered packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets delivered.
    pub passed: u64,
    /// Packets that had to wait.
    pub waited: u64,
    /// Sum of their waiting times.
    pub waiting: Duration,
    /// Packets delivered after later ones.
    pub late: u64,
    /// Histogram of waiting times: entry `n` counts waits from `2^n` us to less than `2^(n+1)` us.
    pub waits: [u64; WAITS],
}

impl Counters {
    /// Returns the median of the waiting times, interpolated linearly within a power of two.
    #[must_use]
    pub fn median_wait(&self) -> Option<Duration> {
        let half = self.waits.iter().sum::<u64>() as f64 / 2.0;
        let mut below = 0.0;
        for (place, count) in self.waits.iter().enumerate() {
            let count = *count as f64;
            if count > 0.0 && below + count >= half {
                let micros = f64::from(1_u32 << place) * (1.0 + (half - below) / count);
                return Some(Duration::from_secs_f64(micros / 1e6));
            }
            below += count;
        }
        None
    }

    fn count_wait(&mut self, waited: Duration) {
        self.waited += 1;
        self.waiting += waited;
        let micros = (waited.as_nanos() / 1_000).max(1) as u64;
        self.waits[(micros.ilog2() as usize).min(WAITS - 1)] += 1;
    }
}

/// Restores the order of numbered packets within a bounded time.
///
/// Cost: O(log n) a packet, amortised; memory bounded by [`Config::packets`].
#[derive(Clone, Debug)]
pub struct Reorder<P> {
    config: Config,
    next: u32,
    buffered: BTreeMap<u32, (P, Instant)>,
    /// Arrivals in order; those at the front still wait.
    arrivals: VecDeque<(u32, Instant)>,
    counters: Counters,
}

impl<P> Reorder<P> {
    /// Creates a buffer that expects number 0. Numbers do not wrap: 2^32 packets take days on the
    /// fastest links.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            next: 0,
            buffered: BTreeMap::new(),
            arrivals: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Handles a packet; appends to `out` the packets that are now in order. A number that already
    /// waits is ignored.
    pub fn handle_packet(&mut self, number: u32, packet: P, now: Instant, out: &mut Vec<P>) {
        if number < self.next {
            self.counters.late += 1;
            self.counters.passed += 1;
            out.push(packet);
            return;
        }
        self.buffered.entry(number).or_insert((packet, now));
        self.arrivals.push_back((number, now));
        self.pass(now, out);
        if self.buffered.len() > self.config.packets {
            self.give_up(now, out);
        }
    }

    fn pass(&mut self, now: Instant, out: &mut Vec<P>) {
        while let Some((packet, since)) = self.buffered.remove(&self.next) {
            self.next = self.next.saturating_add(1);
            let waited = now.since(since);
            self.counters.passed += 1;
            if !waited.is_zero() {
                self.counters.count_wait(waited);
            }
            out.push(packet);
        }
        while self
            .arrivals
            .front()
            .is_some_and(|(number, _)| *number < self.next)
        {
            self.arrivals.pop_front();
        }
    }

    /// Gives up the packets missing before the first waiting one.
    fn give_up(&mut self, now: Instant, out: &mut Vec<P>) {
        if let Some((first, _)) = self.buffered.first_key_value() {
            self.next = *first;
            self.pass(now, out);
        }
    }

    /// Gives up the missing packets whose hold time has passed at `now`.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut Vec<P>) {
        while self.poll_timeout().is_some_and(|due| due <= now) {
            self.give_up(now, out);
        }
    }

    /// Returns when the oldest waiting packet is delivered.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.arrivals.front().map(|(_, since)| *since + self.config.hold)
    }

    /// Returns the number of waiting packets.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.buffered.len()
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

/// Number of histogram entries. Source: an entry is a power of two in microseconds, and 2^26 us are
/// more than a minute.
const WAITS: usize = 26;
