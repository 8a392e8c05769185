//! The hub's end of the control channel: lets clients in, keeps their sessions, carries out what they ask.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use hawser_proto::scheduler;
use hawser_proto::session::{HubAction, HubSession, Violation};
use hawser_units::PathId;
use hawser_wire::control::{Cipher, CloseReason, Hello, Message, Refusal, VERSION, Welcome};
use hawser_wire::data::Class;
use quinn::{Endpoint, Incoming};
use tokio::sync::mpsc;

use super::peer::Guests;
use super::stream::{ControlStream, StreamError};
use super::tls;
use crate::dataplane::{Command, EpochKeys, Orders, Role, SessionId, SocketId, preferred_cipher};
use crate::enrolment::{Client, ClientStore, Pool};
use crate::identity::{KeyHash, random};

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
}

/// The hub's sessions and the store behind them, shared by all connections.
#[derive(Clone)]
pub struct HubControl {
    core: Arc<Mutex<Core>>,
    /// Who asks for a waypoint, and not for a session.
    movers: Option<Guests>,
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
    /// How often another machine took its identity over.
    pub replaced: u64,
}

struct Core {
    store: ClientStore,
    settings: HubSettings,
    orders: Orders,
    sessions: BTreeMap<u64, Session>,
    /// Receive indices in use, so that none is given twice.
    indices: HashSet<u32>,
    /// When each identity was taken over lately, by client name.
    takeovers: BTreeMap<String, VecDeque<Instant>>,
    replaced: BTreeMap<String, u64>,
    refused: BTreeMap<&'static str, u64>,
    next_link: u64,
}

struct Session {
    name: String,
    machine: HubSession,
    epoch: u8,
    link: Option<Link>,
    /// Local index by path, to free it with the path.
    indices: BTreeMap<u16, u32>,
    quiet_since: Instant,
}

/// The control connection that speaks for a session.
struct Link {
    id: u64,
    outbox: mpsc::UnboundedSender<Message>,
}

/// A connection that was let in.
struct Admitted {
    session: u64,
    link: u64,
    welcome: Welcome,
    outbox: mpsc::UnboundedReceiver<Message>,
}

/// Who has connected.
enum Opened {
    Client(Box<(quinn::Connection, ControlStream, Admitted)>),
    Mover(quinn::Connection),
}

