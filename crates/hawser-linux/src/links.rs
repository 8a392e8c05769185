//! Links between two boxes of one network: which of them can be used, sockets on them, and bridges.
//!
//! A link needs no address but the one that the kernel gives it by itself: the link-local one of
//! IPv6.

use std::fs;
use std::io;
use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::path::{Path, PathBuf};

use socket2::{Domain, Protocol, Socket, Type};

use crate::udp::keep_outside;

/// A link that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The interface's name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its link-local address.
    pub address: Ipv6Addr,
    /// Its MTU, bytes of IP packet.
    pub mtu: u32,
}

/// The links among `names` that are up and have a link-local address.
///
/// # Errors
/// The kernel does not list its addresses.
pub fn usable(names: &[String]) -> io::Result<Vec<Link>> {
    let table = match fs::read_to_string("/proc/thread-self/net/if_inet6") {
        // No IPv6 at all.
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        other => other?,
    };
    let mut links: Vec<Link> = table.lines().filter_map(link_of).collect();
    links.retain(|link| names.contains(&link.name) && is_running(&link.name));
    // A device may have several such addresses: the first is the one that the kernel made.
    let mut seen = Vec::new();
    links.retain(|link| {
        let is_first = !seen.contains(&link.index);
        seen.push(link.index);
        is_first
    });
    for link in &mut links {
        let mtu = fs::read_to_string(device(&link.name).join("mtu"));
        link.mtu = mtu.ok().and_then(|mtu| mtu.trim().parse().ok()).unwrap_or(1280);
    }
    Ok(links)
}

/// A line of the table: address, index, length of the prefix, scope, flags, name.
fn link_of(line: &str) -> Option<Link> {
    let mut words = line.split_whitespace();
    let address = Ipv6Addr::from_bits(u128::from_str_radix(words.next()?, 16).ok()?);
    let mut number = || u32::from_str_radix(words.next()?, 16).ok();
    let (index, _, scope, flags) = (number()?, number()?, number()?, number()?);
    let is_ready = scope == SCOPE_LINK && flags & NOT_READY == 0;
    is_ready.then(|| Link {
        name: words.next().unwrap_or_default().to_owned(),
        index,
        address,
        mtu: 0,
    })
}

/// Whether an interface exists.
#[must_use]
pub fn exists(name: &str) -> bool {
    is_name(name) && device(name).exists()
}

/// Whether an interface is up and has a carrier.
#[must_use]
pub fn is_running(name: &str) -> bool {
    fs::read_to_string(device(name).join("carrier")).is_ok_and(|carrier| carrier.trim() == "1")
}

/// Whether an interface is a bridge of the kernel.
#[must_use]
pub fn is_bridge(name: &str) -> bool {
    is_name(name) && device(name).join("bridge").is_dir()
}

/// The bridge (or bond) that an interface is a port of.
#[must_use]
pub fn controller(name: &str) -> Option<String> {
    let target = fs::read_link(device(name).join("master")).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

/// Whether a bridge runs its spanning tree protocol.
#[must_use]
pub fn has_spanning_tree(bridge: &str) -> bool {
    let state = fs::read_to_string(device(bridge).join("bridge/stp_state"));
    state.is_ok_and(|state| state.trim() != "0")
}

/// The index of an interface.
#[must_use]
pub fn index(name: &str) -> Option<u32> {
    fs::read_to_string(device(name).join("ifindex"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// An interface's MTU, bytes.
#[must_use]
pub fn mtu(name: &str) -> Option<u16> {
    fs::read_to_string(device(name).join("mtu"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// Opens the UDP port of a link: packets come and go by the link alone.
///
/// # Errors
/// The link is gone, the port is taken, or rights are missing.
pub fn open_port(link: &str, port: u16) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))?;
    keep_outside(&socket, Some(link))?;
    socket.set_only_v6(true)?;
    socket.bind(&SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0).into())?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Opens the UDP port of a link for datagrams to a multicast group too.
///
/// # Errors
/// As [`open_port`].
pub fn open_group(link: &Link, group: Ipv6Addr, port: u16) -> io::Result<UdpSocket> {
    let socket = Socket::from(open_port(&link.name, port)?);
    socket.join_multicast_v6(&group, link.index)?;
    socket.set_multicast_if_v6(link.index)?;
    socket.set_multicast_loop_v6(false)?;
    Ok(socket.into())
}

fn device(name: &str) -> PathBuf {
    Path::new("/sys/class/net").join(name)
}

/// Nothing that leads elsewhere.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && name != "." && name != ".."
}

/// Of an address. Source: linux/ipv6.h, `IFA_LINK`.
const SCOPE_LINK: u32 = 0x20;
/// Tentative, or in use by a neighbour. Source: linux/if_addr.h, `IFA_F_TENTATIVE` and
/// `IFA_F_DADFAILED`.
const NOT_READY: u32 = 0x40 | 0x08;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_link_local_addresses_that_are_ready_count() {
        let line = |scope, flags| format!("fe80000000000000021122fffe334455 0c 40 {scope} {flags}     eth1");
        let link = link_of(&line("20", "80")).expect("a link");
        assert_eq!((link.name.as_str(), link.index), ("eth1", 12));
        assert_eq!(link.address.to_string(), "fe80::211:22ff:fe33:4455");
        assert_eq!(link_of(&line("00", "80")), None);
        assert_eq!(link_of(&line("20", "c0")), None, "tentative");
        assert_eq!(link_of("nonsense"), None);
        assert!(!is_bridge("../../x") && !exists(""));
    }
}
