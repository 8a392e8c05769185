//! Receiving thread, from the networks to the TUN device.

mod delivering;
mod gates;
pub(crate) mod streaming;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::IoSliceMut;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use hawser_linux::clock::{now, use_precise_timers};
use hawser_linux::tun::Tun;
use hawser_linux::udp::{DataSocket, plain};
use hawser_linux::wait::{Waker, wait_readable};
use hawser_proto::client_filter::{ClientFilter, Policy};
use hawser_proto::ingress::Ingress;
use hawser_proto::resequencer;
use hawser_proto::stream::Accepted;
use hawser_proto::tunnel::{self, Arrival, Items, Refusal, RelayIntervals, Role};
use hawser_units::{Duration, Instant, PathId};
use hawser_wire::compression::Headers;
use hawser_wire::data::{INNER_LEN, Inner, OUTER_LEN, Outer, TAG_LEN, is_data};
use hawser_wire::frame::Format;
use hawser_wire::inner::Ecn;
use quinn_udp::RecvMeta;

use super::checkpoint::SessionCheckpoint;
use super::crypto::DataKey;
use super::egress;
use super::handoff::{StopsOther, Taker};
use super::relayed::{Relayed, Source};
use super::share::Share;
use super::store::{Account, Owner, Store};
use super::streams::StreamRelay;
use super::streams::receiving::ReceivingStreams;
use super::{Change, ControlDatagram, Reply, SessionId, SocketId};

mod handover;

use gates::Gates;
use streaming::{Bounded, Streams};

/// Buffers offered to the kernel in one call. Source: our choice, 1 MB in all; fewer need more
/// system calls at high rates, more leave the processor's cache before they are processed.
const BUFFERS: usize = 16;
/// Receive calls per socket before their packets are delivered. Source: our choice; more rounds
/// release more segments of a flow at once, and delay those of other sockets.
const ROUNDS: usize = 2;
/// Gaps that a session which holds too much gives up at once. Source: our choice; each search
/// examines the session's flows once, and more gaps at once give up packets that would have been
/// delivered.
const RELIEVED_AT_ONCE: usize = 16;
/// Retry interval for messages that the full queue to the sending thread rejected. Source: our
/// choice; a report that is late by more looks like a silent path, and a shorter interval wakes the
/// thread in vain.
const RETRY: Duration = Duration::from_millis(10);

/// Orders for the receiving thread.
pub(super) enum Order {
    Change(Arc<Change>),
    /// Ends this thread, and answers with the checkpoints of its sessions.
    HandOver(Reply<Vec<SessionCheckpoint>>),
    Snapshot(Reply<super::Snapshot>),
}

/// Path of an index in arriving datagrams.
#[derive(Clone, Copy)]
struct PathEntry {
    session: SessionId,
    path: PathId,
}

struct Session {
    tunnel: tunnel::Receiving<u32, DataKey, Source>,
    streams: ReceivingStreams,
    /// Time at which the limit of the session permits bytes of streams again.
    streams_due: Instant,
    account: Account,
    /// Indexes of its paths.
    indexes: Vec<u32>,
    due: Instant,
    is_touched: bool,
    is_hub: bool,
}

/// Buffers that contain a session's packets.
struct Filing<'a> {
    store: &'a mut Store,
    owner: Owner,
    streams: &'a mut ReceivingStreams,
}

impl Items<u32> for Filing<'_> {
    fn body(&self, item: &u32) -> &[u8] {
        self.store.bytes(*item)
    }

    fn store(&mut self, packet: &[u8], inner: &Inner) -> Option<u32> {
        Some(self.store.add_copy(packet, (self.owner, *inner), Ecn::NotEct))
    }

    fn join(&mut self, packet: &[u8], inner: &Inner, last: &u32) -> Option<u32> {
        let outer_ecn = self.store.packet(*last).outer_ecn;
        Some(self.store.add_copy(packet, (self.owner, *inner), outer_ecn))
    }

    fn take_bytes(&mut self, item: &u32, accepted: &Accepted) {
        self.streams.take_bytes(accepted, self.store.bytes(*item));
    }

    fn free(&mut self, item: u32) {
        self.store.free(item);
    }
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
    filtered: u64,
    no_context: u64,
    tun: u64,
    control: u64,
    relieved: u64,
}

