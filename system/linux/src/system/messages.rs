//! Netlink messages on which those of several files are based.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol};
use rtnetlink::packet_route::rule::{RuleAction, RuleMessage};

use crate::desired::OWN_PROTOCOL;

/// Returns a rule of an address family that selects a table, without conditions.
pub(super) fn to_table(ipv6: bool) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = if ipv6 {
        AddressFamily::Inet6
    } else {
        AddressFamily::Inet
    };
    message.header.action = RuleAction::ToTable;
    message
}

/// Returns the attribute of the preferred source address, for sockets that choose none.
pub(super) fn preferred(source: Option<IpAddr>) -> Option<RouteAttribute> {
    source.map(|source| RouteAttribute::PrefSource(address_attribute(source)))
}

/// Returns a default route of a table, without a next hop.
pub(super) fn empty_route(table: u32, ipv6: bool) -> RouteMessage {
    let mut message = if ipv6 {
        RouteMessageBuilder::<Ipv6Addr>::new().build()
    } else {
        RouteMessageBuilder::<Ipv4Addr>::new().build()
    };
    message.header.table = 0;
    message.header.protocol = OWN;
    message.attributes = vec![RouteAttribute::Table(table)];
    message
}

/// Converts an address to its form in netlink routes.
pub(super) fn address_attribute(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(v4) => RouteAddress::Inet(v4),
        IpAddr::V6(v6) => RouteAddress::Inet6(v6),
    }
}

/// The protocol of routes and rules of Hawser ([`OWN_PROTOCOL`]).
pub(super) const OWN: RouteProtocol = RouteProtocol::Other(OWN_PROTOCOL);
