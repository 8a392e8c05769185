//! Health checks of a client's networks: the tunnel does not use a network whose targets do not
//! answer, while it has another one.

use hawser_host::dns::NetworkAccess;

use super::Client;

impl Client {
    /// Follows networks and configuration; networks leave the tunnel when their check fails, and
    /// return when it succeeds. Must be called after each event.
    pub(super) fn see_to_checks(&mut self) {
        let used: Vec<_> = self
            .seen
            .iter()
            .filter(|network| self.uses_but_for_checks(&network.name))
            .map(|network| network.name.clone())
            .collect();
        let known = self.seen.iter().filter(|network| self.config.uses(&network.name));
        let wanted = known.filter_map(|network| {
            let check = self.config.network(&network.name).check?;
            let access = NetworkAccess {
                number: 0,
                device: network.name.clone(),
                index: network.index,
                servers: self.known_of(network).addresses,
            };
            Some((access, check))
        });
        let wanted = wanted.collect();
        self.checks.follow(wanted);
        let left_out = self.checks.left_out(used.iter().map(String::as_str));
        if left_out != self.left_out {
            self.change_use(|client| client.left_out = left_out);
        }
    }
}
