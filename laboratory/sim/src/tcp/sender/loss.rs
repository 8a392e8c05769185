//! Loss detection, and undo of a spurious loss.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant};

use super::{Delivered, Episode, Record, Sender, Undo, was_sent_before};
use crate::packet::Segment;
use crate::tcp::Recovery;

/// The latest delivery, from which losses of earlier segments are inferred.
///
/// Source: RFC 8985 section 6.
#[derive(Clone, Debug)]
pub(super) struct Rack {
    /// Send time, end and round trip of the delivered segment that was sent last.
    latest: Option<(Instant, u64, Duration)>,
    has_seen_reordering: bool,
    /// Reordering window of a segment, in quarters of the minimum round-trip time.
    steps: u32,
    steps_grew_at: u64,
    /// Original transmissions below this sequence number have been judged.
    judged: u64,
    /// Retransmissions in order of time.
    retransmissions: VecDeque<(u64, Instant)>,
    due: Option<Instant>,
    highest: u64,
    /// Observed reordering distance, at least [`DUPLICATES`]. Units: segments.
    distance: u64,
}

impl Default for Rack {
    fn default() -> Self {
        Self {
            latest: None,
            has_seen_reordering: false,
            steps: 1,
            steps_grew_at: 0,
            judged: 0,
            retransmissions: VecDeque::new(),
            due: None,
            highest: 0,
            distance: u64::from(DUPLICATES),
        }
    }
}

impl Rack {
    pub(super) fn forget_retransmissions(&mut self) {
        self.retransmissions.clear();
        self.due = None;
    }

    pub(super) fn forget_distance(&mut self) {
        self.distance = u64::from(DUPLICATES);
    }

    /// Records that segments up to `beyond` have overtaken an earlier one.
    fn note_distance(&mut self, beyond: u64) {
        self.distance = self.distance.max(beyond.min(MAX_DISTANCE));
    }

    pub(super) fn on_retransmission(&mut self, sequence: u64, now: Instant) {
        self.retransmissions.push_back((sequence, now));
    }

    /// Updates the retransmissions when a segment is split.
    pub(super) fn on_split(&mut self, begin: u64, at: u64) {
        if let Some(index) = self
            .retransmissions
            .iter()
            .rposition(|(sequence, _)| *sequence == begin)
        {
            let (_, sent) = self.retransmissions[index];
            self.retransmissions.insert(index + 1, (at, sent));
        }
    }

    fn has_overtaken(&self, sent: Instant, end: u64) -> bool {
        self.latest
            .is_some_and(|(latest, latest_end, _)| (sent, end) < (latest, latest_end))
    }
}

impl Sender {
    pub(super) fn rack_due(&self) -> Option<Instant> {
        self.rack.due
    }

    /// Handles the ranges that a selective acknowledgement reports for the first time.
    pub(super) fn read_sack(&mut self, segment: &Segment, now: Instant, delivered: &mut Delivered) {
        for (start, end) in segment.sack.blocks() {
            let (start, end) = (segment.ack + u64::from(*start), segment.ack + u64::from(*end));
            let mut sacked = std::mem::take(&mut self.sacked);
            sacked.insert(start, end, |from, to| self.on_sacked(from, to, now, delivered));
            self.sacked = sacked;
        }
    }

    fn on_sacked(&mut self, from: u64, to: u64, now: Instant, delivered: &mut Delivered) {
        self.split(from);
        self.split(to);
        let mut index = self.records.partition_point(|record| record.sequence < from);
        while let Some(record) = self.records.get_mut(index).filter(|record| record.sequence < to) {
            let before = *record;
            record.is_sacked = true;
            record.is_lost = false;
            index += 1;
            if before.is_sacked {
                continue;
            }
            self.sacked_bytes += u64::from(before.len);
            self.leave_flight(&before);
            self.on_delivered(&before, now, delivered);
        }
    }

    /// Handles the first delivery of a segment.
    pub(super) fn on_delivered(&mut self, record: &Record, now: Instant, delivered: &mut Delivered) {
        delivered.bytes += u64::from(record.len);
        let round_trip = now.since(record.sent);
        let end = record.sequence + u64::from(record.len);
        if !record.is_repeated {
            // Karn's rule: a retransmitted segment gives no round-trip sample.
            delivered.round_trip = Some(round_trip);
            if end < self.rack.highest {
                self.rack.has_seen_reordering = true;
                let beyond = (self.rack.highest - record.sequence) / u64::from(self.config.segment);
                self.rack.note_distance(beyond);
            }
        } else if round_trip < self.round_trip.min() {
            return;
        }
        self.rack.highest = self.rack.highest.max(end);
        if self
            .rack
            .latest
            .is_none_or(|(sent, latest_end, _)| (sent, latest_end) < (record.sent, end))
        {
            self.rack.latest = Some((record.sent, end, round_trip));
        }
    }

    pub(super) fn on_duplicate_ack(&mut self) {
        self.statistics.duplicate_acks += 1;
        if self.config.recovery.is_selective() || self.episode == Some(Episode::AfterTimeout) {
            return;
        }
        self.duplicate_acks += 1;
        self.recount_reno();
    }

