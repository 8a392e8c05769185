//! For what networks are used: as the configuration says, or as a user wants for a while.

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

/// Of each direction: towards the hub, and from it.
type Pair<T> = [T; 2];

/// What a user wants, in place of the configuration.
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
    /// For what a network is used; a quota that is used up makes it a backup, whatever is wanted.
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
    /// Uses a network as a user wants, by the names of priorities; what is `None` stays.
    /// `is_default`: as the configuration says, where nothing else is wanted.
    ///
    /// # Errors
    /// There is no such network, or no such priority.
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
                let When(priority) = known.map_err(|()| anyhow!("{name}: not always, overflow or backup"))?;
                *wanted = Some(priority);
            }
        }
        wanted.takes_bulk = takes_bulk.or(wanted.takes_bulk);
        self.preferences.wanted.insert(network.to_owned(), wanted);
        self.apply_preferences();
        let uses = self.uses_of(network);
        tracing::info!(network, uses = %uses, "as a user wants");
        Ok(json!({ "use": uses }))
    }

    /// What status says of a network: `{"up": "always", "down": "backup", "bulk": true}`.
    pub(super) fn uses_of(&self, network: &str) -> Value {
        let [up, down] = self.preferences.of(network, &self.config, &self.quotas);
        json!({ "up": up.priority.name(), "down": down.priority.name(), "bulk": up.takes_bulk })
    }

    /// Tells both ends of all open paths.
    pub(super) fn apply_preferences(&self) {
        for driver in self.drivers() {
            self.send_preferences(driver);
        }
    }

    /// Tells both ends of all open paths of one session.
    pub(super) fn send_preferences(&self, driver: &Driver) {
        let attached = driver.networks.attached.keys();
        for path in attached.filter_map(|id| driver.machine.path(*id)) {
            self.send_preference(driver, path, true);
        }
    }

    /// Tells both ends for what a path is used; `is_again`: they may think otherwise so far.
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
        driver.tell(Message::Prefer {
            path,
            preference: from_hub,
        });
    }
}
