//! The streams of a session in the sending direction: from sockets to the session's egress.
//!
//! A socket is read only while its stream has room ([`Egress::stream_room`]), so the receive window
//! of the local TCP connection closes when enough bytes are queued for the paths.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use hawser_linux::stream_sockets::Connection;
use hawser_proto::checkpoint as machine;
use hawser_proto::egress::Egress;
use hawser_proto::stream::SendingNotice;
use hawser_units::Instant;
use hawser_wire::stream::{Open, Outcome, StreamId, reason};

use super::buffers::Outbox;
use super::checkpoint;
use super::{ToReceiving, ToSending};
use crate::pool::BufferId;
use crate::share::Share;

/// Bytes read from a stream before another stream has its turn.
///
/// Source: what one call returns from a socket, at most one segment of segmentation offload.
const READ: u64 = 64 << 10;
/// Memory of one session's streams that were read.
///
/// Source: `Config::capacity`, `core/proto/src/stream/receiving.rs`: what the far end takes.
const QUOTA: u64 = 64 << 20;

/// A stream in the sending direction.
#[derive(Default)]
struct Outgoing {
    socket: Option<Arc<Connection>>,
    outbox: Outbox,
    /// Set if it is queued because its socket may have bytes.
    is_queued: bool,
    /// Set if all bytes of the socket were read.
    has_ended: bool,
    /// Set if the peer has received all of them.
    is_delivered: bool,
    /// Set if all bytes of the peer were written to the socket.
    is_received: bool,
    is_aborted: bool,
}

/// Counts of the outcomes of streams.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Streams that were connected.
    pub(crate) connected: u64,
    /// Streams that ended in both directions.
    pub(crate) completed: u64,
    /// Streams that were reset.
    pub(crate) reset: u64,
    /// Bytes read from sockets.
    pub(crate) bytes: u64,
}

impl Counts {
    /// Adds other counts.
    pub(crate) fn add(&mut self, other: Self) {
        self.connected += other.connected;
        self.completed += other.completed;
        self.reset += other.reset;
        self.bytes += other.bytes;
    }
}

/// Output of the streams of a session.
#[derive(Default)]
pub(crate) struct Said {
    /// Messages for the receiving thread.
    pub(crate) notices: Vec<ToReceiving>,
    /// Streams that have ended.
    pub(crate) closed: Vec<StreamId>,
    /// Answers of the peer to requests of this side.
    pub(crate) answers: Vec<(StreamId, Outcome)>,
}

impl Said {
    /// Returns whether there is any output.
    pub(crate) fn is_any(&self) -> bool {
        !(self.notices.is_empty() && self.closed.is_empty() && self.answers.is_empty())
    }
}

/// The streams of a session in the sending direction.
#[derive(Default)]
pub(crate) struct SendingStreams {
    all: BTreeMap<StreamId, Outgoing>,
    queued: VecDeque<StreamId>,
    /// Last stream opened by this side.
    last: Option<StreamId>,
    /// Memory of all outboxes, and the part of it that is accounted for in the share.
    memory: u64,
    charged: u64,
    pub(crate) counts: Counts,
    /// Bytes of several pieces, joined.
    scratch: Vec<u8>,
    /// Output that is not yet delivered.
    pub(crate) said: Said,
}

impl SendingStreams {
    /// Streams that have not ended.
    pub(crate) fn ids(&self) -> Vec<StreamId> {
        self.all.keys().copied().collect()
    }

    /// Count of the streams that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Memory of the bytes that were read.
    pub(crate) fn memory(&self) -> u64 {
        self.memory
    }

    /// Allocates the number of a stream that this side opens; `None` if no number is left.
    pub(crate) fn open(&mut self) -> Option<StreamId> {
        let id = match self.last {
            Some(last) => last.next()?,
            None => StreamId::new(0)?,
        };
        self.last = Some(id);
        self.all.insert(id, Outgoing::default());
        Some(id)
    }

    /// Records that the connection of a stream is established.
    pub(crate) fn connect(&mut self, id: StreamId, socket: Arc<Connection>) {
        self.counts.connected += 1;
        let stream = self.all.entry(id).or_default();
        stream.socket = Some(socket);
        self.handle_readable(id);
    }

    /// Records that a socket may have bytes.
    pub(crate) fn handle_readable(&mut self, id: StreamId) {
        if let Some(stream) = self.all.get_mut(&id)
            && !stream.has_ended
            && !std::mem::replace(&mut stream.is_queued, true)
        {
            self.queued.push_back(id);
        }
    }

