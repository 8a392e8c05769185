//! Networks of a client, each with a data socket and a QUIC endpoint.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;
use hawser_dataplane::{Change, Orders, PathState, SocketId};
use hawser_linux::netlink::Network;
use hawser_linux::udp::open_near;
use hawser_linux::udp::{DataSocket, open_bound};
use hawser_units::{NetworkId, Rate};
use hawser_wire::nat64::{Prefix, is_of_translator};

use crate::tls;

/// Network in use.
pub struct Attached {
    /// Properties as the kernel reports them.
    pub network: Network,
    /// Address of the hub over this network.
    pub remote: SocketAddr,
    /// Prefix with which this network translates the addresses of IPv4 hosts, if it is used.
    pub nat64: Option<Prefix>,
    /// Socket of the data plane on the network.
    pub socket: SocketId,
    /// Endpoint of the control channel on the network.
    pub endpoint: quinn::Endpoint,
    /// State of its path, as the data plane reports it.
    pub state: Option<PathState>,
    /// Set if the network polices its path, in either direction.
    pub is_policed: bool,
    /// Transport of its path.
    pub transport: Transport,
}

/// Transport to the hub over a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP: `remote` is the hub.
    Udp,
    /// TLS concurrent with UDP over that network: `remote` is a relay on loopback.
    Tls(NetworkId),
    /// Neighbour, which relays to this address of the hub: `remote` is a port of the neighbour, or
    /// the hub inside GRE. The rate is at most `cap` in each direction.
    Member {
        /// The hub.
        hub: SocketAddr,
        /// Maximum rate of UDP payload.
        cap: Option<Rate>,
    },
}

impl Attached {
    /// Returns the address at which its sockets reach the hub with these addresses; `None` with a
    /// relay.
    pub fn leads_to(&self, addresses: &[SocketAddr]) -> Option<SocketAddr> {
        let fits = |address: &SocketAddr| address.is_ipv6() == self.remote.is_ipv6();
        self.is_plain().then(|| reached(addresses, fits, self.nat64))?
    }

    /// Returns the hub's own address, if `remote` is one that the network translates to it.
    pub fn untranslated(&self, remote: SocketAddr) -> SocketAddr {
        let original = self.nat64.and_then(|prefix| prefix.original(remote));
        original.unwrap_or(remote)
    }

    /// Returns the prefix with which the network translates the hub's address; `None` if it does
    /// not.
    pub fn translation(&self) -> Option<Prefix> {
        let is_translated = self.is_plain() && self.untranslated(self.remote) != self.remote;
        self.nat64.filter(|_| is_translated)
    }

    /// Returns the name of its path.
    pub(crate) fn path_name(&self) -> String {
        match self.transport {
            Transport::Tls(_) => format!("{}/tls", self.network.name),
            Transport::Udp | Transport::Member { .. } => self.network.name.clone(),
        }
    }

    /// Returns whether this machine's own network reaches the hub directly, without a relay.
    pub fn is_plain(&self) -> bool {
        self.transport == Transport::Udp
    }

    /// Returns the caps towards the hub and from it: the smaller of the local ones and a
    /// neighbour's.
    pub fn caps(&self, wanted: [Option<Rate>; 2]) -> [Option<Rate>; 2] {
        let of_member = match self.transport {
            Transport::Member { cap, .. } => cap,
            Transport::Udp | Transport::Tls(_) => None,
        };
        wanted.map(|wanted| wanted.into_iter().chain(of_member).min())
    }
}

/// Table of all networks in use.
pub struct Networks {
    orders: Orders,
    /// Next number of a network or a socket, unique among all sessions of this machine.
    next: Arc<AtomicU32>,
    /// Networks by number.
    pub attached: BTreeMap<NetworkId, Attached>,
}

impl Networks {
    /// Creates an empty table; `orders` is the queue to the data plane.
    pub fn new(orders: Orders) -> Self {
        Self {
            orders,
            next: Arc::default(),
            attached: BTreeMap::new(),
        }
    }

    /// Creates an empty table for another session.
    pub(super) fn for_another_session(&self) -> Self {
        Self {
            orders: Arc::clone(&self.orders),
            next: Arc::clone(&self.next),
            attached: BTreeMap::new(),
        }
    }

