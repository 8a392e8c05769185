//! Store of a hub's clients: enrolments and inner addresses.
//!
//! This module contains the decisions; [`Records`] is the storage: a directory of files
//! ([`directory`]), or a database that several hubs share ([`database`]). Tokens are stored only as
//! hashes. Other processes may change the storage at any time; a change is decided by the state at
//! its execution.

mod changes;
mod confirmation;
mod database;
mod directory;
mod expiry;
mod fleet;
mod limits;
mod records;
mod subnets;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use hawser_config::Pool;
use hawser_config::identity::{KeyHash, random, sha256};
use hawser_config::invitation::{HubAddress, InvitedTo, MAX_OTHERS, Token, check_name};
use hawser_config::{StoreConfig, WireGuardKey};
use hawser_host::usage::DaySum;
use hawser_units::Service;
use hawser_wire::control::{KeyExpiry, Refusal};
use serde_json::Value;

use self::database::Database;
use self::directory::Directory;
use self::expiry::{Expiries, unix_s};
use self::fleet::{Fleet, View, Writer};
use self::records::{Edit, Known, QUARANTINE, Records, unknown};

pub use self::changes::author;
pub use self::confirmation::{Unconfirmed, unconfirmed_hubs};
pub use self::fleet::OtherHub;
pub use self::limits::{ClientLimits, LimitChange, Own, Standing};
pub use self::records::LogEntry;
pub use self::subnets::Subnet;

/// Enrolled or invited client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Name of the client.
    pub name: String,
    /// Inner IPv4 address.
    pub inner_v4: Ipv4Addr,
    /// Inner IPv6 address.
    pub inner_v6: Option<Ipv6Addr>,
    /// Key, once enrolled.
    pub key: Option<KeyHash>,
    /// Key of a client that uses WireGuard, which has no other key.
    pub wireguard: Option<WireGuardKey>,
    /// The hub's ports that are forwarded to the client.
    pub ports: Vec<Service>,
    /// Subnets behind the client whose machines keep their addresses.
    pub subnets: Vec<Subnet>,
    /// Limits of the client.
    pub limits: ClientLimits,
    /// Expiry of the key; `None` for a key that does not expire.
    pub expiry: Option<KeyExpiry>,
    /// Set once the log has the expiry of the key.
    is_expiry_logged: bool,
    /// SHA-256 of the token, used or not.
    token: Option<[u8; 32]>,
    /// Expiry of the invitation.
    expires: SystemTime,
}

impl Client {
    /// Returns the inner addresses.
    #[must_use]
    pub fn inner(&self) -> Vec<IpAddr> {
        std::iter::once(self.inner_v4.into())
            .chain(self.inner_v6.map(IpAddr::from))
            .collect()
    }

    /// Returns the key of either kind, once enrolled, which distinguishes the client from former
    /// owners of its name and addresses.
    #[must_use]
    pub fn owner(&self) -> Option<KeyHash> {
        self.key.or(self.wireguard.map(|key| KeyHash::of(&key.0)))
    }

    /// `enrolled`, `key expired`, `invited` or, for an invitation, `expired`.
    #[must_use]
    pub fn state(&self, now: SystemTime) -> &'static str {
        match self.owner() {
            Some(_) if self.is_expired(now) => "key expired",
            Some(_) => "enrolled",
            None if now < self.expires => "invited",
            None => "expired",
        }
    }
}

/// Clients of a hub, as of the last read.
#[derive(Debug)]
pub struct ClientStore {
    records: Box<dyn Records>,
    pool: Pool,
    known: Known,
    /// Number of changes so far.
    generation: u64,
    /// Keys that have expired by the last read.
    expiries: Expiries,
}

impl ClientStore {
    /// Reads the clients in `directory`, and creates a missing directory.
    ///
    /// # Errors
    /// If the directory or a file in it cannot be read; the message names it.
    pub fn open(directory: &Path, pool: Pool) -> anyhow::Result<Self> {
        let store = Self::open_damaged(directory, pool)?;
        store.refuse_damage()?;
        Ok(store)
    }

