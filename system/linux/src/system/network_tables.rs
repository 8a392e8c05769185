//! A routing table for each network of direct mode, and the rules that lead to them: by mark, and
//! by the network's own addresses.

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
    /// Fills the table of a network with the ways out of it, and leads its marked flows there;
    /// `by_address`: also what has its addresses. Sockets that choose the network get the `own`
    /// address of its family.
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

    /// Closes the table of a network that is gone: flows that are still marked for it lead nowhere,
    /// and their programs hear so at once.
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

    /// Drops the rules for addresses that the network no longer has.
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

    /// Adds a rule whose undoing is in the journal.
    pub(super) async fn put_rule(&self, rule: Rule) -> Result<(), SystemError> {
        let _turn = self.turn.lock().await;
        let placed = self.ledger().desired.place(rule);
        let added = self.add_rule(&placed).await;
        if added.is_ok() || is_known(&added) {
            self.want(Object::Rule(rule), Wanted::Rule);
        }
        match added {
            // No such family here; or an earlier run has left the rule, which is taken over as it
            // stands.
            Err(SystemError::Netlink { source, .. }) if is_absent(&source) || is_there(&source) => Ok(()),
            other => other,
        }
    }

    /// Makes the table hold these routes and no others; those that stay are never absent.
    pub(super) async fn replace_routes(
        &self,
        number: u8,
        wanted: Vec<RouteMessage>,
    ) -> Result<(), SystemError> {
        self.forget_routes_but(table(number), None, &wanted);
        let before = self.table_routes(table(number)).await?;
        self.replace_among(before, wanted).await
    }

    /// Records that of a table, or of its routes to one interface, only these routes are needed:
    /// what the kernel has removed by itself is not to come back.
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
                // No IPv6 here.
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

    /// Adds a route, or replaces the one of the same key.
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
            // Another route of the same key may have taken its place.
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

    /// The routes of a table that Hawser has added.
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

/// Returns whether the kernel has the rule, or cannot have it.
fn is_known(added: &Result<(), SystemError>) -> bool {
    matches!(added, Err(SystemError::Netlink { source, .. }) if is_there(source))
}

/// Whether two routes of one key are the same. What leads nowhere has no interface that counts.
fn is_alike(a: &Hop, b: &Hop) -> bool {
    a.kind == b.kind && (!a.is_unicast() || (a.device == b.device && a.gateway == b.gateway))
}

/// Marked flows go to their network's table, before anything else is asked.
pub(super) fn mark_rule(number: u8, ipv6: bool) -> Rule {
    Rule {
        mark: Some((mark(0, number), NETWORK_MASK)),
        ..Rule::new(ipv6, MARK_PRIORITY, table(number))
    }
}

/// What has an address of the network leaves through it: connections from before, and programs that
/// bind to an address.
pub(super) fn source_rule(address: IpAddr, number: u8) -> Rule {
    Rule {
        source: Some(address),
        ..Rule::new(address.is_ipv6(), SOURCE_PRIORITY, table(number))
    }
}

/// The ways out of a network: its subnets, its gateways, and for families that it does not carry,
/// nowhere.
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

/// A route of a table by its number in the kernel.
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
            // The gateway may lie outside the interface's subnet, as some providers have it.
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

/// Whether two routes lead to the same place by the same way.
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
                // The kernel gives unreachable IPv6 routes a device of their own.
                find(|a| matches!(a, RouteAttribute::Oif(_)))
                    .filter(|_| route.header.kind == RouteType::Unicast),
            ],
        )
    }
    a.header.address_family == b.header.address_family && key(a) == key(b)
}

/// The table of the network of that number.
pub(super) fn table(number: u8) -> u32 {
    FIRST_TABLE + u32::from(number)
}

const FIRST_TABLE: u32 = 18_600;
/// Before the rules of the tunnel ([`PRIORITY`]).
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
