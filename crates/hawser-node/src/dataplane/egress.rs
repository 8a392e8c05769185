//! The sending thread: TUN to networks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use hawser_linux::clock::{now, use_precise_timers};
use hawser_linux::tun::{READ_LEN, Tun};
use hawser_linux::udp::DataSocket;
use hawser_linux::wait::{Waker, wait_readable};
use hawser_proto::egress::{Body, Egress, PROBE_LEN, Refused, Transmit};
use hawser_proto::ingress;
use hawser_proto::path::{self, Probing, State};
use hawser_units::{Duration, Instant, PathId};
use hawser_wire::data::{Class, FEEDBACK_LEN, FRAMING, Feedback, INNER_LEN, Inner, OUTER_LEN, Outer};
use hawser_wire::inner::{self, Ecn};
use hawser_wire::offload::{Offload, VIRTIO_LEN};
use hawser_wire::parity::PARITY_LEN;

use super::batch::{Batches, Target};
use super::crypto::DataKey;
use super::ingress::Source;
use super::{Event, Role, SessionId, SessionSnapshot, SocketId, snapshot};

/// Packets read from the TUN before what they made is sent.
const READS: usize = 16;
/// Buffers of 64 KB at most: address space; only touched pages take memory.
const MAX_BUFFERS: usize = 2048;
/// A key is replaced long before its counters end.
const REKEY_AT: u64 = 1 << 40;

/// What the sending thread is told.
pub(super) enum Order {
    AddSocket {
        id: SocketId,
        socket: Arc<DataSocket>,
    },
    RemoveSocket {
        id: SocketId,
    },
    AddSession {
        session: SessionId,
        role: Role,
        inner: Vec<IpAddr>,
    },
    RemoveSession {
        session: SessionId,
    },
    Key {
        session: SessionId,
        epoch: u8,
        key: Box<DataKey>,
    },
    OpenPath {
        session: SessionId,
        socket: SocketId,
        remote: Option<SocketAddr>,
        peer_index: u32,
        name: String,
        config: path::Config,
    },
    RebindPath {
        session: SessionId,
        path: PathId,
        socket: SocketId,
    },
    ClosePath {
        session: SessionId,
        path: PathId,
    },
    SetScheduler {
        session: SessionId,
        class: Class,
        scheduler: String,
    },
    SetCap {
        session: SessionId,
        path: PathId,
        cap: Option<hawser_units::Rate>,
    },
    /// From the receiving thread.
    Relay {
        session: SessionId,
        relay: Relay,
    },
    /// The receiving thread's part, to be completed.
    Snapshot {
        received: BTreeMap<(u64, u16), (u32, u64)>,
        counters: Vec<(&'static str, u64)>,
        reply: Box<dyn FnOnce(super::Snapshot) + Send>,
    },
    Stop,
}

/// What the receiving thread noticed.
pub(super) enum Relay {
    Machine(ingress::Event),
    Heard { path: PathId, bytes: u64 },
    Moved { path: PathId, source: Source },
    Epoch(u8),
}

/// Where a path's datagrams go.
pub(super) struct Lane {
    pub(super) socket: Option<Arc<DataSocket>>,
    pub(super) remote: Option<SocketAddr>,
    /// The address that the peer speaks to, on a hub.
    pub(super) local: Option<IpAddr>,
    pub(super) peer_index: u32,
    pub(super) name: String,
    pub(super) meter: snapshot::Meter,
}

/// One session's sending side.
pub(super) struct Session {
    pub(super) egress: Egress<u32>,
    role: Role,
    key: Option<(u8, DataKey)>,
    next_key: Option<(u8, DataKey)>,
    pub(super) lanes: BTreeMap<PathId, Lane>,
    due: Instant,
    alive: bool,
    rekey_told: bool,
}

pub(super) struct Sender {
    tun: Tun,
    waker: Arc<Waker>,
    orders: Receiver<Order>,
    events: tokio::sync::mpsc::UnboundedSender<Event>,
    sockets: HashMap<SocketId, Arc<DataSocket>>,
    sessions: BTreeMap<SessionId, Session>,
    routes: HashMap<IpAddr, SessionId>,
    only: Option<SessionId>,
    due: BTreeSet<(Instant, SessionId)>,
    busy: Vec<SessionId>,
    buffers: Vec<Box<[u8]>>,
    free: Vec<u32>,
    batches: Batches,
    dropped: Dropped,
    seed: u64,
    running: bool,
}

#[derive(Default)]
struct Dropped {
    no_session: u64,
    malformed: u64,
    too_large: u64,
    queue_full: u64,
    no_buffer: u64,
    no_key: u64,
}

impl Sender {
    pub(super) fn new(
        tun: Tun,
        waker: Arc<Waker>,
        orders: Receiver<Order>,
        events: tokio::sync::mpsc::UnboundedSender<Event>,
        seed: u64,
    ) -> Self {
        Self {
            tun,
            waker,
            orders,
            events,
            sockets: HashMap::new(),
            sessions: BTreeMap::new(),
            routes: HashMap::new(),
            only: None,
            due: BTreeSet::new(),
            busy: Vec::new(),
            buffers: Vec::new(),
            free: Vec::new(),
            batches: Batches::new(),
            dropped: Dropped::default(),
            seed,
            running: true,
        }
    }

