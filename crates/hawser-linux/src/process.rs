//! What a process does to itself, and knows of others.

use std::io;

/// Leaves the terminal's session: the terminal's end no longer ends this process.
///
/// # Errors
/// The process leads a process group already.
pub fn new_session() -> io::Result<()> {
    // SAFETY: `setsid` takes and changes no memory.
    if unsafe { libc::setsid() } < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Asks a child that has not been waited for to end.
pub fn terminate(child: u32) {
    // SAFETY: no memory is involved. A child that has ended keeps its number until it is waited for.
    unsafe { libc::kill(child.cast_signed(), libc::SIGTERM) };
}

/// Whether this process has the rights of the superuser.
#[must_use]
pub fn is_root() -> bool {
    // SAFETY: `geteuid` takes no memory and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Clock ticks per second of the times in `/proc/<pid>/stat`.
#[must_use]
pub fn ticks_per_second() -> u64 {
    // SAFETY: no memory is involved.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100)
}

/// The machine's name, for the other side's log.
#[must_use]
pub fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| String::new(), |s| s.trim().to_owned())
}
