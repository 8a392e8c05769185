//! Peer channel: a host that moves flows connects to a host where flows end, or to a hub as a
//! waypoint.
//!
//! Keys, invitations and the store of enrolments are those of hub and client; only the messages
//! differ ([`hawser_wire::peer`]).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use hawser_config::identity::KeyHash;
use hawser_linux::udp::plain;
use hawser_wire::control::Refusal;
use hawser_wire::peer::{PeerHello, PeerMessage, VERSION};
use quinn::Endpoint;
use thiserror::Error;
use tokio::sync::mpsc;

use super::admission::{Admission, Permit, Verdict};
use super::budget::{Budget, Pace};
use super::stream::ControlStream;
use super::tls;
use crate::enrolment::{Client, SharedStore};

/// Stream of a peer connection.
pub type PeerStream = ControlStream<PeerMessage>;

/// Connection to a peer that has accepted this host.
pub struct Dialled {
    /// The QUIC connection.
    pub connection: quinn::Connection,
    /// Stream of the connection, which has only one.
    pub stream: PeerStream,
    /// Port of openings.
    pub port: u16,
}

/// Reason why an attempt failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DialError {
    /// The peer has refused.
    #[error("it rejects this machine ({0:?}): get an invitation there, and run `hawser peer join`")]
    Refused(Refusal),
    /// The connection could not be established, or failed.
    #[error("cannot reach it at {0}: {1}")]
    Failed(SocketAddr, String),
    /// No answer.
    #[error("no answer at {0}: check that its port is open for UDP and TCP")]
    NoAnswer(SocketAddr),
}

/// Connects to a peer and sends this host's hello.
///
/// # Errors
/// [`DialError`]; no state remains.
pub async fn dial(
    endpoint: &Endpoint,
    config: quinn::ClientConfig,
    remote: SocketAddr,
    hello: PeerHello,
) -> Result<Dialled, DialError> {
    let attempt = async {
        let failed = |error: &dyn std::fmt::Display| DialError::Failed(remote, error.to_string());
        let connecting = endpoint
            .connect_with(config, remote, tls::SERVER_NAME)
            .map_err(|error| failed(&error))?;
        let connection = connecting.await.map_err(|error| failed(&error))?;
        let (send, receive) = connection.open_bi().await.map_err(|error| failed(&error))?;
        let mut stream = PeerStream::new(send, receive);
        let said = stream.send(&PeerMessage::Hello(hello)).await;
        said.map_err(|error| failed(&error))?;
        match stream.next().await.map_err(|error| failed(&error))? {
            PeerMessage::Welcome { port, .. } => Ok(Dialled {
                connection,
                stream,
                port,
            }),
            PeerMessage::Refused(reason) => Err(DialError::Refused(reason)),
            PeerMessage::Hello(_)
            | PeerMessage::Expect(_)
            | PeerMessage::Opened { .. }
            | PeerMessage::Unexpected { .. }
            | PeerMessage::Order { .. }
            | PeerMessage::Answer { .. }
            | PeerMessage::Forget { .. }
            | PeerMessage::Relay { .. }
            | PeerMessage::Relayed { .. }
            | PeerMessage::Unrelay { .. }
            | PeerMessage::Claim { .. }
            | PeerMessage::Proof { .. }
            | PeerMessage::Proven { .. }
            | PeerMessage::Unproven { .. } => Err(failed(&"it broke the protocol")),
        }
    };
    let result = tokio::time::timeout(TIMEOUT, attempt).await;
    result.unwrap_or(Err(DialError::NoAnswer(remote)))
}

/// Queue of messages to a peer. When it is full, additional messages are dropped; a receiver that
/// needs one asks again.
#[derive(Clone, Debug)]
pub struct Outbox {
    sender: mpsc::Sender<PeerMessage>,
    dropped: Arc<AtomicU64>,
}

impl Outbox {
    /// Creates a queue and its receiving end. Omitted messages are counted in `dropped`.
    #[must_use]
    pub fn new(dropped: Arc<AtomicU64>) -> (Self, mpsc::Receiver<PeerMessage>) {
        let (sender, messages) = mpsc::channel(OUTBOX);
        (Self { sender, dropped }, messages)
    }

