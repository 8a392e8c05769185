//! The hub's store of clients: who may come in, and with which inner addresses.
//!
//! What is decided about them is here; where they are kept is behind [`Records`]: a directory of
//! files ([`directory`]), or a database that several hubs share ([`database`]). Tokens are stored
//! only as hashes. Others may change what is stored at any time; a change is decided by what is
//! there when it is made.

mod confirmation;
mod database;
mod directory;
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
use hawser_config::StoreConfig;
use hawser_config::identity::{KeyHash, random, sha256};
use hawser_config::invitation::{HubAddress, InvitedTo, MOST_OTHERS, Token, check_name};
use hawser_host::usage::DaySum;
use hawser_units::Service;
use hawser_wire::control::Refusal;
use serde_json::Value;

use self::database::Database;
use self::directory::Directory;
use self::fleet::{Fleet, View, Writer};
use self::records::{Edit, Known, QUARANTINE, Records, unknown};

pub use self::confirmation::{Unconfirmed, unconfirmed_hubs};
pub use self::fleet::OtherHub;
pub use self::limits::{ClientLimits, LimitChange, Own, Standing};
pub use self::subnets::Subnet;

/// One client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its name.
    pub name: String,
    /// Its inner IPv4 address.
    pub inner_v4: Ipv4Addr,
    /// Its inner IPv6 address.
    pub inner_v6: Option<Ipv6Addr>,
    /// Its key, once enrolled.
    pub key: Option<KeyHash>,
    /// The hub's ports that lead to it.
    pub ports: Vec<Service>,
    /// What lies behind it and keeps its addresses.
    pub subnets: Vec<Subnet>,
    /// What it may use.
    pub limits: ClientLimits,
    /// SHA-256 of the token, used or not.
    token: Option<[u8; 32]>,
    /// When the invitation ends.
    expires: SystemTime,
}

impl Client {
    /// Its inner addresses.
    #[must_use]
    pub fn inner(&self) -> Vec<IpAddr> {
        std::iter::once(self.inner_v4.into())
            .chain(self.inner_v6.map(IpAddr::from))
            .collect()
    }

    /// `enrolled`, `invited` or `expired`.
    #[must_use]
    pub fn state(&self, now: SystemTime) -> &'static str {
        match self.key {
            Some(_) => "enrolled",
            None if now < self.expires => "invited",
            None => "expired",
        }
    }
}

/// All clients of a hub, as they were when they were read last.
#[derive(Debug)]
pub struct ClientStore {
    records: Box<dyn Records>,
    pool: Pool,
    known: Known,
    /// How often what is known has changed.
    generation: u64,
}

impl ClientStore {
    /// Reads the clients in `directory`, which is made when missing.
    ///
    /// # Errors
    /// The directory or a file in it cannot be read; the message names it.
    pub fn open(directory: &Path, pool: Pool) -> anyhow::Result<Self> {
        let store = Self::open_damaged(directory, pool)?;
        store.refuse_damage()?;
        Ok(store)
    }

    /// Fails where a record is damaged.
    ///
    /// # Errors
    /// What is wrong with it ([`damage`](Self::damage)).
    pub fn refuse_damage(&self) -> anyhow::Result<()> {
        self.known.refuse_damage()
    }