    /// Fails if a record is damaged.
    ///
    /// # Errors
    /// The damage of the record ([`damage`](Self::damage)).
    pub fn refuse_damage(&self) -> anyhow::Result<()> {
        self.known.refuse_damage()
    }

    /// Opens the enrolments; files may be damaged.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn open_damaged(directory: &Path, pool: Pool) -> anyhow::Result<Self> {
        Self::read_from(Box::new(Directory::open(directory)?), pool)
    }

    /// Opens the clients in a database that several hubs share. Blocks, so it must not be called
    /// from a task.
    ///
    /// # Errors
    /// If it cannot be reached, or belongs to hubs with other pools.
    pub fn in_database(config: &StoreConfig, pool: Pool) -> anyhow::Result<Self> {
        Self::read_from(Box::new(Database::open(config, pool)?), pool)
    }

    /// Copies the clients of another store. Returns their number.
    ///
    /// # Errors
    /// If one of them already exists by name, address or key, or writing fails; nothing is changed.
    pub fn take_over(&mut self, others: &Self) -> anyhow::Result<usize> {
        self.change(|known| {
            let mut edits = Vec::new();
            for client in others.iter() {
                if client.wireguard.is_some() {
                    bail!(
                        "{} uses WireGuard, which is limited to one hub and cannot be in a database: revoke it first",
                        client.name
                    );
                }
                let clash = known.clients.values().find(|known| {
                    known.name == client.name
                        || known.inner_v4 == client.inner_v4
                        || client.key.is_some() && known.key == client.key
                });
                if let Some(clash) = clash {
                    bail!(
                        "{} ({}) conflicts with {} ({}): revoke one of them",
                        clash.name,
                        clash.inner_v4,
                        client.name,
                        client.inner_v4
                    );
                }
                edits.push(Edit::Put(Box::new(client.clone())));
            }
            let count = edits.len();
            Ok((edits, count))
        })
    }

    fn read_from(records: Box<dyn Records>, pool: Pool) -> anyhow::Result<Self> {
        let mut store = Self {
            records,
            pool,
            known: Known::default(),
            generation: 0,
            expiries: Expiries::default(),
        };
        store.reload()?;
        Ok(store)
    }

    /// Reads all files again if any has changed; otherwise this costs little.
    ///
    /// A damaged record excludes only its own client ([`damage`](Self::damage)).
    ///
    /// # Errors
    /// If the storage cannot be read; the state in memory remains.
    pub fn reload(&mut self) -> anyhow::Result<()> {
        self.reload_at(SystemTime::now())
    }

    /// Does the same as [`reload`](Self::reload) at a time. Keys that have expired since the last
    /// call count as a change.
    pub(crate) fn reload_at(&mut self, now: SystemTime) -> anyhow::Result<()> {
        let read = self.records.read(&mut self.known);
        self.generation += u64::from(*read.as_ref().unwrap_or(&false));
        let have_expired = self
            .expiries
            .handle_time(&self.known, self.generation, unix_s(now));
        self.generation += u64::from(have_expired);
        read.map(drop)
    }

    /// Executes the decision of `decide` about the present clients, exclusively of other processes.
    fn change<T>(
        &mut self,
        mut decide: impl FnMut(&Known) -> anyhow::Result<(Vec<Edit>, T)>,
    ) -> anyhow::Result<T> {
        let mut outcome = None;
        let changed = self.records.change(&mut self.known, &mut |known| {
            let (edits, value) = decide(known)?;
            outcome = Some(value);
            Ok(edits)
        });
        // The change may be incomplete.
        self.generation += u64::from(*changed.as_ref().unwrap_or(&true));
        changed?;
        Ok(outcome.expect("decided"))
    }

    /// Returns the logged changes of the clients, the oldest first.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn log(&mut self) -> anyhow::Result<Vec<LogEntry>> {
        self.records.log()
    }

    /// Returns a number that changes whenever the known clients may have changed.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the number of the database change that the known state includes; zero for files.
    #[must_use]
    pub fn change_number(&self) -> i64 {
        self.records.change_number()
    }

    /// Returns the error in a damaged record, with the remedy.
    #[must_use]
    pub fn damage(&self) -> Option<&str> {
        self.known.damage.as_deref()
    }

    /// Returns what keeps clients out or without a way to the Internet, with the remedy of each.
    #[must_use]
    pub fn defects(&self) -> Vec<String> {
        let mut all: Vec<_> = self.damage().map(str::to_owned).into_iter().collect();
        let is_outside = |client: &&Client| !self.pool.has_client(client.inner_v4);
        let mut outside = self.iter().filter(is_outside);
        if let Some(first) = outside.next() {
            let others = match outside.count() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            all.push(format!(
                "the pool in hub.toml does not contain {}, the address of {}{others}: restore the pool, or revoke such clients and invite them again",
                first.inner_v4, first.name
            ));
        }
        all
    }

    /// Returns all clients, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Client> {
        self.known.clients.values()
    }

    /// Returns the client with that name.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&Client> {
        self.known.clients.get(name)
    }

    /// Returns the enrolled client with that key.
    #[must_use]
    pub fn by_key(&self, key: KeyHash) -> Option<&Client> {
        self.known.by_key(key)
    }

    /// Invites `name`, or invites it again while its invitation is unused.
    ///
    /// # Errors
    /// The name is unfit or enrolled, the pool is used up, or the storage refuses; nothing changes
    /// then.
    pub fn invite(&mut self, name: &str, lifetime: Duration, now: SystemTime) -> anyhow::Result<Token> {
        self.invite_until(name, lifetime, None, now)
    }

    /// Invites as [`invite`](Self::invite) does; `expiry` is that of the key which will enrol,
    /// `None` to keep the expiry of an unused invitation.
    ///
    /// # Errors
    /// As [`invite`](Self::invite).
    pub fn invite_until(
        &mut self,
        name: &str,
        lifetime: Duration,
        expiry: Option<KeyExpiry>,
        now: SystemTime,
    ) -> anyhow::Result<Token> {
        check_name(name)?;
        let pool = self.pool;
        let token = Token(random());
        let hash = sha256(&token.0);
        self.change(|known| {
            // The addresses of the damaged record's client are unknown.
            known.refuse_damage()?;
            let newcomer = known.newcomer(name, pool)?;
            let client = Client {
                token: Some(hash),
                expires: now + lifetime,
                expiry: expiry.or(newcomer.expiry),
                ..newcomer
            };
            Ok((vec![Edit::Put(Box::new(client))], ()))
        })?;
        Ok(token)
    }

    /// Enrols `name` with a WireGuard key immediately; an unused invitation with that name expires.
    /// `expiry` is that of the key.
    ///
    /// # Errors
    /// The name is unfit or enrolled, the pool is used up, or the storage refuses; nothing changes
    /// then.
    pub fn enrol_wireguard(
        &mut self,
        name: &str,
        key: WireGuardKey,
        expiry: Option<KeyExpiry>,
    ) -> anyhow::Result<Client> {
        check_name(name)?;
        let pool = self.pool;
        self.change(|known| {
            known.refuse_damage()?;
            let newcomer = known.newcomer(name, pool)?;
            let client = Client {
                wireguard: Some(key),
                expiry: expiry.or(newcomer.expiry),
                ..newcomer
            };
            Ok((vec![Edit::Put(Box::new(client.clone()))], client))
        })
    }

    /// Enrols a key by its token: once, within the invitation's time. The same key may repeat it,
    /// in case the answer was lost.
    ///
    /// # Errors
    /// The rejection for the client; [`Refusal::Busy`] if writing fails, with no change.
    pub fn enrol(&mut self, token: &[u8; 16], key: KeyHash, now: SystemTime) -> Result<Client, Refusal> {
        let token = sha256(token);
        let outcome = self.change(|known| {
            let invited = known.clients.values().find(|client| client.token == Some(token));
            let Some(invited) = invited.cloned() else {
                return Ok((Vec::new(), Err(Refusal::UnknownToken)));
            };
            match invited.key {
                Some(before) if before == key => return Ok((Vec::new(), Ok(invited))),
                Some(_) => return Ok((Vec::new(), Err(Refusal::UsedToken))),
                None if now >= invited.expires => return Ok((Vec::new(), Err(Refusal::ExpiredToken))),
                None if invited.is_expired(now) => return Ok((Vec::new(), Err(Refusal::ExpiredKey))),
                None => {}
            }
            // A machine has one enrolment at a hub: the new one replaces the old one, whose
            // addresses become free.
            let old = known.by_key(key).map(|old| Edit::Remove {
                name: old.name.clone(),
                by: None,
            });
            let client = Client {
                key: Some(key),
                ..invited
            };
            let edits = old.into_iter().chain([Edit::Put(Box::new(client.clone()))]);
            Ok((edits.collect(), Ok(client)))
        });
        outcome.unwrap_or_else(|error| {
            tracing::error!(error = format!("{error:#}"), "cannot enrol a client");
            Err(Refusal::Busy)
        })
    }

    /// Enrols the key of a client whose name is derived from the key, after a user has compared the
    /// name. Does nothing for an unknown name.
    ///
    /// # Errors
    /// If writing fails; nothing is changed.
    pub fn meet(&mut self, name: &str, key: KeyHash) -> anyhow::Result<()> {
        self.reload()?;
        if self.by_name(name).is_none_or(|client| client.owner().is_some()) {
            return Ok(());
        }
        self.change(|known| {
            let expected = known.clients.get(name).filter(|client| client.owner().is_none());
            let met = expected.map(|client| {
                Edit::Put(Box::new(Client {
                    key: Some(key),
                    ..client.clone()
                }))
            });
            Ok((met.into_iter().collect(), ()))
        })
    }

    /// Revokes a client or its invitation. Its addresses are assigned again after a day, or earlier
    /// if there are no others. Damage of other records does not prevent this.
    ///
    /// # Errors
    /// There is no such client, or the storage refuses.
    pub fn revoke(&mut self, name: &str) -> anyhow::Result<()> {
        self.revoke_for(name, None)
    }

    /// Revokes as [`revoke`](Self::revoke) does, at the request of another process, whose user
    /// appears in the log.
    ///
    /// # Errors
    /// As [`revoke`](Self::revoke).
    pub fn revoke_for(&mut self, name: &str, by: Option<&str>) -> anyhow::Result<()> {
        check_name(name)?;
        let removal = Edit::Remove {
            name: name.to_owned(),
            by: by.map(str::to_owned),
        };
        self.change(|_| Ok((vec![removal.clone()], ())))
    }

    /// Forwards a port of the hub to a client, or ends that.
    ///
    /// # Errors
    /// If there is no such client, another one has the port, or writing fails; nothing is changed.
    pub fn set_port(&mut self, name: &str, port: Service, is_on: bool) -> anyhow::Result<()> {
        check_name(name)?;
        self.change(|known| {
            let other = known.clients.values().find(|client| client.ports.contains(&port));
            if let Some(other) = other.filter(|other| is_on && other.name != name) {
                let other = &other.name;
                bail!("{port} is forwarded to {other}: run `hawser hub forward {other} {port} --off` first");
            }
            let mut client = known.clients.get(name).cloned().ok_or_else(|| unknown(name))?;
            client.ports.retain(|one| *one != port);
            if is_on {
                client.ports.push(port);
            }
            Ok((vec![Edit::Put(Box::new(client))], ()))
        })
    }

    /// Changes the limits of a client, and the expiry of its key. Returns the changed client.
    ///
    /// # Errors
    /// If there is no such client, or writing fails; nothing is changed.
    pub fn set_limits(&mut self, name: &str, change: LimitChange) -> anyhow::Result<Client> {
        check_name(name)?;
        self.change(|known| {
            let mut client = known.clients.get(name).cloned().ok_or_else(|| unknown(name))?;
            client.apply(change);
            Ok((vec![Edit::Put(Box::new(client.clone()))], client))
        })
    }

    /// Returns the hub's forwarded ports, each with its client's address.
    #[must_use]
    pub fn ports(&self) -> Vec<(Service, IpAddr)> {
        let of = |client: &Client| -> Vec<_> {
            let ports = client.ports.iter();
            ports
                .flat_map(|port| client.inner().into_iter().map(|to| (*port, to)))
                .collect()
        };
        self.known.clients.values().flat_map(of).collect()
    }
}

