//! Networks that the tunnel may use. A network with an exhausted quota, or that a user has paused,
//! is removed and its traffic moves to the others; or it remains as a backup.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use anyhow::{anyhow, bail};
use hawser_config::NetworkConfig;
use hawser_host::usage::Usage;
use hawser_linux::netlink::{Network, changes, counted_devices};
use hawser_steer::quota::Level;
use hawser_units::Instant;
use serde_json::{Value, json};

use super::Client;

/// Usage of networks, and those that are disabled or backups because of it.
pub(super) struct Quotas {
    pub(super) usage: Rc<RefCell<Usage>>,
    shut: BTreeSet<String>,
    backups: BTreeSet<String>,
    next: Instant,
}

impl Quotas {
    pub(super) fn open(dir: &Path) -> Self {
        Self {
            usage: Rc::new(RefCell::new(Usage::open(dir))),
            shut: BTreeSet::new(),
            backups: BTreeSet::new(),
            next: Instant::from_nanos(0),
        }
    }

    pub(super) fn is_shut(&self, name: &str) -> bool {
        self.shut.contains(name)
    }

    /// Returns whether a network is a backup because of its quota.
    pub(super) fn is_backup(&self, name: &str) -> bool {
        self.backups.contains(name)
    }

    /// Makes the next count immediate, because quotas or names of devices may have changed.
    pub(super) fn count_now(&mut self) {
        self.next = Instant::from_nanos(0);
    }

    pub(super) fn poll_timeout(&self) -> Instant {
        self.next
    }
}

impl Client {
    /// Returns whether the tunnel may use the network.
    pub(super) fn uses(&self, name: &str) -> bool {
        self.uses_but_for_checks(name) && !self.left_out.contains(name)
    }

    /// Returns whether the tunnel may use the network, apart from its health check.
    pub(super) fn uses_but_for_checks(&self, name: &str) -> bool {
        self.config.uses(name)
            && !self.quotas.is_shut(name)
            && !self.paused.contains(name)
            && !self.abroad.contains(name)
            && !self.translators.contains(name)
    }

    /// Counts the usage if it is due, and removes networks or adds them again.
    pub(super) fn keep_quotas(&mut self) {
        let now = self.now();
        if now < self.quotas.next {
            return;
        }
        let has_any = self.config.networks.values().any(|set| set.quota.is_some());
        self.quotas.next = now + if has_any { EVERY } else { EVERY_WITHOUT };
        match counted_devices() {
            Ok(devices) => {
                let mut usage = self.quotas.usage.borrow_mut();
                usage.handle_devices(&devices, |name| self.config.uses(name), now);
            }
            Err(error) => tracing::debug!(%error, "cannot read the traffic of the networks"),
        }
        let names: Vec<_> = self.seen.iter().map(|network| network.name.clone()).collect();
        let changed = self
            .quotas
            .usage
            .borrow_mut()
            .poll_levels(names.iter().map(String::as_str), &self.config);
        for (name, level) in changed {
            match level {
                Level::Free => tracing::info!(network = name, "its quota is available again"),
                Level::Low => tracing::warn!(network = name, "80 % of its quota are used"),
                Level::Spent => tracing::warn!(network = name, "its quota is used up"),
            }
        }
        self.shut_spent();
    }

    /// Applies settings of devices to their present names.
    pub(super) async fn follow_devices(&mut self) {
        if self.quotas.usage.borrow_mut().poll_other_names() {
            self.devices.read_again();
        }
        if self.devices.poll_changed(&self.config).await {
            self.reload_and_log().await;
        }
    }

    fn shut_spent(&mut self) {
        let those = |are: fn(&Usage, &str, &NetworkConfig) -> bool| -> BTreeSet<String> {
            let usage = self.quotas.usage.borrow();
            let names = self.seen.iter().map(|network| &network.name);
            let names = names.filter(|name| are(&usage, name, &self.config.network(name)));
            let mut those = BTreeSet::new();
            those.extend(names.cloned());
            those
        };
        let (shut, backups) = (those(Usage::is_shut), those(Usage::is_backup));
        if backups != self.quotas.backups {
            self.quotas.backups = backups;
            self.apply_preferences();
        }
        self.change_use(|client| client.quotas.shut = shut);
    }

