//! What was sent, kept for a while in case its receiver reports it missing.
//!
//! Every transmission of packets leaves a record on its path; the buffers it was cut from live
//! until the youngest record that needs them is too old. A packet that is reported missing, or not
//! reported by a path that fell silent, becomes wanted once, goes out again on some path, and
//! leaves a record there in turn, so that a retransmission that is lost is retransmitted too.
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

/// Buffers kept at once, unless the driver says otherwise: 64 MB where each holds 64 KB.
const BUFFERS: usize = 1024;
/// How often a packet is retransmitted.
const ROUNDS: u8 = 3;

/// A packet, or several of one run, with its place in its flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parcel<B> {
    /// The buffer; `run.next` is the first segment meant.
    pub(super) run: Run<B>,
    /// The part of the segment that is meant, where not all of it is.
    pub(super) piece: Option<Piece>,
    pub(super) flow: u16,
    pub(super) class: Class,
    /// Its places are those of packets whose order is free.
    pub(super) unordered: bool,
    /// Of the first segment.
    pub(super) sequence: Sequence,
}

#[derive(Debug)]
struct Record<B> {
    packet_number: u64,
    count: u16,
    parcel: Parcel<B>,
    until: Instant,
    round: u8,
    /// Which of its packets have been wanted.
    wanted: u64,
}

impl<B: Copy> Record<B> {
    /// Which of its packets have one of these packet numbers.
    fn within(&self, packet_numbers: &Range<u64>) -> u64 {
        let place = |packet_number: u64| {
            packet_number
                .saturating_sub(self.packet_number)
                .min(u64::from(self.count))
        };
        let below = |place: u64| u64::MAX.checked_shl(place as u32).map_or(u64::MAX, |rest| !rest);
        below(place(packet_numbers.end)) & !below(place(packet_numbers.start))
    }

    /// One of its packets, to be sent again.
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
            // It may come when its context is not remembered any more.
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

/// A packet to be sent again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<B> {
    pub(super) parcel: Parcel<B>,
    /// A path that has said nothing of it, and may be dead.
    pub(super) silent: Option<PathId>,
    until: Instant,
    round: u8,
}

/// Everything that is kept.
///
/// Cost: O(1) a transmission, O(log kept) a missing packet. The number of buffers is bounded.
#[derive(Debug)]
pub(super) struct Kept<B> {
    records: BTreeMap<PathId, VecDeque<Record<B>>>,
    buffers: VecDeque<(Instant, B)>,
    /// The most of them.
    pub(super) limit: usize,
    wanted: VecDeque<Wanted<B>>,
    /// No record ends before the one made before it.
    until: Instant,
    /// Nothing ends before: what a path swallowed is being sent again.
    held_until: Instant,
    /// Records that end by then have lost their buffers.
    released: Instant,
    /// Records looked at.
    pub(super) steps: u64,
}

impl<B: Copy> Kept<B> {
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

    /// Keeps packets (at most 64) that were sent as `packet numbers`.
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

    /// Nothing else of a buffer will be sent: gives it back, or keeps it as long as any record may
    /// need it.
    pub(super) fn retire(&mut self, buffer: B, now: Instant) -> Option<B> {
        if self.over_at(now)(self.until) {
            // No path that falls silent later may want it back.
            self.released = self.released.max(self.until);
            return Some(buffer);
        }
        self.buffers.push_back((self.until, buffer));
        None
    }

    /// Keeps a packet that was sent again as `packet_numbers`, in as many pieces.
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

    /// Whether what was to be kept until some time is of no use any more.
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

    /// Packets of a path have not arrived: those that are kept are wanted, but for what is too late
    /// or was wanted before. Tells which.
    pub(super) fn on_missing(
        &mut self,
        path: PathId,
        packet_numbers: Range<u64>,
        now: Instant,
        wanted: impl FnMut(u64),
    ) {
        self.want(path, packet_numbers, None, self.over_at(now), wanted);
    }

    /// A path has said nothing of packets for too long: the same, but not again on that path.
    pub(super) fn on_late(&mut self, path: PathId, packet_numbers: Range<u64>, now: Instant) {
        self.want(path, packet_numbers, Some(path), self.over_at(now), |_| {});
    }

    /// Cost: O(log kept), and O(1) for each transmission that had some of these packet numbers and
    /// each packet that becomes wanted, whatever the range says.
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

    /// A path has fallen silent: everything sent on it after `reported` is wanted, for none of it
    /// is known to have arrived, and kept for the `time` that the other paths take to carry it.
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

    /// How many are to be sent again.
    pub(super) fn wanted(&self) -> usize {
        self.wanted.len()
    }

    /// The next packet to send again.
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

    /// When a buffer is to be released.
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

    /// Gives the buffer back that has been kept longest: what was cut from it will not be sent
    /// again.
    pub(super) fn give_up(&mut self) -> Option<B> {
        let (until, buffer) = self.buffers.pop_front()?;
        self.released = self.released.max(until);
        Some(buffer)
    }

    /// A path is gone: what was sent on it is not reported on any more.
    pub(super) fn forget_path(&mut self, path: PathId) {
        self.records.remove(&path);
    }

    /// Gives all buffers back.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = B> {
        self.records.clear();
        self.wanted.clear();
        std::mem::take(&mut self.buffers)
            .into_iter()
            .map(|(_, buffer)| buffer)
    }
}

/// How long what was sent on a path is kept: until a loss and that of its retransmission are found,
/// each half as late again as the mean, and retransmitted; or until a lone packet is late, after
/// which nothing was sent that would show it missing. With twice the mean, second retransmissions
/// came too late over networks that lose and shuffle (`scenarios/sweeps/unequal.toml`: 32 Mbit/s
/// instead of 57 where 48 are to be had without them).
pub(super) fn keeping_time(path: &Path) -> Duration {
    let round_trip = path.model().round_trip();
    let found = (round_trip + Duration::from_millis(20)).max(path.retransmitted_after());
    let retransmitted = found * 3 + round_trip;
    let late = path.model().timeout() + round_trip;
    retransmitted
        .max(late)
        .clamp(Duration::from_millis(100), LONGEST_KEPT)
}

/// The most that what a path swallowed waits for the others: a large network in the care of a small
/// one.
pub(super) const LONGEST_HELD: Duration = Duration::from_secs(3);

/// Nothing else is kept longer, and whatever is sent before a path is known.
pub(super) const LONGEST_KEPT: Duration = Duration::from_secs(1);
