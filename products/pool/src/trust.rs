//! Trusted devices of an owner: members whose uplinks the device uses, and takers to which it
//! gives.
//!
//! A single file next to the key, readable by its owner only; commands change it, and daemons
//! reload it when it has changed.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use hawser_config::atomic_file;
use hawser_config::identity::Code;
use hawser_config::invitation::check_name;
use serde::{Deserialize, Serialize};

/// Contents of the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Trust {
    /// Members whose uplinks this device uses.
    #[serde(rename = "member", skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Known>,
    /// Takers to which this device relays.
    #[serde(rename = "taker", skip_serializing_if = "Vec::is_empty")]
    pub takers: Vec<Known>,
}

/// Trusted device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// Name of the device on this machine.
    pub name: String,
    /// Code of the device.
    pub code: Code,
    /// Permitted addresses of a taker's hub. If empty, the first addresses that the taker names are
    /// permitted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hubs: Vec<SocketAddr>,
}

impl Trust {
    /// Reads the file in a directory; without one no device is trusted.
    ///
    /// # Errors
    /// If it cannot be read or is damaged.
    pub fn load(dir: &Path) -> anyhow::Result<Self> {
        let path = file(dir);
        match fs::read_to_string(&path) {
            Ok(text) => hawser_config::parse(&path, &text)
                .with_context(|| format!("{} is damaged: repair or remove it", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Changes the file, one at a time.
    ///
    /// # Errors
    /// If `change` fails, or the file cannot be read or written; the file remains unchanged.
    pub fn update<R>(dir: &Path, change: impl FnOnce(&mut Self) -> anyhow::Result<R>) -> anyhow::Result<R> {
        atomic_file::private_directory(dir)?;
        let path = dir.join(LOCK);
        let lock = File::options().create(true).append(true).mode(0o600).open(&path);
        let lock = lock.with_context(|| format!("cannot open {}", path.display()))?;
        lock.lock()
            .with_context(|| format!("cannot lock {}", path.display()))?;
        let before = Self::load(dir)?;
        let mut trust = before.clone();
        let result = change(&mut trust)?;
        if trust != before {
            atomic_file::write(&file(dir), toml::to_string(&trust)?.as_bytes(), 0o600)?;
        }
        Ok(result)
    }

    /// Trusts a member, and replaces one with the same name.
    ///
    /// # Errors
    /// The name cannot be used, or there are too many.
    pub fn trust_member(&mut self, name: &str, code: Code) -> anyhow::Result<()> {
        put(&mut self.members, name, code, Vec::new())
    }

    /// Permits a taker, and replaces one with the same name; `hubs` as in [`Known`].
    ///
    /// # Errors
    /// The name cannot be used, or there are too many.
    pub fn allow(&mut self, name: &str, code: Code, hubs: Vec<SocketAddr>) -> anyhow::Result<()> {
        put(&mut self.takers, name, code, hubs)
    }

    /// Returns the member with that key.
    #[must_use]
    pub fn member(&self, code: Code) -> Option<&Known> {
        self.members.iter().find(|known| known.code == code)
    }

    /// Returns the taker with that key.
    #[must_use]
    pub fn taker(&self, code: Code) -> Option<&Known> {
        self.takers.iter().find(|known| known.code == code)
    }
}

/// Removes the device with that name.
///
/// # Errors
/// If there is none.
pub fn forget(list: &mut Vec<Known>, name: &str) -> anyhow::Result<Known> {
    match list.iter().position(|known| known.name == name) {
        Some(at) => Ok(list.remove(at)),
        None => bail!("there is no device {name}"),
    }
}

fn put(list: &mut Vec<Known>, name: &str, code: Code, hubs: Vec<SocketAddr>) -> anyhow::Result<()> {
    if check_name(name).is_err() {
        bail!("{name:?} is not a name: expected 1 to 32 of a-z, 0-9, - and _");
    }
    list.retain(|known| known.name != name && known.code != code);
    if list.len() >= MAX_KNOWN {
        bail!("{MAX_KNOWN} devices are listed, which is the maximum: remove one first");
    }
    let name = name.to_owned();
    list.push(Known { name, code, hubs });
    Ok(())
}

/// Trust file, read again when it has changed.
#[derive(Debug)]
pub(crate) struct Watched {
    dir: PathBuf,
    state: Option<(u64, i64, i64)>,
    trust: Trust,
}

impl Watched {
    pub(crate) fn open(dir: &Path) -> anyhow::Result<Self> {
        let mut watched = Self {
            dir: dir.to_owned(),
            state: None,
            trust: Trust::load(dir)?,
        };
        watched.state = watched.stamp();
        Ok(watched)
    }

    pub(crate) fn trust(&self) -> &Trust {
        &self.trust
    }

    /// Reads the file again; returns whether its contents have changed. A damaged file changes
    /// nothing.
    pub(crate) fn refresh(&mut self) -> bool {
        let state = self.stamp();
        if state == self.state {
            return false;
        }
        self.state = state;
        match Trust::load(&self.dir) {
            Ok(trust) => std::mem::replace(&mut self.trust, trust) != self.trust,
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "cannot read the list of trusted devices: using the previous one"
                );
                false
            }
        }
    }

    fn stamp(&self) -> Option<(u64, i64, i64)> {
        let found = fs::metadata(file(&self.dir)).ok()?;
        Some((found.ino(), found.mtime(), found.mtime_nsec()))
    }
}

fn file(dir: &Path) -> PathBuf {
    dir.join("neighbours.toml")
}

const LOCK: &str = "neighbours.lock";
/// Maximum number of known devices, more than a person can distinguish. Source: our choice, a bound
/// on a file that is read in each round.
const MAX_KNOWN: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_config::identity::KeyHash;
    use std::os::unix::fs::PermissionsExt;

    fn code(byte: u8) -> Code {
        KeyHash([byte; 32]).code()
    }

    #[test]
    fn who_is_trusted_survives_and_others_cannot_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut watched = Watched::open(dir.path()).unwrap();
        assert!(!watched.refresh());
        let hub = "192.0.2.1:443".parse().unwrap();
        Trust::update(dir.path(), |trust| {
            trust.trust_member("bob", code(1))?;
            trust.allow("alice", code(2), vec![hub])
        })
        .unwrap();
        assert!(watched.refresh() && !watched.refresh());
        assert_eq!(watched.trust().member(code(1)).unwrap().name, "bob");
        assert_eq!(watched.trust().taker(code(2)).unwrap().hubs, [hub]);
        assert_eq!(watched.trust().taker(code(1)), None, "who gives may not take");
        let mode = fs::metadata(file(dir.path())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        Trust::update(dir.path(), |trust| forget(&mut trust.takers, "alice")).unwrap();
        assert!(watched.refresh());
        assert_eq!(watched.trust().taker(code(2)), None);
    }

    #[test]
    fn a_name_and_a_device_stand_once() {
        let mut trust = Trust::default();
        trust.allow("alice", code(1), vec![]).unwrap();
        trust.allow("alice", code(2), vec![]).unwrap();
        trust.allow("carol", code(2), vec![]).unwrap();
        assert_eq!(trust.takers.len(), 1);
        assert!(trust.allow("Alice B", code(3), vec![]).is_err());
        assert!(forget(&mut trust.takers, "alice").is_err());
    }

    #[test]
    fn a_damaged_file_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        Trust::update(dir.path(), |trust| trust.trust_member("bob", code(1))).unwrap();
        let mut watched = Watched::open(dir.path()).unwrap();
        fs::write(file(dir.path()), "nonsense").unwrap();
        assert!(!watched.refresh());
        assert!(watched.trust().member(code(1)).is_some());
        assert!(Trust::load(dir.path()).is_err());
    }
}