    /// The same, but files may be damaged.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn open_damaged(directory: &Path, pool: Pool) -> anyhow::Result<Self> {
        Self::read_from(Box::new(Directory::open(directory)?), pool)
    }

    /// The clients in a database that several hubs share. Waits: not for tasks.
    ///
    /// # Errors
    /// It cannot be reached, or belongs to hubs with other pools.
    pub fn in_database(config: &StoreConfig, pool: Pool) -> anyhow::Result<Self> {
        Self::read_from(Box::new(Database::open(config, pool)?), pool)
    }

    /// Takes clients of another store over as they are, and says how many.
    ///
    /// # Errors
    /// One of them is here already under its name, address or key, or the storage refuses; nothing
    /// changes then.
    pub fn take_over(&mut self, others: &Self) -> anyhow::Result<usize> {
        self.change(|known| {
            let mut edits = Vec::new();
            for client in others.iter() {
                let clash = known.clients.values().find(|known| {
                    known.name == client.name
                        || known.inner_v4 == client.inner_v4
                        || client.key.is_some() && known.key == client.key
                });
                if let Some(clash) = clash {
                    bail!(
                        "{} ({}) is in the way of {} ({}): revoke one of them",
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
        };
        store.reload()?;
        Ok(store)
    }

    /// Reads everything again, unless nothing has changed. Cheap when nothing has.
    ///
    /// A damaged record keeps its own client out and nobody else ([`damage`](Self::damage)).
    ///
    /// # Errors
    /// The storage cannot be read: what is in memory stays.
    pub fn reload(&mut self) -> anyhow::Result<()> {
        let has_changed = self.records.read(&mut self.known)?;
        self.generation += u64::from(has_changed);
        Ok(())
    }

    /// Carries out what `decide` says of the clients as they are now, while nobody else changes
    /// anything.
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
        // It may have failed half-way.
        self.generation += u64::from(*changed.as_ref().unwrap_or(&true));
        changed?;
        Ok(outcome.expect("decided"))
    }

    /// A number that is another whenever what is known of clients may be another.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Number of the change that what is known is of, among those of a database; zero of files.
    #[must_use]
    pub fn change_number(&self) -> i64 {
        self.records.change_number()
    }

    /// What is wrong with a record, in words with the remedy.
    #[must_use]
    pub fn damage(&self) -> Option<&str> {
        self.known.damage.as_deref()
    }

    /// All clients, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Client> {
        self.known.clients.values()
    }

    /// The client of that name.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&Client> {
        self.known.clients.get(name)
    }

    /// The enrolled client with that key.
    #[must_use]
    pub fn by_key(&self, key: KeyHash) -> Option<&Client> {
        self.known.by_key(key)
    }

    /// Invites `name`, or invites it again while nobody has used its invitation.
    ///
    /// # Errors
    /// The name is unfit or enrolled, the pool is used up, or the storage refuses; nothing changes
    /// then.
    pub fn invite(&mut self, name: &str, lifetime: Duration, now: SystemTime) -> anyhow::Result<Token> {
        check_name(name)?;
        let pool = self.pool;
        let token = Token(random());
        let hash = sha256(&token.0);
        self.change(|known| {
            // Nobody knows which addresses its client has.
            known.refuse_damage()?;
            let before = known.clients.get(name);
            if before.is_some_and(|client| client.key.is_some()) {
                bail!("{name} is already enrolled: choose another name, or `hawser hub revoke {name}` first");
            }
            let (inner_v4, inner_v6) = match before {
                Some(client) => (client.inner_v4, client.inner_v6),
                None => known.free_addresses(pool)?,
            };
            let limits = before.map(|client| client.limits).unwrap_or_default();
            let client = Client {
                name: name.to_owned(),
                inner_v4,
                inner_v6,
                key: None,
                ports: Vec::new(),
                subnets: Vec::new(),
                limits,
                token: Some(hash),
                expires: now + lifetime,
            };
            Ok((vec![Edit::Put(Box::new(client))], ()))
        })?;
        Ok(token)
    }

    /// Lets the key in for the token: once, within the invitation's time. The same key may repeat
    /// it, in case it never heard the answer.
    ///
    /// # Errors
    /// The refusal to send; [`Refusal::Busy`] when the storage refuses, and then nothing changes.
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
                None => {}
            }
            // A machine has one enrolment at a hub: the new one replaces the old, whose addresses
            // become free.
            let old = known.by_key(key).map(|old| Edit::Remove(old.name.clone()));
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

    /// Enrols the key of a client that is known by name and not by key: its name is made from the
    /// key, and somebody has compared it. Does nothing for a name that nobody knows.
    ///
    /// # Errors
    /// The storage refuses, and then nothing changes.
    pub fn meet(&mut self, name: &str, key: KeyHash) -> anyhow::Result<()> {
        self.reload()?;
        if self.by_name(name).is_none_or(|client| client.key.is_some()) {
            return Ok(());
        }
        self.change(|known| {
            let expected = known.clients.get(name).filter(|client| client.key.is_none());
            let met = expected.map(|client| {
                Edit::Put(Box::new(Client {
                    key: Some(key),
                    ..client.clone()
                }))
            });
            Ok((met.into_iter().collect(), ()))
        })
    }

    /// Forgets a client or its invitation; its addresses become free after a day, or when there are
    /// no others. What is wrong with other
    /// records does not keep it from that.
    ///
    /// # Errors
    /// There is no such client, or the storage refuses.
    pub fn revoke(&mut self, name: &str) -> anyhow::Result<()> {
        check_name(name)?;
        self.change(|_| Ok((vec![Edit::Remove(name.to_owned())], ())))
    }

    /// Leads a port of the hub to a client, or to nobody again.
    ///
    /// # Errors
    /// There is no such client, another has the port, or the storage refuses; nothing changes then.
    pub fn set_port(&mut self, name: &str, port: Service, is_on: bool) -> anyhow::Result<()> {
        check_name(name)?;
        self.change(|known| {
            let other = known.clients.values().find(|client| client.ports.contains(&port));
            if let Some(other) = other.filter(|other| is_on && other.name != name) {
                let other = &other.name;
                bail!(
                    "{port} leads to {other}: `hawser hub forward {other} {port} --off` takes it away first"
                );
            }
            let mut client = known.clients.get(name).cloned().ok_or_else(|| unknown(name))?;
            client.ports.retain(|one| *one != port);
            if is_on {
                client.ports.push(port);
            }
            Ok((vec![Edit::Put(Box::new(client))], ()))
        })
    }

    /// Changes what a client may use.
    ///
    /// # Errors
    /// There is no such client, or the storage refuses; nothing changes then.
    pub fn set_limits(&mut self, name: &str, change: LimitChange) -> anyhow::Result<ClientLimits> {
        check_name(name)?;
        self.change(|known| {
            let mut client = known.clients.get(name).cloned().ok_or_else(|| unknown(name))?;
            client.limits.apply(change);
            let limits = client.limits;
            Ok((vec![Edit::Put(Box::new(client))], limits))
        })
    }

    /// The hub's ports that lead to clients, each with where.
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
        // Of a pool that is used up, the address that was freed first.
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

