//! Interfaces and routers of default routes.

use std::net::IpAddr;

use hawser_units::Net;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteNextHopFlags, RouteType, RouteVia,
};

use super::{Network, NextHop};

/// Returns whether the router is on the link of a network, whose addresses are all known.
pub(super) fn leads_to_link(network: &Network, hop: NextHop) -> bool {
    let NextHop::Gateway(gateway) = hop else {
        return false;
    };
    let is_link_local = matches!(gateway, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let mut subnets = network
        .addresses
        .iter()
        .map(|(address, prefix)| Net::new(*address, *prefix));
    is_link_local || subnets.any(|subnet| subnet.contains(gateway))
}

/// Returns the table and the interfaces of a default route; no interfaces for another route.
pub(super) fn default_routes(route: &RouteMessage) -> (u32, Vec<(u32, NextHop)>) {
    let header = &route.header;
    let mut table = u32::from(header.table);
    if header.destination_prefix_length != 0 || header.kind != RouteType::Unicast {
        return (table, Vec::new());
    }
    let (mut index, mut hop, mut several) = (None, NextHop::Device, Vec::new());
    for attribute in &route.attributes {
        #[allow(clippy::wildcard_enum_match_arm, reason = "the others play no part")]
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Oif(number) => index = Some(*number),
            RouteAttribute::MultiPath(hops) => {
                let live = hops
                    .iter()
                    .filter(|hop| !hop.flags.contains(RouteNextHopFlags::Dead));
                several = live
                    .map(|hop| (hop.interface_index, next_hop(&hop.attributes)))
                    .collect();
            }
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) => {
                hop = next_hop(std::slice::from_ref(attribute))
            }
            _ => {}
        }
    }
    several.extend(index.map(|index| (index, hop)));
    (table, several)
}

fn next_hop(attributes: &[RouteAttribute]) -> NextHop {
    let gateway = attributes.iter().find_map(|attribute| {
        #[allow(clippy::wildcard_enum_match_arm, reason = "the others play no part")]
        match attribute {
            RouteAttribute::Gateway(RouteAddress::Inet(v4)) => Some(IpAddr::from(*v4)),
            RouteAttribute::Gateway(RouteAddress::Inet6(v6)) => Some(IpAddr::from(*v6)),
            RouteAttribute::Via(RouteVia::Inet(v4)) => Some(IpAddr::from(*v4)),
            RouteAttribute::Via(RouteVia::Inet6(v6)) => Some(IpAddr::from(*v6)),
            _ => None,
        }
    });
    gateway.map_or(NextHop::Device, NextHop::Gateway)
}

#[cfg(test)]
mod tests {
    use std::io;

    use crate::netlink::{Network, NextHop, Watch};
    use crate::netns::Namespace;

    /// Returns the networks of a namespace with two uplinks and another VPN, after these commands.
    fn networks(commands: &[&str]) -> Option<Vec<Network>> {
        let namespace = Namespace::new()
            .inspect_err(|error| hawser_testing::skip(format!("no namespaces: {error}")))
            .ok()?;
        let links = [
            "link add eth1 type veth peer name far1",
            "link add eth2 type veth peer name far2",
            "link set far1 up",
            "link set far2 up",
            "link set eth1 up",
            "link set eth2 up",
            "addr add 192.168.1.5/24 dev eth1",
            "addr add 192.168.2.5/24 dev eth2",
            "tuntap add vpn0 mode tun",
            "link set vpn0 up",
            "addr add 10.8.0.2/24 dev vpn0",
        ];
        for command in links.iter().chain(commands) {
            let mut ip = namespace.command("ip");
            let status = ip.args(command.split_whitespace()).status().unwrap();
            assert!(status.success(), "ip {command}");
        }
        let found = namespace.run(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut watch = Watch::start().map_err(io::Error::other)?;
                watch.next().await.map_err(io::Error::other)
            })
        });
        Some(found.unwrap())
    }

    fn gateways(networks: &[Network]) -> Vec<(String, String)> {
        let gateway = |network: &Network| match network.v4 {
            Some(NextHop::Gateway(gateway)) => (network.name.clone(), gateway.to_string()),
            Some(NextHop::Device) | None => (network.name.clone(), String::new()),
        };
        networks.iter().map(gateway).collect()
    }

    #[test]
    fn an_uplink_with_its_default_route_in_another_table_is_a_network() {
        let Some(found) = networks(&[
            "route add default via 192.168.1.1 table 101",
            "route add default via 192.168.2.1 table 102",
            "route add default dev vpn0 table 51820",
        ]) else {
            return;
        };
        let expected = [("eth1", "192.168.1.1"), ("eth2", "192.168.2.1")];
        assert_eq!(
            gateways(&found),
            expected.map(|(a, b)| (a.to_owned(), b.to_owned()))
        );
    }

    #[test]
    fn the_main_table_decides_where_it_has_a_default_route() {
        let Some(found) = networks(&[
            "route add default via 192.168.1.254 table 101",
            "route add default via 192.168.1.1",
            "route add default via 10.9.9.9 dev eth2 onlink table 102",
        ]) else {
            return;
        };
        // A router that is not on the link does not make an interface an uplink.
        assert_eq!(gateways(&found), [("eth1".to_owned(), "192.168.1.1".to_owned())]);
    }
}
