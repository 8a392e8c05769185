//! How much an access point may send on the channel that its repeater needs towards the client.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant};

/// What a repeater says of its queue towards the client.
///
/// Source: Multifacet section 3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feedback {
    /// Fewer packets wait than the low mark: the channel has room.
    More,
    /// Between the marks.
    Keep,
    /// More wait than the high mark: the access point takes the repeater's air.
    Less,
}

/// The repeater's side: looks at its queue and speaks.
///
/// It speaks each period, and at once when the queue crosses the high mark. Lost feedback is
/// repeated by the next period.
///
/// Source: Multifacet section 3.2; the period is that of section 5.4. The paper does not state the
/// marks.
#[derive(Clone, Debug)]
pub struct Monitor {
    config: MonitorConfig,
    due: Instant,
    is_above: bool,
    queue: usize,
    outgoing: VecDeque<Feedback>,
}

/// How a [`Monitor`] judges.
///
/// Units: packets, as in the paper, or any other measure of a queue that [`Monitor::handle_queue`]
/// is told: [`super::client_hop`] has microseconds of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MonitorConfig {
    /// Below it there is room.
    pub low: usize,
    /// Above it there is too much.
    pub high: usize,
    /// Between two reports.
    pub period: Duration,
}

impl Default for MonitorConfig {
    fn default() -> Self {
        Self {
            low: 20,
            high: 100,
            period: Duration::from_millis(200),
        }
    }
}

impl Monitor {
    /// A repeater with an empty queue.
    #[must_use]
    pub fn new(config: MonitorConfig, now: Instant) -> Self {
        Self {
            config,
            due: now + config.period,
            is_above: false,
            queue: 0,
            outgoing: VecDeque::new(),
        }
    }

    /// So many packets wait for the client.
    pub fn handle_queue(&mut self, waiting: usize) {
        self.queue = waiting;
        let is_above = waiting > self.config.high;
        if is_above && !self.is_above {
            self.outgoing.push_back(Feedback::Less);
        }
        self.is_above = is_above;
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now < self.due {
            return;
        }
        self.due = now + self.config.period;
        self.outgoing.push_back(match self.queue {
            queue if queue < self.config.low => Feedback::More,
            queue if queue <= self.config.high => Feedback::Keep,
            _ => Feedback::Less,
        });
    }

    /// What to tell the access point.
    pub fn poll_transmit(&mut self) -> Option<Feedback> {
        self.outgoing.pop_front()
    }

    /// When [`Self::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        self.due
    }
}

/// The access point's side: how many packets may be unanswered on the shared channel.
///
/// It begins with nothing, as a traditional repeater, and probes from [`ThrottleConfig::first`] on
/// when there is room. Both ways by a factor. Feedback that stays away for long says that the
/// repeater cannot speak, and counts as too much.
///
/// Source: Multifacet section 3.2. Deviates: the factors, the largest threshold (that of the
/// other link) and the silence (five reports) are not stated.
#[derive(Clone, Debug)]
pub struct Throttle {
    config: ThrottleConfig,
    threshold: f64,
    heard: Instant,
}

/// How a [`Throttle`] moves.
///
/// Units: packets, as in the paper, or any other measure of what a link may carry:
/// [`super::client_hop`] has kbit/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThrottleConfig {
    /// The least threshold above nothing.
    pub first: f64,
    /// The largest.
    pub most: f64,
    /// By which it grows.
    pub increase: f64,
    /// By which it shrinks.
    pub decrease: f64,
    /// Without feedback it shrinks.
    pub silence: Duration,
}

impl Default for ThrottleConfig {
    fn default() -> Self {
        Self {
            first: 1.0,
            most: 8.0,
            increase: 1.5,
            decrease: 0.8,
            silence: Duration::from_secs(1),
        }
    }
}

impl Throttle {
    /// Nothing may be sent yet.
    #[must_use]
    pub fn new(config: ThrottleConfig, now: Instant) -> Self {
        Self {
            config,
            threshold: 0.0,
            heard: now,
        }
    }

    /// The repeater spoke.
    pub fn handle_feedback(&mut self, feedback: Feedback, now: Instant) {
        self.heard = now;
        match feedback {
            Feedback::More => {
                let grown = (self.threshold * self.config.increase).max(self.config.first);
                self.threshold = grown.min(self.config.most);
            }
            Feedback::Keep => {}
            Feedback::Less => self.shrink(),
        }
    }

    fn shrink(&mut self) {
        self.threshold *= self.config.decrease;
        if self.threshold < self.config.first {
            self.threshold = 0.0;
        }
    }

    /// The link carries so much, in the units of the threshold: more than that is not held open
    /// when there is too much already.
    pub fn handle_use(&mut self, carried: f64) {
        self.threshold = self.threshold.min(carried);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now.since(self.heard) >= self.config.silence {
            self.heard = now;
            self.shrink();
        }
    }

    /// When [`Self::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        self.heard + self.config.silence
    }

    /// How many packets may be unanswered on the shared channel.
    #[must_use]
    pub fn threshold(&self) -> usize {
        self.threshold.round() as usize
    }
}