    fn number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the network with that name that has no relay.
    pub fn by_name(&self, name: &str) -> Option<NetworkId> {
        self.attached
            .iter()
            .find(|(_, a)| a.network.name == name && a.is_plain())
            .map(|(id, _)| *id)
    }

    /// Adds a network; `None` if the hub has no address of a family that the network supports, nor
    /// one that the network translates with the prefix `nat64`.
    pub fn attach(
        &mut self,
        network: Network,
        hub: &[SocketAddr],
        nat64: Option<Prefix>,
    ) -> anyhow::Result<Option<NetworkId>> {
        let fits = |address: &SocketAddr| network.carries(address.is_ipv6());
        let Some(remote) = reached(hub, fits, nat64) else {
            return Ok(None);
        };
        let socket = self.add_socket(&network, remote)?;
        let endpoint = quic_endpoint(&network, open(&network, remote)?)?;
        Ok(Some(self.add(Attached {
            network,
            remote,
            nat64,
            socket,
            endpoint,
            state: None,
            is_policed: false,
            transport: Transport::Udp,
        })))
    }

    /// Adds the route over TLS of a network: `relay` replaces the hub's address. `None` if the
    /// network was removed.
    pub fn attach_auxiliary(
        &mut self,
        id: NetworkId,
        relay: SocketAddr,
        (data, control): (UdpSocket, UdpSocket),
    ) -> anyhow::Result<Option<NetworkId>> {
        let Some(network) = self.attached.get(&id).map(|attached| attached.network.clone()) else {
            return Ok(None);
        };
        let endpoint = quic_endpoint(&network, control)?;
        let socket = self.add_data_socket(data)?;
        Ok(Some(self.add(Attached {
            network,
            remote: relay,
            nat64: None,
            socket,
            endpoint,
            state: None,
            is_policed: false,
            transport: Transport::Tls(id),
        })))
    }

    /// Returns the hub's own address over a network, also behind a relay or a translator.
    pub fn hub(&self, id: NetworkId) -> Option<SocketAddr> {
        let attached = self.attached.get(&id)?;
        match attached.transport {
            Transport::Tls(plain) => self.hub(plain),
            Transport::Udp => Some(attached.untranslated(attached.remote)),
            Transport::Member { hub, .. } => Some(hub),
        }
    }

    /// Adds a neighbour's uplink: `relay` replaces the hub's address. `cap_bps` is the cap of IP
    /// packets; 0 for none.
    pub fn attach_member(
        &mut self,
        label: &str,
        (relay, hub): (SocketAddr, SocketAddr),
        mtu: u16,
        cap_bps: u64,
    ) -> anyhow::Result<NetworkId> {
        // Local networks have an MTU of 1,500 bytes (RFC 894); probes detect a smaller one.
        let network = Network {
            name: label.to_owned(),
            index: 0,
            mtu: u32::from(mtu).clamp(1_280, 1_500),
            addresses: Vec::new(),
            v4: None,
            v6: None,
        };
        let endpoint = quic_endpoint(&network, open_near(relay.is_ipv6())?)?;
        let socket = self.add_data_socket(open_near(relay.is_ipv6())?)?;
        let cap = (cap_bps > 0).then(|| Rate::from_bps(cap_bps).scale(PAYLOAD));
        Ok(self.add(Attached {
            network,
            remote: relay,
            nat64: None,
            socket,
            endpoint,
            state: None,
            is_policed: false,
            transport: Transport::Member { hub, cap },
        }))
    }

    fn add(&mut self, attached: Attached) -> NetworkId {
        let id = NetworkId(self.number());
        self.attached.insert(id, attached);
        id
    }

    /// Opens new sockets for a changed network if the old ones are bound to a removed device or
    /// address. Returns the old socket if the network's path must move to the new one; the old one
    /// may then be closed.
    pub fn refresh(&mut self, id: NetworkId, network: Network) -> anyhow::Result<Option<SocketId>> {
        let Some(attached) = self.attached.get_mut(&id) else {
            return Ok(None);
        };
        let before = std::mem::replace(&mut attached.network, network.clone());
        if !needs_new_sockets(&before, &network) {
            return Ok(None);
        }
        let (remote, old) = (attached.remote, attached.socket);
        attached
            .endpoint
            .rebind(open(&network, remote)?)
            .context("cannot move the control connection")?;
        let fresh = self.add_socket(&network, remote)?;
        if let Some(attached) = self.attached.get_mut(&id) {
            attached.socket = fresh;
        }
        Ok(Some(old))
    }

