//! The access point's side: what comes for the client is kept for a moment, numbered, and spread
//! over two links.
//!
//! It starts as a traditional repeater's access point, with nothing on the shared link. In its
//! steady state a packet goes to whichever link answered for one. It fails without a loss of its
//! own: what finds no room is counted, and so is what a link gave up.
//!
//! ```text
//!                        +--> own link    (shut while a migration goes on) --+
//!   packet --> buffer ---+                                                   +--> answer: delivered or given up
//!     |                  +--> shared link (as many as the throttle says) ----+
//!     +--> overflowed
//! ```
//!
//! Source: Multifacet sections 3.1, 3.2, 3.4 and 4.

use std::collections::VecDeque;

use hawser_units::Instant;

use super::Striping;
use super::migration::{Migration, Step};
use super::throttle::{Feedback, Throttle, ThrottleConfig};

/// The link on a channel of its own, which can move to another channel.
pub const OWN: usize = 0;
/// The link on the channel that the repeater needs towards its clients.
pub const SHARED: usize = 1;

/// How packets are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Discipline {
    /// By the links' answers, with the shared link throttled by the repeater.
    Throttled,
    /// By the links' answers alone: nobody else needs the second link's channel.
    Unthrottled,
    /// In these shares whatever the links answer. Even ones are Multifacet's naive baseline; all on
    /// one link is a traditional repeater.
    Shares([f64; 2]),
    /// In shares that [`AccessPoint::set_shares`] changes; a packet waits for the link whose turn
    /// it is.
    Turns,
}

/// How an [`AccessPoint`] behaves. Units: packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// How packets are spread.
    pub discipline: Discipline,
    /// Kept while no link has room.
    pub buffer: usize,
    /// Unanswered on a link that is not throttled; with fixed shares, what a link's driver keeps.
    pub threshold: usize,
    /// Of the shared link.
    pub throttle: ThrottleConfig,
}

/// A packet as it goes over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Striped<P> {
    /// [`OWN`] or [`SHARED`].
    pub link: usize,
    /// Counts all packets of both links.
    pub number: u32,
    /// What it is.
    pub packet: P,
}

/// What became of packets; with those that wait or are unanswered, they add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Taken in.
    pub offered: u64,
    /// Found no room.
    pub overflowed: u64,
    /// Acknowledged by the repeater.
    pub delivered: u64,
    /// Given up by a link.
    pub lost: u64,
}

/// An access point that stripes towards one repeater.
///
/// Drive it as every machine of this level. Every packet of [`Self::poll_transmit`] needs one
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
    /// What each link is owed by its share.
    credit: [f64; 2],
    /// The link whose turn it is.
    turn: usize,
    counters: Counters,
}

impl<P> AccessPoint<P> {
    /// One with nothing to send; `migration` knows the channel of the own link.
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

    /// Takes in a packet for the client.
    pub fn handle_packet(&mut self, packet: P) {
        self.counters.offered += 1;
        // Without a buffer a packet passes only while a link has room.
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

    /// The next packet to send. It never names the own link while that is not tuned.
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

    /// The link whose turn it was; the next is the one that the shares owe most.
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

    /// A link is done with a packet.
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

    /// A link's radio has vanished: what it had is lost.
    pub fn handle_link_lost(&mut self, link: usize) {
        while self.striping.unanswered(link) > 0 {
            self.handle_answer(link, false);
        }
    }

    /// The repeater spoke of its queue.
    pub fn handle_feedback(&mut self, feedback: Feedback, now: Instant) {
        self.throttle.handle_feedback(feedback, now);
        self.set_thresholds();
    }

    /// The own channel is too poor: tries `candidates`, of which none has carried more than
    /// `throughput` lately.
    pub fn migrate(&mut self, candidates: &[u16], throughput: f64, now: Instant) {
        self.steps
            .extend(self.migration.start(candidates, throughput, now));
        self.set_thresholds();
    }

    /// What to do to the radio of the own link.
    pub fn poll_step(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// Lets time pass. `measured`: what a test of the present channel found so far.
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

    /// When [`Self::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        let due = self.throttle.poll_timeout();
        self.migration.poll_timeout().map_or(due, |step| step.min(due))
    }

    /// How many packets may be unanswered on a link.
    #[must_use]
    pub fn threshold(&self, link: usize) -> usize {
        self.striping.threshold(link)
    }

    /// Packets of a link without an answer yet.
    #[must_use]
    pub fn unanswered(&self, link: usize) -> usize {
        self.striping.unanswered(link)
    }

    /// Packets that wait for a link.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.buffer.len()
    }

    /// The search for a better own channel.
    #[must_use]
    pub fn migration(&self) -> &Migration {
        &self.migration
    }

    /// What became of packets.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }
}
