//! `hub.toml`: configuration of a hub.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use hawser_linux::isolation::{Isolation, LedSubnet};
use hawser_units::{Net, Service};
use hawser_wire::layer;
use serde::Deserialize;

use crate::invitation::HubAddress;
use crate::{
    ClientNames, ControllerName, DEFAULT_MTU, Endpoint, HubGreConfig, HubTlsConfig, HubWireGuardConfig,
    InterfaceName, LayerConfig, LimitsConfig, LogFilter, Mtu, Nat, NatAddresses, Net4, Net6, OtlpConfig,
    Pool, ReachConfig, Schedulers, SessionTimeout, StoreConfig, StreamsConfig, ThreadPairs, TlsListen,
    WhenStopped, ports,
};

/// Contents of `hub.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubConfig {
    /// Addresses of the hub for clients, as in invitations: `HOST:PORT`, the most probable first.
    pub endpoints: Vec<Endpoint>,
    /// UDP address to listen on; by default every address, at the port of the first endpoint.
    pub listen: Option<SocketAddr>,
    /// Inner IPv4 addresses: `100.96.0.0/16`.
    pub pool: Net4,
    /// Inner IPv6 addresses: `fdXX:...::/64`.
    #[serde(default)]
    pub pool6: Option<Net6>,
    /// Inner interface of the hub.
    #[serde(default = "hub_interface")]
    pub interface: InterfaceName,
    /// MTU in bytes.
    #[serde(default = "default_mtu")]
    pub mtu: Mtu,
    /// Network address translation of clients to the hub's own address: `"auto"` (when the pool is
    /// private), `true`, `false`.
    #[serde(default)]
    pub nat: Nat,
    /// Addresses under which clients appear with NAT, at most one of each family; by default the
    /// first one of the outgoing interface. An address that moves to a standby must be named here.
    #[serde(default)]
    pub nat_addresses: NatAddresses,
    /// Resolvers that clients may use through the tunnel; if empty, those of the hub's machine that
    /// clients can reach.
    #[serde(default)]
    pub dns: Vec<IpAddr>,
    /// Makes the hub resolve the names of its clients (`alice.hawser`), and forward all other names
    /// to these resolvers.
    #[serde(default)]
    pub names: bool,
    /// Destinations that clients may reach in addition to public addresses, and sources that may
    /// reach clients.
    #[serde(default)]
    pub reach: ReachConfig,
    /// Default limits of a client.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// TCP connections that the hub opens for its clients.
    #[serde(default)]
    pub streams: StreamsConfig,
    /// Access for clients whose networks block UDP.
    #[serde(default)]
    pub tls: HubTlsConfig,
    /// Members without Hawser, through which clients may connect; none if absent.
    #[serde(default)]
    pub gre: Option<HubGreConfig>,
    /// Access for phones and other devices with WireGuard's own apps; disabled if absent.
    #[serde(default)]
    pub wireguard: Option<HubWireGuardConfig>,
    /// Database of the clients, for several hubs; if absent, the clients are stored in files next
    /// to this one.
    #[serde(default)]
    pub store: Option<StoreConfig>,
    /// Clients that may send moved flows through this hub, by name; `"*"` for all.
    #[serde(default)]
    pub waypoint: ClientNames,
    /// Scheduler by flow class for the hub's sending direction, unless a client requests another.
    #[serde(default)]
    pub schedulers: Schedulers,
    /// Congestion controller of the paths on which the hub sends.
    #[serde(default)]
    pub controller: ControllerName,
    /// Rules that recognise packets of layered streams that the hub sends; the first match decides.
    #[serde(default, rename = "layer")]
    pub layers: Vec<LayerConfig>,
    /// Number of thread pairs for packets, each with its own sessions; by default one for every two
    /// processors.
    #[serde(default)]
    pub thread_pairs: Option<ThreadPairs>,
    /// Effect of SIGTERM if no service manager has started the hub.
    #[serde(default)]
    pub when_stopped: WhenStopped,
    /// Time after which the session of an absent client ends, with its streams.
    #[serde(default)]
    pub session_timeout: SessionTimeout,
    /// Address for requests of Prometheus; disabled if absent.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
    /// Collector of metrics; none if absent.
    #[serde(default)]
    pub otlp: Option<OtlpConfig>,
    /// Setting of the record of clients' paths over a day and a year.
    #[serde(default = "yes")]
    pub history: bool,
    /// Log level.
    #[serde(default)]
    pub log: Option<LogFilter>,
}

impl HubConfig {
    /// Returns the UDP address to listen on.
    pub fn listen_address(&self) -> SocketAddr {
        let port = self
            .endpoints
            .first()
            .map_or(ports::HUB, |endpoint| endpoint.0.port);
        self.listen
            .unwrap_or_else(|| (Ipv6Addr::UNSPECIFIED, port).into())
    }

    /// Returns the TCP address to listen on, if any.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        match self.tls.listen {
            Some(TlsListen::Off) => None,
            Some(TlsListen::At(at)) => Some(at),
            None => Some((self.listen_address().ip(), ports::TLS).into()),
        }
    }

    /// Returns the address pools.
    #[must_use]
    pub fn pools(&self) -> Pool {
        Pool {
            v4: (self.pool.0, self.pool.1),
            v6: self.pool6.as_ref().map(|net| (net.0, net.1)),
        }
    }

    /// Returns the address of the hub in the configurations of WireGuard clients, if it has one.
    #[must_use]
    pub fn wireguard_address(&self) -> Option<HubAddress> {
        let config = self.wireguard.as_ref()?;
        let (endpoint, port) = (self.endpoints.first(), config.listen.port());
        let by_default = || {
            endpoint.map(|endpoint| HubAddress {
                port,
                ..endpoint.0.clone()
            })
        };
        config
            .endpoint
            .clone()
            .map(|endpoint| endpoint.0)
            .or_else(by_default)
    }

    /// Returns the reason why well-formed tables are not compatible.
    #[must_use]
    pub fn unfit(&self) -> Option<&'static str> {
        let has_both = self.wireguard.is_some() && self.store.is_some();
        has_both.then_some(
            "[wireguard] and [store] exclude each other, because a WireGuard client knows the key and the \
             address of one hub only: remove one of the tables",
        )
    }

    /// Returns the rules that recognise packets of layered streams.
    #[must_use]
    pub fn layer_rules(&self) -> Vec<layer::Rule> {
        self.layers.iter().map(|layer| layer.0).collect()
    }

    /// Returns the addresses for invitations.
    #[must_use]
    pub fn addresses(&self) -> Vec<HubAddress> {
        self.endpoints.iter().map(|endpoint| endpoint.0.clone()).collect()
    }

    /// Returns the rules between clients and others, with the forwarded ports and routed subnets.
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
