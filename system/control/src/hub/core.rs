//! The sessions of a hub: who has one, which connection speaks for it, what becomes of it.
//!
//! ```text
//!              let in                     connection gone                away for too long
//!   (nobody) --------> Up --------------------------------> Absent ----------------------> (gone)
//!                      |  ^                                    |
//!                      |  +------------------------------------+
//!                      |             let in again              |
//!                      +---------------------------------------+--> (gone): a goodbye, a revocation, another machine
//! ```
//!
//! Bounds: one session for each enrolled client, so all are no more than the pool has addresses;
//! [`MAX_PATHS`](hawser_proto::session::MAX_PATHS) paths each; a budget of messages for each
//! client, however many connections it makes.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use hawser_config::identity::{KeyHash, random};
use hawser_dataplane::{Change, EpochKeys, Orders, Role, SessionId, preferred_cipher};
use hawser_proto::egress::Declaration;
use hawser_proto::scheduler;
use hawser_proto::session::{HubAction, HubSession, MAX_PATHS, Violation};
use hawser_units::{Net, PathId};
use hawser_wire::control::{Cipher, CloseReason, Hello, Limit, Message, Refusal, VERSION, Welcome};
use hawser_wire::frame::Format;
use tokio::sync::mpsc;

use super::index::fresh_index;
use super::limits::Limits;
use super::receipts::Receipts;
use super::{ClientStatus, HUB_SOCKET, HubSettings};
use crate::budget::{Budget, Pace};
use crate::enrolment::{Client, SharedStore};

pub(super) struct Core {
    pub(super) store: SharedStore,
    pub(super) settings: HubSettings,
    pub(super) orders: Orders,
    pub(super) sessions: BTreeMap<u64, Session>,
    /// Receive indices in use, so that none is given twice.
    pub(super) indices: HashSet<u32>,
    /// By the names of enrolled clients that have been here.
    accounts: BTreeMap<String, Account>,
    counters: BTreeMap<&'static str, u64>,
    next_link: u64,
    /// The state of the store that the sessions were held against.
    held_against: u64,
    pub(super) limits: Limits,
    /// What neighbours carry for clients; none where this hub does not sign it.
    pub(super) receipts: Option<Receipts>,
    /// Clients are sent away, and nobody else comes in.
    pub(super) is_draining: bool,
    /// The state of the fleet that clients know.
    pub(super) told_of: u64,
}

pub(super) struct Session {
    pub(super) name: String,
    pub(super) key: KeyHash,
    pub(super) inner: Vec<IpAddr>,
    /// What is led to it beside them.
    pub(super) subnets: Vec<Net>,
    /// Its client may have been told of some.
    pub(super) may_know_subnets: bool,
    pub(super) machine: HubSession,
    pub(super) epoch: u8,
    pub(super) link: Option<Link>,
    /// Local index by path, to free it with the path.
    pub(super) indices: BTreeMap<u16, u32>,
    pub(super) quiet_since: Instant,
    /// What it is held to.
    pub(super) limit: Limit,
    /// Its client knows.
    pub(super) is_told: bool,
    /// Its client may have been told of a limit before.
    pub(super) has_heard: bool,
}

/// What a client has done, over all its sessions.
struct Account {
    /// When its identity was taken over lately.
    takeovers: VecDeque<Instant>,
    replaced: u64,
    budget: Budget,
}

/// The control connection that speaks for a session.
pub(super) struct Link {
    id: u64,
    pub(super) outbox: mpsc::Sender<Message>,
}

impl Link {
    /// Says something to the client; false: it has not read what was said before.
    pub(super) fn tell(&self, message: Message) -> bool {
        self.outbox.try_send(message).is_ok()
    }
}

/// A connection that was let in.
pub(super) struct Admitted {
    pub(super) session: u64,
    pub(super) link: u64,
    pub(super) welcome: Welcome,
    pub(super) outbox: mpsc::Receiver<Message>,
}

/// Why a connection is ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("more messages than anybody needs")]
    Flood,
}

impl Fault {
    pub(super) fn reason(&self) -> CloseReason {
        match self {
            Self::Violation(_) => CloseReason::Protocol,
            Self::Flood => CloseReason::Flood,
        }
    }
}

impl Core {
    pub(super) fn new(store: SharedStore, settings: HubSettings, orders: Orders) -> Self {
        let defaults = settings.limits.clone();
        Self {
            store,
            settings,
            orders,
            sessions: BTreeMap::new(),
            indices: HashSet::new(),
            accounts: BTreeMap::new(),
            counters: BTreeMap::new(),
            next_link: 0,
            held_against: 0,
            limits: Limits {
                defaults,
                ..Limits::default()
            },
            receipts: None,
            is_draining: false,
            told_of: 0,
        }
    }

