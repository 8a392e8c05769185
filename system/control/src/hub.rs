//! The hub's end of the control channel: lets clients in, keeps their sessions, carries out what
//! they ask.

mod core;
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
use hawser_config::{LimitsConfig, Pool};
use hawser_dataplane::{Orders, Pairs, Role, SessionId, SocketId};
use hawser_linux::udp::plain;
use hawser_units::Bytes;
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
use crate::places::Places;

/// What the hub tells every client, and how it treats all sessions.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// The address pools.
    pub pool: Pool,
    /// Resolvers behind the hub.
    pub dns: Vec<IpAddr>,
    /// The inner interface's MTU.
    pub mtu: u16,
    /// Scheduler by class, where the configuration names one.
    pub schedulers: Vec<(Class, String)>,
    /// How packets of layered streams are known.
    pub layer_rules: Vec<layer::Rule>,
    /// What sessions carry.
    pub format: Format,
    /// The largest outer packet that a path may carry, bytes: where the search for what does pass
    /// begins.
    pub path_mtu: u16,
    /// What clients may use that have no limits of their own.
    pub limits: LimitsConfig,
    /// How sessions are spread over the data plane's threads. Fixed while it runs.
    pub pairs: Pairs,
}

/// The hub's sessions and the store behind them, shared by all connections.
#[derive(Clone)]
pub struct HubControl {
    core: Arc<Mutex<Core>>,
    admission: Admission,
    /// Who asks for a waypoint, and not for a session.
    movers: Option<Guests>,
    /// Who comes by TLS on TCP, and from where.
    relays: Vec<Places>,
}

/// A client, for status.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ClientStatus {
    /// Its name.
    pub name: String,
    /// `enrolled`, `invited` or `expired`.
    pub state: &'static str,
    /// Whether a control connection is up.
    pub connected: bool,
    /// Its session in the data plane's snapshot.
    pub session: Option<u64>,
    /// Its inner addresses.
    pub inner: Vec<IpAddr>,
    /// What lies behind it and keeps its addresses.
    pub subnets: Vec<Subnet>,
    /// What it may use, and has used.
    pub limits: Standing,
    /// How often another machine took its identity over.
    pub replaced: u64,
}

