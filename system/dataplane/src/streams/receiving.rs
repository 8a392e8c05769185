//! The streams of a session in the receiving direction: from the session's ingress to sockets.
//!
//! Bytes count as read when they are written to the socket, so the sender's credit follows the
//! receive window of the socket's peer.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use hawser_linux::stream_sockets::{Connection, NOT_SENT};
use hawser_proto::checkpoint::{self as machine, StreamRequest};
use hawser_proto::limit::Limit;
use hawser_proto::stream::{Accepted, Notice, Receiving};
use hawser_units::{Duration, Instant};
use hawser_wire::stream::{Open, StreamId, reason};

use super::buffers::Inbox;
use super::checkpoint;
use super::{ToReceiving, ToSending};

/// Bytes written of a stream before another has its turn.
///
/// Source: as what is read of one (`READ`, `sending.rs`), a few times: a call costs more here.
const WRITE: u64 = 256 << 10;

/// A stream in the receiving direction.
#[derive(Default)]
struct Incoming {
    socket: Option<Arc<Connection>>,
    /// Request of the peer.
    open: Option<Open>,
    /// Set until its connection is established.
    is_opening: bool,
    inbox: Inbox,
    /// Offset up to which all bytes have arrived.
    readable: u64,
    has_ended: bool,
    is_writable: bool,
    is_queued: bool,
    waiting: Waiting,
}

/// Limit of the bytes that wait in a socket: the amount it sends in [`WAIT`].
#[derive(Default)]
struct Waiting {
    since: Option<Instant>,
    written: u64,
    bound: u32,
}

impl Waiting {
    /// Records written bytes; returns a new limit if they were sent faster than the current one
    /// allows.
    fn handle_written(&mut self, bytes: u64, now: Instant) -> Option<u32> {
        self.written += bytes;
        let elapsed = now.since(*self.since.get_or_insert(now));
        if elapsed < WAIT {
            return None;
        }
        let in_time =
            self.written.saturating_mul(WAIT.as_millis() as u64) / elapsed.as_millis().max(1) as u64;
        (self.since, self.written) = (Some(now), 0);
        let bound = in_time.clamp(NOT_SENT.into(), MAX_NOT_SENT.into()) as u32;
        let before = std::mem::replace(&mut self.bound, bound);
        (bound.abs_diff(before) > before / 4).then_some(bound)
    }
}

/// The streams of a session in the receiving direction.
#[derive(Default)]
pub(crate) struct ReceivingStreams {
    all: BTreeMap<StreamId, Incoming>,
    queued: VecDeque<StreamId>,
    /// The peer's addresses, on a hub.
    pub(crate) addresses: Vec<IpAddr>,
    /// Requests of the peer that are not yet decided.
    pub(crate) requests: Vec<Open>,
    /// Messages to the sending thread.
    pub(crate) orders: Vec<ToSending>,
    /// Streams whose socket is no longer needed.
    pub(crate) closed: Vec<StreamId>,
    /// Bytes written to sockets.
    pub(crate) bytes: u64,
}

impl ReceivingStreams {
    /// Creates an empty table. `addresses` are those of the peer, on a hub.
    pub(crate) fn new(addresses: Vec<IpAddr>) -> Self {
        Self {
            addresses,
            ..Self::default()
        }
    }

    /// Processes a message of the sending thread. Returns the socket of a stream that has become
    /// connected.
    pub(crate) fn handle(
        &mut self,
        notice: ToReceiving,
        machine: &mut Receiving,
        now: Instant,
    ) -> Option<(StreamId, Arc<Connection>)> {
        match notice {
            ToReceiving::Open(id) => {
                machine.open(id, now);
                self.all.insert(id, Incoming::default());
            }
            ToReceiving::Accepted(id, socket) => {
                self.connect(id, Arc::clone(&socket));
                return self.all.contains_key(&id).then_some((id, socket));
            }
            ToReceiving::Abort(id, code) => {
                machine.stop(id, code, now);
                self.remove(id);
            }
            ToReceiving::Forget(id) => {
                machine.forget(id);
                self.remove(id);
            }
        }
        None
    }

    fn connect(&mut self, id: StreamId, socket: Arc<Connection>) {
        if let Some(stream) = self.all.get_mut(&id) {
            stream.socket = Some(socket);
            self.handle_writable(id);
        }
    }

    /// Records that the connection of a request is being opened.
    pub(crate) fn begin(&mut self, open: Open, socket: Arc<Connection>) {
        let stream = Incoming {
            socket: Some(socket),
            open: Some(open),
            is_opening: true,
            ..Incoming::default()
        };
        self.all.insert(open.id, stream);
    }

    /// Returns the request of a connection that was being opened, with its socket.
    pub(crate) fn opened(&mut self, id: StreamId) -> Option<(Open, Arc<Connection>)> {
        let stream = self.all.get_mut(&id)?;
        let is_opening = std::mem::take(&mut stream.is_opening);
        stream.open.filter(|_| is_opening).zip(stream.socket.clone())
    }

