//! The sending halves of all sessions and the buffers that their packets lie in: who may hold how
//! much, and whose turn it is.
//!
//! No TUN, no socket, no clock: [`super::egress`] has those.
//!
//! A packet from the TUN is read into [`Sessions::reading`], then [`Sessions::accept`] queues it.
//! Each session holds at most [`QUOTA`] bytes of buffers. When these are used up it gives up its
//! own oldest packets; when all buffers are in use, the session that holds most gives up its oldest
//! packets (RFC 8290 section 4.1, where a flow's place is a session's here). So no session loses
//! anything because another one holds much. Whatever waits longer than
//! [`hawser_proto::flow::LONGEST_WAIT`] goes, also where nothing comes in any more: each session's
//! machine has a timer for it.
//!
//! Cost: O(1) a packet; O(sessions) for each [`SHED_AT_ONCE`] packets that are given up.

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

use choice::Choice;
use routes::Routes;

/// Bytes of buffers in use by all sessions, of all pairs of threads.
pub(super) const CAPACITY: u64 = 128 << 20;
/// Bytes of buffers in use by one session: what one of 1 Gbit/s keeps for half a second, which is
/// as long as retransmissions take over most networks.
pub(super) const QUOTA: u64 = CAPACITY / 2;
/// Packets that the session which holds most gives up at once: looking for it is worth several.
///
/// Source: RFC 8290 section 4.1 and Linux's `fq_codel`, `drop_batch_size`.
const SHED_AT_ONCE: usize = 64;
/// Buffers that one session keeps for retransmission, beside its quota of bytes: bounds what is
/// remembered of them to some 3 MB.
const KEPT: usize = 16_384;
/// Reads of sockets of streams before others have their turn: the receiving thread's relays, the
/// TUN, other sessions.
///
/// Source: as the TUN's (`READS`, `egress.rs`), fewer because each has a call for every stream.
const READS_AT_ONCE: usize = 8;
/// One session's sending side.
pub(super) struct Session {
    pub(super) tunnel: Sending<BufferId, DataKey>,
    pub(super) lanes: BTreeMap<PathId, Lane>,
    pub(super) streams: SendingStreams,
    /// Bytes of the buffers that its packets lie in.
    held: u64,
    due: Instant,
    is_busy: bool,
}

/// The buffers of one session.
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

/// What became of a packet from the TUN.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    /// It is queued.
    Queued,
    /// It is queued and goes in pieces: its sender is to hear this, which names what goes whole.
    Advised(Vec<u8>),
    /// It was dropped, and counted.
    Dropped,
    /// It was dropped because no path takes more than this; its sender is to be told.
    TooLarge(u16),
}

/// All sessions.
pub(super) struct Sessions {
    /// What the inner packets of all of them are.
    format: Format,
    /// What may wait of a flow; `None`: what the paths need.
    pub(super) buffer: Option<Bytes>,
    all: BTreeMap<SessionId, Session>,
    pool: Pool,
    /// Memory of what was read of streams.
    stream_share: Share,
    /// Sessions that have something to say of streams.
    streamed: Vec<SessionId>,
    /// Counts of streams of sessions that are gone.
    pub(super) stream_counts: super::streams::sending::Counts,
    routes: Routes,
    /// On a client, and where frames are carried, routes say nothing.
    choice: Choice,
    due: BTreeSet<(Instant, SessionId)>,
    busy: Vec<SessionId>,
    pub(super) dropped: Dropped,
    seed: u64,
}

impl Sessions {
    /// `share`: bytes of buffers that may be in use; `stream_share`: the same of streams.
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
        egress.keep_at_most(KEPT);
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

    /// Flows begin with that session from now on; those of the one before stay there.
    pub(super) fn begin_with(&mut self, name: SessionId) {
        if self.all.contains_key(&name) {
            self.choice.begin_with(name);
        }
    }

    /// Flows of the session before, which is gone, go on in that one.
    pub(super) fn go_on_with(&mut self, name: SessionId) {
        if self.all.contains_key(&name) {
            self.choice.go_on_with(name);
        }
    }