    /// Pauses a network, or resumes it. Returns the remaining networks.
    ///
    /// # Errors
    /// If the network is not present, or not paused.
    pub(super) fn pause(&mut self, name: String, is_on: bool) -> anyhow::Result<Value> {
        let is_there = self.seen.iter().any(|network| network.name == name) && self.config.uses(&name);
        if is_on && !is_there {
            let used = self.seen.iter().filter(|network| self.config.uses(&network.name));
            let used: Vec<_> = used.map(|network| network.name.as_str()).collect();
            return Err(no_such_network(&name, &used));
        }
        if !is_on && !self.paused.contains(&name) {
            bail!("{name} is not paused");
        }
        tracing::info!(network = name, is_paused = is_on, "as requested by a user");
        self.change_use(|client| {
            if is_on {
                client.paused.insert(name);
            } else {
                client.paused.remove(&name);
            }
        });
        let left: Vec<_> = self.used().into_iter().map(|network| network.name).collect();
        Ok(json!({ "left": left }))
    }

    /// Returns the networks that the tunnel may use now.
    pub(super) fn used(&self) -> Vec<Network> {
        let all = self.seen.iter();
        all.filter(|network| self.uses(&network.name)).cloned().collect()
    }

    /// Changes the permitted networks; networks leave or return accordingly.
    pub(super) fn change_use(&mut self, change: impl FnOnce(&mut Self)) {
        let before = self.used();
        change(self);
        for change in changes(&before, &self.used()) {
            if let Err(error) = self.on_change(change) {
                tracing::warn!(error = format!("{error:#}"), "network not usable");
            }
        }
    }

    /// Returns a notice for the user, in one line.
    pub(super) fn notices(&self) -> Option<String> {
        let spent = self
            .quotas
            .shut
            .iter()
            .map(|name| format!("{name}: its quota is used up, so the tunnel does not use it"));
        let backups = self.quotas.backups.iter();
        let backups = backups.map(|name| {
            format!("{name}: its quota is used up, so it is used only while no other network works")
        });
        let unserved = self.dhcp.iter().flat_map(|dhcp| dhcp.view().notices());
        let radio = self.radio.iter().flat_map(|radio| radio.notices());
        let paused = self.paused.iter();
        let paused = paused.map(|name| format!("{name} is paused (sudo hawser resume {name})"));
        let others = spent
            .chain(backups)
            .chain(paused)
            .chain(unserved)
            .chain(self.quotas.usage.borrow().notices(&self.config))
            .chain(self.config.device_notices().iter().cloned())
            .chain(self.roaming_notices())
            .chain(radio)
            .chain(self.tunnel.notices())
            .chain(self.tunnel.nameless(&self.config))
            .chain(self.portal_notices())
            .chain(self.checks.notices())
            .chain(self.unknown_hub());
        let without_hub = self.without_hub_notice().into_iter();
        let all: Vec<_> = without_hub
            .chain(self.notice.iter().cloned())
            .chain(self.key_notice(SystemTime::now()))
            .chain(others)
            .collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Returns the usage of a network.
    pub(super) fn usage(&self, name: &str) -> Value {
        self.quotas
            .usage
            .borrow()
            .report(name, &self.config.network(name))
    }
}

/// Returns the error about an unknown network; `names`: the known ones.
pub(super) fn no_such_network(name: &str, names: &[&str]) -> anyhow::Error {
    anyhow!(
        "{name}: there is no such network now; available: {}",
        names.join(", ")
    )
}

/// Update interval: traffic within an interval may exceed the quota. Source: that of direct mode
/// (`SAMPLE_EVERY` of `products/direct/src/lib.rs`).
const EVERY: Duration = Duration::from_secs(1);
/// Update interval without a quota, on which nothing depends, so that an idle machine sleeps.
/// Source: our choice; only the display of used bytes is older by this.
const EVERY_WITHOUT: Duration = Duration::from_secs(30);