    /// Runs until told to stop.
    pub(super) fn run(mut self) {
        use_precise_timers();
        let mut readable = true;
        while self.running {
            if !readable {
                let timeout = self.due.first().map(|(due, _)| due.since(now()));
                let mut ready = [false; 2];
                if let Err(error) =
                    wait_readable(&[self.tun.as_fd(), self.waker.as_fd()], timeout, &mut ready)
                {
                    tracing::error!(%error, "waiting failed");
                    std::thread::sleep(Duration::from_millis(100));
                }
                if ready[1] {
                    self.waker.clear();
                }
                readable = ready[0];
            }
            while let Ok(order) = self.orders.try_recv() {
                self.obey(order);
            }
            if readable {
                readable = self.read_tun();
            }
            self.service();
            self.batches.flush();
        }
    }

    /// Reads what applications sent. Returns whether more waits.
    fn read_tun(&mut self) -> bool {
        for _ in 0..READS {
            let Some(id) = self.take_buffer() else {
                self.dropped.no_buffer += 1;
                let mut sink = [0; 1];
                return matches!(self.tun.read(&mut sink), Ok(Some(_)));
            };
            match self.tun.read(&mut self.buffers[id as usize]) {
                Ok(Some(len)) => {
                    if !self.accept(id, len) {
                        self.free.push(id);
                    }
                }
                Ok(None) => {
                    self.free.push(id);
                    return false;
                }
                Err(error) => {
                    // EIO while the interface is down, for example while it is being set up.
                    tracing::trace!(%error, "TUN not readable");
                    self.free.push(id);
                    return false;
                }
            }
        }
        true
    }

    fn take_buffer(&mut self) -> Option<u32> {
        if let Some(id) = self.free.pop() {
            return Some(id);
        }
        if self.buffers.len() >= MAX_BUFFERS {
            return None;
        }
        self.buffers.push(vec![0; READ_LEN].into_boxed_slice());
        Some(self.buffers.len() as u32 - 1)
    }

    /// Queues a packet read into buffer `id`; false when it was not taken.
    fn accept(&mut self, id: u32, len: usize) -> bool {
        let Some((virtio, packet)) = self.buffers[id as usize][..len].split_first_chunk_mut::<VIRTIO_LEN>()
        else {
            self.dropped.malformed += 1;
            return false;
        };
        let Some(offload) = Offload::parse(virtio) else {
            self.dropped.malformed += 1;
            return false;
        };
        let to = self
            .only
            .or_else(|| destination(packet).and_then(|to| self.routes.get(&to).copied()));
        let Some((name, session)) = to.and_then(|name| Some((name, self.sessions.get_mut(&name)?))) else {
            self.dropped.no_session += 1;
            return false;
        };
        match session.egress.enqueue(packet, offload, id, now()) {
            Ok(()) => {
                if !self.busy.contains(&name) {
                    self.busy.push(name);
                }
                true
            }
            Err(refused) => {
                match refused {
                    Refused::Malformed => self.dropped.malformed += 1,
                    Refused::QueueFull | Refused::TableFull => self.dropped.queue_full += 1,
                    Refused::TooSoon => self.dropped.too_large += 1,
                    Refused::TooLarge(mtu) => {
                        self.dropped.too_large += 1;
                        self.say_too_large(id, len, mtu);
                    }
                }
                false
            }
        }
    }

