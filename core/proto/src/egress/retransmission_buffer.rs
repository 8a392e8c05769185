//! Retransmission buffer: packets that were sent, stored in case the receiver reports them as
//! missing.
//!
//! Each transmission leaves a record on its path. A buffer lives until the youngest record that
//! needs it expires. A packet that is reported missing, or that a failed path has not reported, is
//! marked as wanted once. It is sent again on some path and leaves a record there, so a lost
//! retransmission is retransmitted too.
//!
//! ```text
//!   sent --keep--> kept --on_missing--> wanted --next, keep_again--> kept (round + 1)
//!                   | too old, or too much is kept               | after the last round
//!                   +-----------------> released <---------------+
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use hawser_units::{Duration, Instant, PathId, Sequence};
use hawser_wire::compression::Form;
use hawser_wire::data::Class;

use super::splitting::Piece;
use crate::flow::Run;
use crate::path::Path;

/// Maximum number of stored buffers, unless the driver sets another. Source: a bound on memory, 64
/// MB if each buffer has 64 KB.
const BUFFERS: usize = 1024;
/// Maximum number of retransmissions of a packet. No suite of docs/notebook/path-model.md,
/// "Sensitivity", changes by more than 3 % with half or twice of it.
const ROUNDS: u8 = 3;

/// A packet, or several of one run, with its sequence number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parcel<B> {
    /// The buffer; `run.next` is the first segment meant.
    pub(super) run: Run<B>,
    /// The piece of the segment, if only a piece is meant.
    pub(super) piece: Option<Piece>,
    pub(super) flow: u16,
    pub(super) class: Class,
    /// Sequence numbers of the unordered space.
    pub(super) unordered: bool,
    /// Sequence number of the first segment.
    pub(super) sequence: Sequence,
}

#[derive(Debug)]
struct Record<B> {
    packet_number: u64,
    count: u16,
    parcel: Parcel<B>,
    until: Instant,
    round: u8,
    /// Bit mask of the packets that have been requested.
    wanted: u64,
}

impl<B: Copy> Record<B> {
    /// Returns a mask of the record's packets whose packet numbers are in the range.
    fn within(&self, packet_numbers: &Range<u64>) -> u64 {
        let place = |packet_number: u64| {
            packet_number
                .saturating_sub(self.packet_number)
                .min(u64::from(self.count))
        };
        let below = |place: u64| u64::MAX.checked_shl(place as u32).map_or(u64::MAX, |rest| !rest);
        below(place(packet_numbers.end)) & !below(place(packet_numbers.start))
    }

    /// Marks one packet for retransmission.
    fn want(&self, index: u16, silent: Option<PathId>) -> Wanted<B> {
        let mut parcel = self.parcel;
        let segments = match &mut parcel.piece {
            Some(piece) => {
                *piece = piece.one(index);
                0
            }
            None => index,
        };
        parcel.run.next += segments;
        parcel.run.mark = false;
        if parcel.run.form(parcel.run.next) == Form::Compressed {
            // It may arrive after its context was forgotten.
            parcel.run.context = None;
        }
        parcel.sequence = parcel.sequence.add(u32::from(segments));
        Wanted {
            parcel,
            silent,
            until: self.until,
            round: self.round + 1,
        }
    }
}

/// A packet to be retransmitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<B> {
    pub(super) parcel: Parcel<B>,
    /// A path that has not reported it, and may have failed.
    pub(super) silent: Option<PathId>,
    until: Instant,
    round: u8,
}

/// Contents of the retransmission buffer.
///
/// Cost: O(1) a transmission, O(log kept) a missing packet. The number of buffers is bounded.
#[derive(Debug)]
pub(super) struct RetransmissionBuffer<B> {
    records: BTreeMap<PathId, VecDeque<Record<B>>>,
    buffers: VecDeque<(Instant, B)>,
    /// The maximum number of records.
    pub(super) limit: usize,
    wanted: VecDeque<Wanted<B>>,
    /// Latest expiry of a record: no record expires before an earlier one.
    until: Instant,
    /// Time before which nothing expires, because contents of a failed path are being
    /// retransmitted.
    held_until: Instant,
    /// Records that end by then have lost their buffers.
    released: Instant,
    /// Number of records examined.
    pub(super) steps: u64,
}

