//! Detection of a policer: a token bucket in the network that drops packets above its rate and
//! never queues.
//!
//! A queue that overflows is recognised by its delay. A policer adds no delay: a path loses a share
//! of its packets, delivers one rate at every sending rate, and its queue stays empty. The rate is
//! measured from loss to loss, when the bucket is empty both times, so its depth does not matter.
//! Pacing at that rate must end the losses; where it does not, the losses are chance.
//!
//! ```text
//!              two intervals of one rate, a tenth lost, no queue
//!  Free --------------------------------------------------------> Trial (paced at the rate)
//!   ^  ^                                                            |  |
//!   |  | 30 s, doubled each time            still loses             |  | loses less than half
//!   |  +-------------------------- Rejected <-----------------------+  v
//!   |                                                               Policed --+
//!   |     four times the rate passes                                 ^  |     | 5 s, doubled each
//!   +----------------------------------------------------------------+--+     | time: limit x 1.25
//!                                           loses at the same rate   |        |
//!                                                                    +--------+
//! ```
//!
//! It fails for a policer with a bucket that lasts for minutes, which is detected again each time,
//! and for several sessions that share one policer, whose rate differs from interval to interval.
//!
//! Source: `bbr_lt_bw_sampling` of Linux `tcp_bbr.c` (intervals from loss to loss, two of a rate);
//! Flach et al., "An Internet-Wide Analysis of Traffic Policing" (SIGCOMM 2016) section 3.
//! Deviates: an empty queue is required, the rate is tested, and a loss of a tenth is sufficient.

use hawser_units::{Bytes, Duration, Instant, Rate};

/// Round trips of an interval at least. Source: `bbr_lt_intvl_min_rtts`.
const MIN_ROUNDS: u32 = 4;
/// Round trips of an interval at most: four times as many. Source: `bbr_lt_bw_sampling`.
const MAX_ROUNDS: u32 = 16;
/// Longest interval where round trips are short. Reason: a policer of 128 kbit/s passes 20 packets
/// in it.
///
/// Source: docs/design/path-model.md, policers.
const MAX_INTERVAL: Duration = Duration::from_secs(2);
/// Packets of an interval. Reason: a tenth of fewer is chance.
///
/// Source: docs/design/path-model.md, policers.
const MIN_PACKETS: u64 = 32;
/// Share of packets lost. Reason: half of what a policer drops of what is sent at 1.25 times its
/// rate, and more than networks lose by chance for long.
///
/// Source: docs/design/path-model.md, policers.
const MIN_LOSS: f64 = 0.1;
/// Rates that differ by less are one. Source: `bbr_lt_bw_ratio` (1/8).
const SAME: f64 = 0.125;
/// Share of the rate that is sent. Reason: packets of other sizes have other shares of headers, and
/// the bucket has to refill for those that are not paced.
///
/// Source: docs/design/path-model.md, policers.
const MARGIN: f64 = 0.95;
/// Losses that a trial would show if they were chance. Reason: three or fewer are seen in 8 % of
/// cases (Poisson distribution).
///
/// Source: docs/design/path-model.md, policers.
const TRIAL_LOSSES: f64 = 7.0;
/// Round trips in which losses of before are still found. Reason: one, and one until the report.
///
/// Source: docs/design/path-model.md, policers.
const SETTLE_ROUNDS: u32 = 2;
/// Time beyond these. Reason: reports wait 25 ms, on both sides of a loss.
///
/// Source: docs/design/path-model.md, policers.
const SETTLE: Duration = Duration::from_millis(50);
/// Longest trial. Reason: a path with so few packets in this time needs no limit.
///
/// Source: docs/design/path-model.md, policers.
const MAX_TRIAL: Duration = Duration::from_secs(8);
/// Time for which a recognised rate is kept before more is tried; doubled each time that it is
/// found again. Reason: a try costs about ten packets.
///
/// Source: docs/design/path-model.md, policers.
const FIRST_HOLD: Duration = Duration::from_secs(5);
/// Maximum time for which a policed path keeps its limit before it tries a higher one. Reason: four
/// doublings of [`FIRST_HOLD`].
///
/// Source: docs/design/path-model.md, policers.
const MAX_HOLD: Duration = Duration::from_secs(80);
/// Time for which nothing is recognised after a trial in vain; doubled each time.
///
/// Reason: a trial costs a path that loses by chance about a second at 0.85 of its rate.
///
/// Source: docs/design/path-model.md, policers.
const FIRST_REJECTION: Duration = Duration::from_secs(30);
/// Maximum time for which no candidate is accepted. Reason: four doublings of [`FIRST_REJECTION`].
///
/// Source: docs/design/path-model.md, policers.
const MAX_REJECTION: Duration = Duration::from_secs(480);
/// Growth of the limit while more is tried. Source: draft-ietf-ccwg-bbr, the pacing gain of
/// `ProbeBW_UP`.
const RAISE: f64 = 1.25;
/// Time of one step. Reason: the bucket is used up before the next one at common depths.
///
/// Source: docs/design/path-model.md, policers.
const RAISE_INTERVAL: Duration = Duration::from_secs(1);
/// Multiple of the rate at which the policer counts as removed. Reason: six steps.
///
/// Source: docs/design/path-model.md, policers.
const REMOVED: f64 = 4.0;

