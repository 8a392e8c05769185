//! nftables ruleset of direct mode: chooses a network for each new flow, and keeps the flow on it.
//!
//! The first packet of a flow gets a mark, which connection tracking stores. A routing table for
//! each mark routes over its network, where the packet gets the network's source address. The mark
//! contains the network and the reason:
//!
//! ```text
//!   0x4857 RR NN   NN  network, from 2; 251: the tunnel to a hub, 252: to a further one;
//!                      0: none asked for; 1: Hawser's own packets
//!                  RR  reason: intents 1 to 5, then as in [`reason`]; with network 0 also what
//!                      [`MULTIPATH_MARK`] says
//! ```
//!
//! A program chooses a network by setting the mark `0x485700NN` on its socket (`SO_MARK`), or an
//! intent by `0x48570R00`. Connections that arrive over a network get that network's mark too, so
//! that replies use the same network, and a connection tracking zone, because hosts of two
//! overlapping subnets may use the same address and port.
//!
//! Limitations: a flow to an address of a directly connected subnet uses the kernel's routes unless
//! its program chooses a network.

pub mod moving;
pub mod openflow;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hawser_units::Net;

use crate::nft;
use crate::udp::OUTER_MARK;

/// Mark of a flow, without reason and network. Source: "HW" in the upper half.
pub const MARK: u32 = 0x4857_0000;
/// Common bits of all marks. Source: the upper half, as in [`MARK`].
pub const MARK_MASK: u32 = 0xffff_0000;
/// Bits of the network, and the common bits. Source: the network has the lowest byte.
pub const NETWORK_MASK: u32 = 0xffff_00ff;
/// Bits of the reason. Source: the second byte.
pub const REASON_MASK: u32 = 0xff00;
/// Mark of an MPTCP subflow without a chosen address. Source: [`MARK`] with a reason in the second
/// byte.
pub const MULTIPATH_MARK: u32 = MARK | (reason::MULTIPATH as u32) << 8;
/// The name of the nftables table.
pub const TABLE: &str = "hawser_direct";
/// Numbers that networks may have. Source: all of a byte but 0 and 1, which have other tables
/// (`system/member_routes.rs`, `system/multipath.rs`), and the last five.
pub const NUMBERS: std::ops::RangeInclusive<u8> = 2..=250;
/// Number of the tunnel to a hub, used in place of a network's number. Its device is the interface
/// that applications see. Source: the first number after those of networks.
pub const TUNNEL: u8 = 251;
/// Number of the same device for flows through a secondary hub of the fleet. The kernel treats both
/// alike, and distinguishes their flows. Source: the number after [`TUNNEL`].
pub const SECONDARY: u8 = 252;

/// Ports outside the range that the kernel assigns to sockets, so that a flow whose packets are
/// translated or moved has a port that no program has. Source: ip(7), `ip_local_port_range`, of
/// which Linux uses 32768 to 60999.
pub const UNASSIGNED_PORTS: std::ops::RangeInclusive<u16> = 61_000..=u16::MAX;

/// Reasons for the network of a flow: the second byte of its mark.
pub mod reason {
    /// First of the intents, [`Intent::Bulk`](super::Intent::Bulk). Source: zero means that no
    /// reason is stored.
    pub const FIRST_INTENT: u8 = 1;
    /// Choice of the flow's program. Source: the number after those of the five intents.
    pub const PROGRAM: u8 = 6;
    /// Connection that arrived over the network. Source: the next number.
    pub const CAME_IN: u8 = 7;
    /// No rule matched the flow. Source: the next number.
    pub const DEFAULT: u8 = 8;
    /// Subflow of MPTCP. Source: the next number.
    pub const MULTIPATH: u8 = 9;
    /// Address that is valid only in the network whose resolver named it. Source: the next number.
    pub const NAMED: u8 = 10;
    /// Migration. Source: the next number.
    pub const MOVED: u8 = 11;
    /// Begun while no hub answered. Source: the next number that is free.
    pub const WITHOUT_HUB: u8 = 12;
    /// First rule of the configuration; the others follow. Source: the numbers below 16 are those
    /// above.
    pub const FIRST_RULE: u8 = 16;
}

