//! Addresses that are not public: a client of a hub or of a neighbour's uplink does not reach them
//! unless they are named.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Net;

/// Returns whether an address is not public ([`PRIVATE4`], [`PRIVATE6`]).
#[must_use]
pub fn is_private(address: IpAddr) -> bool {
    let nets4 = PRIVATE4.iter().map(|(net, prefix)| Net::new(*net, *prefix));
    let nets6 = PRIVATE6.iter().map(|(net, prefix)| Net::new(*net, *prefix));
    nets4.chain(nets6).any(|net| net.contains(address))
}

/// Addresses that are not public (RFC 6890, RFC 1918, RFC 6598), among them the metadata services
/// of clouds (169.254.169.254, 100.100.100.200), and one that looks public: 168.63.129.16 of Azure.
pub const PRIVATE4: [(Ipv4Addr, u8); 12] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// The same of IPv6 (RFC 6890, RFC 4193, with the metadata service fd00:ec2::254), and what leads
/// to IPv4 addresses by translation (RFC 6052, RFC 8215) or in tunnels (RFC 3056, RFC 4380): where
/// that ends is not known here.
pub const PRIVATE6: [(Ipv6Addr, u8); 10] = [
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 0), 96),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96),
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96),
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8),
];
