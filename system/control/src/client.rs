//! Client's end of the control channel: attempts to reach the hub, of which one at a time sends the
//! client's hello.

pub mod driver;
pub mod neighbour_uplinks;
pub mod networks;
pub mod reach;

use std::net::SocketAddr;
use std::time::Duration;

use hawser_dataplane::{EpochKeys, Role};
use hawser_wire::control::{Hello, KeyExpiry, Message, Refusal, Welcome};
use quinn::{ConnectionError, Endpoint};
use thiserror::Error;
use tokio::sync::{Mutex, mpsc};

use super::stream::{ControlStream, StreamError};
use super::tls;

/// Connection to a hub that has accepted the client.
pub struct Established {
    /// The QUIC connection.
    pub connection: quinn::Connection,
    /// Stream of the connection, which has only one.
    pub stream: ControlStream,
    /// Parameters that the client received.
    pub welcome: Welcome,
    /// Keys of `welcome.epoch`.
    pub keys: EpochKeys,
}

/// Reason why an attempt failed.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The hub rejected the client.
    #[error("{0}")]
    Refused(Refusal),
    /// The client's key has expired at the hub, at this time if the hub has reported it.
    #[error("{}", key_expired(*.0))]
    KeyExpired(Option<KeyExpiry>),
    /// Another machine, or the hub with a new key, answers at the hub's address.
    #[error(
        "the hub at {0} has another key than the invitation: ask for a new invitation (or an attacker intercepts the connection)"
    )]
    HubKey(SocketAddr),
    /// No answer.
    #[error("no answer from the hub at {0}: check that its UDP port is open")]
    NoAnswer(SocketAddr),
    /// The connection could not be established, or failed.
    #[error("cannot reach the hub at {0}: {1}")]
    Failed(SocketAddr, String),
}

impl ConnectError {
    /// Replaces the address by that of the hub itself, if the attempt used a substitute address.
    #[must_use]
    pub fn of(self, hub: SocketAddr) -> Self {
        match self {
            Self::Refused(refusal) => Self::Refused(refusal),
            Self::KeyExpired(expiry) => Self::KeyExpired(expiry),
            Self::HubKey(_) => Self::HubKey(hub),
            Self::NoAnswer(_) => Self::NoAnswer(hub),
            Self::Failed(_, why) => Self::Failed(hub, why),
        }
    }

    /// Returns the hub's reason if it rejected the client.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Refused(refusal) => Some(*refusal),
            Self::KeyExpired(_) => Some(Refusal::ExpiredKey),
            Self::HubKey(_) | Self::NoAnswer(_) | Self::Failed(..) => None,
        }
    }
}

/// Returns the text for a user whose key has expired at the hub.
#[must_use]
pub fn key_expired(expiry: Option<KeyExpiry>) -> String {
    match expiry {
        Some(expiry) => format!("key expired on {expiry}; ask the hub's administrator"),
        None => "key expired; ask the hub's administrator".to_owned(),
    }
}

/// Serialization of the hello among concurrent attempts over several networks, until the first one
/// is accepted: for the hub, a second hello would be from another machine with the same identity,
/// even long after its attempt was abandoned.
#[derive(Debug, Default)]
pub struct Turn {
    is_welcome: Mutex<bool>,
    /// Channel to report each hub that answers a handshake, if the client prefers another hub, and
    /// the time for an answer of that one.
    standby: Option<(mpsc::UnboundedSender<()>, Duration)>,
}

impl Turn {
    /// Creates the turn of an attempt at a hub that may replace another one that does not answer.
    /// `heard` is notified when the hub answers; then the client waits for three round trips, and
    /// at least for `wait`, before it presents itself.
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

/// Connects to the hub at `remote` through `endpoint`, sends the hello when it is this attempt's
/// turn, and waits for the hub's decision. After acceptance of another attempt, it waits forever.
///
/// # Errors
/// [`ConnectError`]; no state remains.
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

/// Measures a hub's response time over a network, by a handshake without a session.
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
        Ok(Message::Refused(Refusal::ExpiredKey)) => {
            let expiry = match stream.next().await {
                Ok(Message::KeyExpires(expiry)) => expiry,
                Ok(_) | Err(_) => None,
            };
            Err(ConnectError::KeyExpired(expiry))
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

/// TLS alert `access_denied` (49) as a QUIC error code (RFC 9001 section 4.8): the answer of
/// Hawser's own verifier to a key that is not the pinned one.
const ACCESS_DENIED: u64 = 0x100 + 49;

/// Timeout of an attempt: a reachable hub answers within a few round trips, which take 2 s on the
/// slowest useful networks. Source: our choice, four such round trips; a longer one delays the next
/// attempt where packets are dropped.
const TIMEOUT: Duration = Duration::from_secs(8);
/// Timeout of a hello: one round trip, or two after a loss; other attempts wait in the meantime.
/// Source: our choice, two of these round trips of 2 s and 1 s for a busy hub.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Round trips for which a standby hub waits: a handshake and a hello with the hub in use take two,
/// and its networks may be slower. Source: our choice; more delay a change to another hub, fewer
/// change although the hub in use answers.
const STAND_BY_ROUND_TRIPS: u32 = 3;
