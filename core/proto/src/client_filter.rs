//! A packet filter inside the hub's process for packets of its clients.
//!
//! The hub's nftables rules (`hawser_linux::isolation`) enforce the same restrictions with
//! connection tracking. This filter is a second layer that no other program can remove: it also
//! protects the destinations while the rules are missing, until they are restored. It is stateless,
//! so it accepts a few packets more than the rules do:
//!
//! | packet | accepted here | accepted by the rules |
//! |---|---|---|
//! | TCP without SYN to the hub itself or `from`, or to guests | yes | known connections |
//! | UDP from a forwarded port of this client | yes | known connections |
//! | UDP to hosts in `from`, or to guests | yes | known connections |
//! | UDP to the hub itself, port in [`EPHEMERAL`] | yes | known connections |
//! | ICMP errors and echo replies to any of these | yes | known connections |
//!
//! "The hub itself" is its inner address; guests are clients that may open connections to a subnet
//! of this client. None of these packets opens a TCP connection or reaches a service that listens
//! on a well-known port.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use hawser_units::{Net, Service, is_private};
use hawser_wire::inner::protocol;
use hawser_wire::upper_layer::{self, UpperLayer};

/// Local ports that the hub's own UDP sockets get when they ask for none: answers come there.
///
/// Source: Linux, `net.ipv4.ip_local_port_range`, its default.
pub const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;

/// The port of DNS. Source: RFC 1035 section 4.2.
const DNS: u16 = 53;

/// The destinations that clients may reach, as in `[reach]` of hub.toml.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The networks of inner addresses.
    pub pools: Vec<Net>,
    /// Inner addresses of the hub, which clients may ping.
    pub own: Vec<IpAddr>,
    /// Addresses of the machine, including public and broadcast addresses.
    pub local: Vec<IpAddr>,
    /// Resolvers, whose port 53 clients may reach at any address.
    pub resolvers: Vec<IpAddr>,
    /// Set if clients may reach each other.
    pub clients: bool,
    /// Services of the hub that clients may reach.
    pub services: Vec<Service>,
    /// Private networks that clients may reach.
    pub networks: Vec<Net>,
    /// Networks that clients may not reach.
    pub denied: Vec<Net>,
    /// Protocols other than TCP, UDP and ICMP that clients may send to destinations other than
    /// clients.
    pub protocols: Vec<u8>,
    /// Networks whose hosts may open connections to clients.
    pub from: Vec<Net>,
    /// Ports of the hub that are forwarded to the client with that address.
    pub ports: Vec<(Service, IpAddr)>,
    /// Subnets behind clients, each with the clients that may open connections to it.
    pub subnets: Vec<(Net, Vec<Net>)>,
    /// Connections that some clients may open, in addition to those that all may open.
    pub grants: Vec<Grant>,
}

/// Connections that some clients may open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Addresses of clients, and of machines behind them.
    pub from: Vec<Net>,
    /// Destinations.
    pub to: Vec<Net>,
    /// Services at the destinations; all services if empty.
    pub services: Vec<Service>,
}

impl Grant {
    /// Returns whether the grant permits a packet.
    #[must_use]
    pub fn allows(&self, packet: &UpperLayer) -> bool {
        let is_service = self.services.is_empty() || self.services.iter().any(|one| is_to(packet, *one));
        is_service && holds(&self.from, packet.source) && holds(&self.to, packet.destination)
    }

    fn allows_answer(&self, packet: &UpperLayer) -> bool {
        is_answer(packet) && holds(&self.to, packet.source) && holds(&self.from, packet.destination)
    }
}

/// Reason why a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The headers cannot be read, or hide what they are.
    Headers,
    /// The destination is the hub, and no service that clients may use.
    Hub,
    /// The destination is another client, or a subnet behind one.
    Client,
    /// Neither TCP, UDP, ICMP nor a protocol that is allowed.
    Protocol,
    /// The destination is in a private network, or in one that is denied.
    Destination,
}

impl Policy {
    /// Decides whether a packet of a client passes.
    ///
    /// Cost: O(rules); a caller may keep the answer for packets with an equal [`UpperLayer`].
    ///
    /// # Errors
    /// [`Refusal`]: the packet must be dropped.
    pub fn check(&self, packet: &UpperLayer) -> Result<(), Refusal> {
        let to = packet.destination;
        if self.own.contains(&to) || self.local.contains(&to) {
            return or(self.reaches_hub(packet), Refusal::Hub);
        }
        if let Some(is_reached) = self.reaches_client(packet) {
            return or(is_reached, Refusal::Client);
        }
        if !self.takes_protocol(packet.protocol) {
            return Err(Refusal::Protocol);
        }
        or(self.reaches_outside(packet), Refusal::Destination)
    }

