//! 802.11 frames in user space: a packet socket on a monitor interface, and the Ethernet device
//! that delivers their payload.

use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use socket2::{Domain, Socket, Type};

use crate::tap::packets_of;
use crate::tun::{self, TunError, interface_request, would_block};
use crate::udp::grow;
use crate::{check, ioctl_request};

/// A socket that receives and sends complete frames, each after its radiotap header.
#[derive(Debug)]
pub struct AirSocket {
    socket: Socket,
}

impl AirSocket {
    /// Opens the monitor interface with that index.
    ///
    /// # Errors
    /// Privileges (`CAP_NET_RAW`) are missing, or the interface does not exist.
    pub fn open(interface: u32) -> io::Result<Self> {
        let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
        socket.set_nonblocking(true)?;
        grow(&socket);
        socket.bind(&packets_of(interface)?)?;
        Ok(Self { socket })
    }

    /// Receives the next frame; `None` if none is available. Frames longer than the buffer are
    /// truncated.
    ///
    /// # Errors
    /// The interface was removed.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        // SAFETY: bytes may be seen as such that need not be initialised; the call only writes
        // there, and only initialised ones.
        let room = unsafe { &mut *(std::ptr::from_mut(buffer) as *mut [MaybeUninit<u8>]) };
        would_block(self.socket.recv(room))
    }

    /// Sends a frame after its header. Returns false if the card's queue is full.
    ///
    /// # Errors
    /// The interface was removed or down.
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

/// An Ethernet device whose frames a program transfers; it is removed when this value is dropped.
#[derive(Debug)]
pub struct EthernetTap {
    file: File,
}

impl EthernetTap {
    /// Creates a device with a name and an address; it is down, and has no carrier.
    ///
    /// # Errors
    /// The name is taken, or privileges are missing.
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

    /// Sets the carrier, which states whether the other end is present.
    ///
    /// # Errors
    /// The kernel is older than 5.0.
    pub fn set_carrier(&self, has_carrier: bool) -> io::Result<()> {
        let has_carrier = libc::c_int::from(has_carrier);
        // SAFETY: the argument points to an int that outlives the call.
        check(unsafe { libc::ioctl(self.file.as_raw_fd(), TUNSETCARRIER, &raw const has_carrier) })
    }

    /// Returns the next frame that the machine sends; `None` if none is available.
    ///
    /// # Errors
    /// The device was removed or down.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        would_block((&self.file).read(buffer))
    }

    /// Delivers a frame to the machine. Returns false if its queue is full.
    ///
    /// # Errors
    /// The device was removed or down.
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
