//! The hub's QUIC socket: sends on the port that the data plane reads, and hears what the data
//! plane hands over.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use hawser_linux::udp::plain;
use quinn::{AsyncUdpSocket, UdpPoller};
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use tokio::sync::mpsc;

use hawser_dataplane::ControlDatagram;

/// A socket that shares its port with the data plane.
pub struct SharedSocket {
    socket: Arc<UdpSocket>,
    state: UdpSocketState,
    /// A dual-stack socket takes IPv4 destinations only in their mapped form.
    is_v6: bool,
    incoming: Mutex<mpsc::Receiver<ControlDatagram>>,
}

impl fmt::Debug for SharedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSocket")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

impl SharedSocket {
    /// Joins the socket to the datagrams that the data plane takes off it.
    ///
    /// # Errors
    /// The socket cannot be prepared.
    pub fn new(socket: Arc<UdpSocket>, incoming: mpsc::Receiver<ControlDatagram>) -> io::Result<Self> {
        let state = UdpSocketState::new((&*socket).into())?;
        let is_v6 = socket.local_addr()?.is_ipv6();
        Ok(Self {
            socket,
            state,
            is_v6,
            incoming: Mutex::new(incoming),
        })
    }
}

impl AsyncUdpSocket for SharedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let transmit = Transmit {
            destination: destination(transmit.destination, self.is_v6),
            src_ip: transmit.src_ip.map(|ip| source(ip, self.is_v6)),
            ..transmit.clone()
        };
        match self.state.try_send((&*self.socket).into(), &transmit) {
            // The data plane fills the buffer: the datagram counts as lost on the way, and QUIC
            // sends it again.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            // One unreachable client must not end the endpoint.
            Err(error) => {
                tracing::debug!(%error, to = %transmit.destination, "control datagram not sent");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut incoming = self.incoming.lock().expect("no holder panics");
        let mut filled = 0;
        while filled < bufs.len().min(meta.len()) {
            match incoming.poll_recv(cx) {
                Poll::Ready(Some(datagram)) => {
                    let Some(into) = bufs[filled].get_mut(..datagram.bytes.len()) else {
                        continue;
                    };
                    into.copy_from_slice(&datagram.bytes);
                    meta[filled] = RecvMeta {
                        addr: plain(datagram.from),
                        len: datagram.bytes.len(),
                        stride: datagram.bytes.len(),
                        ecn: EcnCodepoint::from_bits(datagram.ecn),
                        dst_ip: datagram.to.map(|to| to.to_canonical()),
                    };
                    filled += 1;
                }
                Poll::Ready(None) if filled == 0 => {
                    return Poll::Ready(Err(io::Error::new(
                        io::ErrorKind::BrokenPipe,
                        "the data plane stopped",
                    )));
                }
                Poll::Pending if filled == 0 => return Poll::Pending,
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(filled))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }
}

fn destination(address: SocketAddr, is_v6: bool) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if is_v6 => SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into(),
        SocketAddr::V4(_) | SocketAddr::V6(_) => address,
    }
}

fn source(address: IpAddr, is_v6: bool) -> IpAddr {
    match address {
        IpAddr::V4(v4) if is_v6 => v4.to_ipv6_mapped().into(),
        IpAddr::V4(_) | IpAddr::V6(_) => address,
    }
}

#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
