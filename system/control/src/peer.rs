//! The peer channel: a host that moves flows dials, a host where flows end (or a hub, as a
//! waypoint) lets it in.
//!
//! The keys, the invitations and the store of who may come in are those of hub and client; only
//! what is said differs ([`hawser_wire::peer`]).

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

/// The stream of a peer connection.
pub type PeerStream = ControlStream<PeerMessage>;

/// A peer that has let this host in.
pub struct Dialled {
    /// The QUIC connection.
    pub connection: quinn::Connection,
    /// Its one stream.
    pub stream: PeerStream,
    /// Where openings go to.
    pub port: u16,
}

/// Why an attempt failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DialError {
    /// The peer said no.
    #[error(
        "it does not let this machine in ({0:?}): ask there for an invitation, and `hawser peer join` it"
    )]
    Refused(Refusal),
    /// The connection could not be made or broke.
    #[error("cannot reach it at {0}: {1}")]
    Failed(SocketAddr, String),
    /// Nobody answers.
    #[error("no answer at {0}: is its port open for UDP and TCP?")]
    NoAnswer(SocketAddr),
}

/// Connects to a peer and presents this host.
///
/// # Errors
/// [`DialError`]; nothing stays behind.
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

/// Takes messages for a peer. When as many wait as fit, the next is left out: whoever needs it asks
/// again.
#[derive(Clone, Debug)]
pub struct Outbox {
    sender: mpsc::Sender<PeerMessage>,
    dropped: Arc<AtomicU64>,
}

impl Outbox {
    /// One, with the end from which messages are taken. What is left out is counted in `dropped`.
    #[must_use]
    pub fn new(dropped: Arc<AtomicU64>) -> (Self, mpsc::Receiver<PeerMessage>) {
        let (sender, messages) = mpsc::channel(OUTBOX);
        (Self { sender, dropped }, messages)
    }

    /// Puts a message in. A connection that is gone takes none, and has said so by another way.
    pub fn send(&self, message: PeerMessage) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.sender.try_send(message) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Carries messages both ways until the connection ends; says why it did. What `heard` makes of a
/// message goes to `tell`, which may make the peer wait; its refusal ends the connection.
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

/// What a host that was let in does.
pub struct GuestNews {
    /// Which connection; never used again.
    pub id: u64,
    /// What.
    pub what: GuestEvent,
}

/// What a connection of a guest brings.
pub enum GuestEvent {
    /// It is in.
    Up {
        /// Its key.
        key: KeyHash,
        /// The name of its invitation.
        name: String,
        /// Where it is seen.
        seen: SocketAddr,
        /// Takes what to tell it.
        outbox: Outbox,
    },
    /// It said something.
    Message(PeerMessage),
    /// The connection is gone.
    Down,
}

/// News of guests on their way to whoever moves flows. A guest that says more than is taken in
/// waits.
#[must_use]
pub fn guest_news() -> (mpsc::Sender<GuestNews>, mpsc::Receiver<GuestNews>) {
    mpsc::channel(NEWS)
}

/// Lets hosts in that have an invitation, and carries what they say.
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

/// The connections that are there, by number.
#[derive(Default)]
struct Present {
    connections: BTreeMap<u64, (String, KeyHash, quinn::Connection)>,
    /// The state of the store that they were held against.
    held_against: u64,
}

impl Guests {
    /// Those that `store` knows; openings come in at `port`.
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
        let mut look = tokio::time::interval(crate::enrolment::LOOK);
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
            Ok(Err(error)) => tracing::debug!(%from, error = format!("{error:#}"), "peer not let in"),
            Err(_) => tracing::debug!(%from, "peer did not say hello in time"),
        }
    }

    /// Waits for the first message of a connection.
    async fn open(
        &self,
        incoming: quinn::Incoming,
    ) -> anyhow::Result<(quinn::Connection, PeerStream, PeerHello, Permit)> {
        let connection = incoming.await?;
        let permit = self.admission.connection(tls::peer_key(&connection)?);
        let permit = permit.context("it has too many connections already")?;
        let (send, receive) = connection.accept_bi().await?;
        let mut stream = PeerStream::new(send, receive);
        let PeerMessage::Hello(hello) = stream.next().await? else {
            anyhow::bail!("the first message is no hello");
        };
        Ok((connection, stream, hello, permit))
    }

    /// Ends the connections of those that are not enrolled any more.
    ///
    /// Cost: two system calls while the store is as it was.
    pub fn expel(&self) {
        let store = match self.store.refreshed() {
            Ok(store) => store,
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "cannot read who may come in");
                return;
            }
        };
        let mut present = self.present();
        if present.held_against == store.generation() {
            return;
        }
        present.held_against = store.generation();
        for (name, key, connection) in present.connections.values() {
            if store.by_name(name).is_none_or(|guest| guest.key != Some(*key)) {
                tracing::info!(peer = name, "revoked");
                connection.close(0_u8.into(), b"");
            }
        }
    }

    /// Name and count of what was left out and cut off.
    #[must_use]
    pub fn counters(&self) -> [(&'static str, u64); 2] {
        [
            ("peer_messages_dropped", self.dropped.load(Ordering::Relaxed)),
            ("peer_closed_flood", self.floods.load(Ordering::Relaxed)),
        ]
    }

    /// Serves a connection that has said `hello` until it ends.
    pub async fn serve_one(&self, connection: quinn::Connection, stream: PeerStream, hello: &PeerHello) {
        let seen = plain(connection.remote_address());
        let (stream, key, client) = match self.admit(&connection, stream, hello, seen).await {
            Ok(admitted) => admitted,
            Err(error) => {
                tracing::debug!(%seen, error = format!("{error:#}"), "peer not let in");
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
                return Err("more messages than anybody needs");
            }
            // Taken back meanwhile: what it says is not carried out any more.
            if !self.store.has(&name, key) {
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

/// Messages of one connection: a thousand flows are moved at once by some ten each.
const PACE: Pace = Pace {
    burst: 16_384,
    per_second: 1_024,
};
/// Messages for one connection that wait: as many as a thousand flows that are moved at once need.
const OUTBOX: usize = 2_048;
/// Of all connections.
const NEWS: usize = 1_024;
/// A host that is there answers within a few round trips, and another attempt is soon made.
const TIMEOUT: Duration = Duration::from_secs(4);
