//! Clients as files: one for each, `NAME.toml`, replaced atomically.
//!
//! `hawser hub invite` may write while the hub runs: files are separate, a lock file serialises
//! changes, and it grows by a byte with each change. So the hub detects changes with two system
//! calls and reads nothing if there are none; otherwise it needs one call for each client and reads
//! the changed files. A damaged file excludes only its own client.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use data_encoding::HEXLOWER;
use hawser_config::atomic_file;
use hawser_config::identity::KeyHash;
use hawser_config::invitation::check_name;
use hawser_config::{HubService, Size, Speed};
use hawser_units::Bytes;
use hawser_wire::control::KeyExpiry;
use serde::{Deserialize, Serialize};

use super::changes::entries;
use super::limits::Own;
use super::records::{Decide, Edit, Freed, Known, LogEntry, QUARANTINE, Records, unknown};
use super::{Client, ClientLimits, Subnet};

/// File of a client.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientFile {
    inner_v4: Ipv4Addr,
    #[serde(skip_serializing_if = "Option::is_none")]
    inner_v6: Option<Ipv6Addr>,
    /// SHA-256 of the client's public key.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Public key of a WireGuard client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wireguard: Option<String>,
    /// SHA-256 of the invitation's token.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    /// Expiry of the invitation, seconds since 1970.
    expires_unix_s: u64,
    /// Ports of the hub that are forwarded to the client.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ports: Vec<HubService>,
    /// Subnets behind the client whose machines keep their addresses, each with the clients that
    /// may open connections to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    subnets: Vec<Subnet>,
    /// `none`, or a rate; the hub's default unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cap: Option<String>,
    /// `none`, or an amount; the hub's default unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    quota: Option<String>,
    /// Expiry of the key, seconds since 1970; never unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_expires_unix_s: Option<u64>,
    /// Set once the log has the expiry of the key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_expiry_logged: bool,
}

/// Directory of clients.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// Stamps of the files that were read last.
    read_from: BTreeMap<String, Stamp>,
    /// Version that was read last; none if it is unknown.
    version: Option<Version>,
}

/// State of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    length: u64,
    pub(super) modified: SystemTime,
}

impl Stamp {
    /// Returns the stamp of a file; `None` if the file may change again without a different stamp,
    /// within a tick of the file system's clock.
    pub(super) fn of(path: &Path) -> Option<Self> {
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

/// State of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    /// Number of changes by stores.
    changes: u64,
    /// Modification time of the directory, which changes when a file is added or removed, also by
    /// hand.
    modified: SystemTime,
}

impl Directory {
    /// Opens a directory, and creates a missing one.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        atomic_file::private_directory(path)?;
        Ok(Self {
            path: path.to_owned(),
            read_from: BTreeMap::new(),
            version: None,
        })
    }