/// State of the recognition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    /// No policer is known.
    Free,
    /// A rate is tried.
    Trial,
    /// The network polices at this rate of UDP payload.
    Policed(Rate),
    /// The losses were chance.
    Rejected,
}

/// Content of one report.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Bytes delivered since the last report.
    pub(super) bytes: u64,
    /// Packets delivered since the last report.
    pub(super) packets: u64,
    /// Packets found lost since the last report.
    pub(super) lost: u64,
    /// Records that a queue persists.
    pub(super) is_queued: bool,
    /// The smoothed round trip.
    pub(super) round_trip: Duration,
}

/// Sums since a loss.
#[derive(Clone, Copy, Debug)]
struct Interval {
    since: Instant,
    bytes: u64,
    packets: u64,
    lost: u64,
}

impl Interval {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            bytes: 0,
            packets: 0,
            lost: 0,
        }
    }

    fn add(&mut self, seen: &Seen) {
        self.bytes += seen.bytes;
        self.packets += seen.packets;
        self.lost += seen.lost;
    }

    fn sent(&self) -> u64 {
        self.packets + self.lost
    }

    fn loss(&self) -> f64 {
        self.lost as f64 / self.sent().max(1) as f64
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Free,
    Trial {
        rate: Rate,
        /// Share of packets lost before.
        loss: f64,
        since: Instant,
        seen: Option<Interval>,
    },
    Policed {
        rate: Rate,
        limit: Rate,
        raise_at: Instant,
    },
    Rejected {
        until: Instant,
    },
}

/// Recognition of a policer in the sending direction of a path.
///
/// Cost: O(1) a report.
#[derive(Debug)]
pub(super) struct Policing {
    phase: Phase,
    interval: Option<Interval>,
    /// Rate of the interval before, if it lost enough.
    last: Option<Rate>,
    hold: Duration,
    rejection: Duration,
}

impl Default for Policing {
    fn default() -> Self {
        Self {
            phase: Phase::Free,
            interval: None,
            last: None,
            hold: FIRST_HOLD,
            rejection: FIRST_REJECTION,
        }
    }
}

impl Policing {
    /// Returns the state.
    pub(super) fn state(&self) -> State {
        match self.phase {
            Phase::Free => State::Free,
            Phase::Trial { .. } => State::Trial,
            Phase::Policed { rate, .. } => State::Policed(rate),
            Phase::Rejected { .. } => State::Rejected,
        }
    }

    /// Returns the rate that must not be exceeded; `None` without a policer.
    pub(super) fn limit(&self) -> Option<Rate> {
        match self.phase {
            Phase::Trial { rate, .. } => Some(rate.scale(MARGIN)),
            Phase::Policed { limit, .. } => Some(limit),
            Phase::Free | Phase::Rejected { .. } => None,
        }
    }

    /// Processes one report.
    pub(super) fn on_report(&mut self, seen: &Seen, now: Instant) {
        match &mut self.phase {
            Phase::Rejected { until } if now >= *until => self.phase = Phase::Free,
            Phase::Rejected { .. } => return,
            Phase::Trial { .. } => return self.on_trial(seen, now),
            Phase::Policed { .. } => self.raise(seen, now),
            Phase::Free => {}
        }
        if let Some((rate, loss)) = self.sample(seen, now) {
            self.on_interval(rate, loss, now);
        }
    }

