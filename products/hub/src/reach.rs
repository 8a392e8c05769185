//! Reachability of clients from outside and from each other: ports of the hub that are forwarded to
//! them (`hawser hub forward`), and subnets behind them (`hawser hub subnet`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use hawser_config::{AllowConfig, AllowTo, HubConfig, Nat, ReachConfig};
use hawser_control::enrolment::{Client, ClientStore, SharedStore, Subnet};
use hawser_dataplane::{Change, Orders, Pairs};
use hawser_linux::isolation::{Grant, ISOLATION_TABLE, Isolation, LedSubnet};
use hawser_linux::netlink;
use hawser_linux::system::System;
use hawser_proto::client_filter::{self, Policy};
use hawser_units::{Net, Service, is_private};

use super::Hub;
use super::preparation::masks;
use super::stores::{load, open_store};
use super::wireguard::WireGuardClients;

/// Forwards a port of the hub to a client, or ends that. A running hub applies it within 1 s.
///
/// # Errors
/// If there is no such client, the port is taken, or writing fails.
pub fn forward(dir: &Path, name: &str, port: Service, is_on: bool) -> anyhow::Result<()> {
    let config = load(dir)?;
    if is_on {
        let udp = Service::Udp(config.listen_address().port());
        let tls = config.tls_address().map(|at| Service::Tcp(at.port()));
        let wireguard = config
            .wireguard
            .as_ref()
            .map(|config| Service::Udp(config.listen.port()));
        if port == udp || Some(port) == tls || Some(port) == wireguard {
            bail!("{port} is used by the hub itself: choose another port");
        }
        if is_served_here(port) {
            bail!("{port} is used by another service of this machine: choose another port");
        }
    }
    let mut store = open_store(dir, &config)?;
    store.set_port(name, port, is_on)
}

/// Routes a subnet to a client, or ends that. A running hub applies it within 1 s. Must be called
/// within a tokio runtime.
///
/// # Errors
/// If there is no such client, the subnet overlaps another one or a network of this machine, or
/// writing fails.
pub async fn subnet(dir: &Path, name: &str, subnet: &Subnet, is_on: bool) -> anyhow::Result<()> {
    let config = load(dir)?;
    if is_on {
        let near = netlink::subnets_of(|device| device != config.interface.0);
        let near = near.await.context("cannot list the networks of this machine")?;
        if let Some(near) = near.iter().find(|near| near.overlaps(subnet.net)) {
            let (net, near) = (subnet.net, near);
            bail!("{net} overlaps {near}, a network of this machine: choose another subnet");
        }
    }
    let (dir, name, subnet) = (dir.to_owned(), name.to_owned(), subnet.clone());
    let change = move || open_store(&dir, &config)?.set_subnet(&name, &subnet, is_on);
    tokio::task::spawn_blocking(change)
        .await
        .expect("no change panics")
}

/// Returns whether a program of this machine listens at the port.
fn is_served_here(port: Service) -> bool {
    let any = IpAddr::from(Ipv6Addr::UNSPECIFIED);
    let tried = match port {
        Service::All => return true,
        Service::Tcp(port) => TcpListener::bind((any, port)).map(drop),
        Service::Udp(port) => UdpSocket::bind((any, port)).map(drop),
    };
    tried.is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
}

/// Forwarded ports and routed subnets of clients, in the form of the rules.
pub(super) struct Leading {
    pub(super) ports: Vec<(Service, IpAddr)>,
    pub(super) subnets: Vec<LedSubnet>,
    pub(super) grants: Vec<Grant>,
}

impl Leading {
    /// Returns the rules of a configuration with these ports and subnets.
    pub(super) fn isolation(self, config: &HubConfig) -> Isolation {
        Isolation {
            grants: self.grants,
            ..config.isolation(self.ports, self.subnets)
        }
    }

    /// Reads the ports and subnets from the store.
    pub(super) fn of(store: &SharedStore, nat: Nat, pairs: Pairs, reach: &ReachConfig) -> Self {
        let store = store.lock();
        let grants = grants(&store, reach);
        let subnets = store.subnets().into_iter().map(|led| LedSubnet {
            is_hidden: masks(nat, is_private(led.net.address)),
            queue: (pairs.count() > 1).then(|| pairs.of(&led.to) as u8),
            net: led.net,
            guests: led.guests,
        });
        Self {
            ports: store.ports(),
            subnets: subnets.collect(),
            grants,
        }
    }
}

/// Resolves `allow` of `[reach]` for the present clients.
pub(super) fn grants(store: &ClientStore, reach: &ReachConfig) -> Vec<Grant> {
    let grant = |allow: &AllowConfig| {
        let clients = store.iter().filter(|client| reach.is_for(allow, &client.name));
        let of = |name: &str| store.iter().find(|client| client.name == *name);
        let hosts = |client: &Client| client.inner().into_iter().map(Net::host).collect();
        let subnets = |client: &Client| client.subnets.iter().map(|subnet| subnet.net).collect();
        let (to, is_between): (Vec<Net>, bool) = match &allow.to {
            AllowTo::Net(net) => (vec![*net], false),
            AllowTo::Client(name) => (of(name).map(hosts).unwrap_or_default(), true),
            AllowTo::Subnets(name) => (of(name).map(subnets).unwrap_or_default(), true),
        };
        Grant {
            from: clients.flat_map(Client::reach).collect(),
            to,
            services: allow.ports.iter().map(|service| service.0).collect(),
            is_between,
        }
    };
    let all = reach.allow.iter().map(grant);
    all.filter(|grant| !grant.from.is_empty() && !grant.to.is_empty())
        .collect()
}

