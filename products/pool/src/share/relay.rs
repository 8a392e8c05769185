//! Relay of datagrams between takers and their hubs: one port for each taker and uplink.
//!
//! Datagrams of the taker that arrive at a port are sent to the taker's hub, from a socket that is
//! bound to the uplink; the hub's answers are returned from the port. Each source port of the taker
//! (data plane and QUIC have one each) has a separate socket, so that answers can be assigned.
//! Batches remain intact without pacing. Everything runs on one thread; [`Giving`] decides which
//! datagrams are sent, and [`Yielding`] which part of an uplink the owner's own traffic leaves.
//! Datagrams to hubs are marked as lower effort (RFC 8622), and are last in the kernel's queues.

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
use hawser_linux::udp::{lower_effort, open_bound, plain};
use hawser_proto::pool::giving::{Direction, Giving, Over, TakerId, Terms, UplinkId};
use hawser_proto::pool::yielding::{ECHO_INTERVAL, Yielding};
use hawser_units::{Bytes, Instant};
use quinn_udp::RecvMeta;
use tokio::sync::Notify;

/// Shared state of all relays.
pub(super) struct Relay {
    relays: Arc<EventThread>,
    shared: Arc<Shared>,
    is_mine_first: bool,
    ways: Mutex<BTreeMap<UplinkId, Weak<SharedUplink>>>,
    _pacer: Task,
}

/// Relay of a taker over one uplink; ends when it is dropped.
pub(super) struct Link {
    inner: Arc<Inner>,
    /// Port for the taker's datagrams.
    pub(super) port: u16,
    _task: Task,
}

struct Shared {
    giving: Mutex<Giving<QueuedDatagram>>,
    changed: Notify,
    started: Clock,
}

/// Uplink, and the part of it that its owner's own traffic leaves.
struct SharedUplink {
    id: UplinkId,
    device: String,
    yielding: Mutex<Yielding>,
    /// Counters of the device at the last echo, up and down. Unit: bytes.
    device_bytes: Mutex<Option<[u64; 2]>>,
    /// Bytes of takers over the uplink since the last echo, up and down. Unit: bytes of IP packets.
    sent: [AtomicU64; 2],
    shared: Arc<Shared>,
    /// Task that receives echoes, if the owner's traffic has priority.
    listener: OnceLock<Task>,
}

struct Inner {
    taker: TakerId,
    out: Arc<SharedUplink>,
    from: IpAddr,
    hub: SocketAddr,
    port: Port,
    sources: Mutex<Vec<Source>>,
    carried: [AtomicU64; 2],
    /// Datagrams from unknown senders, and from more ports than a taker may use.
    refused: AtomicU64,
    relays: Weak<EventThread>,
    shared: Arc<Shared>,
}

/// Port of the taker, and the socket that represents it at the hub.
struct Source {
    from: SocketAddr,
    out: Arc<Port>,
    used: Clock,
    _task: Task,
}

/// Datagram that waits for its turn.
struct QueuedDatagram {
    inner: Arc<Inner>,
    destination: Destination,
    bytes: Vec<u8>,
    ecn: u8,
}

#[derive(Clone)]
enum Destination {
    ToHub(Arc<Port>),
    ToTaker(SocketAddr),
}

impl Relay {
    /// Starts the relay thread. `terms` are the limits of giving; times are counted from now.
    /// `is_mine_first` is set if the owner's own traffic has priority over relayed traffic.
    ///
    /// # Errors
    /// If no thread can be created.
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

    /// Admits a taker; returns false if there are too many.
    pub(super) fn take_in(&self, taker: TakerId) -> bool {
        self.shared.giving().handle_taker(taker)
    }

    /// Removes a taker; its links must be dropped too.
    pub(super) fn dismiss(&self, taker: TakerId) {
        self.shared.giving().handle_taker_left(taker);
    }

    pub(super) fn over(&self) -> Option<Over> {
        self.shared.giving().over(self.shared.now())
    }

    /// Returns the bytes of all takers.
    pub(super) fn relayed(&self) -> u64 {
        self.shared.giving().relayed().0
    }

    /// Returns the bytes of a taker since it arrived, up and down.
    pub(super) fn relayed_for(&self, taker: TakerId) -> [u64; 2] {
        self.shared.giving().relayed_for(taker).map(|bytes| bytes.0)
    }

    /// Returns the number of datagrams that exceeded the cap or the quota.
    pub(super) fn dropped(&self) -> u64 {
        self.shared.giving().dropped()
    }

