//! nftables rules for connections from the tunnel to a client and through it.
//!
//! The hub, and all hosts whose packets it forwards, are at the other end of the tunnel. Without
//! these rules they could reach each program of the machine that listens on all addresses, and, if
//! forwarding is enabled (as by Docker and libvirt), its local networks.
//!
//! ```text
//!   tunnel --> the machine itself      answers, an echo request, and services that are named
//!   tunnel --> a network behind it     answers, ports that are forwarded by name, subnets that are
//!                                      named
//! ```
//!
//! The table only drops packets: those dropped by another table stay dropped. ICMP errors about
//! connections initiated by the machine are `related`, and pass.

use std::fmt::Write as _;
use std::net::IpAddr;

use hawser_units::{Net, Service};

use crate::isolation::service_match;
use crate::nft::family;

/// The name of the table.
pub const INBOUND_TABLE: &str = "hawser_inbound";

/// Connections from the tunnel that a client accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inbound {
    /// The interface of the tunnel.
    pub tunnel: String,
    /// Services of this machine.
    pub services: Vec<Service>,
    /// Ports that are forwarded to machines behind this one.
    pub forwarded: Vec<Service>,
    /// Subnets behind this machine.
    pub subnets: Vec<Net>,
    /// Alias addresses, the sources of this machine's streams at the listener. Only the data plane
    /// sends from them: it drops packets from the tunnel with such a source.
    pub aliases: Vec<IpAddr>,
}

impl Inbound {
    /// Returns the text between the braces of the table.
    ///
    /// The priority is after that of other filters, so these rules process the packets that others
    /// have accepted.
    #[must_use]
    pub fn body(&self) -> String {
        let tunnel = &self.tunnel;
        let mut text = format!(
            "chain input {{
  type filter hook input priority filter + 10; policy accept;
  iifname != \"{tunnel}\" accept
  ct state established,related accept
  icmp type echo-request accept
  icmpv6 type echo-request accept
"
        );
        for alias in &self.aliases {
            let ip = family(*alias);
            let _ = writeln!(text, "  meta l4proto tcp {ip} saddr {alias} accept");
        }
        for service in &self.services {
            let _ = writeln!(text, "  {} accept", service_match(*service));
        }
        let _ = write!(
            text,
            "  drop
}}
chain forward {{
  type filter hook forward priority filter + 10; policy accept;
  iifname != \"{tunnel}\" accept
  ct state established,related accept
"
        );
        for service in &self.forwarded {
            // Matches the port before translation, because other programs, such as Docker,
            // translate too.
            let _ = writeln!(text, "  ct status dnat {} accept", original(*service));
        }
        for net in &self.subnets {
            let Net { address, prefix } = net;
            let _ = writeln!(text, "  {} daddr {address}/{prefix} accept", family(*address));
        }
        text + "  drop\n}"
    }
}