/// Current rules and routes of clients.
pub(super) struct Reach {
    store: SharedStore,
    system: System,
    nat: Nat,
    pairs: Pairs,
    /// Current `[reach]`.
    allowed: ReachConfig,
    /// Generation of the store at the last read; `None` before routes exist.
    generation: Option<u64>,
    /// Current rules.
    isolation: Isolation,
    /// Addresses of this machine, each with its prefix length.
    local: Vec<Net>,
    /// Queue to the data plane, which enforces the same rules in the process.
    orders: Orders,
    /// Clients that use WireGuard, which have a separate filter.
    wireguard: Option<WireGuardClients>,
}

impl Reach {
    /// Creates the state with the current rules `isolation`, without routes; `local` are the
    /// machine's addresses.
    pub(super) fn new(
        (store, system): (SharedStore, System),
        (nat, pairs, allowed): (Nat, Pairs, ReachConfig),
        (isolation, local): (Isolation, Vec<Net>),
        (orders, wireguard): (Orders, Option<WireGuardClients>),
    ) -> Self {
        Self {
            store,
            system,
            nat,
            pairs,
            allowed,
            generation: None,
            isolation,
            local,
            orders,
            wireguard,
        }
    }

    /// Returns notices about other programs' effects on the machine's rules.
    pub(super) fn notices(&self) -> Vec<String> {
        self.system.notices()
    }

    /// Returns the ports and subnets of the store.
    pub(super) fn leading(&self) -> Leading {
        Leading::of(&self.store, self.nat, self.pairs, &self.allowed)
    }

    /// Applies a changed `[reach]` to the result of [`leading`](Self::leading).
    pub(super) fn set_allowed(&mut self, allowed: &ReachConfig) {
        self.allowed = allowed.clone();
    }

    /// Sets the addresses of this machine, each with its prefix length.
    pub(super) fn set_local(&mut self, local: Vec<Net>) {
        if self.local != local {
            self.local = local;
            self.send_policy();
        }
    }

    fn send_policy(&self) {
        let policy = Arc::new(client_policy(&self.isolation, &self.local));
        if let Some(wireguard) = &self.wireguard {
            wireguard.set_policy(&policy);
        }
        (self.orders)(Change::SetClientPolicy(policy).into());
    }

    /// Applies rules and routes.
    pub(super) async fn enforce(&mut self, isolation: Isolation) -> anyhow::Result<()> {
        let set = self.system.nft_table(ISOLATION_TABLE, &isolation.body());
        set.context("cannot change what clients reach")?;
        self.isolation = isolation;
        self.send_policy();
        let nets: Vec<_> = self.isolation.subnets.iter().map(|subnet| subnet.net).collect();
        let left_out = self.system.led_subnets(&self.isolation.interface, &nets).await;
        for (net, near) in left_out.context("cannot route subnets to clients")? {
            tracing::error!(subnet = %net, network = %near, "a subnet of a client overlaps a network of this machine: the subnet is not routed to the client");
        }
        Ok(())
    }
}

/// Converts `isolation` for the filter in the process; `local` are the machine's addresses, each
/// with its prefix length.
pub(super) fn client_policy(isolation: &Isolation, local: &[Net]) -> Policy {
    let isolation = isolation.clone();
    let local = local.iter().flat_map(|net| [Some(net.address), broadcast(*net)]);
    let subnets = isolation.subnets.into_iter();
    Policy {
        pools: isolation.pools,
        own: isolation.own,
        local: local.flatten().collect(),
        resolvers: isolation.resolvers,
        clients: isolation.clients,
        services: isolation.services,
        networks: isolation.networks,
        denied: isolation.denied,
        protocols: isolation.protocols,
        from: isolation.from,
        ports: isolation.ports,
        subnets: subnets.map(|subnet| (subnet.net, subnet.guests)).collect(),
        grants: isolation
            .grants
            .into_iter()
            .map(|grant| client_filter::Grant {
                from: grant.from,
                to: grant.to,
                services: grant.services,
            })
            .collect(),
    }
}

/// Returns the directed broadcast address of a network; `None` for point-to-point networks (RFC
/// 3021) and IPv6.
fn broadcast(net: Net) -> Option<IpAddr> {
    match net.address {
        IpAddr::V4(v4) if net.prefix < 31 => {
            let host = u32::MAX.checked_shr(u32::from(net.prefix)).unwrap_or(0);
            Some(Ipv4Addr::from_bits(v4.to_bits() | host).into())
        }
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

impl Hub {
    /// Applies changes of the store after it has been read again.
    pub(super) async fn see_to_reach(&mut self) {
        let reach = &mut self.reach;
        let generation = Some(reach.store.lock().generation());
        if generation == reach.generation {
            return;
        }
        let is_first = reach.generation.is_none();
        reach.generation = generation;
        let Leading {
            ports,
            subnets,
            grants,
        } = reach.leading();
        let counts = (ports.len(), subnets.len());
        let fresh = Isolation {
            ports,
            subnets,
            grants,
            ..reach.isolation.clone()
        };
        let wants_routes = is_first && !fresh.subnets.is_empty();
        if fresh == reach.isolation && !wants_routes {
            return;
        }
        match reach.enforce(fresh).await {
            Ok(()) => tracing::info!(ports = counts.0, subnets = counts.1, "routed to clients"),
            Err(error) => tracing::error!(
                error = format!("{error:#}"),
                "cannot change which clients are reachable"
            ),
        }
    }
}
