//! The peer channel: a host that moves flows dials, a host where flows end (or a hub, as a waypoint) lets it in.
//!
//! The keys, the invitations and the store of who may come in are those of hub and client; only what is said differs
//! ([`hawser_wire::peer`]).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use hawser_linux::udp::plain;
use hawser_wire::control::Refusal;
use hawser_wire::peer::{PeerHello, PeerMessage, VERSION};
use quinn::Endpoint;
use thiserror::Error;
use tokio::sync::mpsc;

use super::stream::ControlStream;
use super::tls;
use crate::enrolment::{Client, ClientStore};
use crate::identity::KeyHash;

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
            | PeerMessage::Unrelay { .. } => Err(failed(&"it broke the protocol")),
        }
    };
    let result = tokio::time::timeout(PATIENCE, attempt).await;
    result.unwrap_or(Err(DialError::NoAnswer(remote)))
}

/// Carries messages both ways until the connection ends; says why it did.
pub async fn converse(
    mut stream: PeerStream,
    mut outbox: mpsc::UnboundedReceiver<PeerMessage>,
    mut heard: impl FnMut(PeerMessage),
) -> String {
    loop {
        tokio::select! {
            message = stream.next() => match message {
                Ok(message) => heard(message),
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
        outbox: mpsc::UnboundedSender<PeerMessage>,
    },
    /// It said something.
    Message(PeerMessage),
    /// The connection is gone.
    Down,
}

/// Lets hosts in that have an invitation, and carries what they say.
#[derive(Clone)]
pub struct Guests {
    store: Arc<Mutex<ClientStore>>,
    port: u16,
    tell: mpsc::UnboundedSender<GuestNews>,
    next: Arc<AtomicU64>,
}

impl Guests {
    /// Those that `store` knows; openings come in at `port`.
    #[must_use]
    pub fn new(store: ClientStore, port: u16, tell: mpsc::UnboundedSender<GuestNews>) -> Self {
        Self {
            store: Arc::new(Mutex::new(store)),
            port,
            tell,
            next: Arc::default(),
        }
    }

    /// Serves connections until the endpoint closes.
    pub async fn serve(self, endpoint: Endpoint) {
        while let Some(incoming) = endpoint.accept().await {
            let guests = self.clone();
            tokio::spawn(async move {
                match incoming.await {
                    Ok(connection) => guests.serve_one(connection).await,
                    Err(error) => tracing::debug!(%error, "no connection came of it"),
                }
            });
        }
    }

    /// Serves one connection until it ends.
    pub async fn serve_one(&self, connection: quinn::Connection) {
        let seen = plain(connection.remote_address());
        let admitted = tokio::time::timeout(PATIENCE, self.admit(&connection, seen)).await;
        let (stream, key, client) = match admitted {
            Ok(Ok(admitted)) => admitted,
            Ok(Err(error)) => {
                tracing::debug!(%seen, error = format!("{error:#}"), "peer not let in");
                return;
            }
            Err(_) => {
                tracing::debug!(%seen, "peer did not say hello in time");
                return;
            }
        };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let tell = |what| {
            let _ = self.tell.send(GuestNews { id, what });
        };
        let (outbox, messages) = mpsc::unbounded_channel();
        tracing::info!(peer = client.name, %seen, "peer connected");
        tell(GuestEvent::Up {
            key,
            name: client.name,
            seen,
            outbox,
        });
        let why = converse(stream, messages, |message| {
            // Taken back meanwhile: what it says is not carried out any more.
            if self.known(key).is_some() {
                tell(GuestEvent::Message(message));
            } else {
                connection.close(0_u8.into(), b"");
            }
        })
        .await;
        tracing::debug!(%seen, why, "peer connection ended");
        tell(GuestEvent::Down);
        connection.close(0_u8.into(), b"");
    }

    async fn admit(
        &self,
        connection: &quinn::Connection,
        seen: SocketAddr,
    ) -> anyhow::Result<(PeerStream, KeyHash, Client)> {
        let key = tls::peer_key(connection)?;
        let (send, receive) = connection.accept_bi().await?;
        let mut stream = PeerStream::new(send, receive);
        let PeerMessage::Hello(hello) = stream.next().await? else {
            anyhow::bail!("the first message is no hello");
        };
        match self.authorise(key, &hello) {
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

    fn authorise(&self, key: KeyHash, hello: &PeerHello) -> Result<Client, Refusal> {
        if hello.version != VERSION {
            return Err(Refusal::Version);
        }
        let token = hello.enrol_token.as_ref();
        let enrolled = token.map(|token| self.lock().enrol(token, key, SystemTime::now()));
        match enrolled {
            Some(Ok(client)) => Ok(client),
            // One that is enrolled and shows a stale token is still enrolled.
            Some(Err(refusal)) => self.known(key).ok_or(refusal),
            None => self.known(key).ok_or(Refusal::NotEnrolled),
        }
    }

    fn known(&self, key: KeyHash) -> Option<Client> {
        let mut store = self.lock();
        if let Err(error) = store.reload() {
            tracing::warn!(error = format!("{error:#}"), "cannot read who may come in");
        }
        store.by_key(key).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ClientStore> {
        self.store.lock().expect("no holder panics")
    }
}

/// A host that is there answers within a few round trips, and another attempt is soon made.
const PATIENCE: Duration = Duration::from_secs(4);