    /// Decides whether the hub may open a connection for a client, by the packet that would open
    /// it. The hub's own services, other clients and subnets are for packets alone.
    ///
    /// # Errors
    /// [`Refusal`]: the hub must not open it.
    pub fn check_stream(&self, packet: &UpperLayer) -> Result<(), Refusal> {
        let to = packet.destination;
        if self.own.contains(&to) || self.local.contains(&to) {
            return Err(Refusal::Hub);
        }
        if self.reaches_client(packet).is_some() {
            return Err(Refusal::Client);
        }
        self.check(packet)
    }

    fn reaches_hub(&self, packet: &UpperLayer) -> bool {
        let is_service = |service: &Service| is_to(packet, *service);
        let is_ping = matches!(
            (packet.protocol, packet.icmp_type),
            (protocol::ICMP, Some(ECHO_REQUEST)) | (protocol::ICMPV6, Some(ECHO_REQUEST6))
        );
        let is_answer = match packet.protocol {
            protocol::UDP => packet.ports.is_none_or(|(_, to)| EPHEMERAL.contains(&to)),
            _ => is_answer(packet),
        };
        (is_answer || is_ping) && self.own.contains(&packet.destination)
            || self.asks_resolver(packet)
            || self.services.iter().any(is_service)
    }

    /// `None` if the packet is for no client.
    fn reaches_client(&self, packet: &UpperLayer) -> Option<bool> {
        let UpperLayer {
            source, destination, ..
        } = packet;
        let is_behind = self.subnets.iter().any(|(net, _)| net.contains(*destination));
        if !is_behind && !holds(&self.pools, *destination) {
            return None;
        }
        let is_between = self.subnets.iter().any(|(net, guests)| {
            net.contains(*destination) && holds(guests, *source)
                || net.contains(*source) && holds(guests, *destination) && is_answer(packet)
        });
        let is_granted = |grant: &Grant| grant.allows(packet) || grant.allows_answer(packet);
        Some(self.clients || is_between || self.grants.iter().any(is_granted))
    }

    fn takes_protocol(&self, protocol: u8) -> bool {
        matches!(
            protocol,
            protocol::TCP | protocol::UDP | protocol::ICMP | protocol::ICMPV6
        ) || self.protocols.contains(&protocol)
    }

    fn reaches_outside(&self, packet: &UpperLayer) -> bool {
        let to = packet.destination;
        let is_in = |nets: &[Net]| nets.iter().any(|net| net.contains(to));
        if self.answers_forwarded_port(packet) || is_in(&self.from) && is_answer(packet) {
            return true;
        }
        let is_granted = || self.grants.iter().any(|grant| grant.allows(packet));
        let is_named = is_in(&self.networks) || is_granted() || self.asks_resolver(packet);
        !is_in(&self.denied) && (is_named || !is_private(to))
    }

    fn asks_resolver(&self, packet: &UpperLayer) -> bool {
        let is_dns = is_to(packet, Service::Tcp(DNS)) || is_to(packet, Service::Udp(DNS));
        is_dns && self.resolvers.contains(&packet.destination)
    }

    /// Returns whether a packet answers a connection to a port that the hub forwards to its sender.
    fn answers_forwarded_port(&self, packet: &UpperLayer) -> bool {
        let is_it = |(service, to): &(Service, IpAddr)| {
            *to == packet.source && is_port(packet, *service, packet.ports.map(|(from, _)| from))
        };
        !packet.opens_connection && self.ports.iter().any(is_it)
    }
}

/// ICMP. Source: RFC 792.
const ECHO_REPLY: u8 = 0;
const DESTINATION_UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;
/// ICMPv6: the errors are 1 to 4. Source: RFC 4443.
const ERRORS6: RangeInclusive<u8> = 1..=4;
const ECHO_REQUEST6: u8 = 128;
const ECHO_REPLY6: u8 = 129;

fn holds(nets: &[Net], address: IpAddr) -> bool {
    nets.iter().any(|net| net.contains(address))
}