/// Requirement that a program may declare for a flow without naming a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Much data, no hurry.
    Bulk,
    /// Interactive: a person waits for each answer.
    Interactive,
    /// Real time: late packets are useless.
    Realtime,
    /// The route with the lowest cost.
    Cheap,
    /// Redundant: every packet must arrive.
    Redundant,
}

impl Intent {
    /// Lists all intents, by number from [`reason::FIRST_INTENT`].
    pub const ALL: [Self; 5] = [
        Self::Bulk,
        Self::Interactive,
        Self::Realtime,
        Self::Cheap,
        Self::Redundant,
    ];

    /// Returns the name, as programs write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bulk => "bulk",
            Self::Interactive => "interactive",
            Self::Realtime => "realtime",
            Self::Cheap => "cheap",
            Self::Redundant => "redundant",
        }
    }

    /// Returns the DSCP of its packets, by which the ends of a tunnel recognise their needs. Other
    /// networks use the same values.
    ///
    /// Source: RFC 4594 (CS1, low-priority data; AF21, low-latency data; EF, telephony), RFC 8622
    /// (LE, lower effort).
    #[must_use]
    pub fn code_point(self) -> u8 {
        match self {
            Self::Bulk => 8,
            Self::Interactive => 18,
            // In a tunnel, packets that are useless when late are duplicated if that helps.
            Self::Realtime | Self::Redundant => 46,
            Self::Cheap => 1,
        }
    }

    /// Returns the reason in the marks of its flows.
    #[must_use]
    pub fn reason(self) -> u8 {
        reason::FIRST_INTENT + self as u8
    }

    /// Returns the mark with which a socket requests it.
    #[must_use]
    pub fn mark(self) -> u32 {
        mark(self.reason(), 0)
    }
}

/// Returns the mark of flows on a network for a reason.
#[must_use]
pub fn mark(reason: u8, network: u8) -> u32 {
    MARK | u32::from(reason) << 8 | u32::from(network)
}

/// Returns network and reason of a mark; `None` if it is not that of a flow on a network.
#[must_use]
pub fn read_mark(mark: u32) -> Option<(u8, u8)> {
    let [_, _, reason, network] = mark.to_be_bytes();
    (mark & MARK_MASK == MARK && NUMBERS.contains(&network)).then_some((network, reason))
}

/// Protocol that a rule can match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP and ICMPv6.
    Icmp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        })
    }
}

impl Protocol {
    /// Returns its numbers in IP headers, for IPv4 and IPv6.
    #[must_use]
    pub fn numbers(self) -> &'static [u8] {
        match self {
            Self::Tcp => &[6],
            Self::Udp => &[17],
            // `IPPROTO_ICMP` and `IPPROTO_ICMPV6`.
            Self::Icmp => &[1, 58],
        }
    }
}

impl Match {
    /// Returns a description of its protocol and ports: `tcp`, `port 25`, `ports 60000-61000`.
    pub fn protocol_and_ports(&self) -> impl Iterator<Item = String> {
        let protocol = self.protocol.map(|protocol| protocol.to_string());
        let ports = self.ports.iter().map(|(first, last)| match first == last {
            true => format!("port {first}"),
            false => format!("ports {first}-{last}"),
        });
        protocol.into_iter().chain(ports)
    }

    /// Returns whether flows of this protocol to this destination match. Compares `protocol`,
    /// `ports` and `to` only.
    #[must_use]
    pub fn is_for(&self, protocol: u8, to: SocketAddr) -> bool {
        let in_range = |(first, last): &(u16, u16)| (*first..=*last).contains(&to.port());
        self.protocol.is_none_or(|own| own.numbers().contains(&protocol))
            && (self.ports.is_empty() || self.ports.iter().any(in_range))
            && (self.to.is_empty() || self.to.iter().any(|net| net.contains(to.ip())))
    }
}

