//! Health checks in direct mode: a network whose targets do not answer gets no flows, like one
//! whose gateway does not respond.

use super::Direct;

impl Direct {
    /// Follows networks and configuration; networks whose check fails get no new flows.
    pub(super) fn keep_checks(&mut self) {
        let wanted = self.networks.all().filter_map(|(number, known)| {
            let check = self.config.network(&known.name).check?;
            Some((self.naming.access_to(number, known, &self.config)?, check))
        });
        self.checks.follow(wanted.collect());
        let present = self.networks.present().map(|(_, network)| network.name.as_str());
        let left_out = self.checks.left_out(present.collect::<Vec<_>>().into_iter());
        let changed = self.networks.leave_out(|name| left_out.contains(name));
        for (number, is_out) in changed {
            if is_out {
                self.rescue(number, "its check fails", self.config.direct.keep_flows.0);
                self.release(number, self.config.direct.keep_flows.0);
            } else if self.networks.is_alive(number) {
                self.releases.stop(number);
                self.moving.relieve(number);
            }
        }
    }
}
