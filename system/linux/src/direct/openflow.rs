//! Ruleset of direct mode as OpenFlow, for an Open vSwitch bridge in place of nftables.
//!
//! The bridge's local port is the interface that applications see; each network's device is a port
//! with the network's number. Frames pass these tables:
//!
//! ```text
//!   0  from applications -> connection tracking, 1;  to a network's address -> connection
//!   0  from applications -> connection tracking, 1;  to a network's address -> connection
//! tracking, 3   1  known: 2;  new: the first rule that fits: a group, which commits network and
//! translation, 2;  nothing fits: dropped
//!   2  by the mark of the connection: the network's frame, out of its port
//!   3  known, and of that network: the applications' frame, to them
//! ```
//!
//! The marks are those of the nftables ruleset. A group selects the network pseudo-randomly (by a
//! hash of addresses and ports), in proportion to the turns.
//!
//! Limitations: packets do not identify their program, so control groups, choices of programs and
//! intents are ignored, and so are names. Refused packets are dropped silently. Networks without
//! Ethernet cannot be used.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use super::{Choice, Match, NETWORK_MASK, Port, Protocol, Ruleset, UNASSIGNED_PORTS, mark};
use crate::wireless::written;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Ethernet addresses of a network: that of its device, and those of its gateways for IPv4 and
/// IPv6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Source address on the link.
    pub own: Mac,
    /// Destination addresses on the link; `None` until the gateway has answered.
    pub gateways: [Option<Mac>; 2],
}

impl Link {
    /// Returns whether its gateway has answered, in any family.
    #[must_use]
    pub fn is_reached(&self) -> bool {
        self.gateways.iter().any(Option::is_some)
    }
}

impl Ruleset {
    /// Returns the bundle for `ovs-ofctl bundle` that replaces all flows of the switch. `inside` is
    /// the Ethernet address of the interface that applications see.
    #[must_use]
    pub fn bundle(&self, links: &BTreeMap<u8, Link>, inside: Mac) -> String {
        let mut text = "flow delete\ngroup delete group_id=all\n".to_owned();
        for (index, choice) in self.choices.iter().enumerate() {
            for family in [0, 1] {
                let buckets = self.buckets(choice, family, links);
                if !buckets.is_empty() && !matching(&choice.flows, family == 1).is_empty() {
                    let group = group(index, family);
                    let _ = writeln!(text, "group add group_id={group},type=select{buckets}");
                }
            }
        }
        text += &from_applications();
        for (index, choice) in self.choices.iter().enumerate() {
            for family in [0, 1] {
                let verdict = match (self.buckets(choice, family, links).is_empty(), choice.strict) {
                    (false, _) => format!("group:{}", group(index, family)),
                    (true, true) => "drop".to_owned(),
                    (true, false) => continue,
                };
                for flows in matching(&choice.flows, family == 1) {
                    let priority = FIRST_RULE - u16::try_from(index).unwrap_or(u16::MAX).min(FIRST_RULE - 1);
                    let _ = writeln!(
                        text,
                        "flow add table=1,priority={priority},ct_state=+trk+new,{flows},actions={verdict}"
                    );
                }
            }
        }
        for port in &self.networks {
            text += &network(port, links.get(&port.number), inside);
        }
        text
    }

    /// Returns the buckets of a choice, each with its commit action; empty while no network can be
    /// used.
    fn buckets(&self, choice: &Choice, family: usize, links: &BTreeMap<u8, Link>) -> String {
        let mut text = String::new();
        let turns = &choice.turns[family];
        for port in &self.networks {
            let weight = turns.iter().filter(|turn| **turn == port.number).count();
            let is_reached = links
                .get(&port.number)
                .is_some_and(|link| link.gateways[family].is_some());
            let address = port.addresses.iter().find(|a| a.is_ipv6() == (family == 1));
            if let (Some(address), true) = (address, weight > 0 && is_reached) {
                let (first, last) = (UNASSIGNED_PORTS.start(), UNASSIGNED_PORTS.end());
                let address = match address {
                    IpAddr::V4(v4) => v4.to_string(),
                    IpAddr::V6(v6) => format!("[{v6}]"),
                };
                let mark = mark(choice.reason, port.number);
                let _ = write!(
                    text,
                    ",bucket=weight:{weight},ct(commit,zone={ZONE},nat(src={address}:{first}-{last}),exec(set_field:{mark:#x}->ct_mark),table=2)"
                );
            }
        }
        text
    }

