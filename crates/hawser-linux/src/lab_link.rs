//! What the lab needs of the kernel beside namespaces and TUN devices.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A counter in the kernel on which a thread can wait while others wake it.
#[derive(Debug)]
pub struct Wake {
    file: File,
}

impl Wake {
    /// One that nobody has rung.
    ///
    /// # Errors
    /// What the system says when it has no descriptor left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is fresh and owned by nobody else.
        Ok(Self {
            file: File::from(unsafe { OwnedFd::from_raw_fd(fd) }),
        })
    }

    /// Wakes whoever waits, now or at the next wait.
    pub fn ring(&self) {
        // A full counter has long woken its reader.
        let _ = (&self.file).write(&1u64.to_ne_bytes());
    }

    /// Forgets the rings so far.
    pub fn reset(&self) {
        let _ = (&self.file).read(&mut [0; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Takes up to `length` bytes out of a stream socket without copying them; 0 at the end of the stream.
///
/// # Errors
/// What the system says, e.g. `WouldBlock` after the socket's receive timeout.
pub fn discard(socket: BorrowedFd<'_>, length: usize) -> io::Result<usize> {
    // SAFETY: with MSG_TRUNC a TCP or MPTCP socket writes nothing to the buffer, which may therefore be null.
    let result = unsafe { libc::recv(socket.as_raw_fd(), std::ptr::null_mut(), length, libc::MSG_TRUNC) };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Clock ticks per second of the times in `/proc/<pid>/stat`.
#[must_use]
pub fn ticks_per_second() -> u64 {
    // SAFETY: no memory is involved.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100)
}
