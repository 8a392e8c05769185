//! The hub's store of clients: who may come in, and with which inner addresses.
//!
//! One file per client, `NAME.toml`, replaced atomically. Tokens are stored only as hashes.
//! `hawser hub invite` may write while the hub runs: files are separate, a lock file serialises
//! changes, and it grows by a byte with each. So the hub sees at a glance whether what it knows is
//! still true, and reads again only when it is not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use data_encoding::HEXLOWER;
use hawser_linux::isolation::Service;
use hawser_wire::control::Refusal;
use serde::{Deserialize, Serialize};

use crate::atomic_file;
use crate::config::HubService;
use crate::identity::{KeyHash, random, sha256};
use crate::invitation::{Token, check_name};

/// The inner address pools of a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// IPv4 network address and prefix length.
    pub v4: (Ipv4Addr, u8),
    /// IPv6 network address and prefix length.
    pub v6: Option<(Ipv6Addr, u8)>,
}

impl Pool {
    /// The hub's own addresses: the first of each pool.
    #[must_use]
    pub fn hub(&self) -> (Ipv4Addr, Option<Ipv6Addr>) {
        self.host(1)
    }

    fn host(&self, number: u32) -> (Ipv4Addr, Option<Ipv6Addr>) {
        let v4 = Ipv4Addr::from_bits(self.v4.0.to_bits() | number);
        let v6 = self
            .v6
            .map(|(net, _)| Ipv6Addr::from_bits(net.to_bits() | u128::from(number)));
        (v4, v6)
    }

    /// The host numbers that clients may have: neither the network, the hub nor the broadcast
    /// address.
    fn numbers(&self) -> std::ops::Range<u32> {
        2..(1_u32 << (32 - u32::from(self.v4.1))) - 1
    }
}

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

/// The file of a client.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientFile {
    inner_v4: Ipv4Addr,
    #[serde(skip_serializing_if = "Option::is_none")]
    inner_v6: Option<Ipv6Addr>,
    /// SHA-256 of the client's public key.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// SHA-256 of the invitation's token.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    /// When the invitation ends, seconds since 1970.
    expires_unix_s: u64,
    /// The hub's ports that lead to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ports: Vec<HubService>,
}

/// All clients of a hub.
#[derive(Debug)]
pub struct ClientStore {
    directory: PathBuf,
    pool: Pool,
    clients: BTreeMap<String, Client>,
    /// Which files they were read from.
    read_from: BTreeMap<String, Stamp>,
    /// What `clients` was read from; none when that cannot be told.
    version: Option<Version>,
    /// What is wrong with a file, in words with the remedy.
    damage: Option<String>,
    /// How often what is in memory has changed.
    generation: u64,
}

/// A state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    length: u64,
    modified: SystemTime,
}

impl Stamp {
    /// None for one that may change again without a difference: within a tick of the file system's
    /// clock.
    fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        let modified = found.modified().ok()?;
        let is_settled = modified.elapsed().is_ok_and(|age| age > TICK);
        is_settled.then(|| Self {
            inode: found.ino(),
            length: found.len(),
            modified,
        })
    }
}

