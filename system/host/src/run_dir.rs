//! Run directories, which contain lock, control socket and journal: their paths by role, their
//! permitted owners, and which hub serves a store of clients.
//!
//! Commands, daemons and units use the paths defined here, so that a command reaches the right
//! daemon.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hawser_config::atomic_file;

use crate::control_socket::is_alive;

pub use crate::ownership::check;

/// Role of a daemon. A machine may run one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A client of a hub, or direct mode: `/run/hawser`.
    Client,
    /// A hub: `/run/hawser-hub`.
    Hub,
    /// Sharing of uplinks with neighbours: `/run/hawser-share`.
    Share,
    /// Repeater, one side: `/run/hawser-repeat`.
    Repeater,
}

impl Role {
    /// Returns the default run directory of a daemon of this role.
    #[must_use]
    pub fn run_dir(self) -> &'static Path {
        Path::new(match self {
            Self::Client => "/run/hawser",
            Self::Hub => "/run/hawser-hub",
            Self::Share => "/run/hawser-share",
            Self::Repeater => "/run/hawser-repeat",
        })
    }
}

/// Run directory of a running daemon; one daemon uses it at a time.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    _lock: File,
}

impl RunDir {
    /// Creates the directory if necessary and takes it.
    ///
    /// # Errors
    /// Another daemon uses it, another user could write in it ([`check`]), or it cannot be created.
    pub fn take(path: &Path) -> anyhow::Result<Self> {
        prepare(path)?;
        let file = path.join("hawser.lock");
        let lock = take_lock(&file, &socket(path))?.with_context(|| {
            format!(
                "hawser is already running in {}: run `hawser down` first, or use another --run-dir",
                path.display()
            )
        })?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Returns the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the control socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        socket(&self.path)
    }

    /// Returns the path of the pipe of DHCP clients.
    #[must_use]
    pub fn dhcp(&self) -> PathBuf {
        self.path.join("dhcp")
    }

    /// Returns the directory of wpa_supplicant's sockets.
    #[must_use]
    pub fn radio(&self) -> PathBuf {
        self.path.join("radio")
    }

    /// Returns the path of the journal of system changes.
    #[must_use]
    pub fn journal(&self) -> PathBuf {
        journal(&self.path)
    }
}

/// Creates a run directory if necessary, accessible to its owner only.
///
/// # Errors
/// It cannot be created, or [`check`] refuses it.
pub fn prepare(path: &Path) -> anyhow::Result<()> {
    // Check before as well: the path may be a symbolic link.
    check(path)?;
    atomic_file::private_directory(path)?;
    check(path)
}

/// Returns the path of the journal of system changes of the daemon whose run directory is `path`.
#[must_use]
pub fn journal(path: &Path) -> PathBuf {
    path.join("undo.json")
}

/// Returns the path of the control socket of the daemon whose run directory is `path`.
#[must_use]
pub fn socket(path: &Path) -> PathBuf {
    path.join("hawser.sock")
}

/// A hub's claim on the clients in its directory: while it is held, no other hub serves them, and
/// commands that change them find the hub.
#[derive(Debug)]
pub struct HubClaim {
    _lock: File,
}

impl HubClaim {
    /// Claims the clients in `dir` for the hub whose run directory is `run_dir`.
    ///
    /// # Errors
    /// Another hub serves them, or the claim cannot be written.
    pub fn take(dir: &Path, run_dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(CLAIM);
        let run_dir = std::path::absolute(run_dir)?;
        let Some(mut lock) = take_lock(&path, &socket(&run_dir))? else {
            let other = fs::read(&path).unwrap_or_default();
            bail!(
                "another hub serves the clients in {} (its run directory is {})",
                dir.display(),
                Path::new(std::ffi::OsStr::from_bytes(&other)).display()
            );
        };
        let written = lock
            .set_len(0)
            .and_then(|()| lock.write_all(run_dir.as_os_str().as_bytes()));
        written.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { _lock: lock })
    }
}

