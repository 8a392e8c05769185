//! The client's networks: a data socket and a QUIC endpoint each.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;
use hawser_dataplane::{Change, Orders, PathState, SocketId};
use hawser_linux::netlink::Network;
use hawser_linux::udp::open_near;
use hawser_linux::udp::{DataSocket, open_bound};
use hawser_units::{NetworkId, Rate};

use crate::tls;

/// A network in use.
pub struct Attached {
    /// As the kernel shows it.
    pub network: Network,
    /// Where the hub is reached over it.
    pub remote: SocketAddr,
    /// The data plane's socket on it.
    pub socket: SocketId,
    /// The control channel's endpoint on it.
    pub endpoint: quinn::Endpoint,
    /// What the data plane says of its path.
    pub state: Option<PathState>,
    /// The network polices its path, in either direction.
    pub is_policed: bool,
    /// What `remote` is.
    pub way: Way,
}

/// How the hub is reached over a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By UDP: `remote` is the hub.
    Udp,
    /// By TLS beside the way of UDP over that network: `remote` is a relay on loopback.
    Tls(NetworkId),
    /// Through a neighbour, which relays to that address of the hub: `remote` is a port of its, or
    /// the hub inside of GRE.
    /// At most `cap` in each direction.
    Member {
        /// The hub.
        hub: SocketAddr,
        /// Of UDP payload.
        cap: Option<Rate>,
    },
}

impl Attached {
    /// Which of these addresses its sockets lead to; none from where a relay stands in between.
    pub fn leads_to(&self, addresses: &[SocketAddr]) -> Option<SocketAddr> {
        let mut fitting = addresses
            .iter()
            .filter(|address| self.is_plain() && address.is_ipv6() == self.remote.is_ipv6());
        fitting.next().copied()
    }

    /// What its path is called.
    pub(crate) fn path_name(&self) -> String {
        match self.way {
            Way::Tls(_) => format!("{}/tls", self.network.name),
            Way::Udp | Way::Member { .. } => self.network.name.clone(),
        }
    }

    /// Whether a network of this machine leads to the hub here, with nothing in between.
    pub fn is_plain(&self) -> bool {
        self.way == Way::Udp
    }

    /// The caps towards the hub and from it: what is wanted here, and what a neighbour gives.
    pub fn caps(&self, wanted: [Option<Rate>; 2]) -> [Option<Rate>; 2] {
        let of_member = match self.way {
            Way::Member { cap, .. } => cap,
            Way::Udp | Way::Tls(_) => None,
        };
        wanted.map(|wanted| wanted.into_iter().chain(of_member).min())
    }
}

/// All networks in use.
pub struct Networks {
    orders: Orders,
    /// The next number of a network or a socket: those of all sessions of this machine differ.
    next: Arc<AtomicU32>,
    /// Each with its number.
    pub attached: BTreeMap<NetworkId, Attached>,
}

impl Networks {
    /// None yet; `orders` reach the data plane.
    pub fn new(orders: Orders) -> Self {
        Self {
            orders,
            next: Arc::default(),
            attached: BTreeMap::new(),
        }
    }

    /// None yet, of a session beside this one's.
    pub(super) fn beside(&self) -> Self {
        Self {
            orders: Arc::clone(&self.orders),
            next: Arc::clone(&self.next),
            attached: BTreeMap::new(),
        }
    }

    fn number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The network of that name, as it is without a relay in between.
    pub fn by_name(&self, name: &str) -> Option<NetworkId> {
        self.attached
            .iter()
            .find(|(_, a)| a.network.name == name && a.is_plain())
            .map(|(id, _)| *id)
    }

    /// Takes a network into use; `None` when the hub has no address of a family that it carries.
    pub fn attach(&mut self, network: Network, hub: &[SocketAddr]) -> anyhow::Result<Option<NetworkId>> {
        let Some(remote) = hub
            .iter()
            .find(|address| network.carries(address.is_ipv6()))
            .copied()
        else {
            return Ok(None);
        };
        let socket = self.add_socket(&network, remote)?;
        let endpoint = quic_endpoint(&network, open(&network, remote)?)?;
        Ok(Some(self.add(Attached {
            network,
            remote,
            socket,
            endpoint,
            state: None,
            is_policed: false,
            way: Way::Udp,
        })))
    }

    /// Takes the way by TLS beside a network into use: `relay` stands in place of the hub. `None`
    /// when the network is gone.
    pub fn attach_beside(
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
            socket,
            endpoint,
            state: None,
            is_policed: false,
            way: Way::Tls(id),
        })))
    }

    /// Where the hub is reached over a network, also where a relay stands in between.
    pub fn hub(&self, id: NetworkId) -> Option<SocketAddr> {
        let attached = self.attached.get(&id)?;
        match attached.way {
            Way::Tls(plain) => Some(self.attached.get(&plain)?.remote),
            Way::Udp => Some(attached.remote),
            Way::Member { hub, .. } => Some(hub),
        }
    }

    /// Takes a neighbour's way out into use: `relay` stands in place of the hub. `cap_bps`: of IP
    /// packets; 0 for none.
    pub fn attach_member(
        &mut self,
        label: &str,
        (relay, hub): (SocketAddr, SocketAddr),
        mtu: u16,
        cap_bps: u64,
    ) -> anyhow::Result<NetworkId> {
        // Local networks carry 1,500 bytes (RFC 894); where one does not, probes find that out.
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
            socket,
            endpoint,
            state: None,
            is_policed: false,
            way: Way::Member { hub, cap },
        }))
    }

    fn add(&mut self, attached: Attached) -> NetworkId {
        let id = NetworkId(self.number());
        self.attached.insert(id, attached);
        id
    }

    /// Gives a changed network new sockets where the old ones hang on what is gone. True: its path
    /// has to move to the new socket, and the old one, named, may go then.
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

    /// Forgets a network. Its path must have been closed.
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

/// The share of UDP payload in packets of 1,400 bytes, less one in a hundred: a sender that keeps a
/// neighbour's cap fills no queue there.
const PAYLOAD: f64 = 0.97;

/// Whether sockets that were opened before still work: they hang on the device, and packets under
/// way on the address.
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
    .with_context(|| format!("cannot speak QUIC on the network {}", network.name))
}