impl Known {
    fn refuse_damage(&self) -> anyhow::Result<()> {
        match &self.damage {
            Some(damage) => bail!("{damage}"),
            None => Ok(()),
        }
    }

    fn by_key(&self, key: KeyHash) -> Option<&Client> {
        self.clients.values().find(|client| client.key == Some(key))
    }

    /// Returns a new client with that name and without a key, with the addresses and limits of an
    /// unused invitation, or with free addresses.
    fn newcomer(&self, name: &str, pool: Pool) -> anyhow::Result<Client> {
        let before = self.clients.get(name);
        if before.is_some_and(|client| client.owner().is_some()) {
            bail!("{name} is already enrolled: choose another name, or `hawser hub revoke {name}` first");
        }
        let (inner_v4, inner_v6) = match before {
            Some(client) => (client.inner_v4, client.inner_v6),
            None => self.free_addresses(pool)?,
        };
        Ok(Client {
            name: name.to_owned(),
            inner_v4,
            inner_v6,
            key: None,
            wireguard: None,
            ports: Vec::new(),
            subnets: Vec::new(),
            limits: before.map(|client| client.limits).unwrap_or_default(),
            expiry: before.and_then(|client| client.expiry),
            is_expiry_logged: false,
            token: None,
            expires: SystemTime::UNIX_EPOCH,
        })
    }

