//! Listeners of the page: HTTPS on each LAN address, and HTTP that redirects to it.
//!
//! `hyper` parses requests, because they are untrusted, connections are persistent (a phone sends a
//! request per second, and each TLS handshake costs 1 ms), and changes have bodies. Connections,
//! heads, bodies and the time of each are bounded.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HOST, HeaderMap, LOCATION};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::lans::Listening;

/// A request to the page.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) fields: HeaderMap,
    pub(super) body: Bytes,
    /// Address of the browser.
    pub(super) from: IpAddr,
    /// Address of this gateway that received it.
    pub(super) own: IpAddr,
}

impl Asked {
    /// Returns a header field; `None` if it is missing or not text.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name)?.to_str().ok()
    }
}

/// An answer.
pub(super) type Answer = Response<Full<Bytes>>;

/// Function that answers requests.
pub(super) type Answers = Arc<dyn Fn(Asked) -> Pin<Box<dyn Future<Output = Answer> + Send>> + Send + Sync>;

/// Function that returns the host to which HTTP is redirected; `None` if the requested host is not
/// this page's.
pub(super) type Leads = Arc<dyn Fn(Option<&str>, IpAddr) -> Option<String> + Send + Sync>;

/// Listeners of the page.
pub(super) struct Server {
    tls: TlsAcceptor,
    answers: Answers,
    leads: Leads,
    listeners: BTreeMap<(String, IpAddr, u16), JoinHandle<()>>,
    connections: Arc<Semaphore>,
}

impl Server {
    pub(super) fn new(tls: TlsAcceptor, answers: Answers, leads: Leads) -> Self {
        Self {
            tls,
            answers,
            leads,
            listeners: BTreeMap::new(),
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        }
    }

    /// Listens at these addresses, and closes all other listeners. Returns the addresses at which
    /// another program uses the HTTPS port, with the reason.
    pub(super) fn listen(&mut self, places: &Listening) -> Vec<String> {
        self.listeners.retain(|(name, address, _), task| {
            let stays = places.contains(&(name.clone(), *address)) && !task.is_finished();
            if !stays {
                task.abort();
            }
            stays
        });
        let mut failed = Vec::new();
        for (name, address) in places {
            for port in [HTTPS, HTTP] {
                let key = (name.clone(), *address, port);
                if self.listeners.contains_key(&key) {
                    continue;
                }
                match open(name, SocketAddr::new(*address, port)) {
                    Ok(listener) => {
                        tracing::info!(interface = name, %address, port, "the page is served");
                        let task = self.accept(listener, *address, port == HTTPS);
                        self.listeners.insert(key, task);
                    }
                    // Another program may serve a page there; this page is still reachable by
                    // https://.
                    Err(_) if port == HTTP => {}
                    Err(error) => failed.push(format!("{address}:{port}: {error}")),
                }
            }
        }
        failed
    }

