//! Sessions of a hub: their clients, their controlling connections, and their end.
//!
//! ```text
//!              let in                     connection gone                away for too long
//!   (none) ----------> Up --------------------------------> Absent ----------------------> (gone)
//!                      |  ^                                    |
//!                      |  +------------------------------------+
//!                      |             let in again              |
//!                      +---------------------------------------+--> (gone): a goodbye, a revocation, an expired key,
//!                                                               another machine
//! ```
//!
//! Bounds: one session for each enrolled client, so at most as many as the pool has addresses;
//! [`MAX_PATHS`](hawser_proto::session::MAX_PATHS) paths each; a budget of messages for each
//! client, independent of its number of connections.

mod acceptance;
mod actions;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::time::{Instant, SystemTime};

use hawser_config::identity::KeyHash;
use hawser_dataplane::{Change, Orders, SessionId};
use hawser_proto::session::{HubAction, HubSession, Violation};
use hawser_units::Net;
use hawser_wire::control::{CloseReason, KeyExpiry, Limit, Message, Welcome};
use tokio::sync::mpsc;

use super::index::fresh_index;
use super::limits::Limits;
use super::receipts::Receipts;
use super::{ClientStatus, HubSettings, WireGuardClient};
use crate::budget::{Budget, Pace};
use crate::enrolment::{Client, SharedStore};
use actions::carry_out;

pub(super) struct Core {
    pub(super) store: SharedStore,
    pub(super) settings: HubSettings,
    pub(super) orders: Orders,
    pub(super) sessions: BTreeMap<u64, Session>,
    /// Receiver indexes in use, so that none is assigned twice.
    pub(super) indices: HashSet<u32>,
    /// Accounts of enrolled clients that have connected, by name.
    accounts: BTreeMap<String, Account>,
    counters: BTreeMap<&'static str, u64>,
    next_link: u64,
    /// Generation of the store against which the sessions were checked.
    held_against: u64,
    /// Damage of the store that was logged.
    logged_damage: Option<String>,
    pub(super) limits: Limits,
    /// Receipts for neighbours that relay for clients; `None` if this hub does not sign them.
    pub(super) receipts: Option<Receipts>,
    /// Set while the hub is drained: clients are sent away and none are accepted.
    pub(super) is_draining: bool,
    /// Generation of the fleet that clients know.
    pub(super) told_of: u64,
}

pub(super) struct Session {
    pub(super) name: String,
    pub(super) key: KeyHash,
    pub(super) inner: Vec<IpAddr>,
    /// Subnets that are routed to it in addition to its addresses.
    pub(super) subnets: Vec<Net>,
    /// Set if its client may have received subnets.
    pub(super) may_know_subnets: bool,
    /// Expiry of the key that its client has received; `None` if it is unknown.
    pub(super) announced_expiry: Option<Option<KeyExpiry>>,
    pub(super) machine: HubSession,
    pub(super) epoch: u8,
    pub(super) link: Option<Link>,
    /// Local index by path, to free it with the path.
    pub(super) indices: BTreeMap<u16, u32>,
    pub(super) quiet_since: Instant,
    /// Enforced limit.
    pub(super) limit: Limit,
    /// Set if the client has received the limit.
    pub(super) is_told: bool,
    /// Set if the client may have received a limit before.
    pub(super) has_heard: bool,
}

/// History of a client over all its sessions.
struct Account {
    /// Times of recent takeovers of its identity.
    takeovers: VecDeque<Instant>,
    replaced: u64,
    budget: Budget,
}

/// Control connection of a session.
pub(super) struct Link {
    id: u64,
    pub(super) outbox: mpsc::Sender<Message>,
}

impl Link {
    /// Queues a message to the client; returns false if the client has not read earlier ones.
    pub(super) fn send(&self, message: Message) -> bool {
        self.outbox.try_send(message).is_ok()
    }
}

/// Accepted connection.
pub(super) struct Admitted {
    pub(super) session: u64,
    pub(super) link: u64,
    pub(super) welcome: Welcome,
    pub(super) outbox: mpsc::Receiver<Message>,
}