impl<B: Copy> RetransmissionBuffer<B> {
    pub(super) fn new() -> Self {
        Self {
            records: BTreeMap::new(),
            buffers: VecDeque::new(),
            limit: BUFFERS,
            wanted: VecDeque::new(),
            until: Instant::ZERO,
            held_until: Instant::ZERO,
            released: Instant::ZERO,
            steps: 0,
        }
    }

    /// Stores packets (at most 64) that were sent as `packet numbers`.
    pub(super) fn keep(
        &mut self,
        path: PathId,
        packet_numbers: Range<u64>,
        parcel: Parcel<B>,
        until: Instant,
    ) {
        self.until = self.until.max(until);
        self.record(
            path,
            Record {
                packet_number: packet_numbers.start,
                count: (packet_numbers.end - packet_numbers.start) as u16,
                parcel,
                until: self.until,
                round: 0,
                wanted: 0,
            },
        );
    }

    /// Ends the use of a buffer: returns it, or stores it as long as any record may need it.
    pub(super) fn retire(&mut self, buffer: B, now: Instant) -> Option<B> {
        if self.over_at(now)(self.until) {
            // No path that fails later may need it again.
            self.released = self.released.max(self.until);
            return Some(buffer);
        }
        self.buffers.push_back((self.until, buffer));
        None
    }

    /// Stores a packet that was retransmitted as `packet_numbers`, one piece for each.
    pub(super) fn keep_again(&mut self, path: PathId, packet_numbers: Range<u64>, wanted: &Wanted<B>) {
        self.record(
            path,
            Record {
                packet_number: packet_numbers.start,
                count: (packet_numbers.end - packet_numbers.start) as u16,
                parcel: wanted.parcel,
                until: wanted.until,
                round: wanted.round,
                wanted: 0,
            },
        );
    }

    /// Returns a predicate: whether an entry with this expiry is no longer needed.
    fn over_at(&self, now: Instant) -> impl Fn(Instant) -> bool + use<B> {
        let (held_until, released) = (self.held_until, self.released);
        move |until| until.max(held_until) <= now || until <= released
    }

    fn record(&mut self, path: PathId, record: Record<B>) {
        let records = self.records.entry(path).or_default();
        while records
            .front()
            .is_some_and(|oldest| oldest.until <= self.released)
        {
            records.pop_front();
        }
        records.push_back(record);
    }

    /// Marks stored packets of a path that have not arrived as wanted, except those that are too
    /// late or were wanted before, and passes their numbers to `wanted`.
    pub(super) fn on_missing(
        &mut self,
        path: PathId,
        packet_numbers: Range<u64>,
        now: Instant,
        wanted: impl FnMut(u64),
    ) {
        self.want(path, packet_numbers, None, self.over_at(now), wanted);
    }

    /// Marks packets of a path as wanted whose report is overdue; they are not sent again on that
    /// path.
    pub(super) fn on_late(&mut self, path: PathId, packet_numbers: Range<u64>, now: Instant) {
        self.want(path, packet_numbers, Some(path), self.over_at(now), |_| {});
    }

    /// Cost: O(log n) of the buffered records, and O(1) for each transmission in the range and each
    /// packet that becomes requested, independent of the range's contents.
    fn want(
        &mut self,
        path: PathId,
        packet_numbers: Range<u64>,
        silent: Option<PathId>,
        is_over: impl Fn(Instant) -> bool,
        mut tell: impl FnMut(u64),
    ) {
        let Some(records) = self.records.get_mut(&path) else {
            return;
        };
        let from = records
            .partition_point(|record| record.packet_number + u64::from(record.count) <= packet_numbers.start);
        let meant = records
            .range_mut(from..)
            .take_while(|record| record.packet_number < packet_numbers.end);
        for record in meant {
            self.steps += 1;
            if record.round >= ROUNDS || is_over(record.until) {
                continue;
            }
            let mut fresh = record.within(&packet_numbers) & !record.wanted;
            record.wanted |= fresh;
            while fresh != 0 {
                let index = fresh.trailing_zeros();
                fresh &= fresh - 1;
                self.wanted.push_back(record.want(index as u16, silent));
                tell(record.packet_number + u64::from(index));
            }
        }
    }

