//! Isolation of a hub's clients: nftables rules between the hub's inner interface and all other
//! hosts.
//!
//! ```text
//!   client --> public addresses                      accepted
//!          --> networks that are denied              dropped
//!          --> private and special ones              dropped, but for the networks that are named and port 53 of the hub's resolvers
//!          --> another client                        dropped unless clients reach each other
//!          --> the hub itself                        dropped, but for services that are named, a ping of its inner address and its resolvers
//!   anybody --> client                               answers alone, and what comes from networks that are named
//!           --> the hub's inner address              dropped unless it comes from a client or the hub itself
//! ```
//!
//! The chains process only packets of the inner interface and its addresses, in addition to the
//! operator's own chains: a packet dropped by either is dropped.
//!
//! Limitations: hosts with a public address in the hub's own segment count as public. The data
//! plane checks that no client sends with another one's address.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use hawser_units::{Net, PRIVATE4, PRIVATE6, Service, is_private};

use crate::bpf::queue_mark;
use crate::nft::{family, version};
use crate::stream_sockets::STREAM_MARK;

/// The name of the table.
pub const ISOLATION_TABLE: &str = "hawser_isolation";

/// Returns the nftables match of packets to a service; for [`Service::All`], of all packets with
/// ports.
pub(crate) fn service_match(service: Service) -> String {
    match service {
        Service::All => "meta l4proto { tcp, udp }".to_owned(),
        Service::Tcp(port) => format!("tcp dport {port}"),
        Service::Udp(port) => format!("udp dport {port}"),
    }
}

/// Permissions between a hub's clients and other machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isolation {
    /// The hub's inner interface.
    pub interface: String,
    /// Networks of inner addresses.
    pub pools: Vec<Net>,
    /// The hub's own inner addresses.
    pub own: Vec<IpAddr>,
    /// Resolvers that the hub announces: their port 53 is reachable in any network.
    pub resolvers: Vec<IpAddr>,
    /// Permission for connections between clients.
    pub clients: bool,
    /// Services of the hub that clients may reach.
    pub services: Vec<Service>,
    /// Private networks that clients may reach.
    pub networks: Vec<Net>,
    /// Networks that clients may never reach, even if another rule allows it.
    pub denied: Vec<Net>,
    /// IP protocols in addition to TCP, UDP and ICMP that they may send to hosts other than
    /// clients.
    pub protocols: Vec<u8>,
    /// Networks whose hosts may open connections to clients.
    pub from: Vec<Net>,
    /// Ports of the hub that belong to the client with that address.
    pub ports: Vec<(Service, IpAddr)>,
    /// Subnets behind clients.
    pub subnets: Vec<LedSubnet>,
    /// Connections that some clients may open, in addition to those permitted to all.
    pub grants: Vec<Grant>,
    /// The hub's addresses to which sources are translated, by family; without one, the first
    /// address of the output interface is used.
    pub lent: Vec<IpAddr>,
    /// DSCPs with which packets declare the needs of their flow; at least one.
    pub marked: Vec<u8>,
}

/// Subnet that the hub routes to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedSubnet {
    /// Addresses of the subnet.
    pub net: Net,
    /// Clients, and machines behind them, that may open connections to it.
    pub guests: Vec<Net>,
    /// Set if its traffic is translated to the hub's address.
    pub is_hidden: bool,
    /// Queue of the hub's interface for it, if there are several.
    pub queue: Option<u8>,
}

/// Connections that some clients may open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Clients, and machines behind them.
    pub from: Vec<Net>,
    /// Destinations.
    pub to: Vec<Net>,
    /// Permitted services; all if empty.
    pub services: Vec<Service>,
    /// Set if the destinations are clients, or are behind one.
    pub is_between: bool,
}

impl Grant {
    /// Returns pairs of networks of one family, with the matches of the services.
    fn pairs(&self) -> impl Iterator<Item = (Net, Net, Vec<String>)> {
        let services = match self.services.as_slice() {
            [] => vec![String::new()],
            some => some.iter().map(|one| service_match(*one) + " ").collect(),
        };
        let all = self
            .from
            .iter()
            .flat_map(|from| self.to.iter().map(move |to| (*from, *to)));
        let alike = all.filter(|(from, to)| from.address.is_ipv6() == to.address.is_ipv6());
        alike.map(move |(from, to)| (from, to, services.clone()))
    }
}

