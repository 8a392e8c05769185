//! Default ports of Hawser's services.

/// UDP port of a hub: that of HTTP/3 (RFC 9114 section 3.1), which few networks block.
pub const HUB: u16 = 443;
/// TCP port of a hub for TLS, the port that the fewest networks block: that of HTTPS (RFC 9110
/// section 4.2.2).
pub const TLS: u16 = 443;
/// UDP port of a device that shares its uplinks with neighbours: a user port (RFC 6335 section 6)
/// that is not registered (IANA, 2026).
pub const POOL: u16 = 47_473;
/// UDP port of a hub inside GRE. It differs from the port of every socket: the kernel coalesces
/// datagrams to the port of a socket that accepts coalesced ones (UDP GRO), even inside GRE, and a
/// raw socket does not receive the information needed to split them. Source: the number after
/// [`POOL`].
pub const GRE: u16 = 47_474;
/// UDP port of a hub for WireGuard. Source: the examples of wg(8).
pub const WIREGUARD: u16 = 51_820;
