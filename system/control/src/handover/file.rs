//! Sessions in a file of the run directory, for a hub without a service manager.
//!
//! The interface and the socket end with the process, so packets during the pause are lost and
//! retransmitted; NAT remains in the kernel, so no connection is reset.
//!
//! The file contains keys. It is valid for one successor, in the same boot of the machine and
//! within [`GOOD_FOR`]: a second use, for example from a copy of the disk, would protect two
//! packets with the same number. The successor overwrites and removes it before it sends a packet,
//! and every client soon opens a new control connection with fresh keys.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use hawser_config::atomic_file;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{HubSessionCheckpoint, MAX_LEN, VERSION};

/// Content of the file.
#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    moment: Moment,
    sessions: Vec<HubSessionCheckpoint>,
}

/// Time within a boot of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Moment {
    boot: String,
    /// Seconds since the boot, including suspend.
    uptime_s: f64,
}

impl Moment {
    /// Returns the present time.
    ///
    /// # Errors
    /// If `/proc` is missing.
    pub(super) fn now() -> anyhow::Result<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let uptime = fs::read_to_string("/proc/uptime")?;
        let uptime_s = uptime
            .split_whitespace()
            .next()
            .context("/proc/uptime is empty")?;
        Ok(Self {
            boot: boot.trim().to_owned(),
            uptime_s: uptime_s.parse().context("/proc/uptime")?,
        })
    }

    /// Returns whether a file saved at `self` may be used at `now`.
    fn is_good_at(&self, now: &Self) -> bool {
        let age = now.uptime_s - self.uptime_s;
        self.boot == now.boot && (0.0..=GOOD_FOR.as_secs_f64()).contains(&age)
    }
}

/// Writes the sessions for the successor.
///
/// # Errors
/// The disk refuses: nothing was handed over.
pub(super) fn write(
    run_dir: &Path,
    moment: Moment,
    sessions: Vec<HubSessionCheckpoint>,
) -> anyhow::Result<()> {
    let saved = Saved {
        version: VERSION,
        moment,
        sessions,
    };
    let text = serde_json::to_vec(&saved).map(Zeroizing::new)?;
    atomic_file::write(&path(run_dir), &text, 0o600)
}

/// Takes the sessions of the previous process; none without a file.
///
/// # Errors
/// If the file cannot be used or removed; no session is taken.
pub(super) fn take(run_dir: &Path, now: &Moment) -> anyhow::Result<Vec<HubSessionCheckpoint>> {
    let path = path(run_dir);
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(NO_FOLLOW);
    let mut file = match options.open(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("cannot open {}", path.display()))?,
    };
    let mut text = Zeroizing::new(Vec::new());
    let read = (&file).take(MAX_LEN).read_to_end(&mut text);
    // The file is erased first, so that no other process can use it.
    erase(&mut file, &path).with_context(|| format!("cannot remove {}", path.display()))?;
    read?;
    let saved: Saved = serde_json::from_slice(&text).context("damaged")?;
    if saved.version != VERSION {
        bail!(
            "it has version {}, and this program needs version {VERSION}",
            saved.version
        );
    }
    if !saved.moment.is_good_at(now) {
        bail!("it is older than {} s, or from another boot", GOOD_FOR.as_secs());
    }
    Ok(saved.sessions)
}

/// Overwrites a file with zeros and removes it.
fn erase(file: &mut File, path: &Path) -> std::io::Result<()> {
    let length = file.metadata()?.len().min(MAX_LEN);
    std::io::Seek::rewind(file)?;
    std::io::copy(&mut std::io::repeat(0).take(length), file)?;
    file.flush()?;
    file.sync_data()?;
    fs::remove_file(path)?;
    if let Some(directory) = path.parent() {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

fn path(run_dir: &Path) -> PathBuf {
    run_dir.join("sessions")
}

/// Maximum age of a usable file. Source: a restart takes less; clients without an answer for this
/// time use another hub, or have started another session.
const GOOD_FOR: Duration = Duration::from_secs(300);
const NO_FOLLOW: i32 = hawser_linux::process::NO_FOLLOW;

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(boot: &str, uptime_s: f64) -> Moment {
        Moment {
            boot: boot.to_owned(),
            uptime_s,
        }
    }

    #[test]
    fn is_good_once_soon_and_on_the_same_boot() {
        let dir = tempfile::tempdir().expect("a directory");
        let cases = [
            (moment("a", 100.0), true),
            (moment("a", 400.0), true),
            (moment("a", 400.1), false),
            (moment("a", 99.0), false),
            (moment("b", 100.0), false),
        ];
        for (now, is_good) in cases {
            write(dir.path(), moment("a", 100.0), Vec::new()).expect("written");
            let mode = std::os::unix::fs::PermissionsExt::mode(
                &fs::metadata(path(dir.path())).expect("a file").permissions(),
            );
            assert_eq!(mode & 0o777, 0o600);
            assert_eq!(take(dir.path(), &now).is_ok(), is_good, "{now:?}");
            assert!(!path(dir.path()).exists(), "it is good for one");
            assert!(take(dir.path(), &now).expect("no file is no error").is_empty());
        }
        fs::write(path(dir.path()), "half").expect("written");
        assert!(take(dir.path(), &moment("a", 0.0)).is_err());
        assert!(!path(dir.path()).exists());
        let now = Moment::now().expect("the present");
        assert!(now.is_good_at(&now));
    }

    #[test]
    fn follows_no_link() {
        let dir = tempfile::tempdir().expect("a directory");
        let other = dir.path().join("other");
        fs::write(&other, "of somebody else").expect("written");
        std::os::unix::fs::symlink(&other, path(dir.path())).expect("a link");
        assert!(take(dir.path(), &moment("a", 0.0)).is_err());
        assert_eq!(fs::read(&other).expect("untouched"), b"of somebody else");
    }
}
