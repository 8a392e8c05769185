//! nftables rules for moved flows: they rewrite addresses of received and sent packets outside
//! connection tracking and sockets, for which a flow keeps its original addresses.
//!
//! ```text
//!   in:   raw (before zones and tracking)   an accepted route's addresses -> the first ones
//!   out:  output, after tracking            the mark of the present network, before direct mode's own rules look at it
//!         output, after translation         destination of the present route: the packet is routed again
//!         postrouting, after translation    source of the present route
//!   local input: what opens routes is for no socket
//! ```
//!
//! The whole table is replaced in one transaction, so each packet is processed by either the old or
//! the new rules. The rules have no state in the kernel. A waypoint rewrites in both directions for
//! flows of other machines, without tracking them.
//!
//! Limitations: an error message of a router (ICMP) about a rewritten packet quotes the new
//! addresses and finds no socket, so a path whose MTU is smaller than that of its interface is not
//! learned. UDP packets without a checksum are not rewritten.
//!
//! Source: Flow switch figure 5.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::SocketAddr;

use crate::nft;

/// The name of the table.
pub const MOVED_TABLE: &str = "hawser_moved";
/// Name of the table at a waypoint, which may run direct mode too.
pub const RELAY_TABLE: &str = "hawser_relay";

/// Addresses of a packet that this end sends: source and destination.
pub type Ends = (SocketAddr, SocketAddr);

/// A flow and how its packets are rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// TCP (6) or UDP (17).
    pub protocol: u8,
    /// Addresses as seen by sockets, or by machines behind this one.
    pub inside: Ends,
    /// Addresses on the wire without rewriting: after the translation to the first network's
    /// address.
    pub first: Ends,
    /// Addresses with which packets are currently sent.
    pub route: Ends,
    /// Additional addresses with which packets may arrive.
    pub accepted: Vec<Ends>,
    /// Openings over TCP whose last packet may still arrive, which must not reach a socket.
    pub openings: Vec<u32>,
    /// Mark of the network over which it leaves; `None` means unchanged.
    pub mark: Option<u32>,
    /// Connection tracking zone in which it began, if it arrived from outside.
    pub zone: Option<u16>,
}

/// A flow of other machines relayed by this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relayed {
    /// TCP (6) or UDP (17).
    pub protocol: u8,
    /// Addresses of this machine and one end.
    pub near: Ends,
    /// Addresses of this machine and the other end.
    pub far: Ends,
}

/// Inputs of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewriting {
    /// Moved flows.
    pub flows: Vec<Moved>,
    /// Relayed flows.
    pub relays: Vec<Relayed>,
    /// Routes that are being opened, with their protocol: their packets must not reach a socket.
    pub openings: Vec<(u8, Ends)>,
    /// Set if challenges may arrive over routes of UDP flows: they must not reach a socket.
    pub challenges: bool,
    /// Ports of this machine at which openings arrive, with their protocol: these must not reach a
    /// socket either.
    pub ports: Vec<(u8, u16)>,
}

/// Protocol, source and destination of a packet.
type Key = (u8, SocketAddr, SocketAddr);

#[derive(Default)]
struct Maps {
    inward: BTreeMap<Key, String>,
    marking: BTreeMap<Key, String>,
    away: BTreeMap<Key, String>,
    leaving: BTreeMap<Key, String>,
    /// Chains, in the order of their creation.
    chains: String,
}

impl Rewriting {
    /// Returns whether there is nothing to rewrite.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the body of the table.
    #[must_use]
    pub fn body(&self) -> String {
        let mut maps = Maps::default();
        for (index, flow) in self.flows.iter().enumerate() {
            maps.flow(index, flow);
        }
        for (index, relay) in self.relays.iter().enumerate() {
            maps.relay(
                &format!("relay_{index}_to"),
                relay.protocol,
                relay.near,
                relay.far,
            );
            maps.relay(
                &format!("relay_{index}_from"),
                relay.protocol,
                relay.far,
                relay.near,
            );
        }
        for (protocol, (near, far)) in &self.openings {
            maps.inward
                .entry((*protocol, *far, *near))
                .or_insert_with(|| "drop".to_owned());
        }
        let mut all = BTreeSet::new();
        all.extend(self.ports.iter().copied());
        let ports: Vec<_> = all
            .iter()
            .map(|(protocol, port)| format!("{protocol} . {port}"))
            .collect();
        // Does not match relayed packets, nor replies to this machine or those behind it that
        // arrive at such a port.
        let closed = if ports.is_empty() {
            String::new()
        } else {
            format!(
                "  ct state established,related accept\n  meta l4proto . th dport {{ {} }} drop\n",
                ports.join(", ")
            )
        };
        let challenges = if self.challenges {
            no_message()
        } else {
            String::new()
        };
        let Maps {
            inward,
            marking,
            away,
            leaving,
            chains,
        } = maps;
        let (marking, away) = (verdicts(&marking), verdicts(&away));
        let chain = |name: &str, hook: &str, rules: &str| match rules {
            "" => String::new(),
            rules => format!("chain {name} {{\n  type {hook}; policy accept;\n{rules}}}\n"),
        };
        [
            chains,
            chain(
                "inward",
                "filter hook prerouting priority -310",
                &(challenges + &verdicts(&inward)),
            ),
            chain("closed", "filter hook input priority -310", &closed),
            chain("marking", "filter hook output priority -151", &marking),
            chain("marking_others", "filter hook prerouting priority -151", &marking),
            chain("away", "route hook output priority -90", &away),
            chain("away_others", "filter hook prerouting priority -90", &away),
            chain(
                "leaving",
                "filter hook postrouting priority 110",
                &verdicts(&leaving),
            ),
        ]
        .concat()
    }
}

