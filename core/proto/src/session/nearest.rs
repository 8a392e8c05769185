//! Selection of the nearest hub of a fleet, by its response time over every working network.
//!
//! The distance of a hub is its shortest response time over any network. A hub whose distance is
//! shorter than that of the hub in use by a fifth and by [`MIN`], twice in a row, takes over.
//! Connections continue where they began, so a change costs only a time with two sessions. Among
//! hubs with the same distance, by the same measure, the first by rank is used.
//!
//! Cost: a handshake (about 6 kB) for each hub and network, once an hour, and after a change of
//! networks if ten minutes have passed since the last measurement.

use std::collections::BTreeMap;

use hawser_units::{Duration, Instant};

/// Minimum advantage of a nearer hub: the variation of one route over time. Source: our choice; a
/// smaller one changes hubs for the noise of a radio, a larger one stays at a hub that every
/// request feels.
const MIN: Duration = Duration::from_millis(5);
/// Interval between measurements. Source: our choice, some 150 kB a day for each hub and network;
/// routes between cities change rarely, and a change of networks measures sooner.
const EVERY: Duration = Duration::from_secs(3600);
/// Minimum interval between measurements when networks have changed. Source: our choice, so that a
/// train with a network every minute costs six handshakes with each hub in an hour and not sixty.
const AFTER_CHANGE: Duration = Duration::from_secs(600);
/// Delay before a first measurement, so that paths work, and after a change of networks. Source:
/// our choice, three round trips of 1 s of the slowest networks; a shorter one measures before the
/// paths work, a longer one uses a farther hub for longer.
const AT_FIRST: Duration = Duration::from_secs(3);
/// Delay before a result is measured once more.
const AGAIN: Duration = Duration::from_secs(3);

/// Known distances of hubs.
#[derive(Debug)]
pub(super) struct Nearest<K> {
    /// Set if the nearest hub is to be used.
    pub(super) is_wanted: bool,
    /// Last measurements.
    known: BTreeMap<K, Duration>,
    due: Instant,
    /// Time of the last measurement.
    measured_at: Option<Instant>,
    /// Was nearer the last time.
    candidate: Option<K>,
    /// Hub that should take over.
    pub(super) preferred: Option<K>,
}

impl<K: Copy + Ord> Nearest<K> {
    /// Creates a state without measurements; the first is due soon.
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

    /// Returns the last measurement of a hub.
    pub(super) fn of(&self, hub: K) -> Option<Duration> {
        self.known.get(&hub).copied()
    }

    /// Returns when the next measurement is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.is_wanted.then_some(self.due)
    }

    /// Returns whether a measurement is due now.
    pub(super) fn poll(&mut self, now: Instant) -> bool {
        let is_due = self.is_wanted && self.due <= now;
        if is_due {
            self.due = now + EVERY;
            self.preferred = None;
            self.measured_at = Some(now);
        }
        is_due
    }

    /// Handles added or removed networks, with which other hubs may be nearest.
    pub(super) fn handle_networks(&mut self, now: Instant) {
        let earliest = self.measured_at.map(|last| last + AFTER_CHANGE);
        let at = earliest.map_or(self.due, |earliest| earliest.max(now + AT_FIRST));
        self.due = self.due.min(at);
    }

    /// Decides after new measurements; `current`: the hub in use, `by_rank`: all hubs in their
    /// order.
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

    /// Sorts hubs, which arrive in the order of their rank, into the order in which they are tried:
    /// those as near as the nearest, then the others by distance, then those of unknown distance.
    /// The third is one of the others, if there is one, because the cause of a failure may affect
    /// all hubs of a site.
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

/// Returns whether a change from a hub to a nearer one gains too little.
fn is_as_near(own: Duration, best: Duration) -> bool {
    best + MIN.max(own / 5) > own
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u8 = 1;
    const OTHER: u8 = 2;
    const THIRD: u8 = 3;

    /// Returns the preferred hub after measurements of these hubs, in ms.
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
