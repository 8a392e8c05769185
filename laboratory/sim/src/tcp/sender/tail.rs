//! Tail loss probe: a probe at the end of the data, so that its loss is detected before the
//! retransmission timeout.
//!
//! Source: RFC 8985 section 7, with the times of Linux's `tcp_schedule_loss_probe`.

use hawser_units::{Duration, Instant};

use super::Sender;
use crate::packet::Segment;

/// Probe of one sender: at most one until it is answered.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail {
    pub(super) due: Option<Instant>,
    /// Set if the next segment is the probe.
    pub(super) is_owed: bool,
    /// End of the data sent before the probe, and whether the probe was a retransmission.
    probed: Option<(u64, bool)>,
}

impl Sender {
    /// Sets the probe's timer after progress or new data, unless data is known to be lost.
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

    /// Handles new data, which serves as the probe if one is due.
    pub(super) fn on_new_data(&mut self, now: Instant) {
        if std::mem::take(&mut self.tail.is_owed) {
            self.tail.probed = Some((self.next, false));
        } else {
            self.arm_tail(now);
        }
    }

    /// Returns whether a probe was due; the retransmission timeout restarts then.
    pub(super) fn on_tail_due(&mut self, now: Instant) -> bool {
        if self.tail.due.is_none_or(|due| due > now) {
            return false;
        }
        self.tail.due = None;
        self.tail.is_owed = !self.records.is_empty();
        self.timer = Some(self.round_trip.deadline(now));
        true
    }

    /// Returns the probe if there is no new data.
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

    /// A probe that repaired a loss is a congestion signal, as any other loss.
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

/// Two ticks of the kernel's clock. Source: `TCP_TIMEOUT_MIN` of include/net/tcp.h of Linux, at
/// 1,000 Hz.
const TIMER_SLACK: Duration = Duration::from_millis(2);
