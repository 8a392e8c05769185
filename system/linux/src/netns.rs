//! Network namespaces that are removed with their owner.
//!
//! A [`Namespace`] has no name: it exists as long as a file descriptor or a process holds it, so
//! the kernel removes it, with all its devices and rules, even if its owner is killed. Processes
//! started inside are killed with the thread that started them.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::check;

/// An open network namespace.
#[derive(Clone, Debug)]
pub struct Namespace {
    file: Arc<File>,
}

impl Namespace {
    /// Creates an empty namespace; the calling thread stays in its own.
    ///
    /// # Errors
    /// `unshare` fails: `PermissionDenied` without the privilege to create namespaces.
    pub fn new() -> io::Result<Self> {
        on_a_thread(|| {
            // SAFETY: no memory is involved; the flag changes the namespace of this short-lived
            // thread only.
            check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
            Ok(Self {
                file: Arc::new(File::open("/proc/thread-self/ns/net")?),
            })
        })
    }

    /// Opens a named namespace, such as those of `ip netns` in `/run/netns`.
    ///
    /// # Errors
    /// There is no namespace at `path`.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self {
            file: Arc::new(File::open(path)?),
        })
    }

    /// Returns a path with which other programs of this user can open it during the lifetime of
    /// this process.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Moves the calling thread into the namespace permanently.
    ///
    /// # Errors
    /// `setns` fails.
    pub fn enter(&self) -> io::Result<()> {
        set_namespace(self.file.as_raw_fd())
    }

    /// Runs `work` inside the namespace, on a separate thread.
    ///
    /// # Errors
    /// Those of `work`, and of starting the thread.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_a_thread(|| {
            self.enter()?;
            work()
        })
    }

    /// Returns a command that runs inside the namespace with its `/sys`, and is killed when the
    /// thread that starts it ends.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let file = Arc::clone(&self.file);
        let owner = std::process::id().cast_signed();
        // SAFETY: the closure runs between fork and exec and only makes system calls that are
        // async-signal-safe; it allocates nothing and takes no lock.
        unsafe {
            command.pre_exec(move || {
                set_namespace(file.as_raw_fd())?;
                die_with_parent(owner)?;
                mount_own_sysfs();
                Ok(())
            });
        }
        command
    }
}

/// Makes the kernel kill `command` when the thread that starts it ends for any reason.
pub fn bind_to_this_thread(command: &mut Command) {
    let owner = std::process::id().cast_signed();
    // SAFETY: as in `Namespace::command`.
    unsafe {
        command.pre_exec(move || die_with_parent(owner));
    }
}

/// Becomes root of a new user namespace, with namespaces for network and mounts.
///
/// Must be called while the process has one thread. Files keep their owner; the privileges apply to
/// the new namespaces only.
///
/// # Errors
/// The system does not permit user namespaces.
pub fn become_root_of_user_namespace() -> io::Result<()> {
    // SAFETY: these calls only read the identity of the process.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: no memory is involved.
    check(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET | libc::CLONE_NEWNS) })?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}

/// Returns whether this process is root, of the machine or of a user namespace.
#[must_use]
pub fn is_root() -> bool {
    // SAFETY: only reads the identity of the process.
    unsafe { libc::geteuid() == 0 }
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("netns".into())
            .spawn_scoped(scope, work)?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread in a namespace panicked")))
    })
}

fn set_namespace(fd: RawFd) -> io::Result<()> {
    // SAFETY: `fd` is an open descriptor of a network namespace; no memory is involved.
    check(unsafe { libc::setns(fd, libc::CLONE_NEWNET) })
}

fn die_with_parent(owner: libc::pid_t) -> io::Result<()> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    // SAFETY: only reads the parent's identity; it is another one if the parent ended before the
    // call above.
    if unsafe { libc::getppid() } != owner {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}

/// Mounts `/sys` again, because `/sys/class/net` shows the namespace in which it was mounted. If
/// this fails, the program sees the old one, which only affects programs that read it.
fn mount_own_sysfs() {
    let none = c"none".as_ptr();
    let sysfs = c"sysfs".as_ptr();
    // SAFETY: every pointer is a constant C string or null, where the kernel allows null.
    unsafe {
        if libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                none,
                c"/".as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_SLAVE,
                std::ptr::null(),
            ) == 0
        {
            libc::umount2(c"/sys".as_ptr(), libc::MNT_DETACH);
            libc::mount(sysfs, c"/sys".as_ptr(), sysfs, 0, std::ptr::null());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_empty_and_its_children_die_with_their_thread() {
        let namespace = match Namespace::new() {
            Ok(namespace) => namespace,
            Err(error) => {
                hawser_testing::skip(format!("no namespaces: {error}"));
                return;
            }
        };
        let devices = namespace
            .run(|| std::fs::read_to_string("/proc/thread-self/net/dev"))
            .expect("readable");
        assert_eq!(devices.lines().skip(2).count(), 1, "only lo: {devices}");

        let inside = namespace.clone();
        let pid = std::thread::spawn(move || {
            inside
                .command("sleep")
                .arg("60")
                .spawn()
                .expect("sleep starts")
                .id()
        })
        .join()
        .expect("no panic");
        let is_alive = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while is_alive() && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(!is_alive());
    }
}
