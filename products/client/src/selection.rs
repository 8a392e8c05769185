//! Secondary hub for some destinations: chosen by a table `[[rule]]` with `hub`, or because of its
//! shorter delay to them (`faster.rs`). It uses the secondary session, unless the connections of
//! the previous hub need that.
//!
//! [`HubChoice`](hawser_proto::session::HubChoice) decides about the hub, the data plane about each
//! flow ([`hawser_dataplane::Change::SetDestinations`]). While the hub does not answer, all flows
//! use the hub in use.

use std::time::Duration;

use hawser_config::identity::KeyHash;
use hawser_config::{ClientConfig, RuleConfig};
use hawser_control::client::driver::fresh_index;
use hawser_dataplane::Destinations;
use hawser_linux::direct::Match;
use hawser_proto::session::Left;
use tokio::time::Instant;

use super::faster::Leading;
use super::hubs::Hubs;
use super::second::Second;
use super::{Client, session_config};

impl Hubs {
    /// Returns the secondary hub that rules choose, otherwise the one with a shorter delay to some
    /// destinations.
    fn selected(&self, config: &ClientConfig, faster: Option<KeyHash>) -> Option<KeyHash> {
        let named = config.rules.iter().filter_map(|rule| rule.hub.as_ref());
        let named = named.filter_map(|name| self.called(&name.0));
        self.choice.selected_secondary(named.chain(faster))
    }

    /// Returns the destinations of a hub as the secondary one: the first matching rule decides.
    pub(super) fn destinations(&self, key: KeyHash, config: &ClientConfig) -> Vec<(Match, bool)> {
        let rules = config.rules.iter().filter_map(RuleConfig::by_hub);
        let rules = rules.map(|(flows, hub)| {
            let is_chosen = hub.is_some_and(|name| self.called(&name.0) == Some(key));
            (flows.clone(), is_chosen)
        });
        rules.collect()
    }

    /// Returns the first hub in rules that this client does not know in its fleet.
    fn unknown<'a>(&self, config: &'a ClientConfig) -> Option<&'a str> {
        let mut named = config.rules.iter().filter_map(|rule| rule.hub.as_ref());
        let unknown = named.find(|name| self.called(&name.0).is_none());
        unknown.map(|name| name.0.as_str())
    }
}

impl Client {
    /// Maintains the secondary session with the chosen hub, and starts it if necessary.
    pub(super) fn update_selection(&mut self) {
        let chosen = self.hubs.selected(&self.config, self.faster_hub());
        if let Some(key) = chosen
            && self.second_at <= Instant::now()
            && self.driver.machine.session().is_some()
            && !self.hubs.is_asking()
            && self.hubs.choice.may_begin_secondary(&self.sight())
        {
            self.begin_second(key);
        }
        let unknown = self.unknown_hub();
        if unknown != self.said_unknown {
            if let Some(said) = &unknown {
                tracing::warn!("{said}");
            }
            self.said_unknown = unknown;
        }
        let Some(second) = &mut self.second else { return };
        let is_chosen = chosen == Some(second.key);
        let destinations = is_chosen.then(|| Destinations {
            rules: self.hubs.destinations(second.key, &self.config),
            hosts: self.leading.as_ref().map(Leading::through).unwrap_or_default(),
        });
        second.set_destinations(destinations, chosen.is_some() && !is_chosen);
    }

    fn begin_second(&mut self, key: KeyHash) {
        self.second_at = Instant::now() + AGAIN;
        let mut driver = self.driver.for_another_session(session_config(&self.config));
        let Some((_, addresses)) = self.hubs.addresses_of(key) else {
            return;
        };
        for network in self.used() {
            let name = network.name.clone();
            let (addresses, nat64) = self.nat64.to_other_hub(&name, addresses);
            match driver.networks.attach(network, &addresses, nat64) {
                Ok(Some(id)) => driver.machine.handle_network_added(id, fresh_index()),
                Ok(None) => {}
                Err(error) => tracing::debug!(network = name, %error, "cannot open new sockets"),
            }
        }
        if driver.networks.attached.is_empty() {
            return;
        }
        tracing::info!(hub = self.hubs.label(key), "a second hub, for some destinations");
        let fresh = Left {
            hub: key,
            is_leaving: false,
            silent_since: None,
        };
        self.second = Some(Second::new(fresh, driver));
        self.seek_second(None);
        self.carry_out_second();
    }

    /// Returns a message about a rule that names an unknown hub.
    pub(super) fn unknown_hub(&self) -> Option<String> {
        // At first a client knows only the hub of its invitation.
        if self.driver.started.elapsed() < NAMED_WITHIN {
            return None;
        }
        let name = self.hubs.unknown(&self.config)?;
        Some(format!(
            "a rule names the hub {name}, which is not in the fleet: the flows of the rule use the hub in use"
        ))
    }
}

/// Retry interval while no network reaches the hub. Source: our choice; each attempt is a
/// handshake, and a longer one delays destinations that another hub reaches faster.
const AGAIN: Duration = Duration::from_secs(5);
/// Time after which a hub has announced the others of its fleet, and their names have been
/// resolved. Source: our choice; a shorter one reports hubs as unknown that are only not resolved
/// yet, a longer one a mistyped name late.
const NAMED_WITHIN: Duration = Duration::from_secs(10);
