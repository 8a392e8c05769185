//! Root of all control groups of version 2, to which programs are attached.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

/// Opens the directory of the root control group.
///
/// Uses the existing mount point, or else a private mount, because a namespace with its own `/sys`
/// has none.
pub(super) fn root() -> io::Result<OwnedFd> {
    match mounted()? {
        Some(path) => Ok(File::open(path)?.into()),
        None => mount_unseen(),
    }
}

fn mounted() -> io::Result<Option<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let is_ours = |line: &&str| line.split(' ').nth(2) == Some("cgroup2");
    let path = mounts
        .lines()
        .find(is_ours)
        .and_then(|line| line.split(' ').nth(1));
    Ok(path
        .map(PathBuf::from)
        .filter(|path| path.join("cgroup.procs").exists()))
}

fn mount_unseen() -> io::Result<OwnedFd> {
    let owned = |result: libc::c_long| {
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has created this descriptor, and no other code knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
    };
    // SAFETY: the name is a constant C string.
    let context = owned(unsafe { libc::syscall(libc::SYS_fsopen, c"cgroup2".as_ptr(), 1) })?;
    let null = std::ptr::null::<libc::c_char>();
    // SAFETY: this command takes no key and no value.
    let created = unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), CREATE, null, null, 0) };
    if created < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: no memory is involved.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), 1, 0) })
}

/// `FSCONFIG_CMD_CREATE` of linux/mount.h.
const CREATE: libc::c_int = 6;
