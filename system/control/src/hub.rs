//! Hub's end of the control channel: accepts clients, maintains their sessions, and executes their
//! requests.

mod core;
mod expiring;
mod fleet;
mod handover;
mod index;
mod leading;
mod limiting;
mod limits;
mod receipts;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use hawser_config::identity::{KeyHash, Signer};
use hawser_config::{LimitsConfig, Pool, WireGuardKey};
use hawser_dataplane::{Orders, Pairs, Role, SessionId, SocketId};
use hawser_linux::udp::plain;
use hawser_proto::path::control::Control;
use hawser_units::{Bytes, Rate};
use hawser_wire::control::{CloseReason, Hello, Message, Refusal};
use hawser_wire::data::Class;
use hawser_wire::frame::Format;
use hawser_wire::layer;
use hawser_wire::peer::PeerHello;
use quinn::{Connection, Endpoint, Incoming};

use self::core::{Admitted, Core};
use self::receipts::Receipts;
use super::admission::{Admission, Permit, Verdict};
use super::peer::{Guests, PeerStream};
use super::stream::{ControlStream, First, StreamError};
use super::tls;
use crate::enrolment::{Client, SharedStore, Standing, Subnet};
use crate::handover::{ControlCheckpoint, HubSessionCheckpoint};
use crate::relay_connections::RelayConnections;

/// Parameters that the hub announces to every client, and treatment of all sessions.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// Address pools.
    pub pool: Pool,
    /// Resolvers behind the hub.
    pub dns: Vec<IpAddr>,
    /// The inner interface's MTU.
    pub mtu: u16,
    /// Configured scheduler by class.
    pub schedulers: Vec<(Class, String)>,
    /// Congestion controller of the paths on which the hub sends.
    pub controller: Control,
    /// Rules that recognise packets of layered streams.
    pub layer_rules: Vec<layer::Rule>,
    /// Format of the sessions' inner packets.
    pub format: Format,
    /// Largest outer packet of a path, bytes, with which the search for the packet size begins.
    pub path_mtu: u16,
    /// Time after which the session of an absent client ends.
    pub session_timeout: Duration,
    /// Limits of clients without limits of their own.
    pub limits: LimitsConfig,
    /// Assignment of sessions to the data plane's threads. Constant while it runs.
    pub pairs: Pairs,
}

/// Sessions of a hub and its store, shared by all connections.
#[derive(Clone)]
pub struct HubControl {
    core: Arc<Mutex<Core>>,
    admission: Admission,
    /// Handler of peers that ask for a waypoint, and not for a session.
    movers: Option<Guests>,
    /// Relays of clients that connect by TLS on TCP, and their sources.
    relays: Vec<RelayConnections>,
}

/// Client, for status.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ClientStatus {
    /// Name of the client.
    pub name: String,
    /// `enrolled`, `key expired`, `invited` or `expired` (an invitation).
    pub state: &'static str,
    /// Set if a control connection is up.
    pub connected: bool,
    /// Id of its session in the data plane's snapshot.
    pub session: Option<u64>,
    /// Inner addresses.
    pub inner: Vec<IpAddr>,
    /// Subnets behind the client whose machines keep their addresses.
    pub subnets: Vec<Subnet>,
    /// Limits and usage.
    pub limits: Standing,
    /// Expiry of the key; `None` if it does not expire. Units: seconds since the beginning of 1970.
    pub key_expires_unix_s: Option<u64>,
    /// Number of takeovers of its identity by another machine.
    pub replaced: u64,
}

/// Client that uses WireGuard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireGuardClient {
    /// Name of the client.
    pub name: String,
    /// Public key.
    pub key: WireGuardKey,
    /// Inner addresses.
    pub inner: Vec<IpAddr>,
    /// Effective limit in each direction, zero to block all traffic; `None` without a limit.
    pub limit: Option<Rate>,
}

/// Accepted connection. The permit counts it.
struct Opened {
    connection: Connection,
    who: Who,
    _permit: Permit,
}

