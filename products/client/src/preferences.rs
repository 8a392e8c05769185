//! Preferences of networks: from the configuration, or by a user's temporary request.

use std::collections::BTreeMap;

use anyhow::anyhow;
use hawser_config::{ClientConfig, When};
use hawser_control::client::driver::Driver;
use hawser_dataplane::{Change, SessionId};
use hawser_units::PathId;
use hawser_wire::control::Message;
use hawser_wire::preference::{Preference, Priority};
use serde_json::{Value, json};

use super::Client;
use super::quotas::Quotas;

/// Values for each direction: towards the hub, and from it.
type Pair<T> = [T; 2];

/// Requests of a user that override the configuration.
#[derive(Debug, Default)]
pub(super) struct Preferences {
    wanted: BTreeMap<String, Wanted>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    priorities: Pair<Option<Priority>>,
    takes_bulk: Option<bool>,
}

impl Preferences {
    /// Returns the preference of a network; a used-up quota makes it a backup, regardless of the
    /// request.
    fn of(&self, name: &str, config: &ClientConfig, quotas: &Quotas) -> Pair<Preference> {
        let own = config.network(name);
        let wanted = self.wanted.get(name).copied().unwrap_or_default();
        let takes_bulk = wanted.takes_bulk.unwrap_or(own.bulk);
        let said = [own.uses.0.up, own.uses.0.down];
        [0, 1].map(|way| Preference {
            priority: match wanted.priorities[way] {
                _ if quotas.is_backup(name) => Priority::Backup,
                wanted => wanted.unwrap_or(said[way].0),
            },
            takes_bulk,
        })
    }
}

impl Client {
    /// Uses a network as a user requests, by the names of priorities; `None` leaves a value
    /// unchanged. `is_default` returns to the configuration if nothing else is requested.
    ///
    /// # Errors
    /// If there is no such network or no such priority.
    pub(super) fn prefer(
        &mut self,
        network: &str,
        priorities: Pair<Option<String>>,
        takes_bulk: Option<bool>,
        is_default: bool,
    ) -> anyhow::Result<Value> {
        self.check_known(network)?;
        let mut wanted = match self.preferences.wanted.get(network) {
            Some(before) if !is_default => *before,
            Some(_) | None => Wanted::default(),
        };
        for (wanted, name) in wanted.priorities.iter_mut().zip(priorities) {
            if let Some(name) = name {
                let known = name.parse::<When>();
                let When(priority) =
                    known.map_err(|()| anyhow!("{name}: expected always, overflow or backup"))?;
                *wanted = Some(priority);
            }
        }
        wanted.takes_bulk = takes_bulk.or(wanted.takes_bulk);
        self.preferences.wanted.insert(network.to_owned(), wanted);
        self.apply_preferences();
        let uses = self.uses_of(network);
        tracing::info!(network, uses = %uses, "as requested by a user");
        Ok(json!({ "use": uses }))
    }

    /// Returns the entry of a network in status: `{"up": "always", "down": "backup", "bulk":
    /// true}`.
    pub(super) fn uses_of(&self, network: &str) -> Value {
        let [up, down] = self.preferences.of(network, &self.config, &self.quotas);
        json!({ "up": up.priority.name(), "down": down.priority.name(), "bulk": up.takes_bulk })
    }

    /// Sends the preferences of all open paths to both ends.
    pub(super) fn apply_preferences(&self) {
        for driver in self.drivers() {
            self.send_preferences(driver);
        }
    }

    /// Sends the preferences of all open paths of one session to both ends.
    pub(super) fn send_preferences(&self, driver: &Driver) {
        let attached = driver.networks.attached.keys();
        for path in attached.filter_map(|id| driver.machine.path(*id)) {
            self.send_preference(driver, path, true);
        }
    }

    /// Sends the preference of a path to both ends. With `is_again` it also sends a default one,
    /// because the ends may have another.
    pub(super) fn send_preference(&self, driver: &Driver, path: u16, is_again: bool) {
        let mut attached = driver.networks.attached.iter();
        let of_path = attached.find(|(id, _)| driver.machine.path(**id) == Some(path));
        let (Some((_, attached)), Some(session)) = (of_path, driver.machine.session()) else {
            return;
        };
        let name = &attached.network.name;
        let preferences = self.preferences.of(name, &self.config, &self.quotas);
        if preferences == [Preference::default(); 2] && !is_again {
            return;
        }
        let [preference, from_hub] = preferences;
        driver.order(Change::SetPreference {
            session: SessionId(session),
            path: PathId(path),
            preference,
        });
        driver.send(Message::Prefer {
            path,
            preference: from_hub,
        });
    }
}
