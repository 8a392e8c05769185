//! Relays datagrams between takers and their hubs: one port for each taker and way out.
//!
//! What comes to a port from the taker's address goes to the taker's hub, from a socket that is
//! bound to the way out; what the hub answers goes back from the port. Each source port of the
//! taker (data plane and QUIC have one each) has a socket of its own, so that answers find it.
//! Batches stay together where nothing is paced. All of it runs on one thread; [`Giving`] decides
//! what goes.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant as Clock};

use hawser_linux::udp::{open_bound, plain};
use hawser_proto::pool::giving::{Direction, Giving, Over, TakerId, Terms};
use hawser_units::{Bytes, Instant};
use quinn_udp::RecvMeta;
use tokio::sync::Notify;

use crate::relays::{Port, Relays, Task};

/// All that is relayed.
pub(super) struct Relay {
    relays: Arc<Relays>,
    shared: Arc<Shared>,
    _pacer: Task,
}

/// What a taker sends over one way out, and gets back; ends when it is dropped.
pub(super) struct Link {
    inner: Arc<Inner>,
    /// Where the taker's datagrams go.
    pub(super) port: u16,
    _task: Task,
}

struct Shared {
    giving: Mutex<Giving<Held>>,
    changed: Notify,
    started: Clock,
}

struct Inner {
    taker: TakerId,
    from: IpAddr,
    hub: SocketAddr,
    device: String,
    port: Port,
    sources: Mutex<Vec<Source>>,
    carried: [AtomicU64; 2],
    /// Datagrams of strangers, and of more sources than a taker has.
    refused: AtomicU64,
    relays: std::sync::Weak<Relays>,
    shared: Arc<Shared>,
}

/// A port of the taker, and the socket that stands for it at the hub.
struct Source {
    from: SocketAddr,
    out: Arc<Port>,
    used: Clock,
    _task: Task,
}

/// A datagram that waits for its turn.
struct Held {
    inner: Arc<Inner>,
    way: Way,
    bytes: Vec<u8>,
    ecn: u8,
}

#[derive(Clone)]
enum Way {
    ToHub(Arc<Port>),
    ToTaker(SocketAddr),
}

impl Relay {
    /// `terms`: what is given; times are counted from now.
    ///
    /// # Errors
    /// No thread is left.
    pub(super) fn start(terms: Terms) -> io::Result<Self> {
        let relays = Arc::new(Relays::start("hawser-share")?);
        let shared = Arc::new(Shared {
            giving: Mutex::new(Giving::new(terms, Bytes(0))),
            changed: Notify::new(),
            started: Clock::now(),
        });
        let pacer = relays.spawn(Arc::clone(&shared).pace());
        Ok(Self {
            relays,
            shared,
            _pacer: pacer,
        })
    }

    /// Lets a taker in; false when there are too many.
    pub(super) fn take_in(&self, taker: TakerId) -> bool {
        self.shared.giving().handle_taker(taker)
    }

    /// Ends it for a taker; its links are to be dropped too.
    pub(super) fn dismiss(&self, taker: TakerId) {
        self.shared.giving().handle_taker_gone(taker);
    }

    pub(super) fn over(&self) -> Option<Over> {
        self.shared.giving().over(self.shared.now())
    }

    /// What all takers have had.
    pub(super) fn carried(&self) -> u64 {
        self.shared.giving().carried().0
    }

    /// What one has had since it came, up and down.
    pub(super) fn carried_for(&self, taker: TakerId) -> [u64; 2] {
        self.shared.giving().carried_for(taker).map(|bytes| bytes.0)
    }

    /// Datagrams over the cap or the quota.
    pub(super) fn dropped(&self) -> u64 {
        self.shared.giving().dropped()
    }

