//! The service manager: when the daemon is ready, why it ends, and what is kept for its successor.
//!
//! A restart ends one process before the next one starts. What must stay open meanwhile (an
//! interface, a socket that goes on receiving, the state of sessions) goes to the service manager,
//! which hands it to the next process. Each descriptor has a name, and descriptors are worth
//! nothing without the others of their set, so the successor takes all that it knows and closes the
//! rest.
//!
//! Source: sd_notify(3), sd_listen_fds(3), `FileDescriptorStoreMax=` in systemd.service(5).

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Once;
use std::time::Duration;

use sd_notify::NotifyState;

use crate::check;
use crate::system::program::run;
use crate::wait::wait_readable;

/// How long the service manager may take to take descriptors over: it is one process for the whole
/// machine.
const TAKES: Duration = Duration::from_secs(2);

/// A descriptor that outlived the process before.
#[derive(Debug)]
pub struct Kept {
    /// What it is.
    pub name: String,
    /// The descriptor.
    pub descriptor: OwnedFd,
}

/// Takes what the service manager has kept for this process; nothing where there is no such
/// manager. The first call in a process takes everything.
///
/// # Errors
/// The environment contradicts itself: nothing was taken.
pub fn take_kept() -> io::Result<Vec<Kept>> {
    static TAKEN: Once = Once::new();
    let mut kept = Ok(Vec::new());
    TAKEN.call_once(|| {
        kept = sd_notify::listen_fds_with_names().map(|found| {
            found
                .map(|(number, name)| Kept {
                    name,
                    // SAFETY: the manager passed this descriptor to this process, which it names by
                    // LISTEN_PID, and nobody else takes it: this runs once.
                    descriptor: unsafe { OwnedFd::from_raw_fd(number) },
                })
                .collect()
        });
    });
    kept
}

/// The names of what the service manager has kept for this process; for a look before it is taken.
#[must_use]
pub fn kept_names() -> Vec<String> {
    let is_ours = std::env::var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string());
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').filter(|name| is_ours && !name.is_empty());
    names.map(ToOwned::to_owned).collect()
}

/// Whether there is a service manager to which descriptors can be given.
#[must_use]
pub fn is_managed() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Says that the daemon is ready to serve. Without a service manager nobody is told.
///
/// # Errors
/// The manager cannot be reached.
pub fn ready() -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Ready])
}

/// Gives a descriptor to the service manager, in place of an earlier one of that name. It stays
/// open here too.
///
/// # Errors
/// There is no service manager, or it cannot be reached.
pub fn keep(name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    if !is_managed() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "there is no service manager",
        ));
    }
    forget(name)?;
    sd_notify::notify_with_fds(&[NotifyState::FdStore, NotifyState::FdName(name)], &[descriptor])
}

/// Lets the service manager close the descriptors of that name.
///
/// # Errors
/// The manager cannot be reached.
pub fn forget(name: &str) -> io::Result<()> {
    sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)])
}

/// Waits until the service manager has worked through all that it was told. A process that ends
/// before may not be heard.
///
/// # Errors
/// The manager cannot be reached, or does not answer within two seconds.
pub fn settle() -> io::Result<()> {
    let (mine, theirs) = std::io::pipe()?;
    sd_notify::notify_with_fds(&[NotifyState::Custom("BARRIER=1")], &[theirs.as_fd()])?;
    drop(theirs);
    let mut ready = [false];
    wait_readable(&[mine.as_fd()], Some(TAKES), &mut ready)?;
    if ready[0] {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the service manager does not answer",
        ))
    }
}

/// A file in memory that no path leads to, for secrets that go from one process to the next.
///
/// # Errors
/// The kernel refuses, or memory is short.
pub fn memory_file(name: &std::ffi::CStr, content: &[u8]) -> io::Result<File> {
    // SAFETY: the name is a C string that outlives the call.
    let number = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    check(number)?;
    // SAFETY: the kernel has just made this descriptor for us.
    let mut file = unsafe { File::from_raw_fd(number) };
    file.write_all(content)?;
    Ok(file)
}

