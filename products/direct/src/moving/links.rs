//! Connections to the known peers: one over each network, so that a peer can be notified of a
//! migration after the failure of a flow's network.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Context;
use hawser_config::identity::Identity;
use hawser_control::peer::{Outbox, converse, dial};
use hawser_control::peers::{self, Peer};
use hawser_control::tls;
use hawser_linux::netlink::Network;
use hawser_linux::udp::open_bound;
use hawser_wire::peer::{PeerHello, PeerMessage, VERSION};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Event of a connection to a peer.
pub(crate) struct LinkNews {
    pub(super) peer: String,
    pub(super) number: u8,
    serial: u64,
    pub(super) what: LinkEvent,
}

pub(super) enum LinkEvent {
    Up(Up),
    Message(PeerMessage),
    Down(String),
}

/// Established connection.
pub(super) struct Up {
    /// Port of the peer for openings.
    pub(super) port: u16,
    pub(super) remote: SocketAddr,
    /// Addresses of the peer's name.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) outbox: Outbox,
}

struct Link {
    serial: u64,
    network: Network,
    task: JoinHandle<()>,
    up: Option<Up>,
    /// Reason why it is not connected.
    trouble: Option<String>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(super) struct Links {
    dir: PathBuf,
    identity: Option<Identity>,
    peers: Vec<Peer>,
    links: BTreeMap<(String, u8), Link>,
    tell: mpsc::Sender<LinkNews>,
    next: u64,
    /// Messages dropped because the queue to a peer was full.
    dropped: Arc<AtomicU64>,
}

impl Links {
    pub(super) fn new(dir: PathBuf, tell: mpsc::Sender<LinkNews>) -> Self {
        Self {
            dir,
            identity: None,
            peers: Vec::new(),
            links: BTreeMap::new(),
            tell,
            next: 0,
            dropped: Arc::default(),
        }
    }

    pub(super) fn peers(&self) -> &[Peer] {
        &self.peers
    }

    /// Updates the list of peers, which `hawser peer join` may have changed.
    pub(super) fn update_peers(&mut self) {
        match peers::load(&self.dir) {
            Ok(peers) if peers != self.peers => {
                self.links.retain(|(name, _), _| {
                    peers
                        .iter()
                        .any(|peer| peer.name == *name && self.peers.contains(peer))
                });
                self.peers = peers;
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(error = format!("{error:#}"), "cannot read the peers"),
        }
    }

    /// Maintains a connection to every peer over every present network.
    pub(super) fn keep(&mut self, networks: &[(u8, &Network)]) {
        self.links.retain(|(_, number), link| {
            networks
                .iter()
                .any(|(there, network)| there == number && **network == link.network)
        });
        let pairs = networks.iter().flat_map(|(number, network)| {
            let peers = self.peers.iter();
            peers.map(move |peer| (peer, *number, *network))
        });
        let wanted: Vec<_> = pairs
            .filter(|(peer, number, _)| !self.links.contains_key(&(peer.name.clone(), *number)))
            .map(|(peer, number, network)| (peer.clone(), number, network.clone()))
            .collect();
        for (peer, number, network) in wanted {
            if let Err(error) = self.start(peer, number, network) {
                tracing::warn!(error = format!("{error:#}"), "a peer is not reached");
            }
        }
    }

    fn start(&mut self, peer: Peer, number: u8, network: Network) -> anyhow::Result<()> {
        if self.identity.is_none() {
            self.identity = Some(peers::identity(&self.dir)?);
        }
        let identity = self.identity.as_ref().context("there is a key")?;
        let config = tls::client_config(identity, peer.key)?;
        let serial = self.next;
        self.next += 1;
        let key = (peer.name.clone(), number);
        let reporter = Reporter {
            peer: peer.name.clone(),
            number,
            serial,
            dropped: Arc::clone(&self.dropped),
            tell: self.tell.clone(),
        };
        let task = hawser_linux::tasks::spawn(stay_connected(peer, network.clone(), config, reporter));
        let link = Link {
            serial,
            network,
            task,
            up: None,
            trouble: None,
        };
        self.links.insert(key, link);
        Ok(())
    }

    /// Handles an event; returns the message of a peer.
    pub(super) fn on_news(&mut self, news: LinkNews) -> Option<(String, u8, PeerMessage)> {
        let link = self.links.get_mut(&(news.peer.clone(), news.number))?;
        if link.serial != news.serial {
            return None;
        }
        match news.what {
            LinkEvent::Up(up) => {
                tracing::debug!(peer = news.peer, network = link.network.name, "peer reached");
                (link.up, link.trouble) = (Some(up), None);
                None
            }
            LinkEvent::Down(why) => {
                if link.trouble.as_ref() != Some(&why) {
                    tracing::debug!(
                        peer = news.peer,
                        network = link.network.name,
                        why,
                        "peer not reached"
                    );
                }
                (link.up, link.trouble) = (None, Some(why));
                None
            }
            LinkEvent::Message(message) => Some((news.peer, news.number, message)),
        }
    }

    /// Returns the connection to a peer over that network.
    pub(super) fn up(&self, peer: &str, number: u8) -> Option<&Up> {
        self.links.get(&(peer.to_owned(), number))?.up.as_ref()
    }

    /// Returns a connection to a peer, over one of the networks `alive` if possible.
    pub(super) fn any(&self, peer: &str, alive: &BTreeSet<u8>) -> Option<(u8, &Up)> {
        let mut all = self.of(peer);
        let mut first = None;
        all.find(|(number, up)| {
            first.get_or_insert((*number, *up));
            alive.contains(number)
        })
        .or(first)
    }

    fn of(&self, peer: &str) -> impl Iterator<Item = (u8, &Up)> {
        self.links
            .iter()
            .filter(move |((name, _), _)| name == peer)
            .filter_map(|((_, number), link)| Some((*number, link.up.as_ref()?)))
    }

    /// Returns the peer that has this address.
    pub(super) fn owner(&self, address: IpAddr) -> Option<&str> {
        let mut all = self.links.iter();
        all.find(|(_, link)| {
            link.up
                .as_ref()
                .is_some_and(|up| up.remote.ip() == address || up.addresses.contains(&address))
        })
        .map(|((name, _), _)| name.as_str())
    }

    /// Returns all addresses of all peers.
    pub(super) fn addresses(&self) -> BTreeSet<IpAddr> {
        let up = self.links.values().filter_map(|link| link.up.as_ref());
        let mut all = BTreeSet::new();
        all.extend(up.flat_map(|up| up.addresses.iter().copied().chain([up.remote.ip()])));
        all
    }

    /// Yields each peer and network, with the reason if the peer is not reached over the network.
    pub(super) fn states(&self) -> impl Iterator<Item = (&str, &str, Option<&str>)> {
        self.links.iter().map(|((peer, _), link)| {
            let trouble = match &link.up {
                Some(_) => None,
                None => Some(link.trouble.as_deref().unwrap_or("not reached yet")),
            };
            (peer.as_str(), link.network.name.as_str(), trouble)
        })
    }
}

struct Reporter {
    peer: String,
    number: u8,
    serial: u64,
    dropped: Arc<AtomicU64>,
    tell: mpsc::Sender<LinkNews>,
}

impl Reporter {
    /// Passes an event on, and waits while the queue is full, which also delays the peer.
    async fn notify(&self, what: LinkEvent) {
        let _ = self.tell.send(self.news(what)).await;
    }