/// A state of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    /// Changes that a store made.
    changes: u64,
    /// When a file came or went, also by hand.
    modified: SystemTime,
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

    /// The same, but files may be damaged.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn open_damaged(directory: &Path, pool: Pool) -> anyhow::Result<Self> {
        atomic_file::private_directory(directory)?;
        let mut store = Self {
            directory: directory.to_owned(),
            pool,
            clients: BTreeMap::new(),
            read_from: BTreeMap::new(),
            version: None,
            damage: None,
            generation: 0,
        };
        store.reload()?;
        Ok(store)
    }

    /// Reads everything again, unless nothing has changed.
    ///
    /// Cost: two system calls when nothing has changed; else one for each client, and the files
    /// that are not as they were.
    ///
    /// A damaged file keeps its own client out and nobody else ([`damage`](Self::damage)).
    ///
    /// # Errors
    /// The directory cannot be read: what is in memory stays.
    pub fn reload(&mut self) -> anyhow::Result<()> {
        // Seen before the files are: what changes in between is read twice, never missed.
        let version = self.version_on_disk();
        if version.is_some() && version == self.version {
            return Ok(());
        }
        self.version = None;
        self.read_all()?;
        // A file that comes by hand within the same tick of the file system's clock would not show.
        let settled = |seen: &Version| seen.modified.elapsed().is_ok_and(|age| age > TICK);
        // A repair in place would not show either.
        self.version = version.filter(settled).filter(|_| self.damage.is_none());
        Ok(())
    }

    fn read_all(&mut self) -> anyhow::Result<()> {
        let (mut clients, mut read_from) = (BTreeMap::new(), BTreeMap::new());
        let mut damaged = None;
        let entries = fs::read_dir(&self.directory)
            .with_context(|| format!("cannot read the directory {}", self.directory.display()))?;
        for entry in entries {
            let path = entry?.path();
            let Some(name) = path
                .file_name()
                .and_then(|n| n.to_str())
                .and_then(|n| n.strip_suffix(".toml"))
            else {
                continue;
            };
            if check_name(name).is_err() {
                continue;
            }
            // Seen before the file is: a change in between is read the next time.
            let stamp = Stamp::of(&path);
            read_from.extend(stamp.map(|stamp| (name.to_owned(), stamp)));
            let known = self.clients.get(name).filter(|_| {
                let before = self.read_from.get(name);
                stamp.is_some() && before == stamp.as_ref()
            });
            let client = known.cloned().map_or_else(|| read_client(name, &path), Ok);
            match client {
                Ok(client) => drop(clients.insert(name.to_owned(), client)),
                // Taken away between the listing and the look at it.
                Err(_) if !path.exists() => {}
                Err(error) => damaged = Some(error),
            }
        }
        (self.clients, self.read_from) = (clients, read_from);
        self.generation += 1;
        self.damage = damaged.map(|error: anyhow::Error| format!("{error:#}"));
        Ok(())
    }

    /// A number that is another whenever what is known of clients may be another.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// What is wrong with a file, in words with the remedy.
    #[must_use]
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    fn refuse_damage(&self) -> anyhow::Result<()> {
        match &self.damage {
            Some(damage) => bail!("{damage}"),
            None => Ok(()),
        }
    }

    fn version_on_disk(&self) -> Option<Version> {
        let changes = match fs::metadata(self.lock_file()) {
            Ok(lock) => lock.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Err(_) => return None,
        };
        let modified = fs::metadata(&self.directory).and_then(|directory| directory.modified());
        modified.ok().map(|modified| Version { changes, modified })
    }

    /// Counts a change that is on the disk and in memory; the lock keeps others from changing at
    /// the same time.
    fn count_change(&mut self, lock: &mut File) {
        // Where the disk is too full for one more byte, the directory's time still tells others.
        self.generation += 1;
        let counted = lock.write_all(b".").is_ok();
        let is_known = counted && self.damage.is_none();
        self.version = if is_known { self.version_on_disk() } else { None };
    }

    /// All clients, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Client> {
        self.clients.values()
    }

    /// The client of that name.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&Client> {
        self.clients.get(name)
    }

    /// The enrolled client with that key.
    #[must_use]
    pub fn by_key(&self, key: KeyHash) -> Option<&Client> {
        self.clients.values().find(|client| client.key == Some(key))
    }

    /// Invites `name`, or invites it again while nobody has used its invitation.
    ///
    /// # Errors
    /// The name is unfit or enrolled, the pool is used up, or the disk refuses; nothing changes
    /// then.
    pub fn invite(&mut self, name: &str, lifetime: Duration, now: SystemTime) -> anyhow::Result<Token> {
        check_name(name)?;
        let mut lock = self.lock()?;
        self.reload()?;
        // Nobody knows which addresses its client has.
        self.refuse_damage()?;
        if self.clients.get(name).is_some_and(|client| client.key.is_some()) {
            bail!("{name} is already enrolled: choose another name, or `hawser hub revoke {name}` first");
        }
        let (inner_v4, inner_v6) = match self.clients.get(name) {
            Some(client) => (client.inner_v4, client.inner_v6),
            None => self.free_addresses()?,
        };
        let token = Token(random());
        let expires = now + lifetime;
        let client = Client {
            name: name.to_owned(),
            inner_v4,
            inner_v6,
            key: None,
            ports: Vec::new(),
            token: Some(sha256(&token.0)),
            expires,
        };
        self.save(client, &mut lock)?;
        Ok(token)
    }

    /// Lets the key in for the token: once, within the invitation's time. The same key may repeat
    /// it, in case it never heard the answer.
    ///
    /// # Errors
    /// The refusal to send; [`Refusal::Busy`] when the disk refuses, and then nothing changes.
    pub fn enrol(&mut self, token: &[u8; 16], key: KeyHash, now: SystemTime) -> Result<Client, Refusal> {
        let token = sha256(token);
        let busy = |error: anyhow::Error| {
            tracing::error!(error = format!("{error:#}"), "cannot enrol a client");
            Refusal::Busy
        };
        let mut lock = self.lock().map_err(busy)?;
        self.reload().map_err(busy)?;
        let client = self
            .clients
            .values()
            .find(|client| client.token == Some(token))
            .cloned()
            .ok_or(Refusal::UnknownToken)?;
        match client.key {
            Some(known) if known == key => return Ok(client),
            Some(_) => return Err(Refusal::UsedToken),
            None if now >= client.expires => return Err(Refusal::ExpiredToken),
            None => {}
        }
        // A machine has one enrolment at a hub: the new one replaces the old, whose addresses
        // become free.
        if let Some(old) = self.by_key(key).map(|old| old.name.clone()) {
            self.remove_file(&old, &mut lock).map_err(busy)?;
        }
        let client = Client {
            key: Some(key),
            ..client
        };
        self.save(client.clone(), &mut lock).map_err(busy)?;
        Ok(client)
    }

    /// Enrols the key of a client that is known by name and not by key: its name is made from the
    /// key, and somebody has compared it. Does nothing for a name that nobody knows.
    ///
    /// # Errors
    /// The disk refuses, and then nothing changes.
    pub fn meet(&mut self, name: &str, key: KeyHash) -> anyhow::Result<()> {
        self.reload()?;
        if self.by_name(name).is_none_or(|client| client.key.is_some()) {
            return Ok(());
        }
        let mut lock = self.lock()?;
        self.reload()?;
        match self.by_name(name).cloned() {
            Some(client) if client.key.is_none() => self.save(
                Client {
                    key: Some(key),
                    ..client
                },
                &mut lock,
            ),
            Some(_) | None => Ok(()),
        }
    }

    /// Forgets a client or its invitation; its addresses become free. What is wrong with other
    /// files does not keep it from that.
    ///
    /// # Errors
    /// There is no such client, or the disk refuses.
    pub fn revoke(&mut self, name: &str) -> anyhow::Result<()> {
        check_name(name)?;
        let mut lock = self.lock()?;
        if !self.file(name).exists() {
            bail!("no client is called {name}: `hawser hub list` shows who there is");
        }
        self.remove_file(name, &mut lock)
    }

    /// Leads a port of the hub to a client, or to nobody again.
    ///
    /// # Errors
    /// There is no such client, another has the port, or the disk refuses; nothing changes then.
    pub fn set_port(&mut self, name: &str, port: Service, is_on: bool) -> anyhow::Result<()> {
        check_name(name)?;
        let mut lock = self.lock()?;
        self.reload()?;
        let other = self.clients.values().find(|client| client.ports.contains(&port));
        if let Some(other) = other.filter(|other| is_on && other.name != name) {
            let other = &other.name;
            bail!("{port} leads to {other}: `hawser hub forward {other} {port} --off` takes it away first");
        }
        let Some(mut client) = self.by_name(name).cloned() else {
            bail!("no client is called {name}: `hawser hub list` shows who there is");
        };
        client.ports.retain(|one| *one != port);
        if is_on {
            client.ports.push(port);
        }
        self.save(client, &mut lock)
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
        self.clients.values().flat_map(of).collect()
    }

    fn free_addresses(&self) -> anyhow::Result<(Ipv4Addr, Option<Ipv6Addr>)> {
        let taken: BTreeSet<_> = self.clients.values().map(|client| client.inner_v4).collect();
        self.pool
            .numbers()
            .map(|number| self.pool.host(number))
            .find(|(v4, _)| !taken.contains(v4))
            .with_context(|| {
                format!(
                    "the pool {}/{} is used up: revoke clients, or set a larger pool in hub.toml",
                    self.pool.v4.0, self.pool.v4.1
                )
            })
    }

    fn save(&mut self, client: Client, lock: &mut File) -> anyhow::Result<()> {
        let file = ClientFile {
            inner_v4: client.inner_v4,
            inner_v6: client.inner_v6,
            key: client.key.map(|key| key.to_string()),
            token: client.token.map(|token| HEXLOWER.encode(&token)),
            expires_unix_s: client
                .expires
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| d.as_secs()),
            ports: client.ports.iter().copied().map(HubService).collect(),
        };
        atomic_file::write(
            &self.file(&client.name),
            toml::to_string(&file)?.as_bytes(),
            0o600,
        )?;
        self.read_from.remove(&client.name);
        self.clients.insert(client.name.clone(), client);
        self.count_change(lock);
        Ok(())
    }

    fn remove_file(&mut self, name: &str, lock: &mut File) -> anyhow::Result<()> {
        let path = self.file(name);
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        self.clients.remove(name);
        self.count_change(lock);
        Ok(())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.toml"))
    }

    fn lock_file(&self) -> PathBuf {
        self.directory.join(".lock")
    }

    fn lock(&self) -> anyhow::Result<File> {
        let path = self.lock_file();
        let lock = || {
            let file = File::options().create(true).append(true).open(&path)?;
            file.lock()?;
            Ok::<_, std::io::Error>(file)
        };
        lock().with_context(|| format!("cannot lock {}", path.display()))
    }
}

