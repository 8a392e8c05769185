//! Repeated resolution of the hubs' names while the hub in use does not answer, because its address
//! may have changed. The paths then use the new address, and the session continues.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use hawser_config::identity::KeyHash;
use hawser_units::Instant;
use tokio::sync::mpsc;

use super::Client;

/// Addresses of hubs, by key.
pub(super) type Found = Vec<(KeyHash, Vec<SocketAddr>)>;

/// Schedule and results of lookups.
pub(super) struct NameLookups {
    pace: Pace,
    found: mpsc::UnboundedSender<Found>,
    finding: mpsc::UnboundedReceiver<Found>,
}

impl NameLookups {
    pub(super) fn new() -> Self {
        let (found, finding) = mpsc::unbounded_channel();
        Self {
            pace: Pace::default(),
            found,
            finding,
        }
    }

    /// Waits for the result of a lookup. Cancel safe.
    pub(super) async fn next(&mut self) -> Found {
        // This value holds a sender, so the channel never closes.
        self.finding.recv().await.unwrap_or_default()
    }
}

/// Decides when a lookup begins.
#[derive(Debug, Default)]
struct Pace {
    /// Set while a lookup is in progress.
    is_busy: bool,
    /// End of the last lookup.
    ended: Option<Instant>,
}

impl Pace {
    /// Returns the time of the next lookup; `None` while the hub answers.
    fn due(&self, silent_since: Option<Instant>) -> Option<Instant> {
        let first = silent_since.filter(|_| !self.is_busy)? + SILENCE_BEFORE;
        let next = self.ended.map(|ended| ended + BETWEEN);
        Some(next.map_or(first, |next| next.max(first)))
    }

    /// Returns whether a lookup begins now.
    fn poll(&mut self, silent_since: Option<Instant>, now: Instant) -> bool {
        let begins = self.due(silent_since).is_some_and(|due| due <= now);
        self.is_busy |= begins;
        begins
    }

    fn handle_ended(&mut self, now: Instant) {
        (self.is_busy, self.ended) = (false, Some(now));
    }
}

/// Orders the addresses of a hub for attempts: first unknown ones, then those that have waited
/// longest, at the end those that were `tried` without an answer. If nothing was `found`, the
/// `known` addresses remain.
pub(super) fn in_turn(
    known: &[SocketAddr],
    mut found: Vec<SocketAddr>,
    tried: &[SocketAddr],
) -> Vec<SocketAddr> {
    if found.is_empty() {
        return known.to_vec();
    }
    let mut seen = BTreeSet::new();
    found.retain(|address| seen.insert(*address));
    found.sort_by_key(|address| {
        let place = known.iter().position(|known| known == address);
        (tried.contains(address), place)
    });
    found
}

impl Client {
    /// Starts due lookups of the hubs' names. Must be called after each event.
    pub(super) fn poll_name_lookups(&mut self) {
        let now = self.now();
        if !self.name_lookups.pace.poll(self.silent_with_networks(), now) {
            return;
        }
        let (hubs, config, found) = (
            self.hubs.records(),
            self.config.clone(),
            self.name_lookups.found.clone(),
        );
        hawser_linux::tasks::spawn(async move {
            let lookups = hubs
                .iter()
                .map(async |hub| (hub.hub_key, hub.resolve_again(&config).await));
            let _ = found.send(futures_util::future::join_all(lookups).await);
        });
    }

    /// Returns the time of the next [`Self::poll_name_lookups`], if no other event occurs.
    pub(super) fn names_due(&self) -> Option<tokio::time::Instant> {
        let due = self.name_lookups.pace.due(self.silent_with_networks())?;
        Some(self.driver.at(due))
    }

    fn silent_with_networks(&self) -> Option<Instant> {
        let since = self.hubs.choice.silent_since();
        since.filter(|_| self.seen.iter().any(|network| self.uses(&network.name)))
    }

    /// Changes the paths to the hub's new address, unless the hub has answered in the meantime.
    pub(super) fn on_resolved(&mut self, found: Found) {
        let now = self.now();
        self.name_lookups.pace.handle_ended(now);
        if self.hubs.choice.silent_since().is_none() {
            return;
        }
        let attached = self.driver.networks.attached.values();
        let plain = attached.filter(|attached| attached.is_plain());
        let tried: Vec<_> = plain
            .map(|attached| attached.untranslated(attached.remote))
            .collect();
        let before = self.hubs.current().addresses.clone();
        self.hubs.handle_addresses(found, &tried);
        let addresses = &self.hubs.current().addresses;
        if *addresses == before {
            return;
        }
        tracing::info!(?before, now = ?addresses, "the hub does not answer: trying its other addresses");
        self.lead_to_new_address();
    }

    /// Changes all paths to the hub's first address. The session remains, and continues when the
    /// hub is reached there.
    fn lead_to_new_address(&mut self) {
        self.driver.lose_line("its address has changed");
        self.driver.reach.stop();
        self.renew_fallback();
        self.pool.handle_hub_changed();
        let attached: Vec<_> = self.driver.networks.attached.keys().copied().collect();
        attached.into_iter().for_each(|id| self.remove_network(id));
        for network in self.seen.clone() {
            if !self.uses(&network.name) {
                continue;
            }
            if let Err(error) = self.add_network(network) {
                tracing::warn!(error = format!("{error:#}"), "network not usable");
            }
        }
        self.seek(None);
    }
}

/// Time without an answer of a hub before its names are resolved. Source: a hub that is only
/// restarted answers sooner.
const SILENCE_BEFORE: Duration = Duration::from_secs(3);
/// Pause between two lookups. Source: resolvers cache names with changing addresses for 30 to 60 s
/// (RFC 2136 updates of home routers), so a shorter pause finds nothing sooner.
const BETWEEN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn addresses(hosts: &[u8]) -> Vec<SocketAddr> {
        let address = |host: &u8| SocketAddr::from(([192, 0, 2, *host], 443));
        hosts.iter().map(address).collect()
    }

    #[test]
    fn names_are_looked_up_again_and_again_while_the_hub_is_silent() {
        let mut pace = Pace::default();
        assert_eq!(pace.due(None), None);
        assert!(!pace.poll(None, at(100)));
        let silent = Some(at(100));
        assert!(!pace.poll(silent, at(102)));
        assert!(pace.poll(silent, at(103)));
        assert_eq!(pace.due(silent), None, "one is under way");
        pace.handle_ended(at(108));
        assert_eq!(pace.due(silent), Some(at(113)));
        assert!(pace.poll(silent, at(113)));
        pace.handle_ended(at(114));
        assert_eq!(pace.due(None), None, "it answers");
        assert_eq!(pace.due(Some(at(118))), Some(at(121)), "silent again");
    }

    #[test]
    fn new_addresses_are_tried_first_and_all_in_turn() {
        let known = addresses(&[1]);
        assert_eq!(in_turn(&known, addresses(&[2]), &known), addresses(&[2]));
        assert_eq!(in_turn(&known, addresses(&[1]), &known), known);
        assert_eq!(in_turn(&known, Vec::new(), &known), known);
        assert_eq!(in_turn(&known, addresses(&[2, 1, 2]), &known), addresses(&[2, 1]));
        let found = || addresses(&[1, 2, 3]);
        let mut order = found();
        let mut tried = Vec::new();
        for _ in 0..4 {
            let first = vec![order[0]];
            order = in_turn(&order, found(), &first);
            tried.push(order[0]);
        }
        assert_eq!(tried, addresses(&[2, 3, 1, 2]));
    }
}