impl Maps {
    fn flow(&mut self, index: usize, flow: &Moved) {
        let protocol = flow.protocol;
        let (near, far) = flow.first;
        let (inside, first) = (
            (protocol, flow.inside.0, flow.inside.1),
            (protocol, near, flow.route.1),
        );
        let name = format!("flow_{index}");
        let accepted = flow.accepted.iter().filter(|route| **route != flow.first);
        for route in accepted {
            self.inward
                .insert((protocol, route.1, route.0), format!("goto {name}_in"));
        }
        let zone = flow
            .zone
            .map_or(String::new(), |zone| format!("  ct original zone set {zone}\n"));
        // A SYN must not reach a socket: it is a late copy of the opening.
        let no_beginning = if protocol == TCP {
            "  tcp flags & syn == syn drop\n".to_owned()
        } else {
            no_message()
        };
        let _ = write!(
            self.chains,
            "chain {name}_in {{\n{no_beginning}{}{}{}{zone}  accept\n}}\n",
            last_packets(flow),
            set("s", protocol, far),
            set("d", protocol, near)
        );
        if let Some(mark) = flow.mark {
            let _ = writeln!(self.chains, "chain {name}_mark {{\n  ct mark set {mark:#x}\n}}");
            self.marking.insert(inside, format!("goto {name}_mark"));
        }
        if flow.route.1 != far {
            let _ = writeln!(
                self.chains,
                "chain {name}_away {{\n{}  accept\n}}",
                set("d", protocol, flow.route.1)
            );
            self.away.insert(inside, format!("goto {name}_away"));
        }
        if flow.route.0 != near {
            let _ = writeln!(
                self.chains,
                "chain {name}_leaving {{\n{}  accept\n}}",
                set("s", protocol, flow.route.0)
            );
            self.leaving.insert(first, format!("goto {name}_leaving"));
        }
    }

    /// Relays packets that arrive from `from` to `to`.
    fn relay(&mut self, name: &str, protocol: u8, from: Ends, to: Ends) {
        self.inward
            .insert((protocol, from.1, from.0), format!("goto {name}_in"));
        self.leaving
            .insert((protocol, from.1, to.1), format!("goto {name}_out"));
        let _ = writeln!(
            self.chains,
            "chain {name}_in {{\n{}  notrack\n  accept\n}}\nchain {name}_out {{\n{}  accept\n}}",
            set("d", protocol, to.1),
            set("s", protocol, to.0)
        );
    }
}

/// Drops messages about routes over UDP.
fn no_message() -> String {
    format!("  meta l4proto udp @th,64,64 {UDP_MARK:#x} drop\n")
}

/// Matches the last packet of an opening, whose two timestamps are both its number, unlike those of
/// any program.
fn last_packets(flow: &Moved) -> String {
    if flow.protocol != TCP || flow.openings.is_empty() {
        return String::new();
    }
    let numbers: Vec<_> = flow.openings.iter().map(ToString::to_string).collect();
    let numbers = numbers.join(", ");
    format!("  tcp option timestamp tsval {{ {numbers} }} tcp option timestamp tsecr {{ {numbers} }} drop\n")
}

/// Returns the statements that rewrite a packet's source (`s`) or destination (`d`).
fn set(which: &str, protocol: u8, to: SocketAddr) -> String {
    let ip = nft::family(to.ip());
    let transport = if protocol == TCP { "tcp" } else { "udp" };
    format!(
        "  {ip} {which}addr set {}\n  {transport} {which}port set {}\n",
        to.ip(),
        to.port()
    )
}

