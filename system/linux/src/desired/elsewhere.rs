//! Uplinks whose default route is not in the main table, as with `use-routes: false` of netplan
//! and a table for each modem.
//!
//! Hawser's own packets are bound to an interface and have no source address yet, so neither the
//! main table nor rules by source route them over such an uplink. They are first routed by a table
//! of Hawser's, which contains these default routes and those of the main table, and is empty if
//! all default routes are in the main table.
//!
//! Limitation: an interface without neighbours is ignored, because other VPNs also have default
//! routes in their own tables.

use std::net::IpAddr;

use super::{Hop, is_own_table};
use super::{LOCAL_TABLE, MAIN_TABLE, OWN_PROTOCOL, Observed, ObservedRoute, RouteKey, UPLINK_TABLE};

/// Returns default routes in tables of other programs, one per interface and family, of interfaces
/// without one in the main table.
pub(crate) fn elsewhere(observed: &Observed) -> Vec<&ObservedRoute> {
    let defaults = |table: fn(u32) -> bool| {
        let routes = observed.routes.iter();
        routes
            .filter(move |route| route.key.to.prefix == 0 && table(route.key.table) && route.hop.is_unicast())
    };
    let way = |route: &ObservedRoute| (route.hop.device, route.key.to.address.is_ipv6());
    let mut known: Vec<_> = defaults(|table| table == MAIN_TABLE).map(way).collect();
    let mut found = Vec::new();
    for route in defaults(is_of_others) {
        if is_uplink(observed, route) && !known.contains(&way(route)) {
            known.push(way(route));
            found.push(route);
        }
    }
    found
}

/// Returns the routes of the table that is consulted first for outer packets.
pub(super) fn uplink_routes(observed: &Observed) -> Vec<(RouteKey, Hop)> {
    let others = elsewhere(observed);
    if others.is_empty() {
        return Vec::new();
    }
    let of_main = observed
        .routes
        .iter()
        .filter(|route| route.key.table == MAIN_TABLE && route.key.to.prefix == 0 && route.hop.is_unicast());
    let of_main = of_main.map(|route| (route, route.key.metric));
    let others = others
        .into_iter()
        .map(|route| (route, METRIC + route.hop.device.unwrap_or_default()));
    let all = of_main.chain(others).map(|(route, metric)| {
        let key = RouteKey {
            table: UPLINK_TABLE,
            metric,
            ..route.key
        };
        (key, route.hop)
    });
    all.collect()
}

fn is_of_others(table: u32) -> bool {
    table != MAIN_TABLE && table != LOCAL_TABLE && !is_own_table(table)
}

/// Returns whether its router is on the interface's own link.
fn is_uplink(observed: &Observed, route: &ObservedRoute) -> bool {
    let (Some(device), Some(gateway)) = (route.hop.device, route.hop.gateway) else {
        return false;
    };
    let is_ethernet = observed.links.get(&device).is_some_and(|link| !link.is_tunnel);
    let is_link_local = matches!(gateway, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let mut addresses = observed.addresses.iter();
    let is_near = addresses.any(|(index, address, prefix)| {
        *index == device && hawser_units::Net::new(*address, *prefix).contains(gateway)
    });
    is_ethernet && route.protocol != OWN_PROTOCOL && (is_link_local || is_near)
}

/// Metric of the first of these routes; the interface's index is added. Source: routes of the main
/// table come first, whose metrics end at some thousands (NetworkManager: 20,000 and more only
/// without a connection to the Internet).
const METRIC: u32 = 1_000_000;
