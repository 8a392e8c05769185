//! Which hub of a fleet is the nearest: how long each takes to answer, over every network that
//! works.
//!
//! A hub is as near as it is over the network over which it is nearest. One that is nearer than the
//! hub in use by a fifth, and by [`LEAST`], twice in a row, is gone to: connections go on where
//! they began, so a change costs nothing but a while with two sessions. Of several that are as near
//! as the nearest, by the same measure, the first by rank is gone to.
//!
//! Cost: a handshake (some 6 kB) for each hub and network, once an hour, and ten minutes after the
//! last time when networks have changed.

use std::collections::BTreeMap;

use hawser_units::{Duration, Instant};

/// What a hub has to be nearer by at least: what the same way differs by from one time to the next.
const LEAST: Duration = Duration::from_millis(5);
/// From one measurement to the next.
const EVERY: Duration = Duration::from_secs(3600);
/// The same, when networks have changed.
const AFTER_CHANGE: Duration = Duration::from_secs(600);
/// Before a first measurement, so that paths work; and after a change of networks.
const AT_FIRST: Duration = Duration::from_secs(3);
/// Before a result is measured once more.
const AGAIN: Duration = Duration::from_secs(3);

/// What is known of how near hubs are.
#[derive(Debug)]
pub(super) struct Nearest<K> {
    /// The nearest is to be used.
    pub(super) is_wanted: bool,
    /// As measured last.
    known: BTreeMap<K, Duration>,
    due: Instant,
    /// When it was measured last.
    measured_at: Option<Instant>,
    /// Was nearer the last time.
    candidate: Option<K>,
    /// Is to be gone to.
    pub(super) preferred: Option<K>,
}

impl<K: Copy + Ord> Nearest<K> {
    /// Nothing is known, and it is measured soon.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            is_wanted: true,
            known: BTreeMap::new(),
            due: now + AT_FIRST,
            measured_at: None,
            candidate: None,
            preferred: None,
        }
    }

    /// How near a hub was.
    pub(super) fn of(&self, hub: K) -> Option<Duration> {
        self.known.get(&hub).copied()
    }

    /// When it is to be measured.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.is_wanted.then_some(self.due)
    }

    /// Whether it is to be measured now.
    pub(super) fn poll(&mut self, now: Instant) -> bool {
        let is_due = self.is_wanted && self.due <= now;
        if is_due {
            self.due = now + EVERY;
            self.preferred = None;
            self.measured_at = Some(now);
        }
        is_due
    }

    /// Networks have come or gone: other hubs may be the nearest now.
    pub(super) fn handle_networks(&mut self, now: Instant) {
        let earliest = self.measured_at.map(|last| last + AFTER_CHANGE);
        let at = earliest.map_or(self.due, |earliest| earliest.max(now + AT_FIRST));
        self.due = self.due.min(at);
    }

    /// Decides on what was measured; `current`: the hub in use, `by_rank`: all hubs in their order.
    pub(super) fn handle_measured(
        &mut self,
        current: K,
        found: BTreeMap<K, Duration>,
        by_rank: &[K],
        now: Instant,
    ) {
        self.known = found;
        self.due = now + EVERY;
        let before = self.candidate.take();
        let (Some(own), Some(best)) = (self.of(current), self.known.values().min()) else {
            return;
        };
        if is_as_near(own, *best) {
            return;
        }
        let is_near = |hub: &&K| self.of(**hub).is_some_and(|time| is_as_near(time, *best));
        let Some(hub) = by_rank.iter().find(is_near).copied() else {
            return;
        };
        if before == Some(hub) {
            self.preferred = Some(hub);
        } else {
            self.candidate = Some(hub);
            self.due = now + AGAIN;
        }
    }

    /// Puts hubs that come in the order of their rank into that in which they are to be asked:
    /// those as near as the nearest of them, then the others as they are near, then those of which
    /// nothing is known. The third is of the others, where there is one: what has ended the hub in
    /// use may have ended all at its place.
    pub(super) fn sort(&self, hubs: &mut [K]) {
        let best = hubs.iter().filter_map(|hub| self.of(*hub)).min();
        let is_near = |hub: &K| {
            let both = self.of(*hub).zip(best);
            both.is_some_and(|(time, best)| is_as_near(time, best))
        };
        hubs.sort_by_key(|hub| match self.of(*hub) {
            Some(_) if is_near(hub) => Duration::ZERO,
            time => time.unwrap_or(Duration::MAX),
        });
        let near = hubs.iter().filter(|hub| is_near(hub)).count();
        if near > 2 && near < hubs.len() {
            hubs[2..=near].rotate_right(1);
        }
    }
}

/// Whether it is of no use to go from a hub to a nearer one.
fn is_as_near(own: Duration, best: Duration) -> bool {
    best + LEAST.max(own / 5) > own
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u8 = 1;
    const OTHER: u8 = 2;
    const THIRD: u8 = 3;

    /// What is preferred after measurements of these hubs, in ms.
    fn after(all: &[&[(u8, u64)]]) -> Option<u8> {
        let mut now = Instant::ZERO;
        let mut nearest = Nearest::new(now);
        for one in all {
            now = nearest.poll_timeout().unwrap();
            assert!(nearest.poll(now));
            let found = one.iter().map(|(hub, ms)| (*hub, Duration::from_millis(*ms)));
            nearest.handle_measured(OWN, found.collect(), &[THIRD, OTHER, OWN], now);
        }
        nearest.preferred
    }

    #[test]
    fn of_those_that_are_as_near_the_first_by_rank_is_gone_to() {
        let near: &[_] = &[(OWN, 80), (OTHER, 20), (THIRD, 23)];
        assert_eq!(after(&[near, near]), Some(THIRD));
        let nearer: &[_] = &[(OWN, 80), (OTHER, 20), (THIRD, 40)];
        assert_eq!(after(&[nearer, nearer]), Some(OTHER));
    }

    #[test]
    fn goes_to_a_nearer_hub_once_it_was_nearer_twice() {
        let nearer: &[_] = &[(OWN, 80), (OTHER, 20), (THIRD, 50)];
        let near: &[_] = &[(OWN, 10), (OTHER, 20)];
        assert_eq!(after(&[nearer]), None);
        assert_eq!(after(&[nearer, nearer]), Some(OTHER));
        assert_eq!(after(&[nearer, near, nearer]), None);
        assert_eq!(after(&[nearer, &[(OWN, 80), (THIRD, 10), (OTHER, 20)]]), None);
    }

    #[test]
    fn stays_where_the_difference_is_small_or_unknown() {
        let all: [&[_]; 4] = [
            &[(OWN, 20), (OTHER, 16)],
            &[(OWN, 100), (OTHER, 81)],
            &[(OWN, 100)],
            &[(OTHER, 10)],
        ];
        for one in all {
            assert_eq!(after(&[one, one, one]), None, "{one:?}");
        }
    }

    #[test]
    fn networks_that_come_and_go_do_not_measure_all_the_time() {
        let mut now = Instant::ZERO;
        let mut nearest = Nearest::<u8>::new(now);
        let mut measured = 0;
        for _ in 0..3_600 {
            now += Duration::from_secs(1);
            nearest.handle_networks(now);
            measured += u32::from(nearest.poll(now));
        }
        assert_eq!(measured, 6);
    }
}
