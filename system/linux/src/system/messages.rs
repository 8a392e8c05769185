//! Messages of netlink that several files begin with.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol};
use rtnetlink::packet_route::rule::{RuleAction, RuleMessage};

use crate::desired::OWN_PROTOCOL;

/// A rule of a family that leads to a table, and says nothing else yet.
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

/// The address that sockets get which do not choose one.
pub(super) fn preferred(source: Option<IpAddr>) -> Option<RouteAttribute> {
    source.map(|source| RouteAttribute::PrefSource(address_attribute(source)))
}

/// A default route of a table that leads nowhere yet.
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

/// An address as netlink names it in routes.
pub(super) fn address_attribute(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(v4) => RouteAddress::Inet(v4),
        IpAddr::V6(v6) => RouteAddress::Inet6(v6),
    }
}

/// The protocol of routes and rules of Hawser ([`OWN_PROTOCOL`]).
pub(super) const OWN: RouteProtocol = RouteProtocol::Other(OWN_PROTOCOL);