pub(super) struct Links {
    pub(super) tun: Tun,
    pub(super) format: Format,
    /// Limits of the resequencers.
    pub(super) order: resequencer::Config,
    pub(super) orders: Taker<Order, StreamRelay, Waker>,
    /// Sending thread, which ends with this one.
    pub(super) egress: StopsOther<egress::Order, Relayed, Waker>,
    pub(super) control: tokio::sync::mpsc::Sender<ControlDatagram>,
}

pub(super) struct Receiving {
    links: Links,
    /// Filter of a hub, which drops packets to destinations that clients may not reach.
    filter: Option<ClientFilter<Arc<Policy>>>,
    sockets: Vec<(SocketId, Arc<DataSocket>)>,
    sessions: BTreeMap<SessionId, Session>,
    paths: HashMap<u32, PathEntry>,
    store: Store,
    offered: Vec<u32>,
    out: Vec<u32>,
    /// Headers of the compressed packets in `out`, in their order.
    rebuilt: Vec<Headers>,
    touched: Vec<SessionId>,
    due: BTreeSet<(Instant, SessionId)>,
    /// State of streams; `None` if connections are transferred as packets.
    streams: Option<Streams>,
    /// Limits of sessions.
    gates: Gates,
    /// Sessions with essential relays that the sending thread has not accepted yet.
    untold: Vec<SessionId>,
    dropped: Dropped,
    datagrams: u64,
    writes: u64,
    /// Time when all sockets were last found empty.
    heard: Instant,
    relayed: bool,
    running: bool,
}

impl Receiving {
    /// Creates the thread's state. `client_policy` has the destinations that clients of a hub may
    /// reach. `streams` is `None` if connections are transferred as packets.
    pub(super) fn new(
        links: Links,
        client_policy: Option<Arc<Policy>>,
        streams: Option<Streams>,
        share: Share,
    ) -> Self {
        let mut store = Store::new(share, now());
        let offered = (0..BUFFERS).map(|_| store.take()).collect();
        Self {
            filter: client_policy.map(ClientFilter::new),
            links,
            sockets: Vec::new(),
            sessions: BTreeMap::new(),
            paths: HashMap::new(),
            store,
            offered,
            out: Vec::new(),
            rebuilt: Vec::new(),
            touched: Vec::new(),
            due: BTreeSet::new(),
            streams,
            gates: Gates::default(),
            untold: Vec::new(),
            dropped: Dropped::default(),
            datagrams: 0,
            writes: 0,
            heard: now(),
            relayed: false,
            running: true,
        }
    }

    /// Runs until it is asked to stop.
    pub(super) fn run(mut self) {
        use_precise_timers();
        let mut ready = Vec::new();
        let (mut orders, mut relays) = (Vec::new(), Vec::new());
        while self.running {
            self.wait(&mut ready);
            self.running = self.links.orders.take(&mut orders, &mut relays);
            let ordered = !orders.is_empty();
            if ordered {
                // The sockets may have been replaced, so poll all of them again.
                ready.clear();
            }
            for order in orders.drain(..) {
                self.obey(order);
            }
            relays.drain(..).for_each(|relay| self.handle_relay(relay));
            let since = now();
            let mut drained = !ordered;
            for (at, ready) in ready.iter().enumerate().take(self.sockets.len()) {
                drained &= !ready || self.receive(at);
            }
            if drained {
                self.heard = since;
            }
            if !self.touched.is_empty() {
                self.end_batch(now());
            }
            self.flush_due();
            self.retry_relays();
            if std::mem::take(&mut self.relayed) {
                self.links.egress.0.wake();
            }
        }
    }

