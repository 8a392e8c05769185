//! Records of stream bytes in flight on each path.

use std::collections::VecDeque;
use std::ops::Range;

use hawser_units::{Instant, PathId};
use hawser_wire::stream::StreamId;

/// Records scanned to find one to copy.
///
/// Source: a path is some hundred bursts ahead of another at most.
const MAX_SCANNED: usize = 512;

/// Contents of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cargo {
    /// Bytes of a stream from an offset on, `each` in each datagram but the last.
    Bytes {
        id: StreamId,
        offset: u64,
        len: u32,
        each: u16,
    },
    /// Frames about a stream, or about all.
    Frames(Option<StreamId>),
}

/// Datagrams of one path with consecutive packet numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) packet_number: u64,
    pub(super) count: u16,
    pub(super) cargo: Cargo,
    /// Expected arrival at the far end.
    pub(super) arrival: Instant,
    /// Set of its datagrams that are lost.
    lost: u64,
    /// Set if a copy was sent on another path, which delivers it sooner.
    pub(super) is_copied: bool,
}

impl Record {
    pub(super) fn new(packet_number: u64, count: u16, cargo: Cargo, arrival: Instant) -> Self {
        Self {
            packet_number,
            count,
            cargo,
            arrival,
            lost: 0,
            is_copied: false,
        }
    }

    /// Selects its datagrams that have one of these packet numbers.
    fn within(&self, packet_numbers: &Range<u64>) -> u64 {
        let place = |packet_number: u64| {
            packet_number
                .saturating_sub(self.packet_number)
                .min(u64::from(self.count))
        };
        let below = |place: u64| u64::MAX.checked_shl(place as u32).map_or(u64::MAX, |rest| !rest);
        below(place(packet_numbers.end)) & !below(place(packet_numbers.start))
    }

    /// The bytes of one of its datagrams.
    fn part(&self, index: u16) -> Cargo {
        match self.cargo {
            Cargo::Bytes {
                id,
                offset,
                len,
                each,
            } => {
                let start = u32::from(index) * u32::from(each);
                Cargo::Bytes {
                    id,
                    offset: offset + u64::from(start),
                    len: (len - start.min(len)).min(u32::from(each)),
                    each,
                }
            }
            Cargo::Frames(_) => self.cargo,
        }
    }

    fn is_all_lost(&self) -> bool {
        self.lost.count_ones() >= u32::from(self.count)
    }
}

/// Records of all paths.
///
/// Cost: O(1) a transmission, O(log records) a loss; records end with the acknowledgement of their
/// bytes, so the credit of the receiver bounds them.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    paths: Vec<(PathId, VecDeque<Record>)>,
}

impl InFlight {
    fn path(&mut self, id: PathId) -> Option<&mut VecDeque<Record>> {
        self.paths
            .iter_mut()
            .find(|(path, _)| *path == id)
            .map(|(_, records)| records)
    }

    /// Records bytes sent on a path, and drops the oldest completed records.
    pub(super) fn push(&mut self, path: PathId, record: Record, is_over: impl Fn(&Record) -> bool) {
        if self.path(path).is_none() {
            self.paths.push((path, VecDeque::new()));
        }
        let Some(records) = self.path(path) else { return };
        while records
            .front()
            .is_some_and(|first| first.is_all_lost() || is_over(first))
        {
            records.pop_front();
        }
        records.push_back(record);
    }

    /// Handles packets of a path that did not arrive: passes each datagram that was not lost before
    /// to `lose`, with its packet number.
    pub(super) fn lose(
        &mut self,
        path: PathId,
        packet_numbers: Range<u64>,
        mut lose: impl FnMut(u64, Cargo),
    ) {
        let Some(records) = self.path(path) else { return };
        let from = records
            .partition_point(|record| record.packet_number + u64::from(record.count) <= packet_numbers.start);
        for record in records.range_mut(from..) {
            if record.packet_number >= packet_numbers.end {
                break;
            }
            let mut fresh = record.within(&packet_numbers) & !record.lost;
            record.lost |= fresh;
            while fresh != 0 {
                let index = fresh.trailing_zeros() as u16;
                fresh &= fresh - 1;
                lose(record.packet_number + u64::from(index), record.part(index));
            }
        }
    }

    /// Finds the lowest bytes of a stream that paths other than `path` deliver after `arrival`, and
    /// that are wanted and not copied yet. It counts as copied from now on.
    pub(super) fn copy_later_than(
        &mut self,
        path: PathId,
        arrival: Instant,
        wants: impl Fn(&Record) -> bool,
    ) -> Option<Cargo> {
        let mut best: Option<(u64, &mut Record)> = None;
        for (_, records) in self.paths.iter_mut().filter(|(other, _)| *other != path) {
            let from = records.partition_point(|record| record.arrival <= arrival);
            let found = records
                .range_mut(from..)
                .take(MAX_SCANNED)
                .find(|record| !record.is_copied && record.lost == 0 && wants(record));
            let Some(record) = found else { continue };
            let Cargo::Bytes { offset, .. } = record.cargo else {
                continue;
            };
            if best.as_ref().is_none_or(|(lowest, _)| offset < *lowest) {
                best = Some((offset, record));
            }
        }
        let (_, record) = best?;
        record.is_copied = true;
        Some(record.cargo)
    }

    /// Passes wanted bytes that a path was expected to deliver before `until` to `lose`: they count
    /// as lost from now on.
    pub(super) fn lose_overdue(
        &mut self,
        path: PathId,
        until: Instant,
        wants: impl Fn(&Record) -> bool,
        mut lose: impl FnMut(Cargo),
    ) {
        let Some(records) = self.path(path) else { return };
        for record in records.iter_mut().take(MAX_SCANNED) {
            let is_overdue = record.arrival <= until && !record.is_copied && !record.is_all_lost();
            if is_overdue && wants(record) {
                let others = (0..record.count.min(64)).filter(|index| record.lost & (1 << index) == 0);
                others.for_each(|index| lose(record.part(index)));
                record.lost = u64::MAX;
            }
        }
    }

    /// Removes the records of a path that was removed: nothing more is reported about it.
    pub(super) fn forget(&mut self, path: PathId) {
        self.paths.retain(|(id, _)| *id != path);
    }
}
