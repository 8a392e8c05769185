//! What is done about silence: a probe at the end of what was sent, so that its loss need not wait
//! for the retransmission timeout.
//!
//! Source: RFC 8985 section 7, with the times of Linux's `tcp_schedule_loss_probe`.

use hawser_units::{Duration, Instant};

use super::Sender;
use crate::packet::Segment;

/// The probe of one sender: at most one until it is answered.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail {
    pub(super) due: Option<Instant>,
    /// The next segment is the probe.
    pub(super) is_owed: bool,
    /// What was sent when the probe was, and whether it repeated something.
    probed: Option<(u64, bool)>,
}

impl Sender {
    /// Sets the probe's timer after progress or new data: only while nothing is known to be
    /// missing.
    pub(super) fn arm_tail(&mut self, now: Instant) {
        let is_open = self.episode.is_none() && self.sacked_bytes == 0 && self.tail.probed.is_none();
        let round_trip = self.round_trip.smoothed();
        if !self.config.tail_probe || !is_open || self.records.is_empty() || round_trip.is_zero() {
            self.tail.due = None;
            return;
        }
        let slack = if self.records.len() == 1 {
            // The answer to a single segment may be delayed.
            self.config.rto.min
        } else {
            TIMER_SLACK
        };
        let due = now + round_trip * 2 + slack;
        self.tail.due = Some(self.timer.map_or(due, |timeout| due.min(timeout)));
    }

    /// New data went: it is the probe if one is owed.
    pub(super) fn on_new_data(&mut self, now: Instant) {
        if std::mem::take(&mut self.tail.is_owed) {
            self.tail.probed = Some((self.next, false));
        } else {
            self.arm_tail(now);
        }
    }

    /// Says whether it was time for a probe; the retransmission timeout begins anew then.
    pub(super) fn on_tail_due(&mut self, now: Instant) -> bool {
        if self.tail.due.is_none_or(|due| due > now) {
            return false;
        }
        self.tail.due = None;
        self.tail.is_owed = !self.records.is_empty();
        self.timer = Some(self.round_trip.deadline(now));
        true
    }

    /// The probe where there is no new data.
    pub(super) fn repeat_last(&mut self, now: Instant) -> Option<Segment> {
        self.tail.is_owed = false;
        let record = self.records.back_mut()?;
        record.is_repeated = true;
        record.sent = now;
        let record = *record;
        self.tail.probed = Some((self.next, true));
        self.last_sent = now;
        self.statistics.segments += 1;
        self.statistics.retransmitted += 1;
        Some(self.segment(&record))
    }

    /// A probe that retransmitted a loss is a sign of congestion as any other loss.
    pub(super) fn judge_tail(&mut self, segment: &Segment) {
        let Some((end, is_repeated)) = self.tail.probed else {
            return;
        };
        if self.una < end {
            return;
        }
        if is_repeated && segment.duplicate == 0 {
            if self.una == end {
                return;
            }
            self.statistics.reductions += 1;
            self.window.on_loss();
        }
        self.tail.probed = None;
    }
}

/// Two ticks of the kernel's clock.
const TIMER_SLACK: Duration = Duration::from_millis(2);
