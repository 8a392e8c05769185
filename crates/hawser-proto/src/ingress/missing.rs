//! The packets of one path that have not come, as far as their sender may still send them again.
//!
//! A counter that is jumped over is open; it is missing once the path has brought packets that were sent later by more than it reorders. It is then
//! named in three reports, because reports get lost too, and forgotten after a second. A gap too large to be chance is an outage, which nobody repairs
//! this way.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant};
use hawser_wire::data::Missing;

use crate::smoothed::Smoothed;

/// Reports that name a missing packet.
const MENTIONS: u8 = 3;
/// More counters at once are an outage.
const OUTAGE: u64 = 512;
/// Longer ago nobody waits for it.
const FORGOTTEN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct Hole {
    counter: u64,
    /// When the packet before it was sent, by the sender's clock: the path is past this one no later than it is past any packet of
    /// another path that waits for it, so that a repair is asked for before the gap is given up.
    sent_us: u32,
    opened: Instant,
    found: bool,
    mentions: u8,
}

/// The holes in the counters of one path, in their order; losses come before what is open.
#[derive(Debug, Default)]
pub(super) struct Holes {
    holes: VecDeque<Hole>,
    /// When the newest packet was sent.
    newest_us: u32,
}

impl Holes {
    /// Takes note of a packet: those between it and the highest before are open, or it closes a hole itself.
    pub(super) fn on_packet(&mut self, counter: u64, highest: u64, sent_us: u32, now: Instant) {
        if counter < highest {
            if let Ok(at) = self.holes.binary_search_by_key(&counter, |hole| hole.counter) {
                self.holes.remove(at);
            }
            return;
        }
        let before_us = std::mem::replace(&mut self.newest_us, sent_us);
        if highest == 0 || counter - highest > OUTAGE {
            return;
        }
        self.holes.extend((highest + 1..counter).map(|counter| Hole {
            counter,
            sent_us: before_us,
            opened: now,
            found: false,
            mentions: 0,
        }));
    }

    /// Finds out which open holes are losses; says whether any is new. `is_overtaken`: whether the path is past one that was sent at a time.
    pub(super) fn find(&mut self, now: Instant, is_overtaken: impl Fn(u32) -> bool) -> u32 {
        while self
            .holes
            .front()
            .is_some_and(|hole| now.since(hole.opened) > FORGOTTEN)
        {
            self.holes.pop_front();
        }
        let open = self.holes.partition_point(|hole| hole.found);
        let mut found = 0;
        for hole in self.holes.range_mut(open..) {
            if !is_overtaken(hole.sent_us) {
                break;
            }
            hole.found = true;
            found += 1;
        }
        found
    }

    /// When the packet before the oldest open hole was sent.
    pub(super) fn oldest_open(&self) -> Option<u32> {
        let open = self.holes.partition_point(|hole| hole.found);
        self.holes.get(open).map(|hole| hole.sent_us)
    }

    /// Forgets the losses: nobody repairs them.
    pub(super) fn forget_losses(&mut self) {
        let open = self.holes.partition_point(|hole| hole.found);
        self.holes.drain(..open);
    }

    /// How many counters may still come.
    pub(super) fn open(&self) -> u16 {
        let open = self.holes.len() - self.holes.partition_point(|hole| hole.found);
        u16::try_from(open).unwrap_or(u16::MAX)
    }

    /// Losses opened since a time are named anew: the reports that named them are lost.
    pub(super) fn mention_again(&mut self, since: Instant) {
        for hole in self
            .holes
            .iter_mut()
            .rev()
            .take_while(|hole| hole.opened >= since)
        {
            hole.mentions = 0;
        }
    }

    /// What a report is to name.
    pub(super) fn mention(&mut self, highest: u64) -> Missing {
        let mut missing = Missing::default();
        let mut due = self
            .holes
            .iter_mut()
            .filter(|hole| hole.found && hole.mentions < MENTIONS)
            .peekable();
        while let Some(first) = due.next() {
            first.mentions += 1;
            let mut count = 1;
            while let Some(next) = due.next_if(|next| next.counter == first.counter + u64::from(count)) {
                next.mentions += 1;
                count += 1;
            }
            let Ok(back) = u16::try_from(highest.saturating_sub(first.counter)) else {
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

/// How long a repair takes from the moment when the loss is found, and how many are awaited.
///
/// A repair does not say which loss it mends; it is taken for the oldest.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// When each loss was found that has not been repaired.
    awaited: VecDeque<Instant>,
    /// `None` before the first.
    smoothed: Option<Smoothed>,
}

impl Repairs {
    /// So many more losses were found now.
    pub(super) fn on_found(&mut self, count: u32, now: Instant) {
        let room = AWAITED - self.awaited.len().min(AWAITED);
        self.awaited.extend((0..count as usize).take(room).map(|_| now));
    }

    /// A repair came.
    pub(super) fn on_repair(&mut self, now: Instant) {
        let Some(found) = self.awaited.pop_front() else {
            return;
        };
        self.smoothed = Some(Smoothed::after(self.smoothed, now.since(found)));
    }

    /// How long a repair may take.
    pub(super) fn patience(&self) -> Duration {
        let Some(Smoothed { mean, deviation }) = self.smoothed else {
            return LONGEST;
        };
        let most = LONGEST_DEVIATING.max(mean + mean / 4).min(LONGEST);
        (mean + deviation * 4 + SLACK).min(most)
    }

    /// Until when a repair may still come; `None` when none is awaited.
    pub(super) fn until(&mut self, now: Instant) -> Option<Instant> {
        let patience = self.patience();
        while self.awaited.front().is_some_and(|found| *found + patience <= now) {
            self.awaited.pop_front();
        }
        self.awaited.back().map(|found| *found + patience)
    }
}

/// Beyond what repairs take: reports are 5 ms apart, and a repair queues like any packet.
const SLACK: Duration = Duration::from_millis(15);
/// No repair is worth waiting for longer: it takes a round trip, and a satellite's is two thirds of it.
const LONGEST: Duration = Duration::from_secs(1);
/// The same where that is far more than they take on average: when a network dies, each repair waits for those before it.
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
        for counter in (2..100).step_by(2) {
            holes.on_packet(counter, counter - 2, 0, BEGIN);
        }
        holes.find(BEGIN, |_| true);
        let mut all = std::collections::BTreeSet::new();
        for _ in 0..12 {
            all.extend(named(&mut holes, 100));
        }
        assert_eq!(all.len(), 48);
    }

    #[test]
    fn patience_follows_the_repairs() {
        let mut repairs = Repairs::default();
        let mut now = BEGIN;
        for _ in 0..50 {
            repairs.on_found(1, now);
            now += Duration::from_millis(25);
            repairs.on_repair(now);
        }
        assert!(repairs.until(now).is_none());
        let patience = repairs.patience();
        assert!(
            (Duration::from_millis(40)..Duration::from_millis(55)).contains(&patience),
            "{patience:?}"
        );
        repairs.on_found(2, now);
        assert_eq!(repairs.until(now), Some(now + patience));
        assert_eq!(repairs.until(now + patience), None);
    }

    #[test]
    fn the_first_repair_is_waited_for_and_those_of_a_satellite() {
        let mut repairs = Repairs::default();
        let mut now = BEGIN;
        for _ in 0..30 {
            repairs.on_found(1, now);
            now += Duration::from_millis(600);
            assert!(repairs.until(now).is_some());
            repairs.on_repair(now);
        }
    }
}
