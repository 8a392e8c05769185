//! Which routes of the main table stay outside the tunnel.
//!
//! A network may send routes by DHCP (RFC 3442, option 121) or by router advertisements. Were they
//! followed, a hostile network could route all traffic past the tunnel ("TunnelVision", 0.0.0.0/1
//! and 128.0.0.0/1), or declare a large part of the Internet its own subnet ("LocalNet" of
//! TunnelCrack). So the tunnel's rules do not ask the main table but a copy of those of its routes
//! that pass this policy.
//!
//! Limitation: of a route to several routers only the first one is copied.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hawser_units::Net;

use super::elsewhere::{elsewhere, uplink_routes};
use super::{Hop, MAIN_TABLE, NEAR_TABLE, Observed, ObservedRoute, RouteKey};

/// Which routes of the main table stay outside the tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NearPolicy {
    /// The interface of the tunnel.
    pub tunnel: String,
    /// With a kill switch only the subnets of `lans` stay outside.
    pub kill_switch: bool,
    /// Interfaces to machines for which this one forwards.
    pub lans: Vec<String>,
    /// Whether the machine also forwards for the subnets of every interface that is no uplink, past
    /// the tunnel, as rules of direct mode beside the hub may say.
    pub forwards: bool,
    /// Destinations whose routes stay outside, whoever added them.
    pub local: Vec<Net>,
    /// Networks of the tunnel's inner addresses: they are reached through it, also where they lie
    /// in a larger subnet of an uplink, as the default pool does in the shared addresses of
    /// RFC 6598. A subnet within them stays near.
    pub inner: Vec<Net>,
}

/// A route that was not copied, although it would have led past the tunnel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Refused {
    /// Its destination.
    pub(crate) to: Net,
    /// Its router.
    pub(crate) gateway: Option<IpAddr>,
    /// Its interface.
    pub(crate) device: String,
}

/// Routes of the tables of near destinations and of uplinks, and the routes that were refused.
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

/// Routes that make the kernel ask the next rule for a destination.
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
        // It opens nothing.
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
        // Another VPN's own destinations, unless it wants everything.
        return !is_everything(key.to);
    }
    !FROM_THE_NETWORK.contains(protocol) && is_private(key.to)
}

/// Whether the interface has an address in the subnet itself, and the subnet is of a size that
/// networks have.
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

/// Interfaces to which a default route leads, of the main table or in its place.
pub(crate) fn uplinks(observed: &Observed) -> BTreeSet<u32> {
    let routes = observed.routes.iter();
    let defaults = routes.filter(|route| route.key.table == MAIN_TABLE && route.key.to.prefix == 0);
    let defaults = defaults.chain(elsewhere(observed));
    defaults.filter_map(|route| route.hop.device).collect()
}

/// Whether a destination is a half of all addresses or more, as VPNs name everything; of IPv6 also
/// all global addresses (2000::/3).
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
/// that none is replaced.
const EXCEPTED_METRIC: u32 = 18_519;
/// Routes that a network sent: `RTPROT_REDIRECT`, `RTPROT_RA`, `RTPROT_DHCP` of
/// `linux/rtnetlink.h`.
const FROM_THE_NETWORK: [u8; 3] = [1, 9, 16];
/// Shortest prefix of a subnet with public IPv4 addresses: the largest that was ever assigned to
/// one holder.
const SHORTEST4: u8 = 8;
/// Shortest prefix of a subnet with public IPv6 addresses: what a site gets at most (RFC 6177 has
/// 48) with much room.
const SHORTEST6: u8 = 32;
