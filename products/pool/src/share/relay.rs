//! Relays datagrams between takers and their hubs: one port for each taker and way out.
//!
//! What comes to a port from the taker's address goes to the taker's hub, from a socket that is
//! bound to the way out; what the hub answers goes back from the port. Each source port of the
//! taker (data plane and QUIC have one each) has a socket of its own, so that answers find it.
//! Batches stay together where nothing is paced. All of it runs on one thread; [`Giving`] decides
//! what goes, and [`Yielding`] how much of a way out the owner's own traffic leaves. What goes to
//! hubs is marked as of least effort (RFC 8622), and comes last where the kernel queues.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant as Clock};

use hawser_control::event_thread::{EventThread, Task};
use hawser_control::relays::Port;
use hawser_linux::echo::{Echo, Heard};
use hawser_linux::netlink::traffic;
use hawser_linux::udp::{least_effort, open_bound, plain};
use hawser_proto::pool::giving::{Direction, Giving, Over, TakerId, Terms, WayId};
use hawser_proto::pool::yielding::{ECHO_INTERVAL, Yielding};
use hawser_units::{Bytes, Instant};
use quinn_udp::RecvMeta;
use tokio::sync::Notify;

/// All that is relayed.
pub(super) struct Relay {
    relays: Arc<EventThread>,
    shared: Arc<Shared>,
    is_mine_first: bool,
    ways: Mutex<BTreeMap<WayId, Weak<WayOut>>>,
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

/// A way out, and how much of it its owner's own traffic leaves.
struct WayOut {
    id: WayId,
    device: String,
    yielding: Mutex<Yielding>,
    /// What the device had carried at the last echo, up and down. Unit: bytes.
    device_carried: Mutex<Option<[u64; 2]>>,
    /// Of takers over the way out since the last echo, up and down. Unit: bytes of IP packets.
    sent: [AtomicU64; 2],
    shared: Arc<Shared>,
    /// Hears echoes, where the owner goes first.
    listener: OnceLock<Task>,
}

struct Inner {
    taker: TakerId,
    out: Arc<WayOut>,
    from: IpAddr,
    hub: SocketAddr,
    port: Port,
    sources: Mutex<Vec<Source>>,
    carried: [AtomicU64; 2],
    /// Datagrams of strangers, and of more sources than a taker has.
    refused: AtomicU64,
    relays: Weak<EventThread>,
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
    /// `terms`: what is given; times are counted from now. `is_mine_first`: whether the owner's own
    /// traffic goes before what is relayed.
    ///
    /// # Errors
    /// No thread is left.
    pub(super) fn start(terms: Terms, is_mine_first: bool) -> io::Result<Self> {
        let relays = Arc::new(EventThread::start("hawser-share")?);
        let shared = Arc::new(Shared {
            giving: Mutex::new(Giving::new(terms, Bytes(0))),
            changed: Notify::new(),
            started: Clock::now(),
        });
        let pacer = relays.spawn(Arc::clone(&shared).pace());
        Ok(Self {
            relays,
            shared,
            is_mine_first,
            ways: Mutex::new(BTreeMap::new()),
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

    /// The way out of that number, which leads over `device` to hubs such as `hub`.
    fn way_out(&self, id: WayId, device: &str, hub: IpAddr) -> Arc<WayOut> {
        let mut ways = self.ways.lock().expect("no holder panics");
        if let Some(way) = ways.get(&id).and_then(Weak::upgrade) {
            return way;
        }
        ways.retain(|_, way| way.strong_count() > 0);
        let way = Arc::new(WayOut {
            id,
            device: device.to_owned(),
            yielding: Mutex::new(Yielding::new()),
            device_carried: Mutex::new(None),
            sent: Default::default(),
            shared: Arc::clone(&self.shared),
            listener: OnceLock::new(),
        });
        ways.insert(id, Arc::downgrade(&way));
        if self.is_mine_first {
            let task = self
                .relays
                .spawn(listen(Arc::downgrade(&way), device.to_owned(), hub));
            let _ = way.listener.set(task);
        }
        way
    }

    /// How long packets wait on a way out, and what is left of it for takers, up and down; nothing
    /// before it is known. Unit: bit/s.
    pub(super) fn left_of(&self, id: WayId) -> (Option<Duration>, [Option<u64>; 2]) {
        let ways = self.ways.lock().expect("no holder panics");
        let Some(way) = ways.get(&id).and_then(Weak::upgrade) else {
            return (None, [None; 2]);
        };
        let yielding = way.yielding();
        let left = [Direction::Up, Direction::Down].map(|direction| yielding.allowed(direction));
        (yielding.queueing(), left.map(|rate| Some(rate?.as_bps())))
    }

    /// Opens a port at the address `at`, for a taker that is at `from`: what it sends there goes to
    /// `hub` over a device, which is the way out of that number.
    ///
    /// # Errors
    /// A socket cannot be made.
    pub(super) async fn open(
        &self,
        taker: TakerId,
        (at, from): (SocketAddr, IpAddr),
        hub: SocketAddr,
        (id, device): (WayId, &str),
    ) -> io::Result<Link> {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(at),
            socket2::Type::DGRAM,
            Some(socket2::Protocol::UDP),
        )?;
        hawser_linux::udp::keep_outside(&socket, None)?;
        socket.bind(&at.into())?;
        let (relays, shared) = (Arc::clone(&self.relays), Arc::clone(&self.shared));
        let out = self.way_out(id, device, hub.ip().to_canonical());
        let weak = Arc::downgrade(&relays);
        // Sockets belong to the thread that serves them.
        let (answer, made) = tokio::sync::oneshot::channel();
        let starting = relays.spawn(async move {
            let made = Port::new(socket.into()).and_then(|port| {
                let local = port.local_addr()?.port();
                let inner = Arc::new(Inner {
                    taker,
                    out,
                    from,
                    hub,
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
                tracing::debug!(%error, device = self.out.device, "way out of a neighbour");
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
        if direction == Direction::Down {
            // It has come over the way out, whatever becomes of it here.
            let count = bytes.len().div_ceil(stride) as u64;
            self.out.passed(direction, bytes.len() as u64 + count * headers);
        }
        let now = self.shared.now();
        let mut giving = self.shared.giving();
        if giving.is_paced(self.out.id, direction) {
            for (datagram, size) in bytes.chunks(stride).zip(sizes) {
                let held = Held {
                    inner: Arc::clone(self),
                    way: way.clone(),
                    bytes: datagram.to_vec(),
                    ecn,
                };
                giving.handle_packet((self.taker, self.out.id), direction, Bytes(size), held, now);
            }
            return;
        }
        let count = giving.pass((self.taker, self.out.id), direction, sizes.map(Bytes), now);
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
        let bytes = bytes.len() as u64 + count * headers;
        self.carried[direction as usize].fetch_add(bytes, Ordering::Relaxed);
        if direction == Direction::Up {
            self.out.passed(direction, bytes);
        }
        // A full buffer, or a way that has just gone, loses datagrams, as on every way.
        if let Err(error) = sent {
            tracing::trace!(%error, device = self.out.device, "datagrams lost");
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
                tracing::debug!(%error, device = self.out.device, "no socket on this way out");
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
        let socket: UdpSocket = open_bound(&self.out.device, self.hub.is_ipv6())?;
        if let Err(error) = least_effort(&socket, self.hub.is_ipv6()) {
            tracing::debug!(%error, device = self.out.device, "datagrams are not marked");
        }
        socket.connect(self.hub)?;
        Port::new(socket)
    }
}

impl WayOut {
    fn yielding(&self) -> MutexGuard<'_, Yielding> {
        self.yielding.lock().expect("no holder panics")
    }

    /// Takers' datagrams have gone over the way out. Unit: bytes of IP packets.
    fn passed(&self, direction: Direction, bytes: u64) {
        self.sent[direction as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// What the device has carried since this was last asked, up and down. Unit: bytes.
    fn device_carried(&self) -> [u64; 2] {
        let all = traffic().unwrap_or_default();
        let own = all.iter().find(|(name, ..)| *name == self.device);
        let Some(now) = own.map(|(_, received, sent)| [*sent, *received]) else {
            return [0; 2];
        };
        let mut last = self.device_carried.lock().expect("no holder panics");
        let before = last.replace(now).unwrap_or(now);
        [0, 1].map(|way| now[way].saturating_sub(before[way]))
    }

    /// An echo has come, or has not; `interval`: since the one before.
    fn on_echo(&self, round_trip: Option<Duration>, interval: Duration) {
        let now = self.shared.now();
        let device = self.device_carried();
        let mut yielding = self.yielding();
        for direction in [Direction::Up, Direction::Down] {
            let sent = self.sent[direction as usize].swap(0, Ordering::Relaxed);
            yielding.handle_sent(direction, Bytes(sent));
            yielding.handle_carried(direction, Bytes(device[direction as usize]));
        }
        yielding.handle_echo(round_trip, interval, now);
        let mut giving = self.shared.giving();
        for direction in [Direction::Up, Direction::Down] {
            giving.handle_limit(self.id, direction, yielding.allowed(direction), now);
        }
        drop(giving);
        self.shared.changed.notify_one();
    }
}

/// Echoes from a hub, for as long as the way out is used: the more often, the more it carries.
async fn listen(way: Weak<WayOut>, device: String, hub: IpAddr) {
    let identifier = u16::from_be_bytes(hawser_config::identity::random());
    let echo = match Echo::open(&device, hub, 0, identifier) {
        Ok(echo) => echo,
        Err(error) => {
            tracing::warn!(%error, device, "own traffic cannot go first");
            return;
        }
    };
    let (mut number, mut asked, mut last) = (0_u16, VecDeque::new(), Clock::now());
    loop {
        let Some(relayed) = way.upgrade().map(|way| {
            let sent = way.sent.iter().map(|sent| sent.load(Ordering::Relaxed));
            sent.sum::<u64>()
        }) else {
            return;
        };
        let worth = last.elapsed().mul_f64(WORTH / relayed.max(1) as f64);
        let pause = worth.clamp(ECHO_INTERVAL, IDLE_INTERVAL);
        number = number.wrapping_add(1);
        asked.push_back((number, Clock::now()));
        if let Err(error) = echo.ask(number) {
            tracing::debug!(%error, device, "echoes have ended");
            return;
        }
        let next = tokio::time::sleep(pause);
        tokio::pin!(next);
        loop {
            let heard = tokio::select! {
                () = &mut next => break,
                heard = echo.next() => heard,
            };
            let Ok(heard) = heard else { return };
            let Heard::Answer(answered) = heard else { continue };
            let Some(at) = asked.iter().position(|(number, _)| *number == answered) else {
                continue;
            };
            let round_trip = asked[at].1.elapsed();
            asked.drain(..=at);
            if let Some(way) = way.upgrade() {
                way.on_echo(Some(round_trip), last.elapsed());
            }
            last = Clock::now();
        }
        while asked.front().is_some_and(|(_, at)| at.elapsed() >= LOST) {
            asked.pop_front();
            if let Some(way) = way.upgrade() {
                way.on_echo(None, last.elapsed());
            }
            last = Clock::now();
        }
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
        if !self.giving().is_waiting() {
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
    Instant::ZERO + start.elapsed()
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
/// Between two echoes while next to nothing is relayed: keeps the shortest one known.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// What an echo of 58 bytes on an Ethernet is 1 % of: a slow way out has few. Unit: bytes relayed.
const WORTH: f64 = 5_800.0;
/// An echo that has not come within this time does not come (RFC 6298 section 2: the first
/// retransmission timeout).
const LOST: Duration = Duration::from_secs(1);
/// Between two looks at a socket that is in trouble.
const TROUBLE: Duration = Duration::from_millis(50);
