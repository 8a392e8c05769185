//! Missing packets of one path that the sender may still retransmit.
//!
//! A skipped packet number is open. It becomes missing when the path has delivered packets that
//! were sent later by more than the path reorders. It is then listed in three reports, because
//! reports can be lost, and removed after 1 s. A gap that is too large for random loss is an
//! outage; its packets are not requested here.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant};
use hawser_wire::data::Missing;

use crate::smoothed::Smoothed;

/// Reports that name a missing packet. No suite of docs/notebook/path-model.md, "Sensitivity",
/// changes by more than 3 % with half or twice of it.
const MENTIONS: u8 = 3;
/// Number of missing packet numbers at once beyond which they count as an outage. No suite of
/// docs/notebook/path-model.md, "Sensitivity", changes by more than 3 % with half or twice of it.
const OUTAGE: u64 = 512;
/// Maximum number of holes. Half of them may be of packets that have arrived meanwhile. Source: a
/// bound on memory, 320 KB.
const MAX: usize = 8_192;
/// Age at which a gap is forgotten: no flow waits for a retransmission for longer.
const FORGOTTEN: Duration = LONGEST;

#[derive(Clone, Copy, Debug)]
struct Hole {
    packet_number: u64,
    /// Send time of the preceding packet, by the sender's clock: the path has passed this gap no
    /// later than any packet of another path that waits for it, so a retransmission is requested
    /// before the gap is given up.
    sent_us: u32,
    opened: Instant,
    found: bool,
    /// Marks a gap whose packet has arrived; the entry stays, so that the positions behind it are
    /// stable.
    closed: bool,
    mentions: u8,
}

impl Hole {
    fn is_due(&self) -> bool {
        self.found && !self.closed && self.mentions < MENTIONS
    }
}

/// The gaps in the packet numbers of one path, in order: losses first, then open gaps.
///
/// Cost: O(log holes) a packet and a step for each packet number that it jumps over, amortised O(1)
/// for each hole in [`Self::find`] and [`Self::mention`]. At most [`MAX`] holes: what would be
/// more is an outage, so a sender that jumps about cannot make more work than this in the second
/// for which a hole is remembered.
#[derive(Debug, Default)]
pub(super) struct Holes {
    holes: VecDeque<Hole>,
    /// Gaps at the front that need no longer be reported.
    done: usize,
    /// Neither found to be losses nor closed.
    open: usize,
    closed: usize,
    /// Send time of the newest packet.
    newest_us: u32,
    /// Number of gaps opened and examined.
    pub(super) steps: u64,
}

impl Holes {
    /// Records a packet, which opens a gap after the highest packet number before, or closes an
    /// open gap.
    pub(super) fn on_packet(&mut self, packet_number: u64, highest: u64, sent_us: u32, now: Instant) {
        if packet_number < highest {
            self.close(packet_number);
            return;
        }
        let before_us = std::mem::replace(&mut self.newest_us, sent_us);
        if highest == 0 || packet_number - highest > OUTAGE {
            return;
        }
        let gap = (packet_number - highest - 1) as usize;
        if self.holes.len() + gap > MAX {
            self.forget_closed();
            if self.holes.len() + gap > MAX {
                return;
            }
        }
        self.open += gap;
        self.steps += gap as u64;
        self.holes
            .extend((highest + 1..packet_number).map(|packet_number| Hole {
                packet_number,
                sent_us: before_us,
                opened: now,
                found: false,
                closed: false,
                mentions: 0,
            }));
    }

    fn close(&mut self, packet_number: u64) {
        let Ok(at) = self
            .holes
            .binary_search_by_key(&packet_number, |hole| hole.packet_number)
        else {
            return;
        };
        let hole = &mut self.holes[at];
        if !std::mem::replace(&mut hole.closed, true) {
            self.closed += 1;
            self.open -= usize::from(!hole.found);
        }
    }

    /// Makes room, if half of the entries are closed gaps.
    fn forget_closed(&mut self) {
        if self.closed >= MAX / 2 {
            let done = self.holes.range(..self.done).filter(|hole| !hole.closed);
            self.done = done.count();
            self.holes.retain(|hole| !hole.closed);
            self.closed = 0;
        }
    }

    fn pop(&mut self) {
        if let Some(hole) = self.holes.pop_front() {
            self.done = self.done.saturating_sub(1);
            self.closed -= usize::from(hole.closed);
            self.open -= usize::from(!hole.closed && !hole.found);
        }
    }

