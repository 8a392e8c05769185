//! Socket options of Hawser: how a program sets one, and what the kernel shows of that.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The level of Hawser's socket options: "HW" as a number. As in `include/hawser.h`.
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

// struct bpf_sockopt
pub(super) const SOCKET: i16 = 0;
pub(super) const VALUE: i16 = 8;
pub(super) const VALUE_END: i16 = 16;
pub(super) const LEVEL: i16 = 24;
pub(super) const OPTION: i16 = 28;
pub(super) const LENGTH: i16 = 32;
