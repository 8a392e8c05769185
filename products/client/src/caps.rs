//! Rate limits of networks: from the configuration, or by a user's temporary request.

use std::collections::BTreeMap;

use hawser_config::ClientConfig;
use hawser_control::client::driver::Driver;
use hawser_control::client::networks::Attached;
use hawser_dataplane::{Change, SessionId};
use hawser_units::{PathId, Rate};
use hawser_wire::control::Message;
use serde_json::{Value, json};

use super::Client;
use super::quotas::no_such_network;

/// Values for each direction: towards the hub, and from it.
type Pair<T> = [Option<T>; 2];

/// Requests of a user that override the configuration.
#[derive(Debug, Default)]
pub(super) struct Caps {
    /// Rate limits by network; a rate of zero is no limit.
    wanted: BTreeMap<String, Pair<Rate>>,
}

impl Caps {
    /// Returns the caps of a network.
    pub(super) fn of(&self, attached: &Attached, config: &ClientConfig) -> Pair<Rate> {
        attached.caps(self.of_network(&attached.network.name, config))
    }

    /// Returns the caps of a network from configuration and command, without those of a neighbour.
    pub(super) fn of_network(&self, name: &str, config: &ClientConfig) -> Pair<Rate> {
        let own = config.network(name);
        let mut caps = [own.cap_up, own.cap_down].map(|cap| cap.map(|speed| speed.0));
        for (cap, wanted) in caps.iter_mut().zip(self.wanted.get(name).into_iter().flatten()) {
            if let Some(wanted) = wanted {
                *cap = Some(*wanted).filter(|rate| *rate > Rate::ZERO);
            }
        }
        caps
    }
}

impl Client {
    /// Caps a network as a user requests. Units: bit/s; zero is no cap, and `None` leaves a cap
    /// unchanged. `is_default` returns to the configuration if nothing else is requested.
    ///
    /// # Errors
    /// If there is no such network.
    pub(super) fn cap(&mut self, network: &str, rates: Pair<u64>, is_default: bool) -> anyhow::Result<Value> {
        self.check_known(network)?;
        if is_default {
            self.caps.wanted.remove(network);
        }
        let rates = rates.map(|rate| rate.map(Rate::from_bps));
        if rates != [None, None] {
            let wanted = self.caps.wanted.entry(network.to_owned()).or_default();
            for (wanted, rate) in wanted.iter_mut().zip(rates) {
                *wanted = rate.or(*wanted);
            }
        }
        self.apply_caps();
        let caps = self.caps_of(network);
        tracing::info!(network, caps = %caps, "as requested by a user");
        Ok(json!({ "cap_bps": caps }))
    }

    /// Checks that a network exists, used or not; neighbours' uplinks count.
    ///
    /// # Errors
    /// A message with the known networks.
    pub(super) fn check_known(&self, network: &str) -> anyhow::Result<()> {
        let attached = self.driver.networks.attached.values();
        let mut names: Vec<_> = attached.map(|attached| attached.network.name.as_str()).collect();
        let seen = self.seen.iter().map(|network| network.name.as_str());
        names.extend(seen.filter(|name| self.config.uses(name)));
        names.sort_unstable();
        names.dedup();
        if names.contains(&network) {
            Ok(())
        } else {
            Err(no_such_network(network, &names))
        }
    }

    /// Returns the entry of a network in status: `{"up": null, "down": 5000000}`, bit/s.
    pub(super) fn caps_of(&self, network: &str) -> Value {
        let caps = self.caps.of_network(network, &self.config);
        let [up, down] = caps.map(|cap| cap.map(Rate::as_bps));
        json!({ "up": up, "down": down })
    }

    /// Sends the caps to both ends.
    pub(super) fn apply_caps(&self) {
        for driver in self.drivers() {
            self.send_caps(driver);
        }
    }

    /// Sends the caps to both ends of one session.
    pub(super) fn send_caps(&self, driver: &Driver) {
        let Some(session) = driver.machine.session().map(SessionId) else {
            return;
        };
        for (id, attached) in &driver.networks.attached {
            let Some(path) = driver.machine.path(*id) else {
                continue;
            };
            let [cap, cap_down] = self.caps.of(attached, &self.config);
            driver.order(Change::SetCap {
                session,
                path: PathId(path),
                cap,
            });
            let rate_bps = cap_down.map_or(0, |rate| rate.as_bps());
            driver.send(Message::Cap { path, rate_bps });
        }
    }
}
