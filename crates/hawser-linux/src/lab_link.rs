//! The TUN devices between which the lab carries packets, and the socket call its workloads need.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// A layer-3 TUN device, without packet information and without offloads: one read or write is one IP packet.
///
/// The device exists as long as this value.
#[derive(Debug)]
pub struct LabDevice {
    file: File,
}

impl LabDevice {
    /// Makes the device `name` in the namespace of the calling thread.
    ///
    /// # Errors
    /// What the system says, e.g. `PermissionDenied`, or `NotFound` without `/dev/net/tun`.
    pub fn open(name: &str) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")?;
        // SAFETY: zero is a valid value of every field of this record.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.len() >= request.ifr_name.len() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "device name too long",
            ));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: the descriptor is open and `request` is a valid record that outlives the call.
        if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { file })
    }

    /// Reads one packet that the kernel sent into the device; `WouldBlock` when there is none.
    ///
    /// # Errors
    /// What the system says.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(buffer)
    }

    /// Gives the kernel one packet as received by the device.
    ///
    /// # Errors
    /// What the system says, e.g. while the device is down.
    pub fn write(&self, packet: &[u8]) -> io::Result<usize> {
        (&self.file).write(packet)
    }
}

impl AsFd for LabDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

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
