//! Links between two devices on one network: detection of usable ones, their sockets, and bridges.
//!
//! A link needs no address other than the IPv6 link-local one that the kernel assigns.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddrV6, UdpSocket};

use futures_util::TryStreamExt;
use rtnetlink::Handle;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope};
use rtnetlink::packet_route::link::{
    BridgeStpState, InfoBridge, InfoData, InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::udp::keep_outside;

/// A usable link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The interface's name.
    pub name: String,
    /// Interface index.
    pub index: u32,
    /// Link-local address.
    pub address: Ipv6Addr,
    /// MTU, bytes of IP packet.
    pub mtu: u32,
}

/// Properties of an interface that concern bridges and links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Interface name.
    pub name: String,
    /// Interface index.
    pub index: u32,
    /// MTU, bytes of IP packet.
    pub mtu: u32,
    /// Set if the interface is up and has a carrier.
    pub is_running: bool,
    /// Index of the bridge (or bond) of which it is a port.
    pub controller: Option<u32>,
    /// Set for a bridge: whether it runs the spanning tree protocol.
    pub bridge: Option<bool>,
}

/// Queries the kernel for interfaces.
#[derive(Clone)]
pub struct Interfaces {
    handle: Handle,
}

impl Interfaces {
    /// Opens a netlink socket. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// No netlink socket is available.
    pub fn open() -> io::Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        crate::tasks::spawn(connection);
        Ok(Self { handle })
    }

    /// Returns all interfaces.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub async fn list(&self) -> io::Result<Vec<Interface>> {
        let links = self.handle.link().get().execute();
        let links: Vec<LinkMessage> = links.try_collect().await.map_err(io::Error::other)?;
        Ok(links.iter().filter_map(interface).collect())
    }

    /// Returns the links among `names` that are up and have a usable link-local address.
    ///
    /// # Errors
    /// As for [`list`](Self::list).
    pub async fn usable(&self, names: &[String]) -> io::Result<Vec<Link>> {
        let addresses = self.handle.address().get().execute();
        let addresses: Vec<AddressMessage> = addresses.try_collect().await.map_err(io::Error::other)?;
        let running = self.list().await?.into_iter();
        let running = running.filter(|one| one.is_running && names.contains(&one.name));
        // A device may have several such addresses: the first is the one assigned by the kernel.
        let link = |one: Interface| {
            let mut own = addresses
                .iter()
                .filter(|address| address.header.index == one.index);
            Some(Link {
                address: own.find_map(link_local)?,
                name: one.name,
                index: one.index,
                mtu: one.mtu,
            })
        };
        Ok(running.filter_map(link).collect())
    }
}

fn interface(message: &LinkMessage) -> Option<Interface> {
    let mut found = Interface {
        name: String::new(),
        index: message.header.index,
        mtu: 0,
        is_running: message.header.flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
        controller: None,
        bridge: None,
    };
    for attribute in &message.attributes {
        if let LinkAttribute::IfName(name) = attribute {
            found.name.clone_from(name);
        } else if let LinkAttribute::Mtu(mtu) = attribute {
            found.mtu = *mtu;
        } else if let LinkAttribute::Controller(index) = attribute {
            found.controller = Some(*index);
        } else if let LinkAttribute::LinkInfo(infos) = attribute
            && infos.contains(&LinkInfo::Kind(InfoKind::Bridge))
        {
            found.bridge = Some(infos.iter().any(runs_spanning_tree));
        }
    }
    (!found.name.is_empty()).then_some(found)
}

fn runs_spanning_tree(info: &LinkInfo) -> bool {
    let LinkInfo::Data(InfoData::Bridge(settings)) = info else {
        return false;
    };
    let is_on = |setting: &InfoBridge| matches!(setting, InfoBridge::StpState(state) if *state != BridgeStpState::Disabled);
    settings.iter().any(is_on)
}

/// Returns the address of a message, if it is link-local and usable as a source.
fn link_local(message: &AddressMessage) -> Option<Ipv6Addr> {
    let not_ready = AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed;
    if message.header.scope != AddressScope::Link || message.header.flags.intersects(not_ready) {
        return None;
    }
    message.attributes.iter().find_map(|attribute| {
        let AddressAttribute::Address(IpAddr::V6(address)) = attribute else {
            return None;
        };
        address.is_unicast_link_local().then_some(*address)
    })
}

/// Opens a UDP port bound to a link: packets are received and sent over this link only.
///
/// # Errors
/// The link was removed, the port is in use, or privileges are missing.
pub fn open_port(link: &str, port: u16) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))?;
    keep_outside(&socket, Some(link))?;
    socket.set_only_v6(true)?;
    socket.bind(&SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0).into())?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Opens a UDP port of a link that also receives datagrams to a multicast group.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridges_their_ports_and_links_that_are_ready_are_told_apart() {
        let Ok(namespace) = crate::netns::Namespace::new() else {
            hawser_testing::skip("no namespaces");
            return;
        };
        for command in [
            "link add br0 type bridge stp_state 1",
            "link add eth1 type veth peer name far1",
            "link add eth2 type veth peer name far2",
            "link set eth2 master br0",
            "link set eth1 up",
            "link set far1 up",
        ] {
            let done = namespace.command("ip").args(command.split(' ')).status();
            assert!(done.unwrap().success(), "{command}");
        }
        let looked = namespace.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let interfaces = Interfaces::open()?;
                let names = ["eth1", "eth2"].map(str::to_owned);
                let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
                // Duplicate address detection takes 1 s to 2 s.
                let mut usable = Vec::new();
                while usable.is_empty() && std::time::Instant::now() < deadline {
                    usable = interfaces.usable(&names).await?;
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
                Ok((interfaces.list().await?, usable))
            })
        });
        let (all, usable) = looked.unwrap();
        let find = |name: &str| all.iter().find(|one| one.name == name).expect("is there");
        let bridge = find("br0");
        assert_eq!((bridge.bridge, bridge.controller), (Some(true), None));
        assert_eq!(find("eth2").controller, Some(bridge.index));
        assert_eq!((find("eth1").controller, find("eth1").bridge), (None, None));
        let names: Vec<_> = usable.iter().map(|link| (link.name.as_str(), link.mtu)).collect();
        assert_eq!(names, [("eth1", 1500)], "eth2 is down");
        assert!(usable[0].address.is_unicast_link_local());
    }
}
