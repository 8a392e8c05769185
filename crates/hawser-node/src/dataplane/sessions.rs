//! The sending halves of all sessions and the buffers that their packets lie in: who may hold how much, and whose turn it is.
//!
//! No TUN, no socket, no clock: [`super::egress`] has those.
//!
//! A packet from the TUN is read into [`Sessions::reading`], then [`Sessions::accept`] queues it. Each session holds at most [`QUOTA`] bytes of
//! buffers. When these are used up it gives up its own oldest packets; when all buffers are in use, the session that holds most gives up its
//! oldest packets (RFC 8290 section 4.1, where a flow's place is a session's here). So no session loses anything because another one holds much. Whatever
//! waits longer than [`hawser_proto::flow::LONGEST_WAIT`] goes, also where nothing comes in any more: each session's machine has a timer for it.
//!
//! Cost: O(1) a packet; O(sessions) for each [`SHED_AT_ONCE`] packets that are given up.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use hawser_linux::secret::Wiped;
use hawser_proto::egress::{Body, Egress, Refused, Transmit};
use hawser_proto::path::State;
use hawser_units::{Instant, PathId};
use hawser_wire::inner;
use hawser_wire::offload::{Offload, VIRTIO_LEN};

use super::crypto::DataKey;
use super::egress::Lane;
use super::pool::{BufferId, Pool};
use super::{Event, Role, SessionId};

mod handover;

/// Bytes of buffers in use by all sessions.
const CAPACITY: u64 = 128 << 20;
/// Bytes of buffers in use by one session: what one of 1 Gbit/s keeps for half a second, which is as long as repairs take over most networks.
pub(super) const QUOTA: u64 = CAPACITY / 2;
/// Packets that the session which holds most gives up at once: looking for it is worth several.
///
/// Source: RFC 8290 section 4.1 and Linux's `fq_codel`, `drop_batch_size`.
const SHED_AT_ONCE: usize = 64;
/// Buffers that one session keeps for repair, beside its quota of bytes: bounds what is remembered of them to some 3 MB.
const KEPT: usize = 16_384;
/// A key is replaced long before its counters end.
const REKEY_AFTER: u64 = 1 << 40;

/// One session's sending side.
pub(super) struct Session {
    pub(super) egress: Egress<BufferId>,
    pub(super) role: Role,
    pub(super) key: Option<(u8, Wiped<DataKey>)>,
    next_key: Option<(u8, Wiped<DataKey>)>,
    pub(super) lanes: BTreeMap<PathId, Lane>,
    /// The far end's inner addresses.
    inner: Vec<IpAddr>,
    /// Bytes of the buffers that its packets lie in.
    held: u64,
    due: Instant,
    is_busy: bool,
    alive: bool,
    /// The newest epoch that the client has used, as far as is known.
    heard_epoch: Option<u8>,
    rekey: Rekey,
}

/// Packets that were not queued, by reason.
#[derive(Default)]
pub(super) struct Dropped {
    pub(super) no_session: u64,
    pub(super) malformed: u64,
    pub(super) too_large: u64,
    pub(super) queue_full: u64,
    pub(super) no_buffer: u64,
}

/// What became of a packet from the TUN.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    /// It is queued.
    Queued,
    /// It was dropped, and counted.
    Dropped,
    /// It was dropped because no path takes more than this; its sender is to be told.
    TooLarge(u16),
}

/// All sessions.
pub(super) struct Sessions {
    all: BTreeMap<SessionId, Session>,
    pool: Pool,
    routes: HashMap<IpAddr, SessionId>,
    /// On a client: all goes to its one session.
    only: Option<SessionId>,
    due: BTreeSet<(Instant, SessionId)>,
    busy: Vec<SessionId>,
    pub(super) dropped: Dropped,
    seed: u64,
}

