//! Sending halves of all sessions and the buffers of their packets: memory limits and order of
//! service.
//!
//! This module has no TUN device, socket or clock; [`super::egress`] has those.
//!
//! A packet from the TUN device is read into [`Sessions::reading`], then [`Sessions::accept`]
//! queues it. Each session uses at most [`QUOTA`] bytes of buffers. Beyond that it drops its own
//! oldest packets; when all buffers are in use, the session with the most buffers drops its oldest
//! packets (RFC 8290 section 4.1, with sessions instead of flows). So no session loses packets
//! because of another one's queue. A packet that waits longer than
//! [`hawser_proto::flow::LONGEST_WAIT`] is dropped, even if no more packets arrive, because each
//! session's machine has a timer for it.
//!
//! Cost: O(1) per packet; O(sessions) for each [`SHED_AT_ONCE`] dropped packets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use hawser_proto::egress::{Egress, Refused};
use hawser_proto::flow::Run;
use hawser_proto::tunnel::{self, Buffers, Burst, Role, Sending};
use hawser_units::{Bytes, Instant, Net, PathId};
use hawser_wire::frame::Format;
use hawser_wire::inner::{self, FlowKey};
use hawser_wire::offload::{Offload, VIRTIO_LEN};

use super::crypto::DataKey;
use super::lane::Lane;
use super::pool::{BufferId, Pool};
use super::share::Share;
use super::streams::sending::{Said, SendingStreams};
use super::{Destinations, Event, SessionId};

mod choice;
mod handover;
mod routes;
pub(super) mod snapshot;

use choice::Choice;
use routes::Routes;

/// Bytes of buffers in use by all sessions, of all pairs of threads. Source: our choice
/// (docs/manual/hub.md, "Memory"); more takes memory of small machines, less drops packets of
/// sessions with a high rate and a long round trip.
pub(super) const CAPACITY: u64 = 128 << 20;
/// Bytes of buffers in use by one session. Source: a session of 1 Gbit/s keeps 62.5 MB for half a
/// second, which is as long as retransmissions take over most networks.
pub(super) const QUOTA: u64 = CAPACITY / 2;
/// Packets that the session which holds most gives up at once: looking for it is worth several.
///
/// Source: RFC 8290 section 4.1 and Linux's `fq_codel`, `drop_batch_size`.
const SHED_AT_ONCE: usize = 64;
/// Buffers that one session keeps for retransmission, in addition to its quota of bytes. Source: a
/// bound on memory, some 3 MB for what is remembered of them.
const RETRANSMISSION_BUFFERS: usize = 16_384;
/// Reads of sockets of streams before others have their turn: the receiving thread's relays, the
/// TUN, other sessions.
///
/// Source: as the TUN's (`READS`, `egress.rs`), fewer because each has a call for every stream.
const READS_AT_ONCE: usize = 8;
/// Sending side of one session.
pub(super) struct Session {
    pub(super) tunnel: Sending<BufferId, DataKey>,
    pub(super) lanes: BTreeMap<PathId, Lane>,
    pub(super) streams: SendingStreams,
    /// Bytes of the buffers of its packets.
    held: u64,
    due: Instant,
    is_busy: bool,
}

/// Buffers of a session.
struct Lent<'a> {
    pool: &'a mut Pool,
    held: &'a mut u64,
}

impl Buffers<BufferId> for Lent<'_> {
    fn packet(&mut self, run: &Run<BufferId>) -> &[u8] {
        packet_of(self.pool, run)
    }

    fn release(&mut self, buffer: BufferId) {
        *self.held -= Pool::cost(buffer);
        self.pool.release(buffer);
    }
}

/// Packets that were not queued, by reason.
#[derive(Default)]
pub(super) struct Dropped {
    pub(super) no_session: u64,
    pub(super) malformed: u64,
    pub(super) too_large: u64,
    pub(super) queue_full: u64,
    pub(super) no_buffer: u64,
    pub(super) stopped: u64,
}

/// Outcome for a packet from the TUN.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    /// Queued.
    Queued,
    /// Queued in fragments: its sender receives this ICMP message with the size that is not
    /// fragmented.
    Advised(Vec<u8>),
    /// Dropped and counted.
    Dropped,
    /// Packet to a destination without a session; not counted.
    NoSession(IpAddr),
    /// Dropped because no path accepts more than this size; its sender must be notified.
    TooLarge(u16),
}

/// Table of all sessions.
pub(super) struct Sessions {
    /// Format of the inner packets of all sessions.
    format: Format,
    /// Limit of a flow's queue; `None` for as much as the paths need.
    pub(super) buffer: Option<Bytes>,
    all: BTreeMap<SessionId, Session>,
    pool: Pool,
    /// Memory of data read from streams' sockets.
    stream_share: Share,
    /// Sessions with pending notices about streams.
    streamed: Vec<SessionId>,
    /// Counts of streams of ended sessions.
    pub(super) stream_counts: super::streams::sending::Counts,
    routes: Routes,
    /// Choice of the session on a client, and for frames, which routes do not determine.
    choice: Choice,
    due: BTreeSet<(Instant, SessionId)>,
    busy: Vec<SessionId>,
    pub(super) dropped: Dropped,
    seed: u64,
}