    /// Determines which open gaps are losses; returns whether there is a new loss. `is_overtaken`:
    /// whether the path is past one that was sent at a time.
    pub(super) fn find(&mut self, now: Instant, is_overtaken: impl Fn(u32) -> bool) -> u32 {
        while self
            .holes
            .front()
            .is_some_and(|hole| hole.closed || now.since(hole.opened) > FORGOTTEN)
        {
            self.pop();
        }
        let losses = self.losses();
        let mut found = 0;
        for hole in self.holes.range_mut(losses..) {
            self.steps += 1;
            if !hole.closed {
                if !is_overtaken(hole.sent_us) {
                    break;
                }
                found += 1;
            }
            hole.found = true;
        }
        self.open -= found;
        found as u32
    }

    /// Returns how many gaps at the front are losses, or were closed among them.
    fn losses(&self) -> usize {
        self.holes.partition_point(|hole| hole.found)
    }

    /// Returns when the packet before the oldest open gap was sent, as of the last [`Self::find`].
    pub(super) fn oldest_open(&self) -> Option<u32> {
        self.holes.get(self.losses()).map(|hole| hole.sent_us)
    }

    /// Forgets the losses, which will not be retransmitted.
    pub(super) fn forget_losses(&mut self) {
        for _ in 0..self.losses() {
            self.pop();
        }
    }

    /// Returns how many skipped packet numbers may still arrive.
    pub(super) fn open(&self) -> u16 {
        u16::try_from(self.open).unwrap_or(u16::MAX)
    }

    /// Reports losses since a time again, because the reports that contained them were lost.
    pub(super) fn mention_again(&mut self, since: Instant) {
        let first = self.holes.partition_point(|hole| hole.opened < since);
        for hole in self.holes.range_mut(first..) {
            self.steps += 1;
            hole.mentions = 0;
        }
        self.done = self.done.min(first);
    }

    /// Returns the losses to be listed in a report.
    pub(super) fn mention(&mut self, highest: u64) -> Missing {
        let losses = self.losses();
        while self.done < losses && !self.holes[self.done].is_due() {
            self.done += 1;
            self.steps += 1;
        }
        let mut missing = Missing::default();
        let mut due = self
            .holes
            .range_mut(self.done.min(losses)..losses)
            .inspect(|_| self.steps += 1)
            .filter(|hole| hole.is_due())
            .peekable();
        while let Some(first) = due.next() {
            first.mentions += 1;
            let mut count = 1;
            while let Some(next) =
                due.next_if(|next| next.packet_number == first.packet_number + u64::from(count))
            {
                next.mentions += 1;
                count += 1;
            }
            let Ok(back) = u16::try_from(highest.saturating_sub(first.packet_number)) else {
                continue;
            };
            if !missing.push(back, count) {
                first.mentions -= 1;
                break;
            }
        }
        missing
    }
}

/// Delay of retransmissions from the detection of the loss, and their number.
///
/// A retransmission does not name its loss; it counts for the oldest one.
#[derive(Debug, Default)]
pub(super) struct Retransmissions {
    /// Detection time of each loss that has not been retransmitted.
    awaited: VecDeque<Instant>,
    /// `None` before the first.
    smoothed: Option<Smoothed>,
}

impl Retransmissions {
    /// Adds `count` losses found now.
    pub(super) fn on_found(&mut self, count: u32, now: Instant) {
        let room = AWAITED - self.awaited.len().min(AWAITED);
        self.awaited.extend((0..count as usize).take(room).map(|_| now));
    }

    /// Records the arrival of a retransmission.
    pub(super) fn on_retransmission(&mut self, now: Instant) {
        let Some(found) = self.awaited.pop_front() else {
            return;
        };
        self.smoothed = Some(Smoothed::after(self.smoothed, now.since(found)));
    }

    /// Returns the timeout of a retransmission.
    pub(super) fn timeout(&self) -> Duration {
        let Some(Smoothed { mean, deviation }) = self.smoothed else {
            return LONGEST;
        };
        let most = LONGEST_DEVIATING.max(mean + mean / 4).min(LONGEST);
        (mean + deviation * 4 + SLACK).min(most)
    }

    /// Returns until when a retransmission may still arrive; `None` if none is expected.
    pub(super) fn until(&mut self, now: Instant) -> Option<Instant> {
        let timeout = self.timeout();
        while self.awaited.front().is_some_and(|found| *found + timeout <= now) {
            self.awaited.pop_front();
        }
        self.awaited.back().map(|found| *found + timeout)
    }
}