/// Returns the run directory of the hub that serves the clients in `dir`; `None` if none does.
///
/// # Errors
/// It cannot be determined.
pub fn hub_of(dir: &Path) -> anyhow::Result<Option<PathBuf>> {
    let path = dir.join(CLAIM);
    let unclear = || {
        format!(
            "cannot determine from {} whether a hub is running",
            path.display()
        )
    };
    let mut lock = match File::open(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.with_context(unclear)?,
    };
    match lock.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => {
            let mut run_dir = Vec::new();
            lock.read_to_end(&mut run_dir).with_context(unclear)?;
            Ok(Some(PathBuf::from(std::ffi::OsString::from_vec(run_dir))))
        }
        Err(TryLockError::Error(error)) => Err(error).with_context(unclear),
    }
}

/// Takes the lock in `path`; returns `None` if a daemon holds it and does not end. A daemon that
/// has closed its `socket` is about to end, and is waited for.
fn take_lock(path: &Path, socket: &Path) -> anyhow::Result<Option<File>> {
    let lock = File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(NO_FOLLOW)
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    let deadline = Instant::now() + ENDING;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(Some(lock)),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline && !is_alive(socket) => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
    }
}

/// Lock file beside the store of clients.
const CLAIM: &str = "hub.lock";
/// Maximum time for the end of a daemon, which undoes its changes by a few calls of nft. Source:
/// our choice; after a shorter one the next daemon finds the lock taken, a longer one hides a
/// daemon that does not end.
const ENDING: Duration = Duration::from_secs(3);
/// `O_NOFOLLOW`: a symbolic link to another file is not opened as the lock.
const NO_FOLLOW: i32 = hawser_linux::process::NO_FOLLOW;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn refusal(path: &Path) -> String {
        let error = RunDir::take(path).unwrap_err();
        let said = format!("{error:#}");
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    }

    fn allow(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_directory_that_others_may_write_is_refused_and_so_is_one_below_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run");
        fs::create_dir(&path).unwrap();
        for mode in [0o770, 0o707, 0o1777] {
            allow(&path, mode);
            assert!(refusal(&path).contains("it may be written by others"), "{mode:o}");
        }
        allow(&path, 0o777);
        assert!(refusal(&path.join("below")).contains("run may be written by others"));
        assert!(!path.join("below").exists());
        allow(&path, 0o1777);
        drop(RunDir::take(&path.join("below")).unwrap());
        let made = fs::metadata(path.join("below")).unwrap();
        assert_eq!(made.permissions().mode() & 0o7777, 0o700);
        allow(&path, 0o755);
        drop(RunDir::take(&path).unwrap());
    }

    #[test]
    fn a_link_or_a_file_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let (real, link) = (place.path().join("real"), place.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(refusal(&link).contains("symbolic link"));
        let file = place.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(refusal(&file).contains("not a directory"));
        // A symbolic link in place of the lock is not followed.
        std::os::unix::fs::symlink(&file, real.join("hawser.lock")).unwrap();
        assert!(refusal(&real).contains("cannot open"));
    }

    #[test]
    fn what_belongs_to_somebody_else_is_refused() {
        if !hawser_linux::process::is_root() {
            hawser_testing::skip("needs root");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run");
        fs::create_dir(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
        assert!(refusal(&path).contains("it belongs to user 65534"));
        assert!(refusal(&path.join("below")).contains("run belongs to user 65534"));
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        std::os::unix::fs::symlink(place.path(), path.join("away")).unwrap();
        std::os::unix::fs::lchown(path.join("away"), Some(65_534), None).unwrap();
        assert!(refusal(&path.join("away/x")).contains("away belongs to user 65534"));
    }

    #[test]
    fn a_store_has_one_hub_and_commands_find_it() {
        let place = tempfile::tempdir().unwrap();
        let (dir, one, other) = (place.path(), place.path().join("one"), place.path().join("other"));
        assert_eq!(hub_of(dir).unwrap(), None);
        let claim = HubClaim::take(dir, &one).unwrap();
        assert_eq!(hub_of(dir).unwrap(), Some(one.clone()));
        let error = format!("{:#}", HubClaim::take(dir, &other).unwrap_err());
        assert!(error.contains("another hub") && error.contains("one"), "{error}");
        drop(claim);
        // A process that another test starts inherits the lock until it executes its program.
        let is_free = || hub_of(dir).unwrap().is_none();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while !is_free() {
            assert!(std::time::Instant::now() < deadline, "nobody has it");
        }
        drop(HubClaim::take(dir, &other).unwrap());
    }
}