    /// Counts each duplicate acknowledgement as a segment that has left the network, without
    /// selective ones.
    pub(super) fn recount_reno(&mut self) {
        if self.episode == Some(Episode::AfterTimeout) {
            return;
        }
        let outstanding = (self.next - self.una) - self.to_retransmit;
        let gone = if self.episode.is_some() {
            self.reno_share(self.duplicate_acks)
        } else {
            0
        };
        self.in_flight = outstanding.saturating_sub(gone);
    }

    fn reno_share(&self, segments: u32) -> u64 {
        u64::from(segments) * u64::from(self.config.segment)
    }

    pub(super) fn detect_losses(&mut self, now: Instant) {
        match self.config.recovery {
            Recovery::Tahoe | Recovery::Reno | Recovery::NewReno => self.detect_by_duplicates(now),
            Recovery::Sack | Recovery::SackAdaptive => {
                self.detect_by_sack();
                self.begin_recovery_if_needed();
            }
            Recovery::Rack => {
                self.detect_by_time(now);
                self.begin_recovery_if_needed();
            }
        }
    }

    /// Source: RFC 6582 section 3.2 step 1: duplicate acknowledgements of data sent before the last
    /// episode do not count.
    fn detect_by_duplicates(&mut self, now: Instant) {
        let is_new = self.una > self.recover || self.recover == 0;
        if self.episode.is_some() || self.duplicate_acks < DUPLICATES || !is_new {
            return;
        }
        self.note_loss();
        self.statistics.reductions += 1;
        if self.config.recovery == Recovery::Tahoe {
            self.window.on_timeout(true);
            self.begin_slow_start();
            self.timer = Some(self.round_trip.deadline(now));
            return;
        }
        self.window.on_loss();
        self.episode = Some(Episode::FastRecovery);
        self.recover = self.next;
        self.mark_lost(0);
        self.recount_reno();
    }

    /// Source: RFC 6675 section 4, `IsLost`: a segment is lost when this many segments' worth of
    /// later bytes have arrived.
    fn detect_by_sack(&mut self) {
        let needed = if self.config.recovery == Recovery::SackAdaptive {
            self.rack.distance
        } else {
            u64::from(DUPLICATES)
        };
        let enough = (needed - 1) * u64::from(self.config.segment);
        if self.sacked_bytes <= enough {
            return;
        }
        let mut beyond = 0;
        let mut edge = self.una;
        for (start, end) in self.sacked.iter_from_the_end() {
            beyond += end - start;
            if beyond > enough {
                edge = start.max(end.saturating_sub(beyond - enough));
                break;
            }
        }
        self.judge_originals(|record| record.sequence < edge);
    }

    /// Source: RFC 8985 section 6.2 steps 4 and 5.
    fn detect_by_time(&mut self, now: Instant) {
        self.rack.due = None;
        let Some((_, _, round_trip)) = self.rack.latest else {
            return;
        };
        if self.to_retransmit == 0 && self.rack.retransmissions.is_empty() && self.sacked_bytes == 0 {
            // Nothing was overtaken.
            self.rack.judged = self.rack.judged.max(self.una);
            return;
        }
        let timeout = round_trip + self.reordering_window();
        let mut due = None;
        let rack = std::mem::take(&mut self.rack);
        self.judge_originals_at(rack.judged, |record| {
            if !rack.has_overtaken(record.sent, record.sequence + u64::from(record.len)) {
                return false;
            }
            let limit = record.sent + timeout;
            if limit > now {
                due = Some(limit);
            }
            limit <= now
        });
        let judged = self.rack.judged;
        self.rack = rack;
        self.rack.judged = judged;
        while let Some((sequence, sent)) = self.rack.retransmissions.front().copied() {
            let index = self.records.partition_point(|record| record.sequence < sequence);
            let record = self.records.get(index).copied();
            let is_current = record.filter(|record| {
                record.sequence == sequence && record.sent == sent && !record.is_sacked && !record.is_lost
            });
            if let Some(record) = is_current {
                let end = sequence + u64::from(record.len);
                if !self.rack.has_overtaken(sent, end) {
                    break;
                }
                let limit = sent + timeout;
                if limit > now {
                    due = Some(due.map_or(limit, |due: Instant| due.min(limit)));
                    break;
                }
                self.mark_lost(index);
            }
            self.rack.retransmissions.pop_front();
        }
        self.rack.due = due;
    }

    /// Returns the maximum lateness of a segment. Source: RFC 8985 section 6.2 step 4.
    fn reordering_window(&self) -> Duration {
        let enough = u64::from(DUPLICATES) * u64::from(self.config.segment);
        let is_certain = self.episode.is_some() || self.sacked_bytes >= enough;
        if !self.rack.has_seen_reordering && is_certain {
            return Duration::ZERO;
        }
        (self.round_trip.min() * self.rack.steps / 4).min(self.round_trip.smoothed())
    }

    fn judge_originals(&mut self, is_lost: impl FnMut(&Record) -> bool) {
        self.judge_originals_at(self.rack.judged, is_lost);
    }