/// Returns whether a packet can belong to a connection that its receiver has opened.
fn is_answer(packet: &UpperLayer) -> bool {
    match (packet.protocol, packet.icmp_type) {
        (protocol::TCP, _) => !packet.opens_connection,
        (protocol::UDP, _) => true,
        (protocol::ICMP, Some(kind)) => matches!(
            kind,
            ECHO_REPLY | DESTINATION_UNREACHABLE | TIME_EXCEEDED | PARAMETER_PROBLEM
        ),
        (protocol::ICMPV6, Some(kind)) => ERRORS6.contains(&kind) || kind == ECHO_REPLY6,
        // A later fragment, which is dropped without the first.
        (protocol::ICMP | protocol::ICMPV6, None) => true,
        _ => false,
    }
}

/// Returns whether a packet is for that service. Later fragments are: without the first they are
/// dropped.
fn is_to(packet: &UpperLayer, service: Service) -> bool {
    is_port(packet, service, packet.ports.map(|(_, to)| to))
}

fn is_port(packet: &UpperLayer, service: Service, port: Option<u16>) -> bool {
    let is = |wanted: u16| port.is_none_or(|port| port == wanted);
    match (packet.protocol, service) {
        (protocol::TCP | protocol::UDP, Service::All) => true,
        (protocol::TCP, Service::Tcp(wanted)) | (protocol::UDP, Service::Udp(wanted)) => is(wanted),
        _ => false,
    }
}

fn or(is_allowed: bool, refusal: Refusal) -> Result<(), Refusal> {
    is_allowed.then_some(()).ok_or(refusal)
}

/// A policy that remembers the last packet that it accepted: most packets of a batch are of one
/// flow.
#[derive(Clone, Debug)]
pub struct ClientFilter<P> {
    policy: P,
    last: Option<UpperLayer>,
}