    fn news(&self, what: LinkEvent) -> LinkNews {
        LinkNews {
            peer: self.peer.clone(),
            number: self.number,
            serial: self.serial,
            what,
        }
    }
}

async fn stay_connected(peer: Peer, network: Network, config: quinn::ClientConfig, reporter: Reporter) {
    let mut pause = FIRST_PAUSE;
    loop {
        match connect(&peer, &network, &config, &reporter).await {
            Ok(why) => {
                pause = FIRST_PAUSE;
                reporter.notify(LinkEvent::Down(why)).await;
            }
            Err(error) => reporter.notify(LinkEvent::Down(format!("{error:#}"))).await,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Connects and serves the connection until its end. Returns the reason of the end.
async fn connect(
    peer: &Peer,
    network: &Network,
    config: &quinn::ClientConfig,
    reporter: &Reporter,
) -> anyhow::Result<String> {
    let mut addresses = Vec::new();
    for endpoint in &peer.endpoints {
        let lookup = tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port));
        let found = tokio::time::timeout(LOOKUP, lookup)
            .await
            .context("its name does not resolve: no answer")?;
        addresses.extend(found.with_context(|| format!("cannot resolve {}", endpoint.host))?);
    }
    let remote = addresses
        .iter()
        .copied()
        .find(|address| network.carries(address.is_ipv6()));
    let remote = remote.context("it has no address of the IP versions of this network")?;
    let socket = open_bound(&network.name, remote.is_ipv6())?;
    let runtime = Arc::new(quinn::TokioRuntime);
    let endpoint = quinn::Endpoint::new(tls::client_endpoint_config(), None, socket, runtime)?;
    let hello = PeerHello {
        version: VERSION,
        enrol_token: Some(peer.token.0),
        name_hint: String::new(),
    };
    let dialled = dial(&endpoint, config.clone(), remote, hello).await?;
    let (outbox, messages) = Outbox::new(Arc::clone(&reporter.dropped));
    reporter
        .notify(LinkEvent::Up(Up {
            port: dialled.port,
            remote,
            addresses: addresses.iter().map(SocketAddr::ip).collect(),
            outbox,
        }))
        .await;
    let why = converse(dialled.stream, messages, &reporter.tell, |message| {
        Ok(reporter.news(LinkEvent::Message(message)))
    })
    .await;
    dialled.connection.close(0_u8.into(), b"");
    Ok(why)
}

/// First pause between two attempts at a peer; doubles up to [`LAST_PAUSE`]. Source: our choice; a
/// shorter one burdens a peer that restarts, a longer one delays moves after its return.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause between two attempts at a peer. Source: our choice; a longer one delays moves
/// after a peer's return, a shorter one costs a handshake more often while it is away.
const LAST_PAUSE: Duration = Duration::from_secs(10);
/// Timeout of a lookup. Source: the timeout of the C library (`RES_TIMEOUT`, resolv.conf(5), 5 s).
const LOOKUP: Duration = Duration::from_secs(5);
