//! The receiving thread: networks to TUN.

use std::collections::{BTreeMap, HashMap};
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use hawser_linux::clock::{now, use_precise_timers};
use hawser_linux::tun::Tun;
use hawser_linux::udp::{DataSocket, plain};
use hawser_linux::wait::{Waker, wait_readable};
use hawser_proto::fec::Rebuilt;
use hawser_proto::ingress::{Authentic, Freshness, Ingress};
use hawser_units::{Duration, Instant, PathId};
use hawser_wire::compression::{COMPRESSED_LEN, Compressed, Contexts, Form, Headers};
use hawser_wire::data::{INNER_LEN, Inner, OUTER_LEN, Outer, is_data};
use hawser_wire::inner::{self, Ecn, ecn_at_exit, set_ecn};
use hawser_wire::offload::{Coalescer, Join};
use quinn_udp::RecvMeta;

use super::crypto::DataKey;
use super::egress::{self, Relay};
use super::store::{Packet, Store};
use super::{ControlDatagram, Role, SessionId, SocketId};

/// Buffers offered to the kernel in one call.
const BUFFERS: usize = 16;
/// Calls per socket before what they brought is delivered.
const ROUNDS: usize = 2;
/// How long the key before the current one still opens packets.
const OLD_KEY: Duration = Duration::from_secs(60);
/// Between two notes to the sending thread that a path is heard.
const HEARD_INTERVAL: Duration = Duration::from_millis(50);
/// Pieces of one vectored write: the kernel takes 1,024.
const MAX_PIECES: usize = 512;

/// What the receiving thread is told.
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
        path: PathId,
        local_index: u32,
    },
    ClosePath {
        session: SessionId,
        path: PathId,
    },
    Snapshot(Box<dyn FnOnce(super::Snapshot) + Send>),
    Stop,
}

struct PathEntry {
    session: SessionId,
    path: PathId,
    /// Where the newest packet came from, by which socket, and to which address of ours.
    source: Option<Source>,
    heard_bytes: u64,
    heard_told: Instant,
}

struct Session {
    ingress: Ingress<u32>,
    contexts: Contexts,
    role: Role,
    inner: Vec<IpAddr>,
    /// Epoch, key, and until when it is valid. The newest last.
    keys: Vec<(u8, DataKey, Instant)>,
    newest_used: Option<u8>,
    due: Option<Instant>,
}

#[derive(Default)]
struct Dropped {
    malformed: u64,
    unknown_index: u64,
    replayed: u64,
    no_key: u64,
    forged: u64,
    spoofed: u64,
    not_ect: u64,
    no_context: u64,
    tun: u64,
    control: u64,
}

pub(super) struct Links {
    pub(super) tun: Tun,
    pub(super) waker: Arc<Waker>,
    pub(super) orders: Receiver<Order>,
    pub(super) egress: Sender<egress::Order>,
    pub(super) egress_waker: Arc<Waker>,
    pub(super) control: tokio::sync::mpsc::Sender<ControlDatagram>,
}

pub(super) struct Receiving {
    links: Links,
    sockets: Vec<(SocketId, Arc<DataSocket>)>,
    sessions: BTreeMap<SessionId, Session>,
    paths: HashMap<u32, PathEntry>,
    store: Store,
    offered: Vec<u32>,
    out: Vec<u32>,
    /// Headers of the compressed packets in `out`, in their order.
    rebuilt: Vec<Headers>,
    touched: Vec<SessionId>,
    dropped: Dropped,
    datagrams: u64,
    writes: u64,
    /// When all sockets were last found empty.
    heard: Instant,
    relayed: bool,
    running: bool,
}

impl Receiving {
    pub(super) fn new(links: Links) -> Self {
        let mut store = Store::new();
        let offered = (0..BUFFERS).map(|_| store.take()).collect();
        Self {
            links,
            sockets: Vec::new(),
            sessions: BTreeMap::new(),
            paths: HashMap::new(),
            store,
            offered,
            out: Vec::new(),
            rebuilt: Vec::new(),
            touched: Vec::new(),
            dropped: Dropped::default(),
            datagrams: 0,
            writes: 0,
            heard: now(),
            relayed: false,
            running: true,
        }
    }

    /// Runs until told to stop.
    pub(super) fn run(mut self) {
        use_precise_timers();
        let mut ready = Vec::new();
        while self.running {
            self.wait(&mut ready);
            let mut ordered = false;
            while let Ok(order) = self.links.orders.try_recv() {
                self.obey(order);
                // The sockets may be others now: what was ready is looked at again.
                ready.clear();
                ordered = true;
            }
            let since = now();
            let mut drained = !ordered;
            for (at, ready) in ready.iter().enumerate().take(self.sockets.len()) {
                drained &= !ready || self.receive(at);
            }
            if drained {
                self.heard = since;
            }
            self.flush_due();
            if std::mem::take(&mut self.relayed) {
                self.links.egress_waker.wake();
            }
        }
    }

