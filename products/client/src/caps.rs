//! What a network may carry at most: as the configuration says, or as a user wants for a while.

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

/// A cap in each direction: towards the hub, and from it.
type Pair<T> = [Option<T>; 2];

/// What a user wants, in place of the configuration.
#[derive(Debug, Default)]
pub(super) struct Caps {
    /// By network; a rate of zero is no cap.
    wanted: BTreeMap<String, Pair<Rate>>,
}

impl Caps {
    /// The caps of a network.
    pub(super) fn of(&self, attached: &Attached, config: &ClientConfig) -> Pair<Rate> {
        attached.caps(self.of_network(&attached.network.name, config))
    }

    /// The same, without those of a neighbour.
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
    /// Caps a network as a user wants. Units: bit/s; zero is no cap, and `None` as it was.
    /// `is_default`: as the configuration says, where nothing else is wanted.
    ///
    /// # Errors
    /// There is no such network.
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
        tracing::info!(network, caps = %caps, "as a user wants");
        Ok(json!({ "cap_bps": caps }))
    }

    /// Whether a network is there, used or not; neighbours' ways out are.
    ///
    /// # Errors
    /// It is not; which are.
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

    /// What status says of a network: `{"up": null, "down": 5000000}`, bit/s.
    pub(super) fn caps_of(&self, network: &str) -> Value {
        let caps = self.caps.of_network(network, &self.config);
        let [up, down] = caps.map(|cap| cap.map(Rate::as_bps));
        json!({ "up": up, "down": down })
    }

    /// Tells both ends.
    pub(super) fn apply_caps(&self) {
        for driver in self.drivers() {
            self.send_caps(driver);
        }
    }

    /// Tells both ends of one session.
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
            driver.tell(Message::Cap { path, rate_bps });
        }
    }
}
