//! Sending half of streams: which bytes and frames are sent next, and what happens to them.
//!
//! ```text
//!              open                Answer: connected             finish, all acknowledged
//!   (opener) --------> asking ----------------------> open ------------------------------> closed
//!   (other)  --Open--> asked  ---- answer ----------> open          reset, Stop ------------^
//! ```
//!
//! A driver writes bytes ([`Sending::write`] receives their number only) while few bytes wait to be
//! sent. The egress takes [`Chunk`]s, chooses their path and reports their packets. When a path
//! loses a packet, or may have dropped it when it failed, its bytes wait again and are sent over
//! any path. If the reports of a path cannot decide, a stream without progress for the timeout of
//! its paths sends its first missing bytes again, and doubles the timeout.
//!
//! Source: RFC 9002 section 6.2 (probe timeout). Deviates: the timeout is that of the paths, and it
//! also covers losses that their reports could not name (`core/proto/src/ingress/missing.rs`).

mod checkpoint;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use hawser_units::{Duration, Instant, PathId};
use hawser_wire::stream::{Ack, Frame, Open, Outcome, StreamId};

use super::in_flight::{Cargo, InFlight, Record};
use super::outgoing::Outgoing;
use super::receiving::Event;

/// Bytes of a stream that are sent together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Their stream.
    pub id: StreamId,
    /// Their offsets.
    pub range: Range<u64>,
    /// Set if some of them were sent before.
    pub is_repeated: bool,
}

/// Notice of the sending half for its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendingNotice {
    /// The peer has answered an [`Open`].
    Answered(StreamId, Outcome),
    /// Bytes before the offset have arrived: their memory is free.
    Released(StreamId, u64),
    /// The bytes and the end have all arrived, or the peer knows of the reset.
    Delivered(StreamId),
    /// The peer wants no more of the stream, for this reason.
    Stopped(StreamId, u16),
}

/// Frames of one stream that are to be sent.
#[derive(Clone, Copy, Debug, Default)]
struct Owed {
    open: bool,
    answer: bool,
    ack: bool,
    reset: bool,
    stop: bool,
    blocked: bool,
}

impl Owed {
    fn is_any(self) -> bool {
        self.open || self.answer || self.ack || self.reset || self.stop || self.blocked
    }
}

#[derive(Debug)]
struct Stream {
    out: Outgoing,
    /// Request of this side; `None` where the peer opened.
    open: Option<Open>,
    answer: Option<(Outcome, u64)>,
    ack: Option<Ack>,
    reset: Option<u16>,
    stop: Option<u16>,
    owed: Owed,
    /// Queued among the streams that owe frames.
    is_owing: bool,
    /// The peer has answered, or this side has.
    is_open: bool,
    /// The peer knows of the request or of the answer.
    is_confirmed: bool,
    asked_at: Instant,
    tries: u32,
    /// The credit for which the peer was asked for more.
    blocked_at: Option<u64>,
    /// The window, from what is released to the credit, when the peer was asked to let it grow.
    asked_window: u64,
}

impl Stream {
    fn new(open: Option<Open>, credit: u64, now: Instant) -> Self {
        Self {
            out: Outgoing::new(credit, now),
            open,
            answer: None,
            ack: None,
            reset: None,
            stop: None,
            owed: Owed::default(),
            is_owing: false,
            is_open: false,
            is_confirmed: false,
            asked_at: now,
            tries: 0,
            blocked_at: None,
            asked_window: 0,
        }
    }

    /// Returns whether the peer's answer is missing. Bytes of the peer may arrive before it. They
    /// are not acknowledged until then, because an acknowledgement confirms the answer, and the
    /// peer would not send a lost one again.
    fn is_unanswered(&self) -> bool {
        self.open.is_some() && !self.is_open && self.reset.is_none()
    }

    /// Asks for more credit when more than half of the window is in use, once for each window.
    fn ask_for_credit(&mut self) {
        let window = self.out.credit.saturating_sub(self.out.released());
        let used = self.out.highest.saturating_sub(self.out.released());
        if used > window / 2 && window > self.asked_window / 2 * 3 {
            self.asked_window = window;
            self.owed.blocked = true;
        }
    }

    /// A frame that was sent is lost: what of it is still of use is owed again.
    fn on_lost_frames(&mut self) {
        self.owed.open |= self.open.is_some() && !self.is_confirmed;
        self.owed.answer |= self.answer.is_some() && !self.is_confirmed;
        self.owed.ack |= self.ack.is_some() && !self.is_unanswered();
        self.owed.reset |= self.reset.is_some();
        self.owed.stop |= self.stop.is_some();
        self.owed.blocked |= self.blocked_at == Some(self.out.credit);
    }