    /// Closes the streams whose requests `allows` no longer accepts.
    pub(crate) fn check(
        &mut self,
        allows: impl Fn(&Open, &[IpAddr]) -> bool,
        machine: &mut Receiving,
        now: Instant,
    ) {
        let streams = self.all.iter();
        let refused = streams.filter(|(_, stream)| {
            let open = stream.open.as_ref();
            open.is_some_and(|open| !allows(open, &self.addresses))
        });
        let refused: Vec<_> = refused.map(|(id, _)| *id).collect();
        for id in refused {
            self.abort(id, reason::FORBIDDEN, machine, now);
        }
    }

    /// Removes a stream.
    pub(crate) fn remove(&mut self, id: StreamId) {
        if self.all.remove(&id).is_some() {
            self.closed.push(id);
        }
    }

    /// Records that a socket may accept bytes.
    pub(crate) fn handle_writable(&mut self, id: StreamId) {
        if let Some(stream) = self.all.get_mut(&id) {
            stream.is_writable = true;
            self.queue(id);
        }
    }

    fn queue(&mut self, id: StreamId) {
        if let Some(stream) = self.all.get_mut(&id)
            && !std::mem::replace(&mut stream.is_queued, true)
        {
            self.queued.push_back(id);
        }
    }

    /// Stores bytes of a datagram's body.
    pub(crate) fn take_bytes(&mut self, accepted: &Accepted, body: &[u8]) {
        if let Some(stream) = self.all.get_mut(&accepted.id)
            && let Some(bytes) = body.get(accepted.skip..accepted.skip + accepted.len)
        {
            stream.inbox.store(accepted.offset, bytes);
        }
    }

    /// Processes the machine's notices of streams.
    pub(crate) fn handle_notices(&mut self, machine: &mut Receiving, now: Instant) {
        while let Some(notice) = machine.poll_notice() {
            match notice {
                Notice::Open(open) => self.requests.push(open),
                Notice::Readable(id) => {
                    if let (Some(stream), Some(readable)) = (self.all.get_mut(&id), machine.readable(id)) {
                        stream.readable = readable;
                        self.queue(id);
                    }
                }
                Notice::Ended(id) => {
                    if let Some(stream) = self.all.get_mut(&id) {
                        stream.readable = machine.readable(id).unwrap_or(stream.readable);
                        stream.has_ended = true;
                        self.queue(id);
                    }
                }
                Notice::Reset(id, code) => {
                    self.remove(id);
                    machine.stop(id, code, now);
                    self.orders.push(ToSending::Abort(id, code));
                }
            }
        }
    }

    /// Writes arrived bytes to writable sockets, as far as `limit` allows. Returns the time at
    /// which the limit allows more.
    pub(crate) fn write(
        &mut self,
        machine: &mut Receiving,
        mut limit: Option<&mut Limit>,
        now: Instant,
    ) -> Instant {
        loop {
            let mut goes_on = false;
            for _ in 0..self.queued.len() {
                let Some(id) = self.queued.pop_front() else { break };
                let Some(stream) = self.all.get_mut(&id) else {
                    continue;
                };
                let credit = limit.as_ref().map_or(WRITE, |limit| limit.credit(SEGMENT, now));
                if credit == 0 && stream.readable > stream.inbox.read() {
                    self.queued.push_back(id);
                    continue;
                }
                stream.is_queued = false;
                match stream.write(credit.min(WRITE)) {
                    Ok(written) => {
                        if let Some(limit) = limit.as_deref_mut().filter(|_| written > 0) {
                            limit.on_sent(written, now);
                        }
                        goes_on |= self.on_written(id, written, machine, now);
                    }
                    Err(error) => {
                        tracing::debug!(stream = id.number(), %error, "a stream's connection has failed");
                        self.abort(id, reason::RESET, machine, now);
                    }
                }
            }
            if !goes_on {
                break;
            }
        }
        match limit {
            Some(limit) if !self.queued.is_empty() => limit.ready_at(SEGMENT),
            Some(_) | None => Instant::FAR_FUTURE,
        }
    }

    /// Records written bytes of a stream. Returns whether its socket may accept more at once.
    fn on_written(&mut self, id: StreamId, written: u64, machine: &mut Receiving, now: Instant) -> bool {
        self.bytes += written;
        machine.consume(id, written, now);
        let Some(stream) = self.all.get_mut(&id) else {
            return false;
        };
        if let (Some(bound), Some(socket)) = (stream.waiting.handle_written(written, now), &stream.socket) {
            socket.set_not_sent(bound);
        }
        if stream.has_more() {
            self.queue(id);
            return true;
        }
        if stream.is_over() {
            if let Some(socket) = &stream.socket {
                socket.finish();
            }
            self.remove(id);
            self.orders.push(ToSending::Received(id));
        }
        false
    }

    /// Resets a stream, on this side and at the peer.
    pub(crate) fn abort(&mut self, id: StreamId, code: u16, machine: &mut Receiving, now: Instant) {
        self.remove(id);
        machine.stop(id, code, now);
        self.orders.push(ToSending::Abort(id, code));
    }