    /// Lets a client in, or not, whom the store has been asked for ([`Self::check`]).
    pub(super) fn admit(
        &mut self,
        client: Result<Client, Refusal>,
        key: KeyHash,
        hello: &Hello,
        export: impl FnOnce(u64, u8, Cipher) -> anyhow::Result<EpochKeys>,
    ) -> Result<Admitted, Refusal> {
        let result = client
            .and_then(|client| self.welcome_back(client, key))
            .and_then(|client| self.attach(&client, key, hello, export));
        if let Err(refusal) = &result {
            self.count(counter(*refusal));
        }
        result
    }

    /// Whether the store is to be asked for a client at all; true: it has a session here, which it
    /// continues.
    pub(super) fn check(&mut self, key: KeyHash, hello: &Hello) -> Result<bool, Refusal> {
        if hello.version != VERSION {
            return Err(Refusal::Version);
        }
        if hello.format != self.settings.format {
            return Err(Refusal::Format);
        }
        if hello.format == Format::Ethernet {
            self.meet(key)?;
        }
        let session = hello.resume.and_then(|id| self.sessions.get(&id));
        let is_resuming = session.is_some_and(|session| session.key == key);
        if self.is_draining && !is_resuming {
            return Err(Refusal::Busy);
        }
        Ok(is_resuming)
    }

    /// What was known of the client when the store was asked must still be so.
    fn welcome_back(&mut self, client: Client, key: KeyHash) -> Result<Client, Refusal> {
        // It may have had another name until now.
        self.hold_against_store();
        if self.store.is_expired() {
            return Err(Refusal::Busy);
        }
        if !self.store.has(&client.name, key) {
            return Err(Refusal::NotEnrolled);
        }
        let account = self.account(&client.name);
        if account.budget.spend(COST_OF_HELLO, Instant::now()) {
            Ok(client)
        } else {
            Err(Refusal::Flapping)
        }
    }

    /// Lets a key in whose code somebody has compared: the name of its entry is the code.
    fn meet(&mut self, key: KeyHash) -> Result<(), Refusal> {
        let met = self.store.lock().meet(&key.code().to_string(), key);
        met.map_err(|error| {
            tracing::error!(error = format!("{error:#}"), "cannot remember a key");
            Refusal::Busy
        })
    }

    /// Frames have one way: whoever is connected keeps it.
    fn make_way(&mut self, name: &str) -> Result<(), Refusal> {
        let others = self.sessions.values().filter(|session| session.name != name);
        if self.settings.format == Format::Ip {
            return Ok(());
        }
        let (connected, absent): (Vec<_>, Vec<_>) = others.partition(|session| session.link.is_some());
        if !connected.is_empty() {
            return Err(Refusal::Busy);
        }
        let absent: Vec<_> = absent.iter().map(|session| session.name.clone()).collect();
        for name in absent {
            self.end_sessions_of(&name, CloseReason::Replaced);
        }
        Ok(())
    }

    fn account(&mut self, name: &str) -> &mut Account {
        self.accounts.entry(name.to_owned()).or_insert_with(|| Account {
            takeovers: VecDeque::new(),
            replaced: 0,
            budget: Budget::new(PACE, Instant::now()),
        })
    }

