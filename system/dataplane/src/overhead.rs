//! What surrounds an inner packet on its way, and so what a path machine starts with.

use std::net::SocketAddr;

use hawser_proto::path;
use hawser_proto::tunnel::Role;
use hawser_units::PathId;
use hawser_wire::data::FRAMING;

/// What a path machine starts with, from the control side's order.
pub(super) fn path_config(
    path: PathId,
    role: Role,
    mtu: u16,
    cap: Option<hawser_units::Rate>,
    remote: Option<&SocketAddr>,
) -> path::Config {
    // A hub does not know yet whether the client comes by IPv4 or IPv6: the larger header is the
    // safe guess.
    let overhead = remote.map_or((UDP_IPV6 + FRAMING) as u16, overhead);
    path::Config {
        id: path,
        probing: role.probing(),
        cap,
        mtu,
        overhead,
    }
}

/// Bytes of IP and UDP header around a datagram to `remote`.
fn udp_overhead(remote: &SocketAddr) -> usize {
    if remote.is_ipv4() { UDP_IPV4 } else { UDP_IPV6 }
}

/// Bytes between an inner packet and the outer IP packet that carries it to `remote`.
pub(super) fn overhead(remote: &SocketAddr) -> u16 {
    (udp_overhead(remote) + FRAMING) as u16
}

const UDP_IPV4: usize = 28;
const UDP_IPV6: usize = 48;
