//! Run directories of laboratories. Each holds a lock of its keeper process, a control socket and
//! the daemons' files.

use std::fs::{DirBuilder, File, Metadata, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use hawser_linux::{clock, process};
use hawser_units::Duration;

/// A running laboratory.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) name: String,
    directory: PathBuf,
}

impl Found {
    pub(super) fn socket(&self) -> PathBuf {
        self.directory.join(SOCKET)
    }

    /// Waits until the keeper process has ended.
    ///
    /// # Errors
    /// When the keeper does not end.
    pub(super) fn wait_until_ended(&self) -> anyhow::Result<()> {
        let deadline = clock::now() + TIMEOUT;
        while is_locked(&self.directory) {
            ensure!(
                clock::now() < deadline,
                "{} has not ended within {} s",
                self.name,
                TIMEOUT.as_secs()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// The run directory of this process, removed with this value.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) name: String,
    directory: PathBuf,
    _lock: File,
}

impl Instance {
    /// Acquires the name, and removes the directories of killed keepers.
    ///
    /// # Errors
    /// When the name is invalid or in use, or the directory belongs to another user.
    pub(super) fn take(base: &Path, name: &str) -> anyhow::Result<Self> {
        check_name(name)?;
        make_private(base)?;
        // Serializes concurrent starts, so that none removes a directory that another has just
        // created.
        let starting = File::create(base.join(STARTING)).context("cannot write into the run directory")?;
        starting.lock().context("cannot lock the run directory")?;
        remove_leftovers(base);
        let directory = base.join(name);
        if directory.exists() {
            bail!(
                "a laboratory called {name} runs already; end it with `hawser-lab live stop --name {name}`, or give another --name"
            );
        }
        make_private(&directory)?;
        let lock = File::create(directory.join(LOCK)).context("cannot create the lock")?;
        lock.lock().context("cannot acquire the lock")?;
        Ok(Self {
            name: name.to_owned(),
            directory,
            _lock: lock,
        })
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.directory.join(SOCKET)
    }

    /// Returns the directory of the daemons' files, unless `--keep` names another.
    pub(super) fn files(&self) -> PathBuf {
        self.directory.join("files")
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // The next start removes the directory if this fails.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Returns the parent of all run directories.
pub(super) fn base(asked: Option<&Path>) -> PathBuf {
    if let Some(asked) = asked {
        return asked.to_owned();
    }
    if process::is_root() {
        return PathBuf::from("/run/hawser-lab");
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(own) => PathBuf::from(own).join("hawser-lab"),
        None => std::env::temp_dir().join(format!("hawser-lab-of-{}", process::user())),
    }
}

/// Returns the laboratory of that name, or the only one; otherwise the reason and the remedy.
///
/// # Errors
/// When the directory cannot be read.
pub(super) fn find(base: &Path, name: Option<&str>) -> anyhow::Result<Result<Found, String>> {
    let mut running = running(base)?;
    let names: Vec<&str> = running.iter().map(|found| found.name.as_str()).collect();
    let chosen = match (name, names.as_slice()) {
        (_, []) => return Ok(Err(NONE.to_owned())),
        (Some(name), all) => match all.iter().position(|running| *running == name) {
            Some(index) => index,
            None => {
                let problem = format!("no laboratory called {name:?} runs; there is {}", all.join(", "));
                return Ok(Err(problem));
            }
        },
        (None, [_]) => 0,
        (None, all) => {
            let problem = format!(
                "{} laboratories run: {}; say which with --name",
                all.len(),
                all.join(", ")
            );
            return Ok(Err(problem));
        }
    };
    Ok(Ok(running.swap_remove(chosen)))
}

fn running(base: &Path) -> anyhow::Result<Vec<Found>> {
    let entries = match std::fs::read_dir(base) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("cannot read {}", base.display()))?,
    };
    let mut running = Vec::new();
    for entry in entries.flatten() {
        let (name, directory) = (entry.file_name(), entry.path());
        if let Ok(name) = name.into_string()
            && is_locked(&directory)
        {
            running.push(Found { name, directory });
        }
    }
    running.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(running)
}

/// Returns whether a keeper holds the lock of a run directory.
fn is_locked(directory: &Path) -> bool {
    let Ok(lock) = File::open(directory.join(LOCK)) else {
        return false;
    };
    matches!(lock.try_lock(), Err(TryLockError::WouldBlock))
}

fn remove_leftovers(base: &Path) {
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        if !is_locked(&entry.path()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn make_private(directory: &Path) -> anyhow::Result<()> {
    let cannot = || format!("cannot create {}", directory.display());
    let made = DirBuilder::new().mode(PRIVATE).recursive(true).create(directory);
    made.with_context(cannot)?;
    let found = std::fs::symlink_metadata(directory).with_context(cannot)?;
    ensure!(
        is_private(&found),
        "{} must be a directory of this user that nobody else may enter (mode 0700); remove it, or give another --run-dir",
        directory.display()
    );
    Ok(())
}

fn is_private(found: &Metadata) -> bool {
    found.is_dir() && found.uid() == process::user() && found.mode() & 0o077 == 0
}

fn check_name(name: &str) -> anyhow::Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
    ensure!(
        !name.starts_with('.') && (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_plain),
        "{name:?} cannot be the name of a laboratory; give 1 to {MAX_NAME} letters, digits, -, _ or . with --name"
    );
    Ok(())
}

const LOCK: &str = "lock";
const SOCKET: &str = "control";
const STARTING: &str = ".starting";
/// Mode of a directory that only its owner may use.
///
/// Source: XDG Base Directory Specification, `XDG_RUNTIME_DIR`.
const PRIVATE: u32 = 0o700;
/// Maximum length of a name. Source: unix(7), a socket's path has at most 107 bytes.
const MAX_NAME: usize = 40;
/// Timeout for an answer: a person's limit of attention. Commands and the stop take less than 1 s.
///
/// Source: Nielsen 1993, Usability Engineering, section 5.5.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
const NONE: &str = "no laboratory runs; start one with `hawser-lab live SCENARIO`";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_one_is_found_and_of_several_the_named_one() {
        let base = tempfile::tempdir().expect("a directory");
        let base = base.path().join("run");
        let find = |name: Option<&str>| find(&base, name).expect("readable").map(|found| found.name);
        assert_eq!(find(None), Err(NONE.to_owned()));
        let first = Instance::take(&base, "one").expect("free");
        assert_eq!(find(None), Ok("one".to_owned()));
        let problem = find(Some("two")).expect_err("there is none");
        assert!(problem.ends_with("there is one"), "{problem}");
        let second = Instance::take(&base, "two").expect("free");
        let problem = find(None).expect_err("which?");
        assert!(problem.contains("2 laboratories run: one, two; say which with --name"));
        assert_eq!(find(Some("two")), Ok("two".to_owned()));
        let problem = Instance::take(&base, "one").expect_err("taken").to_string();
        assert!(problem.contains("runs already"), "{problem}");
        drop((first, second));
        assert_eq!(find(None), Err(NONE.to_owned()));
    }

    #[test]
    fn what_a_killed_keeper_left_is_not_found_and_the_next_start_removes_it() {
        let base = tempfile::tempdir().expect("a directory");
        let base = base.path().join("run");
        make_private(&base.join("old")).expect("made");
        std::fs::write(base.join("old/lock"), "").expect("written");
        std::fs::write(base.join("old/control"), "").expect("written");
        assert!(find(&base, None).expect("readable").is_err());
        let next = Instance::take(&base, "new").expect("free");
        assert!(!base.join("old").exists());
        assert!(base.join("new").exists());
        drop(next);
        assert!(!base.join("new").exists());
    }

    #[test]
    fn a_directory_that_others_may_enter_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let base = tempfile::tempdir().expect("a directory");
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(base.path(), open).expect("set");
        let problem = Instance::take(base.path(), "one").expect_err("open").to_string();
        assert!(problem.contains("mode 0700"), "{problem}");
        for name in ["", ".x", "a/b", "ü"] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