    fn attach(
        &mut self,
        client: &Client,
        key: KeyHash,
        hello: &Hello,
        export: impl FnOnce(u64, u8, Cipher) -> anyhow::Result<EpochKeys>,
    ) -> Result<Admitted, Refusal> {
        let resumed = hello.resume.filter(|id| {
            self.sessions
                .get(id)
                .is_some_and(|session| session.belongs_to(client))
        });
        if resumed.is_none() {
            self.check_flapping(&client.name)?;
            self.make_way(&client.name)?;
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
            self.start_session(session, key, client);
        }
        (self.orders)(
            Change::InstallKeys {
                session: SessionId(session),
                epoch,
                keys,
            }
            .into(),
        );
        let link = self.next_link;
        self.next_link += 1;
        let (sender, outbox) = mpsc::channel(OUTBOX);
        let entry = self.sessions.get_mut(&session).expect("resumed or just started");
        entry.epoch = epoch;
        entry.machine.handle_control_up();
        entry.link = Some(Link {
            id: link,
            outbox: sender.clone(),
        });
        // A session begins without a limit on both sides.
        entry.is_told = !entry.has_heard && entry.limit == Limit::Unlimited;
        entry.hold_to(session, self.limits.of(client), &self.orders);
        entry.lead(session, client.nets(), &self.orders);
        entry.tell_subnets();
        self.introduce_fleet(&sender);
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

    /// An identity that moves back and forth serves nobody: the newest wins, but not many times a
    /// minute.
    fn check_flapping(&mut self, name: &str) -> Result<(), Refusal> {
        if !self
            .sessions
            .values()
            .any(|session| session.name == name && session.link.is_some())
        {
            return Ok(());
        }
        let now = Instant::now();
        let account = self.account(name);
        while account
            .takeovers
            .front()
            .is_some_and(|at| now.saturating_duration_since(*at) > FLAP_WINDOW)
        {
            account.takeovers.pop_front();
        }
        if account.takeovers.len() >= FLAPS {
            return Err(Refusal::Flapping);
        }
        account.takeovers.push_back(now);
        account.replaced += 1;
        tracing::warn!(
            client = name,
            "connected again while connected: a restart, or two machines with one identity"
        );
        Ok(())
    }

    fn start_session(&mut self, session: u64, key: KeyHash, client: &Client) {
        let id = SessionId(session);
        (self.orders)(
            Change::AddSession {
                session: id,
                role: Role::Hub,
                inner: client.inner(),
            }
            .into(),
        );
        for (class, scheduler) in self.settings.schedulers.clone() {
            (self.orders)(
                Change::SetScheduler {
                    session: id,
                    class,
                    scheduler,
                }
                .into(),
            );
        }
        self.tell_layer_rules(id);
        let entry = Session {
            name: client.name.clone(),
            key,
            inner: client.inner(),
            subnets: Vec::new(),
            may_know_subnets: false,
            machine: HubSession::new(),
            epoch: 0,
            link: None,
            indices: BTreeMap::new(),
            quiet_since: Instant::now(),
            limit: Limit::Unlimited,
            is_told: true,
            has_heard: false,
        };
        self.sessions.insert(session, entry);
    }

    /// Tells the data plane how a session knows packets of layered streams.
    pub(super) fn tell_layer_rules(&self, session: SessionId) {
        let rules = self.settings.layer_rules.clone();
        (self.orders)(Change::SetLayerRules { session, rules }.into());
    }

    /// Ends the sessions of those who are not enrolled as they were when they began: revoked by
    /// whomever, or enrolled under another name.
    ///
    /// Cost: two system calls while the store is as it was.
    pub(super) fn hold_against_store(&mut self) {
        if self.store.is_expired() {
            self.end_unverified();
            return;
        }
        self.name_other_hubs();
        let store = match self.store.refreshed() {
            Ok(store) => store,
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "cannot read the client store");
                return;
            }
        };
        if store.generation() == self.held_against {
            drop(store);
            if self.limits.is_untold {
                self.limit_sessions();
            }
            return;
        }
        self.held_against = store.generation();
        if let Some(damage) = store.damage() {
            tracing::warn!(damage, "a client is kept out");
        }
        let is_current = |session: &Session| {
            let client = store.by_name(&session.name);
            client.is_some_and(|client| session.belongs_to(client))
        };
        let over: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, session)| !is_current(session))
            .map(|(id, session)| {
                let is_elsewhere = store.by_key(session.key).is_some();
                let reason = if is_elsewhere {
                    CloseReason::Replaced
                } else {
                    CloseReason::Revoked
                };
                (*id, reason)
            })
            .collect();
        self.accounts.retain(|name, _| store.by_name(name).is_some());
        let change = store.change_number();
        drop(store);
        for (session, reason) in over {
            self.end_session(session, reason);
        }
        self.store.confirm(change);
        self.limit_sessions();
        self.lead_subnets();
    }

    /// Ends all sessions, because the list of clients is too old to trust. Clients go to other
    /// hubs, or come back when the database does.
    fn end_unverified(&mut self) {
        if self.sessions.is_empty() {
            return;
        }
        let sessions = self.sessions.len();
        tracing::error!(
            sessions,
            "the store of clients has not answered for as long as `stale` in hub.toml says: all sessions end"
        );
        self.count("ended_unverified");
        self.end_all(CloseReason::Shutdown);
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

    /// Ends all sessions.
    pub(super) fn end_all(&mut self, reason: CloseReason) {
        let all: Vec<_> = self.sessions.keys().copied().collect();
        for session in all {
            self.end_session(session, reason);
        }
    }

    fn end_session(&mut self, session: u64, reason: CloseReason) {
        let Some(ended) = self.sessions.remove(&session) else {
            return;
        };
        (self.orders)(
            Change::RemoveSession {
                session: SessionId(session),
            }
            .into(),
        );
        for index in ended.indices.values() {
            self.indices.remove(index);
        }
        if let Some(link) = ended.link {
            // Who has not read the last few messages hears it from the end of the connection.
            let _ = link.outbox.try_send(Message::Close(reason));
        }
        tracing::info!(client = ended.name, session, %reason, "session ended");
    }

    /// The connection is gone. The session waits for its client.
    pub(super) fn detach(&mut self, session: u64, link: u64) {
        if let Some(session) = self.session_of(session, link) {
            session.link = None;
            session.quiet_since = Instant::now();
        }
    }

    /// Ends the sessions of clients that have been away for long without a word.
    pub(super) fn sweep(&mut self, now: Instant) {
        let is_over = |session: &Session| {
            session.link.is_none() && now.saturating_duration_since(session.quiet_since) > ABSENCE
        };
        let gone: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, session)| is_over(session))
            .map(|(session, _)| *session)
            .collect();
        for session in gone {
            self.end_session(session, CloseReason::Shutdown);
        }
    }

    /// The session, if that connection speaks for it.
    fn session_of(&mut self, session: u64, link: u64) -> Option<&mut Session> {
        let session = self.sessions.get_mut(&session)?;
        session
            .link
            .as_ref()
            .is_some_and(|l| l.id == link)
            .then_some(session)
    }

    /// Asks the client of a session for fresh keys.
    pub(super) fn rekey(&mut self, session: SessionId) {
        let Some(session) = self.sessions.get_mut(&session.0) else {
            return;
        };
        let asked = session
            .link
            .as_ref()
            .map(|link| link.outbox.try_send(Message::RekeyWanted));
        if asked.is_some_and(|sent| sent.is_err()) {
            // A client that reads nothing makes another connection when this one ends, and that
            // brings fresh keys.
            session.link = None;
            session.quiet_since = Instant::now();
            self.count("closed_unread");
        }
    }

    /// Takes in a message; the answers to send.
    ///
    /// # Errors
    /// [`Fault`]: the connection is to be closed.
    pub(super) fn handle(&mut self, id: u64, link: u64, message: &Message) -> Result<Vec<Message>, Fault> {
        let Some(name) = self.session_of(id, link).map(|session| session.name.clone()) else {
            return Ok(Vec::new());
        };
        if !self.account(&name).budget.spend(1, Instant::now()) {
            self.count("closed_flood");
            return Err(Fault::Flood);
        }
        let Self {
            sessions,
            indices,
            orders,
            settings,
            receipts,
            ..
        } = self;
        let session = sessions.get_mut(&id).expect("it was there");
        let mut goodbye = None;
        let pairs = (settings.pairs, settings.pairs.of(&session.inner));
        if let Err(violation) = session
            .machine
            .handle_message(message, || fresh_index(indices, pairs))
        {
            self.count("closed_protocol");
            return Err(violation.into());
        }
        while let Some(action) = session.machine.poll_action() {
            if let HubAction::Closed(reason) = action {
                goodbye = Some(reason);
            } else if let HubAction::SignReceipts { path, member, taker } = action {
                if let Some(receipts) = receipts {
                    receipts.begin((id, path), member, taker, SystemTime::now());
                }
            } else {
                carry_out(id, action, session, indices, (orders, settings.path_mtu));
            }
        }
        let answers = std::iter::from_fn(|| session.machine.poll_transmit()).collect();
        // One that only moves to another connection, or comes back soon, says something else.
        if goodbye == Some(CloseReason::Shutdown) {
            session.link = None;
            self.end_session(id, CloseReason::Shutdown);
        }
        Ok(answers)
    }

    /// Applies new settings to what happens from now on.
    pub(super) fn apply(&mut self, settings: HubSettings) {
        for session in self.sessions.keys() {
            for (class, scheduler) in settings.schedulers.clone() {
                (self.orders)(
                    Change::SetScheduler {
                        session: SessionId(*session),
                        class,
                        scheduler,
                    }
                    .into(),
                );
            }
        }
        self.limits.defaults = settings.limits.clone();
        self.settings = settings;
        self.limit_sessions();
        for session in self.sessions.keys() {
            self.tell_layer_rules(SessionId(*session));
        }
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.counters.entry(what).or_default() += 1;
    }

    pub(super) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counters.iter().map(|(what, count)| (*what, *count))
    }

    pub(super) fn clients(&mut self) -> Vec<ClientStatus> {
        self.hold_against_store();
        let now = SystemTime::now();
        let mut by_name = BTreeMap::new();
        by_name.extend(
            self.sessions
                .iter()
                .map(|(id, session)| (session.name.as_str(), (*id, session.link.is_some()))),
        );
        let status = |client: &Client| {
            let session = by_name.get(client.name.as_str());
            ClientStatus {
                name: client.name.clone(),
                state: client.state(now),
                connected: session.is_some_and(|(_, connected)| *connected),
                session: session.map(|(id, _)| *id),
                inner: client.inner(),
                subnets: client.subnets.clone(),
                limits: self.limits.standing(client),
                replaced: self
                    .accounts
                    .get(&client.name)
                    .map_or(0, |account| account.replaced),
            }
        };
        self.store.lock().iter().map(status).collect()
    }
}

