//! Ports of the hub that lead to clients: `hawser hub forward`.

use std::net::{IpAddr, Ipv6Addr, TcpListener, UdpSocket};
use std::path::Path;

use anyhow::{Context, bail};
use hawser_control::enrolment::SharedStore;
use hawser_linux::isolation::{ISOLATION_TABLE, Isolation, Service};
use hawser_linux::system::replace_nft_table;

use super::{Hub, load, open_store};

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

/// The ports that lead to clients, as the rules in force have them.
pub(super) struct ClientPorts {
    store: SharedStore,
    /// Of the store, when they were read.
    generation: Option<u64>,
    /// The rules in force.
    pub(super) isolation: Isolation,
}

impl ClientPorts {
    pub(super) fn new(store: SharedStore, isolation: Isolation) -> Self {
        Self {
            store,
            generation: None,
            isolation,
        }
    }

    /// As the store has them.
    pub(super) fn of_clients(&self) -> Vec<(Service, IpAddr)> {
        self.store.lock().ports()
    }

    /// Puts rules into force.
    pub(super) fn enforce(&mut self, isolation: Isolation) -> anyhow::Result<()> {
        replace_nft_table(ISOLATION_TABLE, &isolation.body()).context("cannot change what clients reach")?;
        self.isolation = isolation;
        Ok(())
    }
}

impl Hub {
    /// Follows the store, once it has been read again.
    pub(super) fn see_to_ports(&mut self) {
        let generation = Some(self.ports.store.lock().generation());
        if generation == self.ports.generation {
            return;
        }
        self.ports.generation = generation;
        let fresh = Isolation {
            ports: self.ports.of_clients(),
            ..self.ports.isolation.clone()
        };
        if fresh == self.ports.isolation {
            return;
        }
        match self.ports.enforce(fresh) {
            Ok(()) => tracing::info!(ports = self.ports.isolation.ports.len(), "ports lead to clients"),
            Err(error) => tracing::error!(error = format!("{error:#}"), "ports lead where they led before"),
        }
    }
}
