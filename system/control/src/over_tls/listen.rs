//! Hub's end: accepts connections, and forwards their datagrams to the hub's own UDP port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::Instant;

use anyhow::{Context, ensure};
use hawser_linux::udp::plain;
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_websockets::{Limits, ServerBuilder, WebSocketStream};

use super::bounded::Bounded;
use super::carry::{Carrier, Local};

use super::certificate::ACME_ALPN;
pub use super::certificate::PresentedCertificate;
use super::{HANDSHAKE, HEAD, THREAD, TLS_BUFFER, certificate, prepare};
use crate::event_thread::{EventThread, Task};
use crate::relay_connections::{
    KNOWN_FOR, POLL_INTERVAL, RelayConnections, RelaySlot, STRANGE_FOR, STRANGERS,
};
use crate::relays::{BREATH, LONGEST, descriptors, reached_at};

/// Listener for connections, which ends when dropped.
pub struct Listening {
    at: SocketAddr,
    connections: RelayConnections,
    // The order of the fields lets the task end before its thread.
    _task: Task,
    _relays: EventThread,
}

impl Listening {
    /// Listens at `at` for the hub whose UDP port is `hub`.
    ///
    /// # Errors
    /// If another program listens there, or no thread or descriptor is available.
    pub fn start(at: SocketAddr, hub: SocketAddr, shown: PresentedCertificate) -> anyhow::Result<Self> {
        let listener = open(at).with_context(|| format!("cannot listen on TCP {at}"))?;
        let at = listener.local_addr()?;
        let tls = TlsAcceptor::from(certificate::server(shown)?);
        let relays = EventThread::start(THREAD)?;
        let connections = RelayConnections::new(NET, max_known(descriptors()));
        let door = Door {
            tls,
            connections: connections.clone(),
            hub: reached_at(hub),
        };
        let task = relays.spawn(async move {
            if let Err(error) = door.take(listener).await {
                tracing::error!(%error, "no longer accepting connections over TLS");
            }
        });
        Ok(Self {
            at,
            connections,
            _task: task,
            _relays: relays,
        })
    }

    /// Returns the counts of connections, and their sources.
    pub fn connections(&self) -> &RelayConnections {
        &self.connections
    }

    /// Returns the entry of `hawser status --json`.
    pub fn status(&self) -> Value {
        let (clients, strangers, turned_away) = self.connections.counts();
        json!({
            "listen": self.at,
            "connections": clients,
            "strangers": strangers,
            "turned_away": turned_away,
            "crowded": self.connections.crowded(),
        })
    }
}

#[derive(Clone)]
struct Door {
    tls: TlsAcceptor,
    connections: RelayConnections,
    hub: SocketAddr,
}

impl Door {
    async fn take(self, listener: TcpListener) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            match listener.accept().await {
                Ok((stream, from)) => {
                    let from = plain(from);
                    if let Some(slot) = self.connections.enter(from) {
                        let door = self.clone();
                        hawser_linux::tasks::spawn(async move { door.serve(stream, slot, from).await });
                    }
                }
                // The connection has already ended, or no descriptor is available.
                Err(error) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
    }

    async fn serve(&self, stream: TcpStream, slot: RelaySlot, from: SocketAddr) {
        let since = Instant::now();
        let welcomed = tokio::time::timeout(HANDSHAKE, self.welcome(stream)).await;
        match welcomed {
            Ok(Ok(stream)) => {
                tracing::debug!(%from, "over TLS");
                match self.forward(stream, slot, since).await {
                    Ok(why) => tracing::debug!(%from, why, "TLS on TCP ended"),
                    Err(error) => tracing::warn!(%error, "cannot forward to the hub's own port"),
                }
            }
            Ok(Err(error)) => tracing::debug!(%from, error = format!("{error:#}"), "no client"),
            Err(_) => tracing::debug!(%from, "not a client: it sent too little in time"),
        }
    }

