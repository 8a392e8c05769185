//! Members whose uplinks this device uses, published for the giving daemon of the same device: two
//! devices must not relay for each other in both directions.
//!
//! A member counts for [`LINGERS`] after its last use. Otherwise a momentary failure of a path
//! would let the other device use the opposite direction, and the first one would then be rejected
//! permanently.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant as Clock};

use anyhow::Context;
use hawser_config::atomic_file;
use hawser_config::identity::Code;

/// Published list of members that a running daemon uses; it is valid while the process holds a
/// lock.
#[derive(Debug)]
pub(crate) struct InUse {
    list: PathBuf,
    /// Expiry of each member.
    until: BTreeMap<Code, Clock>,
    _lock: File,
}

impl InUse {
    /// Takes the lock, with an empty list.
    ///
    /// # Errors
    /// If the file cannot be created, or another daemon has locked it.
    pub(crate) fn take(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(LOCK);
        let file = File::options().create(true).append(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        file.try_lock()
            .with_context(|| format!("{}: another daemon is using it", path.display()))?;
        let in_use = Self {
            list: dir.join(LIST),
            until: BTreeMap::new(),
            _lock: file,
        };
        in_use.write()?;
        Ok(in_use)
    }

    /// Publishes the members that are used at `now` or were used recently.
    pub(crate) fn set(&mut self, members: impl Iterator<Item = Code>, now: Clock) {
        let before: Vec<Code> = self.until.keys().copied().collect();
        self.until.extend(members.map(|member| (member, now + LINGERS)));
        self.until.retain(|_, until| *until > now);
        if self.until.keys().eq(before.iter()) {
            return;
        }
        if let Err(error) = self.write() {
            tracing::warn!(
                error = format!("{error:#}"),
                "cannot publish which neighbours are in use"
            );
        }
    }

    /// Replaces the list atomically, so that a reader never sees a part of it.
    fn write(&self) -> anyhow::Result<()> {
        let text: String = self.until.keys().map(|code| format!("{code}\n")).collect();
        atomic_file::write(&self.list, text.as_bytes(), 0o600)
    }
}

/// Returns whether a daemon of the device with the files in `dir` takes from a member.
pub(crate) fn takes_from(dir: &Path, member: Code) -> bool {
    let Ok(file) = File::open(dir.join(LOCK)) else {
        return false;
    };
    match file.try_lock_shared() {
        // No running daemon has published the list.
        Ok(()) | Err(TryLockError::Error(_)) => false,
        Err(TryLockError::WouldBlock) => {
            let list = fs::read_to_string(dir.join(LIST));
            list.is_ok_and(|text| text.lines().any(|line| line.parse() == Ok(member)))
        }
    }
}

const LOCK: &str = "neighbours.in-use.lock";
const LIST: &str = "neighbours.in-use";
/// Lifetime of a member after its last use: a failed path and a restarted member recover within
/// seconds (`docs/manual/neighbours.md`), and a request for the opposite direction is repeated
/// after at most 15 s.
const LINGERS: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_config::identity::KeyHash;

    #[test]
    fn what_is_in_use_is_known_while_the_daemon_runs() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = [1, 2].map(|byte| KeyHash([byte; 32]).code());
        assert!(!takes_from(dir.path(), one));
        let mut in_use = InUse::take(dir.path()).unwrap();
        let now = Clock::now();
        in_use.set([one, other].into_iter(), now);
        assert!(takes_from(dir.path(), one) && takes_from(dir.path(), other));
        in_use.set([other].into_iter(), now + LINGERS / 2);
        assert!(takes_from(dir.path(), one), "it may be back in a moment");
        in_use.set([other].into_iter(), now + LINGERS);
        assert!(!takes_from(dir.path(), one) && takes_from(dir.path(), other));
        drop(in_use);
        assert!(!takes_from(dir.path(), other));
    }
}