    /// Tells the sender of a packet larger than any path what would fit.
    fn say_too_large(&self, id: u32, len: usize, mtu: u16) {
        let packet = &self.buffers[id as usize][VIRTIO_LEN..len];
        if let Some(answer) = hawser_wire::icmp::too_large(packet, mtu) {
            let virtio = [0; VIRTIO_LEN];
            let pieces = [std::io::IoSlice::new(&virtio), std::io::IoSlice::new(&answer)];
            if let Err(error) = self.tun.write(&pieces) {
                tracing::debug!(%error, "cannot tell that a packet is too large");
            }
        }
    }

    /// Lets every session that has something to do send what it may.
    fn service(&mut self) {
        let at = now();
        while let Some((due, name)) = self.due.first().copied().filter(|(due, _)| *due <= at) {
            self.due.remove(&(due, name));
            if let Some(session) = self.sessions.get_mut(&name) {
                session.due = Instant::FAR_FUTURE;
            }
            if !self.busy.contains(&name) {
                self.busy.push(name);
            }
        }
        let mut busy = std::mem::take(&mut self.busy);
        for name in busy.drain(..) {
            self.service_one(name);
        }
        self.busy = busy;
    }

    fn service_one(&mut self, name: SessionId) {
        let Some(session) = self.sessions.get_mut(&name) else {
            return;
        };
        session.egress.handle_timeout(now());
        loop {
            let at = now();
            let Some(transmit) = session.egress.poll_transmit(at) else {
                break;
            };
            session.send(
                &transmit,
                &self.buffers,
                &mut self.batches,
                &mut self.dropped.no_key,
                at,
            );
            if let Body::Packets {
                run, covered, last, ..
            } = transmit.body
            {
                if covered {
                    let packet = &self.buffers[run.buffer as usize][VIRTIO_LEN..];
                    session.egress.cover(&transmit, &packet[..run.cut.total()], at);
                }
                if last {
                    self.free.push(run.buffer);
                }
            }
            if transmit.counter > REKEY_AT && !session.rekey_told {
                session.rekey_told = true;
                let _ = self.events.send(Event::RekeyWanted { session: name });
            }
        }
        while let Some(buffer) = session.egress.poll_freed() {
            self.free.push(buffer);
        }
        while let Some((path, state)) = session.egress.poll_change() {
            tracing::debug!(session = name.0, path = path.0, ?state, "path changed");
            let _ = self.events.send(Event::Path {
                session: name,
                path,
                state: state.into(),
            });
        }
        let alive = session.egress.paths().any(|path| path.state() == State::Active);
        if alive != session.alive {
            session.alive = alive;
            let _ = self.events.send(Event::Alive { session: name, alive });
        }
        let due = session.egress.poll_timeout(now());
        if due != session.due {
            self.due.remove(&(session.due, name));
            session.due = due;
            if due != Instant::FAR_FUTURE {
                self.due.insert((due, name));
            }
        }
    }

