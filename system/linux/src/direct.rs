//! The nftables ruleset of direct mode: which network takes a flow that begins, and what keeps it
//! there.
//!
//! The first packet of a flow gets a mark, connection tracking keeps it, and a routing table for
//! each mark leads out of the network, where the packet gets the network's address. The mark says
//! the network and the reason:
//!
//! ```text
//!   0x4857 RR NN   NN  network, from 2; 251: the tunnel to a hub, 252: to a further one;
//!                      0: none asked for; 1: Hawser's own packets
//!                  RR  reason: intents 1 to 5, then as in [`reason`]; with network 0 also what
//!                      [`MULTIPATH_MARK`] says
//! ```
//!
//! A program chooses for itself by putting `0x485700NN` on its socket (`SO_MARK`), or an intent by
//! `0x48570R00`. What comes in over a network gets that network's mark too, so that answers leave
//! where the question came in, and a connection tracking zone, because hosts of two overlapping
//! subnets may ask from the same address and port.
//!
//! Limitations: a flow towards an address on a directly connected subnet stays with the kernel's
//! routes unless its program chooses.

pub mod moving;
pub mod openflow;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hawser_units::Net;

use crate::nft;
use crate::udp::OUTER_MARK;

/// The mark of a flow: everything but reason and network.
pub const MARK: u32 = 0x4857_0000;
/// What is common to all marks.
pub const MARK_MASK: u32 = 0xffff_0000;
/// What says the network.
pub const NETWORK_MASK: u32 = 0xffff_00ff;
/// What says the reason.
pub const REASON_MASK: u32 = 0xff00;
/// The mark of an MPTCP subflow whose address nobody has chosen yet.
pub const MULTIPATH_MARK: u32 = MARK | (reason::MULTIPATH as u32) << 8;
/// The name of the nftables table.
pub const TABLE: &str = "hawser_direct";
/// The numbers that networks may have.
pub const NUMBERS: std::ops::RangeInclusive<u8> = 2..=250;
/// In the place of a network's number: the tunnel to a hub, whose device is the interface that
/// applications see.
pub const TUNNEL: u8 = 251;
/// In the place of a network's number: the same device, where the tunnel leads flows through a
/// further hub of the fleet. The kernel treats both alike, and tells their flows apart.
pub const FURTHER: u8 = 252;

/// Why a flow is where it is: the second byte of its mark.
pub mod reason {
    /// The first of the intents, [`Intent::Bulk`](super::Intent::Bulk).
    pub const FIRST_INTENT: u8 = 1;
    /// Its program chose the network.
    pub const PROGRAM: u8 = 6;
    /// It came in there.
    pub const CAME_IN: u8 = 7;
    /// No rule was for it.
    pub const DEFAULT: u8 = 8;
    /// It is a subflow of MPTCP.
    pub const MULTIPATH: u8 = 9;
    /// Its address means something only in the network whose resolver named it.
    pub const NAMED: u8 = 10;
    /// It was moved there.
    pub const MOVED: u8 = 11;
    /// Begun while no hub answered. Source: the next number that is free.
    pub const WITHOUT_HUB: u8 = 12;
    /// The first rule of the configuration; the others follow.
    pub const FIRST_RULE: u8 = 16;
}

/// What a program may say that a flow needs, where it does not name a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Much data, no hurry.
    Bulk,
    /// Somebody waits for each answer.
    Interactive,
    /// What comes late is of no use.
    Realtime,
    /// The cheapest way.
    Cheap,
    /// What must arrive.
    Redundant,
}

impl Intent {
    /// All of them, by number from [`reason::FIRST_INTENT`].
    pub const ALL: [Self; 5] = [
        Self::Bulk,
        Self::Interactive,
        Self::Realtime,
        Self::Cheap,
        Self::Redundant,
    ];

    /// Its name, as programs give it.
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

    /// The code point of its packets, by which the ends of a tunnel know what they need. It is what
    /// other networks take for the same need, too.
    ///
    /// Source: RFC 4594 (CS1, low-priority data; AF21, low-latency data; EF, telephony), RFC 8622
    /// (LE, lower effort).
    #[must_use]
    pub fn code_point(self) -> u8 {
        match self {
            Self::Bulk => 8,
            Self::Interactive => 18,
            // Through a tunnel, what is of no use when late has copies where they help.
            Self::Realtime | Self::Redundant => 46,
            Self::Cheap => 1,
        }
    }

    /// The reason in the marks of its flows.
    #[must_use]
    pub fn reason(self) -> u8 {
        reason::FIRST_INTENT + self as u8
    }

    /// The mark by which a socket asks for it.
    #[must_use]
    pub fn mark(self) -> u32 {
        mark(self.reason(), 0)
    }
}

/// The mark of flows on a network for a reason.
#[must_use]
pub fn mark(reason: u8, network: u8) -> u32 {
    MARK | u32::from(reason) << 8 | u32::from(network)
}

/// Network and reason of a mark; `None` when it is none of a flow on a network.
#[must_use]
pub fn read_mark(mark: u32) -> Option<(u8, u8)> {
    let [_, _, reason, network] = mark.to_be_bytes();
    (mark & MARK_MASK == MARK && NUMBERS.contains(&network)).then_some((network, reason))
}