    /// Flows to these destinations begin in that session, beside the one where all others do.
    pub(super) fn set_destinations(&mut self, name: SessionId, destinations: &Destinations) {
        if self.all.contains_key(&name) {
            self.choice.set_destinations(name, destinations.clone());
        }
    }

    /// A connection begins in that session.
    pub(super) fn place(&mut self, name: SessionId, flow: FlowKey) {
        if self.all.contains_key(&name) {
            self.choice.place(name, flow);
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

    /// The session in which a connection becomes a stream.
    ///
    /// # Errors
    /// The reason for which it goes as packets.
    pub(super) fn of_streams(&self) -> Result<SessionId, &'static str> {
        let name = self.choice.only().ok_or("there are two sessions")?;
        let session = self.all.get(&name).ok_or("there is no session")?;
        if !session.tunnel.egress().takes_streams() {
            return Err("the hub takes no streams");
        }
        Ok(name)
    }

    /// Sessions that have something to say of streams.
    pub(super) fn poll_streamed(&mut self) -> Vec<SessionId> {
        std::mem::take(&mut self.streamed)
    }

    /// Output of a session's streams.
    pub(super) fn poll_said(&mut self, name: SessionId) -> Option<Said> {
        let session = self.all.get_mut(&name)?;
        Some(std::mem::take(&mut session.streams.said))
    }

    /// A session.
    pub(super) fn get(&self, name: SessionId) -> Option<&Session> {
        self.all.get(&name)
    }

    /// Bytes of buffers in use.
    pub(super) fn held(&self) -> u64 {
        self.pool.used()
    }

    /// Where the next packet from the TUN is read to.
    pub(super) fn reading(&mut self) -> &mut [u8] {
        self.pool.reading()
    }

    /// Queues the packet of `len` bytes that was read, behind its virtio header.
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
        let to = self
            .choice
            .of(packet, &self.all)
            .or_else(|| destination(packet).and_then(|to| self.routes.of(to)));
        let Some(name) = to.filter(|name| self.all.contains_key(name)) else {
            self.dropped.no_session += 1;
            return Accepted::Dropped;
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

    /// Lets sessions give up packets until there is room for `cost` bytes of the session `name`;
    /// false when that is in vain.
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

    /// When [`Self::service`] is to be called, if nothing happens before.
    pub(super) fn due(&self) -> Instant {
        let first = self.due.first().map_or(Instant::FAR_FUTURE, |(due, _)| *due);
        first.min(self.pool.due())
    }

    /// Lets every session that has something to do send what it may: `send` is given each burst
    /// with the packet that it is cut from (empty where there is none), and whatever there is to
    /// tell goes to `tell`.
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
            let shares = (&mut self.pool, &mut self.stream_share);
            let is_more = session.transmit(name, shares, &clock, &mut send);
            session.tell_changes(name, &mut tell);
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

    /// Gives up the oldest packet; false when there is none.
    fn shed(&mut self, pool: &mut Pool, now: Instant) -> bool {
        let Some(id) = self.tunnel.egress_mut().shed(now) else {
            return false;
        };
        self.lent(pool).release(id);
        true
    }

    /// Sends what may be sent, and reads sockets of streams as far as there is room. Returns
    /// whether there is more at once.
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
            // What is not here belongs to a stream that was given up.
            if let (Some(lane), Some(packet)) = (self.lanes.get(&burst.path()), packet) {
                send(name, lane, &burst, packet);
            }
        }
    }

    fn tell_changes(&mut self, name: SessionId, tell: &mut impl FnMut(Event)) {
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

/// The inner packet that a run is cut from.
fn packet_of<'a>(pool: &'a Pool, run: &Run<BufferId>) -> &'a [u8] {
    &pool.bytes(run.buffer)[VIRTIO_LEN..][..run.cut.total()]
}

fn destination(packet: &[u8]) -> Option<IpAddr> {
    inner::parse(packet).map(|summary| summary.key.destination)
}

#[cfg(test)]
mod tests;