    fn obey(&mut self, order: Order) {
        let at = now();
        match order {
            Order::AddSocket { id, socket } => {
                self.sockets.insert(id, socket);
            }
            Order::RemoveSocket { id } => {
                self.sockets.remove(&id);
            }
            Order::AddSession { session, role, inner } => self.add_session(session, role, &inner, at),
            Order::RemoveSession { session } => self.remove_session(session),
            Order::Stop => self.running = false,
            Order::Snapshot {
                received,
                mut counters,
                reply,
            } => {
                counters.extend(self.counters());
                let sessions = self.snapshots(&received, at);
                reply(super::Snapshot { sessions, counters });
            }
            Order::Relay { session, relay } => self.relay(session, relay, at),
            Order::Key { session, epoch, key } => self.with(session, |state| match state.role {
                Role::Client => state.use_key(epoch, *key),
                Role::Hub if state.key.is_none() => state.use_key(epoch, *key),
                Role::Hub => state.next_key = Some((epoch, *key)),
            }),
            Order::OpenPath {
                session,
                socket,
                remote,
                peer_index,
                name,
                config,
            } => {
                let socket = self.sockets.get(&socket).cloned();
                self.with(session, |state| {
                    let lane = Lane {
                        socket,
                        remote,
                        local: None,
                        peer_index,
                        name,
                        meter: snapshot::Meter::default(),
                    };
                    state.lanes.insert(config.id, lane);
                    state.egress.open_path(config, remote.is_some(), at);
                });
            }
            Order::RebindPath {
                session,
                path,
                socket,
            } => {
                let socket = self.sockets.get(&socket).cloned();
                self.with(session, |state| {
                    if let Some(lane) = state.lanes.get_mut(&path) {
                        lane.socket = socket;
                        if let Some(remote) = &lane.remote {
                            state.egress.handle_moved(path, overhead(remote), at);
                        }
                    }
                });
            }
            Order::ClosePath { session, path } => self.with(session, |state| {
                state.lanes.remove(&path);
                state.egress.close_path(path);
            }),
            Order::SetScheduler {
                session,
                class,
                scheduler,
            } => self.with(session, |state| {
                if let Err(error) = state.egress.set_scheduler(class, &scheduler) {
                    tracing::warn!(%error, "scheduler unchanged");
                }
            }),
            Order::SetCap { session, path, cap } => {
                self.with(session, |state| state.egress.set_cap(path, cap))
            }
        }
    }

    /// Changes a session and lets it act on the change.
    fn with(&mut self, name: SessionId, change: impl FnOnce(&mut Session)) {
        let Some(session) = self.sessions.get_mut(&name) else {
            return;
        };
        change(session);
        if !self.busy.contains(&name) {
            self.busy.push(name);
        }
    }

    fn add_session(&mut self, name: SessionId, role: Role, inner: &[IpAddr], at: Instant) {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let session = Session {
            egress: Egress::new(self.seed, at),
            role,
            key: None,
            next_key: None,
            lanes: BTreeMap::new(),
            due: Instant::FAR_FUTURE,
            alive: false,
            rekey_told: false,
        };
        self.remove_session(name);
        self.sessions.insert(name, session);
        for address in inner {
            self.routes.insert(*address, name);
        }
        if role == Role::Client {
            self.only = Some(name);
        }
    }

    fn remove_session(&mut self, name: SessionId) {
        let Some(mut session) = self.sessions.remove(&name) else {
            return;
        };
        self.free.extend(session.egress.close());
        self.due.remove(&(session.due, name));
        self.routes.retain(|_, to| *to != name);
        if self.only == Some(name) {
            self.only = None;
        }
    }