impl Sessions {
    pub(super) fn new(seed: u64, now: Instant) -> Self {
        Self {
            all: BTreeMap::new(),
            pool: Pool::new(CAPACITY, now),
            routes: HashMap::new(),
            only: None,
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
        let session = Session {
            egress,
            role,
            key: None,
            next_key: None,
            lanes: BTreeMap::new(),
            inner: inner.to_vec(),
            held: 0,
            due: Instant::FAR_FUTURE,
            is_busy: false,
            alive: false,
            heard_epoch: None,
            rekey: Rekey::default(),
        };
        self.all.insert(name, session);
        for address in inner {
            self.routes.insert(*address, name);
        }
        if role == Role::Client {
            self.only = Some(name);
        }
    }

    pub(super) fn remove(&mut self, name: SessionId) {
        let Some(mut session) = self.all.remove(&name) else {
            return;
        };
        for buffer in session.egress.close() {
            self.pool.release(buffer);
        }
        self.due.remove(&(session.due, name));
        for address in session.inner {
            // Another session may have the address by now.
            if self.routes.get(&address) == Some(&name) {
                self.routes.remove(&address);
            }
        }
        if self.only == Some(name) {
            self.only = None;
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
        let Some((virtio, packet)) = self.pool.reading()[..len].split_first_chunk::<VIRTIO_LEN>() else {
            self.dropped.malformed += 1;
            return Accepted::Dropped;
        };
        let Some(offload) = Offload::parse(virtio) else {
            self.dropped.malformed += 1;
            return Accepted::Dropped;
        };
        let to = self
            .only
            .or_else(|| destination(packet).and_then(|to| self.routes.get(&to).copied()));
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
        let refused = match session.egress.enqueue(packet, offload, id, now) {
            Ok(()) => {
                self.pool.fill(id, len);
                session.make_busy(name, &mut self.busy);
                return Accepted::Queued;
            }
            Err(refused) => refused,
        };
        session.give_back(id, &mut self.pool);
        match refused {
            Refused::Malformed => self.dropped.malformed += 1,
            Refused::QueueFull | Refused::TableFull => self.dropped.queue_full += 1,
            Refused::TooSoon => self.dropped.too_large += 1,
            Refused::TooLarge(mtu) => {
                self.dropped.too_large += 1;
                return Accepted::TooLarge(mtu);
            }
        }
        Accepted::Dropped
    }

    /// Lets sessions give up packets until there is room for `cost` bytes of the session `name`; false when that is in vain.
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

    /// Lets every session that has something to do send what it may: `send` is given each transmit with the packet that it is cut from (empty
    /// where there is none), and whatever there is to tell goes to `tell`.
    pub(super) fn service(
        &mut self,
        clock: impl Fn() -> Instant,
        mut send: impl FnMut(SessionId, &Session, &Transmit<BufferId>, &[u8], Instant),
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
            session.transmit(name, &mut self.pool, &clock, &mut send, &mut tell);
            session.tell_changes(name, &mut tell);
            let due = session.egress.poll_timeout(clock());
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

    fn give_back(&mut self, id: BufferId, pool: &mut Pool) {
        self.held -= Pool::cost(id);
        pool.release(id);
    }

    /// Gives up the oldest packet; false when there is none.
    fn shed(&mut self, pool: &mut Pool, now: Instant) -> bool {
        let Some(id) = self.egress.shed(now) else {
            return false;
        };
        self.give_back(id, pool);
        true
    }

    fn transmit(
        &mut self,
        name: SessionId,
        pool: &mut Pool,
        clock: impl Fn() -> Instant,
        send: &mut impl FnMut(SessionId, &Self, &Transmit<BufferId>, &[u8], Instant),
        tell: &mut impl FnMut(Event),
    ) {
        self.egress.handle_timeout(clock());
        loop {
            let at = clock();
            let Some(transmit) = self.egress.poll_transmit(at) else {
                break;
            };
            if let Body::Packets {
                run, covered, last, ..
            } = transmit.body
            {
                let packet = &pool.bytes(run.buffer)[VIRTIO_LEN..][..run.cut.total()];
                send(name, self, &transmit, packet, at);
                if covered {
                    self.egress.cover(&transmit, packet, at);
                }
                if last {
                    self.give_back(run.buffer, pool);
                }
            } else {
                send(name, self, &transmit, &[], at);
            }
            if self.rekey.is_due(transmit.path, transmit.counter) {
                tell(Event::RekeyWanted { session: name });
            }
        }
        while let Some(buffer) = self.egress.poll_freed() {
            self.give_back(buffer, pool);
        }
    }

    fn tell_changes(&mut self, name: SessionId, tell: &mut impl FnMut(Event)) {
        while let Some((path, state)) = self.egress.poll_change() {
            tracing::debug!(session = name.0, path = path.0, ?state, "path changed");
            tell(Event::Path {
                session: name,
                path,
                state: state.into(),
            });
        }
        let alive = self.egress.paths().any(|path| path.state() == State::Active);
        if alive != self.alive {
            self.alive = alive;
            tell(Event::Alive { session: name, alive });
        }
    }

    /// Takes a new key: a client sends with it at once, a hub once the client has used it.
    pub(super) fn install(&mut self, epoch: u8, key: Wiped<DataKey>) {
        let is_for_now = match self.role {
            Role::Client => true,
            Role::Hub => self.key.is_none() || self.heard_epoch == Some(epoch),
        };
        if is_for_now {
            self.use_key(epoch, key);
        } else {
            self.next_key = Some((epoch, key));
        }
    }

    /// From now on a new key protects what is sent.
    fn use_key(&mut self, epoch: u8, key: Wiped<DataKey>) {
        self.key = Some((epoch, key));
        self.next_key = None;
        self.rekey = Rekey::default();
    }

    /// The client has used a key: from now on so do we.
    pub(super) fn confirm_key(&mut self, epoch: u8) {
        self.heard_epoch = Some(epoch);
        if let Some((_, key)) = self.next_key.take_if(|(next, _)| *next == epoch) {
            self.use_key(epoch, key);
        }
    }
}

/// When a key has protected so much that another is wanted.
///
/// A path's counter goes on from key to key, so that it never repeats: what counts is how far it has come since the key was first used there.
#[derive(Default)]
struct Rekey {
    /// By path: the first counter under this key.
    begins: Vec<(PathId, u64)>,
    is_told: bool,
}

impl Rekey {
    /// Whether to ask for a new key, at what is sent on a path as `counter`: once for each key.
    fn is_due(&mut self, path: PathId, counter: u64) -> bool {
        let begin = match self.begins.iter().find(|(known, _)| *known == path) {
            Some((_, begin)) => *begin,
            None => {
                self.begins.push((path, counter));
                counter
            }
        };
        let is_due = counter - begin > REKEY_AFTER && !self.is_told;
        self.is_told |= is_due;
        is_due
    }
}

fn destination(packet: &[u8]) -> Option<IpAddr> {
    inner::parse(packet).map(|summary| summary.key.destination)
}

#[cfg(test)]
mod tests;
