//! Destinations on the machine's own links, which it reaches without a router.
//!
//! A daemon that sends for other machines refuses these destinations. A public address does not
//! make a neighbour an Internet host: with IPv6 every neighbour has one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt;
use hawser_units::Net;
use rtnetlink::packet_route::address::AddressMessage;
use rtnetlink::packet_route::link::LinkFlags;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rtnetlink::{Handle, RouteMessageBuilder};

use super::{LINKS_ADDRESSES_ROUTES, Watch, WatchError, either_address, own_address};

impl Watch<Net> {
    /// Starts to watch the destinations on the machine's own links; must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// [`WatchError::Socket`].
    pub fn on_link() -> Result<Self, WatchError> {
        Self::over(&LINKS_ADDRESSES_ROUTES, |handle| Box::pin(list(handle)))
    }
}

/// Lists the destinations on the machine's own links: its addresses, their subnets, and the
/// prefixes that a router advertised as on-link without an address in them.
async fn list(handle: &Handle) -> Result<Vec<Net>, WatchError> {
    let (mut found, mut is_line) = (BTreeSet::new(), BTreeMap::new());
    let mut links = handle.link().get().execute();
    while let Some(link) = links.try_next().await? {
        let flags = link.header.flags;
        is_line.insert(link.header.index, flags.contains(LinkFlags::Pointopoint));
    }
    let mut addresses = handle.address().get().execute();
    while let Some(address) = addresses.try_next().await? {
        found.extend(subnets(&address));
    }
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
    for query in [v4, v6] {
        let mut routes = handle.route().get(query).execute();
        while let Some(route) = routes.try_next().await? {
            found.extend(destination(&route, &is_line));
        }
    }
    Ok(found.into_iter().collect())
}

/// Subnets of an address, and of its peer on a point-to-point link. Tentative and deprecated
/// addresses count too, because the link belongs to the machine.
fn subnets(message: &AddressMessage) -> Vec<Net> {
    let prefix = message.header.prefix_len;
    let both = [own_address(message), either_address(message)];
    let nets = both.into_iter().flatten();
    nets.flat_map(|address| [subnet(address, prefix), Net::host(address)])
        .collect()
}

/// Returns the destination of a route without a router. A point-to-point link has one host, its
/// peer; its routes are for destinations behind the peer.
fn destination(route: &RouteMessage, is_line: &BTreeMap<u32, bool>) -> Option<Net> {
    let prefix = route.header.destination_prefix_length;
    let is_local = matches!(route.header.kind, RouteType::Local | RouteType::Anycast);
    if prefix == 0 || !(is_local || route.header.kind == RouteType::Unicast) {
        return None;
    }
    let (mut to, mut is_here) = (None, is_local);
    for attribute in &route.attributes {
        #[allow(clippy::wildcard_enum_match_arm, reason = "the others play no part")]
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(v4)) => to = Some(IpAddr::from(*v4)),
            RouteAttribute::Destination(RouteAddress::Inet6(v6)) => to = Some(IpAddr::from(*v6)),
            RouteAttribute::Oif(index) => is_here |= !is_line.get(index).copied().unwrap_or(false),
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) => return None,
            _ => {}
        }
    }
    to.filter(|_| is_here).map(|to| subnet(to, prefix))
}

fn subnet(address: IpAddr, prefix: u8) -> Net {
    Net::new(Net::new(address, prefix).first(), prefix)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use super::*;
    use crate::netns::Namespace;

    fn ip(namespace: &Namespace, arguments: &str) {
        let mut ip = namespace.command("ip");
        let status = ip.args(arguments.split_whitespace()).status().unwrap();
        assert!(status.success(), "ip {arguments}");
    }

    /// Reads the watch until a state satisfies the condition; returns the last one if none does.
    async fn look(watch: &mut Watch<Net>, is_meant: impl Fn(&[Net]) -> bool) -> Vec<Net> {
        let mut last = Vec::new();
        loop {
            let next = tokio::time::timeout(Duration::from_secs(20), watch.next());
            let Ok(Ok(found)) = next.await else { return last };
            last = found;
            if is_meant(&last) {
                return last;
            }
        }
    }

    #[test]
    fn follows_what_is_on_a_link() {
        let Ok(namespace) = Namespace::new() else {
            hawser_testing::skip("no namespaces");
            return;
        };
        ip(&namespace, "link add name va type veth peer name vb");
        ip(&namespace, "link set va up");
        ip(&namespace, "link set vb up");
        ip(&namespace, "addr add 198.51.100.5/24 dev va");
        ip(&namespace, "route add 203.0.113.0/24 via 198.51.100.1");
        ip(&namespace, "route add default via 198.51.100.1");
        let within = |nets: &[Net], address: &str| {
            let address = address.parse().unwrap();
            nets.iter().any(|net| net.contains(address))
        };
        let (before, after) = namespace
            .run(|| {
                let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
                runtime.block_on(async {
                    let mut watch = Watch::on_link().map_err(io::Error::other)?;
                    let before = watch.next().await.map_err(io::Error::other)?;
                    let ip = |arguments: &str| {
                        let mut ip = std::process::Command::new("ip");
                        ip.args(arguments.split_whitespace()).status()
                    };
                    ip("addr add 2001:db8:1::5/64 dev va nodad")?;
                    ip("route add 2001:db8:2::/64 dev va")?;
                    let after = look(&mut watch, |nets| within(nets, "2001:db8:2::9")).await;
                    io::Result::Ok((before, after))
                })
            })
            .unwrap();
        assert!(within(&before, "198.51.100.77"), "{before:?}");
        assert!(!within(&before, "2001:db8:1::9"), "{before:?}");
        for on_link in ["198.51.100.5", "2001:db8:1::9", "2001:db8:2::9"] {
            assert!(within(&after, on_link), "{on_link}: {after:?}");
        }
        for behind in ["203.0.113.9", "192.0.2.1", "2001:db8:3::1"] {
            assert!(!within(&after, behind), "{behind}: {after:?}");
        }
    }
}
