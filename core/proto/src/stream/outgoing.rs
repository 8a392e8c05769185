//! A stream in the sending direction.

use std::ops::Range;

use hawser_units::{Duration, Instant};

use super::ranges::Ranges;
use crate::checkpoint::{BadCheckpoint, MAX_BYTES, SentBytes};

/// Bytes of a stream that were written and not yet acknowledged, as offsets.
///
/// ```text
///   0 ....... acknowledged ......... highest ........ written
///     released |  sent, lost, or jumped over  |  never sent   |
///              |  `to_send`: what is lost or was never sent   |
/// ```
#[derive(Debug)]
pub(super) struct Outgoing {
    /// End of the bytes that have arrived without a gap.
    acknowledged: u64,
    /// Ranges known to have arrived beyond.
    arrived: Ranges,
    /// Gaps in `arrived` before this offset are missing: the last acknowledgement names the ranges
    /// between them.
    certain: u64,
    /// Ranges to be sent, lost bytes included.
    to_send: Ranges,
    /// The end of the highest byte that was sent.
    pub(super) highest: u64,
    /// End of the bytes that the driver has provided.
    pub(super) written: u64,
    /// End of the bytes that the receiver accepts.
    pub(super) credit: u64,
    /// The driver has no more bytes.
    is_finished: bool,
    is_end_owed: bool,
    pub(super) is_end_acknowledged: bool,
    /// Time of the last progress: its first bytes were acknowledged, or sent after none were in
    /// flight. Bytes that arrive beyond do not count, as all behind a missing one wait for it.
    progress_at: Instant,
    /// Count of stalls since.
    stalls: u32,
    recovery: Option<Recovery>,
}

/// Recovery from a stall: acknowledgements name few ranges, and no report names what is missing
/// between them, so each one that names more makes its gaps be sent again at once.
///
/// Source: RFC 6675 section 5.1, which counts all as lost that is not known to have arrived when
/// the timer of the connection expires.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    /// Gaps before are sent again already.
    resent: u64,
    /// Bytes before were sent when the stream had stalled.
    until: u64,
}

/// The longest wait for progress is the first one doubled this often.
///
/// Source: RFC 6298 section 5.5 doubles up to a minute; a path's timeout is 0.1 to 1 s.
const MAX_STALLS: u32 = 6;
/// Ranges that are known to have arrived.
///
/// Source: as many as a receiver keeps (`MAX_RANGES`, `core/proto/src/stream/receiving.rs`).
const MAX_ARRIVED: usize = 16_384;
/// Bytes that are sent again when no acknowledgement of a stream arrives.
///
/// Source: ten packets, the first flight of a connection (RFC 6928); the acknowledgement names the
/// rest.
const STALLED: u64 = 14_000;

impl Outgoing {
    pub(super) fn new(credit: u64, now: Instant) -> Self {
        Self {
            acknowledged: 0,
            arrived: Ranges::default(),
            certain: 0,
            to_send: Ranges::default(),
            highest: 0,
            written: 0,
            credit,
            is_finished: false,
            is_end_owed: false,
            is_end_acknowledged: false,
            progress_at: now,
            stalls: 0,
            recovery: None,
        }
    }

    /// Returns what a successor continues from.
    pub(super) fn checkpoint(&self) -> SentBytes {
        SentBytes {
            acknowledged: self.acknowledged,
            arrived: self.arrived.to_pairs(),
            unsent: self.to_send.to_pairs(),
            highest: self.highest,
            written: self.written,
            credit: self.credit,
            is_finished: self.is_finished,
            is_end_acknowledged: self.is_end_acknowledged,
        }
    }

