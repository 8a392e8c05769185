//! Routing table of each network of direct mode, with its rules: by mark, and by the network's own
//! addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt;
use hawser_units::Net;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteScope, RouteType};

use super::messages::{OWN, address_attribute, empty_route, preferred};
use super::observe::route_value;
use super::{PRIORITY, System, SystemError, is_absent, is_there, refused};
use crate::desired::{Hop, Object, Rule, Wanted};
use crate::direct::{NETWORK_MASK, mark};
use crate::journal::Entry;
use crate::netlink::{Network, NextHop};

impl System {
    /// Fills the table of a network with its routes, and adds rules for its marked flows, and with
    /// `by_address` also for packets with its addresses. Sockets that choose the network get the
    /// `own` address of the family.
    ///
    /// # Errors
    /// The kernel refuses; what was added stays in the journal.
    pub async fn network_table(
        &mut self,
        number: u8,
        network: &Network,
        own: &[IpAddr],
        by_address: bool,
    ) -> Result<(), SystemError> {
        self.enter(Entry::NetworkTable { number })?;
        self.replace_routes(number, routes(number, network, own)).await?;
        for ipv6 in own.iter().map(IpAddr::is_ipv6) {
            self.enter_rule(Entry::MarkRule { number, ipv6 }, mark_rule(number, ipv6))
                .await?;
        }
        let addresses = network.addresses.iter().map(|(address, _)| *address);
        let addresses: Vec<IpAddr> = addresses.filter(|_| by_address).collect();
        self.drop_source_rules(number, &addresses).await?;
        for address in addresses {
            let entry = Entry::SourceRule { address, number };
            self.enter_rule(entry, source_rule(address, number)).await?;
        }
        Ok(())
    }

    /// Makes the table of a removed network unreachable: flows with its mark are rejected, and
    /// their programs get an error at once.
    ///
    /// # Errors
    /// The kernel refuses.
    pub async fn close_network_table(&mut self, number: u8) -> Result<(), SystemError> {
        let entry = Entry::NetworkTable { number };
        if !self.has_entered(&entry) {
            return Ok(());
        }
        self.drop_source_rules(number, &[]).await?;
        self.replace_routes(number, [false, true].map(|ipv6| nowhere(number, ipv6)).into())
            .await
    }

    /// Removes the rules for addresses that the network no longer has.
    async fn drop_source_rules(&mut self, wanted: u8, keep: &[IpAddr]) -> Result<(), SystemError> {
        for entry in self.entries() {
            if let Entry::SourceRule { address, number } = &entry
                && *number == wanted
                && !keep.contains(address)
            {
                self.remove_rule(source_rule(*address, *number)).await?;
                self.strike(&entry)?;
            }
        }
        Ok(())
    }

    pub(super) async fn enter_rule(&mut self, entry: Entry, rule: Rule) -> Result<(), SystemError> {
        if self.has_entered(&entry) && !self.ledger().left.contains(&entry) {
            self.want(Object::Rule(rule), Wanted::Rule);
            return Ok(());
        }
        self.enter(entry)?;
        self.put_rule(rule).await
    }

    /// Adds a rule that is recorded in the journal.
    pub(super) async fn put_rule(&self, rule: Rule) -> Result<(), SystemError> {
        let _turn = self.turn.lock().await;
        let placed = self.ledger().desired.at_present_priority(rule);
        let added = self.add_rule(&placed).await;
        if added.is_ok() || is_known(&added) {
            self.want(Object::Rule(rule), Wanted::Rule);
        }
        match added {
            // The address family is not supported here, or the rule exists from an earlier run and
            // is taken over.
            Err(SystemError::Netlink { source, .. }) if is_absent(&source) || is_there(&source) => Ok(()),
            other => other,
        }
    }

    /// Replaces the routes of a table; routes that stay are never absent.
    pub(super) async fn replace_routes(
        &self,
        number: u8,
        wanted: Vec<RouteMessage>,
    ) -> Result<(), SystemError> {
        self.forget_routes_but(table(number), None, &wanted);
        let before = self.table_routes(table(number)).await?;
        self.replace_among(before, wanted).await
    }

    /// Records that only these routes of a table, or of its routes to one interface, are needed, so
    /// that routes removed by the kernel itself are not restored.
    pub(super) fn forget_routes_but(&self, table: u32, device: Option<u32>, wanted: &[RouteMessage]) {
        let kept: Vec<_> = wanted.iter().filter_map(route_value).collect();
        self.ledger().desired.retain_routes(|key, hop| {
            let is_meant = key.table == table && (device.is_none() || hop.device == device);
            !is_meant || kept.iter().any(|(kept, _)| kept == key)
        });
    }

