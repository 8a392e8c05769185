//! A client's end: keeps a connection to the hub over one network for as long as it is wanted.

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
use super::{HANDSHAKE, HEAD, LONGEST, TLS_BUFFER, certificate, loopback, prepare, proxy};
use crate::event_thread::{EventThread, Task};

/// Where to, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The network's device.
    pub device: String,
    /// Where the hub listens.
    pub remote: SocketAddr,
    /// What the hub is called: in TLS, in HTTP, and to a proxy.
    pub host: String,
    /// The proxy of the network.
    pub proxy: Option<Proxy>,
    /// The hub's key.
    pub hub: KeyHash,
}

/// How a connection stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is being made.
    Dialing,
    /// It carries datagrams.
    Up {
        /// Whether the certificate is of the hub's own key; else somebody may be in between, who
        /// sees what everybody on the way sees of UDP.
        is_hubs_key: bool,
    },
    /// It could not be made or broke; it is tried again.
    Down(String),
}

/// Keeps a connection until it is dropped.
pub struct Dialer {
    /// What stands in place of the hub, on loopback.
    pub relay: SocketAddr,
    /// For the data plane and for QUIC: taken once.
    pub sockets: Option<(UdpSocket, UdpSocket)>,
    _task: Task,
}

impl Dialer {
    /// Begins; how it goes is told through `news`, under `name`.
    ///
    /// # Errors
    /// There is no loopback, or no descriptor is left.
    pub fn start<N: Copy + Send + Sync + 'static>(
        relays: &EventThread,
        plan: Plan,
        name: N,
        news: mpsc::UnboundedSender<(N, Way)>,
    ) -> io::Result<Self> {
        let (relay, data, control) = (bind()?, bind()?, bind()?);
        let address = relay.local_addr()?;
        let (to_data, to_control) = (data.local_addr()?, control.local_addr()?);
        let task = relays.spawn(async move {
            let tell = |way| {
                // Nobody listens any more when the client ends.
                let _ = news.send((name, way));
            };
            let result = match Local::new(relay, to_data, to_control) {
                Ok(local) => keep(&plan, &local, &tell).await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = result {
                tell(Way::Down(format!("{error:#}")));
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

/// Makes a connection and ends it; whether its certificate is of the hub's own key.
///
/// # Errors
/// Why there is none, in words.
pub async fn try_once(plan: &Plan) -> Result<bool, String> {
    let tls = certificate::client().map_err(|error| format!("{error:#}"))?;
    match tokio::time::timeout(HANDSHAKE, connect(plan, &tls)).await {
        Ok(Ok((_, is_hubs_key))) => Ok(is_hubs_key),
        Ok(Err(error)) => Err(format!("{error:#}")),
        Err(_) => Err("no answer".to_owned()),
    }
}

/// Makes the connection, carries, and makes it anew; ends only when it can never be made.
async fn keep(plan: &Plan, local: &Local, tell: &impl Fn(Way)) -> anyhow::Result<()> {
    let tls = certificate::client()?;
    let mut pause = FIRST_PAUSE;
    loop {
        tell(Way::Dialing);
        let made = tokio::time::timeout(HANDSHAKE, connect(plan, &tls)).await;
        let why = match made {
            Ok(Ok((mut stream, is_hubs_key))) => {
                // What waits was sent to nobody.
                local.drain();
                tell(Way::Up { is_hubs_key });
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
        tell(Way::Down(why));
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
    let name = ServerName::try_from(host.to_owned()).context("the hub's name is none for TLS")?;
    let mut stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await?;
    stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let is_hubs_key = shown.is_some_and(|shown| certificate::is_of(shown, plan.hub));
    let place = format!("wss://{}/", proxy::authority(host, port));
    let (mut stream, _) = ClientBuilder::new()
        .uri(&place)
        .context("the hub's name is none for HTTP")?
        .limits(Limits::default().max_payload_len(Some(LONGEST)))
        .connect_on(Bounded::new(stream, HEAD))
        .await
        .context("what answers is no hub")?;
    stream.get_mut().lift();
    Ok((stream, is_hubs_key))
}

async fn to_proxy(device: &str, proxy: &Proxy) -> anyhow::Result<TcpStream> {
    let called = (proxy.host.as_str(), proxy.port);
    let addresses = tokio::net::lookup_host(called)
        .await
        .with_context(|| format!("cannot look the proxy's name {} up", proxy.host))?;
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

/// A connection over `device`, outside of the tunnel.
async fn open(device: &str, remote: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM, Some(Protocol::TCP))?;
    keep_outside(&socket, Some(device))?;
    socket.set_nonblocking(true)?;
    let stream = TcpSocket::from_std_stream(socket.into()).connect(remote).await?;
    prepare(&stream)?;
    Ok(stream)
}

const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// A network that comes back with UDP still blocked is found within this.
const LAST_PAUSE: Duration = Duration::from_secs(8);
/// A connection that lived so long was no mistake.
const STEADY: Duration = Duration::from_secs(10);