/// Flows of a rule: those that match all conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Protocol of the flow.
    pub protocol: Option<Protocol>,
    /// Destination ports, as ranges.
    pub ports: Vec<(u16, u16)>,
    /// Source subnets of machines for which this one forwards.
    pub from: Vec<Net>,
    /// Destination subnets.
    pub to: Vec<Net>,
    /// DSCP code point.
    pub dscp: Option<u8>,
    /// Control group of the program, a path below the root of version 2, or an ancestor of it.
    pub cgroup: Option<String>,
    /// Sets that must all contain the destination, according to [`Elements`] and
    /// [`System::change_elements`](crate::system::System::change_elements).
    pub sets: Vec<String>,
    /// Intent of the socket.
    pub intent: Option<Intent>,
}

/// Elements of sets, and their lifetimes.
pub type Elements = BTreeMap<String, Vec<(IpAddr, Duration)>>;

/// Returns the name of a set's part for one family: the kernel's sets have one address type.
#[must_use]
pub fn half(set: &str, ipv6: bool) -> String {
    format!("{set}_{}", if ipv6 { "v6" } else { "v4" })
}

/// A rule, and its networks in turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Reason in the mark.
    pub reason: u8,
    /// Flows of the rule.
    pub flows: Match,
    /// Networks in turn, for IPv4 and IPv6; if empty, later rules apply.
    pub turns: [Vec<u8>; 2],
    /// Set if flows are refused instead if no network is present.
    pub strict: bool,
}

/// A present network, or the tunnel to a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Number of the network, or [`TUNNEL`].
    pub number: u8,
    /// Device of the network.
    pub device: String,
    /// Source addresses of outgoing flows, for each family that the network supports.
    ///
    /// They are explicit, because the kernel drops all masqueraded flows of a device that goes
    /// down, even for a moment.
    pub addresses: Vec<IpAddr>,
}

/// Inputs of the ruleset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// The interface that applications see.
    pub interface: String,
    /// Addresses of the interface.
    pub own: Vec<IpAddr>,
    /// Present networks.
    pub networks: Vec<Port>,
    /// Rules in their order; the last is for all flows.
    pub choices: Vec<Choice>,
    /// Interfaces to machines for which it forwards; if empty, all interfaces that are not
    /// networks.
    pub lans: Vec<String>,
}

impl Ruleset {
    /// Returns the body of the table. `resolvers` contains the port at which each network's own
    /// resolver answers, by the network's number.
    #[must_use]
    pub fn body(&self, elements: &Elements, resolvers: &BTreeMap<u8, u16>) -> String {
        let mut text = self.sets(elements);
        text += &self.asked(resolvers);
        for (index, choice) in self.choices.iter().enumerate() {
            for (family, turns) in choice.turns.iter().enumerate() {
                if !turns.is_empty() {
                    text += &turn_chain(&chain_name(index, family), choice.reason, turns);
                }
            }
        }
        text += "chain choose {\n";
        for (index, choice) in self.choices.iter().enumerate() {
            text += &choose(index, choice);
        }
        text += "}\n";
        text += &self.output();
        text += &self.forwarded();
        text += &self.translation();
        text
    }

    /// Returns whether a rule uses the addresses of this set: otherwise the set does not exist.
    #[must_use]
    pub fn has_set(&self, set: &str) -> bool {
        let mut sets = self.choices.iter().flat_map(|choice| &choice.flows.sets);
        sets.any(|known| known == set)
    }

    fn sets(&self, elements: &Elements) -> String {
        let mut named = BTreeSet::new();
        named.extend(self.choices.iter().flat_map(|choice| &choice.flows.sets));
        let mut text = String::new();
        for set in named {
            for ipv6 in [false, true] {
                let kind = if ipv6 { "ipv6_addr" } else { "ipv4_addr" };
                let _ = write!(
                    text,
                    "set {} {{\n  type {kind}; size {SET_SIZE}; flags timeout;\n",
                    half(set, ipv6)
                );
                let own = elements
                    .get(set)
                    .into_iter()
                    .flatten()
                    .filter(|(address, _)| address.is_ipv6() == ipv6);
                let own: Vec<_> = own
                    .map(|(address, lasts)| format!("{address} timeout {}s", lasts.as_secs().max(1)))
                    .collect();
                if !own.is_empty() {
                    let _ = writeln!(text, "  elements = {{ {} }}", own.join(", "));
                }
                text += "}\n";
            }
        }
        text
    }

