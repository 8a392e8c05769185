//! Client's end: maintains a connection to the hub over one network while it is needed.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use hawser_config::Proxy;
use hawser_config::identity::KeyHash;
use hawser_linux::udp::keep_outside;
use rustls::pki_types::ServerName;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_websockets::{ClientBuilder, Limits, WebSocketStream};

use super::bounded::Bounded;
use super::carry::{Carrier, Local};
use super::{HANDSHAKE, HEAD, TLS_BUFFER, certificate, loopback, prepare, proxy};
use crate::event_thread::{EventThread, Task};
use crate::relays::LONGEST;

/// Parameters of a connection.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Device of the network.
    pub device: String,
    /// Address of the hub.
    pub remote: SocketAddr,
    /// Name of the hub: in TLS, in HTTP, and for a proxy.
    pub host: String,
    /// Proxy of the network.
    pub proxy: Option<Proxy>,
    /// Key of the hub.
    pub hub: KeyHash,
}

/// State of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsState {
    /// Being opened.
    Dialing,
    /// Open for datagrams.
    Up {
        /// Set if the certificate is of the hub's own key; otherwise an intermediary may see as
        /// much as every router sees of UDP.
        is_hubs_key: bool,
    },
    /// Failed or broken; it is retried.
    Down(String),
}

/// Connection that is maintained until dropped.
pub struct Dialer {
    /// Address on loopback that replaces the hub's address.
    pub relay: SocketAddr,
    /// Sockets for the data plane and for QUIC, which can be taken once.
    pub sockets: Option<(UdpSocket, UdpSocket)>,
    _task: Task,
}

impl Dialer {
    /// Starts the connection; its state is reported through `news`, under `name`.
    ///
    /// # Errors
    /// If there is no loopback, or no descriptor is available.
    pub fn start<N: Copy + Send + Sync + 'static>(
        relays: &EventThread,
        plan: Plan,
        name: N,
        news: mpsc::UnboundedSender<(N, TlsState)>,
    ) -> io::Result<Self> {
        let (relay, data, control) = (bind()?, bind()?, bind()?);
        let address = relay.local_addr()?;
        let (to_data, to_control) = (data.local_addr()?, control.local_addr()?);
        let task = relays.spawn(async move {
            let tell = |way| {
                // The receiver is dropped when the client ends.
                let _ = news.send((name, way));
            };
            let result = match Local::new(relay, to_data, to_control) {
                Ok(local) => keep(&plan, &local, &tell).await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = result {
                tell(TlsState::Down(format!("{error:#}")));
            }
        });
        Ok(Self {
            relay: address,
            sockets: Some((data, control)),
            _task: task,
        })
    }
}

fn bind() -> io::Result<UdpSocket> {
    UdpSocket::bind(loopback())
}

/// Opens a connection and closes it. Returns whether its certificate is of the hub's own key.
///
/// # Errors
/// The reason for the failure, as text.
pub async fn try_once(plan: &Plan) -> Result<bool, String> {
    let tls = certificate::client().map_err(|error| format!("{error:#}"))?;
    match tokio::time::timeout(HANDSHAKE, connect(plan, &tls)).await {
        Ok(Ok((_, is_hubs_key))) => Ok(is_hubs_key),
        Ok(Err(error)) => Err(format!("{error:#}")),
        Err(_) => Err("no answer".to_owned()),
    }
}

/// Opens the connection, transfers datagrams, and opens it again after a failure; ends only if it
/// can never succeed.
async fn keep(plan: &Plan, local: &Local, tell: &impl Fn(TlsState)) -> anyhow::Result<()> {
    let tls = certificate::client()?;
    let mut pause = FIRST_PAUSE;
    loop {
        tell(TlsState::Dialing);
        let made = tokio::time::timeout(HANDSHAKE, connect(plan, &tls)).await;
        let why = match made {
            Ok(Ok((mut stream, is_hubs_key))) => {
                // Discards what was sent while no connection existed.
                local.drain();
                tell(TlsState::Up { is_hubs_key });
                let since = Instant::now();
                let mut carrier = Carrier::new(&mut stream, local);
                let ended = carrier.carry().await;
                let dropped = carrier.dropped();
                if since.elapsed() > STEADY {
                    pause = FIRST_PAUSE;
                }
                tracing::debug!(network = plan.device, %ended, dropped, "TLS on TCP ended");
                ended.to_string()
            }
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => "no answer".to_owned(),
        };
        tell(TlsState::Down(why));
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

type Stream = WebSocketStream<Bounded<TlsStream<TcpStream>>>;

async fn connect(plan: &Plan, tls: &Arc<rustls::ClientConfig>) -> anyhow::Result<(Stream, bool)> {
    let host = plan.host.as_str();
    let port = plan.remote.port();
    let stream = match &plan.proxy {
        None => open(&plan.device, plan.remote).await?,
        Some(proxy) => {
            let stream = to_proxy(&plan.device, proxy).await?;
            proxy::pass(stream, proxy, (host, port)).await?
        }
    };
    let name = ServerName::try_from(host.to_owned()).context("the hub's name is not valid for TLS")?;
    let mut stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await?;
    stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let is_hubs_key = shown.is_some_and(|shown| certificate::is_of(shown, plan.hub));
    let place = format!("wss://{}/", proxy::authority(host, port));
    let (mut stream, _) = ClientBuilder::new()
        .uri(&place)
        .context("the hub's name is not valid for HTTP")?
        .limits(Limits::default().max_payload_len(Some(LONGEST)))
        .connect_on(Bounded::new(stream, HEAD))
        .await
        .context("the answer is not from a hub")?;
    stream.get_mut().lift();
    Ok((stream, is_hubs_key))
}

async fn to_proxy(device: &str, proxy: &Proxy) -> anyhow::Result<TcpStream> {
    let called = (proxy.host.as_str(), proxy.port);
    let addresses = tokio::net::lookup_host(called)
        .await
        .with_context(|| format!("cannot resolve the proxy's name {}", proxy.host))?;
    let mut last = None;
    for address in addresses {
        match open(device, address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    let error = last.unwrap_or_else(|| io::ErrorKind::NotFound.into());
    Err(error).with_context(|| format!("cannot reach the proxy {}", proxy.host))
}

/// Opens a connection over `device`, outside the tunnel.
async fn open(device: &str, remote: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM, Some(Protocol::TCP))?;
    keep_outside(&socket, Some(device))?;
    socket.set_nonblocking(true)?;
    let stream = TcpSocket::from_std_stream(socket.into()).connect(remote).await?;
    prepare(&stream)?;
    Ok(stream)
}

/// Pause after the first failed attempt; doubles up to [`LAST_PAUSE`]. Source: our choice; a
/// shorter one repeats an error that lasts for a round trip, a longer one delays the first session
/// behind a firewall.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Maximum pause between attempts: the time to detect a network that returns with UDP still
/// blocked. Source: our choice; a shorter one costs a handshake more often where neither UDP nor
/// TCP passes.
const LAST_PAUSE: Duration = Duration::from_secs(8);
/// Lifetime after which a connection counts as successful. Source: our choice, longer than
/// [`LAST_PAUSE`], so that a proxy that closes each connection at once is not asked every half
/// second.
const STEADY: Duration = Duration::from_secs(10);
