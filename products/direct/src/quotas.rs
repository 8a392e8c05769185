//! What follows when a quota runs out: a word to the user, and a network that is shut, or is while
//! others work.

use hawser_config::QuotaAction;
use hawser_steer::quota::Level;
use hawser_units::Duration;

use super::Direct;

impl Direct {
    /// Says what is left little of, shuts what has none left, and opens it again when the quota
    /// begins anew.
    pub(super) fn keep_quotas(&mut self) {
        let names: Vec<_> = self.networks.all().map(|(_, known)| known.name.clone()).collect();
        let changed = self
            .usage
            .borrow_mut()
            .poll_levels(names.iter().map(String::as_str), &self.config);
        for (name, level) in changed {
            match notice(level, self.config.network(&name).quota_action) {
                Some(text) => tracing::warn!(network = name, "{text}"),
                None => tracing::info!(network = name, "its quota is free again"),
            }
        }
        for number in self.shut_spent() {
            let name = self.networks.name(number);
            let action = self.config.network(name).quota_action;
            if matches!(action, QuotaAction::Stop | QuotaAction::Backup) {
                // Due at once, after the kernel has heard that new flows avoid the network.
                self.release(number, Duration::ZERO);
            }
        }
    }

    /// Gives settings of devices to the names that these have now. Beside a hub its client does so
    /// for both.
    pub(super) async fn follow_devices(&mut self) {
        if self.beside.has_hub() {
            return;
        }
        let has_other_names = self.usage.borrow_mut().poll_other_names();
        if has_other_names && self.config.follows_devices() {
            self.reload_and_log().await;
        }
    }

    /// Shuts networks and opens them; says which are shut now and were not. A backup is shut while
    /// another network works.
    fn shut_spent(&mut self) -> Vec<u8> {
        let (usage, config) = (self.usage.borrow(), &self.config);
        let is_shut = |name: &str| usage.is_shut(name, &config.network(name));
        let is_backup = |name: &str| usage.is_backup(name, &config.network(name));
        let has_other = self
            .networks
            .all()
            .any(|(_, known)| known.works() && !is_shut(&known.name) && !is_backup(&known.name));
        self.networks
            .shut(|name| is_shut(name) || has_other && is_backup(name))
    }

    /// What a user should know of quotas.
    pub(super) fn quota_notices(&self) -> Vec<String> {
        let known = self.networks.all().map(|(_, known)| &known.name);
        known
            .filter_map(|name| {
                let set = self.config.network(name);
                let text = notice(self.usage.borrow().level(name, &set), set.quota_action)?;
                Some(format!("{name}: {text}"))
            })
            .collect()
    }
}

fn notice(level: Level, action: QuotaAction) -> Option<&'static str> {
    match (level, action) {
        (Level::Free, _) => None,
        (Level::Low, _) => Some("four fifths of its quota are used"),
        (Level::Spent, QuotaAction::Stop) => {
            Some("its quota is used up: it takes no new flows, and its flows are let go")
        }
        (Level::Spent, QuotaAction::Backup) => {
            Some("its quota is used up: it is used only while no other network works")
        }
        (Level::Spent, QuotaAction::Drain) => Some("its quota is used up: it takes no new flows"),
        (Level::Spent, QuotaAction::Warn) => Some("its quota is used up"),
    }
}
