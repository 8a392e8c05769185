//! Words of nftables that several tables are written with.

use std::net::IpAddr;

/// The header that an address stands in: `ip` or `ip6`.
pub(crate) fn family(address: IpAddr) -> &'static str {
    if address.is_ipv6() { "ip6" } else { "ip" }
}

/// What `meta nfproto` says of packets with such addresses.
pub(crate) fn version(address: IpAddr) -> &'static str {
    if address.is_ipv6() { "ipv6" } else { "ipv4" }
}

/// The members of a set of interface names.
pub(crate) fn names<S: AsRef<str>>(all: &[S]) -> String {
    let quoted: Vec<_> = all.iter().map(|name| format!("\"{}\"", name.as_ref())).collect();
    quoted.join(", ")
}