    /// Waits for datagrams, orders or a deadline; `ready` is set for each socket.
    fn wait(&mut self, ready: &mut Vec<bool>) {
        let due = self.sessions.values().filter_map(|session| session.due).min();
        let timeout = due.map(|due| due.since(now()));
        // Sockets first, so that `ready` has their order; more than 63 networks are not waited for.
        let mut sources: Vec<BorrowedFd<'_>> = self
            .sockets
            .iter()
            .take(63)
            .map(|(_, socket)| socket.as_fd())
            .collect();
        sources.push(self.links.waker.as_fd());
        ready.clear();
        ready.resize(sources.len(), false);
        if let Err(error) = wait_readable(&sources, timeout, ready) {
            tracing::error!(%error, "waiting failed");
            std::thread::sleep(Duration::from_millis(100));
        }
        if ready.pop() == Some(true) {
            self.links.waker.clear();
        }
    }

    /// Reads a socket. Returns whether it is empty now.
    fn receive(&mut self, at: usize) -> bool {
        let (id, socket) = (self.sockets[at].0, Arc::clone(&self.sockets[at].1));
        for _ in 0..ROUNDS {
            let mut meta = [RecvMeta::default(); BUFFERS];
            let received = {
                let mut buffers = self.store.large_many(&self.offered).map(IoSliceMut::new);
                let mut slices: [IoSliceMut<'_>; BUFFERS] =
                    std::array::from_fn(|_| buffers.next().expect("as many buffers as slots"));
                socket.receive(&mut slices, &mut meta)
            };
            let count = match received {
                Ok(count) => count,
                Err(error) => {
                    tracing::trace!(%error, "socket error");
                    0
                }
            };
            if count == 0 {
                return true;
            }
            let at = now();
            for (slot, meta) in meta[..count].iter().enumerate() {
                self.take_buffer(self.offered[slot], id, meta, at);
            }
            self.end_batch(at);
            if count < BUFFERS {
                return true;
            }
        }
        false
    }

    /// Works through the datagrams of one buffer.
    fn take_buffer(&mut self, buffer: u32, socket: SocketId, meta: &RecvMeta, at: Instant) {
        let from = plain(meta.addr);
        let to = meta.dst_ip.map(|address| address.to_canonical());
        let ecn = meta
            .ecn
            .map_or(Ecn::NotEct, |codepoint| Ecn::from_bits(codepoint as u8));
        let stride = meta.stride.max(1);
        let mut start = 0;
        while start < meta.len {
            let end = meta.len.min(start + stride);
            self.datagrams += 1;
            let source = Source { socket, from, to };
            if is_data(&self.store.large(buffer)[start..end]) {
                self.take_datagram(buffer, start..end, source, ecn, at);
            } else {
                let bytes = self.store.large(buffer)[start..end].to_vec();
                let datagram = ControlDatagram {
                    from: meta.addr,
                    to: meta.dst_ip,
                    ecn: ecn.bits(),
                    bytes,
                };
                if self.links.control.try_send(datagram).is_err() {
                    self.dropped.control += 1;
                }
            }
            start = end;
        }
    }

    fn take_datagram(
        &mut self,
        buffer: u32,
        range: std::ops::Range<usize>,
        source: Source,
        ecn: Ecn,
        at: Instant,
    ) {
        let datagram = &mut self.store.large(buffer)[range.clone()];
        let Some(outer) = Outer::parse(datagram) else {
            self.dropped.malformed += 1;
            return;
        };
        let Some(entry) = self.paths.get_mut(&outer.index) else {
            self.dropped.unknown_index += 1;
            return;
        };
        let Some(session) = self.sessions.get_mut(&entry.session) else {
            self.dropped.unknown_index += 1;
            return;
        };
        if !session.ingress.accepts(entry.path, outer.counter) {
            self.dropped.replayed += 1;
            return;
        }
        let valid = |(epoch, _, until): &&(u8, DataKey, Instant)| *epoch == outer.epoch && at < *until;
        let Some((_, key, _)) = session.keys.iter().find(valid) else {
            self.dropped.no_key += 1;
            return;
        };
        let Some(body) = key.open(entry.path, outer.counter, datagram) else {
            self.dropped.forged += 1;
            return;
        };
        let Some((inner, content)) = Inner::parse(body) else {
            self.dropped.malformed += 1;
            return;
        };
        let is_packet = inner.kind == hawser_wire::data::Kind::Packet;
        // A compressed packet has the source of its context.
        let has_source = is_packet && inner.form != Form::Compressed;
        if has_source && session.role == Role::Hub && !session.owns_source(content) {
            self.dropped.spoofed += 1;
            return;
        }
        let start = range.start + OUTER_LEN + INNER_LEN;
        let content = start..start + content.len();
        let item = self.store.add(buffer, content, (entry.session, inner), ecn);
        let udp_len = range.len();
        let authentic = Authentic {
            outer,
            inner,
            body: self.store.bytes(item),
            udp_len,
            ce: ecn == Ecn::Ce,
            item,
        };
        let (freshness, refused) = session
            .ingress
            .handle_packet(entry.path, authentic, at, &mut self.out);
        if let Some(item) = refused {
            self.store.free(item);
        }
        while let Some(Rebuilt { inner, packet }) = session.ingress.poll_rebuilt() {
            if session.role == Role::Hub && !session.owns_source(&packet) {
                self.dropped.spoofed += 1;
                continue;
            }
            let item = self.store.add_copy(&packet, (entry.session, inner));
            let refused = session.ingress.handle_rebuilt(&inner, item, at, &mut self.out);
            if let Some(item) = refused {
                self.store.free(item);
            }
        }
        if !self.touched.contains(&entry.session) {
            self.touched.push(entry.session);
        }
        if freshness == Freshness::Newest {
            let name = entry.session;
            if session.newest_used != Some(outer.epoch) {
                session.newest_used = Some(outer.epoch);
                Self::tell(&self.links, &mut self.relayed, name, Relay::Epoch(outer.epoch));
            }
            if session.role == Role::Hub && entry.source != Some(source) {
                entry.source = Some(source);
                let moved = Relay::Moved {
                    path: entry.path,
                    source,
                };
                Self::tell(&self.links, &mut self.relayed, name, moved);
                // What the old address sent earns the new one nothing.
                entry.heard_bytes = 0;
                entry.heard_told = Instant::ZERO;
            }
        }
        entry.heard_bytes += udp_len as u64;
        if session.role == Role::Hub && at.since(entry.heard_told) >= HEARD_INTERVAL {
            entry.heard_told = at;
            let heard = Relay::Heard {
                path: entry.path,
                bytes: std::mem::take(&mut entry.heard_bytes),
            };
            Self::tell(&self.links, &mut self.relayed, entry.session, heard);
        }
    }

    fn tell(links: &Links, relayed: &mut bool, session: SessionId, relay: Relay) {
        *relayed |= links.egress.send(egress::Order::Relay { session, relay }).is_ok();
    }

    /// Delivers what a batch made deliverable, and passes on what the machines have to say.
    fn end_batch(&mut self, at: Instant) {
        let mut touched = std::mem::take(&mut self.touched);
        for name in touched.drain(..) {
            self.flush_session(name, at);
        }
        self.touched = touched;
        self.deliver();
        self.store.settle(&mut self.offered);
    }

    fn flush_session(&mut self, name: SessionId, at: Instant) {
        let Some(session) = self.sessions.get_mut(&name) else {
            return;
        };
        session.ingress.flush(at, self.heard, &mut self.out);
        while let Some(event) = session.ingress.poll_event() {
            Self::tell(&self.links, &mut self.relayed, name, Relay::Machine(event));
        }
        session.due = session.ingress.poll_timeout();
    }

    /// Flushes the sessions whose time has come.
    fn flush_due(&mut self) {
        let at = now();
        let due: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.due.is_some_and(|due| due <= at))
            .map(|(name, _)| *name)
            .collect();
        if due.is_empty() {
            return;
        }
        for name in due {
            self.flush_session(name, at);
        }
        self.deliver();
    }