    /// Returns the chain that redirects the DNS queries of programs with a chosen network to that
    /// network's resolver, which has its own port.
    fn asked(&self, resolvers: &BTreeMap<u8, u16>) -> String {
        let mut text = String::new();
        for Port { number, .. } in &self.networks {
            let (Some(port), mark) = (resolvers.get(number), mark(0, *number)) else {
                continue;
            };
            for address in &self.own {
                let (ip, target) = match address {
                    IpAddr::V4(v4) => ("ip", format!("{v4}:{port}")),
                    IpAddr::V6(v6) => ("ip6", format!("[{v6}]:{port}")),
                };
                let _ = writeln!(
                    text,
                    "  meta l4proto {{ tcp, udp }} {ip} daddr {address} th dport 53 meta mark & {NETWORK_MASK:#x} == {mark:#x} dnat {ip} to {target}"
                );
            }
        }
        if text.is_empty() {
            return text;
        }
        format!("chain asked {{\n  type nat hook output priority -100; policy accept;\n{text}}}\n")
    }

    /// Returns the chain for packets of this machine.
    fn output(&self) -> String {
        let interface = &self.interface;
        let program_rules = self.program_rules();
        let subflows = self.subflows();
        let is_flow = format!("& {MARK_MASK:#x} == {MARK:#x}");
        format!(
            "chain output {{
  type route hook output priority mangle; policy accept;
  oifname \"lo\" accept
  meta mark & {NETWORK_MASK:#x} == {OUTER_MARK:#x} accept
  ct mark {is_flow} meta mark set ct mark accept
{program_rules}  meta mark & 0xffffff00 == {MARK:#x} reject with icmpx no-route
{subflows}  oifname != \"{interface}\" accept
  ip daddr {{ 224.0.0.0/4, 255.255.255.255 }} drop
  ip6 daddr {{ fe80::/10, ff00::/8 }} drop
  {BROKEN}
  jump choose
  oifname \"{interface}\" reject with icmpx no-route
}}
"
        )
    }

    /// Returns the rules for flows whose program has chosen a network, for present networks that
    /// support the family.
    fn program_rules(&self) -> String {
        let program = u32::from(reason::PROGRAM) << 8;
        let mut text = String::new();
        for ipv6 in [false, true] {
            let able = |port: &&Port| port.addresses.iter().any(|address| address.is_ipv6() == ipv6);
            let marks = self
                .networks
                .iter()
                .filter(able)
                .map(|port| format!("{:#x}", mark(0, port.number)));
            let marks: Vec<_> = marks.collect();
            if !marks.is_empty() {
                let family = if ipv6 { "ipv6" } else { "ipv4" };
                let marks = marks.join(", ");
                let _ = writeln!(
                    text,
                    "  meta nfproto {family} meta mark {{ {marks} }} ct mark set meta mark | {program:#x} meta mark set ct mark accept"
                );
            }
        }
        text
    }

    /// Returns the rules for subflows of MPTCP, which follow the routes for their source address:
    /// only the network is recorded in the mark.
    fn subflows(&self) -> String {
        if self.networks.is_empty() {
            return String::new();
        }
        let pairs = self.networks.iter().map(|port| {
            let mark = mark(reason::MULTIPATH, port.number);
            format!("\"{}\" : {mark:#x}", port.device)
        });
        let pairs: Vec<_> = pairs.collect();
        format!(
            "  meta mark {MULTIPATH_MARK:#x} ct mark set oifname map {{ {} }} accept\n",
            pairs.join(", ")
        )
    }