/// Matches connections to a service by their destination before any translation.
fn original(service: Service) -> String {
    match service {
        Service::All => "meta l4proto { tcp, udp }".to_owned(),
        Service::Tcp(port) => format!("meta l4proto tcp ct original proto-dst {port}"),
        Service::Udp(port) => format!("meta l4proto udp ct original proto-dst {port}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
    use std::time::Duration;

    use super::*;
    use crate::netns::Namespace;
    use crate::system::nft_tables::replace_table;

    fn closed() -> Inbound {
        Inbound {
            tunnel: "tun".to_owned(),
            services: Vec::new(),
            forwarded: Vec::new(),
            subnets: Vec::new(),
            aliases: Vec::new(),
        }
    }

    #[test]
    fn nft_takes_every_table() {
        crate::direct::tests::nft_takes(INBOUND_TABLE, &closed().body());
        let open = Inbound {
            services: vec![Service::Tcp(22), Service::Udp(5_000), Service::All],
            aliases: ["192.0.0.8", "100::8"]
                .map(|alias| alias.parse().unwrap())
                .to_vec(),
            forwarded: vec![Service::Tcp(8_080), Service::Udp(5_060), Service::All],
            subnets: vec![
                Net::new("192.168.50.0".parse::<IpAddr>().unwrap(), 24),
                Net::new("fd00:50::".parse::<IpAddr>().unwrap(), 64),
            ],
            ..closed()
        };
        crate::direct::tests::nft_takes(INBOUND_TABLE, &open.body());
    }

    /// A hub, a client that forwards as if configured by Docker, and a machine in the client's LAN.
    struct Line {
        hub: Namespace,
        client: Namespace,
        machine: Namespace,
    }

    impl Line {
        fn new() -> Option<Self> {
            let made = || -> std::io::Result<Self> {
                Ok(Self {
                    hub: Namespace::new()?,
                    client: Namespace::new()?,
                    machine: Namespace::new()?,
                })
            };
            let line = made()
                .inspect_err(|error| hawser_testing::skip(format!("no namespaces: {error}")))
                .ok()?;
            let (hub, machine) = (line.hub.path(), line.machine.path());
            let client = format!(
                "ip link set lo up
                 ip link add name tun type veth peer name tun netns {hub}
                 ip link add name lan type veth peer name lan netns {machine}
                 ip addr add 100.96.0.2/24 dev tun; ip link set tun up
                 ip addr add 192.168.50.1/24 dev lan; ip link set lan up
                 echo 1 > /proc/sys/net/ipv4/ip_forward"
            );
            for (side, script) in [
                (&line.client, client.as_str()),
                (
                    &line.hub,
                    "ip addr add 100.96.0.1/24 dev tun; ip link set tun up
                     ip route add 192.168.50.0/24 via 100.96.0.2",
                ),
                (
                    &line.machine,
                    "ip addr add 192.168.50.7/24 dev lan; ip link set lan up
                     ip route add default via 192.168.50.1",
                ),
            ] {
                let mut shell = side.command("sh");
                assert!(shell.args(["-ec", script]).status().unwrap().success());
            }
            Some(line)
        }

        fn set(&self, inbound: &Inbound) {
            let body = inbound.body();
            let set = self
                .client
                .run(|| replace_table(INBOUND_TABLE, &body).map_err(std::io::Error::other));
            set.unwrap();
        }

        /// Returns whether the hub reaches a TCP port with a listener. A refusal also means that
        /// the machine was reached.
        fn reaches(&self, to: &str) -> bool {
            let to: SocketAddr = to.parse().unwrap();
            let tried = self.hub.run(|| TcpStream::connect_timeout(&to, SOON));
            tried.is_ok_and(|mut stream| stream.read(&mut [0; 1]).is_ok())
        }
    }

    /// Packets over a virtual cable take less than 1 ms; dropped ones never arrive.
    const SOON: Duration = Duration::from_millis(700);

    /// Runs a server that greets all clients.
    fn greet(side: &Namespace, at: &str) {
        let listener = side.run(|| TcpListener::bind(at)).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.write_all(b"x");
            }
        });
    }

    #[test]
    fn the_hub_reaches_neither_services_nor_networks_that_nobody_named() {
        let Some(line) = Line::new() else { return };
        greet(&line.client, "0.0.0.0:22");
        greet(&line.machine, "0.0.0.0:80");
        let (service, behind) = ("100.96.0.2:22", "192.168.50.7:80");
        assert!(line.reaches(service) && line.reaches(behind), "the cables work");
        line.set(&closed());
        assert!(!line.reaches(service) && !line.reaches(behind));
        // It is still reachable from other networks, and answers normally.
        let near = line.machine.run(|| TcpStream::connect(("192.168.50.1", 22)));
        assert!(near.is_ok());
        let mut ping = line.hub.command("ping");
        ping.args(["-c", "1", "-W", "2", "100.96.0.2"]);
        assert!(ping.output().unwrap().status.success());
        // Connections that it initiates work, also those for other machines.
        greet(&line.hub, "0.0.0.0:443");
        for side in [&line.client, &line.machine] {
            let mut mine = side.run(|| TcpStream::connect("100.96.0.1:443"));
            let read = mine.as_mut().map(|stream| stream.read(&mut [0; 1]));
            assert!(matches!(read, Ok(Ok(1))), "{read:?}");
        }
        // Only configured services are reachable.
        line.set(&Inbound {
            services: vec![Service::Tcp(22)],
            ..closed()
        });
        assert!(line.reaches(service) && !line.reaches(behind));
        line.set(&Inbound {
            subnets: vec![Net::new("192.168.50.0".parse::<IpAddr>().unwrap(), 24)],
            ..closed()
        });
        assert!(!line.reaches(service) && line.reaches(behind));
    }

    /// Docker translates connections to published ports from any source.
    #[test]
    fn translations_of_other_programs_open_nothing() {
        let Some(line) = Line::new() else { return };
        greet(&line.machine, "0.0.0.0:80");
        let nat = "add table ip docker; \
                   add chain ip docker pre { type nat hook prerouting priority -100; }; \
                   add rule ip docker pre tcp dport { 8080, 9090 } dnat to 192.168.50.7:80";
        assert!(line.client.command("nft").arg(nat).status().unwrap().success());
        assert!(line.reaches("100.96.0.2:8080") && line.reaches("100.96.0.2:9090"));
        line.set(&Inbound {
            forwarded: vec![Service::Tcp(9_090)],
            ..closed()
        });
        assert!(!line.reaches("100.96.0.2:8080"));
        assert!(
            line.reaches("100.96.0.2:9090"),
            "a port that was forwarded by name"
        );
    }

    /// An ICMP error about an own packet is accepted, and discloses nothing to others.
    #[test]
    fn errors_of_own_packets_come_back() {
        let Some(line) = Line::new() else { return };
        line.set(&closed());
        let socket = line.client.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
        socket.connect("100.96.0.1:9").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.send(b"x").unwrap();
        let answer = socket.recv(&mut [0; 1]).unwrap_err();
        assert_eq!(answer.kind(), ErrorKind::ConnectionRefused);
        let stranger = line.hub.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
        stranger.connect("100.96.0.2:9").unwrap();
        stranger.set_read_timeout(Some(SOON)).unwrap();
        stranger.send(b"x").unwrap();
        let silence = stranger.recv(&mut [0; 1]).unwrap_err();
        assert_ne!(silence.kind(), ErrorKind::ConnectionRefused);
    }
}
