//! The hub's store of clients: who may come in, and with which inner addresses.
//!
//! One file per client, `NAME.toml`, replaced atomically. Tokens are stored only as hashes. `hawser hub invite` may write while the
//! hub runs: files are separate, a lock file serialises changes, and it grows by a byte with each. So the hub sees at a glance
//! whether what it knows is still true, and reads again only when it is not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use data_encoding::HEXLOWER;
use hawser_wire::control::Refusal;
use serde::{Deserialize, Serialize};

use crate::atomic_file;
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

    /// The host numbers that clients may have: neither the network, the hub nor the broadcast address.
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
}

/// All clients of a hub.
#[derive(Debug)]
pub struct ClientStore {
    directory: PathBuf,
    pool: Pool,
    clients: BTreeMap<String, Client>,
    /// What `clients` was read from; none when that cannot be told.
    version: Option<Version>,
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
        atomic_file::private_directory(directory)?;
        let mut store = Self {
            directory: directory.to_owned(),
            pool,
            clients: BTreeMap::new(),
            version: None,
        };
        store.reload()?;
        Ok(store)
    }

    /// Reads everything again, unless nothing has changed.
    ///
    /// Cost: two system calls when nothing has changed, else one file a client.
    ///
    /// # Errors
    /// As [`open`](Self::open); what is in memory stays.
    pub fn reload(&mut self) -> anyhow::Result<()> {
        // Seen before the files are: what changes in between is read twice, never missed.
        let version = self.version_on_disk();
        if version.is_some() && version == self.version {
            return Ok(());
        }
        self.read_all()?;
        // A file that comes by hand within the same tick of the file system's clock would not show.
        let settled = |seen: &Version| seen.modified.elapsed().is_ok_and(|age| age > TICK);
        self.version = version.filter(settled);
        Ok(())
    }

    fn read_all(&mut self) -> anyhow::Result<()> {
        let mut clients = BTreeMap::new();
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
            if check_name(name).is_ok() {
                clients.insert(name.to_owned(), read_client(name, &path)?);
            }
        }
        self.clients = clients;
        Ok(())
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

    /// Counts a change that is on the disk and in memory; the lock keeps others from changing at the same time.
    fn count_change(&mut self, lock: &mut File) {
        // Where the disk is too full for one more byte, the directory's time still tells others.
        let counted = lock.write_all(b".").is_ok();
        self.version = if counted { self.version_on_disk() } else { None };
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
    /// The name is unfit or enrolled, the pool is used up, or the disk refuses; nothing changes then.
    pub fn invite(&mut self, name: &str, lifetime: Duration, now: SystemTime) -> anyhow::Result<Token> {
        check_name(name)?;
        let mut lock = self.lock()?;
        self.reload()?;
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
            token: Some(sha256(&token.0)),
            expires,
        };
        self.save(client, &mut lock)?;
        Ok(token)
    }

    /// Lets the key in for the token: once, within the invitation's time. The same key may repeat it, in case it never heard the answer.
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
        // A machine has one enrolment at a hub: the new one replaces the old, whose addresses become free.
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

    /// Forgets a client or its invitation; its addresses become free.
    ///
    /// # Errors
    /// There is no such client, or the disk refuses.
    pub fn revoke(&mut self, name: &str) -> anyhow::Result<Client> {
        check_name(name)?;
        let mut lock = self.lock()?;
        self.reload()?;
        let Some(client) = self.clients.get(name).cloned() else {
            bail!("no client is called {name}: `hawser hub list` shows who there is");
        };
        self.remove_file(name, &mut lock)?;
        Ok(client)
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
        };
        atomic_file::write(
            &self.file(&client.name),
            toml::to_string(&file)?.as_bytes(),
            0o600,
        )?;
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
    })
}

