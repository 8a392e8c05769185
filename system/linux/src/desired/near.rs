//! Routes of the main table that stay outside the tunnel.
//!
//! A network may send routes by DHCP (RFC 3442, option 121) or by router advertisements. If they
//! were used, a hostile network could route all traffic outside the tunnel ("TunnelVision",
//! 0.0.0.0/1 and 128.0.0.0/1), or declare a large part of the Internet its own subnet ("LocalNet"
//! of TunnelCrack). Therefore the tunnel's rules do not use the main table but a copy of its routes
//! that pass this policy.
//!
//! Limitation: only the first next hop of a multipath route is copied.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hawser_units::Net;

use super::elsewhere::{elsewhere, uplink_routes};
use super::{Hop, MAIN_TABLE, NEAR_TABLE, Observed, ObservedRoute, RouteKey, TUNNEL_TABLE};

/// Policy for routes of the main table that stay outside the tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NearPolicy {
    /// The interface of the tunnel.
    pub tunnel: String,
    /// Kill switch: only the subnets of `lans` stay outside.
    pub kill_switch: bool,
    /// Interfaces to machines for which this one forwards.
    pub lans: Vec<String>,
    /// Set if the machine also forwards outside the tunnel for the subnets of every interface that
    /// is not an uplink, as rules of direct mode in addition to the hub may require.
    pub forwards: bool,
    /// Destinations whose routes stay outside the tunnel, regardless of who added them.
    pub local: Vec<Net>,
    /// Networks of the tunnel's inner addresses: they are reached through it, even if they are part
    /// of a larger subnet of an uplink, such as the default pool in the shared address space of RFC
    /// 6598. A subnet within them stays outside the tunnel.
    pub inner: Vec<Net>,
}

/// A route that was not copied because it would bypass the tunnel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Refused {
    /// Destination of the route.
    pub(crate) to: Net,
    /// Next hop of the route.
    pub(crate) gateway: Option<IpAddr>,
    /// Interface of the route.
    pub(crate) device: String,
}

/// Returns the routes of the tables of near destinations and of uplinks, and the refused routes.
pub(crate) fn near(policy: &NearPolicy, observed: &Observed) -> (Vec<(RouteKey, Hop)>, BTreeSet<Refused>) {
    let (mut copies, mut refused) = (Vec::new(), BTreeSet::new());
    let uplinks = uplinks(observed);
    let tunnel = observed.index(&policy.tunnel);
    for route in &observed.routes {
        let is_meant = route.key.table == MAIN_TABLE && route.key.to.prefix > 0;
        if !is_meant || (tunnel.is_some() && route.hop.device == tunnel) {
            continue;
        }
        if stays_near(policy, observed, &uplinks, route) {
            let key = RouteKey {
                table: NEAR_TABLE,
                ..route.key
            };
            copies.push((key, route.hop));
        } else if route.hop.gateway.is_some() || !is_private(route.key.to) {
            refused.insert(Refused {
                to: route.key.to,
                gateway: route.hop.gateway,
                device: observed.name(route.hop.device).to_owned(),
            });
        }
    }
    let covers = |inner: &&Net| {
        let mut near = copies.iter().map(|(key, _)| key.to);
        near.any(|near| near.prefix < inner.prefix && near.covers(**inner))
    };
    let inner: Vec<_> = policy.inner.iter().filter(covers).map(excepted).collect();
    copies.extend(inner);
    copies.extend(uplink_routes(observed));
    (copies, refused)
}

/// Returns a route that makes the kernel continue with the next rule for a destination.
fn excepted(inner: &Net) -> (RouteKey, Hop) {
    let key = RouteKey {
        table: NEAR_TABLE,
        to: Net::new(inner.first(), inner.prefix),
        metric: EXCEPTED_METRIC,
    };
    let hop = Hop {
        kind: THROW,
        device: None,
        gateway: None,
        source: None,
    };
    (key, hop)
}