    fn read_all(&mut self, known: &mut Known) -> anyhow::Result<()> {
        let (mut clients, mut read_from) = (BTreeMap::new(), BTreeMap::new());
        let mut damaged = None;
        let entries = fs::read_dir(&self.path)
            .with_context(|| format!("cannot read the directory {}", self.path.display()))?;
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
            // The stamp is read before the file, so a change in between is read the next time.
            let stamp = Stamp::of(&path);
            read_from.extend(stamp.map(|stamp| (name.to_owned(), stamp)));
            let before = known.clients.get(name).filter(|_| {
                let before = self.read_from.get(name);
                stamp.is_some() && before == stamp.as_ref()
            });
            let client = before.cloned().map_or_else(|| read_client(name, &path), Ok);
            match client {
                Ok(client) => drop(clients.insert(name.to_owned(), client)),
                // The file was removed after the listing.
                Err(_) if !path.exists() => {}
                Err(error) => damaged = Some(error),
            }
        }
        (known.clients, self.read_from) = (Arc::new(clients), read_from);
        known.damage = damaged.map(|error: anyhow::Error| format!("{error:#}"));
        Ok(())
    }

    fn version_on_disk(&self) -> Option<Version> {
        let changes = match fs::metadata(self.lock_file()) {
            Ok(lock) => lock.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Err(_) => return None,
        };
        let modified = fs::metadata(&self.path).and_then(|directory| directory.modified());
        modified.ok().map(|modified| Version { changes, modified })
    }

    fn write(&mut self, client: &Client) -> anyhow::Result<()> {
        let file = ClientFile {
            inner_v4: client.inner_v4,
            inner_v6: client.inner_v6,
            key: client.key.map(|key| key.to_string()),
            wireguard: client.wireguard.map(|key| key.to_string()),
            token: client.token.map(|token| HEXLOWER.encode(&token)),
            expires_unix_s: client
                .expires
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| d.as_secs()),
            ports: client.ports.iter().copied().map(HubService).collect(),
            subnets: client.subnets.clone(),
            cap: written(client.limits.cap, |cap| format!("{}bit", cap.as_bps())),
            quota: written(client.limits.quota, |quota| format!("{}B", quota.0)),
            key_expires_unix_s: client.expiry.map(|expiry| expiry.0),
            is_expiry_logged: client.is_expiry_logged,
        };
        self.read_from.remove(&client.name);
        atomic_file::write(
            &self.file(&client.name),
            toml::to_string(&file)?.as_bytes(),
            0o600,
        )
    }

    /// Removes a client, whose address was `address`.
    fn remove(&self, name: &str, address: Option<Ipv4Addr>) -> anyhow::Result<()> {
        let path = self.file(name);
        if let Some(address) = address {
            self.free(address)?;
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(unknown(name)),
            other => other.with_context(|| format!("cannot remove {}", path.display())),
        }
    }

    /// Addresses of clients that were removed recently.
    fn freed(&self) -> Freed {
        let text = fs::read_to_string(self.path.join(FREED)).unwrap_or_default();
        let one = |line: &str| {
            let (address, at) = line.split_once(' ')?;
            let at = UNIX_EPOCH.checked_add(Duration::from_secs(at.parse().ok()?))?;
            Some((address.parse().ok()?, at))
        };
        let mut freed = Freed::new();
        freed.extend(text.lines().filter_map(one));
        freed
    }

    /// Stores that an address becomes free now, and removes old entries.
    fn free(&self, address: Ipv4Addr) -> anyhow::Result<()> {
        let (mut freed, now) = (self.freed(), SystemTime::now());
        freed.retain(|_, at| now.duration_since(*at).is_ok_and(|age| age < QUARANTINE));
        freed.insert(address, now);
        let line = |(address, at): (&Ipv4Addr, &SystemTime)| {
            let at = at.duration_since(UNIX_EPOCH).map_or(0, |at| at.as_secs());
            format!("{address} {at}\n")
        };
        let text: String = freed.iter().map(line).collect();
        atomic_file::write(&self.path.join(FREED), text.as_bytes(), 0o600)
    }

    /// Adds entries to the log. The log is not a part of the change: a full disk must not prevent a
    /// revocation.
    fn append(&self, entries: &[LogEntry]) {
        let append = || -> anyhow::Result<()> {
            let path = self.path.join(LOG);
            if fs::metadata(&path).is_ok_and(|found| found.len() >= MAX_LOG) {
                fs::rename(&path, self.path.join(OLD_LOG))?;
            }
            let mut text = Vec::new();
            for entry in entries {
                // A part of a line that a crash has left spoils no other.
                text.push(b'\n');
                serde_json::to_writer(&mut text, entry)?;
            }
            let mut options = File::options();
            let mut file = options.create(true).append(true).mode(0o600).open(&path)?;
            Ok(file.write_all(&text)?)
        };
        if let Err(error) = append() {
            let error = format!("{error:#}");
            tracing::warn!(error, ?entries, "cannot log a change of the clients");
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.toml"))
    }

    fn lock_file(&self) -> PathBuf {
        self.path.join(".lock")
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

impl Records for Directory {
    fn read(&mut self, known: &mut Known) -> anyhow::Result<bool> {
        // The version is read before the files, so a change in between is read twice but never
        // missed.
        let version = self.version_on_disk();
        if version.is_some() && version == self.version {
            return Ok(false);
        }
        self.version = None;
        self.read_all(known)?;
        // A file that is added manually within the same tick of the file system's clock would not
        // be detected.
        let settled = |seen: &Version| seen.modified.elapsed().is_ok_and(|age| age > TICK);
        // An edit in place would not be detected either.
        self.version = version.filter(settled).filter(|_| known.damage.is_none());
        Ok(true)
    }

    fn change(&mut self, known: &mut Known, decide: Decide<'_>) -> anyhow::Result<bool> {
        let mut lock = self.lock()?;
        let mut has_changed = self.read(known)?;
        known.freed = self.freed();
        for edit in decide(known)? {
            let entries = entries(known, &edit, SystemTime::now());
            match &edit {
                Edit::Put(client) => self.write(client)?,
                Edit::Remove { name, .. } => {
                    let address = known.clients.get(name).map(|client| client.inner_v4);
                    self.remove(name, address)?;
                }
            }
            self.append(&entries);
            known.apply(edit);
            has_changed = true;
            // If the disk has no room for another byte, the directory's time still indicates the
            // change.
            let counted = lock.write_all(b".").is_ok();
            let is_known = counted && known.damage.is_none();
            self.version = if is_known { self.version_on_disk() } else { None };
        }
        Ok(has_changed)
    }

    fn log(&mut self) -> anyhow::Result<Vec<LogEntry>> {
        let mut all = Vec::new();
        for name in [OLD_LOG, LOG] {
            let path = self.path.join(name);
            let text = match fs::read_to_string(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                other => other.with_context(|| format!("cannot read {}", path.display()))?,
            };
            all.extend(text.lines().filter_map(|line| serde_json::from_str(line).ok()));
        }
        Ok(all)
    }
}

fn read_client(name: &str, path: &Path) -> anyhow::Result<Client> {
    let place = || {
        format!(
            "{} is damaged: restore it, or remove it and invite {name} again",
            path.display()
        )
    };
    let text = fs::read_to_string(path).with_context(place)?;
    let file: ClientFile = hawser_config::parse(path, &text).with_context(place)?;
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
        wireguard: file
            .wireguard
            .map(|key| key.parse())
            .transpose()
            .with_context(place)?,
        token: token.map(|hash| hash.0),
        expires: UNIX_EPOCH + Duration::from_secs(file.expires_unix_s),
        ports: file.ports.iter().map(|port| port.0).collect(),
        subnets: file.subnets,
        expiry: file.key_expires_unix_s.map(KeyExpiry),
        is_expiry_logged: file.is_expiry_logged,
        limits: ClientLimits {
            cap: read(file.cap.as_deref(), |text| Some(text.parse::<Speed>().ok()?.0)).with_context(place)?,
            quota: read(file.quota.as_deref(), |text| {
                Some(Bytes(text.parse::<Size>().ok()?.0))
            })
            .with_context(place)?,
        },
    })
}