    fn free_addresses(&self, pool: Pool) -> anyhow::Result<(Ipv4Addr, Option<Ipv6Addr>)> {
        let mut taken = BTreeSet::new();
        taken.extend(self.clients.values().map(|client| client.inner_v4));
        let now = SystemTime::now();
        let is_fresh = |v4: &Ipv4Addr| {
            let at = self.freed.get(v4);
            at.is_some_and(|at| now.duration_since(*at).is_ok_and(|age| age < QUARANTINE))
        };
        let free = || {
            let hosts = pool.numbers().map(|number| pool.host(number));
            hosts.filter(|(v4, _)| !taken.contains(v4))
        };
        // If the pool is exhausted, the address that was freed first is reused.
        free()
            .find(|(v4, _)| !is_fresh(v4))
            .or_else(|| free().min_by_key(|(v4, _)| self.freed.get(v4)))
            .with_context(|| {
                format!(
                    "the pool {}/{} is used up: revoke clients, or set a larger pool in hub.toml",
                    pool.v4.0, pool.v4.1
                )
            })
    }
}

/// Store that several parts of a process share.
#[derive(Clone, Debug)]
pub struct SharedStore {
    /// Known state, which never waits for a database.
    view: Arc<Mutex<ClientStore>>,
    /// Store that executes changes: the same one if a change is as fast as a file.
    writer: Arc<Mutex<ClientStore>>,
    fleet: Option<Fleet>,
}