    fn relay(&mut self, name: SessionId, relay: Relay, at: Instant) {
        let socket_of = |id: &SocketId| self.sockets.get(id).cloned();
        let moved = match &relay {
            Relay::Moved { source, .. } => socket_of(&source.socket),
            Relay::Machine(_) | Relay::Heard { .. } | Relay::Epoch(_) => None,
        };
        self.with(name, |session| match relay {
            Relay::Machine(ingress::Event::Report(report)) => session.egress.send_report(report),
            Relay::Machine(ingress::Event::Silence(report)) => session.egress.send_silence(report),
            Relay::Machine(ingress::Event::Feedback(path, report)) => {
                session.egress.handle_feedback(path, &report, at);
            }
            Relay::Machine(ingress::Event::Probe(path, token)) => session.egress.handle_probe(path, token),
            Relay::Machine(ingress::Event::ProbeReply(path, token)) => {
                session.egress.handle_probe_reply(path, token, at);
            }
            Relay::Heard { path, bytes } => session.egress.handle_heard(path, bytes, at),
            Relay::Moved { path, source } => {
                if let Some(lane) = session.lanes.get_mut(&path) {
                    let from = source.from;
                    tracing::debug!(session = name.0, path = path.0, %from, to = ?source.to, "path has a new address");
                    lane.remote = Some(from);
                    lane.local = source.to;
                    lane.socket = moved.or_else(|| lane.socket.take());
                    session.egress.handle_moved(path, overhead(&from), at);
                }
            }
            Relay::Epoch(epoch) => session.confirm_key(epoch),
        });
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let sum = |of: fn(&Session) -> u64| self.sessions.values().map(of).sum();
        vec![
            ("egress_no_session", self.dropped.no_session),
            ("egress_malformed", self.dropped.malformed),
            ("egress_too_large", self.dropped.too_large),
            ("egress_queue_full", self.dropped.queue_full),
            ("egress_no_buffer", self.dropped.no_buffer),
            ("egress_no_key", self.dropped.no_key),
            ("egress_policed", sum(|session| session.egress.counters().policed)),
            (
                "egress_repaired",
                sum(|session| session.egress.counters().repaired),
            ),
            ("egress_covered", sum(|session| session.egress.counters().covered)),
            ("egress_parity", sum(|session| session.egress.counters().parity)),
            (
                "egress_parity_bytes",
                sum(|session| session.egress.counters().parity_bytes),
            ),
            (
                "egress_parity_late",
                sum(|session| session.egress.counters().parity_late),
            ),
            ("egress_refused_by_network", self.batches.refused),
            ("egress_datagrams", self.batches.sent.0),
            ("egress_calls", self.batches.sent.1),
        ]
    }

    fn snapshots(
        &mut self,
        received: &BTreeMap<(u64, u16), (u32, u64)>,
        at: Instant,
    ) -> Vec<SessionSnapshot> {
        self.sessions
            .iter_mut()
            .map(|(name, session)| snapshot::of_session(*name, session, received, at))
            .collect()
    }
}

impl Session {
    fn use_key(&mut self, epoch: u8, key: DataKey) {
        self.key = Some((epoch, key));
        self.rekey_told = false;
    }

    /// The client has used a key: from now on so do we.
    fn confirm_key(&mut self, epoch: u8) {
        if let Some((_, key)) = self.next_key.take_if(|(next, _)| *next == epoch) {
            self.use_key(epoch, key);
        }
    }

