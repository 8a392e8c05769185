//! The repeater's order: packets that overtook others on the other link wait for them, not long.
//!
//! ```text
//!   the next number ------------------------------------> passed on, and what waits right behind it
//!   a later number --> waits --(hold over, or too many)--> passed on; what is missing before it is given up
//!   an earlier number (given up before) ----------------> passed on at once, late
//! ```
//!
//! Source: Multifacet sections 3.3 and 4. The daemon's resequencer follows the paths' delays
//! instead of one bound.

use std::collections::{BTreeMap, VecDeque};

use hawser_units::{Duration, Instant};

/// How long and how many. Source: [`super::REORDER_HOLD`], [`super::REORDER_PACKETS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// A packet waits no longer.
    pub hold: Duration,
    /// No more packets wait.
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

/// What passed, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets passed on.
    pub passed: u64,
    /// Of these, that had to wait.
    pub waited: u64,
    /// How long these waited in all.
    pub waiting: Duration,
    /// Passed on after later ones.
    pub late: u64,
    /// How many waited for so long: at `n` for at least `2^n` us and less than twice that.
    pub waits: [u64; WAITS],
}

impl Counters {
    /// How long half of the packets that had to wait did not exceed; within a power of two, they
    /// are taken to be spread evenly.
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

/// Puts numbered packets in order, for a short time.
///
/// Cost: O(log n) a packet, amortised; memory bounded by [`Config::packets`].
#[derive(Clone, Debug)]
pub struct Reorder<P> {
    config: Config,
    next: u32,
    held: BTreeMap<u32, (P, Instant)>,
    /// In the order of arrival; those at the front wait still.
    arrivals: VecDeque<(u32, Instant)>,
    counters: Counters,
}

impl<P> Reorder<P> {
    /// Expects number 0. It does not wrap: 2^32 packets are days of the fastest links.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            next: 0,
            held: BTreeMap::new(),
            arrivals: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Takes in a packet; what is in order now goes to `out`. A number that waits already is
    /// ignored.
    pub fn handle_packet(&mut self, number: u32, packet: P, now: Instant, out: &mut Vec<P>) {
        if number < self.next {
            self.counters.late += 1;
            self.counters.passed += 1;
            out.push(packet);
            return;
        }
        self.held.entry(number).or_insert((packet, now));
        self.arrivals.push_back((number, now));
        self.pass(now, out);
        if self.held.len() > self.config.packets {
            self.give_up(now, out);
        }
    }

    fn pass(&mut self, now: Instant, out: &mut Vec<P>) {
        while let Some((packet, since)) = self.held.remove(&self.next) {
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

    /// What is missing before the first that waits will not come.
    fn give_up(&mut self, now: Instant, out: &mut Vec<P>) {
        if let Some((first, _)) = self.held.first_key_value() {
            self.next = *first;
            self.pass(now, out);
        }
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut Vec<P>) {
        while self.poll_timeout().is_some_and(|due| due <= now) {
            self.give_up(now, out);
        }
    }

    /// When the longest wait is over.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.arrivals.front().map(|(_, since)| *since + self.config.hold)
    }

    /// Packets that wait.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// What passed, and how.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

/// Up to a minute and more.
const WAITS: usize = 26;