    /// Continues from a checkpoint. Bytes in flight count as such until the next acknowledgement:
    /// no path reports packets of the previous process.
    ///
    /// # Errors
    /// The numbers contradict one another.
    pub(super) fn restore(saved: &SentBytes, now: Instant) -> Result<Self, BadCheckpoint> {
        let SentBytes {
            acknowledged,
            highest,
            written,
            ..
        } = *saved;
        let is_possible = written <= MAX_BYTES
            && highest.max(acknowledged) <= written
            && (acknowledged <= highest || saved.is_end_acknowledged)
            && saved.credit <= MAX_BYTES;
        let within = acknowledged..written;
        let (Some(arrived), Some(mut to_send), true) = (
            Ranges::of_pairs(&saved.arrived, &within),
            Ranges::of_pairs(&saved.unsent, &within),
            is_possible,
        ) else {
            return Err(BadCheckpoint::Impossible);
        };
        to_send.insert(highest.max(acknowledged)..written);
        arrived.iter().for_each(|range| to_send.remove(range));
        let is_end_acknowledged = saved.is_end_acknowledged;
        Ok(Self {
            acknowledged,
            arrived,
            to_send,
            highest,
            written,
            is_finished: saved.is_finished,
            is_end_owed: saved.is_finished && !is_end_acknowledged,
            is_end_acknowledged,
            recovery: Some(Recovery {
                resent: acknowledged,
                until: highest,
            }),
            ..Self::new(saved.credit, now)
        })
    }

    pub(super) fn write(&mut self, bytes: u64) {
        if !self.is_finished {
            self.to_send.insert(self.written..self.written + bytes);
            self.written += bytes;
        }
    }

    pub(super) fn finish(&mut self) {
        self.is_end_owed |= !self.is_finished;
        self.is_finished = true;
    }

    /// Returns the offset up to which bytes are no longer needed.
    pub(super) fn released(&self) -> u64 {
        self.acknowledged
    }

    /// Bytes that wait to be sent, with or without credit.
    pub(super) fn waiting(&self) -> u64 {
        self.to_send.total()
    }

    /// Returns whether the next bytes to be sent were sent before.
    pub(super) fn is_repeating(&self) -> bool {
        self.to_send
            .first()
            .is_some_and(|first| first.start < self.highest)
    }

    /// Bytes that may be sent now; `session`: how many beyond the highest one the session's credit
    /// allows. At least 1 where the end alone is to be sent.
    pub(super) fn sendable(&self, session: u64) -> u64 {
        let limit = self.limit(session);
        let beyond = self.written.saturating_sub(limit);
        let sendable = match self.to_send.first() {
            Some(first) if first.start >= limit => 0,
            Some(_) => self.to_send.total().saturating_sub(beyond),
            None => 0,
        };
        sendable.max(u64::from(self.owes_end_alone()))
    }

    /// Returns whether bytes wait for credit and for nothing else.
    pub(super) fn is_blocked(&self, session: u64) -> bool {
        !self.to_send.is_empty() && self.sendable(session) == 0
    }

    fn limit(&self, session: u64) -> u64 {
        self.credit.min(self.highest.saturating_add(session))
    }

    fn owes_end_alone(&self) -> bool {
        self.is_end_owed && self.to_send.is_empty()
    }

    /// The next bytes to send, at most `max`; `None` where nothing may be sent. An empty range: the
    /// end of the stream alone.
    pub(super) fn next(&self, max: u64, session: u64) -> Option<Range<u64>> {
        if self.owes_end_alone() {
            return Some(self.written..self.written);
        }
        let range = self.to_send.first()?;
        let end = range.end.min(range.start + max).min(self.limit(session));
        (range.start < end).then_some(range.start..end)
    }

    /// Records that bytes were sent; returns whether the stream ends with them.
    pub(super) fn on_sent(&mut self, range: Range<u64>, now: Instant) -> bool {
        if !self.is_awaiting() {
            self.progress_at = now;
        }
        let is_last = self.is_finished && range.end == self.written;
        self.is_end_owed &= !is_last;
        self.highest = self.highest.max(range.end);
        self.to_send.remove(range);
        is_last
    }

    /// Handles lost bytes, and a lost end if they were the last; returns whether any must be
    /// retransmitted.
    pub(super) fn on_lost(&mut self, range: Range<u64>) -> bool {
        let is_last = self.is_finished && range.end == self.written && !self.is_end_acknowledged;
        self.is_end_owed |= is_last;
        let Self { arrived, to_send, .. } = self;
        let mut lost = 0;
        for gap in arrived.gaps(range.start.max(self.acknowledged)..range.end) {
            lost += to_send.insert(gap);
        }
        lost > 0 || is_last
    }