/// Who has connected. The permit counts the connection.
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
    /// A hub without sessions. `orders` leads to the data plane.
    #[must_use]
    pub fn new(store: SharedStore, settings: HubSettings, orders: Orders) -> Self {
        Self {
            core: Arc::new(Mutex::new(Core::new(store, settings, orders))),
            admission: Admission::default(),
            movers: None,
            relays: Vec::new(),
        }
    }

    /// The same, with clients that come by way of relays; may be called for each kind of them.
    #[must_use]
    pub fn with_relays(mut self, relays: Places) -> Self {
        self.relays.push(relays);
        self
    }

    /// The same, with receipts of what neighbours carry for clients. To be told once a second what
    /// paths have carried: [`handle_carried`](Self::handle_carried).
    #[must_use]
    pub fn with_receipts(self, signer: Signer) -> Self {
        self.lock().receipts = Some(Receipts::new(signer));
        self
    }

    /// Where somebody really comes from, for logs.
    fn origin(&self, address: SocketAddr) -> SocketAddr {
        let address = plain(address);
        let relay = self.relays.iter().find(|relay| relay.is_relayed(address));
        relay.map_or(address, |relay| relay.origin(address))
    }

    /// The same, with somebody for hosts that move flows.
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

    /// Takes a client's enrolment back and ends its session at once.
    ///
    /// # Errors
    /// No such client, or the storage refuses.
    pub async fn revoke(&self, name: &str) -> anyhow::Result<()> {
        let store = self.lock().store.clone();
        store.revoke(name).await?;
        self.lock().hold_against_store();
        if let Some(movers) = &self.movers {
            movers.expel();
        }
        tracing::info!(client = name, "revoked");
        Ok(())
    }

    /// Ends the sessions and connections of those whom the store does not know any more, whoever
    /// has changed it. To be called every [`LOOK`](crate::enrolment::LOOK).
    pub fn hold_against_store(&self) {
        self.lock().hold_against_store();
        if let Some(movers) = &self.movers {
            movers.expel();
        }
    }

    /// Takes all sessions out for a successor: nothing that clients say changes them any more.
    pub fn hand_over(&self) -> BTreeMap<u64, ControlCheckpoint> {
        self.lock().hand_over()
    }

    /// Goes on with a session of the process before; false: it does not fit this hub any more, and
    /// is gone.
    pub fn restore(&self, saved: HubSessionCheckpoint) -> bool {
        self.lock().restore(saved)
    }

    /// Sends clients to other hubs and lets no others in, or serves them as before.
    pub fn drain(&self, is_on: bool) {
        self.lock().drain(is_on);
        tracing::info!(is_on, "clients are sent to other hubs");
    }

    /// Whether clients are sent to other hubs.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.lock().is_draining()
    }

    /// Whether some client has a quota, so that [`set_used`](Self::set_used) is of use.
    #[must_use]
    pub fn has_quotas(&self) -> bool {
        self.lock().has_quotas()
    }

    /// What clients have used of the month, by name: holds them to their quotas.
    pub fn set_used(&self, used: BTreeMap<String, Bytes>) {
        self.lock().set_used(used);
    }

    /// What paths have carried so far, by session and number: received from the client, and sent to
    /// it. Clients get receipts of what neighbours have carried. Unit: bytes of UDP payload.
    pub fn handle_carried(&self, carried: impl Iterator<Item = ((u64, u16), [u64; 2])>) {
        let mut core = self.lock();
        let Core {
            receipts, sessions, ..
        } = &mut *core;
        let Some(receipts) = receipts else { return };
        receipts.handle_carried(carried, SystemTime::now(), |session, receipt| {
            let link = sessions.get(&session).and_then(|session| session.link.as_ref());
            link.is_some_and(|link| link.tell(Message::Receipt(Box::new(receipt))))
        });
    }

    /// Asks the client of a session for fresh keys.
    pub fn rekey(&self, session: SessionId) {
        self.lock().rekey(session);
    }

    /// Applies new settings to what happens from now on.
    pub fn apply(&self, settings: HubSettings) {
        self.lock().apply(settings);
    }

    /// Forgets sessions whose client has been away for long.
    pub fn sweep(&self, now: Instant) {
        self.lock().sweep(now);
    }

    /// Ends all sessions: the hub stops. Clients are told, and come back when it does.
    pub fn shut_down(&self) {
        self.lock().end_all(CloseReason::Shutdown);
    }

    /// The names of the clients that have sessions.
    #[must_use]
    pub fn names(&self) -> BTreeMap<u64, String> {
        let core = self.lock();
        let sessions = core.sessions.iter();
        let mut names = BTreeMap::new();
        names.extend(sessions.map(|(id, session)| (*id, session.name.clone())));
        names
    }

    /// All clients, for status.
    #[must_use]
    pub fn clients(&self) -> Vec<ClientStatus> {
        self.lock().clients()
    }

    /// What was refused, cut off or left out, by reason.
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
                tracing::debug!(%from, error = format!("{error:#}"), "client not let in");
                return;
            }
            Err(_) => {
                tracing::debug!(%from, "client did not say hello in time");
                return;
            }
        };
        match who {
            Who::Mover(said) => {
                // A waypoint's rules are for addresses of the network around it.
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
            anyhow::bail!("it has too many connections already");
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
                stream.finish(&Message::Refused(refusal)).await;
                anyhow::bail!("refused: {refusal:?}")
            }
        }
    }

    /// Asks the store for a client, while others go on.
    async fn authorise(&self, key: KeyHash, hello: &Hello) -> Result<Client, Refusal> {
        let (is_resuming, store) = {
            let mut core = self.lock();
            (core.check(key, hello)?, core.store.clone())
        };
        store
            .authorise(hello.enrol_token, key, SystemTime::now(), is_resuming)
            .await
    }

    /// Carries messages both ways until the connection ends; says why it did.
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
                    // A newer connection speaks for the session: the client closes this one when it
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

/// Every network in use carries Ethernet's 1500.
pub const PATH_MTU: u16 = 1500;
/// The hub's one UDP port.
pub const HUB_SOCKET: SocketId = SocketId(0);
/// A handshake and a hello take a few round trips.
const TIMEOUT: Duration = Duration::from_secs(10);