    /// Returns whether the peer is to confirm a request, an answer, a reset or bytes.
    fn is_awaiting(&self) -> bool {
        let is_unconfirmed = (self.open.is_some() || self.answer.is_some()) && !self.is_confirmed;
        is_unconfirmed || self.reset.is_some() || self.out.is_awaiting() || self.blocked_at.is_some()
    }

    fn frame(&mut self, id: StreamId) -> Option<Frame> {
        let owed = &mut self.owed;
        if std::mem::take(&mut owed.open) {
            return self.open.map(Frame::Open);
        }
        if std::mem::take(&mut owed.answer)
            && let Some((outcome, credit)) = self.answer
        {
            return Some(Frame::Answer { id, outcome, credit });
        }
        if std::mem::take(&mut owed.ack) {
            return self.ack.map(Frame::Ack);
        }
        if std::mem::take(&mut owed.reset)
            && let Some(code) = self.reset
        {
            let sent = self.out.highest;
            return Some(Frame::Reset { id, code, sent });
        }
        if std::mem::take(&mut owed.stop)
            && let Some(code) = self.stop
        {
            return Some(Frame::Stop { id, code });
        }
        let credit = self.out.credit;
        std::mem::take(&mut owed.blocked).then_some(Frame::Blocked { id, credit })
    }
}

/// Streams of a session in the sending direction.
///
/// Cost: O(log streams) a burst or frame, O(streams) eight times in the timeout of the paths while
/// any waits for the peer; nothing while all are idle.
#[derive(Debug, Default)]
pub struct Sending {
    streams: BTreeMap<StreamId, Stream>,
    in_flight: InFlight,
    /// Bytes that the peer takes of all streams, and the highest ones of all that were sent.
    session_credit: u64,
    session_sent: u64,
    /// Credit that this side grants for all streams.
    granted: u64,
    owes_granted: bool,
    /// Streams that owe frames.
    owing: VecDeque<StreamId>,
    /// Frames about streams that are not here.
    loose: VecDeque<Frame>,
    /// Streams of which more or less may be sent than before.
    changed: VecDeque<StreamId>,
    notices: VecDeque<SendingNotice>,
    checked_at: Instant,
    /// Some stream may wait for a message of the peer.
    is_busy: bool,
    /// Bytes sent again because they were lost or late.
    repeated: u64,
    /// Bytes sent on a second path because they arrive sooner there.
    copied: u64,
}

/// Maximum number of frames about closed streams that wait to be sent.
///
/// Source: no measurement; each answers a datagram of the peer, which sends it again without an
/// answer.
const MAX_LOOSE: usize = 64;

impl Sending {
    /// Returns whether there is no stream.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Returns the number of bytes that were retransmitted because they were lost or late, and of
    /// those that were sent on a second path to arrive sooner.
    #[must_use]
    pub fn repeated(&self) -> (u64, u64) {
        (self.repeated, self.copied)
    }

    /// Requests a connection from the peer.
    pub fn open(&mut self, open: Open, now: Instant) {
        self.is_busy = true;
        let mut stream = Stream::new(Some(open), 0, now);
        stream.owed.open = true;
        self.streams.insert(open.id, stream);
        self.owe(open.id);
    }

    /// Answers the peer's request; `credit`: bytes of the stream that this side accepts.
    pub fn answer(&mut self, open: &Open, outcome: Outcome, credit: u64, now: Instant) {
        self.is_busy = true;
        let id = open.id;
        // The driver may know of the request before this half does.
        let stream = self
            .streams
            .entry(id)
            .or_insert_with(|| Stream::new(None, open.credit, now));
        stream.answer = Some((outcome, credit));
        stream.owed.answer = true;
        (stream.is_open, stream.is_confirmed) = (outcome == Outcome::Connected, false);
        (stream.asked_at, stream.tries) = (now, 0);
        self.owe(id);
        self.changed.push_back(id);
    }