    /// Queues a message. A connection that has ended accepts none, and has reported its end
    /// separately.
    pub fn send(&self, message: PeerMessage) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.sender.try_send(message) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Exchanges messages until the connection ends; returns the reason of its end. The result of
/// `heard` for a message is passed to `tell`, which may make the peer wait; its refusal ends the
/// connection.
pub async fn converse<News>(
    mut stream: PeerStream,
    mut outbox: mpsc::Receiver<PeerMessage>,
    tell: &mpsc::Sender<News>,
    mut heard: impl FnMut(PeerMessage) -> Result<News, &'static str>,
) -> String {
    loop {
        tokio::select! {
            message = stream.next() => match message {
                Ok(message) => match heard(message) {
                    Ok(news) => if tell.send(news).await.is_err() {
                        return "nobody listens".to_owned();
                    },
                    Err(why) => return why.to_owned(),
                },
                Err(error) => return error.to_string(),
            },
            message = outbox.recv() => match message {
                Some(message) => if let Err(error) = stream.send(&message).await {
                    return error.to_string();
                },
                None => return "given up".to_owned(),
            },
        }
    }
}

/// Event of an accepted host.
pub struct GuestNews {
    /// Id of the connection; never used again.
    pub id: u64,
    /// Event.
    pub what: GuestEvent,
}

/// Event of a guest's connection.
pub enum GuestEvent {
    /// Accepted.
    Up {
        /// Key of the host.
        key: KeyHash,
        /// Name of its invitation.
        name: String,
        /// Observed address.
        seen: SocketAddr,
        /// Queue of messages to it.
        outbox: Outbox,
    },
    /// Message.
    Message(PeerMessage),
    /// End of the connection.
    Down,
}

/// Channel of messages from guests to the code that moves flows. A guest that sends faster than
/// they are processed waits.
#[must_use]
pub fn guest_news() -> (mpsc::Sender<GuestNews>, mpsc::Receiver<GuestNews>) {
    mpsc::channel(NEWS)
}

/// Accepts hosts that have an invitation, and exchanges messages with them.
#[derive(Clone)]
pub struct Guests {
    store: SharedStore,
    port: u16,
    tell: mpsc::Sender<GuestNews>,
    next: Arc<AtomicU64>,
    present: Arc<Mutex<Present>>,
    admission: Admission,
    dropped: Arc<AtomicU64>,
    floods: Arc<AtomicU64>,
}

/// Present connections, by number.
#[derive(Default)]
struct Present {
    connections: BTreeMap<u64, (String, KeyHash, quinn::Connection)>,
    /// Generation of the store against which they were checked.
    held_against: u64,
}

impl Guests {
    /// Creates the guests that `store` knows; openings arrive at `port`.
    #[must_use]
    pub fn new(store: SharedStore, port: u16, tell: mpsc::Sender<GuestNews>) -> Self {
        Self {
            store,
            port,
            tell,
            next: Arc::default(),
            present: Arc::default(),
            admission: Admission::default(),
            dropped: Arc::default(),
            floods: Arc::default(),
        }
    }

    /// Serves connections until the endpoint closes, and ends those of hosts that are revoked.
    pub async fn serve(self, endpoint: Endpoint) {
        let mut look = tokio::time::interval(crate::enrolment::POLL_INTERVAL);
        loop {
            let incoming = tokio::select! {
                incoming = endpoint.accept() => incoming,
                _ = look.tick() => {
                    self.expel();
                    continue;
                }
            };
            let Some(incoming) = incoming else { return };
            let from = incoming.remote_address();
            let is_proven = incoming.remote_address_validated();
            match self.admission.handshake(from.ip(), is_proven) {
                Verdict::Go(handshake) => {
                    let guests = self.clone();
                    hawser_linux::tasks::spawn(
                        async move { guests.serve_incoming(incoming, handshake).await },
                    );
                }
                Verdict::Prove if incoming.may_retry() => drop(incoming.retry()),
                Verdict::Prove | Verdict::Ignore => incoming.ignore(),
            }
        }
    }

    async fn serve_incoming(&self, incoming: quinn::Incoming, handshake: Permit) {
        let from = incoming.remote_address();
        let opened = tokio::time::timeout(TIMEOUT, self.open(incoming)).await;
        drop(handshake);
        match opened {
            Ok(Ok((connection, stream, hello, _permit))) => self.serve_one(connection, stream, &hello).await,
            Ok(Err(error)) => tracing::debug!(%from, error = format!("{error:#}"), "peer rejected"),
            Err(_) => tracing::debug!(%from, "peer sent no hello in time"),
        }
    }

    /// Waits for the first message of a connection.
    async fn open(
        &self,
        incoming: quinn::Incoming,
    ) -> anyhow::Result<(quinn::Connection, PeerStream, PeerHello, Permit)> {
        let connection = incoming.await?;
        let permit = self.admission.connection(tls::peer_key(&connection)?);
        let permit = permit.context("it has too many connections")?;
        let (send, receive) = connection.accept_bi().await?;
        let mut stream = PeerStream::new(send, receive);
        let PeerMessage::Hello(hello) = stream.next().await? else {
            anyhow::bail!("the first message is not a hello");
        };
        Ok((connection, stream, hello, permit))
    }

