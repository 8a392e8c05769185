//! Connections that a hub opens for its clients.
//!
//! A request is accepted if a packet that opens the same connection would be. Connections to the
//! hub itself, to other clients and to subnets behind them are refused as streams and continue as
//! packets, whose source the kernel's rules can match. So a stream reaches nothing that a packet
//! does not reach.

use std::io::{self, ErrorKind};
use std::net::IpAddr;

use hawser_proto::client_filter::Policy;
use hawser_wire::inner::protocol;
use hawser_wire::stream::{Open, Outcome};
use hawser_wire::upper_layer::UpperLayer;

/// Decides whether a client with some addresses may have a connection as a stream.
pub(crate) fn is_allowed(open: &Open, addresses: &[IpAddr], policy: Option<&Policy>) -> bool {
    let (source, destination) = (open.source, open.destination);
    let packet = UpperLayer {
        source: source.ip(),
        destination: destination.ip(),
        protocol: protocol::TCP,
        ports: Some((source.port(), destination.port())),
        opens_connection: true,
        icmp_type: None,
    };
    addresses.contains(&source.ip())
        && source.is_ipv4() == destination.is_ipv4()
        && destination.ip() == destination.ip().to_canonical()
        && destination.port() != 0
        && policy.is_some_and(|policy| policy.check_stream(&packet).is_ok())
}

/// Returns the outcome of a failed connection.
pub(crate) fn outcome_of(error: &io::Error) -> Outcome {
    let mut known = OUTCOMES.iter();
    let found = known.find(|(kind, _)| *kind == error.kind());
    // No descriptor or port is left.
    found.map_or(Outcome::Exhausted, |(_, outcome)| *outcome)
}

/// Outcomes by the error of `connect`.
///
/// Source: connect(2), tcp(7).
const OUTCOMES: [(ErrorKind, Outcome); 7] = [
    (ErrorKind::ConnectionRefused, Outcome::Refused),
    (ErrorKind::ConnectionReset, Outcome::Refused),
    (ErrorKind::HostUnreachable, Outcome::Unreachable),
    (ErrorKind::NetworkUnreachable, Outcome::Unreachable),
    (ErrorKind::AddrNotAvailable, Outcome::Unreachable),
    (ErrorKind::TimedOut, Outcome::TimedOut),
    (ErrorKind::PermissionDenied, Outcome::Forbidden),
];

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_wire::stream::StreamId;

    fn open(source: &str, destination: &str) -> Open {
        Open {
            id: StreamId::default(),
            source: source.parse().expect("an address"),
            destination: destination.parse().expect("an address"),
            dscp: 0,
            credit: 0,
        }
    }

    #[test]
    fn a_stream_reaches_nothing_that_a_packet_does_not() {
        let net = |text: &str| text.parse().expect("a network");
        let address = |text: &str| -> IpAddr { text.parse().expect("an address") };
        let policy = Policy {
            pools: vec![net("100.96.0.0/16"), net("fd00:1::/64")],
            own: vec![address("100.96.0.1"), address("fd00:1::1")],
            local: ["203.0.113.1", "10.0.0.1", "203.0.113.255"].map(address).to_vec(),
            resolvers: vec![address("10.0.0.53"), address("100.96.0.1")],
            clients: true,
            services: vec![hawser_units::Service::All],
            networks: vec![net("10.1.0.0/16")],
            denied: vec![net("10.1.9.0/24"), net("198.51.100.0/24")],
            subnets: vec![(net("10.1.7.0/24"), vec![net("0.0.0.0/0")])],
            ports: vec![(hawser_units::Service::Tcp(8080), address("100.96.0.2"))],
            ..Policy::default()
        };
        let addresses = ["100.96.0.2", "fd00:1::2"].map(address);
        let is_allowed = |source: &str, to: &str| is_allowed(&open(source, to), &addresses, Some(&policy));
        let v4 = "100.96.0.2:40000";
        for reached in ["8.8.8.8:443", "10.1.2.3:80", "10.0.0.53:53"] {
            assert!(is_allowed(v4, reached), "{reached}");
        }
        assert!(is_allowed("[fd00:1::2]:40000", "[2001:db8:7::7]:443"));
        for unreached in [
            // The hub itself, even if packets may reach it; clients, and subnets behind them.
            "100.96.0.1:22",
            "100.96.0.1:53",
            "203.0.113.1:22",
            "203.0.113.1:8080",
            "203.0.113.255:9",
            "100.96.0.3:80",
            "10.1.7.3:80",
            // Destinations that no client can reach.
            "0.0.0.0:22",
            "127.0.0.1:22",
            "255.255.255.255:67",
            "224.0.0.1:80",
            "169.254.169.254:80",
            "192.168.1.1:80",
            "10.0.0.53:22",
            "10.1.9.3:80",
            "198.51.100.7:443",
            "8.8.8.8:0",
        ] {
            assert!(!is_allowed(v4, unreached), "{unreached}");
        }
        for unreached in [
            "[::]:22",
            "[::1]:22",
            "[::ffff:127.0.0.1]:22",
            "[::ffff:8.8.8.8]:443",
            "[64:ff9b::7f00:1]:22",
            "[fe80::1]:80",
            "[fd00:1::1]:22",
            "[ff02::1]:80",
        ] {
            assert!(!is_allowed("[fd00:1::2]:40000", unreached), "{unreached}");
        }
        assert!(
            !is_allowed("100.96.0.3:40000", "8.8.8.8:443"),
            "in another's name"
        );
        assert!(!is_allowed(v4, "[2001:db8:7::7]:443"), "another family");
        assert!(!super::is_allowed(&open(v4, "8.8.8.8:443"), &addresses, None));
    }
}