    /// Returns whether some of a range is not known to have arrived and is not waiting to be sent.
    pub(super) fn is_outstanding(&self, range: &Range<u64>) -> bool {
        let start = range.start.max(self.acknowledged);
        self.arrived.reaches(start) < range.end && self.to_send.reaches(start) < range.end
    }

    /// Returns whether bytes of a range are missing while others behind them have arrived.
    pub(super) fn is_missing(&self, range: &Range<u64>) -> bool {
        range.start < self.certain && self.is_outstanding(range)
    }

    /// Processes arrived ranges; returns whether bytes were released.
    pub(super) fn on_ack(
        &mut self,
        next: u64,
        ranges: impl Iterator<Item = (u64, u64)>,
        is_complete: bool,
        now: Instant,
    ) -> bool {
        let next = if is_complete {
            self.written
        } else {
            next.min(self.highest)
        };
        let is_new_end = is_complete && !self.is_end_acknowledged;
        self.certain = next;
        for (start, end) in ranges.filter(|(_, end)| *end <= self.highest) {
            self.certain = self.certain.max(end);
            if self.arrived.len() >= MAX_ARRIVED {
                break;
            }
            let start = start.max(self.acknowledged);
            if self.arrived.insert(start..end) > 0 {
                self.to_send.remove(start..end);
            }
        }
        let is_released = next > self.acknowledged;
        if is_released {
            self.acknowledged = next;
            self.arrived.remove(0..next);
            self.to_send.remove(0..next);
        }
        self.recover();
        if is_complete {
            self.is_finished = true;
            (self.is_end_owed, self.is_end_acknowledged) = (false, true);
        }
        if is_released || is_new_end {
            (self.progress_at, self.stalls) = (now, 0);
        }
        is_released
    }

    /// Returns whether bytes or the end were sent that are not acknowledged.
    pub(super) fn is_awaiting(&self) -> bool {
        self.highest > self.acknowledged
            || (self.is_finished && !self.is_end_owed && !self.is_end_acknowledged)
    }

    /// Time at which the stream counts as stalled; `timeout`: the longest of its paths.
    pub(super) fn stalled_at(&self, timeout: Duration) -> Instant {
        self.progress_at + timeout * 2u32.pow(self.stalls.min(MAX_STALLS))
    }

    /// Handles that the peer is reachable again: the stream counts as stalled at the next check.
    pub(super) fn handle_reachable(&mut self) {
        (self.progress_at, self.stalls) = (Instant::ZERO, 0);
    }

    /// Counts the first missing bytes as lost, because the stream has made no progress for too
    /// long.
    pub(super) fn on_stall(&mut self, now: Instant) {
        self.stalls += 1;
        self.progress_at = now;
        self.is_end_owed |= self.is_finished && !self.is_end_acknowledged;
        self.recovery = Some(Recovery {
            resent: self.acknowledged,
            until: self.highest,
        });
        if !self.arrived.is_empty() {
            return self.recover();
        }
        let mut left = STALLED;
        let Self { arrived, to_send, .. } = self;
        for gap in arrived.gaps(self.acknowledged..self.highest) {
            let gap = gap.start..gap.end.min(gap.start + left);
            left -= gap.end - gap.start;
            to_send.insert(gap);
            if left == 0 {
                break;
            }
        }
    }

    /// Counts what is missing before bytes that have arrived as lost, in a recovery.
    fn recover(&mut self) {
        let Some(Recovery { resent, until }) = self.recovery else {
            return;
        };
        if self.acknowledged >= until {
            self.recovery = None;
            return;
        }
        let known = self.arrived.iter().last().map_or(0, |last| last.end).min(until);
        let start = resent.max(self.acknowledged);
        let Self { arrived, to_send, .. } = self;
        for gap in arrived.gaps(start..known.max(start)) {
            to_send.insert(gap);
        }
        self.recovery = Some(Recovery {
            resent: known.max(start),
            until,
        });
    }

    /// Drops the remaining bytes.
    pub(super) fn abandon(&mut self) {
        self.to_send = Ranges::default();
        self.is_finished = true;
        (self.is_end_owed, self.is_end_acknowledged) = (false, true);
        self.acknowledged = self.written;
    }
}