    /// Marks everything sent on an unresponsive path after `reported` for retransmission, since
    /// none of it is known to have arrived, and stores it for the `time` that the other paths need
    /// to transfer it.
    pub(super) fn on_silence(&mut self, path: PathId, reported: u64, time: Duration, now: Instant) {
        let is_over = self.over_at(now);
        let Some(records) = self.records.get(&path) else {
            return;
        };
        let from =
            records.partition_point(|record| record.packet_number + u64::from(record.count) <= reported + 1);
        if records.range(from..).any(|record| !is_over(record.until)) {
            self.held_until = self.held_until.max(now + time);
        }
        self.want(path, reported + 1..u64::MAX, Some(path), is_over, |_| {});
    }

    /// Returns the number of packets to retransmit.
    pub(super) fn wanted(&self) -> usize {
        self.wanted.len()
    }

    /// Returns the next packet to retransmit.
    pub(super) fn next(&mut self, now: Instant) -> Option<Wanted<B>> {
        let is_over = self.over_at(now);
        loop {
            let wanted = self.wanted.pop_front()?;
            if !is_over(wanted.until) {
                return Some(wanted);
            }
        }
    }

    /// Puts back what could not be sent yet.
    pub(super) fn put_back(&mut self, wanted: Wanted<B>) {
        self.wanted.push_front(wanted);
    }

    /// Returns when the next buffer expires.
    pub(super) fn due(&self) -> Option<Instant> {
        self.buffers.front().map(|(until, _)| self.held_until.max(*until))
    }

    /// Releases the buffers that are too old, and the oldest beyond the bound.
    pub(super) fn release(&mut self, now: Instant, freed: &mut Vec<B>) {
        while let Some((until, buffer)) = self.buffers.front().copied() {
            if until.max(self.held_until) > now && self.buffers.len() <= self.limit {
                break;
            }
            self.give_up();
            freed.push(buffer);
        }
    }

    /// Releases the buffer that has been stored longest; packets from it are not sent again.
    pub(super) fn give_up(&mut self) -> Option<B> {
        let (until, buffer) = self.buffers.pop_front()?;
        self.released = self.released.max(until);
        Some(buffer)
    }

    /// Processes a removed path: no reports about its packets will arrive.
    pub(super) fn forget_path(&mut self, path: PathId) {
        self.records.remove(&path);
    }

    /// Releases all buffers.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = B> {
        self.records.clear();
        self.wanted.clear();
        std::mem::take(&mut self.buffers)
            .into_iter()
            .map(|(_, buffer)| buffer)
    }
}

/// Returns how long packets sent on a path are stored: until a loss, and the loss of its
/// retransmission, are detected, each half as late again as the mean, and retransmitted; or until a
/// single packet is late, after which no later packet would show the gap. With twice the mean,
/// second retransmissions came too late over networks that lose and reorder
/// (`scenarios/sweeps/unequal.toml`: 32 Mbit/s instead of 57 where 48 are possible without them).
pub(super) fn keeping_time(path: &Path) -> Duration {
    let round_trip = path.model().round_trip();
    let found = (round_trip + Duration::from_millis(20)).max(path.retransmitted_after());
    let retransmitted = found * 3 + round_trip;
    let late = path.model().timeout() + round_trip;
    retransmitted
        .max(late)
        .clamp(Duration::from_millis(100), MAX_BUFFERING)
}

/// Maximum time that packets of a failed path stay buffered for retransmission on the other paths.
/// Source: the experiment of docs/notebook/outages.md used it; other values were not tried.
pub(super) const MAX_FAILED_PATH_BUFFERING: Duration = Duration::from_secs(3);

/// Maximum storage time of all other packets, and of packets sent before a path is measured. Half
/// and twice of it leave goodput as it is, and half costs 6 % of the goodput beside CUBIC
/// (docs/notebook/path-model.md, "Sensitivity").
pub(super) const MAX_BUFFERING: Duration = Duration::from_secs(1);
