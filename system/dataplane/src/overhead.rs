//! Overhead of an inner packet on the wire, and the initial parameters of a path machine that
//! follow from it.

use std::net::SocketAddr;

use hawser_proto::path;
use hawser_proto::tunnel::Role;
use hawser_units::PathId;
use hawser_wire::data::FRAMING;

/// Returns the initial parameters of a path machine, from the control side's order.
pub(super) fn path_config(
    path: PathId,
    role: Role,
    mtu: u16,
    cap: Option<hawser_units::Rate>,
    remote: Option<&SocketAddr>,
) -> path::Config {
    // A hub does not know yet whether the client uses IPv4 or IPv6, so it assumes the larger
    // header.
    let overhead = remote.map_or((UDP_IPV6 + FRAMING) as u16, overhead);
    path::Config {
        id: path,
        probing: role.probing(),
        cap,
        mtu,
        overhead,
    }
}

/// Returns the bytes of IP and UDP headers of a datagram to `remote`.
fn udp_overhead(remote: &SocketAddr) -> usize {
    if remote.is_ipv4() { UDP_IPV4 } else { UDP_IPV6 }
}

/// Returns the bytes by which an outer IP packet to `remote` is larger than its inner packet.
pub(super) fn overhead(remote: &SocketAddr) -> u16 {
    (udp_overhead(remote) + FRAMING) as u16
}

/// Bytes of IP and UDP header. Source: RFC 791 section 3.1, RFC 8200 section 3 and RFC 768.
const UDP_IPV4: usize = 28;
const UDP_IPV6: usize = 48;
