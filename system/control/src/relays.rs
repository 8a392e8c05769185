//! Sockets of relays, which run on a separate thread ([`EventThread`]), so that their traffic does
//! not delay the control side.
//!
//! [`EventThread`]: crate::event_thread::EventThread

use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hawser_linux::udp::{DataSocket, plain};
use quinn_udp::RecvMeta;
use tokio::io::Interest;

/// Socket of a relay, which receives and sends in batches.
#[derive(Debug)]
pub struct Port {
    /// Second handle, which becomes ready when a datagram waits.
    ready: tokio::net::UdpSocket,
    socket: DataSocket,
}

impl Port {
    /// Creates a relay socket. Must be called on the relays' thread.
    ///
    /// # Errors
    /// The socket cannot be prepared.
    pub fn new(socket: UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            ready: tokio::net::UdpSocket::from_std(socket.try_clone()?)?,
            socket: DataSocket::new(Arc::new(socket))?,
        })
    }

    /// Returns the local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.ready.local_addr()
    }

    /// Returns how many equal datagrams one [`send`](Self::send) may contain.
    pub fn max_segments(&self) -> usize {
        self.socket.max_segments()
    }

    /// Sends datagrams of `segment` bytes each (the last may be shorter) to one address.
    pub fn send(&self, to: SocketAddr, bytes: &[u8], segment: usize, ecn: u8) -> io::Result<()> {
        self.socket.send(None, to, bytes, segment, ecn)
    }

    /// Receives waiting datagrams, at most a few batches. Returns their number.
    pub fn receive(&self, mut each: impl FnMut(&RecvMeta, &[u8])) -> io::Result<usize> {
        BUFFERS.with_borrow_mut(|buffers| {
            let mut meta = [RecvMeta::default(); AT_ONCE];
            let mut slices = buffers.each_mut().map(|buffer| IoSliceMut::new(buffer));
            let count = self.socket.receive(&mut slices, &mut meta)?;
            for (buffer, meta) in buffers.iter().zip(&meta[..count]) {
                each(meta, &buffer[..meta.len]);
            }
            Ok(count)
        })
    }

    /// Waits for datagrams, and receives a few batches of them.
    pub fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        mut each: impl FnMut(&RecvMeta, &[u8]),
    ) -> Poll<io::Result<()>> {
        loop {
            std::task::ready!(self.ready.poll_recv_ready(cx))?;
            let received = self
                .ready
                .try_io(Interest::READABLE, || match self.receive(&mut each)? {
                    0 => Err(io::ErrorKind::WouldBlock.into()),
                    _ => Ok(()),
                });
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The receiver does not exist yet, or no longer.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                other => return Poll::Ready(other),
            }
        }
    }
}

/// Returns the hub's UDP address for a relay on this machine.
pub(crate) fn reached_at(hub: SocketAddr) -> SocketAddr {
    let hub = plain(hub);
    if hub.ip().is_unspecified() {
        (Ipv4Addr::LOCALHOST, hub.port()).into()
    } else {
        hub
    }
}

/// Returns the limit of this process's descriptors.
pub(crate) fn descriptors() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    soft.map_or(MIN_DESCRIPTORS, |soft| soft.parse().unwrap_or(MIN_DESCRIPTORS))
}

thread_local! {
    /// Buffers that all relays share, since they are empty between two calls.
    static BUFFERS: RefCell<[Vec<u8>; AT_ONCE]> =
        RefCell::new(std::array::from_fn(|_| vec![0; u16::MAX as usize]));
}

/// Maximum length of a datagram. Source: our choice, the largest MTU of a network, 9,216 bytes,
/// with a margin; a larger one only gives a faulty peer more memory. Units: bytes.
pub(crate) const LONGEST: usize = 16 << 10;
/// Pause after an error of a socket. Source: our choice; errors such as a lack of descriptors last
/// for a while, a shorter pause takes processor time, and a longer one delays those who connect.
pub(crate) const BREATH: Duration = Duration::from_millis(100);
/// Buffers of one call, each with many datagrams of one size. Source: our choice, 256 KB for all
/// relays of a thread; more only help relays of more than 1 Gbit/s.
const AT_ONCE: usize = 4;
/// Minimum limit of every system. Source: `INR_OPEN_CUR` of linux/fs.h, the default soft limit of
/// Linux.
const MIN_DESCRIPTORS: usize = 1_024;
