//! Modems that roam: the tunnel does not use those whose section has `roaming = "never"`.

use hawser_host::devices::{is_barred, roaming_notice, unreported_notice};

use super::Client;

impl Client {
    /// Follows the reports about modems; a network leaves the tunnel when its modem roams, and
    /// returns when it is at home. Must be called after each event.
    pub(super) fn see_to_roaming(&mut self) {
        let seen = &self.seen;
        self.devices.report_to(&mut self.roaming, |name| {
            seen.iter().any(|network| network.name == name)
        });
        let names = self.seen.iter().map(|network| &network.name);
        let abroad = names.filter(|name| is_barred(name, &self.roaming, &self.config));
        let abroad = abroad.cloned().collect();
        if abroad != self.abroad {
            tracing::info!(networks = ?abroad, "not used while their modems roam");
            self.change_use(|client| client.abroad = abroad);
        }
    }

    /// Returns a line for each network that is not used because its modem roams, and for each one
    /// whose modem is unknown.
    pub(super) fn roaming_notices(&self) -> impl Iterator<Item = String> {
        let barred = self.abroad.iter();
        let barred = barred.map(|name| roaming_notice(name, self.devices.modem(name)));
        let used = self.seen.iter().filter(|network| self.config.uses(&network.name));
        let unreported =
            used.filter_map(|network| unreported_notice(&network.name, &self.roaming, &self.config));
        barred.chain(unreported)
    }
}
