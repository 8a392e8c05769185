//! Raw socket for GRE: the hub's user-space end of tunnels to members without Hawser.

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Socket that receives and sends complete IPv4 packets of protocol 47.
///
/// The kernel reassembles fragments before delivering a packet, and does not fragment sent ones.
/// GRE tunnels of the kernel continue to work.
#[derive(Debug)]
pub struct GreSocket {
    socket: AsyncFd<Socket>,
}

impl GreSocket {
    /// Opens the socket. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Privileges (`CAP_NET_RAW`) are missing.
    pub fn open() -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(libc::IPPROTO_GRE)))?;
        socket.set_header_included_v4(true)?;
        socket.set_nonblocking(true)?;
        crate::udp::grow(&socket);
        // SAFETY: the socket is open, and stays so and the same until the `AsyncFd` that owns it is
        // gone.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE)? };
        Ok(Self { socket })
    }

    /// Waits for packets, and receives at most `most` of them, each with its IPv4 header. Cancel
    /// safe.
    ///
    /// # Errors
    /// The event loop has ended.
    pub async fn receive(
        &self,
        most: usize,
        buffer: &mut [u8],
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let mut ready = self.socket.readable().await?;
        for _ in 0..most {
            match self.socket.get_ref().read(buffer) {
                Ok(len) => each(&buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    break;
                }
                // The error of an earlier sent packet.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Sends a packet, including its IPv4 header.
    ///
    /// # Errors
    /// `WouldBlock` if the kernel's buffer is full; otherwise an error of the network.
    pub fn send(&self, packet: &[u8], to: Ipv4Addr) -> io::Result<()> {
        let to = SocketAddr::from((to, 0));
        self.socket.get_ref().send_to(packet, &to.into()).map(drop)
    }
}
