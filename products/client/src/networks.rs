//! Networks that come, go and change, and what follows for their paths.

use hawser_control::client::driver::fresh_index;
use hawser_control::client::networks::Transport;
use hawser_dataplane::{PathState, SessionId};
use hawser_linux::netlink::{Change, Network, changes};
use hawser_units::{NetworkId, PathId};

use super::{Client, Next};

impl Client {
    pub(super) fn on_networks(&mut self, now: Vec<Network>) -> Next {
        self.quotas.count_now();
        self.devices.read_again();
        let before = std::mem::replace(&mut self.seen, now);
        let now = self.seen.clone();
        // A network that may not be used is not used for a moment either.
        self.see_to_roaming();
        self.see_to_translators();
        self.apply_networks(&before, &now);
        self.see_to_gateway();
        Next::Continue
    }

    fn apply_networks(&mut self, before: &[Network], now: &[Network]) {
        let used = |list: &[Network]| -> Vec<Network> {
            list.iter().filter(|n| self.uses(&n.name)).cloned().collect()
        };
        for change in changes(&used(before), &used(now)) {
            let name = match &change {
                Change::Added(network) | Change::Changed(network) => network.name.clone(),
                Change::Removed(name) => name.clone(),
            };
            if let Err(error) = self.on_change(change) {
                tracing::warn!(network = name, error = format!("{error:#}"), "network not usable");
            }
        }
    }

    pub(super) fn on_change(&mut self, change: Change) -> anyhow::Result<()> {
        self.lead_second(&change);
        let now = self.now();
        self.hubs.choice.handle_networks(now);
        match change {
            Change::Added(network) => self.add_network(network),
            Change::Removed(name) => {
                if let Some(id) = self.driver.networks.by_name(&name) {
                    tracing::info!(network = name, "network gone");
                    self.remove_network(id);
                }
                Ok(())
            }
            Change::Changed(network) => match self.driver.networks.by_name(&network.name) {
                Some(id) if network.carries(self.driver.networks.attached[&id].remote.is_ipv6()) => {
                    self.refresh_network(id, network)
                }
                Some(id) => {
                    self.remove_network(id);
                    self.add_network(network)
                }
                None => self.add_network(network),
            },
        }
    }

    pub(super) fn add_network(&mut self, network: Network) -> anyhow::Result<()> {
        let name = network.name.clone();
        self.tunnel.meet(&network);
        let (addresses, nat64) = self.nat64.to_hub(&name, &self.hubs.current().addresses);
        let Some(id) = self.driver.networks.attach(network, &addresses, nat64)? else {
            tracing::info!(network = name, "not used: the hub has no address of its family");
            return Ok(());
        };
        tracing::info!(network = name, hub = %self.driver.networks.attached[&id].remote, "network found");
        self.driver.machine.handle_network_added(id, fresh_index());
        if self.driver.line.is_none() {
            self.seek(None);
        }
        Ok(())
    }

    pub(super) fn remove_network(&mut self, id: NetworkId) {
        self.driver.machine.handle_network_removed(id);
        self.carry_out();
        self.driver.networks.detach(id);
        self.update_radio();
        if self.driver.is_line_over(id) {
            self.lose_line("its network was removed");
        }
    }

    fn refresh_network(&mut self, id: NetworkId, network: Network) -> anyhow::Result<()> {
        let name = network.name.clone();
        self.tunnel.warn_of_overlap(&network);
        let Some(old) = self.driver.networks.refresh(id, network)? else {
            return Ok(());
        };
        tracing::info!(network = name, "network changed: using new sockets");
        self.end_fallback(id);
        if self.driver.machine.handle_network_moved(id) {
            self.carry_out();
        } else if let (Some(session), Some(path)) =
            (self.driver.machine.session(), self.driver.machine.path(id))
        {
            let socket = self.driver.networks.attached[&id].socket;
            self.driver.order(hawser_dataplane::Change::RebindPath {
                session: SessionId(session),
                path: PathId(path),
                socket,
            });
        }
        self.driver
            .order(hawser_dataplane::Change::RemoveSocket { id: old });
        if self.driver.is_line_over(id) {
            let now = self.now();
            self.driver.machine.handle_doubt(now);
        }
        Ok(())
    }

    /// Reports the networks over which the hub answers.
    pub(super) fn update_radio(&self) {
        let Some(radio) = &self.radio else { return };
        let attached = self.driver.networks.attached.values();
        let own = attached.filter(|one| !matches!(one.transport, Transport::Member { .. }));
        let live = own.filter(|one| one.state == Some(PathState::Active));
        radio.handle_live(live.map(|one| one.network.name.clone()).collect());
    }
}
