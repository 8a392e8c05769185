//! Which members a device takes from at this moment, for the daemon of the same device that gives:
//! two devices do not give to each other what they take from each other.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use hawser_config::identity::Code;

/// Says whom a running daemon takes from; what it says ends with the process.
#[derive(Debug)]
pub(crate) struct InUse {
    file: File,
}

impl InUse {
    /// # Errors
    /// The file cannot be made, or another daemon has it.
    pub(crate) fn take(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(FILE);
        let file = File::options().create(true).append(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        file.try_lock()
            .with_context(|| format!("{}: another daemon uses it", path.display()))?;
        file.set_len(0)?;
        Ok(Self { file })
    }

    /// Says it anew.
    pub(crate) fn set(&self, members: impl Iterator<Item = Code>) {
        use std::io::Write;
        let text: String = members.map(|code| format!("{code}\n")).collect();
        let written = self
            .file
            .set_len(0)
            .and_then(|()| (&self.file).write_all(text.as_bytes()));
        if let Err(error) = written {
            tracing::warn!(%error, "cannot say which neighbours are in use");
        }
    }
}

/// Whether a daemon of the device whose files are in `dir` takes from a member.
pub(crate) fn takes_from(dir: &Path, member: Code) -> bool {
    let path = dir.join(FILE);
    let Ok(file) = File::open(&path) else { return false };
    match file.try_lock_shared() {
        // Nobody runs who could have said it.
        Ok(()) | Err(TryLockError::Error(_)) => false,
        Err(TryLockError::WouldBlock) => {
            fs::read_to_string(&path).is_ok_and(|text| text.lines().any(|line| line.parse() == Ok(member)))
        }
    }
}

const FILE: &str = "neighbours.in-use";

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_config::identity::KeyHash;

    #[test]
    fn what_is_in_use_is_known_while_the_daemon_runs() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = [1, 2].map(|byte| KeyHash([byte; 32]).code());
        assert!(!takes_from(dir.path(), one));
        let in_use = InUse::take(dir.path()).unwrap();
        in_use.set([one, other].into_iter());
        assert!(takes_from(dir.path(), one) && takes_from(dir.path(), other));
        in_use.set([other].into_iter());
        assert!(!takes_from(dir.path(), one) && takes_from(dir.path(), other));
        drop(in_use);
        assert!(!takes_from(dir.path(), other));
    }
}