/// Time added to the delay of retransmissions: reports are 5 ms apart, and a retransmission queues
/// like any packet. No suite of docs/notebook/path-model.md, "Sensitivity", changes by more than
/// 3 % with half or twice of it.
const SLACK: Duration = Duration::from_millis(15);
/// Maximum wait for a retransmission. Source: a retransmission takes a round trip, which is at
/// least 558 ms over a geostationary satellite (RFC 2488 section 2), and the queue of the path.
const LONGEST: Duration = Duration::from_secs(1);
/// Maximum wait for a retransmission if it exceeds the average by far: when a network fails, each
/// retransmission waits for those before it. No suite of docs/notebook/path-model.md,
/// "Sensitivity", changes by more than 3 % with half or twice of it.
const LONGEST_DEVIATING: Duration = Duration::from_millis(300);
/// Losses that are waited for at once. No suite of docs/notebook/path-model.md, "Sensitivity",
/// changes by more than 3 % with half or twice of it.
const AWAITED: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: Instant = Instant::from_nanos(1_000_000_000);

    fn named(holes: &mut Holes, highest: u64) -> Vec<(u64, u16)> {
        holes.mention(highest).ranges(highest).collect()
    }

    #[test]
    fn a_hole_is_named_three_times_once_the_path_is_past_it() {
        let mut holes = Holes::default();
        holes.on_packet(10, 9, 100, BEGIN);
        holes.on_packet(14, 10, 200, BEGIN);
        assert_eq!(holes.find(BEGIN, |_| false), 0);
        assert!(named(&mut holes, 14).is_empty());
        holes.on_packet(12, 14, 150, BEGIN);
        assert_eq!(holes.find(BEGIN, |sent| sent <= 200), 2);
        for _ in 0..3 {
            assert_eq!(named(&mut holes, 20), [(11, 1), (13, 1)]);
        }
        assert!(named(&mut holes, 20).is_empty());
    }

    #[test]
    fn an_outage_is_not_a_loss() {
        let mut holes = Holes::default();
        holes.on_packet(2_000, 10, 0, BEGIN);
        assert_eq!(holes.find(BEGIN, |_| true), 0);
    }

    #[test]
    fn more_than_a_report_holds_comes_in_the_next_one() {
        let mut holes = Holes::default();
        for packet_number in (2..100).step_by(2) {
            holes.on_packet(packet_number, packet_number - 2, 0, BEGIN);
        }
        holes.find(BEGIN, |_| true);
        let mut all = std::collections::BTreeSet::new();
        for _ in 0..12 {
            all.extend(named(&mut holes, 100));
        }
        assert_eq!(all.len(), 48);
    }

    #[test]
    fn a_sender_that_jumps_about_opens_no_more_holes_than_are_remembered() {
        let mut holes = Holes::default();
        let mut highest = 1;
        for n in 0..10_000 {
            let next = highest + 500;
            holes.on_packet(next, highest, n, BEGIN);
            highest = next;
            assert!(holes.holes.len() <= MAX, "{}", holes.holes.len());
        }
        assert_eq!(holes.find(BEGIN, |_| true), (MAX / 499 * 499) as u32);
        let later = BEGIN + FORGOTTEN + Duration::from_millis(1);
        assert_eq!(holes.find(later, |_| true), 0);
        assert_eq!((holes.holes.len(), holes.open), (0, 0));
        holes.on_packet(highest + 3, highest, 0, later);
        assert_eq!(holes.open(), 2, "what is lost later is found again");
    }

    #[test]
    fn where_packets_overtake_each_other_nothing_is_forgotten_for_it() {
        let mut holes = Holes::default();
        let mut highest = 1;
        // One is lost for good; of the others, each second overtakes the one before.
        holes.on_packet(3, 1, 0, BEGIN);
        highest += 2;
        for n in 0..50_000 {
            holes.on_packet(highest + 2, highest, n, BEGIN);
            holes.on_packet(highest + 1, highest + 2, n, BEGIN);
            highest += 2;
        }
        assert!(holes.holes.len() <= MAX);
        assert_eq!(holes.open(), 1);
        holes.on_packet(highest + 2, highest, 0, BEGIN);
        assert_eq!(holes.find(BEGIN, |_| true), 2);
        assert_eq!(
            named(&mut holes, highest + 2),
            [(highest + 1, 1)],
            "the other is too far back"
        );
    }

    #[test]
    fn patience_follows_the_retransmissions() {
        let mut retransmissions = Retransmissions::default();
        let mut now = BEGIN;
        for _ in 0..50 {
            retransmissions.on_found(1, now);
            now += Duration::from_millis(25);
            retransmissions.on_retransmission(now);
        }
        assert!(retransmissions.until(now).is_none());
        let timeout = retransmissions.timeout();
        assert!(
            (Duration::from_millis(40)..Duration::from_millis(55)).contains(&timeout),
            "{timeout:?}"
        );
        retransmissions.on_found(2, now);
        assert_eq!(retransmissions.until(now), Some(now + timeout));
        assert_eq!(retransmissions.until(now + timeout), None);
    }

    #[test]
    fn the_first_retransmission_is_waited_for_and_those_of_a_satellite() {
        let mut retransmissions = Retransmissions::default();
        let mut now = BEGIN;
        for _ in 0..30 {
            retransmissions.on_found(1, now);
            now += Duration::from_millis(600);
            assert!(retransmissions.until(now).is_some());
            retransmissions.on_retransmission(now);
        }
    }
}
