//! Captive portals in direct mode: a network is kept out while something else is in the place of a
//! known page.
//!
//! No network that is not used is looked at.

use hawser_host::portals::{Looked, Portals, way};

use super::Direct;

impl Direct {
    /// Looks where it is time; networks behind a portal take no flows from now on.
    pub(super) fn keep_portals(&mut self, now: hawser_units::Instant) {
        let Some(page) = self.config.direct.portal_check.0.clone() else {
            self.portals = Portals::default();
            self.networks.bar(|_| false);
            return;
        };
        for (number, known) in self.networks.all() {
            let network = known.network.as_ref().filter(|_| !known.is_shut);
            self.portals.follow(&number, network.map(way), now);
        }
        if !self.seen.is_empty() {
            self.portals.begin();
        }
        for (number, known) in self.networks.all() {
            let look = self.naming.look((number, known), &self.config, &page);
            self.portals.look(&number, look, || self.naming.teller(), now);
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

    pub(super) fn on_looked(&mut self, looked: Looked<u8>) {
        let now = self.now();
        let name = self.networks.name(looked.key).to_owned();
        self.portals.on_looked(&name, looked, now);
    }

    /// What a user should do about portals.
    pub(super) fn portal_notices(&self) -> Vec<String> {
        let captive = self.networks.all().filter_map(|(number, known)| {
            let ("portal", login) = self.portals.shown(&number)? else {
                return None;
            };
            let name = &known.name;
            let login = login.unwrap_or("any http:// page");
            Some(format!("{name}: log in at {login} (sudo hawser login {name})"))
        });
        captive.collect()
    }
}