    /// Records that the driver has `bytes` more of a stream.
    pub fn write(&mut self, id: StreamId, bytes: u64) {
        self.is_busy = true;
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.out.write(bytes);
            self.changed.push_back(id);
        }
    }

    /// Records that the driver has written all bytes of a stream.
    pub fn finish(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.out.finish();
            self.changed.push_back(id);
        }
    }

    /// Resets a stream with a reason; bytes that have not arrived are dropped.
    pub fn reset(&mut self, id: StreamId, code: u16, now: Instant) {
        self.is_busy = true;
        if let Some(stream) = self.streams.get_mut(&id)
            && !stream.out.is_end_acknowledged
        {
            stream.out.abandon();
            stream.reset = Some(code);
            stream.owed.reset = true;
            (stream.asked_at, stream.tries) = (now, 0);
            self.owe(id);
            self.changed.push_back(id);
        }
    }

    /// Removes a stream that its driver has read completely, and that was delivered or reset.
    pub fn close(&mut self, id: StreamId) {
        self.streams.remove(&id);
        self.changed.push_back(id);
    }

    /// Bytes of a stream that were written and wait to be sent.
    #[must_use]
    pub fn waiting(&self, id: StreamId) -> u64 {
        self.streams.get(&id).map_or(0, |stream| stream.out.waiting())
    }

    /// Returns the number of bytes of a stream that were written and are not acknowledged, which
    /// its driver stores.
    #[must_use]
    pub fn stored(&self, id: StreamId) -> u64 {
        self.streams
            .get(&id)
            .map_or(0, |stream| stream.out.written - stream.out.released())
    }

    /// Bytes of a stream that may be sent now.
    #[must_use]
    pub fn sendable(&self, id: StreamId) -> u64 {
        let session = self.session_credit.saturating_sub(self.session_sent);
        self.streams
            .get(&id)
            .filter(|stream| stream.is_open)
            .map_or(0, |stream| stream.out.sendable(session))
    }

    /// Returns whether the next bytes of a stream were sent before.
    #[must_use]
    pub fn is_repeating(&self, id: StreamId) -> bool {
        self.streams
            .get(&id)
            .is_some_and(|stream| stream.out.is_repeating())
    }

    /// Bytes of a stream that were sent, without repetitions.
    #[must_use]
    pub fn sent(&self, id: StreamId) -> u64 {
        self.streams.get(&id).map_or(0, |stream| stream.out.highest)
    }

    /// Records that more or less of a stream may be sent than before.
    pub(crate) fn note_changed(&mut self, id: StreamId) {
        if self.changed.back() != Some(&id) {
            self.changed.push_back(id);
        }
    }

    /// A stream of which more or less may be sent than before.
    pub(crate) fn poll_changed(&mut self) -> Option<StreamId> {
        self.changed.pop_front()
    }

    /// Processes an event of the receiving half of this side.
    pub fn handle_event(&mut self, event: Event, now: Instant) {
        match event {
            Event::Heard(frame) => self.on_heard(frame, now),
            Event::Send(frame) => self.on_own(frame),
        }
    }

    /// A frame of this side's receiving half is to be sent.
    fn on_own(&mut self, frame: Frame) {
        if let Frame::Session(granted) = frame {
            self.granted = self.granted.max(granted);
            self.owes_granted = true;
            return;
        }
        let stream = frame
            .stream()
            .and_then(|id| Some((id, self.streams.get_mut(&id)?)));
        let Some((id, stream)) = stream else {
            if self.loose.len() < MAX_LOOSE {
                self.loose.push_back(frame);
            }
            return;
        };
        match frame {
            Frame::Ack(ack) => {
                stream.ack = Some(ack);
                stream.owed.ack = !stream.is_unanswered();
            }
            Frame::Stop { code, .. } => {
                stream.stop = Some(code);
                stream.owed.stop = true;
            }
            Frame::Open(_)
            | Frame::Answer { .. }
            | Frame::Session(_)
            | Frame::Reset { .. }
            | Frame::Blocked { .. } => {}
        }
        self.owe(id);
    }

    fn on_heard(&mut self, frame: Frame, now: Instant) {
        match frame {
            Frame::Open(open) => self.on_open(&open, now),
            Frame::Answer { id, outcome, credit } => self.on_answer(id, outcome, credit),
            Frame::Ack(ack) => self.on_ack(&ack, now),
            Frame::Session(credit) => {
                if credit > self.session_credit {
                    self.session_credit = credit;
                    self.changed.extend(self.streams.keys());
                }
            }
            Frame::Stop { id, code } => {
                if let Some(stream) = self.streams.get(&id)
                    && !stream.out.is_end_acknowledged
                {
                    self.notices.push_back(SendingNotice::Stopped(id, code));
                    self.reset(id, code, now);
                }
            }
            Frame::Reset { .. } | Frame::Blocked { .. } => {}
        }
    }

    fn on_open(&mut self, open: &Open, now: Instant) {
        if let Some(stream) = self.streams.get_mut(&open.id) {
            // Asked again. Where the connection is still being made, an acknowledgement says that
            // the request is known.
            stream.owed.answer |= stream.answer.is_some();
            if stream.answer.is_none() {
                stream.ack.get_or_insert(Ack::new(open.id, 0, 0, false));
                stream.owed.ack = true;
            }
            self.owe(open.id);
            return;
        }
        self.streams.insert(open.id, Stream::new(None, open.credit, now));
    }

    fn on_answer(&mut self, id: StreamId, outcome: Outcome, credit: u64) {
        let Some(stream) = self.streams.get_mut(&id) else {
            // The peer is to stop asking.
            if self.loose.len() < MAX_LOOSE {
                self.loose.push_back(Frame::Ack(Ack::new(id, 0, 0, true)));
            }
            return;
        };
        stream.is_confirmed = true;
        stream.ack.get_or_insert(Ack::new(id, 0, 0, false));
        stream.owed.ack = true;
        stream.out.credit = stream.out.credit.max(credit);
        if !std::mem::replace(&mut stream.is_open, outcome == Outcome::Connected)
            || outcome != Outcome::Connected
        {
            self.notices.push_back(SendingNotice::Answered(id, outcome));
        }
        self.owe(id);
        self.changed.push_back(id);
    }

    fn on_ack(&mut self, ack: &Ack, now: Instant) {
        let id = ack.id;
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.is_confirmed = true;
        let was_delivered = stream.out.is_end_acknowledged;
        if ack.credit > stream.out.credit {
            stream.out.credit = ack.credit;
            stream.blocked_at = None;
        }
        if stream.out.on_ack(ack.next, ack.ranges(), ack.is_complete, now) {
            self.notices
                .push_back(SendingNotice::Released(id, stream.out.released()));
        }
        if ack.is_complete {
            let was_reset = stream.reset.take().is_some();
            if !was_delivered || was_reset {
                self.notices.push_back(SendingNotice::Delivered(id));
            }
        }
        self.changed.push_back(id);
    }

    fn owe(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.owed.is_any()
            && !std::mem::replace(&mut stream.is_owing, true)
        {
            self.owing.push_back(id);
        }
    }

    /// The next bytes of a stream, at most `max`.
    #[must_use]
    pub fn next(&self, id: StreamId, max: u64) -> Option<Chunk> {
        let session = self.session_credit.saturating_sub(self.session_sent);
        let stream = self.streams.get(&id).filter(|stream| stream.is_open)?;
        let range = stream.out.next(max, session)?;
        Some(Chunk {
            id,
            is_repeated: range.start < stream.out.highest,
            range,
        })
    }

    /// Records a chunk that was sent as packets from `packet_number` on, each of `each` bytes of
    /// the stream but the last, and is expected at the far end at `arrival`. Returns whether the
    /// stream ends with it.
    pub fn on_sent(
        &mut self,
        chunk: &Chunk,
        (path, packet_number, count): (PathId, u64, u16),
        each: u16,
        (arrival, now): (Instant, Instant),
    ) -> bool {
        self.is_busy = true;
        let Some(stream) = self.streams.get_mut(&chunk.id) else {
            return false;
        };
        let Range { start, end } = chunk.range;
        self.session_sent += end.saturating_sub(stream.out.highest);
        if chunk.is_repeated {
            self.repeated += end.min(stream.out.highest).saturating_sub(start);
        }
        let is_last = stream.out.on_sent(start..end, now);
        stream.ask_for_credit();
        let cargo = Cargo::Bytes {
            id: chunk.id,
            offset: start,
            len: (end - start) as u32,
            each,
        };
        self.owe(chunk.id);
        self.record(path, Record::new(packet_number, count, cargo, arrival));
        is_last
    }

    fn record(&mut self, path: PathId, record: Record) {
        let (streams, arrival) = (&self.streams, record.arrival);
        self.in_flight.push(path, record, |record| match record.cargo {
            Cargo::Bytes { id, offset, len, .. } => streams.get(&id).is_none_or(|stream| {
                let end = offset + u64::from(len);
                stream.out.released() >= end && (len > 0 || stream.out.is_end_acknowledged)
            }),
            Cargo::Frames(_) => arrival.since(record.arrival) > FRAMES_LIFETIME,
        });
    }

    /// Returns whether a stream has sent all permitted bytes and waits for the peer: only then
    /// [`Self::copy_later_than`] has an output.
    #[must_use]
    pub fn may_copy(&self) -> bool {
        let session = self.session_credit.saturating_sub(self.session_sent);
        let is_at_end = |stream: &Stream| stream.out.is_awaiting() && stream.out.sendable(session) == 0;
        self.is_busy && self.streams.values().any(is_at_end)
    }

    /// Bytes that have been sent and that other paths than `path` deliver after `arrival`, of a
    /// stream that has nothing else to send: to be sent on `path` too, once, and at most `max` of
    /// them.
    pub fn copy_later_than(&mut self, path: PathId, arrival: Instant, max: u64) -> Option<Chunk> {
        if !self.may_copy() {
            return None;
        }
        let session = self.session_credit.saturating_sub(self.session_sent);
        let streams = &self.streams;
        let wants = |record: &Record| match record.cargo {
            Cargo::Bytes { id, offset, len, .. } => {
                let range = offset..offset + u64::from(len);
                streams.get(&id).is_some_and(|stream| {
                    stream.out.sendable(session) == 0 && stream.out.is_outstanding(&range)
                })
            }
            Cargo::Frames(_) => false,
        };
        let Cargo::Bytes { id, offset, len, .. } = self.in_flight.copy_later_than(path, arrival, wants)?
        else {
            return None;
        };
        let end = offset + u64::from(len);
        let here = end.min(offset + max);
        if let Some(stream) = self.streams.get_mut(&id)
            && here < end
            && stream.out.on_lost(here..end)
        {
            self.changed.push_back(id);
        }
        self.copied += here - offset;
        Some(Chunk {
            id,
            range: offset..here,
            is_repeated: true,
        })
    }

    /// Marks the bytes of packets that a path has lost, or may have dropped when it failed, to be
    /// sent again. `tell` is called with each of their packet numbers.
    pub fn on_missing(&mut self, path: PathId, packet_numbers: Range<u64>, mut tell: impl FnMut(u64)) {
        let Self {
            streams,
            in_flight,
            owing,
            changed,
            owes_granted,
            ..
        } = self;
        in_flight.lose(path, packet_numbers, |number, cargo| {
            tell(number);
            match cargo {
                Cargo::Bytes { id, offset, len, .. } => {
                    let Some(stream) = streams.get_mut(&id) else {
                        return;
                    };
                    if stream.out.on_lost(offset..offset + u64::from(len)) && changed.back() != Some(&id) {
                        changed.push_back(id);
                    }
                }
                Cargo::Frames(Some(id)) => {
                    let Some(stream) = streams.get_mut(&id) else {
                        return;
                    };
                    stream.on_lost_frames();
                    if stream.owed.is_any() && !std::mem::replace(&mut stream.is_owing, true) {
                        owing.push_back(id);
                    }
                }
                Cargo::Frames(None) => *owes_granted = true,
            }
        });
    }

    /// Retransmits bytes that a path should have delivered before `until`, if later bytes have
    /// arrived: the path has become slower, which its reports do not show yet. Bytes that it still
    /// delivers arrive twice.
    pub fn handle_overdue(&mut self, path: PathId, until: Instant) {
        let Self {
            streams, in_flight, ..
        } = self;
        let wants = |record: &Record| match record.cargo {
            Cargo::Bytes { id, offset, len, .. } => streams
                .get(&id)
                .is_some_and(|stream| stream.out.is_missing(&(offset..offset + u64::from(len)))),
            Cargo::Frames(_) => false,
        };
        let mut overdue = Vec::new();
        in_flight.lose_overdue(path, until, wants, |cargo| overdue.push(cargo));
        for cargo in overdue {
            let Cargo::Bytes { id, offset, len, .. } = cargo else {
                continue;
            };
            if let Some(stream) = self.streams.get_mut(&id)
                && stream.out.on_lost(offset..offset + u64::from(len))
            {
                self.changed.push_back(id);
            }
        }
    }

    /// Handles a closed path, after its packets were passed to [`Self::on_missing`].
    pub fn forget_path(&mut self, path: PathId) {
        self.in_flight.forget(path);
    }

    /// Returns whether frames wait to be sent.
    #[must_use]
    pub fn owes_frames(&self) -> bool {
        self.owes_granted || !self.owing.is_empty() || !self.loose.is_empty()
    }

    /// Writes waiting frames into `body`, at most `max` bytes, and adds the streams that they
    /// concern to `about`.
    pub(crate) fn write_frames(&mut self, body: &mut Vec<u8>, max: usize, about: &mut Vec<Option<StreamId>>) {
        about.clear();
        body.clear();
        body.resize(max, 0);
        let mut at = 0;
        let mut put = |frame: &Frame| {
            let len = frame.emit(&mut body[at..])?;
            at += len;
            Some(())
        };
        if self.owes_granted && put(&Frame::Session(self.granted)).is_some() {
            self.owes_granted = false;
            about.push(None);
        }
        while let Some(frame) = self.loose.front() {
            if put(frame).is_none() {
                break;
            }
            self.loose.pop_front();
        }
        'streams: while let Some(id) = self.owing.front().copied() {
            while let Some(stream) = self.streams.get_mut(&id) {
                let before = stream.owed;
                let Some(frame) = stream.frame(id) else { break };
                if put(&frame).is_none() {
                    stream.owed = before;
                    break 'streams;
                }
                if about.last() != Some(&Some(id)) {
                    about.push(Some(id));
                }
            }
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.is_owing = false;
            }
            self.owing.pop_front();
        }
        body.truncate(at);
    }

    /// Records a datagram with frames about these streams.
    pub(crate) fn on_frames_sent(
        &mut self,
        (path, packet_number): (PathId, u64),
        about: &[Option<StreamId>],
        arrival: Instant,
    ) {
        for id in about {
            self.record(path, Record::new(packet_number, 1, Cargo::Frames(*id), arrival));
        }
    }

    /// Processes timers: a stream without progress within `timeout`, the timeout of the paths,
    /// sends its first missing bytes again, and repeats requests without an answer.
    pub fn handle_timeout(&mut self, timeout: Duration, now: Instant) {
        if now < self.poll_timeout(timeout) {
            return;
        }
        self.checked_at = now;
        let session = self.session_credit.saturating_sub(self.session_sent);
        let mut owes = Vec::new();
        for (id, stream) in &mut self.streams {
            if stream.is_open && stream.out.is_blocked(session) {
                let credit = stream.out.credit;
                let is_asked = stream.blocked_at == Some(credit);
                if !is_asked || now.since(stream.asked_at) >= timeout {
                    (stream.blocked_at, stream.asked_at) = (Some(credit), now);
                    stream.owed.blocked = true;
                    owes.push(*id);
                }
            } else {
                stream.blocked_at = None;
            }
            if !stream.is_awaiting() {
                continue;
            }
            let asked_for = now.since(stream.asked_at);
            if !stream.is_confirmed || stream.reset.is_some() {
                if asked_for >= timeout * 2u32.pow(stream.tries.min(6)) {
                    stream.tries += 1;
                    stream.asked_at = now;
                    stream.on_lost_frames();
                    owes.push(*id);
                }
            } else if stream.out.is_awaiting() && stream.out.stalled_at(timeout) <= now {
                stream.out.on_stall(now);
                self.changed.push_back(*id);
            }
        }
        let waits = |stream: &Stream| stream.is_awaiting() || stream.out.is_blocked(session);
        self.is_busy = self.streams.values().any(waits);
        for id in owes {
            self.owe(id);
        }
    }

    /// Records that an unreachable peer is reachable again: unacknowledged data is retransmitted at
    /// the next [`Self::handle_timeout`].
    pub fn handle_reachable(&mut self) {
        self.checked_at = Instant::ZERO;
        for stream in self.streams.values_mut() {
            (stream.asked_at, stream.tries) = (Instant::ZERO, 0);
            stream.out.handle_reachable();
        }
    }

    /// Returns the time of the next [`Self::handle_timeout`]; far in the future if no stream waits
    /// for the peer.
    #[must_use]
    pub fn poll_timeout(&self, timeout: Duration) -> Instant {
        if self.is_busy {
            self.checked_at + timeout / CHECKS
        } else {
            Instant::FAR_FUTURE
        }
    }

    /// Returns a notice for the driver.
    pub fn poll_notice(&mut self) -> Option<SendingNotice> {
        self.notices.pop_front()
    }
}

/// Lifetime of the record of a datagram's frames.
///
/// Source: a loss is not named for longer (`FORGOTTEN`, `core/proto/src/ingress/missing.rs`).
const FRAMES_LIFETIME: Duration = Duration::from_secs(2);
/// Checks of all streams in the timeout of the paths.
///
/// Source: a stall is found an eighth of the timeout late at most, half of that in the mean.
const CHECKS: u32 = 8;