    /// Writes `out` to the TUN, joining what can be joined, and frees it.
    fn deliver(&mut self) {
        if self.out.is_empty() {
            return;
        }
        let mut out = std::mem::take(&mut self.out);
        out.retain(|id| {
            let leaves = self.restore(*id) && self.may_leave(*id);
            if !leaves {
                self.store.free(*id);
            }
            leaves
        });
        let mut rebuilt = self.rebuilt.iter();
        let mut writer = Writer {
            tun: &self.links.tun,
            coalescer: Coalescer::default(),
            pieces: Vec::new(),
        };
        for id in &out {
            let bytes = self.store.bytes(*id);
            let inner = self.store.packet(*id).inner;
            let packet = match inner.form {
                Form::Whole | Form::Context => Outgoing {
                    headers: bytes,
                    skip: 0,
                    bytes,
                },
                Form::Compressed => {
                    let headers = rebuilt.next().expect("each was restored").bytes();
                    Outgoing {
                        headers,
                        skip: headers.len(),
                        bytes: &bytes[COMPRESSED_LEN..],
                    }
                }
            };
            self.writes += writer.push(packet, inner.checksum_partial, &mut self.dropped.tun);
        }
        self.writes += writer.flush(&mut self.dropped.tun);
        self.rebuilt.clear();
        for id in out.drain(..) {
            self.store.free(id);
        }
        self.out = out;
    }

