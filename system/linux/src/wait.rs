//! Waits for several descriptors at once with nanosecond timeouts, and for another thread.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Wakes a thread that waits in [`wait_readable`].
#[derive(Debug)]
pub struct Waker {
    event: OwnedFd,
}

impl Waker {
    /// Creates a waker that has not been woken.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; a non-negative result is a descriptor that no other code owns.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        Ok(Self {
            event: unsafe { OwnedFd::from_raw_fd(event) },
        })
    }

    /// Wakes the waiting thread, or prevents its next wait from blocking.
    pub fn wake(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: the buffer is eight bytes long and lives through the call.
        unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Resets the waker after a wake-up.
    pub fn clear(&self) {
        let mut count = [0_u8; 8];
        // SAFETY: the buffer is eight bytes long and lives through the call.
        unsafe { libc::read(self.event.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Waits until one of `sources` is readable or `timeout` has passed (`None`: forever), and sets
/// `ready` for each.
///
/// # Errors
/// The kernel's error; an interrupting signal is not an error and ends the wait with nothing ready.
///
/// # Panics
/// Panics if `ready` is shorter than `sources`, or there are more than 64.
pub fn wait_readable(
    sources: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
    ready: &mut [bool],
) -> io::Result<()> {
    const NONE: libc::pollfd = libc::pollfd {
        fd: -1,
        events: 0,
        revents: 0,
    };
    let mut polled = [NONE; 64];
    for (entry, source) in polled[..sources.len()].iter_mut().zip(sources) {
        *entry = libc::pollfd {
            fd: source.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
    }
    let spec = timeout.map(|time| libc::timespec {
        tv_sec: time.as_secs().min(3600).cast_signed(),
        tv_nsec: time.subsec_nanos().into(),
    });
    let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array holds at least `sources.len()` entries, and the timespec lives through the
    // call.
    let count = unsafe {
        libc::ppoll(
            polled.as_mut_ptr(),
            sources.len() as libc::nfds_t,
            spec,
            std::ptr::null(),
        )
    };
    ready[..sources.len()].fill(false);
    if count < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted {
            Ok(())
        } else {
            Err(error)
        };
    }
    for (ready, entry) in ready.iter_mut().zip(&polled[..sources.len()]) {
        *ready = entry.revents != 0;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_before_the_wait_is_not_lost() {
        let waker = Waker::new().expect("a descriptor");
        waker.wake();
        let mut ready = [false];
        wait_readable(&[waker.as_fd()], Some(Duration::from_secs(5)), &mut ready).expect("poll");
        assert!(ready[0]);
        waker.clear();
        wait_readable(&[waker.as_fd()], Some(Duration::ZERO), &mut ready).expect("poll");
        assert!(!ready[0]);
    }
}