/// A store that several parts of a process ask.
#[derive(Clone, Debug)]
pub struct SharedStore {
    /// What is known; it never waits for a database.
    view: Arc<Mutex<ClientStore>>,
    /// What changes it: the same where that takes no longer than a file.
    writer: Arc<Mutex<ClientStore>>,
    fleet: Option<Fleet>,
}

impl SharedStore {
    /// Shares a store that is not on another machine.
    #[must_use]
    pub fn new(store: ClientStore) -> Self {
        let store = Arc::new(Mutex::new(store));
        Self {
            view: Arc::clone(&store),
            writer: store,
            fleet: None,
        }
    }

    /// The store of a fleet, for a hub that runs; it is followed from now on. Waits: not for tasks.
    ///
    /// # Errors
    /// The database cannot be reached, or belongs to hubs with other pools.
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

    /// Clients reach this hub elsewhere from now on.
    pub fn set_endpoints(&self, endpoints: &[HubAddress]) {
        if let Some(fleet) = &self.fleet {
            fleet.set_endpoints(texts(endpoints));
        }
    }

    /// Brings what a ledger has counted to the database, where there is one: the sums of whole
    /// days, by client.
    pub fn keep(&self, ledger: &str, sums: impl IntoIterator<Item = DaySum>) {
        if let Some(fleet) = &self.fleet {
            fleet.keep(ledger, sums);
        }
    }

    /// Follows from now on what the other hubs of a fleet have carried in a month (`2026-11`), and
    /// says what that was by client when it was read last; nothing where there is no fleet.
    #[must_use]
    pub fn used_elsewhere(&self, month: &str) -> BTreeMap<String, u64> {
        let fleet = self.fleet.as_ref();
        fleet.map(|fleet| fleet.used_elsewhere(month)).unwrap_or_default()
    }

    /// The other hubs of the fleet.
    #[must_use]
    pub fn other_hubs(&self) -> Vec<OtherHub> {
        self.fleet.as_ref().map(Fleet::others).unwrap_or_default()
    }

    /// A number that is another whenever the other hubs are others.
    #[must_use]
    pub fn fleet_generation(&self) -> u64 {
        self.fleet.as_ref().map_or(0, Fleet::generation)
    }