fn verdicts(map: &BTreeMap<Key, String>) -> String {
    let mut text = String::new();
    for ipv6 in [false, true] {
        let elements: Vec<_> = map
            .iter()
            .filter(|((_, source, _), _)| source.is_ipv6() == ipv6)
            .map(|((protocol, source, destination), verdict)| {
                let (from, to) = (
                    (source.ip(), source.port()),
                    (destination.ip(), destination.port()),
                );
                format!(
                    "{protocol} . {} . {} . {} . {} : {verdict}",
                    from.0, from.1, to.0, to.1
                )
            })
            .collect();
        if !elements.is_empty() {
            let ip = if ipv6 { "ip6" } else { "ip" };
            let _ = writeln!(
                text,
                "  meta l4proto . {ip} saddr . th sport . {ip} daddr . th dport vmap {{ {} }}",
                elements.join(", ")
            );
        }
    }
    text
}

/// `IPPROTO_TCP` of linux/in.h.
const TCP: u8 = 6;
/// First bytes of messages about routes over UDP (`hawser_wire::opening`).
const UDP_MARK: u64 = u64::from_be_bytes(*b"hwsrOpen");

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn moved(protocol: u8, v6: bool) -> Moved {
        let at = |last: u8, port: u16| match v6 {
            false => SocketAddr::from(([10, 0, 0, last], port)),
            true => SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)], port)),
        };
        Moved {
            protocol,
            inside: (at(100, 4_000), at(9, 80)),
            first: (at(1, 4_000), at(9, 80)),
            route: (at(2, 61_000), at(9, 4_443)),
            accepted: vec![
                (at(1, 4_000), at(9, 80)),
                (at(2, 61_000), at(9, 4_443)),
                (at(1, 61_001), at(9, 4_443)),
            ],
            openings: vec![7, 0xffff_fff0],
            mark: Some(0x4857_0903),
            zone: Some(3),
        }
    }

    fn everything() -> Rewriting {
        Rewriting {
            flows: vec![
                moved(6, false),
                moved(17, false),
                moved(6, true),
                Moved {
                    mark: None,
                    zone: None,
                    route: (address("10.1.0.1:4000"), address("10.1.0.9:80")),
                    inside: (address("10.1.0.1:4000"), address("10.1.0.9:80")),
                    first: (address("10.1.0.1:4000"), address("10.1.0.9:80")),
                    accepted: vec![],
                    openings: vec![],
                    protocol: 6,
                },
            ],
            relays: vec![Relayed {
                protocol: 6,
                near: (address("198.51.100.2:61001"), address("10.7.0.1:61000")),
                far: (address("198.51.100.2:61002"), address("203.0.113.2:4443")),
            }],
            openings: vec![(6, (address("10.0.0.7:61009"), address("10.0.0.9:4443")))],
            challenges: true,
            ports: vec![(6, 4443), (17, 61_001)],
        }
    }

    #[test]
    fn the_first_addresses_are_not_rewritten_on_the_way_in() {
        let body = everything().body();
        assert!(
            body.contains("6 . 10.0.0.9 . 4443 . 10.0.0.2 . 61000 : goto flow_0_in"),
            "{body}"
        );
        assert!(!body.contains("6 . 10.0.0.9 . 80 . 10.0.0.1 . 4000"), "{body}");
        assert!(!body.contains("flow_3_leaving"), "{body}");
    }

    #[test]
    fn late_copies_of_an_opening_reach_no_socket() {
        for (protocol, message) in [
            (6, "tcp flags & syn == syn drop"),
            (17, "@th,64,64 0x687773724f70656e drop"),
        ] {
            for v6 in [false, true] {
                let flows = vec![moved(protocol, v6)];
                let rewriting = Rewriting {
                    flows,
                    ..Rewriting::default()
                };
                let body = rewriting.body();
                let (chain, _) = body
                    .split_once("chain flow_0_in {")
                    .unwrap()
                    .1
                    .split_once("\n}")
                    .unwrap();
                let (dropped, rewritten) = (chain.find(message), chain.find("saddr set"));
                assert!(dropped.is_some() && dropped < rewritten, "{body}");
            }
        }
    }

    #[test]
    fn ports_of_openings_are_closed_for_this_machine_alone() {
        let body = everything().body();
        let (hook, rest) = body
            .split_once("chain closed {")
            .unwrap()
            .1
            .split_once(';')
            .unwrap();
        assert!(hook.contains("hook input"), "what is forwarded goes on: {body}");
        assert!(
            rest.contains("ct state established,related accept"),
            "answers come in: {body}"
        );
        let inward = body
            .split_once("chain inward {")
            .unwrap()
            .1
            .split_once('}')
            .unwrap()
            .0;
        assert!(!inward.contains("th dport {"), "{body}");
    }

    #[test]
    fn nft_takes_every_table() {
        for rewriting in [Rewriting::default(), everything()] {
            crate::direct::tests::nft_takes(MOVED_TABLE, &rewriting.body());
        }
    }
}
