//! Throttle of an access point on the channel that its repeater also needs towards the client.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant};

/// Report of a repeater about its queue towards the client.
///
/// Source: Multifacet section 3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feedback {
    /// Queue below the low mark: the channel has room.
    More,
    /// Queue between the marks.
    Keep,
    /// Queue above the high mark: the access point uses too much of the repeater's airtime.
    Less,
}

/// Repeater's side: samples its queue and reports.
///
/// It reports each period, and at once when the queue exceeds the high mark. The next period
/// replaces lost feedback.
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

/// Thresholds of a [`Monitor`].
///
/// Units: packets, as in the paper, or another measure of a queue that [`Monitor::handle_queue`]
/// receives: [`super::client_hop`] uses microseconds of queueing delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MonitorConfig {
    /// Low mark: a shorter queue has room.
    pub low: usize,
    /// High mark: a longer queue is too long.
    pub high: usize,
    /// Interval between reports.
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
    /// Creates a monitor with an empty queue.
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

    /// Handles a new queue length towards the client.
    pub fn handle_queue(&mut self, waiting: usize) {
        self.queue = waiting;
        let is_above = waiting > self.config.high;
        if is_above && !self.is_above {
            self.outgoing.push_back(Feedback::Less);
        }
        self.is_above = is_above;
    }

    /// Reports the queue if the period has ended at `now`.
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

    /// Returns the next report for the access point.
    pub fn poll_transmit(&mut self) -> Option<Feedback> {
        self.outgoing.pop_front()
    }

    /// Returns when [`Self::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        self.due
    }
}

/// Access point's side: computes how many packets may be unacknowledged on the shared channel.
///
/// It starts at zero, as a traditional repeater, and grows from [`ThrottleConfig::first`] while
/// there is room. Increase and decrease are multiplicative. If feedback is missing for `silence`,
/// the repeater probably cannot transmit, so the threshold decreases.
///
/// Source: Multifacet section 3.2. Deviates: the paper does not state the factors, the maximum
/// threshold (here that of the other link) and the feedback timeout (here five reports).
#[derive(Clone, Debug)]
pub struct Throttle {
    config: ThrottleConfig,
    threshold: f64,
    heard: Instant,
}

/// Parameters of a [`Throttle`].
///
/// Units: packets, as in the paper, or another measure of a link's load: [`super::client_hop`] uses
/// kbit/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThrottleConfig {
    /// Minimum threshold above zero.
    pub first: f64,
    /// Maximum threshold.
    pub most: f64,
    /// Factor of an increase.
    pub increase: f64,
    /// Factor of a decrease.
    pub decrease: f64,
    /// Time without feedback after which it decreases.
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
    /// Creates a closed throttle.
    #[must_use]
    pub fn new(config: ThrottleConfig, now: Instant) -> Self {
        Self {
            config,
            threshold: 0.0,
            heard: now,
        }
    }

    /// Handles the repeater's feedback.
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

    /// Limits the threshold to the link's used rate `carried`, in the units of the threshold; for
    /// use before a decrease.
    pub fn handle_use(&mut self, carried: f64) {
        self.threshold = self.threshold.min(carried);
    }

    /// Decreases the threshold if feedback is overdue at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now.since(self.heard) >= self.config.silence {
            self.heard = now;
            self.shrink();
        }
    }

    /// Returns when [`Self::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        self.heard + self.config.silence
    }

    /// Returns the maximum number of unacknowledged packets on the shared channel.
    #[must_use]
    pub fn threshold(&self) -> usize {
        self.threshold.round() as usize
    }
}
