//! Networks (uplinks) of the machine, and their changes.
//!
//! A network is an interface that is up, has carrier, a global address and a default route of that
//! address's family: in the main table, or, if it has none there, in another one with a router on
//! its link (policy routing, as with `use-routes: false` of netplan). The kernel announces every
//! change of links, addresses and routes; each burst of announcements causes one full read, so
//! nothing depends on their order.

mod counters;
mod default_routes;
mod on_link;

pub use counters::{CountedDevice, HardwareAddress, counted_devices};

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{Stream, StreamExt, TryStreamExt};
use hawser_units::Net;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, State};
use rtnetlink::{Handle, MulticastGroup, RouteMessageBuilder};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::desired::{MAIN_TABLE, OWN_PROTOCOL};
use default_routes::{default_routes, leads_to_link};

/// Uplink of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The interface's name.
    pub name: String,
    /// The interface's index.
    pub index: u32,
    /// The interface's MTU, bytes of IP packet.
    pub mtu: u32,
    /// Global addresses with their prefix lengths, in the kernel's order.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Default route of IPv4, if any.
    pub v4: Option<NextHop>,
    /// Default route of IPv6, if any.
    pub v6: Option<NextHop>,
}

impl Network {
    /// Returns whether the network supports an address family.
    #[must_use]
    pub fn carries(&self, ipv6: bool) -> bool {
        if ipv6 {
            self.v6.is_some()
        } else {
            self.v4.is_some()
        }
    }
}

/// Addresses of the IPv4 side of a translator on this machine. Source: RFC 7335 section 3.
const SERVICE_CONTINUITY: (Ipv4Addr, u8) = (Ipv4Addr::new(192, 0, 0, 0), 29);

/// Returns whether the interface is the IPv4 side of a translator to IPv6 on this machine (CLAT of
/// 464XLAT, RFC 6877): its packets leave over another network, as IPv6.
///
/// A telephone that shares its network may assign such an address too, but has a gateway.
/// `has_hardware` states whether a device is behind the interface: a modem may be a translator.
#[must_use]
pub fn is_translator(network: &Network, has_hardware: bool) -> bool {
    let is_plain = network.v4 == Some(NextHop::Device) && network.v6.is_none() && !has_hardware;
    let (prefix, length) = SERVICE_CONTINUITY;
    let continuity = Net::new(prefix, length);
    let mut addresses = network.addresses.iter().filter(|(address, _)| address.is_ipv4());
    is_plain
        && (network.name.starts_with("clat") || addresses.any(|(address, _)| continuity.contains(*address)))
}

/// A device that is a network, or becomes one with an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Interface name.
    pub name: String,
    /// Interface index.
    pub index: u32,
    /// Set if the interface is up and has carrier.
    pub has_carrier: bool,
    /// Global IPv4 addresses.
    pub addresses: Vec<Ipv4Addr>,
}

/// Next hop of a default route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// Through a router.
    Gateway(IpAddr),
    /// Directly through the device.
    Device,
}

/// Change of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// New network.
    Added(Network),
    /// Changed address, gateway, index or MTU.
    Changed(Network),
    /// Removed network.
    Removed(String),
}

/// Returns the changes from one set of networks to the next, removals first.
#[must_use]
pub fn changes(before: &[Network], after: &[Network]) -> Vec<Change> {
    let find = |list: &[Network], name: &str| list.iter().find(|n| n.name == name).cloned();
    let gone = before.iter().filter(|n| find(after, &n.name).is_none());
    let mut changes: Vec<_> = gone.map(|n| Change::Removed(n.name.clone())).collect();
    for network in after {
        match find(before, &network.name) {
            None => changes.push(Change::Added(network.clone())),
            Some(old) if old != *network => changes.push(Change::Changed(network.clone())),
            Some(_) => {}
        }
    }
    changes
}

/// Reason why the networks cannot be watched.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WatchError {
    /// No netlink socket is available.
    #[error("cannot open a netlink socket")]
    Socket(#[from] io::Error),
    /// The kernel does not answer.
    #[error("cannot list the networks of the kernel")]
    List(#[from] rtnetlink::Error),
    /// The netlink socket has failed.
    #[error("the netlink socket has failed")]
    Ended,
}

/// Watches networks, devices or destinations on links, in a separate task.
///
/// One read takes several requests to the kernel. Because callers may be cancelled while they wait,
/// the task ensures that no change is lost.
pub struct Watch<T = Network> {
    looks: mpsc::Receiver<Result<Vec<T>, WatchError>>,
    task: JoinHandle<()>,
}

/// Multicast groups whose messages cause networks and their links to be read again.
const LINKS_ADDRESSES_ROUTES: [MulticastGroup; 5] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
];