/// Reason why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("too many messages")]
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
            logged_damage: None,
            limits: Limits {
                defaults,
                ..Limits::default()
            },
            receipts: None,
            is_draining: false,
            told_of: 0,
        }
    }

    fn account(&mut self, name: &str) -> &mut Account {
        self.accounts.entry(name.to_owned()).or_insert_with(|| Account {
            takeovers: VecDeque::new(),
            replaced: 0,
            budget: Budget::new(PACE, Instant::now()),
        })
    }

    /// Ends the sessions of clients whose enrolment has changed since their start: revoked by any
    /// process, enrolled under another name, or with a key that has expired.
    ///
    /// Cost: two system calls while the store is unchanged.
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
        // A damaged store is read again at each call.
        if self.logged_damage.as_deref() != store.damage() {
            self.logged_damage = store.damage().map(str::to_owned);
            if let Some(damage) = &self.logged_damage {
                tracing::warn!(damage, "a client is not admitted");
            }
        }
        let now = SystemTime::now();
        let end_of = |session: &Session| {
            let client = store.by_name(&session.name);
            match client.filter(|client| session.belongs_to(client)) {
                Some(client) => client.is_expired(now).then_some(CloseReason::Expired),
                None if store.by_key(session.key).is_some() => Some(CloseReason::Replaced),
                None => Some(CloseReason::Revoked),
            }
        };
        let sessions = self.sessions.iter();
        let over: Vec<_> = sessions
            .filter_map(|(id, session)| Some((*id, end_of(session)?)))
            .collect();
        self.accounts.retain(|name, _| store.by_name(name).is_some());
        let change = store.change_number();
        drop(store);
        self.announce_expiries();
        for (session, reason) in over {
            self.end_session(session, reason);
        }
        self.store.confirm(change);
        self.limit_sessions();
        self.lead_subnets();
    }

    /// Ends all sessions, because the list of clients is too old to be trusted. Clients change to
    /// other hubs, or return when the database does.
    fn end_unverified(&mut self) {
        if self.sessions.is_empty() {
            return;
        }
        let sessions = self.sessions.len();
        tracing::error!(
            sessions,
            "the store of clients has not answered for the time of `stale` in hub.toml: all sessions end"
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
            // A client with a full queue is notified by the end of the connection.
            let _ = link.outbox.try_send(Message::Close(reason));
        }
        tracing::info!(client = ended.name, session, %reason, "session ended");
    }

    /// Handles the end of a connection. The session waits for its client.
    pub(super) fn detach(&mut self, session: u64, link: u64) {
        if let Some(session) = self.session_of(session, link) {
            session.link = None;
            session.quiet_since = Instant::now();
        }
    }

    /// Ends the sessions of clients that have been absent for the timeout.
    pub(super) fn sweep(&mut self, now: Instant) {
        let timeout = self.settings.session_timeout;
        let is_over = |session: &Session| {
            session.link.is_none() && now.saturating_duration_since(session.quiet_since) > timeout
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

    /// Returns the session if that connection controls it.
    fn session_of(&mut self, session: u64, link: u64) -> Option<&mut Session> {
        let session = self.sessions.get_mut(&session)?;
        session
            .link
            .as_ref()
            .is_some_and(|l| l.id == link)
            .then_some(session)
    }

    /// Requests new keys from the client of a session.
    pub(super) fn rekey(&mut self, session: SessionId) {
        let Some(session) = self.sessions.get_mut(&session.0) else {
            return;
        };
        let asked = session
            .link
            .as_ref()
            .map(|link| link.outbox.try_send(Message::RekeyWanted));
        if asked.is_some_and(|sent| sent.is_err()) {
            // A client that does not read opens another connection when this one ends, which has
            // fresh keys.
            session.link = None;
            session.quiet_since = Instant::now();
            self.count("closed_unread");
        }
    }

    /// Handles a message. Returns the answers to send.
    ///
    /// # Errors
    /// [`Fault`] if the connection must be closed.
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
        // A client that moves to another connection, or returns soon, gives another reason.
        if goodbye == Some(CloseReason::Shutdown) {
            session.link = None;
            self.end_session(id, CloseReason::Shutdown);
        }
        Ok(answers)
    }

    /// Applies new settings to what happens from now on.
    pub(super) fn apply(&mut self, settings: HubSettings) {
        self.limits.defaults = settings.limits.clone();
        self.settings = settings;
        self.limit_sessions();
        for session in self.sessions.keys().copied().map(SessionId) {
            self.order_schedulers(session);
            self.order_settings(session);
        }
    }

    fn order_schedulers(&self, session: SessionId) {
        for (class, scheduler) in self.settings.schedulers.clone() {
            (self.orders)(
                Change::SetScheduler {
                    session,
                    class,
                    scheduler,
                }
                .into(),
            );
        }
    }

    /// Orders what only the hub decides for a session: the controller, and the rules that recognise
    /// packets of layered flows. A client may change the schedulers.
    pub(super) fn order_settings(&self, session: SessionId) {
        let controller = self.settings.controller;
        (self.orders)(Change::SetController { session, controller }.into());
        let rules = self.settings.layer_rules.clone();
        (self.orders)(Change::SetLayerRules { session, rules }.into());
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.counters.entry(what).or_default() += 1;
    }

    pub(super) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counters.iter().map(|(what, count)| (*what, *count))
    }

    /// Returns the clients that use WireGuard and whose keys have not expired. Cost: O(clients).
    pub(super) fn wireguard_clients(&self) -> Vec<WireGuardClient> {
        let now = SystemTime::now();
        let client = |client: &Client| {
            let key = client.wireguard.filter(|_| !client.is_expired(now))?;
            Some(WireGuardClient {
                name: client.name.clone(),
                key,
                inner: client.inner(),
                limit: self.limits.of(client).rate(),
            })
        };
        self.store.lock().iter().filter_map(client).collect()
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
                key_expires_unix_s: client.expiry.map(|expiry| expiry.0),
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

/// Budget of a client's messages: on each connection it announces 64 paths, each with its cap,
/// closes as many and names four schedulers, and it sends a ping every 5 s.
const PACE: Pace = Pace {
    burst: 1_024,
    per_second: 64,
};