impl Isolation {
    /// Returns the body of the table.
    #[must_use]
    pub fn body(&self) -> String {
        let interface = &self.interface;
        let mut text = format!(
            "chain input {{
  type filter hook input priority filter; policy accept;
  iifname \"{interface}\" goto clients_to_hub
"
        );
        for own in &self.own {
            let _ = writeln!(text, "  iifname != \"lo\" {} daddr {own} drop", family(*own));
        }
        text += "}\nchain clients_to_hub {\n  ct state established,related accept\n";
        for own in &self.own {
            let ping = if own.is_ipv6() { "icmpv6" } else { "icmp" };
            let _ = writeln!(
                text,
                "  {} daddr {own} {ping} type echo-request accept",
                family(*own)
            );
        }
        text += &self.resolver_rules();
        for service in &self.services {
            let _ = match service {
                Service::All => writeln!(text, "  accept"),
                one @ (Service::Tcp(_) | Service::Udp(_)) => {
                    writeln!(text, "  {} accept", service_match(*one))
                }
            };
        }
        let each_other = if self.clients { "accept" } else { "drop" };
        let _ = write!(
            text,
            "  drop
}}
chain forward {{
  type filter hook forward priority filter; policy accept;
  iifname \"{interface}\" goto from_clients
  oifname \"{interface}\" goto to_clients
}}
chain from_clients {{
{}{}  oifname \"{interface}\" {each_other}
{}  ct state established,related accept
{}{}{}{}  ip daddr {{ {} }} drop
  ip6 daddr {{ {} }} drop
  accept
}}
chain to_clients {{
  ct state established,related accept
{}{}  drop
}}
{}{}{}",
            self.subnet_rules(),
            self.grants_between(),
            self.protocol_rule(),
            rules("daddr", &self.denied, "drop"),
            rules("daddr", &self.networks, "accept"),
            self.grants_outside(),
            self.resolver_rules(),
            PRIVATE4.map(|(net, prefix)| format!("{net}/{prefix}")).join(", "),
            PRIVATE6.map(|(net, prefix)| format!("{net}/{prefix}")).join(", "),
            rules("saddr", &self.from, "accept"),
            self.port_rules(),
            self.translation(),
            self.lending(),
            self.queues(),
        );
        text += &self.answers();
        text += &self.stream_rules();
        text
    }

    /// Applies the rules of clients' packets to the connections that the hub opens for them, in
    /// addition to the data plane's check. Services of the hub, clients and subnets are reachable
    /// by packets only.
    fn stream_rules(&self) -> String {
        format!(
            "chain streams {{
  type filter hook output priority filter; policy accept;
  meta mark != {STREAM_MARK:#x} accept
  fib daddr type {{ local, broadcast, multicast, anycast }} drop
  oifname \"{}\" drop
{}{}{}{}  ip daddr {{ {} }} drop
  ip6 daddr {{ {} }} drop
}}
",
            self.interface,
            rules("daddr", &self.denied, "drop"),
            rules("daddr", &self.networks, "accept"),
            self.grants_of_streams(),
            self.resolver_rules(),
            PRIVATE4.map(|(net, prefix)| format!("{net}/{prefix}")).join(", "),
            PRIVATE6.map(|(net, prefix)| format!("{net}/{prefix}")).join(", "),
        )
    }

    /// Returns the rules that set the DSCP of replies to a client's connection to that of the
    /// request, if they have none: the hub derives the needs of the return path from it.
    fn answers(&self) -> String {
        let interface = &self.interface;
        let mark = |code: u8| ASKED | u32::from(code);
        let marks = self
            .marked
            .iter()
            .map(|code| format!("{code} : {:#x}", mark(*code)));
        let marks = marks.collect::<Vec<_>>().join(", ");
        let mut text = format!(
            "chain answers {{
  type filter hook forward priority mangle; policy accept;
  iifname \"{interface}\" ct direction original ct mark 0 ct mark set ip dscp map {{ {marks} }}
  iifname \"{interface}\" ct direction original ct mark 0 ct mark set ip6 dscp map {{ {marks} }}
  oifname != \"{interface}\" accept
  ct direction original accept
  ct mark & {ASKED_MASK:#x} != {ASKED:#x} accept
"
        );
        for code in &self.marked {
            let mark = mark(*code);
            for ip in ["ip", "ip6"] {
                let _ = writeln!(text, "  ct mark {mark:#x} {ip} dscp 0 {ip} dscp set {code}");
            }
        }
        text + "}\n"
    }

    /// Drops packets that are neither TCP, UDP nor ICMP: a machine could accept packets of a tunnel
    /// protocol such as GRE as the hub's own, and decapsulate them into its network.
    fn protocol_rule(&self) -> String {
        let others = self.protocols.iter().map(|protocol| format!(", {protocol}"));
        let others: String = others.collect();
        format!("  meta l4proto != {{ tcp, udp, icmp, ipv6-icmp{others} }} drop\n")
    }

    /// Returns the rules between other clients and the subnets of clients.
    fn subnet_rules(&self) -> String {
        let interface = &self.interface;
        let mut text = String::new();
        for LedSubnet { net, guests, .. } in &self.subnets {
            let ip = family(net.address);
            let is_alike = |guest: &&Net| guest.address.is_ipv6() == net.address.is_ipv6();
            for guest in guests.iter().filter(is_alike) {
                let _ = write!(
                    text,
                    "  oifname \"{interface}\" {ip} saddr {guest} {ip} daddr {net} accept
  oifname \"{interface}\" {ip} saddr {net} {ip} daddr {guest} ct state established,related accept
"
                );
            }
        }
        text
    }

    /// Returns the rules for permitted connections between some clients, and for the replies.
    fn grants_between(&self) -> String {
        let interface = &self.interface;
        let mut text = String::new();
        let between = self.grants.iter().filter(|grant| grant.is_between);
        for (from, to, services) in between.flat_map(Grant::pairs) {
            let ip = family(from.address);
            for service in services {
                let _ = writeln!(
                    text,
                    "  oifname \"{interface}\" {ip} saddr {from} {ip} daddr {to} {service}accept"
                );
            }
            let _ = writeln!(
                text,
                "  oifname \"{interface}\" {ip} saddr {to} {ip} daddr {from} ct state established,related accept"
            );
        }
        text
    }

    /// Returns the rules for permitted connections of some clients to other hosts.
    fn grants_outside(&self) -> String {
        let mut text = String::new();
        let outside = self.grants.iter().filter(|grant| !grant.is_between);
        for (from, to, services) in outside.flat_map(Grant::pairs) {
            let ip = family(from.address);
            for service in services {
                let _ = writeln!(text, "  {ip} saddr {from} {ip} daddr {to} {service}accept");
            }
        }
        text
    }

    /// Returns the same rules for streams, whose connections the hub opens itself: the data plane
    /// has checked the client.
    fn grants_of_streams(&self) -> String {
        let mut lines = BTreeSet::new();
        let outside = self.grants.iter().filter(|grant| !grant.is_between);
        for (_, to, services) in outside.flat_map(Grant::pairs) {
            let ip = family(to.address);
            let line = |service: String| format!("  {ip} daddr {to} {service}accept\n");
            lines.extend(services.into_iter().map(line));
        }
        lines.into_iter().collect()
    }

    /// Returns the rules for sources outside the pools that are translated to the hub's address.
    fn lending(&self) -> String {
        let hidden = self.subnets.iter().filter(|subnet| subnet.is_hidden);
        let hidden: Vec<_> = hidden.map(|subnet| subnet.net).collect();
        if hidden.is_empty() {
            return String::new();
        }
        masquerade(&self.interface, &hidden, &self.lent)
    }

    /// Assigns packets to subnets to a queue of the interface, since their addresses do not
    /// determine it.
    fn queues(&self) -> String {
        let rule = |LedSubnet { net, queue, .. }: &LedSubnet| {
            let (ip, mark) = (family(net.address), queue_mark((*queue)?));
            Some(format!("  {ip} daddr {net} meta mark set {mark:#x}\n"))
        };
        let rules: String = self.subnets.iter().filter_map(rule).collect();
        if rules.is_empty() {
            return rules;
        }
        let interface = &self.interface;
        format!(
            "chain queues {{\n  type filter hook postrouting priority mangle; policy accept;\n  oifname != \"{interface}\" accept\n{rules}}}\n"
        )
    }

    fn port_rules(&self) -> String {
        let rule = |(service, to): &(Service, IpAddr)| {
            let (family, matches) = (family(*to), service_match(*service));
            format!("  {family} daddr {to} {matches} ct status dnat accept\n")
        };
        self.ports.iter().map(rule).collect()
    }

    /// Returns the rules for forwarded ports of clients.
    fn translation(&self) -> String {
        if self.ports.is_empty() {
            return String::new();
        }
        let interface = &self.interface;
        let rule = |(service, to): &(Service, IpAddr)| {
            let (ip, version, matches) = (family(*to), version(*to), service_match(*service));
            format!(
                "  iifname != \"{interface}\" fib daddr type local meta nfproto {version} {matches} dnat {ip} to {to}\n"
            )
        };
        let rules: String = self.ports.iter().map(rule).collect();
        format!("chain dstnat {{\n  type nat hook prerouting priority dstnat; policy accept;\n{rules}}}\n")
    }

    /// Returns whether a client's request may reach that external address: it is neither one of
    /// this hub's clients nor in a private network that is not allowed.
    #[must_use]
    pub fn allows(&self, to: IpAddr) -> bool {
        let to = to.to_canonical();
        let is_in = |nets: &[Net]| nets.iter().any(|net| net.contains(to));
        !is_in(&self.pools) && !is_in(&self.denied) && (is_in(&self.networks) || !is_private(to))
    }

    fn resolver_rules(&self) -> String {
        let rule = |resolver: &IpAddr| {
            let family = family(*resolver);
            format!("  {family} daddr {resolver} meta l4proto {{ tcp, udp }} th dport 53 accept\n")
        };
        self.resolvers.iter().map(rule).collect()
    }
}

