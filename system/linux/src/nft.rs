//! nftables expressions shared by several tables.

use std::net::IpAddr;

/// Returns the header keyword of an address: `ip` or `ip6`.
pub(crate) fn family(address: IpAddr) -> &'static str {
    if address.is_ipv6() { "ip6" } else { "ip" }
}

/// Returns the value of `meta nfproto` for packets with such addresses.
pub(crate) fn version(address: IpAddr) -> &'static str {
    if address.is_ipv6() { "ipv6" } else { "ipv4" }
}

/// Returns the elements of a set of interface names.
pub(crate) fn names<S: AsRef<str>>(all: &[S]) -> String {
    let quoted: Vec<_> = all.iter().map(|name| format!("\"{}\"", name.as_ref())).collect();
    quoted.join(", ")
}
