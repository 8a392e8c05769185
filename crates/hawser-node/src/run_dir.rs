//! The run directory: lock, control socket, journal.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::atomic_file;
use crate::control_socket::is_alive;

/// The run directory of a daemon that runs; one daemon at a time.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    _lock: File,
}

impl RunDir {
    /// Makes the directory if need be and takes it.
    ///
    /// # Errors
    /// Another daemon has it, or the directory cannot be made.
    pub fn take(path: &Path) -> anyhow::Result<Self> {
        atomic_file::private_directory(path)?;
        let file = path.join("hawser.lock");
        let lock = File::options()
            .create(true)
            .append(true)
            .open(&file)
            .with_context(|| format!("cannot open {}", file.display()))?;
        // A daemon that has closed its socket is about to end.
        let deadline = Instant::now() + ENDING;
        let mut attempt = lock.try_lock();
        while matches!(attempt, Err(TryLockError::WouldBlock))
            && Instant::now() < deadline
            && !is_alive(&socket(path))
        {
            std::thread::sleep(Duration::from_millis(20));
            attempt = lock.try_lock();
        }
        match attempt {
            Ok(()) => Ok(Self {
                path: path.to_owned(),
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => {
                bail!(
                    "hawser already runs in {}: `hawser down` first, or use another --run-dir",
                    path.display()
                )
            }
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("cannot lock {}", file.display()))
            }
        }
    }

    /// The control socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        socket(&self.path)
    }

    /// Where the pipe of DHCP clients is.
    #[must_use]
    pub fn dhcp(&self) -> PathBuf {
        self.path.join("dhcp")
    }

    /// The journal of system changes.
    #[must_use]
    pub fn journal(&self) -> PathBuf {
        self.path.join("undo.json")
    }
}

/// Undoing everything takes a few calls of nft.
const ENDING: Duration = Duration::from_secs(3);

/// The control socket of the daemon whose run directory is `path`.
#[must_use]
pub fn socket(path: &Path) -> PathBuf {
    path.join("hawser.sock")
}