    /// Remembers a context, and puts the headers of a compressed packet behind the other `rebuilt` ones; false if it has none.
    fn restore(&mut self, id: u32) -> bool {
        let packet = self.store.packet(id);
        let (session, inner) = (packet.session, packet.inner);
        if inner.form == Form::Whole {
            return true;
        }
        let bytes = self.store.bytes(id);
        let contexts = self
            .sessions
            .get_mut(&session)
            .map(|session| &mut session.contexts);
        let headers = contexts.and_then(|contexts| {
            if inner.form == Form::Context {
                contexts.remember(inner.flow, inner.sequence, bytes, bytes.len());
                return None;
            }
            let (head, payload) = bytes.split_first()?;
            contexts.rebuild(
                inner.flow,
                inner.sequence,
                Compressed::parse(*head)?,
                payload.len(),
            )
        });
        let has_headers = inner.form == Form::Context || headers.is_some();
        self.dropped.no_context += u64::from(!has_headers);
        self.rebuilt.extend(headers);
        has_headers
    }

    /// Carries a congestion mark from the outer to the inner packet; false if the packet must be dropped (RFC 6040).
    fn may_leave(&mut self, id: u32) -> bool {
        let Packet { outer_ecn, inner, .. } = *self.store.packet(id);
        if outer_ecn != Ecn::Ce {
            return true;
        }
        let packet = match self.rebuilt.last_mut().filter(|_| inner.form == Form::Compressed) {
            Some(headers) => headers.bytes_mut(),
            None => self.store.bytes_mut(id),
        };
        let Some(summary) = inner::parse(packet) else {
            return true;
        };
        match ecn_at_exit(summary.ecn, Ecn::Ce) {
            Some(ecn) => set_ecn(packet, ecn),
            None => {
                self.dropped.not_ect += 1;
                if inner.form == Form::Compressed {
                    self.rebuilt.pop();
                }
                return false;
            }
        }
        true
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::AddSocket { id, socket } => {
                self.sockets.retain(|(known, _)| *known != id);
                self.sockets.push((id, socket));
            }
            Order::RemoveSocket { id } => self.sockets.retain(|(known, _)| *known != id),
            Order::AddSession { session, role, inner } => {
                self.remove_session(session);
                let state = Session {
                    ingress: Ingress::default(),
                    contexts: Contexts::default(),
                    role,
                    inner,
                    keys: Vec::new(),
                    newest_used: None,
                    due: None,
                };
                self.sessions.insert(session, state);
            }
            Order::RemoveSession { session } => self.remove_session(session),
            Order::Key { session, epoch, key } => {
                if let Some(state) = self.sessions.get_mut(&session) {
                    let until = now() + OLD_KEY;
                    state
                        .keys
                        .iter_mut()
                        .for_each(|(_, _, valid)| *valid = until.min(*valid));
                    state.keys.retain(|(known, _, _)| *known != epoch);
                    state.keys.push((epoch, *key, Instant::FAR_FUTURE));
                    // Two epochs live at once; a third means that the oldest had its minute long ago.
                    let surplus = state.keys.len().saturating_sub(3);
                    state.keys.drain(..surplus);
                }
            }
            Order::OpenPath {
                session,
                path,
                local_index,
            } => {
                if let Some(state) = self.sessions.get_mut(&session) {
                    state.ingress.open_path(path, now());
                    let entry = PathEntry {
                        session,
                        path,
                        source: None,
                        heard_bytes: 0,
                        heard_told: Instant::ZERO,
                    };
                    self.paths.insert(local_index, entry);
                }
            }
            Order::ClosePath { session, path } => {
                self.paths
                    .retain(|_, entry| entry.session != session || entry.path != path);
                if let Some(state) = self.sessions.get_mut(&session) {
                    state.ingress.close_path(path);
                }
            }
            Order::Snapshot(reply) => self.snapshot(reply),
            Order::Stop => self.running = false,
        }
    }

    fn remove_session(&mut self, name: SessionId) {
        let Some(mut session) = self.sessions.remove(&name) else {
            return;
        };
        session.ingress.drain(now(), &mut self.out);
        for id in std::mem::take(&mut self.out) {
            self.store.free(id);
        }
        self.paths.retain(|_, entry| entry.session != name);
    }

    fn snapshot(&mut self, reply: Box<dyn FnOnce(super::Snapshot) + Send>) {
        let mut received = BTreeMap::new();
        for entry in self.paths.values() {
            let totals = self
                .sessions
                .get(&entry.session)
                .and_then(|state| state.ingress.received(entry.path));
            if let Some(totals) = totals {
                received.insert((entry.session.0, entry.path.0), totals);
            }
        }
        let mut order = hawser_proto::resequencer::Counters::default();
        let rebuilt = self
            .sessions
            .values()
            .map(|session| session.ingress.rebuilt())
            .sum();
        for session in self.sessions.values() {
            let counters = session.ingress.resequencer();
            order.in_order += counters.in_order;
            order.held += counters.held;
            order.late += counters.late;
            order.duplicates += counters.duplicates;
            order.gaps_given_up += counters.gaps_given_up;
        }
        let dropped = &self.dropped;
        let counters = vec![
            ("ingress_malformed", dropped.malformed),
            ("ingress_unknown_index", dropped.unknown_index),
            ("ingress_replayed", dropped.replayed),
            ("ingress_no_key", dropped.no_key),
            ("ingress_forged", dropped.forged),
            ("ingress_spoofed", dropped.spoofed),
            ("ingress_ce_on_not_ect", dropped.not_ect),
            ("ingress_no_context", dropped.no_context),
            ("ingress_tun_refused", dropped.tun),
            ("ingress_control_dropped", dropped.control),
            ("ingress_datagrams", self.datagrams),
            ("ingress_tun_writes", self.writes),
            ("ingress_rebuilt", rebuilt),
            ("resequencer_in_order", order.in_order),
            ("resequencer_held", order.held),
            ("resequencer_late", order.late),
            ("resequencer_duplicates", order.duplicates),
            ("resequencer_gaps_given_up", order.gaps_given_up),
        ];
        let sent = self.links.egress.send(egress::Order::Snapshot {
            received,
            counters,
            reply,
        });
        self.relayed |= sent.is_ok();
    }
}