impl Sessions {
    /// Creates the table; `share` limits the bytes of buffers in use, `stream_share` those of
    /// streams.
    pub(super) fn new(
        format: Format,
        seed: u64,
        (share, stream_share): (Share, Share),
        now: Instant,
    ) -> Self {
        Self {
            format,
            buffer: None,
            all: BTreeMap::new(),
            pool: Pool::new(share, now),
            stream_share,
            streamed: Vec::new(),
            stream_counts: Default::default(),
            routes: Routes::default(),
            choice: Choice::default(),
            due: BTreeSet::new(),
            busy: Vec::new(),
            dropped: Dropped::default(),
            seed,
        }
    }

    pub(super) fn add(&mut self, name: SessionId, role: Role, inner: &[IpAddr], at: Instant) {
        self.remove(name);
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut egress = Egress::new(self.seed, at);
        egress.limit_retransmission_buffers(RETRANSMISSION_BUFFERS);
        egress.set_format(self.format);
        egress.set_buffer(self.buffer);
        let session = Session {
            tunnel: Sending::with(role, egress),
            lanes: BTreeMap::new(),
            streams: SendingStreams::default(),
            held: 0,
            due: Instant::FAR_FUTURE,
            is_busy: false,
        };
        self.all.insert(name, session);
        self.routes.add(name, inner);
        if role == Role::Client || self.format == Format::Ethernet {
            self.choice.add(name);
        }
    }

    pub(super) fn remove(&mut self, name: SessionId) {
        let Some(mut session) = self.all.remove(&name) else {
            return;
        };
        for buffer in session.tunnel.close() {
            self.pool.release(buffer);
        }
        session.streams.close(&mut self.stream_share);
        self.stream_counts.add(session.streams.counts);
        self.due.remove(&(session.due, name));
        self.routes.remove(name);
        self.choice.remove(name, self.all.keys().next().copied());
    }

    /// Routes these subnets to a session, and no others.
    pub(super) fn set_subnets(&mut self, name: SessionId, subnets: &[Net]) {
        if self.all.contains_key(&name) {
            self.routes.set_subnets(name, subnets);
        }
    }

    /// Assigns new flows to that session; those of the previous one remain there.
    pub(super) fn begin_with(&mut self, name: SessionId) {
        if self.all.contains_key(&name) {
            self.choice.begin_with(name);
        }
    }

    /// Continues flows of the previous session, which has ended, in this one.
    pub(super) fn go_on_with(&mut self, name: SessionId) {
        if self.all.contains_key(&name) {
            self.choice.go_on_with(name);
        }
    }

    /// Assigns new flows to these destinations to that session; all others begin in the other one.
    pub(super) fn set_destinations(&mut self, name: SessionId, destinations: &Destinations) {
        if self.all.contains_key(&name) {
            self.choice.set_destinations(name, destinations.clone());
        }
    }