/// A store that several parts of a process ask.
#[derive(Clone, Debug)]
pub struct SharedStore(Arc<Mutex<ClientStore>>);

impl SharedStore {
    /// Shares a store.
    #[must_use]
    pub fn new(store: ClientStore) -> Self {
        Self(Arc::new(Mutex::new(store)))
    }

    /// The store as it is in memory.
    ///
    /// # Panics
    /// Never: no holder panics.
    pub fn lock(&self) -> MutexGuard<'_, ClientStore> {
        self.0.lock().expect("no holder panics")
    }

    /// The store as it is on the disk now, whoever has changed it.
    ///
    /// # Errors
    /// As [`ClientStore::reload`].
    pub fn refreshed(&self) -> anyhow::Result<MutexGuard<'_, ClientStore>> {
        let mut store = self.lock();
        store.reload()?;
        Ok(store)
    }

    /// Who the key belongs to, by what is enrolled now; with a token, the invitation is used first.
    /// A stale token of one that is enrolled harms nothing.
    ///
    /// # Errors
    /// The refusal to send; [`Refusal::Busy`] when the disk cannot say.
    pub fn authorise(
        &self,
        token: Option<&[u8; 16]>,
        key: KeyHash,
        now: SystemTime,
    ) -> Result<Client, Refusal> {
        let mut store = self.lock();
        store.reload().map_err(|error| {
            tracing::error!(error = format!("{error:#}"), "cannot read who may come in");
            Refusal::Busy
        })?;
        let enrolled = token.map(|token| store.enrol(token, key, now));
        match enrolled {
            Some(Ok(client)) => Ok(client),
            Some(Err(refusal)) => store.by_key(key).cloned().ok_or(refusal),
            None => store.by_key(key).cloned().ok_or(Refusal::NotEnrolled),
        }
    }

    /// Whether the client is enrolled with that key now; as far as is known, where the disk cannot
    /// say.
    ///
    /// Cost: two system calls while the store is as it was.
    #[must_use]
    pub fn has(&self, name: &str, key: KeyHash) -> bool {
        let mut store = self.lock();
        if let Err(error) = store.reload() {
            tracing::warn!(error = format!("{error:#}"), "cannot read who may come in");
        }
        store.by_name(name).is_some_and(|client| client.key == Some(key))
    }
}

fn read_client(name: &str, path: &Path) -> anyhow::Result<Client> {
    let place = || {
        format!(
            "{} is damaged: restore it, or remove it and invite {name} again",
            path.display()
        )
    };
    let file: ClientFile =
        toml::from_str(&fs::read_to_string(path).with_context(place)?).with_context(place)?;
    let token = file
        .token
        .map(|token| token.parse::<KeyHash>())
        .transpose()
        .with_context(place)?;
    Ok(Client {
        name: name.to_owned(),
        inner_v4: file.inner_v4,
        inner_v6: file.inner_v6,
        key: file.key.map(|key| key.parse()).transpose().with_context(place)?,
        token: token.map(|hash| hash.0),
        expires: UNIX_EPOCH + Duration::from_secs(file.expires_unix_s),
        ports: file.ports.iter().map(|port| port.0).collect(),
    })
}

/// More than a tick of the clock that file systems stamp with.
const TICK: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests;