    /// Adds a report to the interval. Returns the rate and the loss of one that is over and lost
    /// enough.
    fn sample(&mut self, seen: &Seen, now: Instant) -> Option<(Rate, f64)> {
        if seen.is_queued {
            (self.interval, self.last) = (None, None);
            return None;
        }
        let Some(interval) = &mut self.interval else {
            self.interval = (seen.lost > 0).then(|| Interval::new(now));
            return None;
        };
        interval.add(seen);
        let time = now.since(interval.since);
        if time > MAX_INTERVAL.max(seen.round_trip * MAX_ROUNDS) {
            (self.interval, self.last) = (None, None);
            return None;
        }
        if seen.lost == 0 || time < seen.round_trip * MIN_ROUNDS || interval.sent() < MIN_PACKETS {
            return None;
        }
        let interval = self.interval.replace(Interval::new(now))?;
        let rate = Rate::of(Bytes(interval.bytes), time).filter(|rate| *rate != Rate::ZERO);
        if interval.loss() < MIN_LOSS || rate.is_none() {
            self.last = None;
        }
        rate.filter(|_| interval.loss() >= MIN_LOSS)
            .map(|rate| (rate, interval.loss()))
    }

    fn on_interval(&mut self, rate: Rate, loss: f64, now: Instant) {
        if let Phase::Policed { rate: known, .. } = self.phase
            && is_same(known, rate)
        {
            self.hold = (self.hold * 2).min(MAX_HOLD);
            self.keep(known, now);
            return;
        }
        let last = self.last.replace(rate);
        if let Some(last) = last.filter(|last| is_same(*last, rate)) {
            let rate = Rate::from_bps(u64::midpoint(last.as_bps(), rate.as_bps()));
            (self.interval, self.last) = (None, None);
            self.phase = Phase::Trial {
                rate,
                loss,
                since: now,
                seen: None,
            };
        }
    }

    fn keep(&mut self, rate: Rate, now: Instant) {
        (self.interval, self.last) = (None, None);
        self.phase = Phase::Policed {
            rate,
            limit: rate.scale(MARGIN),
            raise_at: now + self.hold,
        };
    }

    fn on_trial(&mut self, report: &Seen, now: Instant) {
        let Phase::Trial {
            rate,
            loss,
            since,
            seen,
        } = &mut self.phase
        else {
            return;
        };
        let (rate, loss, since) = (*rate, *loss, *since);
        if now.since(since) > MAX_TRIAL {
            self.phase = Phase::Free;
            return;
        }
        let Some(seen) = seen else {
            if now.since(since) >= report.round_trip * SETTLE_ROUNDS + SETTLE {
                *seen = Some(Interval::new(now));
            }
            return;
        };
        seen.add(report);
        let expected = seen.sent() as f64 * loss;
        if expected < TRIAL_LOSSES || now.since(seen.since) < report.round_trip * MIN_ROUNDS {
            return;
        }
        if seen.loss() < loss / 2.0 {
            self.keep(rate, now);
        } else {
            self.phase = Phase::Rejected {
                until: now + self.rejection,
            };
            self.rejection = (self.rejection * 2).min(MAX_REJECTION);
        }
    }

    /// Tries more, step by step, while nothing is lost.
    fn raise(&mut self, seen: &Seen, now: Instant) {
        let Phase::Policed {
            rate,
            limit,
            raise_at,
        } = &mut self.phase
        else {
            return;
        };
        if now < *raise_at || self.interval.is_some() {
            return;
        }
        *limit = (*limit).max(*rate).scale(RAISE);
        *raise_at = now + RAISE_INTERVAL.max(seen.round_trip * (2 * MIN_ROUNDS));
        if *limit > rate.scale(REMOVED) {
            self.phase = Phase::Free;
        }
    }
}

fn is_same(one: Rate, other: Rate) -> bool {
    let (least, most) = (one.min(other), one.max(other));
    least.as_bps() as f64 >= most.as_bps() as f64 * (1.0 - SAME)
}

#[cfg(test)]
mod tests;
