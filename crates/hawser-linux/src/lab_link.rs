//! What the lab needs of the kernel beside namespaces and TUN devices.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

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