impl Session {
    pub(super) fn belongs_to(&self, client: &Client) -> bool {
        self.name == client.name && client.key == Some(self.key) && client.inner() == self.inner
    }
}

fn carry_out(
    id: u64,
    action: HubAction,
    session: &mut Session,
    indices: &mut HashSet<u32>,
    (orders, mtu): (&Orders, u16),
) {
    let id = SessionId(id);
    match action {
        HubAction::OpenPath {
            path,
            local_index,
            peer_index,
        } => {
            session.indices.insert(path, local_index);
            orders(
                Change::OpenPath {
                    session: id,
                    path: PathId(path),
                    socket: HUB_SOCKET,
                    remote: None,
                    peer_index,
                    local_index,
                    name: format!("{}/{path}", session.name),
                    mtu,
                    cap: None,
                }
                .into(),
            );
        }
        HubAction::ClosePath { path } => {
            if let Some(index) = session.indices.remove(&path) {
                indices.remove(&index);
            }
            orders(
                Change::ClosePath {
                    session: id,
                    path: PathId(path),
                }
                .into(),
            );
        }
        HubAction::SetScheduler { class, scheduler } => {
            if scheduler::NAMES.contains(&scheduler.as_str()) {
                orders(
                    Change::SetScheduler {
                        session: id,
                        class,
                        scheduler,
                    }
                    .into(),
                );
            } else {
                tracing::debug!(session = id.0, scheduler, "client asks for an unknown scheduler");
            }
        }
        HubAction::SetDeadlines { rules } => orders(
            Change::SetDeadlines {
                session: id,
                rules,
                is_from_client: false,
            }
            .into(),
        ),
        HubAction::SetDeclared { flows } => {
            let flows = flows.iter().map(Declaration::from).collect();
            orders(Change::SetDeclared { session: id, flows }.into());
        }
        HubAction::SetCap { path, cap } => {
            tracing::debug!(
                session = id.0,
                path,
                cap_bps = cap.map(|cap| cap.as_bps()),
                "held to"
            );
            orders(
                Change::SetCap {
                    session: id,
                    path: PathId(path),
                    cap,
                }
                .into(),
            );
        }
        HubAction::SetPreference { path, preference } => orders(
            Change::SetPreference {
                session: id,
                path: PathId(path),
                preference,
            }
            .into(),
        ),
        HubAction::SetPause { path, pause } => orders(
            Change::SetPause {
                session: id,
                path: PathId(path),
                pause,
            }
            .into(),
        ),
        HubAction::SetAirtime { path, airtime } => orders(
            Change::SetAirtime {
                session: id,
                path: PathId(path),
                airtime,
            }
            .into(),
        ),
        HubAction::Closed(_) | HubAction::SignReceipts { .. } => {}
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
        Refusal::Format => "refused_format",
        Refusal::Other(_) => "refused_other",
    }
}

/// How long a session waits for a client that went without a word: a tunnel, a lift, a modem that
/// starts again. A new session costs the client a round trip and what was under way; its addresses,
/// and so its connections, are the same.
const ABSENCE: Duration = Duration::from_secs(300);
/// A client takes its own session over when it restarts; nobody restarts this often.
const FLAPS: usize = 5;
const FLAP_WINDOW: Duration = Duration::from_secs(60);
/// Messages of a client: it announces 64 paths, each with its cap, closes as many and names four
/// schedulers whenever it connects, and asks every five seconds.
const PACE: Pace = Pace {
    burst: 1_024,
    per_second: 64,
};
/// A connection costs a key exchange and new keys for every path.
const COST_OF_HELLO: u32 = 16;
/// Messages that the hub begins, on their way to one client: rarely more than one, and a receipt of
/// each path once a second.
const OUTBOX: usize = 8 + MAX_PATHS;