impl SharedStore {
    /// Shares a store on this machine.
    #[must_use]
    pub fn new(store: ClientStore) -> Self {
        let store = Arc::new(Mutex::new(store));
        Self {
            view: Arc::clone(&store),
            writer: store,
            fleet: None,
        }
    }

    /// Opens the store of a fleet for a running hub, and starts to follow it. Blocks, so it must
    /// not be called from a task.
    ///
    /// # Errors
    /// If the database cannot be reached, or belongs to hubs with other pools.
    pub fn of_fleet(
        config: &StoreConfig,
        pool: Pool,
        own: KeyHash,
        endpoints: &[HubAddress],
    ) -> anyhow::Result<Self> {
        let database = Database::open(config, pool)?;
        let fleet = Fleet::follow(database, (own, config.stale.0), texts(endpoints))?;
        let writer = Writer {
            fleet: fleet.clone(),
            database: Database::new(config)?,
        };
        let view = View {
            fleet: fleet.clone(),
            set: 0,
            change: 0,
        };
        let open = |records: Box<dyn Records>| -> anyhow::Result<_> {
            Ok(Arc::new(Mutex::new(ClientStore::read_from(records, pool)?)))
        };
        Ok(Self {
            view: open(Box::new(view))?,
            writer: open(Box::new(writer))?,
            fleet: Some(fleet),
        })
    }