    /// Processes a message of the receiving thread. Returns the socket of a stream that has become
    /// connected.
    pub(crate) fn handle(
        &mut self,
        order: ToSending,
        credit: u64,
        egress: &mut Egress<BufferId>,
        now: Instant,
    ) -> Option<(StreamId, Arc<Connection>)> {
        match order {
            ToSending::Answer(open, outcome, socket) => {
                egress.answer_stream(&open, outcome, credit, now);
                return self.answer(&open, socket);
            }
            ToSending::Received(id) => {
                if let Some(stream) = self.all.get_mut(&id) {
                    stream.is_received = true;
                    self.close_if_over(id, egress, now);
                }
            }
            ToSending::Abort(id, code) => self.abort(id, code, egress, now),
        }
        None
    }

    fn answer(
        &mut self,
        open: &Open,
        socket: Option<Arc<Connection>>,
    ) -> Option<(StreamId, Arc<Connection>)> {
        let Some(socket) = socket else {
            // The answer is repeated until the peer knows it.
            let refused = Outgoing {
                is_received: true,
                is_aborted: true,
                ..Outgoing::default()
            };
            self.all.insert(open.id, refused);
            return None;
        };
        self.connect(open.id, Arc::clone(&socket));
        Some((open.id, socket))
    }

    /// Reads each socket once that may have bytes and whose stream has room. Returns whether any
    /// bytes were read.
    pub(crate) fn read(&mut self, egress: &mut Egress<BufferId>, share: &Share, now: Instant) -> bool {
        let mut has_read = false;
        for _ in 0..self.queued.len() {
            let Some(id) = self.queued.pop_front() else { break };
            let Some(stream) = self.all.get_mut(&id) else {
                continue;
            };
            let Some(socket) = stream.socket.as_ref().filter(|_| !stream.has_ended) else {
                stream.is_queued = false;
                continue;
            };
            let room = egress.stream_room(id).min(READ);
            if room == 0 || self.memory >= QUOTA || share.lacks(READ) {
                self.queued.push_back(id);
                continue;
            }
            let before = stream.outbox.memory();
            let result = stream.outbox.read(socket, room as usize);
            self.memory = self.memory + stream.outbox.memory() - before;
            match result {
                Ok(Some(0)) => {
                    (stream.has_ended, stream.is_queued) = (true, false);
                    egress.finish_stream(id, now);
                    has_read = true;
                }
                Ok(Some(len)) => {
                    self.counts.bytes += len as u64;
                    egress.write_stream(id, len as u64, now);
                    self.queued.push_back(id);
                    has_read = true;
                }
                Ok(None) => stream.is_queued = false,
                Err(error) => {
                    tracing::debug!(stream = id.number(), %error, "a stream's connection has failed");
                    stream.is_queued = false;
                    self.abort(id, reason::RESET, egress, now);
                    self.said.notices.push(ToReceiving::Abort(id, reason::RESET));
                    has_read = true;
                }
            }
        }
        has_read
    }

    /// Resets a stream: its connection is reset on this side and at the peer.
    fn abort(&mut self, id: StreamId, code: u16, egress: &mut Egress<BufferId>, now: Instant) {
        let Some(stream) = self.all.get_mut(&id) else {
            return;
        };
        stream.socket = None;
        self.memory -= std::mem::take(&mut stream.outbox).memory();
        (stream.has_ended, stream.is_received) = (true, true);
        if !std::mem::replace(&mut stream.is_aborted, true) {
            self.counts.reset += 1;
        }
        egress.reset_stream(id, code, now);
        self.close_if_over(id, egress, now);
    }

    /// Resets a stream whose program has closed its socket.
    pub(crate) fn abandon(&mut self, id: StreamId, egress: &mut Egress<BufferId>, now: Instant) {
        if self.all.get(&id).is_some_and(|stream| stream.socket.is_none()) {
            self.abort(id, reason::RESET, egress, now);
            self.said.notices.push(ToReceiving::Abort(id, reason::RESET));
        }
    }

    /// Processes the machine's notices of streams.
    pub(crate) fn handle_notices(&mut self, egress: &mut Egress<BufferId>, now: Instant) {
        while let Some(notice) = egress.poll_stream() {
            match notice {
                SendingNotice::Released(id, offset) => {
                    if let Some(stream) = self.all.get_mut(&id) {
                        let before = stream.outbox.memory();
                        stream.outbox.release(offset);
                        self.memory -= before - stream.outbox.memory();
                    }
                }
                SendingNotice::Delivered(id) => self.on_delivered(id, egress, now),
                SendingNotice::Stopped(id, code) => {
                    self.abort(id, code, egress, now);
                    self.said.notices.push(ToReceiving::Abort(id, code));
                }
                SendingNotice::Answered(id, outcome) => {
                    if outcome != Outcome::Connected {
                        egress.close_stream(id, now);
                        self.all.remove(&id);
                        self.said.notices.push(ToReceiving::Forget(id));
                    }
                    self.said.answers.push((id, outcome));
                }
            }
        }
    }

