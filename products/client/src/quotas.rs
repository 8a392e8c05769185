//! Which networks the tunnel may use: one whose quota is used up, or that a user has paused, leaves
//! it, and what it carried goes over the others; or it stays and becomes a backup.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use hawser_config::NetworkConfig;
use hawser_host::usage::Usage;
use hawser_linux::netlink::{Network, changes, counted_devices};
use hawser_steer::quota::Level;
use hawser_units::Instant;
use serde_json::{Value, json};

use super::Client;

/// What networks have carried, and which of them are shut or backups for it.
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

    /// Whether its quota makes a network one that is used while no other works.
    pub(super) fn is_backup(&self, name: &str) -> bool {
        self.backups.contains(name)
    }

    /// The quotas may be others, or names of devices.
    pub(super) fn count_now(&mut self) {
        self.next = Instant::from_nanos(0);
    }

    pub(super) fn poll_timeout(&self) -> Instant {
        self.next
    }
}

impl Client {
    /// Whether the tunnel may use the network.
    pub(super) fn uses(&self, name: &str) -> bool {
        self.uses_but_for_checks(name) && !self.left_out.contains(name)
    }

    /// The same, if its check does not fail.
    pub(super) fn uses_but_for_checks(&self, name: &str) -> bool {
        self.config.uses(name) && !self.quotas.is_shut(name) && !self.paused.contains(name)
    }

    /// Counts, when it is time, and lets networks leave or come back.
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
            Err(error) => tracing::debug!(%error, "cannot read what networks carry"),
        }
        let names: Vec<_> = self.seen.iter().map(|network| network.name.clone()).collect();
        let changed = self
            .quotas
            .usage
            .borrow_mut()
            .poll_levels(names.iter().map(String::as_str), &self.config);
        for (name, level) in changed {
            match level {
                Level::Free => tracing::info!(network = name, "its quota is free again"),
                Level::Low => tracing::warn!(network = name, "four fifths of its quota are used"),
                Level::Spent => tracing::warn!(network = name, "its quota is used up"),
            }
        }
        self.shut_spent();
    }

    /// Gives settings of devices to the names that these have now.
    pub(super) async fn follow_devices(&mut self) {
        let has_other_names = self.quotas.usage.borrow_mut().poll_other_names();
        if has_other_names && self.config.follows_devices() {
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

    /// Leaves a network out, or takes it in again; answers with the networks that are left.
    ///
    /// # Errors
    /// The network is not there, or not paused.
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
        tracing::info!(network = name, is_paused = is_on, "as a user wants");
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

    /// The networks that the tunnel may use now.
    pub(super) fn used(&self) -> Vec<Network> {
        let all = self.seen.iter();
        all.filter(|network| self.uses(&network.name)).cloned().collect()
    }

    /// Changes what may be used; networks leave or come back.
    pub(super) fn change_use(&mut self, change: impl FnOnce(&mut Self)) {
        let before = self.used();
        change(self);
        for change in changes(&before, &self.used()) {
            if let Err(error) = self.on_change(change) {
                tracing::warn!(error = format!("{error:#}"), "network not usable");
            }
        }
    }

    /// What a user should know, in one line.
    pub(super) fn notices(&self) -> Option<String> {
        let spent = self
            .quotas
            .shut
            .iter()
            .map(|name| format!("{name}: its quota is used up, and the tunnel does not use it"));
        let backups = self.quotas.backups.iter();
        let backups = backups.map(|name| {
            format!("{name}: its quota is used up, and it is used only while no other network works")
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
            .chain(radio)
            .chain(self.tunnel.notices())
            .chain(self.tunnel.nameless(&self.config))
            .chain(self.portal_notices())
            .chain(self.checks.notices())
            .chain(self.unknown_hub());
        let without_hub = self.without_hub_notice().into_iter();
        let all: Vec<_> = without_hub
            .chain(self.notice.iter().cloned())
            .chain(others)
            .collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// What a network has carried.
    pub(super) fn usage(&self, name: &str) -> Value {
        self.quotas
            .usage
            .borrow()
            .report(name, &self.config.network(name))
    }
}

/// What somebody hears who names a network that is not there; `names`: those that are.
pub(super) fn no_such_network(name: &str, names: &[&str]) -> anyhow::Error {
    anyhow!(
        "{name}: there is no such network now; there are: {}",
        names.join(", ")
    )
}

/// As without a hub: what passes in between is more than the quota.
const EVERY: Duration = Duration::from_secs(1);
/// Nothing follows from it, and an idle machine sleeps.
const EVERY_WITHOUT: Duration = Duration::from_secs(30);