    /// Returns the additional nftables table: the kernel, which also receives the packets, does not
    /// answer those of the bridge's flows, and inner addresses do not leave.
    #[must_use]
    pub fn guard(&self) -> String {
        let devices = self.networks.iter().map(|port| format!("\"{}\"", port.device));
        let devices = devices.collect::<Vec<_>>().join(", ");
        let mut text = String::new();
        if !devices.is_empty() {
            let (first, last) = (UNASSIGNED_PORTS.start(), UNASSIGNED_PORTS.end());
            text = format!(
                "chain echoes {{\n  type filter hook prerouting priority mangle; policy accept;
  iifname {{ {devices} }} fib daddr type local meta l4proto {{ tcp, udp }} th dport {first}-{last} drop
  iifname {{ {devices} }} icmp type echo-reply ct state invalid drop
  iifname {{ {devices} }} icmpv6 type echo-reply ct state invalid drop\n}}\n"
            );
        }
        text + &self.leaving("")
    }
}

/// Returns the flows for packets of applications, up to the choice of a network.
fn from_applications() -> String {
    let mut text = String::new();
    for nobody in [
        "ip,nw_dst=224.0.0.0/4",
        "ip,nw_dst=255.255.255.255",
        "ipv6,ipv6_dst=ff00::/8",
        "ipv6,ipv6_dst=fe80::/10",
    ] {
        let _ = writeln!(
            text,
            "flow add table=0,priority=300,in_port=LOCAL,{nobody},actions=drop"
        );
    }
    for ip in ["ip", "ipv6"] {
        let _ = writeln!(
            text,
            "flow add table=0,priority=200,in_port=LOCAL,{ip},actions=ct(zone={ZONE},nat,table=1)\n\
             flow add table=1,priority=60002,ct_state=+trk+inv,{ip},actions=drop\n\
             flow add table=1,priority=60001,ct_state=+trk-new,{ip},actions=goto_table:2"
        );
    }
    for tcp in ["tcp", "tcp6"] {
        // Packets of unknown connections were on a removed network.
        let _ = writeln!(
            text,
            "flow add table=1,priority=60000,ct_state=+trk+new,{tcp},tcp_flags=-syn,actions=drop"
        );
    }
    text
}

/// Returns the flows of a network in both directions.
fn network(port: &Port, link: Option<&Link>, inside: Mac) -> String {
    let mut text = String::new();
    let (Some(link), number) = (link, port.number) else {
        return text;
    };
    let marked = format!("ct_mark={:#x}/{NETWORK_MASK:#x}", mark(0, number));
    let inside = written(inside);
    for address in &port.addresses {
        let (ip, destination, family) = match address {
            IpAddr::V4(_) => ("ip", "nw_dst", 0),
            IpAddr::V6(_) => ("ipv6", "ipv6_dst", 1),
        };
        let _ = writeln!(
            text,
            "flow add table=0,priority=200,in_port={number},{ip},{destination}={address},actions=ct(zone={ZONE},nat,table=3)\n\
             flow add table=3,priority=200,in_port={number},{ip},{marked},ct_state=+trk-new-inv,actions=set_field:{inside}->eth_dst,output:LOCAL"
        );
        if let Some(gateway) = link.gateways[family] {
            let _ = writeln!(
                text,
                "flow add table=2,priority=200,{ip},{marked},actions=set_field:{}->eth_src,set_field:{}->eth_dst,dec_ttl,output:{number}",
                written(link.own),
                written(gateway)
            );
        }
    }
    text
}

/// Returns the OpenFlow matches that are equivalent to one match, because OpenFlow has no lists.
/// Empty if it cannot apply to this family.
fn matching(flows: &Match, ipv6: bool) -> Vec<String> {
    if flows.cgroup.is_some() || !flows.sets.is_empty() || flows.intent.is_some() {
        return Vec::new();
    }
    let protocols: &[&str] = match (flows.protocol, flows.ports.is_empty(), ipv6) {
        (None, true, false) => &["ip"],
        (None, true, true) => &["ipv6"],
        (None, false, false) => &["tcp", "udp"],
        (None, false, true) => &["tcp6", "udp6"],
        (Some(Protocol::Tcp), _, false) => &["tcp"],
        (Some(Protocol::Tcp), _, true) => &["tcp6"],
        (Some(Protocol::Udp), _, false) => &["udp"],
        (Some(Protocol::Udp), _, true) => &["udp6"],
        (Some(Protocol::Icmp), _, false) => &["icmp"],
        (Some(Protocol::Icmp), _, true) => &["icmp6"],
    };
    let mut all: Vec<String> = protocols.iter().map(|&protocol| protocol.to_owned()).collect();
    if !flows.ports.is_empty() {
        let masks: Vec<_> = flows
            .ports
            .iter()
            .flat_map(|(first, last)| masks(*first, *last))
            .collect();
        let port = |(value, mask): &(u16, u16)| format!("tp_dst={value:#x}/{mask:#x}");
        all = crossed(&all, masks.iter().map(port));
    }
    if !flows.to.is_empty() {
        let field = if ipv6 { "ipv6_dst" } else { "nw_dst" };
        let own = flows.to.iter().filter(|net| net.address.is_ipv6() == ipv6);
        all = crossed(&all, own.map(|net| format!("{field}={net}")));
    }
    if let Some(dscp) = flows.dscp {
        all = crossed(&all, [format!("ip_dscp={dscp}")].into_iter());
    }
    all
}

