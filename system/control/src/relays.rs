//! Sockets of relays: they work on a thread of their own ([`EventThread`]), so that what they carry
//! does not hold up the control side.
//!
//! [`EventThread`]: crate::event_thread::EventThread

use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::task::{Context, Poll};

use hawser_linux::udp::{DataSocket, plain};
use quinn_udp::RecvMeta;
use tokio::io::Interest;

/// A relay's socket: batches in, batches out.
#[derive(Debug)]
pub struct Port {
    /// A second handle: says when something waits.
    ready: tokio::net::UdpSocket,
    socket: DataSocket,
}

impl Port {
    /// To be called on the relays' thread.
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

    /// Where it is.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.ready.local_addr()
    }

    /// How many equal datagrams one [`send`](Self::send) may carry.
    pub fn max_segments(&self) -> usize {
        self.socket.max_segments()
    }

    /// Sends datagrams of `segment` bytes each (the last may be shorter) to one address.
    pub fn send(&self, to: SocketAddr, bytes: &[u8], segment: usize, ecn: u8) -> io::Result<()> {
        self.socket.send(None, to, bytes, segment, ecn)
    }

    /// Takes in what waits now, a few batches at most; how many there were.
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

    /// Waits for datagrams, and takes in a few batches of them.
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
                // Somebody was not there yet, or is not any more.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                other => return Poll::Ready(other),
            }
        }
    }
}

/// Where a relay on this machine reaches the hub's UDP port.
pub(crate) fn reached_at(hub: SocketAddr) -> SocketAddr {
    let hub = plain(hub);
    if hub.ip().is_unspecified() {
        (Ipv4Addr::LOCALHOST, hub.port()).into()
    } else {
        hub
    }
}

/// How many descriptors this process may have.
pub(crate) fn descriptors() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    soft.map_or(LEAST_DESCRIPTORS, |soft| {
        soft.parse().unwrap_or(LEAST_DESCRIPTORS)
    })
}

thread_local! {
    /// Shared by all relays: nothing stays in them between two calls.
    static BUFFERS: RefCell<[Vec<u8>; AT_ONCE]> =
        RefCell::new(std::array::from_fn(|_| vec![0; u16::MAX as usize]));
}

/// Buffers of one call, each with many datagrams of one size.
const AT_ONCE: usize = 4;
/// What every system gives.
const LEAST_DESCRIPTORS: usize = 1_024;