    /// Returns the uplink with that number, which reaches hubs such as `hub` over `device`.
    fn uplink(&self, id: UplinkId, device: &str, hub: IpAddr) -> Arc<SharedUplink> {
        let mut ways = self.ways.lock().expect("no holder panics");
        if let Some(way) = ways.get(&id).and_then(Weak::upgrade) {
            return way;
        }
        ways.retain(|_, way| way.strong_count() > 0);
        let way = Arc::new(SharedUplink {
            id,
            device: device.to_owned(),
            yielding: Mutex::new(Yielding::new()),
            device_bytes: Mutex::new(None),
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

    /// Returns the waiting time of packets on an uplink, and its rate for takers, up and down;
    /// `None` before it is known. Units: bit/s.
    pub(super) fn left_of(&self, id: UplinkId) -> (Option<Duration>, [Option<u64>; 2]) {
        let ways = self.ways.lock().expect("no holder panics");
        let Some(way) = ways.get(&id).and_then(Weak::upgrade) else {
            return (None, [None; 2]);
        };
        let yielding = way.yielding();
        let left = [Direction::Up, Direction::Down].map(|direction| yielding.allowed(direction));
        (yielding.queueing(), left.map(|rate| Some(rate?.as_bps())))
    }

    /// Opens a port at the address `at`, for a taker at the address `from`. Its datagrams are sent
    /// to `hub` over the device of the uplink with that number.
    ///
    /// # Errors
    /// If a socket cannot be created.
    pub(super) async fn open(
        &self,
        taker: TakerId,
        (at, from): (SocketAddr, IpAddr),
        hub: SocketAddr,
        (id, device): (UplinkId, &str),
    ) -> io::Result<Link> {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(at),
            socket2::Type::DGRAM,
            Some(socket2::Protocol::UDP),
        )?;
        hawser_linux::udp::keep_outside(&socket, None)?;
        socket.bind(&at.into())?;
        let (relays, shared) = (Arc::clone(&self.relays), Arc::clone(&self.shared));
        let out = self.uplink(id, device, hub.ip().to_canonical());
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
    /// Returns the relayed bytes, up and down. Unit: bytes of IP packets.
    pub(super) fn relayed(&self) -> [u64; 2] {
        [0, 1].map(|way| self.inner.carried[way].load(Ordering::Relaxed))
    }

    /// Returns the number of datagrams that were not from the taker.
    pub(super) fn refused(&self) -> u64 {
        self.inner.refused.load(Ordering::Relaxed)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The tasks of the sources hold references to this value.
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
                tracing::debug!(%error, device = self.out.device, "socket to the hub of a neighbour");
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
            Some(out) => self.take(Direction::Up, Destination::ToHub(out), meta, bytes),
            None => drop(self.refused.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn from_hub(self: &Arc<Self>, to: SocketAddr, meta: &RecvMeta, bytes: &[u8]) {
        // The kernel delivers no other source, because the socket is connected.
        if plain(meta.addr) == self.hub {
            self.take(Direction::Down, Destination::ToTaker(to), meta, bytes);
        }
    }

    fn take(self: &Arc<Self>, direction: Direction, destination: Destination, meta: &RecvMeta, bytes: &[u8]) {
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
            // The datagram has used the uplink, even if it is dropped here.
            let count = bytes.len().div_ceil(stride) as u64;
            self.out.passed(direction, bytes.len() as u64 + count * headers);
        }
        let now = self.shared.now();
        let mut giving = self.shared.giving();
        if giving.is_paced(self.out.id, direction) {
            for (datagram, size) in bytes.chunks(stride).zip(sizes) {
                let held = QueuedDatagram {
                    inner: Arc::clone(self),
                    destination: destination.clone(),
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
            self.send(&destination, run, stride, ecn);
        }
    }

    fn send(&self, destination: &Destination, bytes: &[u8], stride: usize, ecn: u8) {
        let (direction, sent) = match destination {
            Destination::ToHub(out) => (Direction::Up, out.send(self.hub, bytes, stride, ecn)),
            Destination::ToTaker(to) => (Direction::Down, self.port.send(*to, bytes, stride, ecn)),
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
        // A full buffer or a removed route loses datagrams, as on every network.
        if let Err(error) = sent {
            tracing::trace!(%error, device = self.out.device, "datagrams lost");
        }
    }

    /// Returns the socket that represents a port of the taker; `None` if it has too many.
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
                tracing::debug!(%error, device = self.out.device, "no socket on this network");
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
        if let Err(error) = lower_effort(&socket, self.hub.is_ipv6()) {
            tracing::debug!(%error, device = self.out.device, "datagrams are not marked");
        }
        socket.connect(self.hub)?;
        Port::new(socket)
    }
}

impl SharedUplink {
    fn yielding(&self) -> MutexGuard<'_, Yielding> {
        self.yielding.lock().expect("no holder panics")
    }

    /// Adds takers' datagrams that have used the uplink. Units: bytes of IP packets.
    fn passed(&self, direction: Direction, bytes: u64) {
        self.sent[direction as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes of the device since the last call, up and down. Unit: bytes.
    fn device_bytes(&self) -> [u64; 2] {
        let all = traffic().unwrap_or_default();
        let own = all.iter().find(|(name, ..)| *name == self.device);
        let Some(now) = own.map(|(_, received, sent)| [*sent, *received]) else {
            return [0; 2];
        };
        let mut last = self.device_bytes.lock().expect("no holder panics");
        let before = last.replace(now).unwrap_or(now);
        [0, 1].map(|way| now[way].saturating_sub(before[way]))
    }

    /// Handles the result of an echo; `interval` is the time since the previous one.
    fn on_echo(&self, round_trip: Option<Duration>, interval: Duration) {
        let now = self.shared.now();
        let device = self.device_bytes();
        let mut yielding = self.yielding();
        for direction in [Direction::Up, Direction::Down] {
            let sent = self.sent[direction as usize].swap(0, Ordering::Relaxed);
            yielding.handle_sent(direction, Bytes(sent));
            yielding.handle_transferred(direction, Bytes(device[direction as usize]));
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

/// Sends echo requests to a hub while the uplink is used, more frequently at a higher rate.
async fn listen(way: Weak<SharedUplink>, device: String, hub: IpAddr) {
    let identifier = u16::from_be_bytes(hawser_config::identity::random());
    let echo = match Echo::open(&device, hub, 0, identifier) {
        Ok(echo) => echo,
        Err(error) => {
            tracing::warn!(%error, device, "own traffic has no precedence");
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
    fn giving(&self) -> MutexGuard<'_, Giving<QueuedDatagram>> {
        self.giving.lock().expect("no holder panics")
    }

    fn now(&self) -> Instant {
        since(self.started)
    }

    /// Sends the datagrams that may be sent now.
    fn drain(&self) {
        if !self.giving().is_waiting() {
            return;
        }
        for direction in [Direction::Up, Direction::Down] {
            loop {
                let granted = self.giving().poll_transmit(direction, self.now());
                let Some(granted) = granted else { break };
                let QueuedDatagram {
                    inner,
                    destination,
                    bytes,
                    ecn,
                } = granted.packet;
                inner.send(&destination, &bytes, bytes.len().max(1), ecn);
            }
        }
        self.changed.notify_one();
    }

    /// Sends waiting datagrams at their time.
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
                    // The timers of the runtime have a resolution of 1 ms.
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

/// Returns the time since a start, in the units of the machines.
pub(super) fn since(start: Clock) -> Instant {
    Instant::ZERO + start.elapsed()
}

/// Headers of IP and UDP (RFC 791, 8200, 768).
const HEADERS_V4: u64 = 28;
const HEADERS_V6: u64 = 48;
/// Maximum number of concurrent ports of a taker: a data plane and a control connection, and their
/// previous ports. Source: our choice, two for each purpose.
const SOURCES: usize = 4;
/// Time without use after which a port of the taker may be replaced by a new one. Source: five of
/// the intervals in which a path in use is probed (`KEEPALIVE_BUSY` in `core/proto/src/path`).
const UNUSED: Duration = Duration::from_secs(5);
/// Interval of echoes while almost nothing is relayed: it updates the minimum. Source:
/// docs/notebook/path-model.md, "A packet's own time on a slow link".
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// Relayed bytes per echo, so that a slow uplink has few echoes. Source: an echo of 58 bytes on
/// Ethernet is 1 % of them (docs/notebook/path-model.md, "A packet's own time on a slow link").
/// Units: bytes.
const WORTH: f64 = 5_800.0;
/// Timeout of an echo (RFC 6298 section 2: the first retransmission timeout).
const LOST: Duration = Duration::from_secs(1);
/// Retry interval of a socket with errors. Source: our choice; a shorter one takes processor time,
/// a longer one loses more packets after an error that has passed.
const TROUBLE: Duration = Duration::from_millis(50);
