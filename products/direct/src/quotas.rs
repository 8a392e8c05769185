//! Usage of the networks, and the consequences of an exhausted quota and of roaming: a notice for
//! the user, and a network that is disabled, permanently or while others work.

use hawser_config::QuotaAction;
use hawser_host::devices::{is_barred, roaming_notice, unreported_notice};
use hawser_linux::netlink::counted_devices;
use hawser_steer::quota::Level;
use hawser_units::{Duration, Instant};

use super::Direct;

impl Direct {
    /// Counts the traffic of every network.
    pub(super) fn sample(&mut self, now: Instant) {
        match counted_devices() {
            Ok(devices) => {
                self.networks.handle_counters(&devices, now);
                let is_network = |name: &str| self.networks.by_name(name).is_some();
                self.usage.borrow_mut().handle_devices(&devices, is_network, now);
            }
            Err(error) => tracing::debug!(%error, "cannot read the traffic of the networks"),
        }
    }

    /// Warns when a quota is nearly used up, disables the network when it is, and enables it when
    /// the quota's next period begins. Disables networks whose modem roams, if it is not to be used
    /// there.
    pub(super) fn keep_quotas(&mut self) {
        let networks = &self.networks;
        self.devices.report_to(&mut self.roaming, |name| {
            networks
                .by_name(name)
                .is_some_and(|known| known.network.is_some())
        });
        let names: Vec<_> = self.networks.all().map(|(_, known)| known.name.clone()).collect();
        let changed = self
            .usage
            .borrow_mut()
            .poll_levels(names.iter().map(String::as_str), &self.config);
        for (name, level) in changed {
            match notice(level, self.config.network(&name).quota_action) {
                Some(text) => tracing::warn!(network = name, "{text}"),
                None => tracing::info!(network = name, "its quota is available again"),
            }
        }
        for number in self.shut_spent() {
            let name = self.networks.name(number);
            let action = self.config.network(name).quota_action;
            if self.is_abroad(name) || matches!(action, QuotaAction::Stop | QuotaAction::Backup) {
                // The release is due immediately after the kernel has the rules by which new flows
                // avoid the network.
                self.release(number, Duration::ZERO);
            }
        }
    }

    /// Applies settings of devices to their present names.
    pub(super) async fn follow_devices(&mut self) {
        // With a hub the client takes this report, and its reload includes direct mode.
        if !self.tunnel_access.has_hub() && self.usage.borrow_mut().poll_other_names() {
            self.devices.read_again();
        }
        if self.devices.poll_changed(&self.config).await {
            self.reload_and_log().await;
        }
    }

    /// Disables and enables networks by their quotas; returns the newly disabled ones. A backup is
    /// disabled while another network works.
    fn shut_spent(&mut self) -> Vec<u8> {
        let (usage, config) = (self.usage.borrow(), &self.config);
        let roaming = &self.roaming;
        let is_shut =
            |name: &str| is_barred(name, roaming, config) || usage.is_shut(name, &config.network(name));
        let is_backup = |name: &str| usage.is_backup(name, &config.network(name));
        let has_other = self
            .networks
            .all()
            .any(|(_, known)| known.works() && !is_shut(&known.name) && !is_backup(&known.name));
        self.networks
            .shut(|name| is_shut(name) || has_other && is_backup(name))
    }

    /// Returns whether a network is disabled because its modem roams.
    pub(super) fn is_abroad(&self, name: &str) -> bool {
        is_barred(name, &self.roaming, &self.config)
    }

    /// Returns notices for the user about modems that roam, or are unknown.
    pub(super) fn roaming_notices(&self) -> impl Iterator<Item = String> {
        self.networks.present().filter_map(|(_, network)| {
            let name = &network.name;
            match self.is_abroad(name) {
                true => Some(roaming_notice(name, self.devices.modem(name))),
                false => unreported_notice(name, &self.roaming, &self.config),
            }
        })
    }

    /// Returns notices for the user about quotas.
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
        (Level::Low, _) => Some("80 % of its quota are used"),
        (Level::Spent, QuotaAction::Stop) => {
            Some("its quota is used up: new flows avoid it, and its flows are released")
        }
        (Level::Spent, QuotaAction::Backup) => {
            Some("its quota is used up: it is used only while no other network works")
        }
        (Level::Spent, QuotaAction::Drain) => Some("its quota is used up: new flows avoid it"),
        (Level::Spent, QuotaAction::Warn) => Some("its quota is used up"),
    }
}
