//! The monotonic clock and precise waiting.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use hawser_units::{Duration, Instant};

/// The time of the monotonic clock since boot.
#[must_use]
pub fn now() -> Instant {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec that outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Instant::from_nanos(time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
}

/// Lets this thread's timers fire when they are due instead of up to 50 us later.
pub fn use_precise_timers() {
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Waits until one of `fds` can be read or `timeout` has passed; says which can be read.
///
/// # Errors
/// What `ppoll` says; an interruption by a signal counts as a timeout.
pub fn wait_readable<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut entries = fds.map(|fd| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    let time = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().cast_signed(),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `entries` holds N valid records, `time` is null or points to a timespec that outlives the call.
    let ready = unsafe { libc::ppoll(entries.as_mut_ptr(), N as libc::nfds_t, time, std::ptr::null()) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted {
            Ok([false; N])
        } else {
            Err(error)
        };
    }
    Ok(entries.map(|entry| entry.revents != 0))
}
