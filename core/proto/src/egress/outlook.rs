//! Feedback for encoders: the rate of a flow that will arrive in time during the next second.
//!
//! ```text
//!   rate of the paths that are fast enough x share that remains in the next second (90 %)
//!     - rate of other real-time flows                             --> the flow's rate
//! ```
//!
//! A path that is not full shows only the rate that is sent over it. So a flow that meets no queue
//! may grow step by step.
//!
//! Source: RFC 8698 (NADA) for feedback that grows while there is no queue and follows the measured
//! rate otherwise. Deviates: the feedback is a rate, computed from the variation of the paths'
//! rates, instead of a delay from which the sender computes a rate.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant, Rate};
use hawser_wire::data::FRAMING;

use super::Egress;
use crate::flow::Flow;

/// Rates are remembered for this time. Source: one in ten seconds is missed in fewer than ten.
const HISTORY: Duration = Duration::from_secs(20);
/// The time between two samples. Source: reports come ten times as often (`ingress/`, 25 ms).
const EVERY: Duration = Duration::from_millis(200);
/// The time ahead. Source: encoders follow a rate from one group of pictures to the next, as
/// [`crate::flow`]'s windows do.
const AHEAD: Duration = Duration::from_secs(1);
/// A second in ten may keep less: probability 0.9. Source: RFC 8698 section 4 leaves a tenth of
/// the rate unused likewise.
const ONE_IN: usize = 10;
/// The part of a rate that counts while too little is known. Source: measured over recorded drives
/// with LTE and UMTS, 0.48 to 0.69 of a second's rate is there through the next one, but in one of
/// ten seconds.
const UNKNOWN: f64 = 0.5;
/// A flow that meets no queue may grow by this factor. Source: the largest step of RFC 8698
/// (`GAMMA_MAX` of 0.5), in two steps.
const STEP: f64 = 1.25;
/// Part of the deadline below which a queue does not count. Source: our choice, the same part as
/// `BUDGET_PART` of `egress/deadline.rs`, so that the queue that bulk may leave does not end a
/// flow's growth.
const QUEUE_PART: u32 = 10;

/// Recent rates of all paths together.
///
/// Cost: O(samples) for each answer, which is requested some times a second; memory: a hundred
/// samples.
#[derive(Debug, Default)]
pub(super) struct Outlook {
    samples: VecDeque<(Instant, u64)>,
}

impl Outlook {
    /// Records the rate of all paths together.
    pub(super) fn on_rate(&mut self, rate: Rate, now: Instant) {
        if self.samples.back().is_some_and(|(at, _)| now.since(*at) < EVERY) {
            return;
        }
        self.samples.push_back((now, rate.as_bps()));
        while self
            .samples
            .front()
            .is_some_and(|(at, _)| now.since(*at) > HISTORY)
        {
            self.samples.pop_front();
        }
    }

    /// Returns the part of a rate that the second after it kept, but in one of [`ONE_IN`] seconds.
    fn retained(&self) -> f64 {
        let Some((newest, _)) = self.samples.back() else {
            return UNKNOWN;
        };
        let whole = self.samples.iter().filter(|(at, _)| newest.since(*at) >= AHEAD);
        let retained = |(at, rate): &(Instant, u64)| {
            let follow = self
                .samples
                .iter()
                .filter(|(later, _)| later > at && later.since(*at) <= AHEAD);
            let least = follow.map(|(_, rate)| *rate).min().unwrap_or(*rate);
            (least as f64 / (*rate).max(1) as f64).min(1.0)
        };
        let mut all: Vec<f64> = whole.map(retained).collect();
        if all.len() < ONE_IN {
            return UNKNOWN;
        }
        all.sort_by(f64::total_cmp);
        all[all.len() / ONE_IN]
    }
}

impl<B: Copy> Egress<B> {
    /// Records the rate of the paths.
    pub(super) fn note_outlook(&mut self, now: Instant) {
        let rates = self.active().map(|path| path.model().rate().as_bps());
        let rate = Rate::from_bps(rates.sum());
        self.outlook.on_rate(rate, now);
    }

    /// Returns the rate of a flow that will arrive within its deadline or budget during the next
    /// second, in nine of ten seconds; `None` for a flow that has neither. Units: bit/s of inner
    /// packets.
    #[must_use]
    pub fn rate_in_time(&self, flow: &Flow<B>, now: Instant) -> Option<Rate> {
        let deadline = self.deadline(flow).or(flow.budget())?;
        let in_time = |path: &&crate::path::Path| {
            let delay = path.model().base_round_trip() / 2 + path.queueing(now);
            delay < deadline
        };
        let paths: Vec<_> = self.active().filter(in_time).collect();
        let carried = paths.iter().map(|path| path.model().rate().as_bps()).sum();
        let carried = self
            .limited(Rate::from_bps(carried))
            .scale(self.outlook.retained());
        let own = flow.rate();
        let framed = mean_len(flow) / (mean_len(flow) + FRAMING as f64);
        let others = self
            .realtime_rate(now)
            .scale(framed)
            .as_bps()
            .saturating_sub(own.as_bps());
        let left = carried.scale(framed).as_bps().saturating_sub(others);
        let mut queues = paths.iter().map(|path| path.queueing(now));
        let is_free = queues.any(|queue| queue < deadline / QUEUE_PART);
        let grown = if is_free { own.scale(STEP).as_bps() } else { 0 };
        Some(Rate::from_bps(left.max(grown)))
    }
}

/// The mean size of a flow's packets, bytes.
fn mean_len<B: Copy>(flow: &Flow<B>) -> f64 {
    let (packets, _) = flow.sent_and_late();
    flow.sent.max(1) as f64 / packets.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the part that remains after samples of these rates in turn, [`EVERY`] apart.
    fn retained(rates: &[u64]) -> f64 {
        let mut outlook = Outlook::default();
        let mut now = Instant::from_nanos(1_000_000_000);
        for rate in rates.iter().cycle().take(120) {
            outlook.on_rate(Rate::from_bps(*rate), now);
            now += EVERY;
        }
        assert!(outlook.samples.len() <= 101);
        outlook.retained()
    }

    #[test]
    fn a_steady_rate_is_retained_and_a_falling_one_in_part() {
        assert_eq!(retained(&[8_000_000]), 1.0);
        assert_eq!(retained(&[8_000_000, 2_000_000]), 0.25);
        let mut rare = vec![8_000_000; 119];
        rare.push(1_000_000);
        assert_eq!(retained(&rare), 1.0, "one second in more than ten");
    }

    #[test]
    fn little_is_known_at_first() {
        let mut outlook = Outlook::default();
        assert_eq!(outlook.retained(), UNKNOWN);
        outlook.on_rate(Rate::from_mbps(8), Instant::from_nanos(1));
        assert_eq!(outlook.retained(), UNKNOWN);
    }
}