impl Watch<Network> {
    /// Starts to watch the networks; must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`WatchError::Socket`].
    pub fn start() -> Result<Self, WatchError> {
        Self::over(&LINKS_ADDRESSES_ROUTES, |handle| Box::pin(list(handle)))
    }
}

impl Watch<Device> {
    /// Starts to watch the devices; must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`WatchError::Socket`].
    pub fn devices() -> Result<Self, WatchError> {
        let groups = [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr];
        Self::over(&groups, |handle| Box::pin(list_devices(handle)))
    }
}

impl Watch<Net> {
    /// Starts to watch the addresses of all interfaces, loopback too, each with its prefix length;
    /// must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`WatchError::Socket`].
    pub fn addresses() -> Result<Self, WatchError> {
        let groups = [MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
        Self::over(&groups, |handle| Box::pin(list_addresses(handle)))
    }
}

/// Reads all objects of one kind.
type ReadAll<T> = fn(&Handle) -> BoxFuture<'_, Result<Vec<T>, WatchError>>;

impl<T: Clone + PartialEq + Send + Sync + 'static> Watch<T> {
    fn over(groups: &[MulticastGroup], look: ReadAll<T>) -> Result<Self, WatchError> {
        // The request socket joins no group. A notification has the sequence number of the request
        // that caused it, even of another program; on a shared socket it would be mistaken for the
        // answer to our request with the same number.
        let (listening, _, messages) = rtnetlink::new_multicast_connection(groups)?;
        let (asking, handle, _) = rtnetlink::new_connection()?;
        crate::tasks::spawn(listening);
        crate::tasks::spawn(asking);
        let (tell, looks) = mpsc::channel(1);
        let task = crate::tasks::spawn(async move {
            // The watch ends with an error, or when its receiver is dropped.
            if let Err(error) = watch(&handle, look, messages.map(|_| ()), &tell).await {
                let _ = tell.send(Err(error)).await;
            }
        });
        Ok(Self { looks, task })
    }

    /// Returns the current state: at once for the first call, then after each change. Cancel safe.
    ///
    /// # Errors
    /// [`WatchError`]: the watch has ended.
    pub async fn next(&mut self) -> Result<Vec<T>, WatchError> {
        self.looks.recv().await.unwrap_or(Err(WatchError::Ended))
    }
}

impl<T> Drop for Watch<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watch<T: Clone + PartialEq>(
    handle: &Handle,
    look: ReadAll<T>,
    mut announcements: impl Stream<Item = ()> + Unpin,
    tell: &mpsc::Sender<Result<Vec<T>, WatchError>>,
) -> Result<(), WatchError> {
    let mut last = None;
    loop {
        let now = look(handle).await?;
        if last.as_ref() != Some(&now) {
            last = Some(now.clone());
            if tell.send(Ok(now)).await.is_err() {
                return Ok(());
            }
        }
        announcements.next().await.ok_or(WatchError::Ended)?;
        tokio::time::sleep(SETTLE).await;
        while let Some(Some(())) = futures_util::FutureExt::now_or_never(announcements.next()) {}
    }
}

