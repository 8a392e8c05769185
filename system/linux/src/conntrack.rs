//! Connection tracking table: lists flows by mark, and removes the entries of flows whose network
//! is gone.
//!
//! Scope: connections whose mark has given bits. Limitations: only addresses, ports, state, mark
//! and counters of a connection are read.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};

use netlink_sys::{Socket, SocketAddr as NetlinkAddr};

use crate::netlink_bytes::{DONE, ERROR, NESTED, attribute, find, framed, messages, outcome};
use crate::sockets;

/// Connection in the direction of its initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The protocol's number: 6 for TCP.
    pub protocol: u8,
    /// Address of the initiator. For ICMP the port is the identifier.
    pub from: SocketAddr,
    /// Address of the other end.
    pub to: SocketAddr,
    /// Mark of the connection.
    pub mark: u32,
    /// Source and destination of reply packets: the addresses on the wire after translation.
    pub answers: (SocketAddr, SocketAddr),
    /// Set if both sides have sent packets, so that the kernel does not drop the entry early when
    /// the table is full.
    pub is_assured: bool,
    /// Counters in the direction of the initiator and back; zero unless the kernel counts
    /// (`net.netfilter.nf_conntrack_acct`).
    pub counted: [Counted; 2],
    /// The tuple as received from the kernel, to identify the connection.
    pub(crate) tuple: Vec<u8>,
    /// The zone of the tuple, if it is not the default one.
    pub(crate) zone: Option<Vec<u8>>,
}

/// Counters of one direction of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Packets.
    pub packets: u64,
    /// Bytes, with the headers of IP.
    pub bytes: u64,
}

impl Connection {
    /// Returns whether it is a TCP connection that both sides have acknowledged.
    #[must_use]
    pub fn is_established_tcp(&self) -> bool {
        self.protocol == TCP && self.is_assured
    }

    /// Returns the zone of its original direction, if it is not the default one.
    #[must_use]
    pub fn zone(&self) -> Option<u16> {
        let bytes = self.zone.as_ref()?.first_chunk()?;
        Some(u16::from_be_bytes(*bytes))
    }
}

/// Returns the connections whose mark has the value `mark` under `mask`.
///
/// # Errors
/// Privileges (`CAP_NET_ADMIN`) are missing, or the kernel has no connection tracking.
pub fn list(mark: u32, mask: u32) -> io::Result<Vec<Connection>> {
    let socket = open()?;
    send(
        &socket,
        message(GET, libc::NLM_F_DUMP, libc::AF_UNSPEC, &by_mark(mark, mask)),
    )?;
    let mut found = Vec::new();
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        for (kind, body) in messages(&bytes) {
            match kind {
                DONE => return Ok(found),
                ERROR => return outcome(body).map(|()| found),
                // Kernels before 4.20 do not filter.
                _ => found.extend(connection(body).filter(|c| c.mark & mask == mark)),
            }
        }
    }
}

/// Removes one entry; not an error if it no longer exists.
///
/// # Errors
/// As for [`list`].
pub fn forget(connection: &Connection) -> io::Result<()> {
    let mut attributes = attribute(TUPLE_ORIGINAL | NESTED, &connection.tuple);
    if let Some(zone) = &connection.zone {
        attributes.extend(attribute(ZONE, zone));
    }
    match request(DELETE, family(connection.from.ip()), &attributes) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

/// Removes all entries from and to these addresses, before and after translation. Returns their
/// count.
///
/// Cost: reads the whole table; some 0.1 s for 100,000 connections.
///
/// # Errors
/// As for [`list`].
pub fn forget_addresses(addresses: &BTreeSet<IpAddr>) -> io::Result<usize> {
    let of_them = |connection: &Connection| {
        let (answers_from, answers_to) = connection.answers;
        let ends = [connection.from, connection.to, answers_from, answers_to];
        ends.iter().any(|end| addresses.contains(&end.ip()))
    };
    let all = list(0, 0)?;
    let mut count = 0;
    for connection in all.iter().filter(|connection| of_them(connection)) {
        forget(connection)?;
        count += 1;
    }
    Ok(count)
}

/// Destroys the TCP socket of this machine that initiated the connection: its program gets the
/// error `ECONNABORTED` at once.
///
/// Returns whether the socket existed. Kernels without `CONFIG_INET_DIAG_DESTROY` refuse; the
/// program is then informed by a reset or a timeout.
///
/// # Errors
/// Privileges are missing, or the kernel does not support it.
pub fn abort_socket(connection: &Connection) -> io::Result<bool> {
    sockets::abort(connection.from, connection.to)
}

fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETFILTER)?;
    socket.bind_auto()?;
    Ok(socket)
}