    /// Returns the time of the next timer.
    fn next_due(&self) -> Instant {
        let first = self.due.first().map_or(Instant::FAR_FUTURE, |(due, _)| *due);
        let untold = if self.untold.is_empty() {
            Instant::FAR_FUTURE
        } else {
            now() + RETRY
        };
        first.min(untold).min(self.store.due()).min(self.gates.due())
    }

    /// Waits for datagrams, orders or a deadline; `ready` is set for each socket.
    fn wait(&mut self, ready: &mut Vec<bool>) {
        let due = self.next_due();
        let timeout = (due != Instant::FAR_FUTURE).then(|| due.since(now()));
        // Sockets are first, so that `ready` has their order; at most 62 networks are polled.
        let mut sources: Vec<BorrowedFd<'_>> = self
            .sockets
            .iter()
            .take(62)
            .map(|(_, socket)| socket.as_fd())
            .collect();
        let waker = self.links.orders.waker();
        sources.push(waker.as_fd());
        if let Some(streams) = &self.streams {
            sources.push(streams.sockets.as_fd());
        }
        ready.clear();
        ready.resize(sources.len(), false);
        if let Err(error) = wait_readable(&sources, timeout, ready) {
            tracing::error!(%error, "waiting failed");
            std::thread::sleep(Duration::from_millis(100));
        }
        let has_sockets = self.streams.is_some() && ready.pop() == Some(true);
        if ready.pop() == Some(true) {
            waker.clear();
        }
        if has_sockets {
            self.poll_sockets();
        }
    }