fn stays_near(
    policy: &NearPolicy,
    observed: &Observed,
    uplinks: &BTreeSet<u32>,
    route: &ObservedRoute,
) -> bool {
    let ObservedRoute {
        key, hop, protocol, ..
    } = route;
    if !hop.is_unicast() {
        // It lets no traffic out.
        return true;
    }
    let Some(device) = hop.device else { return false };
    let is_connected = is_connected(observed, device, key.to, hop);
    if policy.kill_switch {
        let name = observed.name(Some(device));
        let is_lan = policy.lans.iter().any(|lan| lan == name);
        return is_connected && (is_lan || (policy.forwards && !uplinks.contains(&device)));
    }
    if is_connected || policy.local.iter().any(|local| local.covers(key.to)) {
        return true;
    }
    let is_tunnel = observed.links.get(&device).is_some_and(|link| link.is_tunnel);
    if is_tunnel && !uplinks.contains(&device) {
        // Destinations of another VPN, unless it takes all traffic.
        return !is_everything(key.to);
    }
    !FROM_THE_NETWORK.contains(protocol) && is_private(key.to)
}

/// Returns whether the interface has an address in the subnet itself, and the subnet has an
/// ordinary size.
fn is_connected(observed: &Observed, device: u32, to: Net, hop: &Hop) -> bool {
    let mut addresses = observed.addresses.iter();
    let shortest = if to.address.is_ipv6() {
        SHORTEST6
    } else {
        SHORTEST4
    };
    hop.gateway.is_none()
        && (to.prefix >= shortest || is_private(to))
        && addresses.any(|(index, address, _)| *index == device && to.contains(*address))
}

/// Returns the interfaces of default routes, of the main table or its replacement.
pub(crate) fn uplinks(observed: &Observed) -> BTreeSet<u32> {
    let routes = observed.routes.iter();
    let defaults = routes.filter(|route| route.key.table == MAIN_TABLE && route.key.to.prefix == 0);
    let defaults = defaults.chain(elsewhere(observed));
    defaults.filter_map(|route| route.hop.device).collect()
}

/// Returns whether a destination is at least half of all addresses, which VPNs use for all traffic;
/// for IPv6 also whether it is all global addresses (2000::/3).
pub(crate) fn is_everything(to: Net) -> bool {
    to.prefix <= if to.address.is_ipv6() { 3 } else { 1 }
}

fn is_private(to: Net) -> bool {
    let v4 = PRIVATE4.iter().map(|(net, prefix)| Net::new(*net, *prefix));
    let v6 = PRIVATE6.iter().map(|(net, prefix)| Net::new(*net, *prefix));
    v4.chain(v6).any(|net| net.covers(to))
}

/// Networks of RFC 1918, RFC 6598 (shared addresses, which Tailscale uses) and RFC 3927.
const PRIVATE4: [(Ipv4Addr, u8); 5] = [
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
];
/// Networks of RFC 4193 and RFC 4291 section 2.5.6.
const PRIVATE6: [(Ipv6Addr, u8); 2] = [
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
];
/// The kernel's number of routes that end the search in a table (`RTN_THROW` of
/// `linux/rtnetlink.h`).
const THROW: u8 = 9;
/// Metric of the tunnel's inner networks among near destinations: one that no other route has, so
/// that none is replaced. Source: the number of the tunnel's table.
const EXCEPTED_METRIC: u32 = TUNNEL_TABLE;
/// Routes that a network sent: `RTPROT_REDIRECT`, `RTPROT_RA`, `RTPROT_DHCP` of
/// `linux/rtnetlink.h`.
const FROM_THE_NETWORK: [u8; 3] = [1, 9, 16];
/// Shortest prefix of a subnet with public IPv4 addresses: the largest that was ever assigned to
/// one holder. Source: the registry of IPv4 address space of IANA assigns blocks of this size.
const SHORTEST4: u8 = 8;
/// Shortest prefix of a subnet with public IPv6 addresses: what a site gets at most (RFC 6177 has
/// 48) with much room.
const SHORTEST6: u8 = 32;