/// A protocol that a rule may be for.
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
    /// Returns its protocol and its ports in words: `tcp`, `port 25`, `ports 60000-61000`.
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

/// Which flows a rule is for: those to which everything said here applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Of this protocol.
    pub protocol: Option<Protocol>,
    /// To one of these ports, each a range.
    pub ports: Vec<(u16, u16)>,
    /// Of a machine in one of these subnets, for which this one forwards.
    pub from: Vec<Net>,
    /// To one of these subnets.
    pub to: Vec<Net>,
    /// With this code point.
    pub dscp: Option<u8>,
    /// Of a program in this control group, a path below the root of version 2, or in one below it.
    pub cgroup: Option<String>,
    /// To an address that is in all these sets now, as [`Elements`] and
    /// [`System::change_elements`](crate::system::System::change_elements) say.
    pub sets: Vec<String>,
    /// Whose socket asks for it.
    pub intent: Option<Intent>,
}

/// What sets contain, and for how long.
pub type Elements = BTreeMap<String, Vec<(IpAddr, Duration)>>;

/// The name of a set's half for one family: the kernel's sets have one type of address.
#[must_use]
pub fn half(set: &str, ipv6: bool) -> String {
    format!("{set}_{}", if ipv6 { "v6" } else { "v4" })
}

/// A rule and whose turn it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Goes into the mark.
    pub reason: u8,
    /// For which flows.
    pub flows: Match,
    /// The networks in turn, for IPv4 and IPv6; where empty, later rules apply.
    pub turns: [Vec<u8>; 2],
    /// Where empty, flows are refused instead.
    pub strict: bool,
}

/// A network that is there, or the tunnel to a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number, or [`TUNNEL`].
    pub number: u8,
    /// Its device.
    pub device: String,
    /// The addresses with which flows leave, for each family that it carries.
    ///
    /// Named, where masquerading would find them: the kernel forgets all masqueraded flows of a
    /// device that goes down, even if it is back in a moment.
    pub addresses: Vec<IpAddr>,
}

/// All that the ruleset is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    /// The interface that applications see.
    pub interface: String,
    /// Its addresses.
    pub own: Vec<IpAddr>,
    /// Each network that is there.
    pub networks: Vec<Port>,
    /// Rules in their order; the last is for all flows.
    pub choices: Vec<Choice>,
    /// Interfaces to the machines that it forwards for; where none is named, all that are no
    /// networks.
    pub lans: Vec<String>,
}

impl Ruleset {
    /// What stands between the braces of the table. `resolvers`: where each network's own resolver
    /// answers, by the network's number.
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

    /// Whether some rule asks for the addresses of this set: only then is it there.
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

    /// Programs that chose a network ask its resolver, which has a port of its own.
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

    /// What this machine sends.
    fn output(&self) -> String {
        let interface = &self.interface;
        let chosen = self.chosen();
        let subflows = self.subflows();
        let is_flow = format!("& {MARK_MASK:#x} == {MARK:#x}");
        format!(
            "chain output {{
  type route hook output priority mangle; policy accept;
  oifname \"lo\" accept
  meta mark & {NETWORK_MASK:#x} == {OUTER_MARK:#x} accept
  ct mark {is_flow} meta mark set ct mark accept
{chosen}  meta mark & 0xffffff00 == {MARK:#x} reject with icmpx no-route
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

    /// Flows whose program chose: of networks that are there, and carry the family.
    fn chosen(&self) -> String {
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

    /// Subflows of MPTCP go where the routes lead them, by their address; what is left is to
    /// remember where that was.
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

    /// What it forwards for others, and what comes in.
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

    /// The last look at what leaves: the addresses that applications see never get out, not even in
    /// the moment when a network is there and its rules are not. `more`: further rules for it.
    fn leaving(&self, more: &str) -> String {
        let interface = &self.interface;
        let mut text =
            "chain leaving {\n  type filter hook postrouting priority 300; policy accept;\n".to_owned();
        for address in &self.own {
            let ip = nft::family(*address);
            // Addresses first: every packet comes here, and devices are compared by name.
            let _ = writeln!(
                text,
                "  {ip} saddr {address} oifname != {{ \"lo\", \"{interface}\" }} drop"
            );
        }
        text + more + "}\n"
    }

    /// Addresses and sizes on the way out. The empty chain lets answers to the same address and
    /// port of two zones be told apart.
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

/// More than names are remembered.
const SET_SIZE: u32 = 8192;

/// A TCP connection that nobody remembers was on a network that is gone. Its end hears so, where
/// another network would only swallow what it says.
const BROKEN: &str = "tcp flags & (syn | ack | rst) != syn reject with tcp reset";

/// The marks of flows on a network, whatever the reason, as nft compares with them.
fn marks(number: u8) -> String {
    let own = mark(0, number);
    if number == TUNNEL {
        format!("{{ {own:#x}, {:#x} }}", mark(0, FURTHER))
    } else {
        format!("{own:#x}")
    }
}

fn chain_name(index: usize, family: usize) -> String {
    format!("turns_{index}_{}", if family == 0 { "v4" } else { "v6" })
}

/// Turns are counted for each protocol by itself: otherwise every name that is looked up would move
/// the connection that follows.
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

/// The lines that send flows to a rule's turns.
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

/// The match in nft's words; `None` when it cannot apply to this family.
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

    /// In a namespace of its own, if there may be one.
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