impl HubControl {
    /// A hub without sessions. `orders` leads to the data plane.
    #[must_use]
    pub fn new(store: ClientStore, settings: HubSettings, orders: Orders) -> Self {
        let core = Core {
            store,
            settings,
            orders,
            sessions: BTreeMap::new(),
            indices: HashSet::new(),
            takeovers: BTreeMap::new(),
            replaced: BTreeMap::new(),
            refused: BTreeMap::new(),
            next_link: 0,
        };
        Self {
            core: Arc::new(Mutex::new(core)),
            movers: None,
        }
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
            // Under load, strangers prove their address before they cost a key exchange.
            if endpoint.open_connections() > CROWD
                && incoming.may_retry()
                && !incoming.remote_address_validated()
            {
                let _ = incoming.retry();
                continue;
            }
            let hub = self.clone();
            tokio::spawn(async move { hub.serve_one(incoming).await });
        }
    }

    /// Takes a client's enrolment back and ends its session at once.
    ///
    /// # Errors
    /// No such client, or the disk refuses.
    pub fn revoke(&self, name: &str) -> anyhow::Result<()> {
        let mut core = self.lock();
        core.store.revoke(name)?;
        core.end_sessions_of(name, CloseReason::Revoked);
        tracing::info!(client = name, "revoked");
        Ok(())
    }

    /// Asks the client of a session for fresh keys.
    pub fn rekey(&self, session: SessionId) {
        if let Some(Session { link: Some(link), .. }) = self.lock().sessions.get(&session.0) {
            let _ = link.outbox.send(Message::RekeyWanted);
        }
    }

    /// Applies new settings to what happens from now on.
    pub fn apply(&self, settings: HubSettings) {
        let mut core = self.lock();
        let sessions: Vec<_> = core.sessions.keys().copied().collect();
        for session in sessions {
            for (class, scheduler) in settings.schedulers.clone() {
                (core.orders)(Command::SetScheduler {
                    session: SessionId(session),
                    class,
                    scheduler,
                });
            }
        }
        core.settings = settings;
    }

    /// Forgets sessions whose client has been away for long.
    pub fn sweep(&self, now: Instant) {
        let mut core = self.lock();
        let gone: Vec<_> = core
            .sessions
            .iter()
            .filter(|(_, s)| s.link.is_none() && now.saturating_duration_since(s.quiet_since) > ABSENCE)
            .map(|(session, _)| *session)
            .collect();
        for session in gone {
            core.end_session(session, CloseReason::Shutdown);
        }
    }

    /// Ends all sessions: the hub stops. Clients are told, and come back when it does.
    pub fn shut_down(&self) {
        let mut core = self.lock();
        let sessions: Vec<_> = core.sessions.keys().copied().collect();
        for session in sessions {
            core.end_session(session, CloseReason::Shutdown);
        }
    }

    /// All clients, for status.
    #[must_use]
    pub fn clients(&self) -> Vec<ClientStatus> {
        let mut core = self.lock();
        if let Err(error) = core.store.reload() {
            tracing::warn!(error = format!("{error:#}"), "cannot read the client store");
        }
        let now = SystemTime::now();
        let by_name: BTreeMap<_, _> = core
            .sessions
            .iter()
            .map(|(id, session)| (session.name.as_str(), (*id, session.link.is_some())))
            .collect();
        let status = |client: &Client| {
            let session = by_name.get(client.name.as_str());
            ClientStatus {
                name: client.name.clone(),
                state: client.state(now),
                connected: session.is_some_and(|(_, connected)| *connected),
                session: session.map(|(id, _)| *id),
                inner: client.inner(),
                replaced: core.replaced.get(&client.name).copied().unwrap_or(0),
            }
        };
        core.store.iter().map(status).collect()
    }

    /// How many connections were refused, by reason.
    #[must_use]
    pub fn refusals(&self) -> Vec<(&'static str, u64)> {
        self.lock()
            .refused
            .iter()
            .map(|(reason, count)| (*reason, *count))
            .collect()
    }

    async fn serve_one(&self, incoming: Incoming) {
        let from = incoming.remote_address();
        match tokio::time::timeout(PATIENCE, self.open(incoming)).await {
            Ok(Ok(Opened::Mover(connection))) => {
                if let Some(movers) = &self.movers {
                    movers.serve_one(connection).await;
                }
            }
            Ok(Ok(Opened::Client(opened))) => {
                let (connection, stream, admitted) = *opened;
                let (session, link) = (admitted.session, admitted.link);
                let reason = self.converse(stream, admitted).await;
                self.lock().detach(session, link);
                connection.close(0_u8.into(), b"");
                tracing::debug!(session, %reason, "control connection ended");
            }
            Ok(Err(error)) => tracing::debug!(%from, error = format!("{error:#}"), "client not let in"),
            Err(_) => tracing::debug!(%from, "client did not say hello in time"),
        }
    }

    async fn open(&self, incoming: Incoming) -> anyhow::Result<Opened> {
        let connection = incoming.await?;
        if tls::is_mover(&connection) {
            return Ok(Opened::Mover(connection));
        }
        let key = tls::peer_key(&connection)?;
        let (send, receive) = connection.accept_bi().await?;
        let mut stream = ControlStream::new(send, receive);
        let Message::Hello(hello) = stream.next().await? else {
            anyhow::bail!("the first message is no hello");
        };
        let export = |session, epoch, cipher| tls::epoch_keys(&connection, session, epoch, cipher, Role::Hub);
        let admitted = self.lock().admit(key, &hello, export);
        match admitted {
            Ok(admitted) => {
                stream.send(&Message::Welcome(admitted.welcome.clone())).await?;
                Ok(Opened::Client(Box::new((connection, stream, admitted))))
            }
            Err(refusal) => {
                tracing::info!(from = %connection.remote_address(), ?refusal, machine = hello.name_hint,
                    "client refused");
                stream.finish(&Message::Refused(refusal)).await;
                anyhow::bail!("refused: {refusal:?}")
            }
        }
    }

    /// Carries messages both ways until the connection ends; says why it did.
    async fn converse(&self, mut stream: ControlStream, mut admitted: Admitted) -> String {
        let (session, link) = (admitted.session, admitted.link);
        loop {
            tokio::select! {
                message = stream.next() => {
                    let answers = match message {
                        Ok(Message::Close(reason)) => return reason.to_string(),
                        Ok(message) => self.lock().handle(session, link, &message),
                        Err(StreamError::Parse(error)) => {
                            stream.finish(&Message::Close(CloseReason::Protocol)).await;
                            return error.to_string();
                        }
                        Err(error) => return error.to_string(),
                    };
                    let answers = match answers {
                        Ok(answers) => answers,
                        Err(violation) => {
                            stream.finish(&Message::Close(CloseReason::Protocol)).await;
                            return violation.to_string();
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
                    // A newer connection speaks for the session: the client closes this one when it has moved.
                    None => tokio::select! {
                        _ = stream.next() => return CloseReason::Superseded.to_string(),
                        () = tokio::time::sleep(PATIENCE) => return CloseReason::Superseded.to_string(),
                    },
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("no holder panics")
    }
}

impl Core {
    fn admit(
        &mut self,
        key: KeyHash,
        hello: &Hello,
        export: impl FnOnce(u64, u8, Cipher) -> anyhow::Result<EpochKeys>,
    ) -> Result<Admitted, Refusal> {
        let result = self
            .authorise(key, hello)
            .and_then(|client| self.attach(&client, hello, export));
        if let Err(refusal) = &result {
            *self.refused.entry(counter(*refusal)).or_default() += 1;
        }
        result
    }

    fn authorise(&mut self, key: KeyHash, hello: &Hello) -> Result<Client, Refusal> {
        if hello.version != VERSION {
            return Err(Refusal::Version);
        }
        if let Some(token) = &hello.enrol_token {
            let client = self.store.enrol(token, key, SystemTime::now());
            match client {
                Ok(client) => return Ok(client),
                // An enrolled client that shows a stale token is still enrolled.
                Err(refusal) => return self.store.by_key(key).cloned().ok_or(refusal),
            }
        }
        self.store.by_key(key).cloned().ok_or(Refusal::NotEnrolled)
    }

    fn attach(
        &mut self,
        client: &Client,
        hello: &Hello,
        export: impl FnOnce(u64, u8, Cipher) -> anyhow::Result<EpochKeys>,
    ) -> Result<Admitted, Refusal> {
        let resumed = hello.resume.filter(|id| {
            self.sessions
                .get(id)
                .is_some_and(|session| session.name == client.name)
        });
        if resumed.is_none() {
            self.check_flapping(&client.name)?;
        }
        let session = resumed.unwrap_or_else(|| u64::from_be_bytes(random()));
        let epoch = resumed.map_or(0, |id| self.sessions[&id].epoch.wrapping_add(1));
        let cipher = hello.prefers.agree(preferred_cipher());
        let keys = export(session, epoch, cipher).map_err(|error| {
            tracing::error!(error = format!("{error:#}"), "cannot export keys");
            Refusal::Busy
        })?;
        if resumed.is_none() {
            self.end_sessions_of(&client.name, CloseReason::Replaced);
            self.start_session(session, client);
        }
        (self.orders)(Command::InstallKeys {
            session: SessionId(session),
            epoch,
            keys,
        });
        let link = self.next_link;
        self.next_link += 1;
        let (sender, outbox) = mpsc::unbounded_channel();
        let entry = self.sessions.get_mut(&session).expect("resumed or just started");
        entry.epoch = epoch;
        entry.machine.handle_control_up();
        entry.link = Some(Link {
            id: link,
            outbox: sender,
        });
        tracing::info!(
            client = client.name,
            session,
            epoch,
            machine = hello.name_hint,
            "client connected"
        );
        Ok(Admitted {
            session,
            link,
            welcome: self.welcome(session, epoch, cipher, client),
            outbox,
        })
    }

    fn welcome(&self, session: u64, epoch: u8, cipher: Cipher, client: &Client) -> Welcome {
        let pool = self.settings.pool;
        Welcome {
            session,
            epoch,
            inner_v4: (client.inner_v4, pool.v4.1),
            inner_v6: client
                .inner_v6
                .zip(pool.v6)
                .map(|(address, (_, prefix))| (address, prefix)),
            dns: self.settings.dns.clone(),
            hub_mtu: self.settings.mtu,
            cipher,
        }
    }

    /// An identity that moves back and forth serves nobody: the newest wins, but not many times a minute.
    fn check_flapping(&mut self, name: &str) -> Result<(), Refusal> {
        if !self
            .sessions
            .values()
            .any(|session| session.name == name && session.link.is_some())
        {
            return Ok(());
        }
        let now = Instant::now();
        let takeovers = self.takeovers.entry(name.to_owned()).or_default();
        while takeovers
            .front()
            .is_some_and(|at| now.saturating_duration_since(*at) > FLAP_WINDOW)
        {
            takeovers.pop_front();
        }
        if takeovers.len() >= FLAPS {
            return Err(Refusal::Flapping);
        }
        takeovers.push_back(now);
        *self.replaced.entry(name.to_owned()).or_default() += 1;
        tracing::warn!(
            client = name,
            "connected again while connected: a restart, or two machines with one identity"
        );
        Ok(())
    }

    fn start_session(&mut self, session: u64, client: &Client) {
        let id = SessionId(session);
        (self.orders)(Command::AddSession {
            session: id,
            role: Role::Hub,
            inner: client.inner(),
        });
        for (class, scheduler) in self.settings.schedulers.clone() {
            (self.orders)(Command::SetScheduler {
                session: id,
                class,
                scheduler,
            });
        }
        let entry = Session {
            name: client.name.clone(),
            machine: HubSession::new(),
            epoch: 0,
            link: None,
            indices: BTreeMap::new(),
            quiet_since: Instant::now(),
        };
        self.sessions.insert(session, entry);
    }

    fn end_sessions_of(&mut self, name: &str, reason: CloseReason) {
        let of_name: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, s)| s.name == name)
            .map(|(session, _)| *session)
            .collect();
        for session in of_name {
            self.end_session(session, reason);
        }
    }

    fn end_session(&mut self, session: u64, reason: CloseReason) {
        let Some(ended) = self.sessions.remove(&session) else {
            return;
        };
        (self.orders)(Command::RemoveSession {
            session: SessionId(session),
        });
        for index in ended.indices.values() {
            self.indices.remove(index);
        }
        if let Some(link) = ended.link {
            let _ = link.outbox.send(Message::Close(reason));
        }
        tracing::info!(client = ended.name, session, %reason, "session ended");
    }

    fn detach(&mut self, session: u64, link: u64) {
        if let Some(session) = self.sessions.get_mut(&session)
            && session.link.as_ref().is_some_and(|l| l.id == link)
        {
            session.link = None;
            session.quiet_since = Instant::now();
        }
    }

    fn handle(&mut self, id: u64, link: u64, message: &Message) -> Result<Vec<Message>, Violation> {
        let Self {
            sessions,
            indices,
            orders,
            ..
        } = self;
        let Some(session) = sessions
            .get_mut(&id)
            .filter(|s| s.link.as_ref().is_some_and(|l| l.id == link))
        else {
            return Ok(Vec::new());
        };
        session.machine.handle_message(message, || fresh_index(indices))?;
        while let Some(action) = session.machine.poll_action() {
            carry_out(id, action, session, indices, orders);
        }
        Ok(std::iter::from_fn(|| session.machine.poll_transmit()).collect())
    }
}

fn fresh_index(taken: &mut HashSet<u32>) -> u32 {
    loop {
        let index = u32::from_be_bytes(random());
        if taken.insert(index) {
            return index;
        }
    }
}

fn carry_out(id: u64, action: HubAction, session: &mut Session, indices: &mut HashSet<u32>, orders: &Orders) {
    let id = SessionId(id);
    match action {
        HubAction::OpenPath {
            path,
            local_index,
            peer_index,
        } => {
            session.indices.insert(path, local_index);
            orders(Command::OpenPath {
                session: id,
                path: PathId(path),
                socket: HUB_SOCKET,
                remote: None,
                peer_index,
                local_index,
                name: format!("{}/{path}", session.name),
                mtu: PATH_MTU,
                cap: None,
            });
        }
        HubAction::ClosePath { path } => {
            if let Some(index) = session.indices.remove(&path) {
                indices.remove(&index);
            }
            orders(Command::ClosePath {
                session: id,
                path: PathId(path),
            });
        }
        HubAction::SetScheduler { class, scheduler } => {
            if scheduler::NAMES.contains(&scheduler.as_str()) {
                orders(Command::SetScheduler {
                    session: id,
                    class,
                    scheduler,
                });
            } else {
                tracing::debug!(session = id.0, scheduler, "client asks for an unknown scheduler");
            }
        }
        HubAction::SetCap { path, cap } => orders(Command::SetCap {
            session: id,
            path: PathId(path),
            cap,
        }),
        HubAction::Closed(_) => {}
    }
}

fn counter(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::NotEnrolled => "refused_not_enrolled",
        Refusal::UnknownToken => "refused_unknown_token",
        Refusal::UsedToken => "refused_used_token",
        Refusal::ExpiredToken => "refused_expired_token",
        Refusal::Version => "refused_version",
        Refusal::Flapping => "refused_flapping",
        Refusal::Busy => "refused_busy",
        Refusal::Other(_) => "refused_other",
    }
}

/// The hub's one UDP socket.
pub const HUB_SOCKET: SocketId = SocketId(0);
/// What a path may carry until the data plane has probed it: every network in use carries Ethernet's 1500.
const PATH_MTU: u16 = 1500;
/// A handshake and a hello take a few round trips.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a session waits for its client: a night's sleep of a laptop is longer, but costs it only a new session.
const ABSENCE: Duration = Duration::from_secs(3600);
/// A client takes its own session over when it restarts; nobody restarts this often.
const FLAPS: usize = 5;
const FLAP_WINDOW: Duration = Duration::from_secs(60);
/// So many connections at once are a crowd.
const CROWD: usize = 2_000;
