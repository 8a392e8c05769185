//! Access point's side: packets for the client are buffered for a short time, numbered, and
//! distributed over two links.
//!
//! It starts as the access point of a traditional repeater, with nothing on the shared link. Steady
//! state: a packet is sent on the link that acknowledged one. On failure every packet is counted:
//! those that the full buffer drops, and those that a link gives up.
//!
//! ```text
//!                        +--> own link    (closed during a migration) -+
//!   packet --> buffer ---+                                             +--> delivered or given up
//!     |                  +--> shared link (limited by the throttle) ---+
//!     +--> overflowed
//! ```
//!
//! Source: Multifacet sections 3.1, 3.2, 3.4 and 4.

use std::collections::VecDeque;

use hawser_units::Instant;

use super::Striping;
use super::migration::{Migration, Step};
use super::throttle::{Feedback, Throttle, ThrottleConfig};

/// Index of the link on a channel of its own, which can move to another channel. Source: the first
/// of both links.
pub const OWN: usize = 0;
/// Index of the link on the channel that the repeater also needs towards its clients. Source: the
/// second of both links.
pub const SHARED: usize = 1;

/// Method by which packets are distributed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Discipline {
    /// Follows the links' acknowledgements, with the shared link throttled by the repeater.
    Throttled,
    /// Follows the links' acknowledgements only, where no other station needs the second channel.
    Unthrottled,
    /// Uses fixed shares, regardless of the links' acknowledgements. Equal shares are Multifacet's
    /// naive baseline; all packets on one link are a traditional repeater.
    Shares([f64; 2]),
    /// Uses shares that [`AccessPoint::set_shares`] changes; a packet waits for the link whose turn
    /// it is.
    Turns,
}

/// Parameters of an [`AccessPoint`]. Units: packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Method by which packets are distributed.
    pub discipline: Discipline,
    /// Maximum number of buffered packets while no link has room.
    pub buffer: usize,
    /// Maximum number of unacknowledged packets on a link that is not throttled; with fixed shares,
    /// the queue length of a link's driver.
    pub threshold: usize,
    /// Parameters of the shared link's throttle.
    pub throttle: ThrottleConfig,
}

/// Packet to send on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Striped<P> {
    /// [`OWN`] or [`SHARED`].
    pub link: usize,
    /// Number of the packet, counted over both links.
    pub number: u32,
    /// Packet to send.
    pub packet: P,
}

/// Counters of packets. Their sum with the waiting and unacknowledged packets is `offered`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Received for the client.
    pub offered: u64,
    /// Dropped because the buffer was full.
    pub overflowed: u64,
    /// Acknowledged by the repeater.
    pub delivered: u64,
    /// Given up by a link.
    pub lost: u64,
}

/// Access point that stripes packets towards one repeater.
///
/// Driven like every machine of this level. Every packet of [`Self::poll_transmit`] needs one
/// [`Self::handle_answer`].
///
/// Cost: O(1) a packet; memory bounded by [`Config::buffer`].
#[derive(Debug)]
pub struct AccessPoint<P> {
    config: Config,
    buffer: VecDeque<P>,
    striping: Striping,
    throttle: Throttle,
    migration: Migration,
    steps: VecDeque<Step>,
    next: u32,
    shares: [f64; 2],
    /// Credit of each link by its share.
    credit: [f64; 2],
    /// Link whose turn it is.
    turn: usize,
    counters: Counters,
}

impl<P> AccessPoint<P> {
    /// Creates an idle access point; `migration` has the channel of the own link.
    #[must_use]
    pub fn new(config: Config, migration: Migration, now: Instant) -> Self {
        let shared = match config.discipline {
            Discipline::Throttled => 0,
            Discipline::Unthrottled | Discipline::Shares(_) | Discipline::Turns => config.threshold,
        };
        Self {
            buffer: VecDeque::new(),
            striping: Striping::new(&[config.threshold, shared]),
            throttle: Throttle::new(config.throttle, now),
            migration,
            steps: VecDeque::new(),
            next: 0,
            shares: match config.discipline {
                Discipline::Shares(shares) => shares,
                Discipline::Throttled | Discipline::Unthrottled | Discipline::Turns => [1.0, 0.0],
            },
            credit: [0.0; 2],
            turn: match config.discipline {
                Discipline::Shares([own, shared]) => usize::from(own < shared),
                Discipline::Throttled | Discipline::Unthrottled | Discipline::Turns => OWN,
            },
            counters: Counters::default(),
            config,
        }
    }

    /// Handles a packet for the client.
    pub fn handle_packet(&mut self, packet: P) {
        self.counters.offered += 1;
        // Without a buffer a packet is accepted only while a link has room.
        let is_full = self.buffer.len() >= self.config.buffer.max(1);
        let has_nowhere = self.config.buffer == 0 && !self.has_room();
        if is_full || has_nowhere {
            self.counters.overflowed += 1;
        } else {
            self.buffer.push_back(packet);
        }
    }

