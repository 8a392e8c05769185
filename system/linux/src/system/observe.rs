//! Dumps the kernel's objects, and converts netlink messages to values.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt;
use hawser_units::Net;
use netlink_sys::Socket;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::IpProtocol;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteScope, RouteType, RouteVia,
};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage, RulePortRange};
use rtnetlink::{Handle, IpVersion, RouteMessageBuilder};

use super::messages::{OWN, address_attribute, empty_route, preferred, to_table};
use super::program::run;
use super::settings::read_sysctl;
use super::{SystemError, index_of, refused};
use crate::desired::{
    Desired, Hop, Observed, ObservedLink, ObservedRoute, ObservedRule, RouteKey, Rule, UNICAST,
};
use crate::netlink_bytes::{ask, find, framed};

/// Observed kernel state, and the messages that remove single objects.
#[derive(Default)]
pub(super) struct Dump {
    pub(super) observed: Observed,
    /// Messages by the index of the observed routes.
    pub(super) routes: Vec<RouteMessage>,
    /// Messages by the index of the observed rules.
    pub(super) rules: Vec<RuleMessage>,
}

/// Reads all objects except nftables tables.
///
/// # Errors
/// The kernel does not answer.
pub(super) async fn dump(handle: &Handle, desired: &Desired) -> Result<Dump, SystemError> {
    let mut dump = Dump::default();
    let failed = |source| refused("read the state of the kernel".to_owned(), source);
    let mut links = handle.link().get().execute();
    while let Some(message) = links.try_next().await.map_err(failed)? {
        let (index, observed) = link(&message);
        dump.observed.links.insert(index, observed);
    }
    let mut addresses = handle.address().get().execute();
    while let Some(message) = addresses.try_next().await.map_err(failed)? {
        dump.observed.addresses.extend(address(&message));
    }
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
    for query in [v4, v6] {
        let mut routes = handle.route().get(query).execute();
        while let Some(message) = routes.try_next().await.map_err(failed)? {
            if let Some((key, hop)) = route_value(&message) {
                dump.observed.routes.push(ObservedRoute {
                    id: dump.routes.len(),
                    key,
                    hop,
                    protocol: message.header.protocol.into(),
                    is_complex: is_complex(&message),
                });
                dump.routes.push(message);
            }
        }
    }
    for version in [IpVersion::V4, IpVersion::V6] {
        let mut rules = handle.rule().get(version).execute();
        while let Some(message) = rules.try_next().await.map_err(failed)? {
            dump.observed.rules.push(rule_seen(&message, dump.rules.len()));
            dump.rules.push(message);
        }
    }
    // The kernel lists rules of each family in order of evaluation.
    for key in desired.settings() {
        if let Ok(value) = read_sysctl(&key) {
            dump.observed.settings.insert(key, value);
        }
    }
    for interface in desired.resolvers() {
        if let Some(recorded) = index_of(interface).and_then(|index| recorded_resolvers(interface, index)) {
            dump.observed.resolvers.insert(interface.to_owned(), recorded);
        }
    }
    Ok(dump)
}

/// Reads what systemd-resolved or resolvconf has recorded of the resolvers of an interface.
pub(super) fn recorded_resolvers(interface: &str, index: u32) -> Option<String> {
    let files = [
        format!("/run/systemd/resolve/netif/{index}"),
        // Paths of openresolv and of Debian's resolvconf.
        format!("/run/resolvconf/interfaces/{interface}"),
        format!("/run/resolvconf/interface/{interface}"),
    ];
    let mut found = files.iter().filter_map(|file| std::fs::read_to_string(file).ok());
    found.find(|text| !text.is_empty())
}

/// Prints an nftables table of the kernel, without parts that change by themselves: counters, and
/// elements of sets.
pub(super) fn print_table(table: &str) -> Option<String> {
    run("nft", &["-s", "-t", "list", "table", "inet", table], "").ok()
}

