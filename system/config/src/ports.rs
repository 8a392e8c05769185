//! The ports of Hawser's services, where a configuration names no other.

/// A hub's, by UDP: that of HTTP/3, which few networks block.
pub const HUB: u16 = 443;
/// A hub's, by TLS on TCP: the port on which the fewest networks let nothing through.
pub const TLS: u16 = 443;
/// Where a device that shares its ways out with neighbours listens, by UDP: a port of the range for
/// users that nobody has registered (IANA, 2026).
pub const POOL: u16 = 47_473;
/// A hub's inside GRE, by UDP. It is not that of any socket, because the kernel joins datagrams to
/// the port of a socket that takes them joined (UDP GRO), also while they are inside GRE, and a raw
/// socket does not hear where to part them.
pub const GRE: u16 = 47_474;