    /// Returns the chains for received and forwarded packets.
    fn forwarded(&self) -> String {
        let interface = &self.interface;
        let mut devices: Vec<_> = self
            .networks
            .iter()
            .map(|port| format!("\"{}\"", port.device))
            .collect();
        let (mut zones, mut came_in) = (String::new(), String::new());
        if !devices.is_empty() {
            let by_device = |value: &dyn Fn(u8) -> String| {
                let pairs = self
                    .networks
                    .iter()
                    .map(|port| format!("\"{}\" : {}", port.device, value(port.number)));
                pairs.collect::<Vec<_>>().join(", ")
            };
            let (numbers, marks) = (
                by_device(&|number| number.to_string()),
                by_device(&|number| format!("{:#x}", mark(reason::CAME_IN, number))),
            );
            zones = format!(
                "chain zones {{\n  type filter hook prerouting priority raw; policy accept;\n  ct original zone set iifname map {{ {numbers} }}\n}}\n"
            );
            came_in = format!("  ct state new ct mark 0 ct mark set iifname map {{ {marks} }}\n");
        }
        devices.push("\"lo\"".to_owned());
        let mut own = String::new();
        if self.has_tunnel() {
            own = format!(" meta mark & {NETWORK_MASK:#x} != {}", marks(TUNNEL));
        } else {
            devices.push(format!("\"{interface}\""));
        }
        let devices = devices.join(", ");
        let mut others = String::new();
        if !self.lans.is_empty() {
            let lans = nft::names(&self.lans);
            others = format!("  iifname != {{ {lans} }} fib daddr oifname \"{interface}\" drop\n");
        }
        format!(
            "{zones}chain prerouting {{
  type filter hook prerouting priority mangle; policy accept;
{came_in}  iifname {{ {devices} }} accept
  ct mark & {MARK_MASK:#x} == {MARK:#x} meta mark set ct mark accept
  fib daddr type != unicast accept
{others}  fib daddr oifname \"{interface}\" {BROKEN}
  fib daddr oifname \"{interface}\" jump choose
}}
chain forward {{
  type filter hook forward priority filter; policy accept;
  oifname \"{interface}\"{own} reject with icmpx no-route
}}
"
        )
    }

    fn has_tunnel(&self) -> bool {
        self.networks.iter().any(|port| port.number == TUNNEL)
    }

    /// Returns the final check of outgoing packets: the addresses that applications see never
    /// leave, not even while a network is present and its rules are not. `more` contains additional
    /// rules.
    fn leaving(&self, more: &str) -> String {
        let interface = &self.interface;
        let mut text =
            "chain leaving {\n  type filter hook postrouting priority 300; policy accept;\n".to_owned();
        for address in &self.own {
            let ip = nft::family(*address);
            // Compare addresses first: every packet passes this chain, and devices are compared by
            // name.
            let _ = writeln!(
                text,
                "  {ip} saddr {address} oifname != {{ \"lo\", \"{interface}\" }} drop"
            );
        }
        text + more + "}\n"
    }

    /// Returns the chains for outgoing addresses and sizes. The empty chain allows answers to the
    /// same address and port of two zones to be distinguished.
    fn translation(&self) -> String {
        let mut text = "chain came_in {\n  type nat hook input priority 100; policy accept;\n}\n".to_owned();
        text += "chain postrouting {\n  type nat hook postrouting priority srcnat; policy accept;\n";
        for Port {
            number,
            device,
            addresses,
        } in &self.networks
        {
            let marks = marks(*number);
            for address in addresses {
                let (version, ip) = (nft::version(*address), nft::family(*address));
                let _ = writeln!(
                    text,
                    "  oifname \"{device}\" meta nfproto {version} meta mark & {NETWORK_MASK:#x} == {marks} snat {ip} to {address}"
                );
            }
        }
        text += "}\n";
        text += &self.leaving(&format!(
            "  meta mark & {MARK_MASK:#x} == {MARK:#x} tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu\n"
        ));
        text
    }
}

/// Size of a set, more than the number of stored names. Source: twice `MAX_NAMES` of
/// `products/direct/src/naming.rs`.
const SET_SIZE: u32 = 8192;

/// Reset of unknown TCP connections, which were on a removed network: the programs are notified,
/// whereas another network would drop their packets silently.
const BROKEN: &str = "tcp flags & (syn | ack | rst) != syn reject with tcp reset";

/// Returns the marks of flows on a network for all reasons, as an nft set.
fn marks(number: u8) -> String {
    let own = mark(0, number);
    if number == TUNNEL {
        format!("{{ {own:#x}, {:#x} }}", mark(0, SECONDARY))
    } else {
        format!("{own:#x}")
    }
}