/// The content of a [`memory_file`], at most `limit` bytes.
///
/// # Errors
/// It is longer, or cannot be read.
pub fn read_memory_file(descriptor: OwnedFd, limit: u64) -> io::Result<Vec<u8>> {
    let mut file = File::from(descriptor);
    file.rewind()?;
    let mut content = Vec::new();
    file.take(limit + 1).read_to_end(&mut content)?;
    if content.len() as u64 > limit {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "larger than it can be",
        ));
    }
    Ok(content)
}

/// Whether this process may undo what keeps others safe: nobody manages it, or its manager is
/// stopping it for good.
///
/// A process that gets SIGTERM does not know why. `systemctl restart`, a control group out of
/// memory and a kill by hand are no reason to lift a kill switch: only a job of the kind `stop` is,
/// unless the manager has added it to a job that starts a unit which conflicts with this one. So
/// are shutdown and reboot (`shutdown.target`), in which other services still send, and the start
/// of another way to use the networks. Where the manager does not answer, nothing is lifted.
#[must_use]
pub fn is_stopped_for_good() -> bool {
    let Some(unit) = own_unit() else { return true };
    let ask = |words: &[&str]| {
        // A unit that signals all its processes may have met the one that asks.
        let asked = run("systemctl", words, "");
        asked
            .or_else(|_| run("systemctl", words, ""))
            .or_else(|_| run("systemctl", words, ""))
            .inspect_err(|error| tracing::warn!(%error, "the service manager does not report why this ends"))
    };
    let conflicts = ["show", "--value", "-p", "Conflicts", "-p", "ConflictedBy", &unit];
    match (ask(&["list-jobs", "--no-legend", "--plain"]), ask(&conflicts)) {
        (Ok(jobs), Ok(conflicts)) => is_stopped_by_itself(&jobs, &unit, &conflicts),
        (Err(_), _) | (_, Err(_)) => false,
    }
}

/// The unit whose main process this is.
fn own_unit() -> Option<String> {
    let main = std::env::var("SYSTEMD_EXEC_PID").ok()?;
    if main != std::process::id().to_string() {
        return None;
    }
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut parts = groups.split(['/', '\n']);
    parts
        .rfind(|part| part.ends_with(".service"))
        .map(ToOwned::to_owned)
}

/// Returns whether `jobs` (a line for each: its number, unit, kind and state) stop `unit` and start
/// none of the units that conflict with it.
fn is_stopped_by_itself(jobs: &str, unit: &str, conflicts: &str) -> bool {
    let has_job = |unit: &str, kind: &str| {
        jobs.lines().any(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            words.get(1) == Some(&unit) && words.get(2) == Some(&kind)
        })
    };
    has_job(unit, "stop") && !conflicts.split_whitespace().any(|other| has_job(other, "start"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_file_is_read_whole_or_refused() {
        let file = memory_file(c"test", b"keys").unwrap();
        let copy = file.try_clone().unwrap();
        assert_eq!(read_memory_file(file.into(), 4).unwrap(), b"keys");
        assert!(read_memory_file(copy.into(), 3).is_err());
    }

    #[test]
    fn only_a_job_of_its_own_that_stops_is_for_good() {
        let is_wish = |jobs| {
            let conflicts = "shutdown.target\nhawser-direct.service\n";
            is_stopped_by_itself(jobs, "hawser.service", conflicts)
        };
        assert!(is_wish("7 hawser.service stop running\n"));
        assert!(is_wish(
            "1 a.service stop running\n7 hawser.service stop waiting\n"
        ));
        assert!(is_wish(
            "1 a.service start running\n7 hawser.service stop waiting\n"
        ));
        assert!(!is_wish("7 hawser.service restart running\n"));
        assert!(!is_wish("7 other.service stop running\n"));
        assert!(!is_wish(""));
    }

    #[test]
    fn a_shutdown_and_a_unit_that_conflicts_are_no_wish_to_end() {
        let stops = |jobs| {
            let conflicts = "shutdown.target\nhawser-direct.service\n";
            is_stopped_by_itself(jobs, "hawser.service", conflicts)
        };
        assert!(!stops(
            "1 reboot.target start waiting\n7 hawser.service stop running\n9 shutdown.target start waiting\n"
        ));
        assert!(!stops(
            "7 hawser.service stop running\n8 hawser-direct.service start waiting\n"
        ));
    }

    #[test]
    fn a_process_without_a_unit_is_its_own_master() {
        assert!(is_stopped_for_good());
    }
}