enum Who {
    Client(Box<(ControlStream, Admitted)>),
    Mover(Box<(PeerStream, PeerHello)>),
}

impl HubControl {
    /// Creates a hub without sessions. `orders` is the queue of the data plane.
    #[must_use]
    pub fn new(store: SharedStore, settings: HubSettings, orders: Orders) -> Self {
        Self {
            core: Arc::new(Mutex::new(Core::new(store, settings, orders))),
            admission: Admission::default(),
            movers: None,
            relays: Vec::new(),
        }
    }

    /// Adds a source of clients that connect through relays; may be called for each kind of relay.
    #[must_use]
    pub fn with_relays(mut self, relays: RelayConnections) -> Self {
        self.relays.push(relays);
        self
    }

    /// Enables receipts for traffic that neighbours relay for clients. The owner must then report
    /// the traffic of paths once a second: [`handle_transferred`](Self::handle_transferred).
    #[must_use]
    pub fn with_receipts(self, signer: Signer) -> Self {
        self.lock().receipts = Some(Receipts::new(signer));
        self
    }

    /// Returns the real source of a connection, for logs.
    fn origin(&self, address: SocketAddr) -> SocketAddr {
        let address = plain(address);
        let relay = self.relays.iter().find(|relay| relay.is_relayed(address));
        relay.map_or(address, |relay| relay.origin(address))
    }

    /// Adds a handler of hosts that move flows.
    #[must_use]
    pub fn with_movers(mut self, movers: Guests) -> Self {
        self.movers = Some(movers);
        self
    }

    /// Serves connections until the endpoint closes.
    pub async fn serve(&self, endpoint: &Endpoint) {
        while let Some(incoming) = endpoint.accept().await {
            let from = incoming.remote_address().ip();
            match self
                .admission
                .handshake(from, incoming.remote_address_validated())
            {
                Verdict::Go(permit) => {
                    let hub = self.clone();
                    hawser_linux::tasks::spawn(async move { hub.serve_one(incoming, permit).await });
                }
                Verdict::Prove if incoming.may_retry() => drop(incoming.retry()),
                Verdict::Prove | Verdict::Ignore => incoming.ignore(),
            }
        }
    }

    /// Revokes a client's enrolment and ends its session immediately. `by` is the user who
    /// requested it; `None` for the user of this process.
    ///
    /// # Errors
    /// If there is no such client, or writing fails.
    pub async fn revoke(&self, name: &str, by: Option<String>) -> anyhow::Result<()> {
        let store = self.lock().store.clone();
        store.revoke(name, by).await?;
        self.lock().hold_against_store();
        if let Some(movers) = &self.movers {
            movers.expel();
        }
        tracing::info!(client = name, "revoked");
        Ok(())
    }

    /// Ends the sessions and connections of clients that the store no longer contains, regardless
    /// of who removed them, and of clients whose keys have expired. Must be called every
    /// [`POLL_INTERVAL`](crate::enrolment::POLL_INTERVAL).
    pub fn hold_against_store(&self) {
        self.lock().hold_against_store();
        if let Some(movers) = &self.movers {
            movers.expel();
        }
    }

    /// Removes all sessions for a successor; later messages of clients do not change them.
    pub fn hand_over(&self) -> BTreeMap<u64, ControlCheckpoint> {
        self.lock().hand_over()
    }

    /// Continues a session of the previous process. Returns false, and discards the session, if it
    /// no longer fits this hub.
    pub fn restore(&self, saved: HubSessionCheckpoint) -> bool {
        self.lock().restore(saved)
    }

    /// Sends clients to other hubs and refuses new ones, or serves them as before.
    pub fn drain(&self, is_on: bool) {
        self.lock().drain(is_on);
        tracing::info!(is_on, "moving the clients to other hubs");
    }