/// Returns a limit in the form of a client's file.
fn written<T>(own: Own<T>, text: impl FnOnce(T) -> String) -> Option<String> {
    match own {
        Own::AsDefault => None,
        Own::Unlimited => Some(UNLIMITED.to_owned()),
        Own::At(limit) => Some(text(limit)),
    }
}

fn read<T>(text: Option<&str>, parse: impl FnOnce(&str) -> Option<T>) -> anyhow::Result<Own<T>> {
    match text {
        None => Ok(Own::AsDefault),
        Some(UNLIMITED) => Ok(Own::Unlimited),
        Some(text) => {
            let limit = parse(text).with_context(|| format!("{text:?} is not a limit"))?;
            Ok(Own::At(limit))
        }
    }
}

/// File of recently freed addresses: a line for each, with seconds since 1970.
const FREED: &str = ".freed";
/// Log of changes, and its file before, beside the files of clients.
const LOG: &str = ".log";
const OLD_LOG: &str = ".log.old";
/// Length from which the next entry begins a new file. Source: our choice, some 8,000 entries of
/// 130 bytes, and as many in the file before. Units: bytes.
const MAX_LOG: u64 = 1 << 20;
/// Word for no limit, regardless of the hub's default.
const UNLIMITED: &str = "none";

/// Tick of the file system's clock, with a margin. Source: a kernel of 100 Hz (`CONFIG_HZ_100`,
/// linux/kernel/Kconfig.hz) has ticks of 10 ms, and file systems take their times from these.
pub(super) const TICK: Duration = Duration::from_millis(50);
