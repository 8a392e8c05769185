//! Captive portals in direct mode: a network is excluded while another page replaces a known one.
//!
//! Unused networks are not checked.

use hawser_host::portals::{PortalCheckResult, Portals, identity_of};

use super::Direct;

impl Direct {
    /// Runs due checks; networks behind a portal get no new flows.
    pub(super) fn keep_portals(&mut self, now: hawser_units::Instant) {
        let Some(page) = self.config.direct.portal_check.0.clone() else {
            self.portals = Portals::default();
            self.networks.bar(|_| false);
            return;
        };
        for (number, known) in self.networks.all() {
            let network = known.network.as_ref().filter(|_| !known.is_shut);
            self.portals.follow(&number, network.map(identity_of), now);
        }
        if !self.seen.is_empty() {
            self.portals.begin();
        }
        for (number, known) in self.networks.all() {
            let look = self
                .naming
                .portal_check_inputs((number, known), &self.config, &page);
            self.portals
                .check_if_due(&number, look, || self.naming.teller(), now);
        }
        let portals = &self.portals;
        let changed = self.networks.bar(|number| !portals.may_carry(&number));
        for (number, is_barred) in changed {
            if is_barred {
                self.rescue(number, "its network is captive", self.config.direct.keep_flows.0);
                self.release(number, self.config.direct.keep_flows.0);
            } else if self.networks.is_alive(number) {
                self.releases.stop(number);
            }
        }
    }

    pub(super) fn on_checked(&mut self, looked: PortalCheckResult<u8>) {
        let now = self.now();
        let name = self.networks.name(looked.key).to_owned();
        self.portals.on_checked(&name, looked, now);
    }

    /// Returns notices for the user about portals.
    pub(super) fn portal_notices(&self) -> Vec<String> {
        let captive = self.networks.all().filter_map(|(number, known)| {
            let ("portal", login) = self.portals.summary(&number)? else {
                return None;
            };
            let name = &known.name;
            let login = login.unwrap_or("any http:// page");
            Some(format!("{name}: log in at {login} (sudo hawser login {name})"))
        });
        captive.collect()
    }
}
