//! Response times of a fleet's hubs over every working network.
//! [`HubChoice`](hawser_proto::session::HubChoice) decides when they are measured, and what
//! follows.

use std::collections::BTreeMap;

use hawser_config::identity::KeyHash;
use hawser_control::client;
use hawser_dataplane::PathState;
use hawser_units::Duration;
use tokio::task::JoinSet;

use super::Client;

/// Measurement in progress, if any.
#[derive(Default)]
pub(super) struct Measuring {
    asked: JoinSet<(KeyHash, Option<Duration>)>,
    /// Shortest response time of each hub.
    found: BTreeMap<KeyHash, Duration>,
}

impl Measuring {
    /// Waits for a complete measurement. Cancel safe.
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
    /// Starts a measurement of the response times of these hubs.
    pub(super) fn measure(&mut self, hubs: &[KeyHash]) {
        for hub in hubs {
            let Some((tls, addresses)) = self.hubs.addresses_of(*hub) else {
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

    /// Handles a measurement of the hubs' response times.
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
            hub = self.hubs.label(hub),
            round_trip_ms = trip(hub),
            in_use_ms = trip(self.hubs.choice.current()),
            "a hub with a shorter round trip is used"
        );
    }
}
