//! Translators of IPv4 on networks with IPv6 only (CLAT of 464XLAT): their interface is no network
//! of its own, because its packets use the network with IPv6.

use std::collections::BTreeSet;

use hawser_linux::device_path::device_path;
use hawser_linux::netlink::{Network, is_translator};

use super::Client;

impl Client {
    /// Follows networks and addresses of the hub. Must be called after each event.
    pub(super) fn see_to_translators(&mut self) {
        let mut hub = self.hubs.current().addresses.iter();
        let has_ipv6 = hub.any(std::net::SocketAddr::is_ipv6);
        let reaches_hub = |network: &Network| {
            network.carries(true) && (has_ipv6 || self.nat64.is_translating(&network.name))
        };
        let used = self.seen.iter().filter(|network| self.config.uses(&network.name));
        let is_one = |network: &Network| {
            // The file system is asked about few interfaces only.
            is_translator(network, false) && device_path(&network.name).is_none()
        };
        let superfluous = superfluous(used, reaches_hub, is_one);
        if superfluous != self.translators {
            tracing::info!(networks = ?superfluous, "not used: they translate IPv4 over another network");
            self.change_use(|client| client.translators = superfluous);
        }
    }
}

/// Returns the translators without which the hub is reachable: another network reaches it by IPv6,
/// at an address of the hub or through the network's own translator. If not, a translator is the
/// only route to the hub over the network behind it, which is then not used itself.
fn superfluous<'a>(
    networks: impl Iterator<Item = &'a Network> + Clone,
    reaches_hub: impl Fn(&Network) -> bool,
    is_one: impl Fn(&Network) -> bool,
) -> BTreeSet<String> {
    let mut others = networks.clone();
    if !others.any(reaches_hub) {
        return BTreeSet::new();
    }
    let translators = networks.filter(|network| is_one(network));
    translators.map(|network| network.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use hawser_linux::netlink::NextHop;

    use super::*;

    fn network(name: &str, address: &str) -> Network {
        let address: std::net::IpAddr = address.parse().unwrap();
        let route = |is_its: bool| is_its.then_some(NextHop::Device);
        Network {
            name: name.to_owned(),
            index: 1,
            mtu: 1500,
            addresses: vec![(address, 64)],
            v4: route(address.is_ipv4()),
            v6: route(address.is_ipv6()),
        }
    }

    #[test]
    fn a_translator_is_not_counted_beside_its_network() {
        let (clat, wifi) = (network("clat4", "192.0.0.1"), network("wlan0", "2001:db8::7"));
        let dsl = network("eth0", "198.51.100.7");
        let of = |networks: &[&Network], has_ipv6| {
            let networks = networks.iter().copied();
            let reaches_hub = |network: &Network| has_ipv6 && network.carries(true);
            let found = superfluous(networks, reaches_hub, |network| is_translator(network, false));
            found.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(of(&[&clat, &wifi, &dsl], true), ["clat4"]);
        assert!(
            of(&[&clat, &wifi, &dsl], false).is_empty(),
            "the only route to the hub"
        );
        assert!(of(&[&clat, &dsl], true).is_empty(), "its network is not used");
        assert!(of(&[&wifi, &dsl], true).is_empty());
    }
}
