//! Destinations to which a giver sends for takers.

use std::net::SocketAddr;

use hawser_units::{Net, is_private};

/// Hubs to which takers may send: those at public addresses beyond the giver's links, and those in
/// the configuration.
///
/// So takers cannot reach the giver, its neighbours on a link or its local networks through it.
/// Public prefixes of a link are also excluded, because with IPv6 every neighbour on a link has a
/// public address.
#[derive(Debug)]
pub(super) struct Destinations {
    named: Vec<SocketAddr>,
    on_link: Vec<Net>,
}

impl Destinations {
    /// Creates the rule: permits the hubs of `named`, and others outside the prefixes `on_link`.
    pub(super) fn new(named: Vec<SocketAddr>, on_link: Vec<Net>) -> Self {
        Self { named, on_link }
    }

    /// Replaces the prefixes of the giver's own links.
    pub(super) fn handle_links(&mut self, on_link: Vec<Net>) {
        self.on_link = on_link;
    }

    /// Returns whether takers may send to this hub.
    pub(super) fn permits(&self, hub: SocketAddr) -> bool {
        let address = hub.ip().to_canonical();
        let is_named = self.named.contains(&hub);
        let is_on_link = self.on_link.iter().any(|net| net.contains(address));
        hub.port() != 0 && (is_named || !is_private(address) && !is_on_link)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn net(text: &str) -> Net {
        let (address, prefix) = text.split_once('/').unwrap();
        let address: IpAddr = address.parse().unwrap();
        Net::new(address, prefix.parse().unwrap())
    }

    #[test]
    fn refuses_hosts_of_the_links_at_public_addresses() {
        let links = ["2001:db8:7:1::/64", "203.0.113.128/25", "192.0.2.9/32"];
        let links = links.map(net).to_vec();
        let named = "203.0.113.200:4433".parse().unwrap();
        let mut destinations = Destinations::new(vec![named], links);
        let permits = |destinations: &Destinations, hub: &str| destinations.permits(hub.parse().unwrap());
        let refused = [
            "[2001:db8:7:1::99]:4433",
            "203.0.113.201:4433",
            "[::ffff:203.0.113.201]:4433",
            "192.0.2.9:4433",
            "192.168.1.1:4433",
            "203.0.113.200:4434",
        ];
        for hub in refused {
            assert!(!permits(&destinations, hub), "{hub}");
        }
        for hub in ["[2606:4700:7:2::99]:4433", "8.8.4.4:4433", "203.0.113.200:4433"] {
            assert!(permits(&destinations, hub), "{hub}");
        }
        // The hosts of a new link are no longer permitted as hubs.
        destinations.handle_links(vec![net("8.8.4.0/24")]);
        assert!(!permits(&destinations, "8.8.4.4:4433"));
        assert!(permits(&destinations, "8.8.8.8:4433"));
    }
}
