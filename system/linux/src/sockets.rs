//! Sockets of this machine, as reported by the kernel (`sock_diag`).

use std::io;
use std::net::{IpAddr, SocketAddr};

use netlink_sys::{Socket, SocketAddr as NetlinkAddr};

use crate::netlink_bytes::{ERROR, framed, messages, outcome};

/// Returns whether a socket of this machine has that local address and is connected to the other
/// one. Also false if the kernel cannot list sockets of the protocol.
///
/// # Errors
/// The kernel does not answer.
pub fn is_there(protocol: u8, from: SocketAddr, to: SocketAddr) -> io::Result<bool> {
    // The kernel expects the ends in reverse order here, "for historical reasons" (udp_diag.c).
    let (from, to) = if protocol == UDP { (to, from) } else { (from, to) };
    ask(BY_FAMILY, 0, protocol, (from, to))
}

/// Destroys a TCP socket of this machine: its program gets the error `ECONNABORTED` at once.
/// Returns whether the socket existed.
///
/// # Errors
/// Privileges are missing, or the kernel lacks `CONFIG_INET_DIAG_DESTROY`.
pub(crate) fn abort(from: SocketAddr, to: SocketAddr) -> io::Result<bool> {
    ask(DESTROY, libc::NLM_F_ACK, TCP, (from, to))
}

/// Queries one socket; returns whether it exists.
fn ask(kind: u16, flags: i32, protocol: u8, (from, to): (SocketAddr, SocketAddr)) -> io::Result<bool> {
    let family = if from.is_ipv6() {
        libc::AF_INET6
    } else {
        libc::AF_INET
    };
    let mut body = vec![family as u8, protocol, 0, 0];
    body.extend(u32::MAX.to_ne_bytes());
    body.extend(from.port().to_be_bytes());
    body.extend(to.port().to_be_bytes());
    body.extend(padded(from.ip()));
    body.extend(padded(to.ip()));
    body.extend(0_u32.to_ne_bytes());
    // No cookie: any socket with these addresses.
    body.extend([0xff; 8]);
    let mut socket = Socket::new(SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.send_to(&framed(kind, flags, &body), &NetlinkAddr::new(0, 0), 0)?;
    let (bytes, _) = socket.recv_from_full()?;
    let answer = messages(&bytes).next();
    let (kind, body) = answer.ok_or(io::ErrorKind::UnexpectedEof)?;
    if kind != ERROR {
        return Ok(true);
    }
    match outcome(body) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

fn padded(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// `IPPROTO_TCP` and `IPPROTO_UDP` of linux/in.h.
const TCP: u8 = 6;
const UDP: u8 = 17;
// linux/netlink.h
const SOCK_DIAG: isize = 4;
// linux/sock_diag.h
const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn a_socket_is_there_until_it_is_closed() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (one, other) = (
                UdpSocket::bind(address).unwrap(),
                UdpSocket::bind(address).unwrap(),
            );
            let (from, to) = (one.local_addr().unwrap(), other.local_addr().unwrap());
            one.connect(to).unwrap();
            if !is_there(UDP, from, to).unwrap() {
                hawser_testing::skip("the kernel does not tell of sockets");
                return;
            }
            drop(one);
            assert!(!is_there(UDP, from, to).unwrap());
            let listener = TcpListener::bind(address).unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (from, to) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
            assert!(is_there(TCP, from, to).unwrap());
            assert!(!is_there(TCP, from, SocketAddr::new(to.ip(), from.port())).unwrap());
        }
    }
}