    /// Returns whether moving the clients to other hubs.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.lock().is_draining()
    }

    /// Returns whether some client has a quota, so that [`set_used`](Self::set_used) has an effect.
    #[must_use]
    pub fn has_quotas(&self) -> bool {
        self.lock().has_quotas()
    }

    /// Sets the clients' usage of the month, by name, against which quotas are enforced.
    pub fn set_used(&self, used: BTreeMap<String, Bytes>) {
        self.lock().set_used(used);
    }

    /// Handles the counters of paths, by session and number: received from the client, and sent to
    /// it. Clients receive receipts for relayed traffic. Units: bytes of UDP payload.
    pub fn handle_transferred(&self, carried: impl Iterator<Item = ((u64, u16), [u64; 2])>) {
        let mut core = self.lock();
        let Core {
            receipts, sessions, ..
        } = &mut *core;
        let Some(receipts) = receipts else { return };
        receipts.handle_transferred(carried, SystemTime::now(), |session, receipt| {
            let link = sessions.get(&session).and_then(|session| session.link.as_ref());
            link.is_some_and(|link| link.send(Message::Receipt(Box::new(receipt))))
        });
    }

    /// Requests new keys from the client of a session.
    pub fn rekey(&self, session: SessionId) {
        self.lock().rekey(session);
    }

    /// Applies new settings to later events.
    pub fn apply(&self, settings: HubSettings) {
        self.lock().apply(settings);
    }

    /// Removes sessions of clients that have been absent for the timeout.
    pub fn sweep(&self, now: Instant) {
        self.lock().sweep(now);
    }

    /// Ends all sessions, because the hub stops. Clients are notified, and reconnect when it
    /// returns.
    pub fn shut_down(&self) {
        self.lock().end_all(CloseReason::Shutdown);
    }

    /// Returns the clients that use WireGuard, with their limits.
    #[must_use]
    pub fn wireguard_clients(&self) -> Vec<WireGuardClient> {
        self.lock().wireguard_clients()
    }

    /// Returns the names of the clients with sessions.
    #[must_use]
    pub fn names(&self) -> BTreeMap<u64, String> {
        let core = self.lock();
        let sessions = core.sessions.iter();
        let mut names = BTreeMap::new();
        names.extend(sessions.map(|(id, session)| (*id, session.name.clone())));
        names
    }

    /// Returns all clients, for status.
    #[must_use]
    pub fn clients(&self) -> Vec<ClientStatus> {
        self.lock().clients()
    }

    /// Returns the counters of rejected, cut off and omitted items, by reason.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all: Vec<_> = self.lock().counters().collect();
        all.extend(self.admission.counters());
        all.extend(self.movers.iter().flat_map(Guests::counters));
        all
    }

    async fn serve_one(&self, incoming: Incoming, handshake: Permit) {
        let from = self.origin(incoming.remote_address());
        let opened = tokio::time::timeout(TIMEOUT, self.open(incoming)).await;
        drop(handshake);
        let Opened {
            connection,
            who,
            _permit,
        } = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => {
                tracing::debug!(%from, error = format!("{error:#}"), "client rejected");
                return;
            }
            Err(_) => {
                tracing::debug!(%from, "client sent no hello in time");
                return;
            }
        };
        match who {
            Who::Mover(said) => {
                // A waypoint's rules apply to addresses of its own network.
                let is_relayed = from != plain(connection.remote_address());
                if let Some(movers) = &self.movers
                    && !is_relayed
                {
                    movers.serve_one(connection, said.0, &said.1).await;
                }
            }
            Who::Client(said) => {
                let (stream, admitted) = *said;
                let (session, link) = (admitted.session, admitted.link);
                let reason = self.converse(stream, admitted).await;
                self.lock().detach(session, link);
                connection.close(0_u8.into(), b"");
                tracing::debug!(session, %reason, "control connection ended");
            }
        }
    }

    async fn open(&self, incoming: Incoming) -> anyhow::Result<Opened> {
        let connection = incoming.await?;
        let key = tls::peer_key(&connection)?;
        let Some(permit) = self.admission.connection(key) else {
            connection.close(0_u8.into(), b"");
            anyhow::bail!("it has too many connections");
        };
        let (send, receive) = connection.accept_bi().await?;
        let mut stream = ControlStream::<First>::new(send, receive);
        let hello = match stream.next().await? {
            First::Client(hello) => hello,
            First::Peer(hello) => {
                return Ok(Opened {
                    connection,
                    who: Who::Mover(Box::new((stream.speak(), hello))),
                    _permit: permit,
                });
            }
        };
        let mut stream: ControlStream = stream.speak();
        let export = |session, epoch, cipher| tls::epoch_keys(&connection, session, epoch, cipher, Role::Hub);
        let client = self.authorise(key, &hello).await;
        let admitted = self.lock().admit(client, key, &hello, export);
        match admitted {
            Ok(admitted) => {
                stream.send(&Message::Welcome(admitted.welcome.clone())).await?;
                Ok(Opened {
                    connection,
                    who: Who::Client(Box::new((stream, admitted))),
                    _permit: permit,
                })
            }
            Err(refusal) => {
                tracing::info!(from = %self.origin(connection.remote_address()), ?refusal, machine = hello.name_hint,
                    "client refused");
                let is_expired = refusal == Refusal::ExpiredKey;
                let expiry = is_expired.then(|| self.lock().expiry_of(key)).flatten();
                if expiry.is_some() {
                    stream.send(&Message::Refused(refusal)).await?;
                    stream.finish(&Message::KeyExpires(expiry)).await;
                } else {
                    stream.finish(&Message::Refused(refusal)).await;
                }
                anyhow::bail!("refused: {refusal:?}")
            }
        }
    }

    /// Asks the store for a client, without blocking other clients.
    async fn authorise(&self, key: KeyHash, hello: &Hello) -> Result<Client, Refusal> {
        let (is_resuming, store) = {
            let mut core = self.lock();
            (core.check(key, hello)?, core.store.clone())
        };
        store
            .authorise(hello.enrol_token, key, SystemTime::now(), is_resuming)
            .await
    }

    /// Exchanges messages until the connection ends; returns the reason.
    async fn converse(&self, mut stream: ControlStream, mut admitted: Admitted) -> String {
        let (session, link) = (admitted.session, admitted.link);
        loop {
            tokio::select! {
                message = stream.next() => {
                    let answers = match message {
                        Ok(message) => {
                            let answers = self.lock().handle(session, link, &message);
                            if let Message::Close(reason) = message {
                                return reason.to_string();
                            }
                            answers
                        }
                        Err(StreamError::Parse(error)) => {
                            stream.finish(&Message::Close(CloseReason::Protocol)).await;
                            return error.to_string();
                        }
                        Err(error) => return error.to_string(),
                    };
                    let answers = match answers {
                        Ok(answers) => answers,
                        Err(fault) => {
                            stream.finish(&Message::Close(fault.reason())).await;
                            return fault.to_string();
                        }
                    };
                    for answer in answers {
                        if let Err(error) = stream.send(&answer).await {
                            return error.to_string();
                        }
                    }
                }
                message = admitted.outbox.recv() => match message {
                    Some(message @ Message::Close(reason)) => {
                        stream.finish(&message).await;
                        return reason.to_string();
                    }
                    Some(message) => if let Err(error) = stream.send(&message).await {
                        return error.to_string();
                    },
                    // A newer connection controls the session; the client closes this one when it
                    // has moved.
                    None => tokio::select! {
                        _ = stream.next() => return CloseReason::Superseded.to_string(),
                        () = tokio::time::sleep(TIMEOUT) => return CloseReason::Superseded.to_string(),
                    },
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("no holder panics")
    }
}

/// Assumed path MTU: every network in use transfers the 1500 bytes of Ethernet (RFC 894).
pub const PATH_MTU: u16 = 1500;
/// Socket of the hub's only UDP port. Source: the first number.
pub const HUB_SOCKET: SocketId = SocketId(0);
/// Timeout of a handshake and a hello, which take a few round trips. Source: our choice, five round
/// trips of 2 s of the slowest useful networks; a longer one gives each unknown client memory for
/// longer (`OF_ALL` of `admission.rs`).
const TIMEOUT: Duration = Duration::from_secs(10);