    /// Reads a socket. Returns whether it is empty now.
    fn receive(&mut self, at: usize) -> bool {
        let (id, socket) = (self.sockets[at].0, Arc::clone(&self.sockets[at].1));
        for _ in 0..ROUNDS {
            let mut meta = [RecvMeta::default(); BUFFERS];
            let received = {
                let mut buffers = self.store.large_buffers(&self.offered).map(IoSliceMut::new);
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

    /// Processes the datagrams of one buffer.
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
        let (name, path) = (entry.session, entry.path);
        let Some(session) = self.sessions.get_mut(&name) else {
            self.dropped.unknown_index += 1;
            return;
        };
        let opened = match session.tunnel.open(path, outer, datagram, at) {
            Ok(opened) => opened,
            Err(refusal) => return self.dropped.count(refusal),
        };
        let content = range.start + OUTER_LEN + INNER_LEN..range.end - TAG_LEN;
        let owner = Owner {
            session: name,
            account: session.account,
        };
        let arrival = Arrival {
            path,
            opened,
            udp_len: range.len(),
            source,
            ecn,
            item: self.store.add(buffer, content, (owner, opened.inner), ecn),
        };
        let mut items = Filing {
            store: &mut self.store,
            owner,
            streams: &mut session.streams,
        };
        let taken = session
            .tunnel
            .handle_packet(arrival, at, &mut items, &mut self.out);
        self.dropped.spoofed += taken.spoofed;
        if !std::mem::replace(&mut session.is_touched, true) {
            self.touched.push(name);
        }
    }

    /// Repeats relays that the sending thread depends on and has not accepted.
    fn retry_relays(&mut self) {
        let at = now();
        let Self {
            links,
            relayed,
            sessions,
            untold,
            ..
        } = self;
        untold.retain(|name| {
            sessions
                .get_mut(name)
                .is_some_and(|session| !session.send_relays(*name, links, relayed, at))
        });
    }

    /// Delivers the packets that a batch made deliverable, and passes on events of the machines.
    fn end_batch(&mut self, at: Instant) {
        let mut touched = std::mem::take(&mut self.touched);
        for name in touched.drain(..) {
            self.flush_session(name, at);
        }
        self.touched = touched;
        self.deliver();
        self.store.settle(&mut self.offered);
        self.relieve(at);
    }

    /// Makes sessions that exceed their memory release their oldest buffered packets.
    fn relieve(&mut self, at: Instant) {
        while let Some(account) = self.store.over() {
            let mut sessions = self.sessions.values_mut();
            let Some(session) = sessions.find(|session| session.account == account) else {
                return;
            };
            // Several packets are released at once, and delivered together.
            let has_held = (0..RELIEVED_AT_ONCE)
                .filter(|_| session.tunnel.relieve(at, &mut self.out))
                .count();
            self.dropped.relieved += has_held as u64;
            self.deliver();
            if has_held == 0 && !self.relieve_gate(account) {
                return;
            }
        }
    }

    fn flush_session(&mut self, name: SessionId, at: Instant) {
        if self.streams.is_some() {
            self.work_streams(name, at);
        }
        let Some(session) = self.sessions.get_mut(&name) else {
            return;
        };
        session.is_touched = false;
        session.tunnel.flush(at, self.heard, &mut self.out);
        let is_told = session.send_relays(name, &self.links, &mut self.relayed, at);
        if !is_told && !self.untold.contains(&name) {
            self.untold.push(name);
        }
        session.note_due(name, &mut self.due);
    }

    /// Flushes the sessions whose timer has expired.
    fn flush_due(&mut self) {
        let at = now();
        self.store.trim(at);
        self.release(at);
        if self.due.first().is_none_or(|(due, _)| *due > at) {
            return;
        }
        let end = (at, SessionId(u64::MAX));
        let due: Vec<SessionId> = self.due.range(..=end).map(|(_, name)| *name).collect();
        for name in due {
            self.flush_session(name, at);
        }
        self.deliver();
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Change(change) => self.change(&change),
            Order::HandOver(reply) => self.hand_over(reply),
            Order::Snapshot(reply) => self.snapshot(reply),
        }
    }

    /// Executes the receiving half of a change.
    fn change(&mut self, change: &Change) {
        match change {
            Change::AddSocket { id, socket, .. } => {
                self.sockets.retain(|(known, _)| known != id);
                self.sockets.push((*id, Arc::clone(socket)));
            }
            Change::RemoveSocket { id } => self.sockets.retain(|(known, _)| known != id),
            Change::AddSession { session, role, inner } => {
                // The hub is responsible for all packets to its client, and frames have no assigned
                // addresses, so neither is filtered.
                let format = self.links.format;
                let is_checked = *role == Role::Hub && format == Format::Ip;
                let addresses = is_checked.then(|| inner.clone());
                let ingress = Ingress::new(self.links.order);
                let tunnel = tunnel::Receiving::with(*role, addresses, RelayIntervals::THREADS, ingress);
                let tunnel = tunnel.carrying(format);
                self.add_session(*session, *role, tunnel, inner.clone());
            }
            Change::SetSubnets { session, subnets } => {
                if let Some(state) = self.sessions.get_mut(session) {
                    state.tunnel.set_subnets(subnets.clone());
                }
            }
            Change::RemoveSession { session } => self.remove_session(*session),
            Change::InstallKeys { session, epoch, keys } => {
                if let Some(state) = self.sessions.get_mut(session) {
                    let key = DataKey::new(keys.cipher, &keys.receive);
                    state.tunnel.install(*epoch, key, now());
                    state.note_due(*session, &mut self.due);
                }
            }
            Change::OpenPath {
                session,
                path,
                local_index,
                ..
            } => {
                if let Some(state) = self.sessions.get_mut(session) {
                    state.tunnel.open_path(*path, now());
                    state.indexes.push(*local_index);
                    let (session, path) = (*session, *path);
                    self.paths.insert(*local_index, PathEntry { session, path });
                }
            }
            Change::ClosePath { session, path } => {
                if let Some(state) = self.sessions.get_mut(session) {
                    let paths = &mut self.paths;
                    state.indexes.retain(|index| {
                        let is_it = paths.get(index).is_some_and(|entry| entry.path == *path);
                        if is_it {
                            paths.remove(index);
                        }
                        !is_it
                    });
                    state.tunnel.close_path(*path);
                }
            }
            Change::RestoreSession {
                session,
                role,
                inner,
                checkpoint,
            } => {
                if let Err(error) = self.restore_session((*session, *role), inner.clone(), checkpoint) {
                    tracing::error!(session = session.0, %error, "a session is lost");
                }
            }
            Change::SetLimit { session, limit } => self.set_limit(*session, *limit),
            Change::SetClientPolicy(policy) => {
                self.filter = Some(ClientFilter::new(Arc::clone(policy)));
                self.check_streams(policy);
            }
            // These concern sending only.
            Change::SetOtherClients(_)
            | Change::BeginWith { .. }
            | Change::GoOnWith { .. }
            | Change::SetDestinations { .. }
            | Change::Assign { .. }
            | Change::RebindPath { .. }
            | Change::SetCap { .. }
            | Change::SetAirtime { .. }
            | Change::SetPause { .. }
            | Change::SetPreference { .. }
            | Change::SetScheduler { .. }
            | Change::SetController { .. }
            | Change::SetLayerRules { .. }
            | Change::SetDeadlines { .. }
            | Change::SetForms(_)
            | Change::SetDeclared { .. } => {}
        }
    }

    /// Adds a session; on a hub `inner` are the addresses of the client.
    fn add_session(
        &mut self,
        name: SessionId,
        role: Role,
        mut tunnel: tunnel::Receiving<u32, DataKey, Source>,
        inner: Vec<IpAddr>,
    ) {
        self.remove_session(name);
        if let Some(streams) = &self.streams {
            tunnel
                .ingress_mut()
                .take_streams(streams.purpose.config(), streams.reserve.clone());
        }
        let state = Session {
            tunnel,
            streams: ReceivingStreams::new(inner),
            streams_due: Instant::FAR_FUTURE,
            account: self.store.open_account(),
            indexes: Vec::new(),
            due: Instant::FAR_FUTURE,
            is_touched: false,
            is_hub: role == Role::Hub,
        };
        self.sessions.insert(name, state);
    }

    fn remove_session(&mut self, name: SessionId) {
        self.drop_gate(name);
        let Some(mut session) = self.sessions.remove(&name) else {
            return;
        };
        let ids = session.streams.close();
        if let Some(streams) = &mut self.streams {
            if let Some(machine) = session.tunnel.ingress_mut().streams() {
                streams.counts.bounded.add(&machine.counters());
            }
            streams.counts.written += session.streams.bytes;
            ids.into_iter().for_each(|id| streams.sockets.remove((name, id)));
        }
        session.tunnel.drain(now(), &mut self.out);
        for id in self.out.drain(..) {
            self.store.free(id);
        }
        self.store.close_account(session.account);
        self.due.remove(&(session.due, name));
        for index in session.indexes {
            // Another session may have the index now.
            if self.paths.get(&index).is_some_and(|entry| entry.session == name) {
                self.paths.remove(&index);
            }
        }
    }

    fn snapshot(&mut self, reply: Reply<super::Snapshot>) {
        let mut received = BTreeMap::new();
        for entry in self.paths.values() {
            let totals = self
                .sessions
                .get(&entry.session)
                .and_then(|state| state.tunnel.ingress().received(entry.path));
            if let Some(totals) = totals {
                received.insert((entry.session.0, entry.path.0), totals);
            }
        }
        let mut order = resequencer::Counters::default();
        let rebuilt = self
            .sessions
            .values()
            .map(|session| session.tunnel.ingress().rebuilt())
            .sum();
        let joined = self.sessions.values();
        let joined = joined.map(|session| session.tunnel.ingress().reassembled()).sum();
        let refused = self
            .sessions
            .values()
            .map(|session| session.tunnel.ingress().refused())
            .sum();
        let mut waiting = 0;
        for session in self.sessions.values() {
            waiting += session.tunnel.ingress().buffered();
            let counters = session.tunnel.ingress().resequencer();
            order.in_order += counters.in_order;
            order.held += counters.held;
            order.late += counters.late;
            order.duplicates += counters.duplicates;
            order.gaps_given_up += counters.gaps_given_up;
        }
        let counts = self.streams.as_ref().map(|streams| &streams.counts);
        let written: u64 = self.sessions.values().map(|session| session.streams.bytes).sum();
        let mut bounded = counts.map_or_else(Bounded::default, |counts| counts.bounded);
        let (mut streams_waiting, mut streams_refused) = (0, 0);
        for session in self.sessions.values_mut() {
            if let Some(streams) = session.tunnel.ingress_mut().streams() {
                streams_waiting += streams.stored();
                let refused = streams.counters();
                bounded.add(&refused);
                streams_refused +=
                    refused.beyond_credit + refused.too_scattered + refused.unknown + refused.contradicting;
            }
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
            ("ingress_not_allowed", dropped.filtered),
            ("ingress_no_context", dropped.no_context),
            ("ingress_tun_refused", dropped.tun),
            ("ingress_control_dropped", dropped.control),
            ("ingress_relieved", dropped.relieved),
            ("ingress_over_limit", self.gates.dropped()),
            ("ingress_refused", refused),
            ("ingress_held_bytes", self.store.used()),
            ("ingress_datagrams", self.datagrams),
            ("ingress_tun_writes", self.writes),
            ("streams_asked", counts.map_or(0, |counts| counts.asked)),
            ("streams_forbidden", counts.map_or(0, |counts| counts.forbidden)),
            ("streams_failed", counts.map_or(0, |counts| counts.failed)),
            ("streams_too_many", bounded.too_many),
            ("streams_too_fast", bounded.too_fast),
            ("streams_no_memory", bounded.no_memory),
            (
                "streams_written_bytes",
                written + counts.map_or(0, |counts| counts.written),
            ),
            ("streams_waiting_bytes", streams_waiting),
            ("streams_refused", streams_refused),
            ("ingress_rebuilt", rebuilt),
            ("ingress_joined", joined),
            ("resequencer_waiting", waiting as u64),
            ("resequencer_in_order", order.in_order),
            ("resequencer_held", order.held),
            ("resequencer_late", order.late),
            ("resequencer_duplicates", order.duplicates),
            ("resequencer_gaps_given_up", order.gaps_given_up),
        ];
        self.links.egress.0.give(egress::Order::Snapshot {
            received,
            counters,
            reply,
        });
    }
}

impl Dropped {
    fn count(&mut self, refusal: Refusal) {
        *match refusal {
            Refusal::Replayed => &mut self.replayed,
            Refusal::NoKey => &mut self.no_key,
            Refusal::Forged => &mut self.forged,
            Refusal::Malformed => &mut self.malformed,
            Refusal::Spoofed => &mut self.spoofed,
        } += 1;
    }
}

impl Session {
    /// Sends relays to the sending thread; returns false if it has not accepted all that it depends
    /// on.
    fn send_relays(&mut self, name: SessionId, links: &Links, relayed: &mut bool, at: Instant) -> bool {
        self.tunnel.relay(at, |relay| {
            let is_told = links.egress.0.offer(Relayed { session: name, relay });
            *relayed |= is_told;
            is_told
        });
        !self.tunnel.has_untold()
    }

    /// Records when the session must be flushed without further packets.
    fn note_due(&mut self, name: SessionId, all: &mut BTreeSet<(Instant, SessionId)>) {
        let due = self.tunnel.poll_timeout().min(self.streams_due);
        if due == self.due {
            return;
        }
        all.remove(&(self.due, name));
        self.due = due;
        if due != Instant::FAR_FUTURE {
            all.insert((due, name));
        }
    }
}