/// Returns the chain that translates sources behind the hub's interface to its address: the one of
/// `addresses` of the network's family, or else the first address of the output interface.
#[must_use]
pub fn masquerade(interface: &str, nets: &[Net], addresses: &[IpAddr]) -> String {
    let rule = |net: &Net| {
        let ip = family(net.address);
        let is_alike = |address: &&IpAddr| address.is_ipv6() == net.address.is_ipv6();
        let how = match addresses.iter().find(is_alike) {
            Some(address) => format!("snat {ip} to {address}"),
            None => "masquerade".to_owned(),
        };
        format!("  {ip} saddr {net} oifname != \"{interface}\" {how}\n")
    };
    let rules: String = nets.iter().map(rule).collect();
    format!("chain postrouting {{\n  type nat hook postrouting priority srcnat; policy accept;\n{rules}}}\n")
}

/// Mark of a connection that a client opened with a DSCP, which is in the lower half. Source: "HA"
/// in the upper half.
const ASKED: u32 = 0x4841_0000;
/// Upper half of a mark. Source: the bits of [`ASKED`].
const ASKED_MASK: u32 = 0xffff_0000;

/// Returns one rule for each network: networks may overlap.
fn rules(which: &str, nets: &[Net], verdict: &str) -> String {
    let rule = |net: &Net| format!("  {} {which} {net} {verdict}\n", family(net.address));
    nets.iter().map(rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Net {
        text.parse().unwrap()
    }

    fn isolation() -> Isolation {
        Isolation {
            interface: "hawserhub0".to_owned(),
            pools: vec![net("100.96.0.0/16"), net("fd00:1::/64")],
            own: vec!["100.96.0.1".parse().unwrap(), "fd00:1::1".parse().unwrap()],
            resolvers: vec!["9.9.9.9".parse().unwrap(), "fd00:1::1".parse().unwrap()],
            clients: false,
            services: vec![],
            networks: vec![],
            denied: vec![],
            protocols: vec![],
            from: vec![],
            ports: vec![],
            subnets: vec![],
            grants: vec![],
            lent: vec![],
            marked: vec![1, 46],
        }
    }

    #[test]
    fn nft_takes_every_table() {
        crate::direct::tests::nft_takes(ISOLATION_TABLE, &isolation().body());
        let everything = Isolation {
            clients: true,
            services: vec![Service::All, Service::Tcp(22), Service::Udp(123)],
            networks: ["10.0.0.0/8", "10.1.0.0/16", "0.0.0.0/0", "fd00::/8", "::/0"]
                .map(net)
                .to_vec(),
            denied: ["10.9.0.0/16", "2001:db8:9::/48"].map(net).to_vec(),
            protocols: vec![47, 50],
            from: ["10.0.0.0/8", "fd00::/8"].map(net).to_vec(),
            ports: [
                (Service::Tcp(8080), "100.96.0.2"),
                (Service::Udp(5060), "fd00:1::2"),
            ]
            .map(|(service, to)| (service, to.parse().unwrap()))
            .to_vec(),
            subnets: ["192.168.50.0/24", "fd00:50::/64"]
                .map(|text| LedSubnet {
                    net: net(text),
                    guests: ["100.96.0.3/32", "fd00:1::3/128", "192.168.60.0/24"]
                        .map(net)
                        .to_vec(),
                    is_hidden: true,
                    queue: Some(3),
                })
                .to_vec(),
            lent: vec!["203.0.113.1".parse().unwrap()],
            grants: [false, true]
                .map(|is_between| Grant {
                    from: ["100.96.0.3/32", "fd00:1::3/128", "100.96.0.4/32"]
                        .map(net)
                        .to_vec(),
                    to: ["10.7.0.0/24", "fd00:7::/64"].map(net).to_vec(),
                    services: if is_between {
                        vec![]
                    } else {
                        vec![Service::Tcp(443), Service::All]
                    },
                    is_between,
                })
                .to_vec(),
            ..isolation()
        };
        let body = everything.body();
        assert!(body.contains("ip saddr 192.168.50.0/24 oifname != \"hawserhub0\" snat ip to 203.0.113.1"));
        assert!(body.contains("ip6 saddr fd00:50::/64 oifname != \"hawserhub0\" masquerade"));
        assert!(body.contains("ip daddr 192.168.50.0/24 meta mark set 0x48510003"));
        assert!(body.contains("meta l4proto != { tcp, udp, icmp, ipv6-icmp, 47, 50 } drop"));
        assert!(body.contains("ip6 daddr 2001:db8:9::/48 drop"));
        assert!(body.contains("ip saddr 100.96.0.4/32 ip daddr 10.7.0.0/24 tcp dport 443 accept"));
        assert!(body.contains("oifname \"hawserhub0\" ip6 saddr fd00:1::3/128 ip6 daddr fd00:7::/64 accept"));
        assert_eq!(
            body.matches("  ip daddr 10.7.0.0/24 tcp dport 443 accept")
                .count(),
            1,
            "of streams"
        );
        assert!(!body.contains("ip saddr fd00") && !body.contains("ip6 saddr 192"));
        crate::direct::tests::nft_takes(ISOLATION_TABLE, &body);
    }

    #[test]
    fn private_networks_and_clients_are_out_of_reach_unless_named() {
        let isolation = Isolation {
            networks: vec![net("10.20.0.0/16"), net("100.64.0.0/10"), net("fd00::/8")],
            denied: vec![net("10.20.9.0/24"), net("198.51.100.0/24")],
            ..isolation()
        };
        let allows = |text: &str| isolation.allows(text.parse().unwrap());
        for yes in [
            "203.0.113.2",
            "10.20.255.1",
            "100.65.0.1",
            "2001:db8::1",
            "fd99::1",
        ] {
            assert!(allows(yes), "{yes}");
        }
        for no in [
            "10.21.0.1",
            "10.20.9.1",
            "198.51.100.7",
            "100.96.3.4",
            "127.0.0.1",
            "169.254.169.254",
            "168.63.129.16",
            "192.168.1.1",
            "255.255.255.255",
            "224.0.0.1",
            "::",
            "::1",
            "::ffff:10.21.0.1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
            "fe80::1",
            "fd00:1::7",
            "ff02::1",
        ] {
            assert!(!allows(no), "{no}");
        }
    }
}
