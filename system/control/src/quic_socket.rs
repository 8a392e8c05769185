//! The QUIC socket of a hub, or of a repeater's access point: sends on the ports that the data
//! plane reads, and receives datagrams from the data plane.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use hawser_dataplane::ControlDatagram;
use hawser_linux::udp::plain;
use quinn::{AsyncUdpSocket, UdpPoller};
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use tokio::sync::mpsc;

/// Sending sockets: one for all, or one for each link, by the index of its interface, which is the
/// scope of link-local addresses there (RFC 4007 section 6).
#[derive(Clone, Default)]
pub struct Ports(Arc<Mutex<BTreeMap<u32, Arc<Port>>>>);

struct Port {
    socket: Arc<UdpSocket>,
    state: UdpSocketState,
    /// Set for a dual-stack socket, which accepts IPv4 destinations only in their mapped form.
    is_v6: bool,
}

/// Index of the socket for destinations without a link. Source: links have indices from 1 on (RFC
/// 3493 section 4).
const ANY: u32 = 0;

impl Ports {
    /// Creates an endpoint with one socket for all.
    ///
    /// # Errors
    /// The socket cannot be prepared.
    pub fn of(socket: Arc<UdpSocket>) -> io::Result<Self> {
        let ports = Self::default();
        ports.add(ANY, socket)?;
        Ok(ports)
    }

    /// Adds the socket of a link, and replaces the previous one.
    ///
    /// # Errors
    /// The socket cannot be prepared.
    pub fn add(&self, link: u32, socket: Arc<UdpSocket>) -> io::Result<()> {
        let state = UdpSocketState::new((&*socket).into())?;
        let is_v6 = socket.local_addr()?.is_ipv6();
        let port = Port { socket, state, is_v6 };
        self.lock().insert(link, Arc::new(port));
        Ok(())
    }

    /// Removes the socket of a link.
    pub fn remove(&self, link: u32) {
        self.lock().remove(&link);
    }

    fn to(&self, destination: SocketAddr) -> Option<Arc<Port>> {
        let ports = self.lock();
        let link = match destination {
            SocketAddr::V6(v6) => v6.scope_id(),
            SocketAddr::V4(_) => ANY,
        };
        ports.get(&link).or_else(|| ports.get(&ANY)).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Port>>> {
        self.0.lock().expect("no holder panics")
    }
}

/// Socket that shares its ports with the data plane.
pub struct SharedSocket {
    ports: Ports,
    incoming: Mutex<mpsc::Receiver<ControlDatagram>>,
}

impl fmt::Debug for SharedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSocket").finish_non_exhaustive()
    }
}

impl SharedSocket {
    /// Combines the sockets with the datagrams that the data plane reads from them.
    #[must_use]
    pub fn new(ports: Ports, incoming: mpsc::Receiver<ControlDatagram>) -> Self {
        Self {
            ports,
            incoming: Mutex::new(incoming),
        }
    }
}

impl AsyncUdpSocket for SharedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        // The link was removed, so the datagram counts as lost.
        let Some(port) = self.ports.to(transmit.destination) else {
            return Ok(());
        };
        let transmit = Transmit {
            destination: destination(transmit.destination, port.is_v6),
            src_ip: transmit.src_ip.map(|ip| source(ip, port.is_v6)),
            ..transmit.clone()
        };
        match port.state.try_send((&*port.socket).into(), &transmit) {
            // The data plane fills the buffer: the datagram counts as lost, and QUIC retransmits
            // it.
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
        let first = self.ports.lock().values().next().cloned();
        match first {
            Some(port) => port.socket.local_addr(),
            // No link is available yet; only the family is needed.
            None => Ok((Ipv6Addr::UNSPECIFIED, 0).into()),
        }
    }

    fn may_fragment(&self) -> bool {
        let ports = self.ports.lock();
        ports.values().any(|port| port.state.may_fragment())
    }

    fn max_transmit_segments(&self) -> usize {
        let ports = self.ports.lock();
        let segments = ports.values().map(|port| port.state.max_gso_segments());
        segments.min().unwrap_or(1)
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