fn request(kind: u16, family: i32, attributes: &[u8]) -> io::Result<()> {
    let socket = open()?;
    send(&socket, message(kind, libc::NLM_F_ACK, family, attributes))?;
    acknowledged(&socket)
}

fn send(socket: &Socket, bytes: Vec<u8>) -> io::Result<()> {
    socket.send_to(&bytes, &NetlinkAddr::new(0, 0), 0).map(drop)
}

fn acknowledged(socket: &Socket) -> io::Result<()> {
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        for (kind, body) in messages(&bytes) {
            if kind == ERROR {
                return outcome(body);
            }
        }
    }
}

fn by_mark(mark: u32, mask: u32) -> Vec<u8> {
    let mut attributes = attribute(MARK, &mark.to_be_bytes());
    attributes.extend(attribute(MARK_MASK, &mask.to_be_bytes()));
    attributes
}

/// Returns a ctnetlink message: netlink header, netfilter header, attributes.
fn message(kind: u16, flags: i32, family: i32, attributes: &[u8]) -> Vec<u8> {
    let mut body = vec![family as u8, 0, 0, 0];
    body.extend(attributes);
    framed(CTNETLINK << 8 | kind, flags, &body)
}

fn connection(body: &[u8]) -> Option<Connection> {
    let body = body.get(4..)?;
    let tuple = find(body, TUPLE_ORIGINAL)?;
    let ports = find(tuple, TUPLE_PROTOCOL)?;
    let (from, to) = ends(tuple)?;
    let number = |kind| {
        find(body, kind)
            .and_then(|value| value.first_chunk())
            .map(|n| u32::from_be_bytes(*n))
    };
    Some(Connection {
        protocol: *find(ports, PROTOCOL_NUMBER)?.first()?,
        from,
        to,
        answers: find(body, TUPLE_REPLY).and_then(ends).unwrap_or((to, from)),
        mark: number(MARK).unwrap_or(0),
        is_assured: number(STATUS).unwrap_or(0) & ASSURED != 0,
        counted: [COUNTERS_ORIGINAL, COUNTERS_REPLY]
            .map(|kind| find(body, kind).map(counters).unwrap_or_default()),
        tuple: tuple.to_vec(),
        zone: find(tuple, TUPLE_ZONE)
            .or_else(|| find(body, ZONE))
            .map(ToOwned::to_owned),
    })
}

fn counters(attribute: &[u8]) -> Counted {
    let number = |kind| {
        find(attribute, kind)
            .and_then(|value| value.first_chunk())
            .map_or(0, |n| u64::from_be_bytes(*n))
    };
    Counted {
        packets: number(COUNTED_PACKETS),
        bytes: number(COUNTED_BYTES),
    }
}