    /// Adds these routes and removes those of `before` that are not among them.
    pub(super) async fn replace_among(
        &self,
        before: Vec<RouteMessage>,
        wanted: Vec<RouteMessage>,
    ) -> Result<(), SystemError> {
        for route in &wanted {
            match self.put_route(route.clone()).await {
                // IPv6 is not supported here.
                Err(error) if is_absent(&error) => {}
                other => other.map_err(|source| refused("add a route".to_owned(), source))?,
            }
        }
        for route in before {
            if !wanted.iter().any(|kept| is_same(kept, &route)) {
                self.delete_wanted(route).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn empty_table(&self, number: u8) -> Result<(), SystemError> {
        self.ledger().desired.disown(table(number));
        self.wait_for_keeper().await;
        for route in self.table_routes(table(number)).await? {
            self.delete_wanted(route).await?;
        }
        Ok(())
    }

    /// Adds a route, or replaces the one with the same key.
    pub(super) async fn put_route(&self, route: RouteMessage) -> Result<(), rtnetlink::Error> {
        let _turn = self.turn.lock().await;
        let value = route_value(&route);
        self.handle.route().add(route).replace().execute().await?;
        if let Some((key, hop)) = value {
            self.want(Object::Route(key), Wanted::Route(hop));
        }
        Ok(())
    }

    /// Removes a route that is no longer needed.
    pub(super) async fn delete_wanted(&self, route: RouteMessage) -> Result<(), SystemError> {
        let _turn = self.turn.lock().await;
        if let Some((key, hop)) = route_value(&route) {
            let object = Object::Route(key);
            let mut ledger = self.ledger();
            // Another route with the same key may have replaced it.
            if matches!(ledger.desired.value(&object), Some(Wanted::Route(wanted)) if is_alike(wanted, &hop))
            {
                ledger.desired.forget(&object);
            }
        }
        self.delete_route(route).await
    }

    pub(super) async fn delete_route(&self, route: RouteMessage) -> Result<(), SystemError> {
        match self.handle.route().del(route).execute().await {
            Err(rtnetlink::Error::NetlinkError(message))
                if message.code.is_some_and(|code| -code.get() == libc::ESRCH) =>
            {
                Ok(())
            }
            other => other.map_err(|source| refused("remove a route".to_owned(), source)),
        }
    }

    /// Returns the routes of a table that Hawser has added.
    pub(super) async fn table_routes(&self, table: u32) -> Result<Vec<RouteMessage>, SystemError> {
        let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
        let mut found = Vec::new();
        for query in [v4, v6] {
            let mut routes = self.handle.route().get(query).execute();
            let failed = |source| refused("list routes".to_owned(), source);
            while let Some(route) = routes.try_next().await.map_err(failed)? {
                let is_ours = route.header.protocol == OWN;
                if is_ours && route.attributes.contains(&RouteAttribute::Table(table)) {
                    found.push(route);
                }
            }
        }
        Ok(found)
    }
}

/// Returns whether the kernel has the rule, or does not support its family.
fn is_known(added: &Result<(), SystemError>) -> bool {
    matches!(added, Err(SystemError::Netlink { source, .. }) if is_there(source))
}

/// Returns whether two routes with the same key are equal. The interface of unreachable routes is
/// ignored.
fn is_alike(a: &Hop, b: &Hop) -> bool {
    a.kind == b.kind && (!a.is_unicast() || (a.device == b.device && a.gateway == b.gateway))
}

/// Returns the rule that sends marked flows to their network's table, before all other rules.
pub(super) fn mark_rule(number: u8, ipv6: bool) -> Rule {
    Rule {
        mark: Some((mark(0, number), NETWORK_MASK)),
        ..Rule::new(ipv6, MARK_PRIORITY, table(number))
    }
}

/// Returns the rule that sends packets with an address of the network through it: earlier
/// connections, and programs that bind to an address.
pub(super) fn source_rule(address: IpAddr, number: u8) -> Rule {
    Rule {
        source: Some(address),
        ..Rule::new(address.is_ipv6(), SOURCE_PRIORITY, table(number))
    }
}

/// Returns the routes of a network: its subnets, its gateways, and unreachable ones for families
/// that it does not support.
fn routes(number: u8, network: &Network, own: &[IpAddr]) -> Vec<RouteMessage> {
    let mut routes = Vec::new();
    for (family, hop) in [(false, network.v4), (true, network.v6)] {
        let source = own.iter().find(|address| address.is_ipv6() == family).copied();
        let subnets = network.addresses.iter().filter(|(address, prefix)| {
            address.is_ipv6() == family && *prefix < if family { 128 } else { 32 }
        });
        for (address, prefix) in subnets {
            let subnet = (Net::new(*address, *prefix).first(), *prefix);
            routes.push(route(number, network.index, Some(subnet), None, (source, family)));
        }
        match hop {
            Some(NextHop::Gateway(gateway)) => {
                routes.push(route(
                    number,
                    network.index,
                    None,
                    Some(gateway),
                    (source, family),
                ));
            }
            Some(NextHop::Device) => routes.push(route(number, network.index, None, None, (source, family))),
            None => routes.push(nowhere(number, family)),
        }
    }
    routes
}

pub(super) fn route(
    number: u8,
    index: u32,
    subnet: Option<(IpAddr, u8)>,
    gateway: Option<IpAddr>,
    preferring: (Option<IpAddr>, bool),
) -> RouteMessage {
    route_of(table(number), index, subnet, gateway, preferring)
}

/// Returns a route of a routing table.
pub(super) fn route_of(
    table: u32,
    index: u32,
    subnet: Option<(IpAddr, u8)>,
    gateway: Option<IpAddr>,
    (source, ipv6): (Option<IpAddr>, bool),
) -> RouteMessage {
    let mut message = empty_route(table, ipv6);
    message.attributes.push(RouteAttribute::Oif(index));
    if let Some((address, prefix)) = subnet {
        message.header.destination_prefix_length = prefix;
        message
            .attributes
            .push(RouteAttribute::Destination(address_attribute(address)));
    }
    match gateway {
        Some(gateway) => {
            message
                .attributes
                .push(RouteAttribute::Gateway(address_attribute(gateway)));
            // The gateway may be outside the interface's subnet, as with some providers.
            message.header.flags |= rtnetlink::packet_route::route::RouteFlags::Onlink;
        }
        None if !ipv6 => message.header.scope = RouteScope::Link,
        None => {}
    }
    message.attributes.extend(preferred(source));
    message
}

fn nowhere(number: u8, ipv6: bool) -> RouteMessage {
    let mut message = empty_route(table(number), ipv6);
    message.header.kind = RouteType::Unreachable;
    message
}

/// Returns whether two routes have the same destination and the same next hop.
fn is_same(a: &RouteMessage, b: &RouteMessage) -> bool {
    type Key<'a> = (u8, RouteType, [Option<&'a RouteAttribute>; 3]);
    fn key(route: &RouteMessage) -> Key<'_> {
        let find =
            |wanted: fn(&RouteAttribute) -> bool| route.attributes.iter().find(|attribute| wanted(attribute));
        (
            route.header.destination_prefix_length,
            route.header.kind,
            [
                find(|a| matches!(a, RouteAttribute::Destination(_))),
                find(|a| matches!(a, RouteAttribute::Gateway(_))),
                // The kernel assigns a device to unreachable IPv6 routes.
                find(|a| matches!(a, RouteAttribute::Oif(_)))
                    .filter(|_| route.header.kind == RouteType::Unicast),
            ],
        )
    }
    a.header.address_family == b.header.address_family && key(a) == key(b)
}

