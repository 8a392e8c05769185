//! The client's end of the control channel: attempts to reach the hub, of which one at a time
//! presents the client.

pub mod driver;
pub mod networks;
pub mod reach;
pub mod ways_out;

use std::net::SocketAddr;
use std::time::Duration;

use hawser_dataplane::{EpochKeys, Role};
use hawser_wire::control::{Hello, Message, Refusal, Welcome};
use quinn::{ConnectionError, Endpoint};
use thiserror::Error;
use tokio::sync::{Mutex, mpsc};

use super::stream::{ControlStream, StreamError};
use super::tls;

/// A hub that has let the client in.
pub struct Established {
    /// The QUIC connection.
    pub connection: quinn::Connection,
    /// Its one stream.
    pub stream: ControlStream,
    /// What the client got.
    pub welcome: Welcome,
    /// The keys that belong to `welcome.epoch`.
    pub keys: EpochKeys,
}

/// Why an attempt failed.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The hub said no.
    #[error("{0}")]
    Refused(Refusal),
    /// Another machine, or the hub with a new key, answers at the hub's address.
    #[error(
        "the hub at {0} has another key than the invitation says: ask for a new invitation (or somebody is in between)"
    )]
    HubKey(SocketAddr),
    /// Nobody answers.
    #[error("no answer from the hub at {0}: is its UDP port open?")]
    NoAnswer(SocketAddr),
    /// The connection could not be made or broke.
    #[error("cannot reach the hub at {0}: {1}")]
    Failed(SocketAddr, String),
}

impl ConnectError {
    /// The same of the hub at `hub`, where something stands in its place.
    #[must_use]
    pub fn of(self, hub: SocketAddr) -> Self {
        match self {
            Self::Refused(refusal) => Self::Refused(refusal),
            Self::HubKey(_) => Self::HubKey(hub),
            Self::NoAnswer(_) => Self::NoAnswer(hub),
            Self::Failed(_, why) => Self::Failed(hub, why),
        }
    }
}

/// Attempts over several networks at once take turns with their hello, up to the first that is
/// welcome: to the hub, a second hello would be another machine with the same identity, however
/// long ago its attempt was given up.
#[derive(Debug, Default)]
pub struct Turn {
    is_welcome: Mutex<bool>,
    /// Told of each hub that answers to a handshake, where the client would rather stay with
    /// another; and for how long that one may answer.
    standby: Option<(mpsc::UnboundedSender<()>, Duration)>,
}

impl Turn {
    /// For a hub that is to take another's place, if that one stays silent: `heard` is told when it
    /// answers, and then the client waits for three round trips, and at least for `wait`, before it
    /// presents itself.
    #[must_use]
    pub fn of_standby(heard: mpsc::UnboundedSender<()>, wait: Duration) -> Self {
        Self {
            is_welcome: Mutex::default(),
            standby: Some((heard, wait)),
        }
    }

    async fn stand_by(&self, round_trip: Duration) {
        if let Some((heard, wait)) = &self.standby {
            let _ = heard.send(());
            tokio::time::sleep((*wait).max(round_trip * STAND_BY_ROUND_TRIPS)).await;
        }
    }
}

/// Connects to the hub at `remote` through `endpoint`, presents the client when it is this
/// attempt's turn, and waits for the hub's decision. Once another attempt was welcome, waits for
/// ever.
///
/// # Errors
/// [`ConnectError`]; nothing stays behind.
pub async fn connect(
    endpoint: &Endpoint,
    config: quinn::ClientConfig,
    remote: SocketAddr,
    hello: Hello,
    turn: &Turn,
) -> Result<Established, ConnectError> {
    let no_answer = |_| ConnectError::NoAnswer(remote);
    let reached = tokio::time::timeout(TIMEOUT, handshake(endpoint, config, remote)).await;
    let connection = reached.map_err(no_answer)??;
    turn.stand_by(connection.rtt()).await;
    let mut is_welcome = turn.is_welcome.lock().await;
    if *is_welcome {
        return std::future::pending().await;
    }
    let answered = tokio::time::timeout(HELLO_TIMEOUT, present(connection, remote, hello)).await;
    let established = answered.map_err(no_answer)??;
    *is_welcome = true;
    Ok(established)
}

/// How long a hub takes to answer over a network, by a handshake that leads to nothing else.
///
/// # Errors
/// [`ConnectError`].
pub async fn round_trip(
    endpoint: &Endpoint,
    config: quinn::ClientConfig,
    remote: SocketAddr,
) -> Result<Duration, ConnectError> {
    let reached = tokio::time::timeout(TIMEOUT, handshake(endpoint, config, remote)).await;
    let connection = reached.map_err(|_| ConnectError::NoAnswer(remote))??;
    let round_trip = connection.rtt();
    connection.close(0_u8.into(), b"");
    Ok(round_trip)
}

async fn handshake(
    endpoint: &Endpoint,
    config: quinn::ClientConfig,
    remote: SocketAddr,
) -> Result<quinn::Connection, ConnectError> {
    let connecting = endpoint
        .connect_with(config, remote, tls::SERVER_NAME)
        .map_err(|error| ConnectError::Failed(remote, error.to_string()))?;
    connecting.await.map_err(|error| describe(&error, remote))
}

async fn present(
    connection: quinn::Connection,
    remote: SocketAddr,
    hello: Hello,
) -> Result<Established, ConnectError> {
    let failed = |error: &dyn std::fmt::Display| ConnectError::Failed(remote, error.to_string());
    let (send, receive) = connection
        .open_bi()
        .await
        .map_err(|error| describe(&error, remote))?;
    let mut stream = ControlStream::new(send, receive);
    stream
        .send(&Message::Hello(hello))
        .await
        .map_err(|error| failed(&error))?;
    match stream.next().await {
        Ok(Message::Welcome(welcome)) => {
            let keys = tls::epoch_keys(
                &connection,
                welcome.session,
                welcome.epoch,
                welcome.cipher,
                Role::Client,
            )
            .map_err(|error| failed(&error))?;
            Ok(Established {
                connection,
                stream,
                welcome,
                keys,
            })
        }
        Ok(Message::Refused(reason)) => Err(ConnectError::Refused(reason)),
        Ok(_) => Err(ConnectError::Failed(
            remote,
            "the hub broke the protocol".to_owned(),
        )),
        Err(StreamError::Read(quinn::ReadError::ConnectionLost(error))) => Err(describe(&error, remote)),
        Err(error) => Err(failed(&error)),
    }
}

fn describe(error: &ConnectionError, remote: SocketAddr) -> ConnectError {
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "the other causes are all one to the user"
    )]
    match error {
        ConnectionError::TransportError(error) if u64::from(error.code) == ACCESS_DENIED => {
            ConnectError::HubKey(remote)
        }
        ConnectionError::TimedOut => ConnectError::NoAnswer(remote),
        other => ConnectError::Failed(remote, other.to_string()),
    }
}

/// TLS alert `access_denied` (49) as a QUIC error code (RFC 9001 section 4.8): what our own
/// verifier answers to a key that is not the pinned one.
const ACCESS_DENIED: u64 = 0x100 + 49;

/// A hub that is there answers within a few round trips; the slowest networks that are of any use
/// have 2 s of them.
const TIMEOUT: Duration = Duration::from_secs(8);
/// One round trip, or two where a packet is lost; other attempts wait meanwhile.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// A handshake and a hello of the hub in use are two round trips, and the networks to it may be
/// slower.
const STAND_BY_ROUND_TRIPS: u32 = 3;