fn chain_name(index: usize, family: usize) -> String {
    format!("turns_{index}_{}", if family == 0 { "v4" } else { "v6" })
}

/// Returns the rules that assign networks in turn. Each protocol has its own counter, because
/// otherwise every DNS query would shift the turn of the following connection.
fn turn_chain(name: &str, reason: u8, turns: &[u8]) -> String {
    let keep = "meta mark set ct mark accept";
    let set = match turns {
        [only] => format!("{:#x}", mark(reason, *only)),
        _ => {
            let turn = |(turn, number): (usize, &u8)| format!("{turn} : {:#x}", mark(reason, *number));
            let map: Vec<_> = turns.iter().enumerate().map(turn).collect();
            format!("numgen inc mod {} map {{ {} }}", turns.len(), map.join(", "))
        }
    };
    let rule = |protocol: &str| format!("  {protocol}ct mark set {set} {keep}\n");
    format!(
        "chain {name} {{\n{}{}{}}}\n",
        rule("meta l4proto tcp "),
        rule("meta l4proto udp "),
        rule("")
    )
}

/// Returns the lines that send flows to a rule's chain of turns.
fn choose(index: usize, choice: &Choice) -> String {
    let mut text = String::new();
    for (family, turns) in choice.turns.iter().enumerate() {
        let verdict = match (turns.is_empty(), choice.strict) {
            (false, _) => format!("goto {}", chain_name(index, family)),
            (true, true) => "reject with icmpx no-route".to_owned(),
            (true, false) => continue,
        };
        if let Some(flows) = matching(&choice.flows, family == 1) {
            let _ = writeln!(text, "  {flows}{verdict}");
        }
    }
    text
}

