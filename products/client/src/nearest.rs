//! How long the hubs of a fleet take to answer, over every network that works. When that is
//! measured and what follows from it is said by [`HubChoice`](hawser_proto::session::HubChoice).

use std::collections::BTreeMap;

use hawser_config::identity::KeyHash;
use hawser_control::client;
use hawser_dataplane::PathState;
use hawser_units::Duration;
use tokio::task::JoinSet;

use super::Client;

/// A measurement under way; none at first.
#[derive(Default)]
pub(super) struct Measuring {
    asked: JoinSet<(KeyHash, Option<Duration>)>,
    /// The shortest of each hub.
    found: BTreeMap<KeyHash, Duration>,
}

impl Measuring {
    /// What was measured, once that is complete. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> BTreeMap<KeyHash, Duration> {
        loop {
            match self.asked.join_next().await {
                Some(Ok((hub, Some(round_trip)))) => {
                    let nearest = self.found.entry(hub).or_insert(round_trip);
                    *nearest = round_trip.min(*nearest);
                }
                Some(Ok((_, None)) | Err(_)) => {}
                None => return std::future::pending().await,
            }
            if self.asked.is_empty() {
                return std::mem::take(&mut self.found);
            }
        }
    }
}

impl Client {
    /// Begins to measure how near these hubs are.
    pub(super) fn measure(&mut self, hubs: &[KeyHash]) {
        for hub in hubs {
            let Some((tls, addresses)) = self.hubs.way_to(*hub) else {
                continue;
            };
            for attached in self.driver.networks.attached.values() {
                let is_live = attached.state == Some(PathState::Active);
                let Some(remote) = attached.leads_to(addresses).filter(|_| is_live) else {
                    continue;
                };
                let (hub, endpoint, tls) = (*hub, attached.endpoint.clone(), tls.clone());
                self.measuring
                    .asked
                    .spawn(async move { (hub, client::round_trip(&endpoint, tls, remote).await.ok()) });
            }
        }
    }

    /// It has been measured how near hubs are.
    pub(super) fn on_measured(&mut self, found: BTreeMap<KeyHash, Duration>) {
        let now = self.now();
        self.hubs.choice.handle_measured(found, now);
        let Some(hub) = self.hubs.choice.preferred() else {
            return;
        };
        let trip = |hub| {
            let trip = self.hubs.choice.round_trip(hub);
            trip.map_or(0.0, |trip| trip.as_secs_f64() * 1e3)
        };
        tracing::info!(
            hub = self.hubs.place(hub),
            round_trip_ms = trip(hub),
            in_use_ms = trip(self.hubs.choice.current()),
            "a nearer hub"
        );
    }
}
