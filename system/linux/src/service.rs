//! Interface to the service manager: readiness, reason of termination, and descriptors for the next
//! process.
//!
//! A restart ends one process before the next one starts. Descriptors that must stay open meanwhile
//! (an interface, a socket that continues to receive, the state of sessions) are stored by the
//! service manager, which passes them to the next process. Each descriptor has a name. Descriptors
//! are useless without the others of their set, so the next process takes all that it knows and
//! closes the rest.
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

/// Timeout for the service manager to accept descriptors: it is one process for the whole machine.
/// Source: our choice; systemd answers within milliseconds, and a hub that waits for longer delays
/// its stop.
const TAKES: Duration = Duration::from_secs(2);

/// A descriptor that outlived the previous process.
#[derive(Debug)]
pub struct InheritedDescriptor {
    /// Name of the descriptor.
    pub name: String,
    /// The descriptor.
    pub descriptor: OwnedFd,
}

/// Takes the file descriptors that the service manager has stored for this process; empty without
/// such a manager. The first call in a process takes all of them.
///
/// # Errors
/// The environment is inconsistent: nothing was taken.
pub fn take_inherited() -> io::Result<Vec<InheritedDescriptor>> {
    static TAKEN: Once = Once::new();
    let mut kept = Ok(Vec::new());
    TAKEN.call_once(|| {
        kept = sd_notify::listen_fds_with_names().map(|found| {
            found
                .map(|(number, name)| InheritedDescriptor {
                    name,
                    // SAFETY: the manager passed this descriptor to this process, which it names by
                    // LISTEN_PID, and no other code takes it: this runs once.
                    descriptor: unsafe { OwnedFd::from_raw_fd(number) },
                })
                .collect()
        });
    });
    kept
}

/// Names of the file descriptors that the service manager has stored for this process, before they
/// are taken.
#[must_use]
pub fn inherited_names() -> Vec<String> {
    let is_ours = std::env::var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string());
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').filter(|name| is_ours && !name.is_empty());
    names.map(ToOwned::to_owned).collect()
}

/// Returns whether a service manager accepts descriptors.
#[must_use]
pub fn is_managed() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Reports that the daemon is ready to serve. Without a service manager it has no effect.
///
/// # Errors
/// The manager cannot be reached.
pub fn ready() -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Ready])
}

/// Stores a descriptor with the service manager, in place of an earlier one with that name. It also
/// stays open here.
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

/// Waits until the service manager has processed all notifications. Notifications of a process that
/// ends earlier may be lost.
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

/// Creates an unnamed file in memory, for secrets that are passed from one process to the next.
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

/// Reads the content of a [`memory_file`], at most `limit` bytes.
///
/// # Errors
/// The content is longer, or cannot be read.
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

/// Returns whether this process may undo protective settings: it has no service manager, or the
/// manager stops it permanently.
///
/// A process does not know the reason of a SIGTERM. `systemctl restart`, a control group out of
/// memory and a manual kill are no reason to lift a kill switch. Only a job of type `stop` is,
/// unless the manager has added it because a conflicting unit starts, as at shutdown and reboot
/// (`shutdown.target`), during which other services still send, and at the start of another mode of
/// Hawser. If the manager does not answer, nothing is lifted.
#[must_use]
pub fn is_stopped_for_good() -> bool {
    let Some(unit) = own_unit() else { return true };
    let ask = |words: &[&str]| {
        // A unit that signals all its processes may have ended this query's process.
        let asked = run("systemctl", words, "");
        asked
            .or_else(|_| run("systemctl", words, ""))
            .or_else(|_| run("systemctl", words, ""))
            .inspect_err(
                |error| tracing::warn!(%error, "cannot report the reason of the end to the service manager"),
            )
    };
    let conflicts = ["show", "--value", "-p", "Conflicts", "-p", "ConflictedBy", &unit];
    match (ask(&["list-jobs", "--no-legend", "--plain"]), ask(&conflicts)) {
        (Ok(jobs), Ok(conflicts)) => is_stopped_by_itself(&jobs, &unit, &conflicts),
        (Err(_), _) | (_, Err(_)) => false,
    }
}

/// Returns whether the service manager ends this process to start another one of its unit.
#[must_use]
pub fn is_restarting() -> bool {
    let Some(unit) = own_unit().filter(|_| is_managed()) else {
        return false;
    };
    let jobs = run("systemctl", &["list-jobs", "--no-legend", "--plain"], "");
    jobs.is_ok_and(|jobs| has_job(&jobs, &unit, "restart"))
}

/// Returns the unit whose main process this is.
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

/// Returns whether `jobs` (one per line: number, unit, type and state) stop `unit` and start none
/// of the units that conflict with it.
fn is_stopped_by_itself(jobs: &str, unit: &str, conflicts: &str) -> bool {
    let starts = |other| has_job(jobs, other, "start");
    has_job(jobs, unit, "stop") && !conflicts.split_whitespace().any(starts)
}

/// Returns whether a unit has a job of a type.
fn has_job(jobs: &str, unit: &str, kind: &str) -> bool {
    jobs.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.get(1) == Some(&unit) && words.get(2) == Some(&kind)
    })
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
