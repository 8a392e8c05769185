//! `hub.toml`: what a hub is told.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use hawser_linux::isolation::{Isolation, LedSubnet};
use hawser_units::{Net, Service};
use hawser_wire::layer;
use serde::Deserialize;

use crate::invitation::HubAddress;
use crate::{
    ClientNames, DEFAULT_MTU, Endpoint, HubGreConfig, HubTlsConfig, InterfaceName, LayerConfig, LimitsConfig,
    LogFilter, Mtu, Nat, NatAddresses, Net4, Net6, OtlpConfig, Pool, ReachConfig, Schedulers, StoreConfig,
    StreamsConfig, ThreadPairs, TlsListen, WhenStopped, ports,
};

/// What `hub.toml` says.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubConfig {
    /// Where clients reach the hub, as invitations say it: `HOST:PORT`, the likeliest first.
    pub endpoints: Vec<Endpoint>,
    /// The UDP address to listen on; by default every address, at the port of the first endpoint.
    pub listen: Option<SocketAddr>,
    /// Inner IPv4 addresses: `100.96.0.0/16`.
    pub pool: Net4,
    /// Inner IPv6 addresses: `fdXX:...::/64`.
    #[serde(default)]
    pub pool6: Option<Net6>,
    /// The hub's inner interface.
    #[serde(default = "hub_interface")]
    pub interface: InterfaceName,
    /// Its MTU in bytes.
    #[serde(default = "default_mtu")]
    pub mtu: Mtu,
    /// Whether clients appear under the hub's own address: `"auto"` (when the pool is private),
    /// `true`, `false`.
    #[serde(default)]
    pub nat: Nat,
    /// Under which addresses clients appear then, one of each family at most; under the first of
    /// the interface that a packet leaves by unless set. One that moves to a standby is named here.
    #[serde(default)]
    pub nat_addresses: NatAddresses,
    /// Resolvers that clients may use through the tunnel; where empty, those of the hub's machine
    /// that they reach.
    #[serde(default)]
    pub dns: Vec<IpAddr>,
    /// Has the hub answer the names of its clients (`alice.hawser`), and pass all others on to
    /// these resolvers.
    #[serde(default)]
    pub names: bool,
    /// What clients reach beside public addresses, and who reaches them.
    #[serde(default)]
    pub reach: ReachConfig,
    /// What each client may use, unless it has limits of its own.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// TCP connections that the hub opens for its clients.
    #[serde(default)]
    pub streams: StreamsConfig,
    /// Where clients come in whose networks block UDP.
    #[serde(default)]
    pub tls: HubTlsConfig,
    /// Members without Hawser, through which clients come in; none when absent.
    #[serde(default)]
    pub gre: Option<HubGreConfig>,
    /// The database that keeps the clients, for several hubs; files beside this one unless set.
    #[serde(default)]
    pub store: Option<StoreConfig>,
    /// Which clients may send moved flows through this hub, by name; `"*"` for all.
    #[serde(default)]
    pub waypoint: ClientNames,
    /// Scheduler by flow class, for what the hub sends, unless a client wants another.
    #[serde(default)]
    pub schedulers: Schedulers,
    /// How packets of layered streams are known that the hub sends; the first that fits decides.
    #[serde(default, rename = "layer")]
    pub layers: Vec<LayerConfig>,
    /// How many pairs of threads carry packets, each with sessions of its own; one for every two
    /// processors unless set.
    #[serde(default)]
    pub thread_pairs: Option<ThreadPairs>,
    /// Effect of SIGTERM where no service manager has started the hub.
    #[serde(default)]
    pub when_stopped: WhenStopped,
    /// Where Prometheus may ask; off when absent.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
    /// A collector that figures are sent to; none when absent.
    #[serde(default)]
    pub otlp: Option<OtlpConfig>,
    /// Whether it is kept how clients' paths were over a day and a year.
    #[serde(default = "yes")]
    pub history: bool,
    /// What is logged.
    #[serde(default)]
    pub log: Option<LogFilter>,
}

impl HubConfig {
    /// Where clients come in by UDP.
    pub fn listen_address(&self) -> SocketAddr {
        let port = self
            .endpoints
            .first()
            .map_or(ports::HUB, |endpoint| endpoint.0.port);
        self.listen
            .unwrap_or_else(|| (Ipv6Addr::UNSPECIFIED, port).into())
    }

    /// Where they come in by TLS, if they do.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        match self.tls.listen {
            Some(TlsListen::Off) => None,
            Some(TlsListen::At(at)) => Some(at),
            None => Some((self.listen_address().ip(), ports::TLS).into()),
        }
    }

    /// The address pools.
    #[must_use]
    pub fn pools(&self) -> Pool {
        Pool {
            v4: (self.pool.0, self.pool.1),
            v6: self.pool6.as_ref().map(|net| (net.0, net.1)),
        }
    }

    /// How packets of layered streams are known.
    #[must_use]
    pub fn layer_rules(&self) -> Vec<layer::Rule> {
        self.layers.iter().map(|layer| layer.0).collect()
    }

    /// The addresses for invitations.
    #[must_use]
    pub fn addresses(&self) -> Vec<HubAddress> {
        self.endpoints.iter().map(|endpoint| endpoint.0.clone()).collect()
    }

    /// The rules between clients and others, with the ports and the subnets that lead to clients.
    #[must_use]
    pub fn isolation(&self, ports: Vec<(Service, IpAddr)>, subnets: Vec<LedSubnet>) -> Isolation {
        let (v4, v6) = self.pools().hub();
        let pool6 = self.pool6.as_ref().map(|net| Net::new(net.0, net.1));
        Isolation {
            interface: self.interface.0.clone(),
            pools: [Net::new(self.pool.0, self.pool.1)]
                .into_iter()
                .chain(pool6)
                .collect(),
            own: [IpAddr::from(v4)]
                .into_iter()
                .chain(v6.map(IpAddr::from))
                .collect(),
            resolvers: self.dns.clone(),
            clients: self.reach.clients,
            services: self.reach.hub.iter().map(|service| service.0).collect(),
            networks: self.reach.networks.iter().map(|net| net.0).collect(),
            denied: self.reach.deny.iter().map(|net| net.0).collect(),
            protocols: self.reach.protocols.iter().map(|protocol| protocol.0).collect(),
            from: self.reach.from.iter().map(|net| net.0).collect(),
            ports,
            subnets,
            grants: Vec::new(),
            lent: self.nat_addresses.0.clone(),
            marked: hawser_proto::flow::code_points().collect(),
        }
    }
}

fn hub_interface() -> InterfaceName {
    InterfaceName("hawserhub0".to_owned())
}

fn yes() -> bool {
    true
}

fn default_mtu() -> Mtu {
    Mtu(DEFAULT_MTU)
}