    /// Removes a network. Its path must have been closed.
    pub fn detach(&mut self, id: NetworkId) {
        if let Some(attached) = self.attached.remove(&id) {
            (self.orders)(Change::RemoveSocket { id: attached.socket }.into());
        }
    }

    fn add_socket(&mut self, network: &Network, remote: SocketAddr) -> anyhow::Result<SocketId> {
        self.add_data_socket(open(network, remote)?)
    }

    fn add_data_socket(&mut self, socket: UdpSocket) -> anyhow::Result<SocketId> {
        let socket = DataSocket::new(Arc::new(socket)).context("the network's socket cannot be used")?;
        let socket = Arc::new(socket);
        let id = SocketId(self.number());
        (self.orders)(Change::AddSocket { id, socket, pair: 0 }.into());
        Ok(id)
    }
}

/// Share of UDP payload in packets of 1,400 bytes, less 1 %, so that a sender at a neighbour's cap
/// builds no queue there. Source: 28 of these bytes are headers of IPv4 (RFC 791) and UDP (RFC
/// 768), which leaves 0.98.
const PAYLOAD: f64 = 0.97;

/// Returns whether an address of a hub is of use on networks with a translator only.
#[must_use]
pub fn is_made_by_translator(address: &SocketAddr) -> bool {
    matches!(address.ip(), IpAddr::V6(v6) if is_of_translator(v6))
}

/// Returns the address at which a hub is reached: the first one of its own that `fits`, or else the
/// first one of IPv4 behind the prefix of a translator. Addresses that another network's translator
/// has made come last.
fn reached(
    addresses: &[SocketAddr],
    fits: impl Fn(&SocketAddr) -> bool,
    nat64: Option<Prefix>,
) -> Option<SocketAddr> {
    let own = addresses
        .iter()
        .find(|address| fits(address) && !is_made_by_translator(address));
    let translated = || addresses.iter().find_map(|address| nat64?.translate(*address));
    let made = || addresses.iter().find(|address| fits(address));
    own.copied().or_else(translated).or_else(|| made().copied())
}

/// Returns whether existing sockets are unusable now: they are bound to the device, and packets in
/// flight to the address.
fn needs_new_sockets(before: &Network, now: &Network) -> bool {
    before.index != now.index
        || before.v4 != now.v4
        || before.v6 != now.v6
        || before
            .addresses
            .iter()
            .any(|address| !now.addresses.contains(address))
}

fn open(network: &Network, remote: SocketAddr) -> anyhow::Result<UdpSocket> {
    open_bound(&network.name, remote.is_ipv6())
        .with_context(|| format!("cannot open a socket on the network {}", network.name))
}

fn quic_endpoint(network: &Network, socket: UdpSocket) -> anyhow::Result<quinn::Endpoint> {
    quinn::Endpoint::new(
        tls::client_endpoint_config(),
        None,
        socket,
        Arc::new(quinn::TokioRuntime),
    )
    .with_context(|| format!("cannot use QUIC on the network {}", network.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_is_reached_by_its_own_address_or_else_behind_a_translator() {
        let address = |text: &str| -> SocketAddr { text.parse().expect(text) };
        let prefix = Prefix::new("64:ff9b::".parse().expect("an address"), 96);
        let (v4, v6) = (address("198.51.100.1:443"), address("[2001:db8::1]:443"));
        let over = |addresses: &[SocketAddr], ipv6: bool, nat64| {
            reached(addresses, |address| address.is_ipv6() == ipv6, nat64)
        };
        assert_eq!(over(&[v4, v6], true, prefix), Some(v6));
        assert_eq!(
            over(&[v4], true, prefix),
            Some(address("[64:ff9b::198.51.100.1]:443"))
        );
        assert_eq!(over(&[v4], true, None), None);
        assert_eq!(over(&[v6, v4], false, None), Some(v4));
        let made = address("[64:ff9b::198.51.100.1]:443");
        assert_eq!(over(&[made, v6], true, None), Some(v6), "made by another network");
        assert_eq!(over(&[made], true, None), Some(made));
        let private = address("10.0.0.1:443");
        assert_eq!(over(&[private, v4], true, prefix), over(&[v4], true, prefix));
    }
}
