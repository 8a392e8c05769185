//! The packets of one path that have not come, as far as their sender may still send them again.
//!
//! A packet number that is jumped over is open; it is missing once the path has brought packets
//! that were sent later by more than it reorders. It is then named in three reports, because
//! reports get lost too, and forgotten after a second. A gap too large to be chance is an outage,
//! which nobody retransmissions this way.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant};
use hawser_wire::data::Missing;

use crate::smoothed::Smoothed;

/// Reports that name a missing packet.
const MENTIONS: u8 = 3;
/// More packet numbers at once are an outage.
const OUTAGE: u64 = 512;
/// Holes at once: 320 KB. Half of them may be of packets that have come meanwhile.
const MOST: usize = 8_192;
/// Longer ago nobody waits for it.
const FORGOTTEN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct Hole {
    packet_number: u64,
    /// When the packet before it was sent, by the sender's clock: the path is past this one no
    /// later than it is past any packet of another path that waits for it, so that a retransmission
    /// is asked for before the gap is given up.
    sent_us: u32,
    opened: Instant,
    found: bool,
    /// It has come after all; it keeps its place, so that nothing behind it moves.
    closed: bool,
    mentions: u8,
}

impl Hole {
    fn is_due(&self) -> bool {
        self.found && !self.closed && self.mentions < MENTIONS
    }
}

/// The holes in the packet numbers of one path, in their order; losses come before what is open.
///
/// Cost: O(log holes) a packet and a step for each packet number that it jumps over, amortised O(1)
/// for each hole in [`Self::find`] and [`Self::mention`]. At most [`MOST`] holes: what would be
/// more is an outage, so a sender that jumps about cannot make more work than this in the second
/// for which a hole is remembered.
#[derive(Debug, Default)]
pub(super) struct Holes {
    holes: VecDeque<Hole>,
    /// Holes at the front that need no mention any more.
    done: usize,
    /// Neither found to be losses nor closed.
    open: usize,
    closed: usize,
    /// When the newest packet was sent.
    newest_us: u32,
    /// Holes opened and looked at.
    pub(super) steps: u64,
}

impl Holes {
    /// Takes note of a packet: those between it and the highest before are open, or it closes a
    /// hole itself.
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
        if self.holes.len() + gap > MOST {
            self.forget_closed();
            if self.holes.len() + gap > MOST {
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

    /// Makes room, where half of the places are of holes that are closed.
    fn forget_closed(&mut self) {
        if self.closed >= MOST / 2 {
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

    /// Finds out which open holes are losses; says whether any is new. `is_overtaken`: whether the
    /// path is past one that was sent at a time.
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

    /// How many holes at the front are losses, or were closed among them.
    fn losses(&self) -> usize {
        self.holes.partition_point(|hole| hole.found)
    }

    /// When the packet before the oldest open hole was sent; as of the last [`Self::find`].
    pub(super) fn oldest_open(&self) -> Option<u32> {
        self.holes.get(self.losses()).map(|hole| hole.sent_us)
    }

    /// Forgets the losses: nobody retransmits them.
    pub(super) fn forget_losses(&mut self) {
        for _ in 0..self.losses() {
            self.pop();
        }
    }

    /// How many packet numbers may still come.
    pub(super) fn open(&self) -> u16 {
        u16::try_from(self.open).unwrap_or(u16::MAX)
    }

    /// Losses opened since a time are named anew: the reports that named them are lost.
    pub(super) fn mention_again(&mut self, since: Instant) {
        let first = self.holes.partition_point(|hole| hole.opened < since);
        for hole in self.holes.range_mut(first..) {
            self.steps += 1;
            hole.mentions = 0;
        }
        self.done = self.done.min(first);
    }

    /// What a report is to name.
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

/// How long a retransmission takes from the moment when the loss is found, and how many are
/// awaited.
///
/// A retransmission does not say which loss it mends; it is taken for the oldest.
#[derive(Debug, Default)]
pub(super) struct Retransmissions {
    /// When each loss was found that has not been retransmitted.
    awaited: VecDeque<Instant>,
    /// `None` before the first.
    smoothed: Option<Smoothed>,
}

impl Retransmissions {
    /// So many more losses were found now.
    pub(super) fn on_found(&mut self, count: u32, now: Instant) {
        let room = AWAITED - self.awaited.len().min(AWAITED);
        self.awaited.extend((0..count as usize).take(room).map(|_| now));
    }

    /// A retransmission came.
    pub(super) fn on_retransmission(&mut self, now: Instant) {
        let Some(found) = self.awaited.pop_front() else {
            return;
        };
        self.smoothed = Some(Smoothed::after(self.smoothed, now.since(found)));
    }

    /// How long a retransmission may take.
    pub(super) fn timeout(&self) -> Duration {
        let Some(Smoothed { mean, deviation }) = self.smoothed else {
            return LONGEST;
        };
        let most = LONGEST_DEVIATING.max(mean + mean / 4).min(LONGEST);
        (mean + deviation * 4 + SLACK).min(most)
    }

    /// Until when a retransmission may still come; `None` when none is awaited.
    pub(super) fn until(&mut self, now: Instant) -> Option<Instant> {
        let timeout = self.timeout();
        while self.awaited.front().is_some_and(|found| *found + timeout <= now) {
            self.awaited.pop_front();
        }
        self.awaited.back().map(|found| *found + timeout)
    }
}

/// Beyond what retransmissions take: reports are 5 ms apart, and a retransmission queues like any
/// packet.
const SLACK: Duration = Duration::from_millis(15);
/// No retransmission is worth waiting for longer: it takes a round trip, and a satellite's is two
/// thirds of it.
const LONGEST: Duration = Duration::from_secs(1);
/// The same where that is far more than they take on average: when a network dies, each
/// retransmission waits for those before it.
const LONGEST_DEVIATING: Duration = Duration::from_millis(300);
/// Losses that are waited for at once.
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
            assert!(holes.holes.len() <= MOST, "{}", holes.holes.len());
        }
        assert_eq!(holes.find(BEGIN, |_| true), (MOST / 499 * 499) as u32);
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
        assert!(holes.holes.len() <= MOST);
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
