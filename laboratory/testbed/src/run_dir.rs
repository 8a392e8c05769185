//! Directory of the process's files, removed at the end, or by the next start if the process was
//! killed.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// A directory for the files of this process (configurations, sockets, logs).
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    is_retained: bool,
}

impl RunDir {
    /// Creates the directory: at `keep`, where it stays, or as a temporary directory that is
    /// removed with this value.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn new(keep: Option<&Path>) -> anyhow::Result<Self> {
        remove_stale();
        let path = match keep {
            Some(path) => path.to_owned(),
            None => std::env::temp_dir().join(format!("{PREFIX}{}", std::process::id())),
        };
        std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let path = path.canonicalize()?;
        Ok(Self {
            path,
            is_retained: keep.is_some(),
        })
    }

    /// Returns the absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the directory is kept.
    #[must_use]
    pub fn is_retained(&self) -> bool {
        self.is_retained
    }

    /// Creates a new subdirectory whose name starts with `name`.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn subdirectory(&self, name: &str) -> io::Result<PathBuf> {
        for n in 0.. {
            let path = self.path.join(format!("{name}-{n}"));
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Returns the latest [`subdirectory`](Self::subdirectory) of that name; `None` if there is
    /// none.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn latest(&self, name: &str) -> io::Result<Option<PathBuf>> {
        let mut latest = None;
        for n in 0.. {
            let path = self.path.join(format!("{name}-{n}"));
            if !path.try_exists()? {
                break;
            }
            latest = Some(path);
        }
        Ok(latest)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if !self.is_retained {
            // The next start removes the directory if this fails.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Removes the directories of processes that no longer exist.
fn remove_stale() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        let is_pid = !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit());
        if is_pid && !Path::new("/proc").join(pid).exists() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

const PREFIX: &str = "hawser-lab-";
