//! A hub's end: takes connections, and forwards what they carry to the hub's own UDP port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

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
pub use super::certificate::Shown;
use super::{HANDSHAKE, HEAD, LONGEST, THREAD, TLS_BUFFER, certificate, prepare};
use crate::event_thread::{EventThread, Task};
use crate::places::{KNOWN_FOR, LOOK, Place, Places, STRANGE_FOR, STRANGERS};
use crate::relays::{descriptors, reached_at};

/// Takes connections until it is dropped.
pub struct Listening {
    at: SocketAddr,
    places: Places,
    // In this order: the task ends before its thread.
    _task: Task,
    _relays: EventThread,
}

impl Listening {
    /// Listens at `at` for the hub whose UDP port is `hub`.
    ///
    /// # Errors
    /// Somebody else listens there, or no thread or descriptor is left.
    pub fn start(at: SocketAddr, hub: SocketAddr, shown: Shown) -> anyhow::Result<Self> {
        let listener = open(at).with_context(|| format!("cannot listen on TCP {at}"))?;
        let at = listener.local_addr()?;
        let tls = TlsAcceptor::from(certificate::server(shown)?);
        let relays = EventThread::start(THREAD)?;
        let places = Places::new(NET, most_known(descriptors()));
        let door = Door {
            tls,
            places: places.clone(),
            hub: reached_at(hub),
        };
        let task = relays.spawn(async move {
            if let Err(error) = door.take(listener).await {
                tracing::error!(%error, "no connections over TLS any more");
            }
        });
        Ok(Self {
            at,
            places,
            _task: task,
            _relays: relays,
        })
    }

    /// Who is there, and from where.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// For `hawser status --json`.
    pub fn status(&self) -> Value {
        let (clients, strangers, turned_away) = self.places.counts();
        json!({
            "listen": self.at,
            "connections": clients,
            "strangers": strangers,
            "turned_away": turned_away,
            "crowded": self.places.crowded(),
        })
    }
}

#[derive(Clone)]
struct Door {
    tls: TlsAcceptor,
    places: Places,
    hub: SocketAddr,
}

impl Door {
    async fn take(self, listener: TcpListener) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            match listener.accept().await {
                Ok((stream, from)) => {
                    let from = plain(from);
                    if let Some(place) = self.places.enter(from) {
                        let door = self.clone();
                        hawser_linux::tasks::spawn(async move { door.serve(stream, place, from).await });
                    }
                }
                // One that has ended already, or no descriptor is left for now.
                Err(error) => {
                    tracing::debug!(%error, "a connection was not taken");
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
    }

    async fn serve(&self, stream: TcpStream, place: Place, from: SocketAddr) {
        let since = Instant::now();
        let welcomed = tokio::time::timeout(HANDSHAKE, self.welcome(stream)).await;
        match welcomed {
            Ok(Ok(stream)) => {
                tracing::debug!(%from, "over TLS");
                match self.forward(stream, place, since).await {
                    Ok(why) => tracing::debug!(%from, why, "TLS on TCP ended"),
                    Err(error) => tracing::warn!(%error, "cannot forward to the hub's own port"),
                }
            }
            Ok(Err(error)) => tracing::debug!(%from, error = format!("{error:#}"), "no client"),
            Err(_) => tracing::debug!(%from, "no client: it said too little in time"),
        }
    }

    async fn welcome(
        &self,
        stream: TcpStream,
    ) -> anyhow::Result<WebSocketStream<Bounded<tokio_rustls::server::TlsStream<TcpStream>>>> {
        prepare(&stream)?;
        let mut stream = self.tls.accept(stream).await?;
        // It has seen what it came for in the handshake.
        ensure!(
            stream.get_ref().1.alpn_protocol() != Some(ACME_ALPN),
            "an authority has looked"
        );
        stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
        let (_, mut stream) = ServerBuilder::new()
            .limits(Limits::default().max_payload_len(Some(LONGEST)))
            .accept(Bounded::new(stream, HEAD))
            .await?;
        stream.get_mut().lift();
        Ok(stream)
    }

    /// Forwards until the connection ends, or is of nobody that the hub knows; of a stranger until
    /// [`STRANGE_FOR`] after `since`, when the connection was taken.
    async fn forward<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(
        &self,
        mut stream: WebSocketStream<S>,
        mut place: Place,
        since: Instant,
    ) -> io::Result<String> {
        let own = match self.hub {
            SocketAddr::V4(_) => IpAddr::from(place.appears_as),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let socket = UdpSocket::bind((own, 0))?;
        place.show(socket.local_addr()?);
        let local = Local::new(socket, self.hub, self.hub)?;
        let mut carrier = Carrier::new(&mut stream, &local);
        loop {
            let left = STRANGE_FOR.saturating_sub(since.elapsed());
            let look = if left.is_zero() { LOOK } else { LOOK.min(left) };
            if let Ok(ended) = tokio::time::timeout(look, carrier.carry()).await {
                return Ok(ended.to_string());
            }
            let is_client = match carrier.data_seen {
                Some(at) if place.is_claimed() => at.elapsed() < KNOWN_FOR && place.know(),
                Some(_) | None => since.elapsed() < STRANGE_FOR,
            };
            if !is_client {
                return Ok("the hub says nothing to it".to_owned());
            }
        }
    }
}

/// For both families at once, or for IPv4 alone where there is no IPv6.
fn open(at: SocketAddr) -> io::Result<TcpListener> {
    let bind = |at: SocketAddr| -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
        if at.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        // What an earlier process has left in the kernel is in the way of nobody.
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

/// How many may be known at once: [`EACH`] takes so many descriptors, and the rest of the hub some.
fn most_known(descriptors: usize) -> usize {
    (descriptors.saturating_sub(RESERVED) / EACH)
        .saturating_sub(STRANGERS)
        .clamp(1, KNOWN)
}

/// The second byte of addresses on loopback: 127.83.0.1 and so on.
const NET: u8 = 83;
/// Known connections.
const KNOWN: usize = 8_192;
/// Descriptors of a connection: TCP, and the socket on loopback by two handles.
const EACH: usize = 3;
/// Descriptors for the rest of the hub.
const RESERVED: usize = 256;
/// Connections that wait to be taken.
const BACKLOG: i32 = 128;
/// After trouble with taking a connection.
const BREATH: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_descriptors_mean_few_clients() {
        assert_eq!(most_known(RESERVED + EACH * (STRANGERS + 3)), 3);
        assert_eq!((most_known(1_024), most_known(65_536)), (1, KNOWN));
    }
}