/// Returns source and destination of a tuple.
fn ends(tuple: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let (addresses, ports) = (find(tuple, TUPLE_IP)?, find(tuple, TUPLE_PROTOCOL)?);
    let port = |kind| {
        find(ports, kind)
            .and_then(|value| value.first_chunk())
            .map(|p| u16::from_be_bytes(*p))
    };
    let identifier = port(ICMP_ID).or_else(|| port(ICMPV6_ID)).unwrap_or(0);
    Some((
        SocketAddr::new(address(addresses, 1)?, port(PORT_FROM).unwrap_or(identifier)),
        SocketAddr::new(address(addresses, 2)?, port(PORT_TO).unwrap_or(0)),
    ))
}

/// Returns the source (1) or destination (2) of a tuple; the attributes of IPv6 addresses follow
/// those of IPv4.
fn address(addresses: &[u8], which: u16) -> Option<IpAddr> {
    let v4 = find(addresses, which).and_then(|value| value.first_chunk::<4>());
    let v6 = || find(addresses, which + 2).and_then(|value| value.first_chunk::<16>());
    v4.map(|bytes| IpAddr::from(*bytes))
        .or_else(|| v6().map(|bytes| IpAddr::from(*bytes)))
}

fn family(address: IpAddr) -> i32 {
    if address.is_ipv6() {
        libc::AF_INET6
    } else {
        libc::AF_INET
    }
}

/// `IPPROTO_TCP` of linux/in.h.
const TCP: u8 = 6;
// linux/netlink.h
const NETFILTER: isize = 12;
// linux/netfilter/nfnetlink.h, nfnetlink_conntrack.h, nf_conntrack_common.h
const CTNETLINK: u16 = 1;
const GET: u16 = 1;
const DELETE: u16 = 2;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const STATUS: u16 = 3;
const MARK: u16 = 8;
const COUNTERS_ORIGINAL: u16 = 9;
const COUNTERS_REPLY: u16 = 10;
const ZONE: u16 = 18;
const MARK_MASK: u16 = 21;
const COUNTED_PACKETS: u16 = 1;
const COUNTED_BYTES: u16 = 2;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const TUPLE_ZONE: u16 = 3;
const PROTOCOL_NUMBER: u16 = 1;
const PORT_FROM: u16 = 2;
const PORT_TO: u16 = 3;
const ICMP_ID: u16 = 4;
const ICMPV6_ID: u16 = 7;
const ASSURED: u32 = 1 << 2;

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::netns::Namespace;

    #[test]
    fn forgets_the_connections_of_an_address_and_no_others() {
        let Ok(namespace) = Namespace::new() else {
            hawser_testing::skip("no namespaces");
            return;
        };
        let rules = "add table ip t; \
                     add chain ip t o { type filter hook output priority 0; }; \
                     add rule ip t o ct state new accept; \
                     add chain ip t n { type nat hook output priority -100; }; \
                     add rule ip t n ip daddr 127.0.0.4 dnat to 127.0.0.2";
        let prepared = [vec!["ip", "link", "set", "lo", "up"], vec!["nft", rules]];
        for command in prepared {
            let mut program = namespace.command(command[0]);
            assert!(
                program.args(&command[1..]).status().unwrap().success(),
                "{command:?}"
            );
        }
        let left = namespace.run(|| {
            // The second address is a destination, a source, and the target of a translation.
            for (from, to) in [(1, 2), (2, 3), (1, 4), (1, 3)] {
                let at = |last, port| SocketAddr::from(([127, 0, 0, last], port));
                let socket = UdpSocket::bind(at(from, 0))?;
                socket.send_to(b"x", at(to, 9))?;
            }
            let before = list(0, 0)?.len();
            let forgotten = forget_addresses(&[[127, 0, 0, 2].into()].into())?;
            Ok((before, forgotten, list(0, 0)?))
        });
        let (before, forgotten, left) = left.unwrap();
        assert!(before >= 4 && forgotten >= 3, "{forgotten} of {before}");
        assert!(!left.is_empty());
        let gone = IpAddr::from([127, 0, 0, 2]);
        assert!(
            left.iter()
                .all(|one| one.from.ip() != gone && one.answers.0.ip() != gone)
        );
    }
}
