//! What of clients is reached from outside and from each other: ports of the hub that lead to them
//! (`hawser hub forward`), and subnets behind them (`hawser hub subnet`).

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

use super::{Hub, load, masks, open_store};

/// Leads a port of the hub to a client, or to nobody again. A hub that runs follows within a
/// second.
///
/// # Errors
/// There is no such client, the port is taken, or the disk refuses.
pub fn forward(dir: &Path, name: &str, port: Service, is_on: bool) -> anyhow::Result<()> {
    let config = load(dir)?;
    if is_on {
        let udp = Service::Udp(config.listen_address().port());
        let tls = config.tls_address().map(|at| Service::Tcp(at.port()));
        if port == udp || Some(port) == tls {
            bail!("{port} is the hub's own: clients come in there");
        }
        if is_served_here(port) {
            bail!("{port} is served by this machine itself: choose another port");
        }
    }
    let mut store = open_store(dir, &config)?;
    store.set_port(name, port, is_on)
}

/// Leads a subnet to a client, or to nobody again. A hub that runs follows within a second. Must be
/// called within a tokio runtime.
///
/// # Errors
/// There is no such client, the subnet overlaps another or a network of this machine, or the disk
/// refuses.
pub async fn subnet(dir: &Path, name: &str, subnet: &Subnet, is_on: bool) -> anyhow::Result<()> {
    let config = load(dir)?;
    if is_on {
        let near = netlink::subnets_of(|device| device != config.interface.0);
        let near = near.await.context("cannot list the networks of this machine")?;
        if let Some(near) = near.iter().find(|near| near.overlaps(subnet.net)) {
            let (net, near) = (subnet.net, near);
            bail!("{net} overlaps {near}, a network of this machine itself");
        }
    }
    let (dir, name, subnet) = (dir.to_owned(), name.to_owned(), subnet.clone());
    let change = move || open_store(&dir, &config)?.set_subnet(&name, &subnet, is_on);
    tokio::task::spawn_blocking(change)
        .await
        .expect("no change panics")
}

/// Whether a program of this machine listens at the port.
fn is_served_here(port: Service) -> bool {
    let any = IpAddr::from(Ipv6Addr::UNSPECIFIED);
    let tried = match port {
        Service::All => return true,
        Service::Tcp(port) => TcpListener::bind((any, port)).map(drop),
        Service::Udp(port) => UdpSocket::bind((any, port)).map(drop),
    };
    tried.is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
}

/// What leads to clients, as the rules have it.
pub(super) struct Leading {
    pub(super) ports: Vec<(Service, IpAddr)>,
    pub(super) subnets: Vec<LedSubnet>,
    pub(super) grants: Vec<Grant>,
}

impl Leading {
    /// Returns the rules of a configuration with this.
    pub(super) fn isolation(self, config: &HubConfig) -> Isolation {
        Isolation {
            grants: self.grants,
            ..config.isolation(self.ports, self.subnets)
        }
    }

    /// As the store has it.
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

/// Returns what `allow` of `[reach]` means for the clients that there are.
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

/// The rules and routes of clients, as they are in force.
pub(super) struct Reach {
    store: SharedStore,
    system: System,
    nat: Nat,
    pairs: Pairs,
    /// `[reach]` in force.
    allowed: ReachConfig,
    /// Of the store, when they were read; none before there are routes.
    generation: Option<u64>,
    /// The rules in force.
    isolation: Isolation,
    /// The addresses of this machine, each with its prefix length.
    local: Vec<Net>,
    /// Orders to the data plane, which enforces the same rules in the process.
    orders: Orders,
}

impl Reach {
    /// `isolation` is in force, and no routes are; the machine has the addresses `local`.
    pub(super) fn new(
        (store, system): (SharedStore, System),
        (nat, pairs, allowed): (Nat, Pairs, ReachConfig),
        (isolation, local): (Isolation, Vec<Net>),
        orders: Orders,
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
        }
    }

    /// What other programs do to the machine's rules.
    pub(super) fn notices(&self) -> Vec<String> {
        self.system.notices()
    }

    /// As the store has it.
    pub(super) fn leading(&self) -> Leading {
        Leading::of(&self.store, self.nat, self.pairs, &self.allowed)
    }

    /// Takes in a changed `[reach]`, for what [`leading`](Self::leading) returns.
    pub(super) fn set_allowed(&mut self, allowed: &ReachConfig) {
        self.allowed = allowed.clone();
    }

    /// Takes in the addresses of this machine, each with its prefix length.
    pub(super) fn set_local(&mut self, local: Vec<Net>) {
        if self.local != local {
            self.local = local;
            self.send_policy();
        }
    }

    fn send_policy(&self) {
        let policy = client_policy(&self.isolation, &self.local);
        (self.orders)(Change::SetClientPolicy(Arc::new(policy)).into());
    }

    /// Puts rules and routes into force.
    pub(super) async fn enforce(&mut self, isolation: Isolation) -> anyhow::Result<()> {
        let set = self.system.nft_table(ISOLATION_TABLE, &isolation.body());
        set.context("cannot change what clients reach")?;
        self.isolation = isolation;
        self.send_policy();
        let nets: Vec<_> = self.isolation.subnets.iter().map(|subnet| subnet.net).collect();
        let left_out = self.system.led_subnets(&self.isolation.interface, &nets).await;
        for (net, near) in left_out.context("cannot route subnets to clients")? {
            tracing::error!(subnet = %net, network = %near, "a subnet of a client overlaps a network of this machine, which keeps it");
        }
        Ok(())
    }
}

/// Translates `isolation` for the filter in the process; `local`: the machine's addresses, each
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

/// The directed broadcast address of a machine's address; none of point-to-point networks
/// (RFC 3021) and of IPv6.
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
    /// Follows the store, once it has been read again.
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
            Ok(()) => tracing::info!(ports = counts.0, subnets = counts.1, "lead to clients"),
            Err(error) => tracing::error!(error = format!("{error:#}"), "clients are reached as before"),
        }
    }
}