    /// Returns the state for the next process.
    pub(crate) fn checkpoint(&self, machine: &Receiving) -> checkpoint::ReceivingStreams {
        let mut saved = checkpoint::ReceivingStreams::default();
        for (id, stream) in &self.all {
            let ranges = machine.stored_ranges(*id);
            for (start, end) in &ranges {
                stream.inbox.copy(*start..*end, &mut saved.parcel.bytes);
            }
            let socket = stream.socket.as_ref().filter(|_| stream.is_opening);
            saved.all.push(checkpoint::ReceivingStream {
                id: id.number(),
                request: stream.open.map(StreamRequest::from),
                opening: socket.map(|socket| saved.parcel.add(socket)),
                ranges,
            });
        }
        saved.len = saved.parcel.len();
        saved
    }

    /// Continues with the streams of the previous process, whose checkpoint was validated.
    /// `sending` is their other half. Returns those that have a socket.
    pub(crate) fn restore(
        &mut self,
        saved: &checkpoint::ReceivingStreams,
        machine: &machine::ReceivingStreams,
        sending: &checkpoint::SendingStreams,
    ) -> Vec<(StreamId, Arc<Connection>)> {
        let known: BTreeMap<_, _> = machine.all.iter().map(|one| (one.id, one)).collect();
        let of_sending: BTreeMap<_, _> = sending.all.iter().map(|one| (one.id, one.socket)).collect();
        let mut at = 0;
        let mut sockets = Vec::new();
        for one in &saved.all {
            let (Some(id), Some(known)) = (StreamId::new(one.id), known.get(&one.id)) else {
                continue;
            };
            let mut inbox = Inbox::restore(known.consumed);
            for (start, end) in &one.ranges {
                let len = (end - start) as usize;
                inbox.store(*start, saved.parcel.bytes.get(at..at + len).unwrap_or_default());
                at += len;
            }
            let opening = one.opening.and_then(|at| saved.parcel.sockets.get(at));
            let of_sending = of_sending.get(&one.id).copied().flatten();
            let standing = of_sending.and_then(|at| sending.parcel.sockets.get(at));
            let socket = opening.or(standing).cloned();
            let stream = Incoming {
                open: one.request.and_then(|request| request.open().ok()),
                is_opening: opening.is_some(),
                inbox,
                readable: known.next,
                has_ended: known.is_end_told,
                is_writable: opening.is_none(),
                socket: socket.clone(),
                ..Incoming::default()
            };
            self.all.insert(id, stream);
            self.queue(id);
            sockets.extend(socket.map(|socket| (id, socket)));
        }
        sockets
    }

    /// Drops all streams because the session has ended.
    pub(crate) fn close(&mut self) -> Vec<StreamId> {
        std::mem::take(&mut self.all).into_keys().collect()
    }
}

impl Incoming {
    fn is_over(&self) -> bool {
        self.has_ended && self.inbox.read() == self.readable && self.socket.is_some()
    }

    fn has_more(&self) -> bool {
        self.is_writable && self.socket.is_some() && self.inbox.read() < self.readable
    }

    /// Writes at most `max` bytes that have arrived; returns how many the socket took.
    fn write(&mut self, max: u64) -> std::io::Result<u64> {
        let Some(socket) = self.socket.as_ref().filter(|_| !self.is_opening) else {
            return Ok(0);
        };
        if !self.is_writable || self.inbox.read() == self.readable {
            return Ok(0);
        }
        match self.inbox.write(socket, self.readable, max)? {
            Some(taken) => Ok(taken as u64),
            None => {
                self.is_writable = false;
                Ok(0)
            }
        }
    }
}

/// Time that the newest byte waits in a socket.
///
/// Source: as before the paths (`WAITING_TIME`, `core/proto/src/egress/streaming.rs`).
const WAIT: Duration = Duration::from_millis(50);
/// Bytes that wait in a socket at most.
///
/// Source: Linux, the largest send buffer (`net.ipv4.tcp_wmem`), 4 MB.
const MAX_NOT_SENT: u32 = 4 << 20;
/// Bytes that a limit must permit before any is sent.
///
/// Source: as a packet of the tunnel, so that low rates make progress.
const SEGMENT: u64 = 1_400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_socket_holds_more_and_a_slow_one_what_it_sends_soon() {
        let mut waiting = Waiting::default();
        let mut now = Instant::ZERO + Duration::from_secs(1);
        let mut bound = 0;
        let mut write = |bytes, waiting: &mut Waiting| {
            for _ in 0..20 {
                now += Duration::from_millis(10);
                bound = waiting.handle_written(bytes, now).unwrap_or(bound);
            }
            bound
        };
        // 100 MB/s, then 1 MB/s, then more than a socket holds.
        let fast = write(1_000_000, &mut waiting);
        assert!((4_000_000..=MAX_NOT_SENT).contains(&fast), "{fast}");
        assert_eq!(write(10_000, &mut waiting), NOT_SENT);
        assert_eq!(write(100_000_000, &mut waiting), MAX_NOT_SENT);
    }
}