/// Lists the current networks.
///
/// # Errors
/// The kernel does not answer.
pub async fn list(handle: &Handle) -> Result<Vec<Network>, WatchError> {
    let (mut found, mut ethernet) = (BTreeMap::new(), BTreeSet::new());
    let mut links = handle.link().get().execute();
    while let Some(link) = links.try_next().await? {
        let flags = link.header.flags;
        if !flags.intersects(LinkFlags::Pointopoint | LinkFlags::Noarp) {
            ethernet.insert(link.header.index);
        }
        if let Some(network) = usable(&link) {
            found.insert(network.index, network);
        }
    }
    let mut addresses = handle.address().get().execute();
    while let Some(address) = addresses.try_next().await? {
        if let (Some(network), Some(global)) = (found.get_mut(&address.header.index), global(&address)) {
            network.addresses.push(global);
        }
    }
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
    let mut elsewhere = Vec::new();
    for query in [v4, v6] {
        let mut routes = handle.route().get(query).execute();
        while let Some(route) = routes.try_next().await? {
            let is_v6 = route.header.address_family == AddressFamily::Inet6;
            let (table, defaults) = default_routes(&route);
            let is_main = table == MAIN_TABLE;
            let is_own = u8::from(route.header.protocol) == OWN_PROTOCOL;
            for (index, hop) in defaults {
                let Some(network) = found.get_mut(&index) else {
                    continue;
                };
                if is_main {
                    let slot = if is_v6 { &mut network.v6 } else { &mut network.v4 };
                    // The kernel lists the preferred route first.
                    slot.get_or_insert(hop);
                } else if !is_own && ethernet.contains(&index) && leads_to_link(network, hop) {
                    elsewhere.push((index, is_v6, hop));
                }
            }
        }
    }
    for (index, is_v6, hop) in elsewhere {
        if let Some(network) = found.get_mut(&index) {
            let slot = if is_v6 { &mut network.v6 } else { &mut network.v4 };
            slot.get_or_insert(hop);
        }
    }
    for network in found.values_mut() {
        let has = |ipv6: bool| {
            network
                .addresses
                .iter()
                .any(|(address, _)| address.is_ipv6() == ipv6)
        };
        let (v4, v6) = (has(false), has(true));
        network.v4 = network.v4.filter(|_| v4);
        network.v6 = network.v6.filter(|_| v6);
    }
    Ok(found
        .into_values()
        .filter(|n| n.v4.is_some() || n.v6.is_some())
        .collect())
}

/// Lists the current devices, except loopback.
async fn list_devices(handle: &Handle) -> Result<Vec<Device>, WatchError> {
    let mut found = BTreeMap::new();
    let mut links = handle.link().get().execute();
    while let Some(link) = links.try_next().await? {
        let flags = link.header.flags;
        let name = link.attributes.iter().find_map(|attribute| {
            let LinkAttribute::IfName(name) = attribute else {
                return None;
            };
            Some(name.clone())
        });
        if let Some(name) = name.filter(|_| !flags.contains(LinkFlags::Loopback)) {
            let device = Device {
                name,
                index: link.header.index,
                has_carrier: usable(&link).is_some(),
                addresses: Vec::new(),
            };
            found.insert(device.index, device);
        }
    }
    let mut addresses = handle.address().get().execute();
    while let Some(address) = addresses.try_next().await? {
        if let (Some(device), Some((IpAddr::V4(v4), _))) =
            (found.get_mut(&address.header.index), global(&address))
        {
            device.addresses.push(v4);
        }
    }
    Ok(found.into_values().collect())
}

/// Returns the name, received bytes and sent bytes of every interface.
///
/// # Errors
/// `/proc` is not available.
pub fn traffic() -> io::Result<Vec<(String, u64, u64)>> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let line = |line: &str| {
        let (name, counters) = line.split_once(':')?;
        let mut counters = counters
            .split_whitespace()
            .map(|counter| counter.parse::<u64>().ok());
        // The line has eight counters of received packets, then those of sent ones.
        let received = counters.next()??;
        Some((name.trim().to_owned(), received, counters.nth(7)??))
    };
    Ok(text.lines().filter_map(line).collect())
}

/// Returns the interface of a link that is up and has carrier.
fn usable(link: &LinkMessage) -> Option<Network> {
    let flags = link.header.flags;
    if !flags.contains(LinkFlags::Up | LinkFlags::LowerUp) || flags.contains(LinkFlags::Loopback) {
        return None;
    }
    let mut network = Network {
        name: String::new(),
        index: link.header.index,
        mtu: 1500,
        addresses: Vec::new(),
        v4: None,
        v6: None,
    };
    for attribute in &link.attributes {
        #[allow(clippy::wildcard_enum_match_arm, reason = "dozens of attributes play no part")]
        match attribute {
            LinkAttribute::IfName(name) => network.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => network.mtu = *mtu,
            LinkAttribute::OperState(State::Up | State::Unknown) => {}
            LinkAttribute::OperState(_) => return None,
            _ => {}
        }
    }
    (!network.name.is_empty()).then_some(network)
}

