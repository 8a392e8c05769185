//! Process control: sessions, groups, privileges and other processes.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::check;

/// Leaves the terminal's session, so that closing the terminal does not end this process.
///
/// # Errors
/// The process is already the leader of a process group.
pub fn new_session() -> io::Result<()> {
    // SAFETY: `setsid` takes and changes no memory.
    check(unsafe { libc::setsid() })
}

/// Sends `SIGTERM` to a child that was not yet waited for.
pub fn terminate(child: u32) {
    // SAFETY: no memory is involved. A child that has ended keeps its number until it is waited
    // for.
    unsafe { libc::kill(child.cast_signed(), libc::SIGTERM) };
}

/// Kills a process of a group that this process has created.
pub(crate) fn kill(program: u32) {
    // SAFETY: no memory is involved.
    unsafe { libc::kill(program.cast_signed(), libc::SIGKILL) };
}

/// A process, identified so that a later one with the same id is not mistaken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    id: u32,
    /// Start time: clock ticks since the machine booted.
    started: u64,
}

impl Process {
    /// Returns the process with an id; `None` if there is none, or if it has ended and was not yet
    /// waited for.
    #[must_use]
    pub fn of(id: u32) -> Option<Self> {
        Self::with_group(id).map(|(process, _)| process)
    }

    /// Returns the process and its process group.
    fn with_group(id: u32) -> Option<(Self, u32)> {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name, in brackets, may contain anything.
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let (state, group, started) = (fields.first()?, fields.get(2)?, fields.get(19)?);
        let started = started.parse().ok()?;
        (!matches!(*state, "Z" | "X")).then_some((Self { id, started }, group.parse().ok()?))
    }

    /// Returns whether the process is still running.
    #[must_use]
    pub fn is_alive(self) -> bool {
        Self::of(self.id) == Some(self)
    }

    /// Sends `SIGTERM` to the process, kills it if it does not end within 2 s, and kills the rest
    /// of the process group that it leads. Has no effect if the process has ended already.
    pub async fn end(self) {
        self.signal(libc::SIGTERM);
        for _ in 0..100 {
            if !self.is_alive() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.signal(libc::SIGKILL);
        for helper in self.group() {
            helper.signal(libc::SIGKILL);
        }
    }

    fn signal(self, signal: libc::c_int) {
        if self.is_alive() {
            // SAFETY: no memory is involved.
            unsafe { libc::kill(self.id.cast_signed(), signal) };
        }
    }

    /// Returns the descendants that have not left its process group. As long as one of them exists,
    /// no other process gets the group's number.
    fn group(self) -> Vec<Self> {
        if Self::of(self.id).is_some_and(|other| other != self) {
            return Vec::new();
        }
        let ids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        ids.filter_map(|entry| Self::with_group(entry.file_name().to_str()?.parse().ok()?))
            .filter(|(process, group)| *group == self.id && process.started >= self.started)
            .map(|(process, _)| process)
            .collect()
    }
}

/// Returns the command lines of this network namespace's processes as words, each with its process
/// id.
#[must_use]
pub fn command_lines() -> Vec<(u32, Vec<String>)> {
    let own = namespace(Path::new("/proc/thread-self"));
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            let words = std::fs::read(entry.path().join("cmdline")).ok()?;
            let is_near = namespace(&entry.path()) == own;
            let words = String::from_utf8_lossy(&words).into_owned();
            // Some programs overwrite it with a single title.
            let words = words.split(['\0', ' ']).filter(|word| !word.is_empty());
            is_near.then(|| (id, words.map(ToOwned::to_owned).collect()))
        })
        .collect()
}

/// Returns the network namespace of a process from a file that, unlike `ns/net`, is readable by
/// every process.
fn namespace(process: &Path) -> Option<u64> {
    let file = std::fs::metadata(process.join("net/dev"));
    file.ok().map(|file| file.ino())
}