    /// Opens a port at the address `at`, for a taker that is at `from`: what it sends there goes to
    /// `hub` over `device`.
    ///
    /// # Errors
    /// A socket cannot be made.
    pub(super) async fn open(
        &self,
        taker: TakerId,
        (at, from): (SocketAddr, IpAddr),
        hub: SocketAddr,
        device: &str,
    ) -> io::Result<Link> {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(at),
            socket2::Type::DGRAM,
            Some(socket2::Protocol::UDP),
        )?;
        hawser_linux::udp::keep_outside(&socket, None)?;
        socket.bind(&at.into())?;
        let (relays, shared) = (Arc::clone(&self.relays), Arc::clone(&self.shared));
        let device = device.to_owned();
        let weak = Arc::downgrade(&relays);
        // Sockets belong to the thread that serves them.
        let (answer, made) = tokio::sync::oneshot::channel();
        let starting = relays.spawn(async move {
            let made = Port::new(socket.into()).and_then(|port| {
                let local = port.local_addr()?.port();
                let inner = Arc::new(Inner {
                    taker,
                    from,
                    hub,
                    device,
                    port,
                    sources: Mutex::new(Vec::new()),
                    carried: Default::default(),
                    refused: AtomicU64::new(0),
                    relays: weak,
                    shared,
                });
                Ok((inner, local))
            });
            let _ = answer.send(made);
        });
        let (inner, port) = made
            .await
            .map_err(|_| io::Error::other("the relay has ended"))??;
        drop(starting);
        let serving = Arc::clone(&inner);
        Ok(Link {
            inner,
            port,
            _task: self.relays.spawn(async move { serving.serve_taker().await }),
        })
    }
}

impl Link {
    /// What it has carried, up and down. Unit: bytes of IP packets.
    pub(super) fn carried(&self) -> [u64; 2] {
        [0, 1].map(|way| self.inner.carried[way].load(Ordering::Relaxed))
    }

    /// Datagrams that were not the taker's.
    pub(super) fn refused(&self) -> u64 {
        self.inner.refused.load(Ordering::Relaxed)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Their tasks hold what they belong to.
        self.inner.sources().clear();
    }
}