/// Returns the address, if it is usable as a global source.
fn global(message: &AddressMessage) -> Option<(IpAddr, u8)> {
    let unfit =
        AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed | AddressHeaderFlags::Deprecated;
    if message.header.flags.intersects(unfit) {
        return None;
    }
    let address = own_address(message)?;
    let is_global = match address {
        IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_loopback(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local() && !v6.is_loopback(),
    };
    is_global.then_some((address, message.header.prefix_len))
}

/// Time within which the announcements of one change of a network end. Source: our choice; a
/// shorter one reads the addresses of a network before all are there, a longer one delays its use.
const SETTLE: Duration = Duration::from_millis(20);

async fn list_addresses(handle: &Handle) -> Result<Vec<Net>, WatchError> {
    let mut found = Vec::new();
    let mut addresses = handle.address().get().execute();
    while let Some(address) = addresses.try_next().await? {
        let prefix = address.header.prefix_len;
        found.extend(own_address(&address).map(|own| Net::new(own, prefix)));
    }
    Ok(found)
}

/// Lists the addresses of all interfaces, loopback too, each with its prefix length.
///
/// # Errors
/// There is no netlink socket, or the kernel does not answer.
pub async fn addresses() -> io::Result<Vec<Net>> {
    ask(async |handle| list_addresses(handle).await.map_err(io::Error::other)).await
}

/// Lists the addresses of all interfaces with the name of each.
///
/// # Errors
/// There is no netlink socket, or the kernel does not answer.
pub async fn named_addresses() -> io::Result<Vec<(String, IpAddr)>> {
    ask(async |handle| {
        let mut found = Vec::new();
        let mut addresses = handle.address().get().execute();
        while let Some(message) = addresses.try_next().await.map_err(io::Error::other)? {
            let name = crate::tap::device_name(message.header.index);
            found.extend(name.zip(own_address(&message)));
        }
        Ok(found)
    })
    .await
}

/// Queries the kernel over a connection that is closed after the answer.
async fn ask<T>(question: impl AsyncFnOnce(&Handle) -> io::Result<T>) -> io::Result<T> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    let connection = crate::tasks::spawn(connection);
    let answer = question(&handle).await;
    connection.abort();
    answer
}

/// Returns this machine's address in a message of the kernel: on a point-to-point link, `Address`
/// is the peer's.
fn own_address(message: &AddressMessage) -> Option<IpAddr> {
    let local = message.attributes.iter().find_map(|attribute| {
        if let AddressAttribute::Local(local) = attribute {
            Some(*local)
        } else {
            None
        }
    });
    local.or_else(|| either_address(message))
}

/// Returns `Address`: the peer's address on a point-to-point link, otherwise this machine's.
fn either_address(message: &AddressMessage) -> Option<IpAddr> {
    message.attributes.iter().find_map(|attribute| {
        if let AddressAttribute::Address(either) = attribute {
            Some(*either)
        } else {
            None
        }
    })
}

/// Returns the subnets of all interfaces with the interface's index; for a point-to-point link,
/// also that of its peer.
///
/// # Errors
/// The kernel does not answer.
pub async fn subnets(handle: &Handle) -> Result<Vec<(u32, Net)>, rtnetlink::Error> {
    let mut found = Vec::new();
    let mut addresses = handle.address().get().execute();
    while let Some(message) = addresses.try_next().await? {
        let (index, prefix) = (message.header.index, message.header.prefix_len);
        let mut both = vec![own_address(&message), either_address(&message)];
        both.dedup();
        let nets = both.into_iter().flatten();
        found.extend(nets.map(|address| (index, Net::new(address, prefix))));
    }
    Ok(found)
}