/// Flag for opening a file without blocking, in `open` and in writes.
pub const NONBLOCK: i32 = libc::O_NONBLOCK;

/// Creates a named pipe that is accessible to its owner only.
///
/// # Errors
/// The name exists already, or the directory cannot be written.
pub fn make_pipe(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is a terminated string that outlives the call.
    check(unsafe { libc::mkfifo(path.as_ptr(), 0o600) })
}

/// Returns whether the effective user is root.
#[must_use]
pub fn is_root() -> bool {
    // SAFETY: `geteuid` takes no memory and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Returns the effective user id of this process.
#[must_use]
pub fn user() -> u32 {
    // SAFETY: `geteuid` takes no memory and cannot fail.
    unsafe { libc::geteuid() }
}

/// Flag with which opening a symbolic link fails.
pub const NO_FOLLOW: i32 = libc::O_NOFOLLOW;

/// Returns the clock ticks per second of the times in `/proc/<pid>/stat`.
#[must_use]
pub fn ticks_per_second() -> u64 {
    // SAFETY: no memory is involved.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100)
}

/// Pins the calling thread to one of its permitted processors, counted from 0 modulo their number.
///
/// # Errors
/// The system does not report the processors, or refuses.
pub fn stay_on_processor(number: usize) -> io::Result<()> {
    // SAFETY: a set of processors may be all zeros.
    let none: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let mut allowed = none;
    // SAFETY: the set outlives the call, which writes no more than its size.
    check(unsafe { libc::sched_getaffinity(0, size_of_val(&allowed), &raw mut allowed) })?;
    // SAFETY: no number reaches the size of a set.
    let is_allowed = |processor: &usize| unsafe { libc::CPU_ISSET(*processor, &allowed) };
    let processors: Vec<_> = (0..8 * size_of_val(&allowed)).filter(is_allowed).collect();
    let mut one = none;
    // SAFETY: as above; a thread that runs may run somewhere.
    unsafe { libc::CPU_SET(processors[number % processors.len()], &mut one) };
    // SAFETY: the set outlives the call.
    check(unsafe { libc::sched_setaffinity(0, size_of_val(&one), &raw const one) })
}

/// Returns the machine's name, for the peer's log.
#[must_use]
pub fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| String::new(), |s| s.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn sleeper(script: &str) -> std::process::Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        command.spawn().unwrap()
    }

    #[tokio::test]
    async fn a_process_ends_and_no_other_of_its_number() {
        let mut child = sleeper("exec sleep 60");
        let process = Process::of(child.id()).unwrap();
        let other = Process {
            started: process.started + 1,
            ..process
        };
        other.end().await;
        assert!(process.is_alive());
        process.end().await;
        assert!(!process.is_alive());
        child.wait().unwrap();
        assert_eq!(Process::of(child.id()), None);
    }

    #[tokio::test]
    async fn one_that_does_not_listen_ends_too() {
        let mut child = sleeper("trap '' TERM; echo; while :; do sleep 0.1; done");
        // Wait until it ignores the signal.
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        Process::of(child.id()).unwrap().end().await;
        let status = child.wait().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(libc::SIGKILL)
        );
    }

    #[tokio::test]
    async fn what_it_has_started_ends_with_it() {
        let mut command = Command::new("sh");
        command
            .args(["-c", "sleep 60 & echo $!; wait"])
            .stdout(Stdio::piped());
        let mut child = std::os::unix::process::CommandExt::process_group(&mut command, 0)
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        let helper = Process::of(line.trim().parse().unwrap()).unwrap();
        let process = Process::of(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // State after a crash: only the helper is left.
        assert!(helper.is_alive());
        process.end().await;
        while helper.is_alive() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[test]
    fn this_test_is_among_the_command_lines() {
        let all = command_lines();
        assert!(
            all.iter()
                .any(|(id, words)| *id == std::process::id() && !words.is_empty())
        );
    }
}