    /// Assigns a new connection to that session.
    pub(super) fn assign(&mut self, name: SessionId, flow: FlowKey) {
        if self.all.contains_key(&name) {
            self.choice.assign(name, flow);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.all.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (SessionId, &mut Session)> {
        self.all.iter_mut().map(|(name, session)| (*name, session))
    }

    /// Changes a session and lets it act on the change.
    pub(super) fn with(&mut self, name: SessionId, change: impl FnOnce(&mut Session)) {
        if let Some(session) = self.all.get_mut(&name) {
            change(session);
            session.make_busy(name, &mut self.busy);
        }
    }

    /// Returns the session in which a connection becomes a stream, given its read SYN of `len`
    /// bytes after the virtio header: the one that its packets would use.
    ///
    /// # Errors
    /// The reason why it is transferred as packets.
    pub(super) fn of_streams(&mut self, len: usize) -> Result<SessionId, &'static str> {
        let packet = self.pool.reading().get(VIRTIO_LEN..len).unwrap_or_default();
        let name = self.choice.of(packet, &self.all).ok_or("there is no session")?;
        let session = self.all.get(&name).ok_or("there is no session")?;
        if !session.tunnel.egress().takes_streams() {
            return Err("the hub does not support streams");
        }
        Ok(name)
    }

    /// Sessions with pending notices about streams.
    pub(super) fn poll_streamed(&mut self) -> Vec<SessionId> {
        std::mem::take(&mut self.streamed)
    }

    /// Returns the next output of a session's streams.
    pub(super) fn poll_said(&mut self, name: SessionId) -> Option<Said> {
        let session = self.all.get_mut(&name)?;
        Some(std::mem::take(&mut session.streams.said))
    }

    /// A session.
    pub(super) fn get(&self, name: SessionId) -> Option<&Session> {
        self.all.get(&name)
    }

    /// Returns the bytes of buffers in use.
    pub(super) fn buffered_bytes(&self) -> u64 {
        self.pool.used()
    }

    /// Returns the buffer into which the next packet from the TUN is read.
    pub(super) fn reading(&mut self) -> &mut [u8] {
        self.pool.reading()
    }

    /// Queues the read packet of `len` bytes, which follows its virtio header.
    pub(super) fn accept(&mut self, len: usize, now: Instant) -> Accepted {
        let format = self.format;
        let reading = &mut self.pool.reading()[..len];
        let Some((virtio, packet)) = reading.split_first_chunk_mut::<VIRTIO_LEN>() else {
            self.dropped.malformed += 1;
            return Accepted::Dropped;
        };
        let Some(offload) = Offload::settle(virtio, packet, format) else {
            self.dropped.malformed += 1;
            return Accepted::Dropped;
        };
        let name = self
            .choice
            .of(packet, &self.all)
            .or_else(|| destination(packet).and_then(|to| self.routes.of(to)));
        let Some(name) = name.filter(|name| self.all.contains_key(name)) else {
            let Some(to) = destination(packet) else {
                self.dropped.no_session += 1;
                return Accepted::Dropped;
            };
            return Accepted::NoSession(to);
        };
        let cost = Pool::cost_of(len);
        let is_short = self.pool.lacks(cost) || self.all[&name].held + cost > QUOTA;
        if is_short && !self.make_room(name, cost, now) {
            self.dropped.no_buffer += 1;
            return Accepted::Dropped;
        }
        let id = self.pool.reserve(len);
        let session = self.all.get_mut(&name).expect("looked up above");
        session.held += cost;
        let packet = &mut self.pool.reading()[VIRTIO_LEN..len];
        let refused = match session.tunnel.handle_inner(packet, offload, id, now) {
            Ok(()) => {
                let advice = session.tunnel.egress_mut().poll_size_advice();
                let answer = advice.and_then(|mtu| format.too_large(packet, mtu));
                self.pool.fill(id, len);
                session.make_busy(name, &mut self.busy);
                return answer.map_or(Accepted::Queued, Accepted::Advised);
            }
            Err(refused) => refused,
        };
        session.lent(&mut self.pool).release(id);
        match refused {
            Refused::Malformed => self.dropped.malformed += 1,
            Refused::QueueFull | Refused::TableFull => self.dropped.queue_full += 1,
            Refused::Stopped => self.dropped.stopped += 1,
            Refused::TooSoon => self.dropped.too_large += 1,
            Refused::TooLarge(mtu) => {
                self.dropped.too_large += 1;
                return Accepted::TooLarge(mtu);
            }
        }
        Accepted::Dropped
    }

    /// Makes sessions drop packets until there is room for `cost` bytes of the session `name`;
    /// returns false if that fails.
    fn make_room(&mut self, name: SessionId, cost: u64, now: Instant) -> bool {
        while self.pool.lacks(cost) {
            let most = self.all.values_mut().max_by_key(|session| session.held);
            let Some(session) = most.filter(|session| session.held > 0) else {
                return false;
            };
            if (0..SHED_AT_ONCE).all(|_| !session.shed(&mut self.pool, now)) {
                return false;
            }
        }
        let Some(session) = self.all.get_mut(&name) else {
            return false;
        };
        while session.held + cost > QUOTA {
            if !session.shed(&mut self.pool, now) {
                return false;
            }
        }
        true
    }

    /// Returns when to call [`Self::service`], if no event occurs before.
    pub(super) fn due(&self) -> Instant {
        let first = self.due.first().map_or(Instant::FAR_FUTURE, |(due, _)| *due);
        first.min(self.pool.due())
    }

    /// Makes each session with pending work send the permitted packets. `send` receives each burst
    /// with the packet from which it is cut (empty if there is none), and `tell` each event.
    pub(super) fn service(
        &mut self,
        clock: impl Fn() -> Instant,
        mut send: impl FnMut(SessionId, &Lane, &Burst<'_, BufferId, DataKey>, &[u8]),
        mut tell: impl FnMut(Event),
    ) {
        let at = clock();
        self.pool.trim(at);
        while let Some((due, name)) = self.due.first().copied().filter(|(due, _)| *due <= at) {
            self.due.remove(&(due, name));
            if let Some(session) = self.all.get_mut(&name) {
                session.due = Instant::FAR_FUTURE;
                session.make_busy(name, &mut self.busy);
            }
        }
        let mut busy = std::mem::take(&mut self.busy);
        for name in busy.drain(..) {
            let Some(session) = self.all.get_mut(&name) else {
                continue;
            };
            session.is_busy = false;
            if session.lanes.values().any(|lane| session.is_unequipped(lane)) {
                // Packets sent before would be lost.
                continue;
            }
            let shares = (&mut self.pool, &mut self.stream_share);
            let is_more = session.transmit(name, shares, &clock, &mut send);
            session.report_changes(name, &mut tell);
            if session.streams.said.is_any() {
                self.streamed.push(name);
            }
            let due = match is_more {
                true => at,
                false => session.tunnel.poll_timeout(clock()),
            };
            if due != session.due {
                self.due.remove(&(session.due, name));
                session.due = due;
                if due != Instant::FAR_FUTURE {
                    self.due.insert((due, name));
                }
            }
        }
        self.busy = busy;
    }
}

impl Session {
    /// Returns whether a path of the previous process waits for the socket of the hub.
    fn is_unequipped(&self, lane: &Lane) -> bool {
        self.tunnel.role() == Role::Hub && lane.socket.is_none() && lane.remote.is_some()
    }

    fn make_busy(&mut self, name: SessionId, busy: &mut Vec<SessionId>) {
        if !std::mem::replace(&mut self.is_busy, true) {
            busy.push(name);
        }
    }

    fn lent<'a>(&'a mut self, pool: &'a mut Pool) -> Lent<'a> {
        Lent {
            pool,
            held: &mut self.held,
        }
    }

    /// Drops the oldest packet; returns false if there is none.
    fn shed(&mut self, pool: &mut Pool, now: Instant) -> bool {
        let Some(id) = self.tunnel.egress_mut().shed(now) else {
            return false;
        };
        self.lent(pool).release(id);
        true
    }

    /// Sends permitted packets, and reads sockets of streams while there is space. Returns whether
    /// more can be sent immediately.
    fn transmit(
        &mut self,
        name: SessionId,
        (pool, share): (&mut Pool, &mut Share),
        clock: impl Fn() -> Instant,
        send: &mut impl FnMut(SessionId, &Lane, &Burst<'_, BufferId, DataKey>, &[u8]),
    ) -> bool {
        self.tunnel.handle_timeout(clock());
        let mut has_read = true;
        for _ in 0..READS_AT_ONCE {
            let egress = self.tunnel.egress_mut();
            self.streams.handle_notices(egress, clock());
            has_read = self.streams.read(egress, share, clock());
            self.streams.settle(share);
            self.transmit_bursts(name, pool, &clock, send);
            if !has_read {
                break;
            }
        }
        has_read
    }

    fn transmit_bursts(
        &mut self,
        name: SessionId,
        pool: &mut Pool,
        clock: impl Fn() -> Instant,
        send: &mut impl FnMut(SessionId, &Lane, &Burst<'_, BufferId, DataKey>, &[u8]),
    ) {
        loop {
            let mut lent = Lent {
                pool,
                held: &mut self.held,
            };
            let Some(burst) = self.tunnel.poll_burst(clock(), &mut lent) else {
                return;
            };
            let packet = match (burst.run(), burst.stream()) {
                (Some(run), _) => Some(packet_of(pool, run)),
                (None, Some(bytes)) => self.streams.bytes(bytes.id, &bytes.range),
                (None, None) => Some(&[][..]),
            };
            // A missing packet belongs to a reset stream.
            if let (Some(lane), Some(packet)) = (self.lanes.get(&burst.path()), packet) {
                send(name, lane, &burst, packet);
            }
        }
    }

    fn report_changes(&mut self, name: SessionId, tell: &mut impl FnMut(Event)) {
        while let Some(event) = self.tunnel.poll_event() {
            tell(match event {
                tunnel::Event::Path(path, state) => {
                    tracing::debug!(session = name.0, path = path.0, ?state, "path changed");
                    Event::Path {
                        session: name,
                        path,
                        state: state.into(),
                    }
                }
                tunnel::Event::Policed(path, is_policed) => {
                    tracing::debug!(session = name.0, path = path.0, is_policed, "policing changed");
                    Event::Policed {
                        session: name,
                        path,
                        is_policed,
                    }
                }
                tunnel::Event::RekeyWanted => Event::RekeyWanted { session: name },
                tunnel::Event::Alive(alive) => Event::Alive { session: name, alive },
            });
        }
    }
}

/// Returns the inner packet from which a run is cut.
fn packet_of<'a>(pool: &'a Pool, run: &Run<BufferId>) -> &'a [u8] {
    &pool.bytes(run.buffer)[VIRTIO_LEN..][..run.cut.total()]
}

fn destination(packet: &[u8]) -> Option<IpAddr> {
    inner::parse(packet).map(|summary| summary.key.destination)
}

#[cfg(test)]
mod tests;