/// Returns the generation of the ruleset, which increases with each transaction of any program.
pub(super) fn generation(socket: &Socket) -> Option<u32> {
    let body = [libc::AF_UNSPEC as u8, 0, 0, 0];
    let answers = ask(socket, &framed(GET_GENERATION, libc::NLM_F_ACK, &body)).ok()?;
    let (_, body) = answers.first()?;
    Some(u32::from_be_bytes(
        *find(body.get(4..)?, GENERATION_ID)?.first_chunk()?,
    ))
}

fn link(message: &LinkMessage) -> (u32, ObservedLink) {
    let (mut name, mut mtu, mut controller) = (None, None, None);
    for attribute in &message.attributes {
        #[allow(clippy::wildcard_enum_match_arm, reason = "the others play no part")]
        match attribute {
            LinkAttribute::IfName(given) => name = Some(given.clone()),
            LinkAttribute::Mtu(bytes) => mtu = Some(*bytes),
            LinkAttribute::Controller(index) => controller = Some(*index),
            _ => {}
        }
    }
    let flags = message.header.flags;
    let link = ObservedLink {
        name: name.unwrap_or_default(),
        is_up: flags.contains(LinkFlags::Up),
        mtu: mtu.unwrap_or(0),
        controller,
        is_tunnel: flags.intersects(LinkFlags::Pointopoint | LinkFlags::Noarp),
    };
    (message.header.index, link)
}

fn address(message: &AddressMessage) -> Option<(u32, IpAddr, u8)> {
    let (mut local, mut other) = (None, None);
    for attribute in &message.attributes {
        if let AddressAttribute::Local(address) = attribute {
            local = Some(*address);
        } else if let AddressAttribute::Address(address) = attribute {
            other = Some(*address);
        }
    }
    let address = local.or(other)?;
    Some((message.header.index, address, message.header.prefix_len))
}

/// Returns the value of a route.
pub(super) fn route_value(message: &RouteMessage) -> Option<(RouteKey, Hop)> {
    let header = &message.header;
    let ipv6 = header.address_family == AddressFamily::Inet6;
    let any = if ipv6 {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    } else {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    };
    let mut key = RouteKey {
        table: u32::from(header.table),
        to: Net::new(any, header.destination_prefix_length),
        metric: 0,
    };
    let mut hop = Hop {
        kind: u8::from(header.kind),
        device: None,
        gateway: None,
        source: None,
    };
    for attribute in &message.attributes {
        #[allow(clippy::wildcard_enum_match_arm, reason = "the others play no part")]
        match attribute {
            RouteAttribute::Table(table) => key.table = *table,
            RouteAttribute::Priority(metric) => key.metric = *metric,
            RouteAttribute::Destination(to) => key.to.address = ip(to)?,
            RouteAttribute::Oif(index) => hop.device = Some(*index),
            RouteAttribute::Gateway(gateway) => hop.gateway = ip(gateway),
            RouteAttribute::Via(RouteVia::Inet(v4)) => hop.gateway = Some(IpAddr::V4(*v4)),
            RouteAttribute::Via(RouteVia::Inet6(v6)) => hop.gateway = Some(IpAddr::V6(*v6)),
            RouteAttribute::PrefSource(source) => hop.source = ip(source),
            RouteAttribute::MultiPath(hops) => {
                let first = hops.first()?;
                hop.device = Some(first.interface_index);
                hop.gateway = first.attributes.iter().find_map(|attribute| {
                    if let RouteAttribute::Gateway(gateway) = attribute {
                        ip(gateway)
                    } else {
                        None
                    }
                });
            }
            _ => {}
        }
    }
    if ipv6 && key.metric == 0 {
        key.metric = IPV6_METRIC;
    }
    Some((key, hop))
}

/// Returns whether a route has attributes that its value does not contain.
fn is_complex(message: &RouteMessage) -> bool {
    message.header.tos != 0
        || message.header.source_prefix_length != 0
        || message
            .attributes
            .iter()
            .any(|attribute| matches!(attribute, RouteAttribute::MultiPath(_) | RouteAttribute::Encap(_)))
}

