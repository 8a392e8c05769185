//! Frames of 802.11 in user space: a packet socket on a monitor interface, and the Ethernet device
//! in which what they carry surfaces.

use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use socket2::{Domain, Socket, Type};

use crate::tap::packets_of;
use crate::tun::{self, TunError, interface_request, would_block};
use crate::udp::grow;
use crate::{check, ioctl_request};

/// A socket that hears and sends whole frames, each behind its radiotap header.
#[derive(Debug)]
pub struct AirSocket {
    socket: Socket,
}

impl AirSocket {
    /// On the monitor interface of that index.
    ///
    /// # Errors
    /// Rights (`CAP_NET_RAW`) are missing, or there is no such interface.
    pub fn open(interface: u32) -> io::Result<Self> {
        let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
        socket.set_nonblocking(true)?;
        grow(&socket);
        socket.bind(&packets_of(interface)?)?;
        Ok(Self { socket })
    }

    /// The next frame; `None` when none waits. What is longer than the buffer is cut.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        // SAFETY: bytes may be seen as such that need not be initialised; the call only writes
        // there, and only initialised ones.
        let room = unsafe { &mut *(std::ptr::from_mut(buffer) as *mut [MaybeUninit<u8>]) };
        would_block(self.socket.recv(room))
    }

    /// Sends a frame: its header, then the frame. `false` when the card's queue is full.
    ///
    /// # Errors
    /// The interface is gone or down.
    pub fn send(&self, header: &[u8], frame: &[u8]) -> io::Result<bool> {
        let pieces = [io::IoSlice::new(header), io::IoSlice::new(frame)];
        match self.socket.send_vectored(&pieces) {
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(false),
            other => Ok(would_block(other)?.is_some()),
        }
    }
}

impl AsFd for AirSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// An Ethernet device whose frames a program carries; it disappears with this.
#[derive(Debug)]
pub struct EthernetTap {
    file: File,
}

impl EthernetTap {
    /// Makes a device of that name and address; it is down, and has no carrier.
    ///
    /// # Errors
    /// The name is taken, or rights are missing.
    pub fn create(name: &str, address: [u8; 6]) -> Result<Self, TunError> {
        let file = tun::open(name, libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_TUN_EXCL)?;
        let tap = Self { file };
        let option = |what, error| TunError::Option(name.to_owned(), what, error);
        tap.set_carrier(false).map_err(|error| option("carrier", error))?;
        let mut request = interface_request(name);
        let mut hardware = libc::sockaddr {
            sa_family: libc::ARPHRD_ETHER,
            sa_data: [0; 14],
        };
        for (to, from) in hardware.sa_data.iter_mut().zip(address) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        request.ifr_ifru.ifru_hwaddr = hardware;
        // SAFETY: the request is a valid `ifreq` that outlives the call.
        let set = Socket::new(Domain::IPV4, Type::DGRAM, None).and_then(|socket| {
            check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCSIFHWADDR, &raw mut request) })
        });
        set.map_err(|error| option("address", error))?;
        Ok(tap)
    }

    /// Says whether there is somebody at the other end.
    ///
    /// # Errors
    /// The kernel is older than 5.0.
    pub fn set_carrier(&self, has_carrier: bool) -> io::Result<()> {
        let has_carrier = libc::c_int::from(has_carrier);
        // SAFETY: the argument points to an int that outlives the call.
        check(unsafe { libc::ioctl(self.file.as_raw_fd(), TUNSETCARRIER, &raw const has_carrier) })
    }

    /// The next frame that the machine sends; `None` when none waits.
    ///
    /// # Errors
    /// The device is gone or down.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        would_block((&self.file).read(buffer))
    }

    /// Gives the machine a frame. `false` when it takes none now.
    ///
    /// # Errors
    /// The device is gone or down.
    pub fn write(&self, frame: &[u8]) -> io::Result<bool> {
        Ok(would_block((&self.file).write(frame))?.is_some())
    }
}

impl AsFd for EthernetTap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Source: linux/if_tun.h.
const TUNSETCARRIER: libc::Ioctl = ioctl_request(0x4004_54e2);
const SIOCSIFHWADDR: libc::Ioctl = ioctl_request(libc::SIOCSIFHWADDR as u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_gets_its_address_and_no_carrier() {
        let Ok(namespace) = crate::netns::Namespace::new() else {
            hawser_testing::skip("no namespaces");
            return;
        };
        let shown = namespace.run(|| {
            let tap = EthernetTap::create("slot0", [2, 0, 0, 0, 0, 9]).map_err(io::Error::other)?;
            assert!(EthernetTap::create("slot0", [2, 0, 0, 0, 0, 8]).is_err());
            let show = || {
                std::process::Command::new("ip")
                    .args(["link", "show", "slot0"])
                    .output()
            };
            std::process::Command::new("ip")
                .args(["link", "set", "slot0", "up"])
                .status()?;
            let before = show()?.stdout;
            tap.set_carrier(true)?;
            Ok::<_, io::Error>(
                [before, show()?.stdout].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
            )
        });
        let [before, after] = shown.unwrap();
        assert!(
            before.contains("02:00:00:00:00:09") && before.contains("NO-CARRIER"),
            "{before}"
        );
        assert!(!after.contains("NO-CARRIER"), "{after}");
    }
}