    fn on_delivered(&mut self, id: StreamId, egress: &mut Egress<BufferId>, now: Instant) {
        let Some(stream) = self.all.get_mut(&id) else {
            return;
        };
        stream.is_delivered = true;
        if !stream.has_ended && !stream.is_aborted {
            // The peer no longer knows the stream.
            self.abort(id, reason::UNKNOWN, egress, now);
            self.said.notices.push(ToReceiving::Abort(id, reason::UNKNOWN));
            return;
        }
        self.close_if_over(id, egress, now);
    }

    fn close_if_over(&mut self, id: StreamId, egress: &mut Egress<BufferId>, now: Instant) {
        let is_over = |stream: &mut Outgoing| stream.is_delivered && stream.is_received;
        if !self.all.get_mut(&id).is_some_and(is_over) {
            return;
        }
        let Some(stream) = self.all.remove(&id) else {
            return;
        };
        self.memory -= stream.outbox.memory();
        egress.close_stream(id, now);
        if stream.is_aborted {
            self.said.notices.push(ToReceiving::Forget(id));
        } else {
            self.counts.completed += 1;
            if let Some(socket) = &stream.socket {
                socket.close_in_order();
            }
        }
        self.said.closed.push(id);
    }

    /// Returns the bytes of a burst; `None` if they are not stored in this buffer.
    pub(crate) fn bytes(&mut self, id: StreamId, range: &Range<u64>) -> Option<&[u8]> {
        self.all.get(&id)?.outbox.bytes(range, &mut self.scratch)
    }

    /// Accounts for memory that streams have allocated or released.
    pub(crate) fn settle(&mut self, share: &mut Share) {
        let before = std::mem::replace(&mut self.charged, self.memory);
        if self.memory > before {
            share.take(self.memory - before);
        } else {
            share.give_back(before - self.memory);
        }
    }

    /// Returns the state for the next process. `machine` is the checkpoint of the session's state
    /// machine.
    pub(crate) fn checkpoint(&mut self, machine: &machine::SendingStreams) -> checkpoint::SendingStreams {
        let mut saved = checkpoint::SendingStreams {
            last: self.last.map(StreamId::number),
            ..checkpoint::SendingStreams::default()
        };
        let machine: BTreeMap<_, _> = machine.all.iter().map(|one| (one.id, &one.bytes)).collect();
        let mut lost = Vec::new();
        for (id, stream) in &self.all {
            let known = machine.get(&id.number());
            let range = known.map_or(0..0, |bytes| bytes.acknowledged..bytes.written);
            let is_known = known.is_some() || stream.is_aborted;
            let Some(bytes) = stream
                .outbox
                .bytes(&range, &mut self.scratch)
                .filter(|_| is_known)
            else {
                lost.push(*id);
                continue;
            };
            saved.parcel.bytes.extend_from_slice(bytes);
            let socket = stream.socket.as_ref().map(|socket| saved.parcel.add(socket));
            saved.all.push(checkpoint::SendingStream {
                id: id.number(),
                socket,
                has_ended: stream.has_ended,
                is_delivered: stream.is_delivered,
                is_received: stream.is_received,
                is_aborted: stream.is_aborted,
            });
        }
        if !lost.is_empty() {
            tracing::warn!(count = lost.len(), "streams are not handed over");
        }
        saved.len = saved.parcel.len();
        saved
    }

    /// Continues with the streams of the previous process, whose checkpoint was validated. Returns
    /// those that have a socket.
    pub(crate) fn restore(
        &mut self,
        saved: &checkpoint::SendingStreams,
        machine: &machine::SendingStreams,
    ) -> Vec<(StreamId, Arc<Connection>)> {
        let machine: BTreeMap<_, _> = machine.all.iter().map(|one| (one.id, &one.bytes)).collect();
        self.last = saved.last.and_then(StreamId::new);
        let mut at = 0;
        let mut sockets = Vec::new();
        for one in &saved.all {
            let Some(id) = StreamId::new(one.id) else { continue };
            let bytes = machine.get(&one.id);
            let start = bytes.map_or(0, |bytes| bytes.acknowledged);
            let len = bytes.map_or(0, |bytes| bytes.written - bytes.acknowledged) as usize;
            let outbox = Outbox::restore(start, saved.parcel.bytes.get(at..at + len).unwrap_or_default());
            at += len;
            self.memory += outbox.memory();
            let socket = one.socket.and_then(|at| saved.parcel.sockets.get(at)).cloned();
            let stream = Outgoing {
                socket: socket.clone(),
                outbox,
                is_queued: false,
                has_ended: one.has_ended,
                is_delivered: one.is_delivered,
                is_received: one.is_received,
                is_aborted: one.is_aborted,
            };
            self.all.insert(id, stream);
            if let Some(socket) = socket {
                self.handle_readable(id);
                sockets.push((id, socket));
            }
        }
        sockets
    }

    /// Drops all streams because the session has ended.
    pub(crate) fn close(&mut self, share: &mut Share) {
        self.all.clear();
        self.memory = 0;
        self.settle(share);
    }
}