/// Returns the message of a route.
pub(super) fn route_message(key: &RouteKey, hop: &Hop) -> RouteMessage {
    let ipv6 = key.to.address.is_ipv6();
    let mut message = empty_route(key.table, ipv6);
    message.header.protocol = OWN;
    message.header.kind = RouteType::from(hop.kind);
    message.header.destination_prefix_length = key.to.prefix;
    let attributes = &mut message.attributes;
    if key.to.prefix > 0 {
        attributes.push(RouteAttribute::Destination(address_attribute(key.to.first())));
    }
    if key.metric > 0 {
        attributes.push(RouteAttribute::Priority(key.metric));
    }
    if hop.kind == UNICAST {
        attributes.extend(hop.device.map(RouteAttribute::Oif));
        attributes.extend(preferred(hop.source));
        match hop.gateway {
            Some(gateway) if gateway.is_ipv6() == ipv6 => {
                attributes.push(RouteAttribute::Gateway(address_attribute(gateway)));
                message.header.flags |= RouteFlags::Onlink;
            }
            Some(IpAddr::V6(gateway)) => {
                attributes.push(RouteAttribute::Via(RouteVia::Inet6(gateway)));
                message.header.flags |= RouteFlags::Onlink;
            }
            // Default routes have universal scope, like that of the tunnel.
            Some(IpAddr::V4(_)) | None if !ipv6 && key.to.prefix > 0 => {
                message.header.scope = RouteScope::Link;
            }
            Some(IpAddr::V4(_)) | None => message.header.scope = RouteScope::Universe,
        }
    }
    message
}

/// Returns the rules of a family that Hawser has added.
pub(super) async fn own_rules(handle: &Handle, ipv6: bool) -> Vec<Rule> {
    let version = if ipv6 { IpVersion::V6 } else { IpVersion::V4 };
    let mut rules = handle.rule().get(version).execute();
    let mut found = Vec::new();
    while let Ok(Some(message)) = rules.try_next().await {
        let seen = rule_seen(&message, 0);
        if seen.is_ours {
            found.push(seen.rule);
        }
    }
    found
}

fn rule_seen(message: &RuleMessage, id: usize) -> ObservedRule {
    let (rule, is_selective) = rule_of(message);
    let own = RuleAttribute::Protocol(OWN);
    ObservedRule {
        id,
        rule,
        is_lookup: message.header.action == RuleAction::ToTable,
        is_selective,
        is_ours: message.attributes.contains(&own),
    }
}

/// Returns the value of a rule, and whether it has conditions that the value does not contain.
fn rule_of(message: &RuleMessage) -> (Rule, bool) {
    let header = &message.header;
    let ipv6 = header.family == AddressFamily::Inet6;
    let mut rule = Rule::new(ipv6, 0, u32::from(header.table));
    rule.is_inverted = header.flags.contains(RuleFlags::Invert);
    let mut is_selective = header.tos != 0 || header.dst_len != 0;
    let whole = if ipv6 { 128 } else { 32 };
    is_selective |= header.src_len != 0 && header.src_len != whole;
    let (mut mark, mut mask) = (None, u32::MAX);
    let (mut protocol, mut ports) = (None, [None; 2]);
    for attribute in &message.attributes {
        #[allow(
            clippy::wildcard_enum_match_arm,
            reason = "the rest are conditions that are not known"
        )]
        match attribute {
            RuleAttribute::Priority(priority) => rule.priority = *priority,
            RuleAttribute::Table(table) => rule.table = *table,
            RuleAttribute::FwMark(value) => mark = Some(*value),
            RuleAttribute::FwMask(value) => mask = *value,
            RuleAttribute::Source(source) if header.src_len == whole => rule.source = Some(*source),
            RuleAttribute::SuppressPrefixLen(u32::MAX) | RuleAttribute::SuppressIfGroup(u32::MAX) => {}
            RuleAttribute::SuppressPrefixLen(length) => rule.suppress = Some(*length),
            RuleAttribute::IpProtocol(number) => protocol = Some(u8::from(*number)),
            RuleAttribute::SourcePortRange(range) if range.start == range.end => ports[0] = Some(range.start),
            RuleAttribute::DestinationPortRange(range) if range.start == range.end => {
                ports[1] = Some(range.start);
            }
            // Packets sent by this machine itself.
            RuleAttribute::Iifname(name) if name == "lo" => {}
            RuleAttribute::Protocol(_) => {}
            _ => is_selective = true,
        }
    }
    rule.mark = mark.map(|value| (value, mask)).filter(|(_, mask)| *mask != 0);
    match (protocol, ports) {
        (None, [None, None]) => {}
        (Some(protocol), [Some(from), Some(to)]) => rule.ports = Some((protocol, from, to)),
        _ => is_selective = true,
    }
    (rule, is_selective)
}

