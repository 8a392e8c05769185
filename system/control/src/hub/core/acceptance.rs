//! Admission of a client that the store knows: the checks of its hello, and its session, new or
//! continued.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use hawser_config::identity::{KeyHash, random};
use hawser_dataplane::{Change, EpochKeys, Role, SessionId, preferred_cipher};
use hawser_proto::session::{HubSession, MAX_PATHS};
use hawser_wire::control::{Cipher, CloseReason, Hello, Limit, Refusal, VERSION, Welcome};
use hawser_wire::frame::Format;
use tokio::sync::mpsc;

use super::{Admitted, Core, Link, Session};
use crate::enrolment::Client;

impl Core {
    /// Accepts or rejects a client according to the answer of the store ([`Self::check`]).
    pub(in crate::hub) fn admit(
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

    /// Checks whether the store must be asked for a client. Returns true if it continues a session
    /// here.
    pub(in crate::hub) fn check(&mut self, key: KeyHash, hello: &Hello) -> Result<bool, Refusal> {
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

    /// Checks that the client's state is unchanged since the store was asked.
    fn welcome_back(&mut self, client: Client, key: KeyHash) -> Result<Client, Refusal> {
        // The client may have had another name before.
        self.hold_against_store();
        if self.store.is_expired() {
            return Err(Refusal::Busy);
        }
        self.store.check(&client.name, key, SystemTime::now())?;
        let account = self.account(&client.name);
        if account.budget.spend(COST_OF_HELLO, Instant::now()) {
            Ok(client)
        } else {
            Err(Refusal::Flapping)
        }
    }

    /// Accepts a key whose code a user has compared: the name of its entry is the code.
    fn meet(&mut self, key: KeyHash) -> Result<(), Refusal> {
        let met = self.store.lock().meet(&key.code().to_string(), key);
        met.map_err(|error| {
            tracing::error!(error = format!("{error:#}"), "cannot store a key");
            Refusal::Busy
        })
    }

    /// Admits the joining box of a repeater, of which there is only one at a time: fails if another
    /// one is connected, and ends the sessions of absent ones.
    fn make_room(&mut self, name: &str) -> Result<(), Refusal> {
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
            self.make_room(&client.name)?;
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
        entry.send_subnets();
        entry.announce_expiry(client.expiry, true);
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

    /// Rejects an identity that moves between machines repeatedly: the newest takes over, but not
    /// many times per minute.
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
            "connected again while connected: the client has restarted, or two machines use one identity"
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
        self.order_schedulers(id);
        self.order_settings(id);
        let entry = Session {
            name: client.name.clone(),
            key,
            inner: client.inner(),
            subnets: Vec::new(),
            may_know_subnets: false,
            announced_expiry: Some(None),
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
        Refusal::ExpiredKey => "refused_expired_key",
        Refusal::Other(_) => "refused_other",
    }
}

/// Maximum number of takeovers in the window: a client takes over its own session when it restarts,
/// but less often. Source: our choice; two machines with one key take over each other's session at
/// once and reach it within seconds, a machine that restarts needs longer for each start.
const FLAPS: usize = 5;
const FLAP_WINDOW: Duration = Duration::from_secs(60);
/// Cost of a hello, which needs a key exchange and new keys for every path. Source: our choice, in
/// units of other messages; a larger one rejects clients that reconnect often, with a smaller one a
/// single client takes more of a core, which processes 1,000 handshakes a second
/// (docs/notebook/fleet.md).
const COST_OF_HELLO: u32 = 16;
/// Capacity of the queue of messages to a client: a receipt of each path, and a few others. Source:
/// our choice of eight others, such as limits, hubs and settings; more only takes memory.
const OUTBOX: usize = 8 + MAX_PATHS;