/// Returns the table of the network with that number.
pub(super) fn table(number: u8) -> u32 {
    FIRST_TABLE + u32::from(number)
}

/// Table of the network with the number 0; the others follow. Source: our choice, a number after
/// those of the tunnel (`TUNNEL_TABLE` of `desired/mod.rs`) that no common program uses.
const FIRST_TABLE: u32 = 18_600;
/// Priority before the rules of the tunnel ([`PRIORITY`]). Source: the numbers before [`PRIORITY`].
const SOURCE_PRIORITY: u32 = PRIORITY - 1;
const MARK_PRIORITY: u32 = PRIORITY - 2;

#[cfg(test)]
mod tests {
    use rtnetlink::packet_route::AddressFamily;

    use super::*;

    #[test]
    fn a_network_without_ipv6_leads_nowhere_there() {
        let network = Network {
            name: "wlan0".to_owned(),
            index: 7,
            mtu: 1500,
            addresses: vec![("192.168.0.2".parse().unwrap(), 24)],
            v4: Some(NextHop::Gateway("192.168.0.1".parse().unwrap())),
            v6: None,
        };
        let routes = routes(2, &network, &["100.64.0.2".parse().unwrap()]);
        let kinds: Vec<_> = routes
            .iter()
            .map(|r| (r.header.address_family, r.header.kind))
            .collect();
        use AddressFamily::{Inet, Inet6};
        use RouteType::{Unicast, Unreachable};
        assert_eq!(kinds, [(Inet, Unicast), (Inet, Unicast), (Inet6, Unreachable)]);
    }
}