/// Returns the subnets of the interfaces selected by name.
///
/// # Errors
/// There is no netlink socket, or the kernel does not answer.
pub async fn subnets_of(is_meant: impl Fn(&str) -> bool) -> io::Result<Vec<Net>> {
    let found = ask(async |handle| subnets(handle).await.map_err(io::Error::other)).await?;
    let is_meant = |index: &u32| crate::tap::device_name(*index).is_none_or(|name| is_meant(&name));
    let meant = found.into_iter().filter(|(index, _)| is_meant(index));
    Ok(meant.map(|(_, net)| net).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(name: &str, mtu: u32) -> Network {
        Network {
            name: name.to_owned(),
            index: 1,
            mtu,
            addresses: vec![],
            v4: Some(NextHop::Device),
            v6: None,
        }
    }

    #[test]
    fn names_what_changed() {
        let before = [network("a", 1500), network("b", 1500), network("c", 1500)];
        let after = [network("b", 1400), network("c", 1500), network("d", 1500)];
        assert_eq!(
            changes(&before, &after),
            [
                Change::Removed("a".to_owned()),
                Change::Changed(network("b", 1400)),
                Change::Added(network("d", 1500)),
            ]
        );
    }

    #[test]
    fn a_translator_is_recognised_by_address_or_name() {
        let of = |name: &str, address: &str, v4| Network {
            addresses: vec![(address.parse().unwrap(), 32)],
            v4: Some(v4),
            ..network(name, 1500)
        };
        let clat = of("clat4", "192.0.0.1", NextHop::Device);
        assert!(is_translator(&clat, false));
        assert!(!is_translator(&clat, true), "a modem that translates");
        assert!(is_translator(&of("tun7", "192.0.0.7", NextHop::Device), false));
        assert!(is_translator(&of("clat", "10.1.2.3", NextHop::Device), false));
        assert!(!is_translator(&of("tun7", "192.0.0.8", NextHop::Device), false));
        let telephone = NextHop::Gateway("192.0.0.1".parse().unwrap());
        assert!(!is_translator(&of("usb0", "192.0.0.2", telephone), false));
        let both = Network {
            v6: Some(NextHop::Device),
            ..clat
        };
        assert!(!is_translator(&both, false), "it has IPv6 of its own");
    }

    #[test]
    fn loopback_has_counters() {
        let list = traffic().unwrap();
        assert!(
            list.iter()
                .any(|(name, received, sent)| name == "lo" && received == sent),
            "{list:?}"
        );
    }

    #[test]
    fn the_address_of_a_point_to_point_link_is_the_near_one() {
        let Ok(namespace) = crate::netns::Namespace::new() else {
            hawser_testing::skip("no namespaces");
            return;
        };
        for arguments in [
            "link add name line type veth peer name far",
            "addr add 198.51.100.5 peer 198.51.100.9/32 dev line",
            "addr add 192.0.2.5/24 dev line",
        ] {
            let mut ip = namespace.command("ip");
            let status = ip.args(arguments.split_whitespace()).status().unwrap();
            assert!(status.success(), "ip {arguments}");
        }
        let (own, near) = namespace
            .run(|| {
                let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
                runtime.block_on(async { Ok((addresses().await?, subnets_of(|_| true).await?)) })
            })
            .unwrap();
        let own: Vec<_> = own.iter().map(Net::to_string).collect();
        assert_eq!(own, ["198.51.100.5/32", "192.0.2.5/24"]);
        let near: Vec<_> = near.iter().map(Net::to_string).collect();
        assert_eq!(near, ["198.51.100.5/32", "198.51.100.9/32", "192.0.2.5/24"]);
    }

    /// Other programs use the same sequence numbers, and the kernel's notifications of their
    /// changes contain these numbers.
    #[test]
    fn what_others_change_is_no_answer() {
        let Ok(namespace) = crate::netns::Namespace::new() else {
            hawser_testing::skip("no namespaces");
            return;
        };
        let up = namespace.command("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.unwrap().success());
        let change = async |round: u8| {
            let (connection, handle, _) = rtnetlink::new_connection()?;
            let connection = crate::tasks::spawn(connection);
            for host in 1..=40 {
                let route = RouteMessageBuilder::<Ipv4Addr>::new()
                    .destination_prefix(Ipv4Addr::new(10, 0, round, host), 32)
                    .output_interface(1)
                    .build();
                handle.route().add(route).execute().await.unwrap();
            }
            connection.abort();
            io::Result::Ok(())
        };
        let looked = namespace.run(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut watch = Watch::start().map_err(io::Error::other)?;
                let watched = crate::tasks::spawn(async move { while watch.next().await.is_ok() {} });
                for round in 0..200 {
                    change(round).await?;
                }
                Ok(watched.is_finished())
            })
        });
        assert!(!looked.unwrap(), "the watch has ended");
    }

    #[tokio::test]
    async fn the_first_look_is_immediate() {
        let mut watch = Watch::start().unwrap();
        let networks = watch.next().await.unwrap();
        assert!(
            networks
                .iter()
                .all(|n| n.name != "lo" && (n.v4.is_some() || n.v6.is_some()))
        );
    }
}