    fn has_room(&self) -> bool {
        match self.config.discipline {
            Discipline::Shares(_) => true,
            Discipline::Turns => self.striping.has_room(self.turn),
            Discipline::Throttled | Discipline::Unthrottled => {
                self.is_open(OWN) && self.striping.has_room(OWN) || self.striping.has_room(SHARED)
            }
        }
    }

    fn is_open(&self, link: usize) -> bool {
        link == SHARED || self.migration.is_idle()
    }

    /// Returns the next packet to send. It never uses the own link while its channel is not tuned.
    pub fn poll_transmit(&mut self) -> Option<Striped<P>> {
        while !self.buffer.is_empty() {
            let link = match self.config.discipline {
                Discipline::Throttled | Discipline::Unthrottled => self.striping.choose()?,
                Discipline::Turns if !self.striping.give(self.turn) => return None,
                Discipline::Shares(_) if !self.striping.give(self.turn) => {
                    // The driver's queue is full, or its channel is not tuned.
                    self.buffer.pop_front();
                    self.counters.overflowed += 1;
                    self.take_turn();
                    continue;
                }
                Discipline::Turns | Discipline::Shares(_) => self.take_turn(),
            };
            let packet = self.buffer.pop_front()?;
            let number = self.next;
            self.next = self.next.wrapping_add(1);
            return Some(Striped { link, number, packet });
        }
        None
    }

    /// Returns the link whose turn it was; the next turn belongs to the link with the most credit.
    fn take_turn(&mut self) -> usize {
        let taken = self.turn;
        self.credit[taken] -= 1.0;
        let sum = self.shares[OWN] + self.shares[SHARED];
        for (credit, share) in self.credit.iter_mut().zip(self.shares) {
            *credit += share / sum;
        }
        self.turn = usize::from(self.credit[SHARED] > self.credit[OWN]);
        taken
    }

    /// Changes the shares.
    pub fn set_shares(&mut self, shares: [f64; 2]) {
        self.shares = shares;
        self.credit = [0.0; 2];
    }

    /// Handles the acknowledgement or the loss of a packet on a link.
    pub fn handle_answer(&mut self, link: usize, is_delivered: bool) {
        if self.striping.unanswered(link) == 0 {
            return;
        }
        self.striping.handle_answer(link);
        if is_delivered {
            self.counters.delivered += 1;
        } else {
            self.counters.lost += 1;
        }
    }

    /// Handles the removal of a link's radio: its packets are lost.
    pub fn handle_link_lost(&mut self, link: usize) {
        while self.striping.unanswered(link) > 0 {
            self.handle_answer(link, false);
        }
    }

    /// Handles the repeater's report about its queue.
    pub fn handle_feedback(&mut self, feedback: Feedback, now: Instant) {
        self.throttle.handle_feedback(feedback, now);
        self.set_thresholds();
    }

    /// Starts a search when the own channel is too poor: tries `candidates`. `throughput` is the
    /// recent rate of the present channel.
    pub fn migrate(&mut self, candidates: &[u16], throughput: f64, now: Instant) {
        self.steps
            .extend(self.migration.start(candidates, throughput, now));
        self.set_thresholds();
    }

    /// Returns the next action for the radio of the own link.
    pub fn poll_step(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// Advances the throttle and the search to `now`. `measured`: result of a test on the present
    /// channel so far.
    pub fn handle_timeout(&mut self, measured: Option<f64>, now: Instant) {
        self.throttle.handle_timeout(now);
        self.steps.extend(self.migration.handle_timeout(measured, now));
        self.set_thresholds();
    }

    fn set_thresholds(&mut self) {
        let own = if self.is_open(OWN) {
            self.config.threshold
        } else {
            0
        };
        self.striping.set_threshold(OWN, own);
        if self.config.discipline == Discipline::Throttled {
            self.striping.set_threshold(SHARED, self.throttle.threshold());
        }
    }

    /// Returns when [`Self::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        let due = self.throttle.poll_timeout();
        self.migration.poll_timeout().map_or(due, |step| step.min(due))
    }

    /// Returns how many packets may be unacknowledged on a link.
    #[must_use]
    pub fn threshold(&self, link: usize) -> usize {
        self.striping.threshold(link)
    }

    /// Returns the number of unacknowledged packets of a link.
    #[must_use]
    pub fn unanswered(&self, link: usize) -> usize {
        self.striping.unanswered(link)
    }

    /// Returns the number of packets that wait for a link.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the search for a better own channel.
    #[must_use]
    pub fn migration(&self) -> &Migration {
        &self.migration
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }
}