    /// Visits original transmissions from `judged` on, in order, until one is not yet lost.
    fn judge_originals_at(&mut self, judged: u64, mut is_lost: impl FnMut(&Record) -> bool) {
        let from = judged.max(self.una);
        let mut index = self.records.partition_point(|record| record.sequence < from);
        while let Some(record) = self.records.get(index).copied() {
            let is_open = !(record.is_sacked || record.is_lost || record.is_repeated);
            if is_open {
                if !is_lost(&record) {
                    break;
                }
                self.mark_lost(index);
            }
            index += 1;
        }
        self.rack.judged = self
            .records
            .get(index)
            .map_or(self.next, |record| record.sequence);
    }

    fn mark_lost(&mut self, index: usize) {
        let Some(record) = self.records.get_mut(index) else {
            return;
        };
        if record.is_lost || record.is_sacked {
            return;
        }
        record.is_lost = true;
        self.in_flight = self.in_flight.saturating_sub(u64::from(record.len));
        self.to_retransmit += u64::from(record.len);
        self.retransmission_hint = self.retransmission_hint.min(record.sequence);
    }

    fn begin_recovery_if_needed(&mut self) {
        if self.to_retransmit == 0 || self.episode.is_some() {
            return;
        }
        self.begin_undo();
        self.note_loss();
        self.statistics.reductions += 1;
        if self.una >= self.cwr_until {
            self.window.on_loss();
        }
        self.episode = Some(Episode::FastRecovery);
        self.recover = self.next;
    }

    /// Handles an acknowledgement of new data during an episode.
    pub(super) fn on_progress(&mut self, segment: &Segment, advanced: u64) {
        if self.was_needless(segment) {
            self.take_back();
            return;
        }
        if self.una >= self.recover || (self.config.recovery == Recovery::Reno && advanced > 0) {
            self.episode = None;
            self.undo = None;
            self.duplicate_acks = 0;
            if !self.config.recovery.is_selective() {
                self.recount_reno();
            }
        } else if self.config.recovery == Recovery::NewReno && self.episode == Some(Episode::FastRecovery) {
            // A partial acknowledgement: the next hole is lost too (RFC 6582 section 3.2 step 5).
            if self.records.front().is_some_and(|record| !record.is_repeated) {
                self.mark_lost(0);
            }
            self.recount_reno();
        }
    }

    pub(super) fn on_mark(&mut self) {
        // The acknowledgement of the last segment before the one with CWR still echoes the mark.
        if self.una <= self.cwr_until || self.episode.is_some() || !self.config.ecn {
            return;
        }
        self.statistics.marks += 1;
        self.note_loss();
        self.window.on_loss();
        self.cwr_until = self.next;
        self.owes_cwr = true;
    }

    pub(super) fn begin_undo(&mut self) {
        if self.config.recovery.undoes() {
            self.undo = Some(Undo {
                saved: self.window.save(),
                retransmissions: 0,
                first_retransmission: None,
            });
        }
    }

    /// Returns whether an acknowledgement answers an original although it had been retransmitted.
    /// Source: RFC 3522 (Eifel).
    fn was_needless(&self, segment: &Segment) -> bool {
        let Some(first) = self.undo.and_then(|undo| undo.first_retransmission) else {
            return false;
        };
        was_sent_before(segment.echo, first)
    }

    /// Handles a retransmission that arrived twice. Source: RFC 2883, RFC 3708; RFC 8985 section
    /// 6.2 step 4 for the steps.
    pub(super) fn on_needless_retransmission(&mut self) {
        self.rack.has_seen_reordering = true;
        if self.una >= self.rack.steps_grew_at {
            self.rack.steps = (self.rack.steps + 1).min(MAX_STEPS);
            self.rack.steps_grew_at = self.next;
        }
        let Some(undo) = &mut self.undo else { return };
        undo.retransmissions = undo.retransmissions.saturating_sub(1);
        if undo.retransmissions == 0 && undo.first_retransmission.is_some() && self.to_retransmit == 0 {
            self.take_back();
        }
    }

    fn take_back(&mut self) {
        let Some(undo) = self.undo.take() else { return };
        self.statistics.undone += 1;
        self.rack.has_seen_reordering = true;
        let beyond = self.rack.highest.saturating_sub(self.una) / u64::from(self.config.segment);
        self.rack.note_distance(beyond + 1);
        self.window.restore(undo.saved);
        self.episode = None;
        // Segments that count as lost are in flight after all.
        for record in self.records.iter_mut().filter(|record| record.is_lost) {
            record.is_lost = false;
            self.in_flight += u64::from(record.len);
        }
        self.to_retransmit = 0;
        self.rack.judged = self.una;
    }
}

/// Number of duplicate acknowledgements that indicate a loss. Source: RFC 5681 section 3.2.
const DUPLICATES: u32 = 3;
/// Source: Linux `TCP_MAX_REORDERING` before 3.18. Units: segments.
const MAX_DISTANCE: u64 = 127;
/// Source: Linux `tcp_rack_update_reo_wnd`, which counts them in a byte.
const MAX_STEPS: u32 = 255;