    /// Returns the addresses at which HTTPS is served.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (&str, IpAddr)> {
        let all = self.listeners.keys();
        all.filter(|(_, _, port)| *port == HTTPS)
            .map(|(name, address, _)| (name.as_str(), *address))
    }

    fn accept(&self, listener: TcpListener, own: IpAddr, is_secure: bool) -> JoinHandle<()> {
        let (tls, answers, leads) = (
            self.tls.clone(),
            Arc::clone(&self.answers),
            Arc::clone(&self.leads),
        );
        let connections = Arc::clone(&self.connections);
        hawser_linux::tasks::spawn(async move {
            loop {
                let Ok((stream, from)) = listener.accept().await else {
                    // Most likely no file descriptor is free: wait until other connections end.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let Ok(turn) = Arc::clone(&connections).try_acquire_owned() else {
                    continue;
                };
                let peers = (from.ip().to_canonical(), own);
                if is_secure {
                    let tls = tls.clone();
                    let answers = Arc::clone(&answers);
                    hawser_linux::tasks::spawn(secure(stream, tls, answers, peers, turn));
                } else {
                    hawser_linux::tasks::spawn(lead(stream, Arc::clone(&leads), own, turn));
                }
            }
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for task in self.listeners.values() {
            task.abort();
        }
    }
}

/// Opens a listener bound to one interface: packets received on other interfaces do not reach it,
/// even with its destination address.
fn open(interface: &str, address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.bind_device(Some(interface.as_bytes()))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

async fn secure(
    stream: TcpStream,
    tls: TlsAcceptor,
    answers: Answers,
    (from, own): (IpAddr, IpAddr),
    _turn: OwnedSemaphorePermit,
) {
    let Ok(Ok(stream)) = timeout(HANDSHAKE, tls.accept(stream)).await else {
        return;
    };
    let service = service_fn(move |request: Request<Incoming>| {
        let answers = Arc::clone(&answers);
        async move {
            let (parts, body) = request.into_parts();
            let body = timeout(BODY_TIME, Limited::new(body, MAX_BODY).collect()).await;
            let Ok(Ok(body)) = body else {
                return Ok(text(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "the request has more than 16 kB",
                ));
            };
            let asked = Asked {
                method: parts.method,
                path: parts.uri.path().to_owned(),
                query: parts.uri.query().unwrap_or_default().to_owned(),
                fields: parts.headers,
                body: body.to_bytes(),
                from,
                own,
            };
            Ok::<_, Infallible>(answers(asked).await)
        }
    });
    serve(stream, service).await;
}

/// Redirects an HTTP request to HTTPS.
async fn lead(stream: TcpStream, leads: Leads, own: IpAddr, _turn: OwnedSemaphorePermit) {
    let service = service_fn(move |request: Request<Incoming>| {
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        let answer = match leads(host, own) {
            Some(host) => {
                let path = request.uri().path();
                let made = Response::builder()
                    .status(StatusCode::FOUND)
                    .header(LOCATION, format!("https://{host}{path}"))
                    .body(Full::default());
                made.unwrap_or_else(|_| {
                    text(StatusCode::BAD_REQUEST, "the address has unexpected characters")
                })
            }
            None => text(StatusCode::MISDIRECTED_REQUEST, "open https://hawser.local"),
        };
        async move { Ok::<_, Infallible>(answer) }
    });
    serve(stream, service).await;
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    service: impl Service<Request<Incoming>, Response = Answer, Error = Infallible>,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_headers(MAX_FIELDS)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    // Errors of the connection concern only the browser.
    let _ = timeout(CONNECTION_TIME, connection).await;
}

/// Returns a response with a line of text.
pub(super) fn text(status: StatusCode, text: &str) -> Answer {
    let mut answer = Response::new(Full::from(format!("{text}\n")));
    *answer.status_mut() = status;
    answer
}

/// Source: the port of https://, RFC 9110 section 4.2.2.
const HTTPS: u16 = 443;
/// Source: the port of http://, RFC 9110 section 4.2.1.
const HTTP: u16 = 80;
/// Maximum number of connections. Source: a browser opens six, and ten people view the page.
const MAX_CONNECTIONS: usize = 64;
/// Connections that wait to be accepted. Source: as [`MAX_CONNECTIONS`].
const BACKLOG: i32 = 64;
/// Source: a change of settings has some 300 bytes, the longest password of Wi-Fi 64.
const MAX_BODY: usize = 16 << 10;
/// Source: a head of a browser has some 800 bytes; hyper takes no less.
const MAX_HEAD: usize = 16 << 10;
/// Source: a browser sends some 20.
const MAX_FIELDS: usize = 64;
/// Source: two round trips over bad Wi-Fi, with retransmissions.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// A head takes no longer, and a connection without requests stays no longer. Source: browsers
/// keep such connections for minutes; a page that is open asks once a second.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// Source: as [`HANDSHAKE`].
const BODY_TIME: Duration = Duration::from_secs(10);
/// Source: a page that stays open connects again after it, which costs a handshake per hour.
const CONNECTION_TIME: Duration = Duration::from_secs(3600);