    /// Builds and seals the datagrams of a transmit.
    fn send(
        &self,
        transmit: &Transmit<u32>,
        buffers: &[Box<[u8]>],
        batches: &mut Batches,
        no_key: &mut u64,
        at: Instant,
    ) {
        let Some((epoch, key)) = &self.key else {
            *no_key += 1;
            return;
        };
        let Some(lane) = self.lanes.get(&transmit.path) else {
            return;
        };
        let (Some(socket), Some(to)) = (lane.socket.clone(), lane.remote) else {
            return;
        };
        let mut target = Target {
            socket,
            from: lane.local,
            to,
            ecn: 0,
        };
        let outer = Outer {
            epoch: *epoch,
            index: lane.peer_index,
            counter: transmit.counter,
        };
        let sealer = Sealer {
            key,
            path: transmit.path,
            outer,
        };
        match transmit.body {
            Body::Packets { run, count, .. } => {
                let packet = &buffers[run.buffer as usize][VIRTIO_LEN..];
                let packet = &packet[..run.cut.total()];
                target.ecn = ecn_of(packet).bits();
                for step in 0..count {
                    let index = run.next + step;
                    let room = batches.room(&target, run.len_of(index) + FRAMING);
                    let inner = transmit.body.header(step, at);
                    sealer.seal(room, u64::from(step), &inner, |body| {
                        run.emit(packet, index, body)
                    });
                }
            }
            Body::Report(report) => {
                let room = batches.room(&target, report.emitted_len() + FRAMING);
                sealer.seal(room, 0, &transmit.body.header(0, at), |body| {
                    emit_report(&report, body)
                });
            }
            Body::Probe(probe) => {
                let udp = usize::from(probe.outer_len).saturating_sub(udp_overhead(&to));
                let room = batches.room(&target, udp.max(PROBE_LEN + FRAMING));
                sealer.seal(room, 0, &transmit.body.header(0, at), |body| {
                    emit_token(probe.token, body)
                });
            }
            Body::Reply(token) => {
                let room = batches.room(&target, PROBE_LEN + FRAMING);
                sealer.seal(room, 0, &transmit.body.header(0, at), |body| {
                    emit_token(token, body)
                });
            }
            Body::Parity { parity, .. } => {
                let symbol = self.egress.symbol();
                let room = batches.room(&target, PARITY_LEN + symbol.len() + FRAMING);
                sealer.seal(room, 0, &transmit.body.header(0, at), |body| {
                    let (head, tail) = body.split_first_chunk_mut().expect("room for both");
                    parity.emit(head);
                    tail.copy_from_slice(symbol);
                });
            }
        }
    }
}

fn emit_report(report: &Feedback, body: &mut [u8]) {
    let mut whole = [0; FEEDBACK_LEN];
    report.emit(&mut whole);
    body.copy_from_slice(&whole[..body.len()]);
}

fn emit_token(token: u64, body: &mut [u8]) {
    let (head, padding) = body.split_at_mut(PROBE_LEN);
    head.copy_from_slice(&token.to_be_bytes());
    padding.fill(0);
}

struct Sealer<'a> {
    key: &'a DataKey,
    path: PathId,
    outer: Outer,
}

impl Sealer<'_> {
    /// Fills and seals one datagram, `step` counters after the first.
    fn seal(&self, datagram: &mut [u8], step: u64, inner: &Inner, fill: impl FnOnce(&mut [u8])) {
        let counter = self.outer.counter + step;
        let outer = Outer {
            counter,
            ..self.outer
        };
        outer.emit(datagram.first_chunk_mut().expect("a datagram holds its headers"));
        let end = datagram.len() - hawser_wire::data::TAG_LEN;
        let body = &mut datagram[OUTER_LEN..end];
        inner.emit(body.first_chunk_mut().expect("a datagram holds its headers"));
        fill(&mut body[INNER_LEN..]);
        self.key.seal(self.path, counter, datagram);
    }
}

fn destination(packet: &[u8]) -> Option<IpAddr> {
    inner::parse(packet).map(|summary| summary.key.destination)
}

fn ecn_of(packet: &[u8]) -> Ecn {
    if packet[0] >> 4 == 4 {
        Ecn::from_bits(packet[1])
    } else {
        Ecn::from_bits(packet[1] >> 4)
    }
}

/// What a path machine starts with, from the control side's order.
pub(super) fn path_config(
    path: PathId,
    role: Role,
    mtu: u16,
    cap: Option<hawser_units::Rate>,
    remote: Option<&SocketAddr>,
) -> path::Config {
    let probing = match role {
        Role::Client => Probing::Eager,
        Role::Hub => Probing::OnHearing,
    };
    // A hub does not know yet whether the client comes by IPv4 or IPv6: the larger header is the safe guess.
    let overhead = remote.map_or((UDP_IPV6 + FRAMING) as u16, overhead);
    path::Config {
        id: path,
        probing,
        cap,
        mtu,
        overhead,
    }
}

/// Bytes of IP and UDP header around a datagram to `remote`.
fn udp_overhead(remote: &SocketAddr) -> usize {
    if remote.is_ipv4() { UDP_IPV4 } else { UDP_IPV6 }
}

/// Bytes between an inner packet and the outer IP packet that carries it to `remote`.
fn overhead(remote: &SocketAddr) -> u16 {
    (udp_overhead(remote) + FRAMING) as u16
}

const UDP_IPV4: usize = 28;
const UDP_IPV6: usize = 48;