    async fn welcome(
        &self,
        stream: TcpStream,
    ) -> anyhow::Result<WebSocketStream<Bounded<tokio_rustls::server::TlsStream<TcpStream>>>> {
        prepare(&stream)?;
        let mut stream = self.tls.accept(stream).await?;
        // The authority needed only the handshake.
        ensure!(
            stream.get_ref().1.alpn_protocol() != Some(ACME_ALPN),
            "validation of a certificate authority"
        );
        stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
        let (_, mut stream) = ServerBuilder::new()
            .limits(Limits::default().max_payload_len(Some(LONGEST)))
            .accept(Bounded::new(stream, HEAD))
            .await?;
        stream.get_mut().lift();
        Ok(stream)
    }

    /// Forwards until the connection ends, or until the hub no longer knows its client; for an
    /// unknown client until [`STRANGE_FOR`] after `since`, the time of acceptance.
    async fn forward<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(
        &self,
        mut stream: WebSocketStream<S>,
        mut slot: RelaySlot,
        since: Instant,
    ) -> io::Result<String> {
        let own = match self.hub {
            SocketAddr::V4(_) => IpAddr::from(slot.appears_as),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let socket = UdpSocket::bind((own, 0))?;
        slot.show(socket.local_addr()?);
        let local = Local::new(socket, self.hub, self.hub)?;
        let mut carrier = Carrier::new(&mut stream, &local);
        loop {
            let left = STRANGE_FOR.saturating_sub(since.elapsed());
            let look = if left.is_zero() {
                POLL_INTERVAL
            } else {
                POLL_INTERVAL.min(left)
            };
            if let Ok(ended) = tokio::time::timeout(look, carrier.carry()).await {
                return Ok(ended.to_string());
            }
            let is_client = match carrier.data_seen {
                Some(at) if slot.is_claimed() => at.elapsed() < KNOWN_FOR && slot.know(),
                Some(_) | None => since.elapsed() < STRANGE_FOR,
            };
            if !is_client {
                return Ok("the hub does not answer it".to_owned());
            }
        }
    }
}

/// Opens a listener for both address families, or only for IPv4 if there is no IPv6.
fn open(at: SocketAddr) -> io::Result<TcpListener> {
    let bind = |at: SocketAddr| -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
        if at.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        // Connections of an earlier process in the kernel do not prevent this.
        socket.set_reuse_address(true)?;
        socket.bind(&at.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    match bind(at) {
        Err(error) if at.ip() == Ipv6Addr::UNSPECIFIED && error.kind() != io::ErrorKind::AddrInUse => {
            bind((Ipv4Addr::UNSPECIFIED, at.port()).into())
        }
        other => other,
    }
}

/// Returns the maximum number of known connections: [`EACH`] needs as many descriptors, and the
/// rest of the hub some.
fn max_known(descriptors: usize) -> usize {
    (descriptors.saturating_sub(RESERVED) / EACH)
        .saturating_sub(STRANGERS)
        .clamp(1, KNOWN)
}

/// Second byte of addresses on loopback: 127.83.0.1 and so on. Source: our choice, a number that no
/// other program is known to use; logs show by it which relay is meant.
const NET: u8 = 83;
/// Maximum number of connections of known clients. Source: our choice, a bound on memory; the
/// 65,536 descriptors of the unit (`LimitNOFILE=`) permit 21,504, at [`EACH`] for each.
const KNOWN: usize = 8_192;
/// Descriptors of a connection. Source: TCP, and two handles of the socket on loopback.
const EACH: usize = 3;
/// Descriptors for the rest of the hub. Source: our choice, more than sessions without TLS need:
/// sockets of the hub, files and the dashboard.
const RESERVED: usize = 256;
/// Maximum number of connections that wait for acceptance. Source: listen(2), the default limit of
/// Linux before 5.4.
const BACKLOG: i32 = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_descriptors_mean_few_clients() {
        assert_eq!(max_known(RESERVED + EACH * (STRANGERS + 3)), 3);
        assert_eq!((max_known(1_024), max_known(65_536)), (1, KNOWN));
    }
}