    /// Ends the connections of hosts that are no longer enrolled.
    ///
    /// Cost: two system calls while the store is unchanged.
    pub fn expel(&self) {
        let store = match self.store.refreshed() {
            Ok(store) => store,
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "cannot read the enrolled hosts");
                return;
            }
        };
        let mut present = self.present();
        if present.held_against == store.generation() {
            return;
        }
        present.held_against = store.generation();
        let now = SystemTime::now();
        for (name, key, connection) in present.connections.values() {
            let guest = store.by_name(name).filter(|guest| guest.key == Some(*key));
            if guest.is_none_or(|guest| guest.is_expired(now)) {
                tracing::info!(peer = name, "revoked, or its key has expired");
                connection.close(0_u8.into(), b"");
            }
        }
    }

    /// Returns names and counts of omitted messages and ended connections.
    #[must_use]
    pub fn counters(&self) -> [(&'static str, u64); 2] {
        [
            ("peer_messages_dropped", self.dropped.load(Ordering::Relaxed)),
            ("peer_closed_flood", self.floods.load(Ordering::Relaxed)),
        ]
    }

    /// Serves a connection that has sent its hello until it ends.
    pub async fn serve_one(&self, connection: quinn::Connection, stream: PeerStream, hello: &PeerHello) {
        let seen = plain(connection.remote_address());
        let (stream, key, client) = match self.admit(&connection, stream, hello, seen).await {
            Ok(admitted) => admitted,
            Err(error) => {
                tracing::debug!(%seen, error = format!("{error:#}"), "peer rejected");
                return;
            }
        };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let entry = (client.name.clone(), key, connection.clone());
        self.present().connections.insert(id, entry);
        let why = self.carry(id, key, client.name, seen, stream).await;
        tracing::debug!(%seen, why, "peer connection ended");
        self.present().connections.remove(&id);
        let what = GuestEvent::Down;
        let _ = self.tell.send(GuestNews { id, what }).await;
        connection.close(0_u8.into(), b"");
    }

    async fn carry(
        &self,
        id: u64,
        key: KeyHash,
        name: String,
        seen: SocketAddr,
        stream: PeerStream,
    ) -> String {
        let (outbox, messages) = Outbox::new(Arc::clone(&self.dropped));
        tracing::info!(peer = name, %seen, "peer connected");
        let up = GuestEvent::Up {
            key,
            name: name.clone(),
            seen,
            outbox,
        };
        let _ = self.tell.send(GuestNews { id, what: up }).await;
        let mut budget = Budget::new(PACE, Instant::now());
        converse(stream, messages, &self.tell, |message| {
            if !budget.spend(1, Instant::now()) {
                self.floods.fetch_add(1, Ordering::Relaxed);
                return Err("too many messages");
            }
            // The enrolment was revoked in the meantime, so messages are no longer executed.
            if self.store.check(&name, key, SystemTime::now()).is_err() {
                return Err("revoked");
            }
            let what = GuestEvent::Message(message);
            Ok(GuestNews { id, what })
        })
        .await
    }

    async fn admit(
        &self,
        connection: &quinn::Connection,
        mut stream: PeerStream,
        hello: &PeerHello,
        seen: SocketAddr,
    ) -> anyhow::Result<(PeerStream, KeyHash, Client)> {
        let key = tls::peer_key(connection)?;
        match self.authorise(key, hello).await {
            Ok(client) => {
                let port = self.port;
                stream.send(&PeerMessage::Welcome { port, seen }).await?;
                Ok((stream, key, client))
            }
            Err(refusal) => {
                tracing::info!(from = %seen, ?refusal, machine = hello.name_hint, "peer refused");
                stream.finish(&PeerMessage::Refused(refusal)).await;
                anyhow::bail!("refused: {refusal:?}")
            }
        }
    }

    async fn authorise(&self, key: KeyHash, hello: &PeerHello) -> Result<Client, Refusal> {
        if hello.version != VERSION {
            return Err(Refusal::Version);
        }
        self.store
            .authorise(hello.enrol_token, key, SystemTime::now(), false)
            .await
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().expect("no holder panics")
    }
}

/// Budget of messages of a connection: a thousand flows may move at once, with some ten messages
/// each.
const PACE: Pace = Pace {
    burst: 16_384,
    per_second: 1_024,
};
/// Capacity of the queue to a connection. Source: two messages for each of the thousand flows that
/// move at once (`MAX_AT_ONCE` of `products/direct/src/moving/mod.rs`).
const OUTBOX: usize = 2_048;
/// Capacity of the queue of all connections. Source: our choice; more only takes memory, with less
/// peers wait while the event loop is busy.
const NEWS: usize = 1_024;
/// Timeout of an attempt: a reachable host answers within a few round trips, and the next attempt
/// follows soon. Source: our choice, two round trips of 2 s of the slowest useful networks; a
/// longer one delays the next attempt.
const TIMEOUT: Duration = Duration::from_secs(4);