    /// Returns whether the database of a fleet has been silent for longer than its `stale` permits:
    /// clients that were revoked at another hub could be among those that are known.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.fleet.as_ref().is_some_and(Fleet::is_expired)
    }

    /// Describes for an operator that the database of a fleet does not answer.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.fleet.as_ref().and_then(Fleet::notice)
    }

    /// Confirms to the other hubs of a fleet that the sessions of this one were held against the
    /// clients as that [change](ClientStore::change_number) left them.
    pub fn confirm(&self, change: i64) {
        if let Some(fleet) = &self.fleet {
            fleet.confirm(change);
        }
    }

    /// For status; none where the clients are files of this machine.
    #[must_use]
    pub fn fleet_status(&self) -> Option<Value> {
        self.fleet.as_ref().map(Fleet::status)
    }

    /// The store as it is in memory.
    ///
    /// # Panics
    /// Never: no holder panics.
    pub fn lock(&self) -> MutexGuard<'_, ClientStore> {
        self.view.lock().expect("no holder panics")
    }

    /// The store as it is now, whoever has changed it; of a fleet, as it was read last.
    ///
    /// # Errors
    /// As [`ClientStore::reload`].
    pub fn refreshed(&self) -> anyhow::Result<MutexGuard<'_, ClientStore>> {
        let mut store = self.lock();
        store.reload()?;
        Ok(store)
    }

    /// Changes something, on a thread that may wait where that takes long.
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

    /// Who the key belongs to, by what is enrolled now; with a token, the invitation is used first.
    /// A stale token of one that is enrolled harms nothing. `is_resuming` says that the key has a
    /// session here: while a database does not answer, that one goes on for as long as `stale`
    /// says.
    ///
    /// # Errors
    /// The refusal to send; [`Refusal::Busy`] when the storage cannot say.
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
                Ok(client) => return Ok(client),
                Err(error) => refusal = error,
            }
        }
        let store = self.refreshed().map_err(|error| {
            tracing::error!(error = format!("{error:#}"), "cannot read who may come in");
            Refusal::Busy
        })?;
        store.by_key(key).cloned().ok_or(refusal)
    }

    /// Forgets a client, as [`ClientStore::revoke`] does.
    ///
    /// # Errors
    /// There is no such client, or the storage refuses.
    pub async fn revoke(&self, name: &str) -> anyhow::Result<()> {
        let name = name.to_owned();
        self.change(move |store| store.revoke(&name)).await
    }

    /// Whether the client is enrolled with that key now; as far as is known, where the storage
    /// cannot say, and not at all once what is known has [expired](Self::is_expired).
    ///
    /// Cost: two system calls at most while the store is as it was.
    #[must_use]
    pub fn has(&self, name: &str, key: KeyHash) -> bool {
        let mut store = self.lock();
        if let Err(error) = store.reload() {
            tracing::warn!(error = format!("{error:#}"), "cannot read who may come in");
        }
        let is_enrolled = store.by_name(name).is_some_and(|client| client.key == Some(key));
        is_enrolled && !self.is_expired()
    }
}

fn texts(endpoints: &[HubAddress]) -> Vec<String> {
    endpoints.iter().map(ToString::to_string).collect()
}

/// The pools that the hubs of a database have, as `NET/LENGTH NET/LENGTH`; none when it is new.
///
/// # Errors
/// The database cannot be reached, or belongs to a newer program.
pub fn pool_of_fleet(config: &StoreConfig) -> anyhow::Result<Option<String>> {
    Database::pool_of(config)
}

/// What a client's packets of a month were, all in all.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MonthSum {
    /// Its name.
    pub client: String,
    /// The month: `2026-11`.
    pub month: String,
    /// Towards the client. Unit: bytes of UDP payload.
    pub down_bytes: u64,
    /// From the client. Unit: bytes of UDP payload.
    pub up_bytes: u64,
}

/// Other hubs of a database where a client that is invited at `own` may come in as well: those that
/// were heard of last.
///
/// # Errors
/// The database cannot be reached, or belongs to a newer program.
pub fn hubs_of_fleet(config: &StoreConfig, own: KeyHash) -> anyhow::Result<Vec<InvitedTo>> {
    let mut others = Database::new(config)?.beside(own)?;
    others.truncate(MOST_OTHERS);
    Ok(others)
}

/// What all hubs of a database have carried.
///
/// # Errors
/// The database cannot be reached, or belongs to other hubs.
pub fn usage_of_fleet(config: &StoreConfig, pool: Pool) -> anyhow::Result<Vec<MonthSum>> {
    Database::open(config, pool)?.usage()
}

/// How often the store is looked at: four times within the second in which a revocation takes
/// effect.
pub const LOOK: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests;