/// Returns the message that adds a rule.
pub(super) fn rule_message(rule: &Rule) -> RuleMessage {
    let mut message = to_table(rule.ipv6);
    message.attributes = vec![
        RuleAttribute::Priority(rule.priority),
        RuleAttribute::Protocol(OWN),
    ];
    match u8::try_from(rule.table) {
        Ok(table) => message.header.table = table,
        Err(_) => message.header.table = RouteHeader::RT_TABLE_UNSPEC,
    }
    let attributes = &mut message.attributes;
    attributes.push(RuleAttribute::Table(rule.table));
    if let Some((value, mask)) = rule.mark {
        attributes.extend([RuleAttribute::FwMark(value), RuleAttribute::FwMask(mask)]);
    }
    attributes.extend(rule.suppress.map(RuleAttribute::SuppressPrefixLen));
    if let Some((protocol, from, to)) = rule.ports {
        let range = |port| RulePortRange {
            start: port,
            end: port,
        };
        attributes.extend([
            RuleAttribute::IpProtocol(IpProtocol::from(protocol)),
            RuleAttribute::SourcePortRange(range(from)),
            RuleAttribute::DestinationPortRange(range(to)),
        ]);
    }
    if let Some(source) = rule.source {
        attributes.push(RuleAttribute::Source(source));
        message.header.src_len = if rule.ipv6 { 128 } else { 32 };
    }
    if rule.is_inverted {
        message.header.flags = RuleFlags::Invert;
    }
    message
}

/// Returns the message that removes a rule, including one that an earlier version added with other
/// properties.
pub(super) fn rule_removal(rule: &Rule) -> RuleMessage {
    let mut message = to_table(rule.ipv6);
    message.header.table = u8::try_from(rule.table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC);
    message.attributes = vec![
        RuleAttribute::Priority(rule.priority),
        RuleAttribute::Table(rule.table),
    ];
    // The mark is omitted: the kernel treats a mark without a mask as one with all bits in its
    // mask.
    if let Some(source) = rule.source {
        message.attributes.push(RuleAttribute::Source(source));
        message.header.src_len = if rule.ipv6 { 128 } else { 32 };
    }
    message
}

/// Returns the desired tables of the ruleset, as printed by nft.
pub(super) fn print_tables(desired: &Desired) -> BTreeMap<String, String> {
    let printed = desired
        .tables()
        .filter_map(|table| Some((table.to_owned(), print_table(table)?)));
    printed.collect()
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "other families play no part")]
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}

/// Metric that the kernel gives to IPv6 routes without one: `IP6_RT_PRIO_USER` of
/// linux/ipv6_route.h.
const IPV6_METRIC: u32 = 1024;
/// `NFNL_SUBSYS_NFTABLES` and `NFT_MSG_GETGEN` of `linux/netfilter/nfnetlink.h` and `nf_tables.h`.
const GET_GENERATION: u16 = 10 << 8 | 16;
/// `NFTA_GEN_ID` of `linux/netfilter/nf_tables.h`.
const GENERATION_ID: u16 = 1;