impl<P: AsRef<Policy>> ClientFilter<P> {
    /// Creates a filter with this policy.
    #[must_use]
    pub fn new(policy: P) -> Self {
        Self { policy, last: None }
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Decides whether an inner packet of a client passes; at least its headers must be given.
    ///
    /// # Errors
    /// [`Refusal`]: the packet must be dropped.
    pub fn check(&mut self, packet: &[u8]) -> Result<(), Refusal> {
        let packet = upper_layer::parse(packet).ok_or(Refusal::Headers)?;
        if self.last == Some(packet) {
            return Ok(());
        }
        self.policy.as_ref().check(&packet)?;
        self.last = Some(packet);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Net {
        text.parse().unwrap()
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn policy() -> Policy {
        Policy {
            pools: vec![net("100.96.0.0/16"), net("fd00:1::/64")],
            own: vec![address("100.96.0.1"), address("fd00:1::1")],
            local: [
                "203.0.113.1",
                "10.0.0.1",
                "127.0.0.1",
                "2001:db8::1",
                "203.0.113.255",
            ]
            .map(address)
            .to_vec(),
            resolvers: vec![address("10.0.0.53"), address("100.96.0.1")],
            ..Policy::default()
        }
    }

    const CLIENT: &str = "100.96.0.2";

    fn packet(protocol: u8, to: &str, ports: (u16, u16)) -> UpperLayer {
        let is_v6 = to.contains(':');
        UpperLayer {
            source: address(if is_v6 { "fd00:1::2" } else { CLIENT }),
            destination: address(to),
            protocol,
            ports: Some(ports),
            opens_connection: protocol == protocol::TCP,
            icmp_type: None,
        }
    }

    fn tcp(to: &str, port: u16) -> UpperLayer {
        packet(protocol::TCP, to, (40_000, port))
    }

    fn udp(to: &str, port: u16) -> UpperLayer {
        packet(protocol::UDP, to, (40_000, port))
    }

    fn icmp(to: &str, kind: u8) -> UpperLayer {
        let protocol = if to.contains(':') {
            protocol::ICMPV6
        } else {
            protocol::ICMP
        };
        UpperLayer {
            ports: None,
            icmp_type: Some(kind),
            ..packet(protocol, to, (0, 0))
        }
    }

    /// As it follows in a connection that exists.
    fn later(opening: UpperLayer) -> UpperLayer {
        UpperLayer {
            opens_connection: false,
            ..opening
        }
    }

    #[test]
    fn without_exceptions_a_client_reaches_public_addresses_resolvers_and_a_ping_of_the_hub() {
        let policy = policy();
        for accepted in [
            tcp("198.51.100.7", 443),
            udp("2001:db8:7::7", 443),
            icmp("198.51.100.7", ECHO_REQUEST),
            udp("10.0.0.53", 53),
            tcp("10.0.0.53", 53),
            udp("100.96.0.1", 53),
            icmp("100.96.0.1", ECHO_REQUEST),
            icmp("fd00:1::1", ECHO_REQUEST6),
            later(tcp("100.96.0.1", 22)),
            udp("100.96.0.1", 40_000),
        ] {
            assert_eq!(policy.check(&accepted), Ok(()), "{accepted:?}");
        }
    }

    #[test]
    fn everything_else_is_refused_with_its_reason() {
        let policy = policy();
        let refused = [
            (tcp("100.96.0.1", 22), Refusal::Hub),
            (udp("100.96.0.1", 123), Refusal::Hub),
            // By the hub's other addresses too.
            (tcp("203.0.113.1", 22), Refusal::Hub),
            (tcp("2001:db8::1", 22), Refusal::Hub),
            (tcp("127.0.0.1", 22), Refusal::Hub),
            (udp("203.0.113.255", 9), Refusal::Hub),
            (udp("203.0.113.1", 53), Refusal::Hub),
            (udp("203.0.113.1", 51_820), Refusal::Hub),
            (later(tcp("203.0.113.1", 22)), Refusal::Hub),
            (icmp("203.0.113.1", ECHO_REQUEST), Refusal::Hub),
            (packet(47, "203.0.113.1", (0, 0)), Refusal::Hub),
            (tcp("100.96.0.3", 22), Refusal::Client),
            (later(tcp("100.96.0.3", 22)), Refusal::Client),
            (icmp("fd00:1::3", ECHO_REQUEST6), Refusal::Client),
            (packet(47, "198.51.100.7", (0, 0)), Refusal::Protocol),
            (tcp("10.0.0.53", 22), Refusal::Destination),
            (tcp("192.168.1.1", 80), Refusal::Destination),
            (later(tcp("192.168.1.1", 80)), Refusal::Destination),
            (tcp("169.254.169.254", 80), Refusal::Destination),
            (udp("224.0.0.251", 5353), Refusal::Destination),
            (tcp("::ffff:10.0.0.1", 22), Refusal::Destination),
            (tcp("64:ff9b::a00:1", 22), Refusal::Destination),
            (tcp("::1", 22), Refusal::Destination),
            (tcp("0.0.0.0", 22), Refusal::Destination),
            (udp("255.255.255.255", 67), Refusal::Destination),
        ];
        for (packet, why) in refused {
            assert_eq!(policy.check(&packet), Err(why), "{packet:?}");
        }
    }

    #[test]
    fn what_is_named_is_reached_and_what_is_denied_is_not() {
        let policy = Policy {
            clients: true,
            services: vec![Service::Tcp(22)],
            networks: vec![net("10.1.0.0/16")],
            denied: vec![net("10.1.9.0/24"), net("198.51.100.0/24")],
            protocols: vec![50],
            ..policy()
        };
        for accepted in [
            tcp("100.96.0.1", 22),
            tcp("203.0.113.1", 22),
            tcp("100.96.0.3", 80),
            tcp("10.1.2.3", 80),
            packet(50, "8.8.8.8", (0, 0)),
        ] {
            assert_eq!(policy.check(&accepted), Ok(()), "{accepted:?}");
        }
        for (refused, why) in [
            (udp("100.96.0.1", 22), Refusal::Hub),
            (tcp("10.1.9.3", 80), Refusal::Destination),
            (tcp("198.51.100.7", 443), Refusal::Destination),
            (packet(47, "8.8.8.8", (0, 0)), Refusal::Protocol),
        ] {
            assert_eq!(policy.check(&refused), Err(why), "{refused:?}");
        }
    }

    #[test]
    fn who_may_open_connections_to_a_client_gets_its_answers_and_no_connection_of_it() {
        let policy = Policy {
            from: vec![net("10.2.0.0/16")],
            ports: vec![
                (Service::Tcp(8080), address(CLIENT)),
                (Service::Udp(5060), address(CLIENT)),
                (Service::Tcp(9090), address("100.96.0.9")),
            ],
            denied: vec![net("198.51.100.0/24")],
            ..policy()
        };
        let from_port = |kind, to, port| later(packet(kind, to, (port, 50_000)));
        for accepted in [
            later(tcp("10.2.0.1", 50_000)),
            udp("10.2.0.1", 50_000),
            icmp("10.2.0.1", DESTINATION_UNREACHABLE),
            from_port(protocol::TCP, "192.168.1.5", 8080),
            from_port(protocol::UDP, "198.51.100.5", 5060),
        ] {
            assert_eq!(policy.check(&accepted), Ok(()), "{accepted:?}");
        }
        for refused in [
            tcp("10.2.0.1", 22),
            icmp("10.2.0.1", ECHO_REQUEST),
            // Another client's port, another port, and a new connection from the right one.
            from_port(protocol::TCP, "192.168.1.5", 9090),
            from_port(protocol::TCP, "192.168.1.5", 8081),
            packet(protocol::TCP, "192.168.1.5", (8080, 22)),
        ] {
            assert_eq!(policy.check(&refused), Err(Refusal::Destination), "{refused:?}");
        }
    }

    #[test]
    fn a_subnet_is_opened_to_its_guests_and_answers_them() {
        let policy = Policy {
            subnets: vec![(net("192.168.50.0/24"), vec![net("100.96.0.2/32")])],
            ..policy()
        };
        assert_eq!(policy.check(&tcp("192.168.50.7", 80)), Ok(()));
        let stranger = UpperLayer {
            source: address("100.96.0.3"),
            ..tcp("192.168.50.7", 80)
        };
        assert_eq!(policy.check(&stranger), Err(Refusal::Client));
        let back = UpperLayer {
            source: address("192.168.50.7"),
            ..later(tcp(CLIENT, 40_000))
        };
        assert_eq!(policy.check(&back), Ok(()));
        let opening = UpperLayer {
            opens_connection: true,
            ..back
        };
        assert_eq!(policy.check(&opening), Err(Refusal::Client));
    }

    #[test]
    fn the_memory_of_an_accepted_flow_lets_no_other_packet_pass() {
        let mut packet = vec![0; 40];
        packet[0] = 0x45;
        packet[9] = protocol::TCP;
        packet[12..16].copy_from_slice(&[100, 96, 0, 2]);
        packet[16..20].copy_from_slice(&[100, 96, 0, 1]);
        packet[20..24].copy_from_slice(&[0x9c, 0x40, 0, 22]);
        (packet[32], packet[33]) = (0x50, hawser_wire::inner::tcp_flag::ACK);
        let shared = std::sync::Arc::new(policy());
        let mut filter = ClientFilter::new(shared);
        assert_eq!(filter.check(&packet), Ok(()));
        assert_eq!(filter.check(&packet), Ok(()));
        packet[33] = hawser_wire::inner::tcp_flag::SYN;
        assert_eq!(filter.check(&packet), Err(Refusal::Hub));
        assert_eq!(filter.check(&packet[..20]), Err(Refusal::Headers));
    }

    #[test]
    fn a_grant_is_for_its_clients_destinations_and_services() {
        let grant = |to: &str, services: Vec<Service>| Grant {
            from: vec![net("100.96.0.2/32")],
            to: vec![net(to)],
            services,
        };
        let policy = Policy {
            grants: vec![
                grant("10.7.0.0/24", vec![Service::Tcp(443)]),
                grant("100.96.0.9/32", Vec::new()),
            ],
            denied: vec![net("10.7.0.128/25")],
            ..policy()
        };
        let of = |source: &str, packet: UpperLayer| UpperLayer {
            source: address(source),
            ..packet
        };
        assert_eq!(policy.check(&tcp("10.7.0.1", 443)), Ok(()));
        assert_eq!(policy.check_stream(&tcp("10.7.0.1", 443)), Ok(()));
        assert_eq!(policy.check(&tcp("10.7.0.1", 22)), Err(Refusal::Destination));
        assert_eq!(policy.check(&udp("10.7.0.1", 443)), Err(Refusal::Destination));
        assert_eq!(
            policy.check(&tcp("10.7.0.129", 443)),
            Err(Refusal::Destination),
            "denied"
        );
        let other = of("100.96.0.3", tcp("10.7.0.1", 443));
        assert_eq!(policy.check(&other), Err(Refusal::Destination), "another client");
        assert_eq!(policy.check(&udp("100.96.0.9", 5060)), Ok(()));
        assert_eq!(
            policy.check(&of("100.96.0.3", udp("100.96.0.9", 5060))),
            Err(Refusal::Client)
        );
        assert_eq!(
            policy.check(&of("100.96.0.9", later(tcp(CLIENT, 40_000)))),
            Ok(()),
            "an answer"
        );
        assert_eq!(
            policy.check(&of("100.96.0.9", tcp(CLIENT, 80))),
            Err(Refusal::Client)
        );
    }
}
