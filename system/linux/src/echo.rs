//! Echo requests to a network's gateway, with which a silent failure of the network is detected.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::udp::keep_outside;

/// Result of an echo request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Answer to the request with that number.
    Answer(u16),
    /// Error of the kernel: no neighbour at the address, or no route to it.
    NotFound,
}

/// A socket for echo requests to one address over one device, bypassing all routing rules.
#[derive(Debug)]
pub struct Echo {
    socket: AsyncFd<Socket>,
    identifier: u16,
    ipv6: bool,
}

impl Echo {
    /// Opens a socket on `device` (whose index is `scope`) that exchanges packets with `target`
    /// only. `identifier` distinguishes its answers from those of other programs. Must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// The device is missing, or privileges (`CAP_NET_RAW`) are.
    pub fn open(device: &str, target: IpAddr, scope: u32, identifier: u16) -> io::Result<Self> {
        let ipv6 = target.is_ipv6();
        let socket = if ipv6 {
            Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6))?
        } else {
            Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?
        };
        keep_outside(&socket, Some(device))?;
        socket.set_nonblocking(true)?;
        report_errors(&socket, ipv6)?;
        let mut address = SocketAddr::new(target, 0);
        if let SocketAddr::V6(v6) = &mut address {
            v6.set_scope_id(scope);
        }
        socket.connect(&address.into())?;
        // SAFETY: the socket is open, and stays so and the same until the `AsyncFd` that owns it is
        // dropped.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE)? };
        Ok(Self {
            socket,
            identifier,
            ipv6,
        })
    }

    /// Sends the request with that number; returns false if the kernel has no route or neighbour
    /// for it.
    ///
    /// # Errors
    /// The socket has failed.
    pub fn ask(&self, number: u16) -> io::Result<bool> {
        let packet = request(self.ipv6, self.identifier, number);
        match self.socket.get_ref().send(&packet) {
            Ok(_) => Ok(true),
            Err(error) if is_not_found(&error) => Ok(false),
            // A full queue is a lost request.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Waits for the next result. Cancel safe.
    ///
    /// # Errors
    /// The socket has failed.
    pub async fn next(&self) -> io::Result<Heard> {
        loop {
            let mut ready = self.socket.readable().await?;
            match self.hear()? {
                Some(heard) => return Ok(heard),
                None => ready.clear_ready(),
            }
        }
    }

    /// Returns the next result; `None` if none is available.
    fn hear(&self) -> io::Result<Option<Heard>> {
        let mut buffer = [MaybeUninit::uninit(); 256];
        loop {
            let length = match self.socket.get_ref().recv(&mut buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if is_not_found(&error) => return Ok(Some(Heard::NotFound)),
                Err(error) => return Err(error),
            };
            // SAFETY: the kernel has written the first `length` bytes.
            let packet = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), length) };
            if let Some(number) = answer(packet, self.ipv6, self.identifier) {
                return Ok(Some(Heard::Answer(number)));
            }
        }
    }
}

/// Enables the report of missing neighbours, which a raw socket does not receive otherwise.
fn report_errors(socket: &Socket, ipv6: bool) -> io::Result<()> {
    let (level, option) = if ipv6 {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
    } else {
        (libc::IPPROTO_IP, libc::IP_RECVERR)
    };
    let on: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is an int that outlives the call, and its size is given.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const on).cast(), length) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn is_not_found(error: &io::Error) -> bool {
    let codes = [
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::ENETDOWN,
        libc::ENODEV,
        libc::EHOSTDOWN,
    ];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Returns an echo request (RFC 792, RFC 4443 section 4.1). For IPv6 the kernel computes the
/// checksum.
fn request(ipv6: bool, identifier: u16, number: u16) -> [u8; 16] {
    let mut packet = [0_u8; 16];
    packet[0] = if ipv6 { 128 } else { 8 };
    packet[4..6].copy_from_slice(&identifier.to_be_bytes());
    packet[6..8].copy_from_slice(&number.to_be_bytes());
    if !ipv6 {
        let sum: u32 = packet
            .chunks_exact(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        packet[2..4].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    }
    packet
}

/// Returns the number of an echo reply with our identifier. For IPv4 the packet begins with its IP
/// header.
fn answer(packet: &[u8], ipv6: bool, identifier: u16) -> Option<u16> {
    let at = if ipv6 {
        0
    } else {
        usize::from(packet.first()? & 0x0f) * 4
    };
    let message = packet.get(at..at + 8)?;
    let kind = if ipv6 { 129 } else { 0 };
    let ours = message[0] == kind && message[4..6] == identifier.to_be_bytes();
    ours.then(|| u16::from_be_bytes([message[6], message[7]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_checked_and_its_answer_known() {
        let packet = request(false, 0x1234, 7);
        let sum: u32 = packet
            .chunks_exact(2)
            .map(|p| u32::from(u16::from_be_bytes([p[0], p[1]])))
            .sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        let mut reply = vec![0x45; 20];
        reply.extend(packet);
        assert_eq!(answer(&reply, false, 0x1234), None);
        reply[20] = 0;
        assert_eq!(answer(&reply, false, 0x1234), Some(7));
        assert_eq!(answer(&reply, false, 0x1235), None);
        assert_eq!(answer(&reply[..25], false, 0x1234), None);
    }
}