impl Inner {
    fn sources(&self) -> MutexGuard<'_, Vec<Source>> {
        self.sources.lock().expect("no holder panics")
    }

    async fn serve_taker(self: Arc<Self>) {
        loop {
            let received = std::future::poll_fn(|cx| {
                self.port
                    .poll_receive(cx, |meta, bytes| self.from_taker(meta, bytes))
            });
            if let Err(error) = received.await {
                tracing::debug!(%error, "port of a neighbour");
                tokio::time::sleep(TROUBLE).await;
            }
            self.shared.drain();
            tokio::task::yield_now().await;
        }
    }

    async fn serve_hub(self: Arc<Self>, out: Arc<Port>, to: SocketAddr) {
        loop {
            let received =
                std::future::poll_fn(|cx| out.poll_receive(cx, |meta, bytes| self.from_hub(to, meta, bytes)));
            if let Err(error) = received.await {
                tracing::debug!(%error, device = self.device, "way out of a neighbour");
                tokio::time::sleep(TROUBLE).await;
            }
            self.shared.drain();
            tokio::task::yield_now().await;
        }
    }

    fn from_taker(self: &Arc<Self>, meta: &RecvMeta, bytes: &[u8]) {
        let from = plain(meta.addr);
        let out = if from.ip() == self.from {
            self.source(meta.addr)
        } else {
            None
        };
        match out {
            Some(out) => self.take(Direction::Up, Way::ToHub(out), meta, bytes),
            None => drop(self.refused.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn from_hub(self: &Arc<Self>, to: SocketAddr, meta: &RecvMeta, bytes: &[u8]) {
        // The kernel lets nobody else in: the socket is connected.
        if plain(meta.addr) == self.hub {
            self.take(Direction::Down, Way::ToTaker(to), meta, bytes);
        }
    }

    fn take(self: &Arc<Self>, direction: Direction, way: Way, meta: &RecvMeta, bytes: &[u8]) {
        let ecn = meta.ecn.map_or(0, |ecn| ecn as u8);
        let stride = meta.stride.max(1);
        let headers = if self.hub.is_ipv6() {
            HEADERS_V6
        } else {
            HEADERS_V4
        };
        let sizes = bytes
            .chunks(stride)
            .map(|datagram| datagram.len() as u64 + headers);
        let now = self.shared.now();
        let mut giving = self.shared.giving();
        if giving.is_paced() {
            for (datagram, size) in bytes.chunks(stride).zip(sizes) {
                let held = Held {
                    inner: Arc::clone(self),
                    way: way.clone(),
                    bytes: datagram.to_vec(),
                    ecn,
                };
                giving.handle_packet(self.taker, direction, Bytes(size), held, now);
            }
            return;
        }
        let count = giving.pass(self.taker, direction, sizes.map(Bytes), now);
        drop(giving);
        let bytes = &bytes[..bytes.len().min(count * stride)];
        for run in bytes.chunks(stride * self.port.max_segments().max(1)) {
            self.send(&way, run, stride, ecn);
        }
    }

    fn send(&self, way: &Way, bytes: &[u8], stride: usize, ecn: u8) {
        let (direction, sent) = match way {
            Way::ToHub(out) => (Direction::Up, out.send(self.hub, bytes, stride, ecn)),
            Way::ToTaker(to) => (Direction::Down, self.port.send(*to, bytes, stride, ecn)),
        };
        let headers = if self.hub.is_ipv6() {
            HEADERS_V6
        } else {
            HEADERS_V4
        };
        let count = bytes.len().div_ceil(stride) as u64;
        self.carried[direction as usize].fetch_add(bytes.len() as u64 + count * headers, Ordering::Relaxed);
        // A full buffer, or a way that has just gone, loses datagrams, as on every way.
        if let Err(error) = sent {
            tracing::trace!(%error, device = self.device, "datagrams lost");
        }
    }

    /// The socket that stands for a port of the taker; `None` when it has too many.
    fn source(self: &Arc<Self>, from: SocketAddr) -> Option<Arc<Port>> {
        let now = Clock::now();
        let mut sources = self.sources();
        if let Some(source) = sources.iter_mut().find(|source| source.from == from) {
            source.used = now;
            return Some(Arc::clone(&source.out));
        }
        if sources.len() >= SOURCES {
            let oldest = (0..sources.len()).min_by_key(|at| sources[*at].used)?;
            if now.duration_since(sources[oldest].used) < UNUSED {
                return None;
            }
            sources.swap_remove(oldest);
        }
        let out = match self.open_out() {
            Ok(out) => Arc::new(out),
            Err(error) => {
                tracing::debug!(%error, device = self.device, "no socket on this way out");
                return None;
            }
        };
        let relays = self.relays.upgrade()?;
        let task = relays.spawn(Arc::clone(self).serve_hub(Arc::clone(&out), from));
        sources.push(Source {
            from,
            out: Arc::clone(&out),
            used: now,
            _task: task,
        });
        Some(out)
    }

    fn open_out(&self) -> io::Result<Port> {
        let socket: UdpSocket = open_bound(&self.device, self.hub.is_ipv6())?;
        socket.connect(self.hub)?;
        Port::new(socket)
    }
}

impl Shared {
    fn giving(&self) -> MutexGuard<'_, Giving<Held>> {
        self.giving.lock().expect("no holder panics")
    }

    fn now(&self) -> Instant {
        since(self.started)
    }

    /// Sends what may go now.
    fn drain(&self) {
        if !self.giving().is_paced() {
            return;
        }
        for direction in [Direction::Up, Direction::Down] {
            loop {
                let granted = self.giving().poll_transmit(direction, self.now());
                let Some(granted) = granted else { break };
                let Held {
                    inner,
                    way,
                    bytes,
                    ecn,
                } = granted.packet;
                inner.send(&way, &bytes, bytes.len().max(1), ecn);
            }
        }
        self.changed.notify_one();
    }

    /// Sends what has waited for its time.
    async fn pace(self: Arc<Self>) {
        loop {
            let due = self.giving().poll_timeout();
            let due = due.map(|at| self.started + Duration::from_nanos(at.as_nanos()));
            match due {
                Some(due) if due <= Clock::now() => {
                    self.drain();
                    if self.giving().over(self.now()).is_some() {
                        self.changed.notified().await;
                    }
                    // The timers of the runtime count milliseconds.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Some(due) => tokio::select! {
                    () = tokio::time::sleep_until(due.into()) => {}
                    () = self.changed.notified() => {}
                },
                None => self.changed.notified().await,
            }
        }
    }
}

/// The time since a start, as machines count it.
pub(super) fn since(start: Clock) -> Instant {
    Instant::from_nanos(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Headers of IP and UDP (RFC 791, 8200, 768).
const HEADERS_V4: u64 = 28;
const HEADERS_V6: u64 = 48;
/// Ports of one taker at once: a data plane and a control connection, and those that they move away
/// from.
const SOURCES: usize = 4;
/// A port of the taker that was not used for so long may give way to another: paths are probed more
/// often.
const UNUSED: Duration = Duration::from_secs(5);
/// Between two looks at a socket that is in trouble.
const TROUBLE: Duration = Duration::from_millis(50);
