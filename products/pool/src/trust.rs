//! Whom the owner of a device trusts: members whose ways out it takes, and takers to whom it gives.
//!
//! One file beside the key, that only its owner reads; commands change it, daemons look at it again
//! when it has changed.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use hawser_config::atomic_file;
use hawser_config::identity::Code;
use hawser_config::invitation::check_name;
use serde::{Deserialize, Serialize};

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Trust {
    /// Whose ways out this device takes.
    #[serde(rename = "member", skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Known>,
    /// To whom it gives.
    #[serde(rename = "taker", skip_serializing_if = "Vec::is_empty")]
    pub takers: Vec<Known>,
}

/// A device that is trusted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// What its owner is called here.
    pub name: String,
    /// Which device it is.
    pub code: Code,
    /// Of a taker: the addresses of its hub that consent was given for; those that it names first,
    /// while there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hubs: Vec<SocketAddr>,
}

impl Trust {
    /// Reads the file in a directory; nobody is trusted where there is none.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn load(dir: &Path) -> anyhow::Result<Self> {
        let path = file(dir);
        match fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text)
                .with_context(|| format!("{} is damaged: mend or remove it", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Changes the file, one at a time.
    ///
    /// # Errors
    /// `change` refuses, or the file cannot be read or written: it is as it was.
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

    /// Trusts a member, in place of another of that name.
    ///
    /// # Errors
    /// The name cannot be used, or there are too many.
    pub fn trust_member(&mut self, name: &str, code: Code) -> anyhow::Result<()> {
        put(&mut self.members, name, code, Vec::new())
    }

    /// Gives to a taker, in place of another of that name; `hubs` as in [`Known`].
    ///
    /// # Errors
    /// The name cannot be used, or there are too many.
    pub fn allow(&mut self, name: &str, code: Code, hubs: Vec<SocketAddr>) -> anyhow::Result<()> {
        put(&mut self.takers, name, code, hubs)
    }

    /// The member with that key.
    #[must_use]
    pub fn member(&self, code: Code) -> Option<&Known> {
        self.members.iter().find(|known| known.code == code)
    }

    /// The taker with that key.
    #[must_use]
    pub fn taker(&self, code: Code) -> Option<&Known> {
        self.takers.iter().find(|known| known.code == code)
    }
}

/// Takes the one of that name out.
///
/// # Errors
/// There is none.
pub fn forget(list: &mut Vec<Known>, name: &str) -> anyhow::Result<Known> {
    match list.iter().position(|known| known.name == name) {
        Some(at) => Ok(list.remove(at)),
        None => bail!("nobody is called {name} here"),
    }
}

fn put(list: &mut Vec<Known>, name: &str, code: Code, hubs: Vec<SocketAddr>) -> anyhow::Result<()> {
    if check_name(name).is_err() {
        bail!("{name:?} cannot be a name: 1 to 32 of a-z, 0-9, - and _");
    }
    list.retain(|known| known.name != name && known.code != code);
    if list.len() >= MOST_KNOWN {
        bail!("{MOST_KNOWN} devices are known already: forget one first");
    }
    let name = name.to_owned();
    list.push(Known { name, code, hubs });
    Ok(())
}

/// The file, looked at again when it has changed.
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
        watched.state = watched.look();
        Ok(watched)
    }

    pub(crate) fn trust(&self) -> &Trust {
        &self.trust
    }

    /// True when it says something else now. What is damaged changes nothing.
    pub(crate) fn refresh(&mut self) -> bool {
        let state = self.look();
        if state == self.state {
            return false;
        }
        self.state = state;
        match Trust::load(&self.dir) {
            Ok(trust) => std::mem::replace(&mut self.trust, trust) != self.trust,
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "who is trusted stays as it was");
                false
            }
        }
    }

    fn look(&self) -> Option<(u64, i64, i64)> {
        let found = fs::metadata(file(&self.dir)).ok()?;
        Some((found.ino(), found.mtime(), found.mtime_nsec()))
    }
}

fn file(dir: &Path) -> PathBuf {
    dir.join("neighbours.toml")
}

const LOCK: &str = "neighbours.lock";
/// More than a person keeps apart.
const MOST_KNOWN: usize = 256;

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
