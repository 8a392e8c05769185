//! Socket options of Hawser: the system call with which a program sets one, and the context that
//! eBPF programs see.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Level of Hawser's socket options: "HW" as a number, as in `include/hawser.h`. Source: the
/// letters' codes, 0x48 and 0x57.
pub const SOL_HAWSER: i32 = 0x4857;

pub(super) fn set(socket: &impl AsFd, option: i32, value: &[u8]) -> io::Result<()> {
    let length = libc::socklen_t::try_from(value.len()).map_err(io::Error::other)?;
    // SAFETY: the value points to `length` bytes that outlive the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            SOL_HAWSER,
            option,
            value.as_ptr().cast(),
            length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

// Source: linux/bpf.h, `struct bpf_sockopt`.
pub(super) const SOCKET: i16 = 0;
pub(super) const VALUE: i16 = 8;
pub(super) const VALUE_END: i16 = 16;
pub(super) const LEVEL: i16 = 24;
pub(super) const OPTION: i16 = 28;
pub(super) const LENGTH: i16 = 32;