/// Returns the match in nft's syntax; `None` if it cannot apply to this family.
fn matching(flows: &Match, ipv6: bool) -> Option<String> {
    let mut text = format!("meta nfproto {} ", if ipv6 { "ipv6" } else { "ipv4" });
    let ip = if ipv6 { "ip6" } else { "ip" };
    let protocol = match (flows.protocol, flows.ports.is_empty()) {
        (None, true) => "",
        (None, false) => "meta l4proto { tcp, udp } ",
        (Some(Protocol::Tcp), _) => "meta l4proto tcp ",
        (Some(Protocol::Udp), _) => "meta l4proto udp ",
        (Some(Protocol::Icmp), _) if ipv6 => "meta l4proto ipv6-icmp ",
        (Some(Protocol::Icmp), _) => "meta l4proto icmp ",
    };
    text += protocol;
    if !flows.ports.is_empty() {
        let ports = flows.ports.iter().map(|(first, last)| format!("{first}-{last}"));
        let _ = write!(text, "th dport {{ {} }} ", ports.collect::<Vec<_>>().join(", "));
    }
    for (side, nets) in [("saddr", &flows.from), ("daddr", &flows.to)] {
        if nets.is_empty() {
            continue;
        }
        let nets = nets.iter().filter(|net| net.address.is_ipv6() == ipv6);
        let nets: Vec<_> = nets.map(Net::to_string).collect();
        if nets.is_empty() {
            return None;
        }
        let _ = write!(text, "{ip} {side} {{ {} }} ", nets.join(", "));
    }
    for set in &flows.sets {
        let _ = write!(text, "{ip} daddr @{} ", half(set, ipv6));
    }
    if let Some(dscp) = flows.dscp {
        let _ = write!(text, "{ip} dscp {dscp} ");
    }
    if let Some(cgroup) = &flows.cgroup {
        let level = cgroup.split('/').count();
        let _ = write!(text, "socket cgroupv2 level {level} \"{cgroup}\" ");
    }
    if let Some(intent) = flows.intent {
        let _ = write!(text, "meta mark {:#x} ", intent.mark());
    }
    Some(text)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn choice(flows: Match, strict: bool) -> Choice {
        Choice {
            reason: reason::FIRST_RULE,
            flows,
            turns: [vec![2], vec![]],
            strict,
        }
    }

    /// Loads a table in a new namespace, if namespaces are permitted.
    pub(crate) fn nft_takes(name: &str, body: &str) {
        let Ok(namespace) = crate::netns::Namespace::new() else {
            hawser_testing::skip("no namespaces");
            return;
        };
        let table = format!("table inet {name} {{\n{body}\n}}\n");
        let mut child = namespace
            .command("nft")
            .args(["-f", "-"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), table.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "{table}");
    }

    #[test]
    fn a_mark_says_network_and_reason() {
        assert_eq!(mark(reason::DEFAULT, 3), 0x4857_0803);
        assert_eq!(read_mark(0x4857_0803), Some((3, 8)));
        assert_eq!(read_mark(OUTER_MARK), None);
        assert_eq!(read_mark(0x4858_0803), None);
        assert_eq!(read_mark(Intent::Cheap.mark()), None);
    }

    #[test]
    fn a_rule_is_only_for_families_that_it_can_meet() {
        let to = Match {
            from: vec!["192.168.7.0/24".parse().unwrap()],
            to: vec!["198.51.100.0/24".parse().unwrap()],
            ports: vec![(80, 80), (8000, 8100)],
            ..Match::default()
        };
        let text = choose(0, &choice(to.clone(), true));
        assert_eq!(
            text,
            "  meta nfproto ipv4 meta l4proto { tcp, udp } th dport { 80-80, 8000-8100 } ip saddr { 192.168.7.0/24 } ip daddr { 198.51.100.0/24 } goto turns_0_v4\n"
        );
        let text = choose(1, &choice(Match::default(), true));
        assert!(
            text.contains("meta nfproto ipv6 reject with icmpx no-route"),
            "{text}"
        );
        let text = choose(1, &choice(Match::default(), false));
        assert!(!text.contains("ipv6"), "{text}");
    }

    #[test]
    fn nft_takes_every_ruleset() {
        let everything = Match {
            protocol: Some(Protocol::Udp),
            ports: vec![(5000, 6000)],
            from: ["192.168.7.2/32", "fd00:7::/64"]
                .map(|net| net.parse().unwrap())
                .to_vec(),
            to: ["10.0.0.0/8", "2001:db8::/32"]
                .map(|net| net.parse().unwrap())
                .to_vec(),
            dscp: Some(46),
            cgroup: None,
            sets: vec!["rule_0".to_owned(), "past_2".to_owned()],
            intent: Some(Intent::Realtime),
        };
        let elements = Elements::from([(
            "rule_0".to_owned(),
            ["198.51.100.7", "2001:db8::7"]
                .map(|address| (address.parse().unwrap(), Duration::from_secs(60)))
                .into(),
        )]);
        let full = Choice {
            turns: [vec![2, 3, 2], vec![3]],
            ..choice(everything, true)
        };
        let last = Choice {
            reason: reason::DEFAULT,
            turns: [vec![2, 3], vec![2, 3]],
            ..Choice::default()
        };
        let port = |number, device: &str| Port {
            number,
            device: device.to_owned(),
            addresses: vec!["192.168.0.2".parse().unwrap(), "2001:db8::2".parse().unwrap()],
        };
        let tunnel = Choice {
            reason: reason::DEFAULT,
            turns: [vec![TUNNEL], vec![TUNNEL]],
            ..Choice::default()
        };
        for (networks, choices, lans) in [
            (vec![], vec![], vec![]),
            (
                vec![port(2, "wlan0"), port(3, "eth0.5")],
                vec![full.clone(), last],
                vec!["br-lan".to_owned(), "eth0.7".to_owned()],
            ),
            (
                vec![port(2, "wlan0"), port(TUNNEL, "hawser0")],
                vec![full, tunnel],
                vec![],
            ),
        ] {
            let ruleset = Ruleset {
                interface: "hawser0".to_owned(),
                own: vec!["100.64.0.2".parse().unwrap(), "fd48::2".parse().unwrap()],
                networks,
                choices,
                lans,
            };
            nft_takes(TABLE, &ruleset.body(&elements, &[(2, 18_602)].into()));
        }
    }
}