    /// Changes the endpoints of this hub.
    pub fn set_endpoints(&self, endpoints: &[HubAddress]) {
        if let Some(fleet) = &self.fleet {
            fleet.set_endpoints(texts(endpoints));
        }
    }

    /// Writes the sums of a ledger to the database, if there is one: whole days, by client.
    pub fn keep(&self, ledger: &str, sums: impl IntoIterator<Item = DaySum>) {
        if let Some(fleet) = &self.fleet {
            fleet.keep(ledger, sums);
        }
    }

    /// Starts to follow the traffic of the fleet's other hubs in a month (`2026-11`), and returns
    /// the last known values by client; empty without a fleet.
    #[must_use]
    pub fn used_elsewhere(&self, month: &str) -> BTreeMap<String, u64> {
        let fleet = self.fleet.as_ref();
        fleet.map(|fleet| fleet.used_elsewhere(month)).unwrap_or_default()
    }

    /// Returns the other hubs of the fleet.
    #[must_use]
    pub fn other_hubs(&self) -> Vec<OtherHub> {
        self.fleet.as_ref().map(Fleet::others).unwrap_or_default()
    }

    /// Returns a number that changes whenever the other hubs change.
    #[must_use]
    pub fn fleet_generation(&self) -> u64 {
        self.fleet.as_ref().map_or(0, Fleet::generation)
    }

    /// Returns whether the database of a fleet has not answered for longer than `stale` permits:
    /// the known clients may include some that were revoked at another hub.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.fleet.as_ref().is_some_and(Fleet::is_expired)
    }

    /// Returns texts for the operator: the defects of the clients' records, and that the database
    /// of a fleet does not answer.
    #[must_use]
    pub fn notices(&self) -> Vec<String> {
        let mut all = self.lock().defects();
        all.extend(self.fleet.as_ref().and_then(Fleet::notice));
        all
    }

    /// Confirms to the other hubs of a fleet that this hub has checked its sessions against the
    /// clients as of that [change](ClientStore::change_number).
    pub fn confirm(&self, change: i64) {
        if let Some(fleet) = &self.fleet {
            fleet.confirm(change);
        }
    }

    /// Returns the entry of status; `None` if the clients are files of this machine.
    #[must_use]
    pub fn fleet_status(&self) -> Option<Value> {
        self.fleet.as_ref().map(Fleet::status)
    }

    /// Returns the store as it is in memory.
    ///
    /// # Panics
    /// Never: no holder panics.
    pub fn lock(&self) -> MutexGuard<'_, ClientStore> {
        self.view.lock().expect("no holder panics")
    }

    /// Returns the present store, including changes of other processes; for a fleet, the state of
    /// the last read.
    ///
    /// # Errors
    /// As [`ClientStore::reload`].
    pub fn refreshed(&self) -> anyhow::Result<MutexGuard<'_, ClientStore>> {
        let mut store = self.lock();
        store.reload()?;
        Ok(store)
    }

    /// Executes a change, on a blocking thread if it may take long.
    async fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut ClientStore) -> T + Send + 'static,
    ) -> T {
        let writer = Arc::clone(&self.writer);
        let work = move || work(&mut writer.lock().expect("no holder panics"));
        if self.fleet.is_none() {
            return work();
        }
        tokio::task::spawn_blocking(work).await.expect("no work panics")
    }

    /// Returns the owner of the key, by the present enrolments; with a token, the invitation is
    /// used first. A used token of an enrolled client is ignored. `is_resuming` is set if the key
    /// has a session here, which continues for up to `stale` while a database does not answer.
    ///
    /// # Errors
    /// The rejection for the client; [`Refusal::Busy`] if the storage does not answer.
    pub async fn authorise(
        &self,
        token: Option<[u8; 16]>,
        key: KeyHash,
        now: SystemTime,
        is_resuming: bool,
    ) -> Result<Client, Refusal> {
        let is_stale = self.fleet.as_ref().is_some_and(Fleet::is_stale);
        if is_stale && !is_resuming || self.is_expired() {
            return Err(Refusal::Busy);
        }
        let mut refusal = Refusal::NotEnrolled;
        if let Some(token) = token.filter(|_| !is_stale) {
            match self.change(move |store| store.enrol(&token, key, now)).await {
                Ok(client) => return client.unexpired(now),
                Err(error) => refusal = error,
            }
        }
        let store = self.refreshed().map_err(|error| {
            tracing::error!(error = format!("{error:#}"), "cannot read the enrolled hosts");
            Refusal::Busy
        })?;
        store.by_key(key).cloned().ok_or(refusal)?.unexpired(now)
    }

    /// Revokes a client, as [`ClientStore::revoke_for`] does.
    ///
    /// # Errors
    /// There is no such client, or the storage refuses.
    pub async fn revoke(&self, name: &str, by: Option<String>) -> anyhow::Result<()> {
        let name = name.to_owned();
        self.change(move |store| store.revoke_for(&name, by.as_deref()))
            .await
    }

    /// Writes the expiry of keys into the log of changes: of each key once, for all hubs of a
    /// fleet, also if no hub was running at its time. Does nothing if the log has all of them.
    ///
    /// # Errors
    /// If the storage refuses.
    pub async fn log_expiries(&self, now: SystemTime) -> anyhow::Result<()> {
        if !self.lock().iter().any(|client| client.owes_expiry(now)) {
            return Ok(());
        }
        self.change(move |store| store.log_expiries(now)).await
    }

    /// Checks whether the client is enrolled with that key now, and the key has not expired; as far
    /// as is known if the storage does not answer, and never once the known state has
    /// [expired](Self::is_expired).
    ///
    /// Cost: at most two system calls while the store is unchanged.
    ///
    /// # Errors
    /// The rejection for the client.
    pub fn check(&self, name: &str, key: KeyHash, now: SystemTime) -> Result<(), Refusal> {
        let mut store = self.lock();
        if let Err(error) = store.reload_at(now) {
            tracing::warn!(error = format!("{error:#}"), "cannot read the enrolled hosts");
        }
        let client = store.by_name(name).filter(|client| client.key == Some(key));
        let client = client.filter(|_| !self.is_expired());
        client
            .cloned()
            .ok_or(Refusal::NotEnrolled)?
            .unexpired(now)
            .map(drop)
    }
}

