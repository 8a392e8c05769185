//! The hub's resolver for its clients, with `names = true`: it answers `alice.hawser` itself
//! (`zone.rs`), and passes all else on to the resolvers that hub.toml names, or those of the
//! machine.
//!
//! It listens at the hub's inner addresses alone, and remembers no answers. Rules give each client
//! its source address, so the address says who asks.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hawser_config::HubConfig;
use hawser_control::enrolment::SharedStore;
use hawser_host::dns::answer::Question;
use hawser_host::dns::{NameServers, read_framed, write_framed};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::zone::{Reply, Zone, failure};

/// Terms by which the resolver answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Terms {
    /// Set where clients reach each other.
    is_open: bool,
    /// Inner addresses of the hub.
    own: Vec<IpAddr>,
    /// Resolvers for all other names.
    upstream: Vec<IpAddr>,
}

impl Terms {
    /// Makes the hub's own addresses the resolvers of its clients, where names are answered; the
    /// resolvers before them are asked for all else.
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
            // It would ask itself.
            upstream.retain(|server| !own.contains(server));
        }
        Self {
            is_open: config.reach.clients,
            own,
            upstream,
        }
    }
}

/// Tools of a task that answers.
#[derive(Clone)]
struct Desk {
    store: SharedStore,
    terms: watch::Receiver<Terms>,
    room: Arc<Semaphore>,
}

/// Answers at port 53 of the hub's inner addresses, until the terms are dropped.
pub(super) fn serve(store: SharedStore, terms: watch::Receiver<Terms>) {
    let own = terms.borrow().own.clone();
    let desk = Desk {
        store,
        terms,
        room: Arc::new(Semaphore::new(MAX_AT_ONCE)),
    };
    for address in own {
        hawser_linux::tasks::spawn(listen(SocketAddr::new(address, DNS), desk.clone()));
    }
}

/// Waits until the address can be had: a process that hands over gives it up a moment later.
async fn listen(at: SocketAddr, desk: Desk) {
    let mut has_warned = false;
    let (datagrams, streams) = loop {
        let both = async {
            let datagrams = UdpSocket::bind(at).await?;
            Ok::<_, io::Error>((datagrams, TcpListener::bind(at).await?))
        };
        match both.await {
            Ok(both) => break both,
            Err(error) if !has_warned => {
                tracing::warn!(%at, %error, "names are not answered yet: does another resolver have port 53 of all addresses?");
                has_warned = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    };
    tracing::info!(%at, "names of clients are answered");
    let mut terms = desk.terms.clone();
    let ended = async { while terms.changed().await.is_ok() {} };
    tokio::select! {
        () = hear_datagrams(datagrams, &desk) => {}
        () = hear_streams(streams, &desk) => {}
        () = ended => {}
    }
}

async fn hear_datagrams(socket: UdpSocket, desk: &Desk) {
    let socket = Arc::new(socket);
    let mut buffer = vec![0; MAX_BYTES];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer).await {
            Ok(heard) => heard,
            Err(error) => {
                tracing::debug!(%error, "a question was not heard");
                continue;
            }
        };
        // A client that asks too much is not heard, and asks again.
        let Ok(permit) = Arc::clone(&desk.room).try_acquire_owned() else {
            continue;
        };
        let (query, socket, desk) = (buffer[..length].to_vec(), Arc::clone(&socket), desk.clone());
        hawser_linux::tasks::spawn(async move {
            if let Some(answer) = desk.answer(&query, from.ip(), false).await {
                let _ = socket.send_to(&answer, from).await;
            }
            drop(permit);
        });
    }
}

async fn hear_streams(listener: TcpListener, desk: &Desk) {
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(RETRY).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&desk.room).try_acquire_owned() else {
            continue;
        };
        let desk = desk.clone();
        hawser_linux::tasks::spawn(async move {
            let _ = converse(stream, from.ip(), &desk).await;
            drop(permit);
        });
    }
}

/// Answers one question after the other, until none comes any more.
async fn converse(mut stream: TcpStream, asker: IpAddr, desk: &Desk) -> io::Result<()> {
    loop {
        let query = timeout(IDLE, read_framed(&mut stream)).await??;
        let Some(answer) = desk.answer(&query, asker, true).await else {
            return Ok(());
        };
        write_framed(&mut stream, &answer).await?;
    }
}

impl Desk {
    /// Returns the answer to a message; `None` where it is no question.
    async fn answer(&self, query: &[u8], asker: IpAddr, is_stream: bool) -> Option<Vec<u8>> {
        match self.zone().reply(query, asker)? {
            Reply::Own(bytes) => Some(bytes),
            Reply::PassOn => {
                let upstream = self.terms.borrow().upstream.clone();
                for server in upstream.iter().take(MAX_SERVERS) {
                    let server = SocketAddr::new(*server, DNS);
                    let asked = timeout(TIMEOUT, ask(server, query, is_stream)).await;
                    match asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                        Ok(answer) => return Some(answer),
                        Err(error) => tracing::debug!(%server, %error, "a resolver does not answer"),
                    }
                }
                failure(query)
            }
        }
    }

    fn zone(&self) -> Zone {
        let terms = self.terms.borrow();
        let store = self.store.lock();
        Zone {
            hub: terms.own.clone(),
            clients: store
                .iter()
                .filter(|client| client.key.is_some())
                .map(|client| (client.name.clone(), client.inner()))
                .collect(),
            is_open: terms.is_open,
        }
    }
}

/// Asks a resolver, with a random id.
async fn ask(server: SocketAddr, query: &[u8], is_stream: bool) -> io::Result<Vec<u8>> {
    let mut bytes = query.to_vec();
    let own: [u8; 2] = bytes.first_chunk().copied().ok_or(io::ErrorKind::InvalidInput)?;
    bytes[..2].copy_from_slice(&hawser_config::identity::random::<2>());
    let question = Question::parse(&bytes).ok_or(io::ErrorKind::InvalidInput)?;
    let taken = |bytes: &[u8]| {
        let mut answer = question.read(bytes)?.bytes;
        answer[..2].copy_from_slice(&own);
        Some(answer)
    };
    if is_stream {
        let mut stream = TcpStream::connect(server).await?;
        write_framed(&mut stream, &bytes).await?;
        return taken(&read_framed(&mut stream).await?).ok_or_else(|| io::ErrorKind::InvalidData.into());
    }
    let any: IpAddr = match server {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(&bytes).await?;
    let mut buffer = vec![0; MAX_BYTES];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Some(answer) = taken(&buffer[..length]) {
            return Ok(answer);
        }
    }
}

/// Port of DNS. Source: RFC 1035 section 4.2.
const DNS: u16 = 53;
/// Questions at once: each holds a socket for 4.5 s at most, of the 1,024 that a process may have
/// open where nothing else is set.
const MAX_AT_ONCE: usize = 256;
/// Longest message by UDP that is taken. Source: RFC 9715, 1,232 bytes are offered where sizes are
/// agreed on; a resolver may send more.
const MAX_BYTES: usize = 4096;
/// Resolvers that are asked. Source: resolv.conf(5), MAXNS.
const MAX_SERVERS: usize = 3;
/// Time for a resolver's answer. Source: the C library asks again after 5 s (resolv.conf(5)), and
/// all three have been asked by then.
const TIMEOUT: Duration = Duration::from_millis(1500);
/// Time for which a connection may be silent. Source: RFC 7766 section 6.2.3, a few seconds.
const IDLE: Duration = Duration::from_secs(10);
/// Interval at which an address is tried again.
const RETRY: Duration = Duration::from_secs(1);
