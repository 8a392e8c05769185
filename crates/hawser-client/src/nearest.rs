//! Which hub of a fleet is the nearest: how long each takes to answer, over every network that
//! works.
//!
//! A hub is as near as it is over the network over which it is nearest. One that is nearer than the
//! hub in use by a fifth, and by [`LEAST`], twice in a row, is gone to: connections go on where
//! they began, so a change costs nothing but a while with two sessions.
//!
//! Cost: a handshake (some 6 kB) for each hub and network, once an hour, and ten minutes after the
//! last time when networks have changed.

use std::collections::BTreeMap;
use std::time::Duration;

use hawser_config::HubChoice;
use hawser_config::identity::KeyHash;
use hawser_control::client;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Client;

/// What is known of how near hubs are.
pub(super) struct Nearest {
    measuring: JoinSet<(KeyHash, Option<Duration>)>,
    /// Of the measurement under way.
    found: BTreeMap<KeyHash, Duration>,
    /// Of the last one.
    known: BTreeMap<KeyHash, Duration>,
    due: Instant,
    /// When it was measured last.
    measured_at: Option<Instant>,
    /// Was nearer the last time.
    candidate: Option<KeyHash>,
    /// Is to be gone to.
    pub(super) preferred: Option<KeyHash>,
}

impl Nearest {
    /// Nothing is known, and it is measured soon.
    pub(super) fn new() -> Self {
        Self {
            measuring: JoinSet::new(),
            found: BTreeMap::new(),
            known: BTreeMap::new(),
            due: Instant::now() + AT_FIRST,
            measured_at: None,
            candidate: None,
            preferred: None,
        }
    }

    /// A measurement is complete. May be dropped while it waits.
    pub(super) async fn next(&mut self) {
        loop {
            match self.measuring.join_next().await {
                Some(Ok((hub, Some(round_trip)))) => {
                    let nearest = self.found.entry(hub).or_insert(round_trip);
                    *nearest = round_trip.min(*nearest);
                }
                Some(Ok((_, None)) | Err(_)) => {}
                None => return std::future::pending().await,
            }
            if self.measuring.is_empty() {
                return;
            }
        }
    }

    /// When it is to be measured.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.measuring.is_empty().then_some(self.due)
    }

    /// How near a hub was.
    pub(super) fn of(&self, hub: KeyHash) -> Option<Duration> {
        self.known.get(&hub).copied()
    }

    /// Networks have come or gone: other hubs may be the nearest now.
    pub(super) fn handle_networks(&mut self) {
        let earliest = self.measured_at.map(|last| last + AFTER_CHANGE);
        let at = earliest.map_or(self.due, |earliest| earliest.max(Instant::now() + AT_FIRST));
        self.due = self.due.min(at);
    }

    /// Decides on what was measured; `current`: the hub in use.
    fn handle_measured(&mut self, current: KeyHash, now: Instant) {
        self.known = std::mem::take(&mut self.found);
        self.due = now + EVERY;
        let before = self.candidate.take();
        let others = self.known.iter().filter(|(hub, _)| **hub != current);
        let (Some(own), Some((hub, best))) =
            (self.known.get(&current), others.min_by_key(|(_, time)| **time))
        else {
            return;
        };
        if *best + LEAST.max(*own / 5) > *own {
            return;
        }
        if before == Some(*hub) {
            self.preferred = Some(*hub);
        } else {
            self.candidate = Some(*hub);
            self.due = now + AGAIN;
        }
    }
}

impl Client {
    /// Measures how near the hubs of this fleet are, when that is due. To be called after whatever
    /// has happened.
    pub(super) fn see_to_nearest(&mut self) {
        let now = Instant::now();
        let is_due = self.hubs.nearest.poll_timeout().is_some_and(|due| due <= now);
        if !is_due {
            return;
        }
        self.hubs.nearest.due = now + EVERY;
        self.hubs.nearest.preferred = None;
        let fleet = self.hubs.fleet();
        let is_wanted = self.config.hub == HubChoice::Nearest && self.driver.line.is_some();
        if !is_wanted || fleet.len() < 2 {
            return;
        }
        self.hubs.nearest.measured_at = Some(now);
        for (hub, tls, addresses) in fleet {
            for attached in self.driver.networks.attached.values() {
                let is_live = attached.state == Some(hawser_dataplane::PathState::Active);
                let Some(remote) = attached.leads_to(&addresses).filter(|_| is_live) else {
                    continue;
                };
                let (endpoint, tls) = (attached.endpoint.clone(), tls.clone());
                self.hubs
                    .nearest
                    .measuring
                    .spawn(async move { (hub, client::round_trip(&endpoint, tls, remote).await.ok()) });
            }
        }
    }

    /// It has been measured how near hubs are.
    pub(super) fn on_measured(&mut self) {
        let current = self.hubs.current().hub_key;
        self.hubs.nearest.handle_measured(current, Instant::now());
        let Some(hub) = self.hubs.nearest.preferred else {
            return;
        };
        let trip = |hub| {
            self.hubs
                .nearest
                .of(hub)
                .map_or(0.0, |trip| trip.as_secs_f64() * 1e3)
        };
        tracing::info!(
            hub = self.hubs.place(hub),
            round_trip_ms = trip(hub),
            in_use_ms = trip(current),
            "a nearer hub"
        );
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: KeyHash = KeyHash([1; 32]);
    const OTHER: KeyHash = KeyHash([2; 32]);
    const THIRD: KeyHash = KeyHash([3; 32]);

    /// What is preferred after measurements of these hubs, in ms.
    async fn after(all: &[&[(KeyHash, u64)]]) -> Option<KeyHash> {
        let mut nearest = Nearest::new();
        for one in all {
            for (hub, ms) in *one {
                let (hub, trip) = (*hub, Duration::from_millis(*ms));
                nearest.measuring.spawn(async move { (hub, Some(trip)) });
            }
            nearest.next().await;
            nearest.handle_measured(OWN, Instant::now());
        }
        nearest.preferred
    }

    #[tokio::test]
    async fn goes_to_a_nearer_hub_once_it_was_nearer_twice() {
        let nearer: &[_] = &[(OWN, 80), (OTHER, 20), (THIRD, 50)];
        let near: &[_] = &[(OWN, 10), (OTHER, 20)];
        assert_eq!(after(&[nearer]).await, None);
        assert_eq!(after(&[nearer, nearer]).await, Some(OTHER));
        assert_eq!(after(&[nearer, near, nearer]).await, None);
        assert_eq!(
            after(&[nearer, &[(OWN, 80), (THIRD, 10), (OTHER, 20)]]).await,
            None
        );
    }

    #[tokio::test]
    async fn stays_where_the_difference_is_small_or_unknown() {
        let all: [&[_]; 4] = [
            &[(OWN, 20), (OTHER, 16)],
            &[(OWN, 100), (OTHER, 81)],
            &[(OWN, 100)],
            &[(OTHER, 10)],
        ];
        for one in all {
            assert_eq!(after(&[one, one, one]).await, None, "{one:?}");
        }
    }

    #[tokio::test]
    async fn a_hub_is_as_near_as_over_its_best_network() {
        let twice: &[_] = &[(OWN, 80), (OTHER, 300), (OTHER, 10), (OWN, 90)];
        assert_eq!(after(&[twice, twice]).await, Some(OTHER));
    }
}