fn texts(endpoints: &[HubAddress]) -> Vec<String> {
    endpoints.iter().map(ToString::to_string).collect()
}

/// Returns the pools of a database's hubs, as `NET/LENGTH NET/LENGTH`; `None` if it is new.
///
/// # Errors
/// The database cannot be reached, or belongs to a newer program.
pub fn pool_of_fleet(config: &StoreConfig) -> anyhow::Result<Option<String>> {
    Database::pool_of(config)
}

/// Usage of a client in a month.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MonthSum {
    /// Name of the client.
    pub client: String,
    /// Month, as `2026-11`.
    pub month: String,
    /// Traffic to the client. Units: bytes of UDP payload.
    pub down_bytes: u64,
    /// Traffic from the client. Units: bytes of UDP payload.
    pub up_bytes: u64,
}

/// Returns other hubs of a database at which a client of `own` may also enrol, the most recently
/// seen first.
///
/// # Errors
/// The database cannot be reached, or belongs to a newer program.
pub fn hubs_of_fleet(config: &StoreConfig, own: KeyHash) -> anyhow::Result<Vec<InvitedTo>> {
    let mut others = Database::new(config)?.other_hubs(own)?;
    others.truncate(MAX_OTHERS);
    Ok(others)
}

/// Returns the usage of all hubs of a database.
///
/// # Errors
/// If the database cannot be reached, or belongs to other hubs.
pub fn usage_of_fleet(config: &StoreConfig, pool: Pool) -> anyhow::Result<Vec<MonthSum>> {
    Database::open(config, pool)?.usage()
}

/// Poll interval of the store. Source: a quarter of the second in which a revocation takes effect;
/// docs/notebook/soak.md has the times that were measured.
pub const POLL_INTERVAL: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests;
