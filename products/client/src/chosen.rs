//! The hub that is chosen for some destinations, beside the one in use: by a table `[[rule]]` with
//! `hub`, or because they are reached sooner through it (`faster.rs`). Its session is the second
//! one, if that is not needed for the connections that began at the hub before.
//!
//! Which hub that is says [`HubChoice`](hawser_proto::session::HubChoice); which flow goes there,
//! the data plane ([`hawser_dataplane::Change::SetDestinations`]). While it does not answer, all
//! goes through the hub in use.

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
    /// The further hub that rules choose, else the one through which destinations are reached
    /// sooner.
    fn chosen(&self, config: &ClientConfig, faster: Option<KeyHash>) -> Option<KeyHash> {
        let named = config.rules.iter().filter_map(|rule| rule.hub.as_ref());
        let named = named.filter_map(|name| self.called(&name.0));
        self.choice.chosen(named.chain(faster))
    }

    /// Returns which flows begin at a hub, if that is the second one: the first rule that matches
    /// decides.
    pub(super) fn destinations(&self, key: KeyHash, config: &ClientConfig) -> Vec<(Match, bool)> {
        let rules = config.rules.iter().filter_map(RuleConfig::by_hub);
        let rules = rules.map(|(flows, hub)| {
            let is_chosen = hub.is_some_and(|name| self.called(&name.0) == Some(key));
            (flows.clone(), is_chosen)
        });
        rules.collect()
    }

    /// The first hub that rules name and this client does not know in its fleet.
    fn unknown<'a>(&self, config: &'a ClientConfig) -> Option<&'a str> {
        let mut named = config.rules.iter().filter_map(|rule| rule.hub.as_ref());
        let unknown = named.find(|name| self.called(&name.0).is_none());
        unknown.map(|name| name.0.as_str())
    }
}

impl Client {
    /// Keeps the second session with the hub that is chosen; begins it where there is none.
    pub(super) fn see_to_chosen(&mut self) {
        let chosen = self.hubs.chosen(&self.config, self.faster_hub());
        if let Some(key) = chosen
            && self.second_at <= Instant::now()
            && self.driver.machine.session().is_some()
            && !self.hubs.is_asking()
            && self.hubs.choice.may_begin_beside(&self.sight())
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
        let mut driver = self.driver.beside(session_config(&self.config));
        let Some((_, addresses)) = self.hubs.way_to(key) else {
            return;
        };
        for network in self.used() {
            let name = network.name.clone();
            match driver.networks.attach(network, addresses) {
                Ok(Some(id)) => driver.machine.handle_network_added(id, fresh_index()),
                Ok(None) => {}
                Err(error) => tracing::debug!(network = name, %error, "no new sockets"),
            }
        }
        if driver.networks.attached.is_empty() {
            return;
        }
        tracing::info!(hub = self.hubs.place(key), "a second hub, for some destinations");
        let fresh = Left {
            hub: key,
            is_leaving: false,
            silent_since: None,
        };
        self.second = Some(Second::new(fresh, driver));
        self.seek_second(None);
        self.carry_out_second();
    }

    /// In words, that a rule names a hub which is not there.
    pub(super) fn unknown_hub(&self) -> Option<String> {
        // At first a client knows the hub that it was invited to.
        if self.driver.started.elapsed() < TOLD {
            return None;
        }
        let name = self.hubs.unknown(&self.config)?;
        Some(format!(
            "a rule names the hub {name}, and there is none of that name in the fleet: its flows go through the hub in use"
        ))
    }
}

/// Between tries where no network leads to the hub.
const AGAIN: Duration = Duration::from_secs(5);
/// By then a hub has named the others of its fleet, and their names have been looked up.
const TOLD: Duration = Duration::from_secs(10);