fn crossed(all: &[String], with: impl Iterator<Item = String> + Clone) -> Vec<String> {
    all.iter()
        .flat_map(|one| with.clone().map(move |more| format!("{one},{more}")))
        .collect()
}

/// Returns the values and masks that cover a range of ports.
fn masks(first: u16, last: u16) -> Vec<(u16, u16)> {
    let (mut at, end, mut found) = (u32::from(first), u32::from(last) + 1, Vec::new());
    while at < end {
        // The largest aligned block that fits.
        let aligned = if at == 0 { 16 } else { at.trailing_zeros().min(16) };
        let size = 1 << aligned.min((end - at).ilog2());
        let mask = (0x1_0000 - size) as u16;
        found.push((at as u16, mask));
        at += size;
    }
    found
}

fn group(index: usize, family: usize) -> usize {
    1 + 2 * index + family
}

/// Zone of connection tracking. Source: "HW" as a number, 0x4857. The user-space switch shares it
/// with no other program, but other bridges may exist.
pub const ZONE: u16 = 18_519;
/// The first rule; the others follow below. Source: our choice, of the 65,536 priorities of
/// OpenFlow, with room for rules of the operator on both sides.
const FIRST_RULE: u16 = 50_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direct::reason;
    use proptest::prelude::*;

    fn ruleset() -> (Ruleset, BTreeMap<u8, Link>) {
        let port = |number, device: &str| Port {
            number,
            device: device.to_owned(),
            addresses: vec!["192.168.0.2".parse().unwrap(), "2001:db8::2".parse().unwrap()],
        };
        let rule = Choice {
            reason: reason::FIRST_RULE,
            flows: Match {
                ports: vec![(22, 22), (6000, 6001)],
                to: vec!["198.51.100.0/24".parse().unwrap()],
                dscp: Some(46),
                ..Match::default()
            },
            turns: [vec![3], vec![]],
            strict: true,
        };
        let last = Choice {
            reason: reason::DEFAULT,
            turns: [vec![2, 3, 2], vec![2, 3]],
            ..Choice::default()
        };
        let link = Link {
            own: [2, 0, 0, 0, 0, 1],
            gateways: [Some([2, 0, 0, 0, 0, 2]), None],
        };
        let ruleset = Ruleset {
            interface: "hawser0".to_owned(),
            own: vec!["100.64.0.2".parse().unwrap()],
            networks: vec![port(2, "wlan0"), port(3, "eth0")],
            choices: vec![rule, last],
            lans: Vec::new(),
        };
        (ruleset, BTreeMap::from([(2, link), (3, link)]))
    }

    #[test]
    fn rules_become_groups_and_flows_in_their_order() {
        let (ruleset, links) = ruleset();
        let text = ruleset.bundle(&links, [2, 0, 0, 0, 0, 9]);
        let has = |line: &str| assert!(text.contains(line), "{line} is not in\n{text}");
        has(
            "group add group_id=1,type=select,bucket=weight:1,ct(commit,zone=18519,nat(src=192.168.0.2:61000-65535),exec(set_field:0x48571003->ct_mark),table=2)\n",
        );
        has("group add group_id=3,type=select,bucket=weight:2,ct(");
        has(
            "priority=50000,ct_state=+trk+new,udp,tp_dst=0x1770/0xfffe,nw_dst=198.51.100.0/24,ip_dscp=46,actions=group:1\n",
        );
        has("priority=49999,ct_state=+trk+new,ip,actions=group:3\n");
        // No gateway has answered over IPv6.
        assert!(!text.contains("group_id=4"), "{text}");
        has(
            "table=2,priority=200,ip,ct_mark=0x48570003/0xffff00ff,actions=set_field:02:00:00:00:00:01->eth_src,set_field:02:00:00:00:00:02->eth_dst,dec_ttl,output:3\n",
        );
    }

    proptest! {
        #[test]
        fn masks_cover_a_range_and_nothing_else(a: u16, b: u16, port: u16) {
            let (first, last) = (a.min(b), a.max(b));
            for port in [port, first, last, first.wrapping_sub(1), last.wrapping_add(1)] {
                let fitting = masks(first, last).iter().filter(|(value, mask)| port & mask == *value).count();
                prop_assert_eq!(fitting, usize::from((first..=last).contains(&port)));
            }
        }
    }
}
