//! Resolver of the hub for its clients, with `names = true`: it answers `alice.hawser` itself
//! (`zone.rs`), and forwards all other queries to the resolvers of hub.toml, or those of the
//! machine.
//!
//! It listens only at the hub's inner addresses, and does not cache answers. Rules enforce each
//! client's source address, so the address identifies the client.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hawser_config::HubConfig;
use hawser_control::enrolment::SharedStore;
use hawser_host::dns::server::{self, Answer, Server};
use hawser_host::dns::{NameServers, exchange};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::zone::{Reply, Zone, failure};

/// Settings of the resolver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Terms {
    /// Set if clients reach each other.
    is_open: bool,
    /// Inner addresses of the hub.
    own: Vec<IpAddr>,
    /// Resolvers for all other names.
    upstream: Vec<IpAddr>,
}

impl Terms {
    /// Makes the hub's own addresses the resolvers of its clients if `names` is enabled; the
    /// previous resolvers get all other queries.
    pub(super) fn take_over(config: &mut HubConfig) -> Self {
        let (v4, v6) = config.pools().hub();
        let own: Vec<_> = std::iter::once(IpAddr::from(v4))
            .chain(v6.map(IpAddr::from))
            .collect();
        let mut upstream = Vec::new();
        if config.names {
            upstream = std::mem::replace(&mut config.dns, own.clone());
            if upstream.is_empty() {
                upstream = NameServers::of_machine();
            }
            // The hub would query itself.
            upstream.retain(|server| !own.contains(server));
        }
        Self {
            is_open: config.reach.clients,
            own,
            upstream,
        }
    }
}

/// Context of a task that answers.
#[derive(Clone)]
struct Desk {
    store: SharedStore,
    terms: watch::Receiver<Terms>,
}

/// Answers at port 53 of the hub's inner addresses until `terms` is dropped.
pub(super) fn serve(store: SharedStore, terms: watch::Receiver<Terms>) {
    let own = terms.borrow().own.clone();
    let room = Arc::new(Semaphore::new(server::MAX_QUESTIONS));
    let desk = Desk { store, terms };
    for address in own {
        let at = SocketAddr::new(address, server::PORT);
        hawser_linux::tasks::spawn(listen(at, desk.clone(), Arc::clone(&room)));
    }
}

/// Waits until the address can be bound: a process that hands over releases it a moment later.
async fn listen(at: SocketAddr, desk: Desk, room: Arc<Semaphore>) {
    let mut has_warned = false;
    let server = loop {
        match Server::bind(at).await {
            Ok(server) => break server,
            Err(error) if !has_warned => {
                tracing::warn!(%at, %error, "names of clients are not resolved: another resolver may use port 53 of all addresses");
                has_warned = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    };
    tracing::info!(%at, "the names of clients are resolved");
    let mut terms = desk.terms.clone();
    let ended = async { while terms.changed().await.is_ok() {} };
    tokio::select! {
        () = server.run(desk, room) => {}
        () = ended => {}
    }
}

impl Answer for Desk {
    async fn answer(&self, query: &[u8], asker: IpAddr, is_stream: bool) -> Option<Vec<u8>> {
        match self.zone().reply(query, asker)? {
            Reply::Own(bytes) => Some(bytes),
            Reply::PassOn => {
                let upstream = self.terms.borrow().upstream.clone();
                for resolver in upstream.iter().take(MAX_SERVERS) {
                    let resolver = SocketAddr::new(*resolver, server::PORT);
                    let asked = timeout(TIMEOUT, ask(resolver, query, is_stream)).await;
                    match asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                        Ok(answer) => return Some(answer),
                        Err(error) => tracing::debug!(%resolver, %error, "a resolver does not answer"),
                    }
                }
                failure(query)
            }
        }
    }
}

impl Desk {
    fn zone(&self) -> Zone {
        let terms = self.terms.borrow();
        let store = self.store.lock();
        Zone {
            hub: terms.own.clone(),
            clients: store
                .iter()
                .filter(|client| client.owner().is_some())
                .map(|client| (client.name.clone(), client.inner()))
                .collect(),
            is_open: terms.is_open,
        }
    }
}

/// Queries a resolver by the routes of the machine; the answer has the id of `query`.
async fn ask(server: SocketAddr, query: &[u8], is_stream: bool) -> io::Result<Vec<u8>> {
    let answer = if is_stream {
        exchange::by_stream(&mut TcpStream::connect(server).await?, query).await
    } else {
        let any: IpAddr = match server {
            SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).await?;
        socket.connect(server).await?;
        exchange::by_datagram(&socket, query).await
    };
    let mut bytes = answer?.bytes;
    bytes[..2].copy_from_slice(&query[..2]);
    Ok(bytes)
}

/// Maximum number of queried resolvers. Source: resolv.conf(5), MAXNS.
const MAX_SERVERS: usize = 3;
/// Timeout of a resolver's answer. Source: the C library retries after 5 s (resolv.conf(5)), by
/// which time all three have been queried.
const TIMEOUT: Duration = Duration::from_millis(1500);
/// Retry interval of binding an address. Source: our choice; the address is that of the tunnel's
/// device, which is being set up.
const RETRY: Duration = Duration::from_secs(1);
