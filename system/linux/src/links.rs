//! Links between two boxes of one network: which of them can be used, sockets on them, and bridges.
//!
//! A link needs no address but the one that the kernel gives it by itself: the link-local one of
//! IPv6.

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

/// An interface, as far as bridges and links are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its MTU, bytes of IP packet.
    pub mtu: u32,
    /// Whether it is up and has a carrier.
    pub is_running: bool,
    /// The index of the bridge (or bond) that it is a port of.
    pub controller: Option<u32>,
    /// Of a bridge: whether it runs its spanning tree protocol.
    pub bridge: Option<bool>,
}

/// Asks the kernel for interfaces.
#[derive(Clone)]
pub struct Interfaces {
    handle: Handle,
}

impl Interfaces {
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// No netlink socket is to be had.
    pub fn open() -> io::Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        crate::tasks::spawn(connection);
        Ok(Self { handle })
    }

    /// All there are.
    ///
    /// # Errors
    /// The kernel does not say.
    pub async fn list(&self) -> io::Result<Vec<Interface>> {
        let links = self.handle.link().get().execute();
        let links: Vec<LinkMessage> = links.try_collect().await.map_err(io::Error::other)?;
        Ok(links.iter().filter_map(interface).collect())
    }

    /// The links among `names` that are up and have a link-local address that is ready.
    ///
    /// # Errors
    /// As for [`list`](Self::list).
    pub async fn usable(&self, names: &[String]) -> io::Result<Vec<Link>> {
        let addresses = self.handle.address().get().execute();
        let addresses: Vec<AddressMessage> = addresses.try_collect().await.map_err(io::Error::other)?;
        let running = self.list().await?.into_iter();
        let running = running.filter(|one| one.is_running && names.contains(&one.name));
        // A device may have several such addresses: the first is the one that the kernel made.
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

/// The address of a message, if it is link-local and neighbours may be spoken to from it.
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
                // Whether another host has the address takes a second or two to find out.
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