/// More than a tick of the clock that file systems stamp with.
const TICK: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    const WEEK: Duration = Duration::from_secs(7 * 86_400);

    fn pool(prefix: u8) -> Pool {
        Pool {
            v4: (Ipv4Addr::new(100, 96, 0, 0), prefix),
            v6: Some(("fd00::".parse().unwrap(), 64)),
        }
    }

    fn store(prefix: u8) -> (tempfile::TempDir, ClientStore) {
        let dir = tempfile::tempdir().unwrap();
        let store = ClientStore::open(&dir.path().join("clients"), pool(prefix)).unwrap();
        (dir, store)
    }

    #[test]
    fn a_token_works_once() {
        let (_dir, mut store) = store(16);
        let now = SystemTime::now();
        let token = store.invite("alice", WEEK, now).unwrap();
        let (alice, mallory) = (KeyHash([1; 32]), KeyHash([2; 32]));
        let client = store.enrol(&token.0, alice, now).unwrap();
        assert_eq!(client.inner_v4, Ipv4Addr::new(100, 96, 0, 2));
        assert_eq!(client.inner_v6, Some("fd00::2".parse().unwrap()));
        assert_eq!(
            store.enrol(&token.0, alice, now + WEEK),
            Ok(client),
            "the same key may repeat it"
        );
        assert_eq!(store.enrol(&token.0, mallory, now), Err(Refusal::UsedToken));
        assert_eq!(store.enrol(&[0; 16], mallory, now), Err(Refusal::UnknownToken));
        assert!(store.by_key(alice).is_some() && store.by_key(mallory).is_none());
    }

    #[test]
    fn an_invitation_expires() {
        let (_dir, mut store) = store(16);
        let now = SystemTime::now();
        let token = store.invite("alice", WEEK, now).unwrap();
        assert_eq!(
            store.enrol(&token.0, KeyHash([1; 32]), now + WEEK),
            Err(Refusal::ExpiredToken)
        );
        let again = store.invite("alice", WEEK, now + WEEK).unwrap();
        assert_eq!(
            store.enrol(&token.0, KeyHash([1; 32]), now),
            Err(Refusal::UnknownToken)
        );
        assert!(store.enrol(&again.0, KeyHash([1; 32]), now + WEEK).is_ok());
    }

    #[test]
    fn addresses_are_stable_and_return_to_the_pool() {
        let (dir, mut store) = store(29);
        let now = SystemTime::now();
        for name in ["a", "b", "c", "d", "e"] {
            store.invite(name, WEEK, now).unwrap();
        }
        assert!(
            store
                .invite("f", WEEK, now)
                .unwrap_err()
                .to_string()
                .contains("used up")
        );
        let b = store.revoke("b").unwrap();
        let mut reopened = ClientStore::open(&dir.path().join("clients"), pool(29)).unwrap();
        reopened.invite("f", WEEK, now).unwrap();
        assert_eq!(reopened.by_name("f").unwrap().inner_v4, b.inner_v4);
        assert!(store.revoke("b").unwrap_err().to_string().contains("hub list"));
    }

    #[test]
    fn no_token_is_on_the_disk() {
        let (dir, mut store) = store(16);
        let token = store.invite("alice", WEEK, SystemTime::now()).unwrap();
        let text = fs::read_to_string(dir.path().join("clients/alice.toml")).unwrap();
        assert!(!text.contains(&HEXLOWER.encode(&token.0)), "{text}");
    }

    #[test]
    fn a_damaged_file_is_named() {
        let (dir, mut store) = store(16);
        fs::write(dir.path().join("clients/bob.toml"), "inner_v4 = 7").unwrap();
        let error = format!("{:#}", store.reload().unwrap_err());
        assert!(error.contains("bob.toml is damaged"), "{error}");
    }

    #[test]
    fn what_another_process_changes_is_seen_and_nothing_is_read_in_vain() {
        let (dir, mut store) = store(16);
        let now = SystemTime::now();
        store.invite("alice", WEEK, now).unwrap();
        // Damage that does not show in the directory: it is not read again, as long as nothing changes.
        let file = dir.path().join("clients/alice.toml");
        let good = fs::read(&file).unwrap();
        fs::write(&file, "damage").unwrap();
        store.reload().unwrap();
        fs::write(&file, good).unwrap();
        let mut other = ClientStore::open(&dir.path().join("clients"), pool(16)).unwrap();
        let token = other.invite("bob", WEEK, now).unwrap();
        assert!(store.enrol(&token.0, KeyHash([1; 32]), now).is_ok());
        other.revoke("bob").unwrap();
        store.reload().unwrap();
        assert!(store.by_name("bob").is_none() && store.by_name("alice").is_some());
        // By hand.
        fs::remove_file(&file).unwrap();
        store.reload().unwrap();
        assert!(store.by_name("alice").is_none());
    }

    #[test]
    fn an_enrolled_name_is_not_given_away() {
        let (_dir, mut store) = store(16);
        let now = SystemTime::now();
        let token = store.invite("alice", WEEK, now).unwrap();
        store.enrol(&token.0, KeyHash([1; 32]), now).unwrap();
        assert!(
            store
                .invite("alice", WEEK, now)
                .unwrap_err()
                .to_string()
                .contains("revoke alice")
        );
        assert!(store.invite("../alice", WEEK, now).is_err());
    }
}