impl Session {
    /// Whether an inner packet comes from an address that the hub gave to this client.
    fn owns_source(&self, packet: &[u8]) -> bool {
        inner::parse(packet).is_some_and(|summary| self.inner.contains(&summary.key.source))
    }
}

/// The way that a datagram came: a hub answers by the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Source {
    /// By which socket.
    pub(super) socket: SocketId,
    /// From which address of the peer.
    pub(super) from: SocketAddr,
    /// To which address of this machine: a machine may have several, and firewalls let in only answers from the right one.
    pub(super) to: Option<IpAddr>,
}

/// A packet for the TUN.
#[derive(Clone, Copy)]
struct Outgoing<'a> {
    /// Begins with its headers.
    headers: &'a [u8],
    /// How many of them are not in `bytes`.
    skip: usize,
    bytes: &'a [u8],
}

/// Joins packets and writes them to the TUN without copying their payload.
struct Writer<'a> {
    tun: &'a Tun,
    coalescer: Coalescer,
    pieces: Vec<&'a [u8]>,
}

impl<'a> Writer<'a> {
    /// Returns how many writes it took.
    fn push(&mut self, packet: Outgoing<'a>, partial: bool, refused: &mut u64) -> u64 {
        let mut writes = 0;
        if self.pieces.len() >= MAX_PIECES {
            writes += self.flush(refused);
        }
        loop {
            let len = packet.skip + packet.bytes.len();
            match self.coalescer.push(packet.headers, len, partial) {
                Join::Append(at) | Join::Open(at) => {
                    self.pieces.push(&packet.bytes[at - packet.skip..]);
                    return writes;
                }
                Join::Flush => writes += self.flush(refused),
            }
        }
    }

    fn flush(&mut self, refused: &mut u64) -> u64 {
        let Some((virtio, headers)) = self.coalescer.finish() else {
            return 0;
        };
        let mut slices = [IoSlice::new(&[]); MAX_PIECES + 2];
        slices[0] = IoSlice::new(&virtio);
        slices[1] = IoSlice::new(headers);
        for (slice, piece) in slices[2..].iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(piece);
        }
        let result = self.tun.write(&slices[..self.pieces.len() + 2]);
        if !matches!(result, Ok(true)) {
            *refused += self.pieces.len() as u64;
            tracing::trace!(?result, "TUN refused a packet");
        }
        self.pieces.clear();
        1
    }
}
