//! Receiving half of streams: orders bytes by their offsets, and reports what has arrived and how
//! much more may be sent.
//!
//! It stores no bytes: a driver stores them at the position in [`Accepted`], within the credit that
//! this machine has granted, and reads them in order ([`Notice::Readable`]). No byte is abandoned:
//! the stream waits for missing bytes while it exists.
//!
//! ```text
//!            open, or the peer's Open          all bytes have arrived        consumed, acknowledged
//!   unknown -------------------------> open --------------------------> ended ----------> closed
//!                                        |  Reset                         ^
//!                                        +--------------------------------+
//! ```
//!
//! **Credit.** The credit of a stream is the bytes that were read of it and its window. The credit
//! of all streams together is the bytes that were read of all and a window, which is twice the
//! largest window of a stream, at most [`Config::capacity`] and as far as the [`Reserve`] of all
//! sessions permits. Both only increase. A window doubles when its sender reports that more than
//! half of it is in use ([`Frame::Blocked`]) while the reader keeps up. So it becomes two to four
//! times the data in flight and out of order, without knowledge of rate and round trip. A reader
//! that has stopped leaves the window unchanged.
//!
//! Source: RFC 9000 section 4 (flow control). Deviates: windows grow by the data in use instead of
//! the time between two updates, because several paths have no common round trip.

mod checkpoint;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hawser_units::{Duration, Instant};
use hawser_wire::data::Inner;
use hawser_wire::stream::{ACK_RANGES, Ack, Frame, Open, Position, StreamId, reason};

use super::admission::{ConnectRate, Connects, Reserve, Reserved};
use super::ranges::Ranges;

/// Bounds of what is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of all streams that may be in flight or stored.
    pub capacity: u64,
    /// Initial limit for the bytes of all streams of a session; it grows up to `capacity`.
    pub first_capacity: u64,
    /// Window of a new stream.
    pub window: u64,
    /// The largest window of a stream.
    pub max_window: u64,
    /// Maximum number of streams.
    pub max_streams: usize,
    /// Limit of the rate at which the peer opens connections, if there is one.
    pub connects: Option<ConnectRate>,
}

impl Default for Config {
    /// Source: `capacity` is what a session may hold of packets to be sent
    /// (`system/dataplane/src/sessions.rs`); half of it for one stream fills 1 Gbit/s over paths
    /// whose delays differ by 250 ms. `window`: quinn's and Chromium's begin with 64 KB to 1.2 MB;
    /// this one is used up by the first flights of four paths.
    fn default() -> Self {
        Self {
            capacity: 64 << 20,
            first_capacity: 64 << 20,
            window: 512 << 10,
            max_window: 32 << 20,
            max_streams: 4096,
            connects: None,
        }
    }
}

/// Bytes of a datagram that are to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Their stream.
    pub id: StreamId,
    /// Offset of the first of them in the stream.
    pub offset: u64,
    /// Bytes of the datagram's body before them.
    pub skip: usize,
    /// Number of these bytes.
    pub len: usize,
}

/// Notice of the receiving half for its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The peer asks for a connection; to be answered.
    Open(Open),
    /// More bytes can be read: [`Receiving::readable`].
    Readable(StreamId),
    /// The end of the stream has been reached: its bytes up to [`Receiving::readable`] are all.
    Ended(StreamId),
    /// The peer has given the stream up.
    Reset(StreamId, u16),
}

/// Event of the receiving half for the sending half of its own side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A frame of the peer that concerns what is sent.
    Heard(Frame),
    /// A frame to be sent.
    Send(Frame),
}

/// Datagrams that were refused, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams beyond the credit of their stream or of the session.
    pub beyond_credit: u64,
    /// Datagrams that would make more ranges than a stream may have.
    pub too_scattered: u64,
    /// Datagrams of unknown streams.
    pub unknown: u64,
    /// Datagrams whose bytes had all arrived before.
    pub duplicates: u64,
    /// Datagrams that contradict an announced end of their stream.
    pub contradicting: u64,
    /// Requests beyond [`Config::max_streams`].
    pub too_many: u64,
    /// Requests beyond [`Config::connects`].
    pub too_fast: u64,
    /// Requests for which the [`Reserve`] had no memory.
    pub no_memory: u64,
}

/// Interval of acknowledgements of a stream; they release its sender's buffer, nothing waits for
/// them.
///
/// Source: as reports of a path, `core/proto/src/ingress.rs`.
const ACK_INTERVAL: Duration = Duration::from_millis(5);
/// Interval of acknowledgements that raise the credit.
///
/// Source: as urgent reports of a path, `core/proto/src/ingress.rs`.
const CREDIT_INTERVAL: Duration = Duration::from_millis(1);
/// Ranges of a stream that are kept.
///
/// Source: the largest window (32 MB) in packets of 1,400 bytes, every second one missing, makes
/// 12,000: with two paths that take turns packet by packet, one 245 ms behind the other, 320 Mbit/s
/// exceed 4,096. They take 16 bytes each.
const MAX_RANGES: usize = 16_384;
/// Numbers below the highest opened one that are remembered as not opened yet.
///
/// Source: requests overtake each other on paths by what is opened within a second, some thousand.
const MAX_AWAITED: usize = 4096;

/// Answers about streams that are not here, for each batch: a peer whose datagrams cause more gets
/// no answer to the rest, and sends them again.
///
/// Source: `MAX_LOOSE`, `core/proto/src/stream/sending.rs`, which drops those beyond.
const MAX_ANSWERED: usize = 64;

/// A stream in the receiving direction.
#[derive(Debug)]
struct Incoming {
    /// End of the bytes that have arrived without a gap.
    next: u64,
    /// Ranges that have arrived after a gap.
    beyond: Ranges,
    /// The driver has read all bytes before.
    consumed: u64,
    /// The end of the highest byte.
    highest: u64,
    window: u64,
    /// Credit in the last acknowledgement.
    promised: u64,
    /// The credit that the window's last growth gave: before it is in use, no more is needed.
    grown_to: u64,
    end: Option<u64>,
    is_end_told: bool,
    /// The reader wants no more: bytes count as read.
    is_stopped: bool,
    ack_due: Option<Instant>,
    last_ack: Instant,
    /// The acknowledgement of all bytes was made.
    is_acked: bool,
}

impl Incoming {
    fn is_complete(&self) -> bool {
        self.end == Some(self.next)
    }

    fn credit(&self) -> u64 {
        self.consumed + self.window
    }

    /// Doubles the window, whose sender uses more than half of `credit`, if the reader keeps up.
    fn grow(&mut self, credit: u64, max: u64) {
        let keeps_up = self.next - self.consumed <= self.window / 4;
        if keeps_up && credit >= self.grown_to && self.window < max {
            self.window = (self.window * 2).min(max);
            self.grown_to = self.credit();
        }
    }
}

/// Streams of a session in the receiving direction.
///
/// Cost: O(log streams + log ranges) a datagram; a stream without traffic takes some 200 bytes.
#[derive(Debug)]
pub struct Receiving {
    config: Config,
    streams: BTreeMap<StreamId, Incoming>,
    /// Lowest unused number by opening side; those below were opened, but for those in `awaited`.
    opened: [u32; 2],
    awaited: BTreeSet<StreamId>,
    due: Due,
    /// Bytes up to the highest ones of all streams, and those of them that were consumed.
    received: u64,
    consumed: u64,
    /// Credit of all streams in the last announcement.
    promised: u64,
    /// Window of all streams, and the part of the reserve that backs it while there are any.
    capacity: u64,
    reserved: Reserved,
    connects: Connects,
    notices: VecDeque<Notice>,
    events: VecDeque<Event>,
    /// Answers about streams that are not here, since the last batch.
    answered: usize,
    counters: Counters,
}

impl Receiving {
    /// Creates a half without streams.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self::with_reserve(config, Reserve::unbounded())
    }

    /// Creates a half without streams that shares the limit of `reserve` with others.
    #[must_use]
    pub fn with_reserve(config: Config, reserve: Reserve) -> Self {
        Self {
            capacity: config.first_capacity.min(config.capacity),
            reserved: Reserved::none_of(reserve),
            connects: Connects::new(config.connects),
            config,
            streams: BTreeMap::new(),
            opened: [0, 1],
            awaited: BTreeSet::new(),
            due: Due {
                streams: Vec::new(),
                first: Instant::FAR_FUTURE,
            },
            received: 0,
            consumed: 0,
            promised: 0,
            notices: VecDeque::new(),
            events: VecDeque::new(),
            answered: 0,
            counters: Counters::default(),
        }
    }

    /// Counts of refused datagrams.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Window of a new stream, for its [`Open`].
    #[must_use]
    pub fn first_credit(&self) -> u64 {
        self.config.window
    }

    /// Bytes that are stored, or are to be when what is missing before them arrives.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.received - self.consumed
    }

    /// Streams that are not closed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Returns whether no stream is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Processes a stream that this side opens.
    pub fn open(&mut self, id: StreamId, now: Instant) {
        self.note_opened(id);
        self.reserve();
        self.insert(id, now);
    }

    fn insert(&mut self, id: StreamId, now: Instant) {
        self.streams.insert(
            id,
            Incoming {
                next: 0,
                beyond: Ranges::default(),
                consumed: 0,
                highest: 0,
                window: self.config.window,
                promised: self.config.window,
                grown_to: 0,
                end: None,
                is_end_told: false,
                is_stopped: false,
                ack_due: None,
                last_ack: now,
                is_acked: false,
            },
        );
        self.announce();
    }

    /// Records that a number is used; those that were jumped over are awaited. Returns false when
    /// it was used before.
    fn note_opened(&mut self, id: StreamId) -> bool {
        let next = &mut self.opened[usize::from(id.is_of_hub())];
        if id.number() < *next {
            return self.awaited.remove(&id);
        }
        let room = MAX_AWAITED.saturating_sub(self.awaited.len()) as u32;
        let first = id.number().saturating_sub(2 * room).max(*next);
        let jumped = (first..id.number()).step_by(2).filter_map(StreamId::new);
        self.awaited.extend(jumped);
        *next = id.number().saturating_add(2);
        true
    }

    fn was_opened(&self, id: StreamId) -> bool {
        id.number() < self.opened[usize::from(id.is_of_hub())] && !self.awaited.contains(&id)
    }

    /// Returns the offset up to which bytes of a stream can be read.
    #[must_use]
    pub fn readable(&self, id: StreamId) -> Option<u64> {
        self.streams.get(&id).map(|stream| stream.next)
    }

    /// Processes a datagram with bytes of a stream; `body` is its whole body. Returns which bytes
    /// of it are to be stored.
    pub fn handle_bytes(&mut self, inner: &Inner, body: &[u8], now: Instant) -> Option<Accepted> {
        let (position, bytes) = Position::parse(inner, body)?;
        let id = position.id;
        let Some(stream) = self.streams.get_mut(&id) else {
            self.on_unknown(id);
            return None;
        };
        let offset = position.offset_near(stream.next);
        let end = offset.checked_add(bytes.len() as u64)?;
        let is_contradicting = match stream.end {
            Some(known) => end > known || (position.is_last && end != known),
            None => position.is_last && end < stream.highest,
        };
        if is_contradicting {
            self.counters.contradicting += 1;
            return None;
        }
        let more = end.saturating_sub(stream.highest);
        if end > stream.promised || self.received + more > self.promised {
            self.counters.beyond_credit += 1;
            return None;
        }
        let start = offset.max(stream.next);
        let is_new = stream.beyond.reaches(start) < end || (position.is_last && stream.end.is_none());
        if is_new && start > stream.next && stream.beyond.len() >= MAX_RANGES {
            self.counters.too_scattered += 1;
            return None;
        }
        self.due.note(id, stream, now + ACK_INTERVAL);
        if !is_new {
            self.counters.duplicates += 1;
            return None;
        }
        self.received += more;
        stream.highest = stream.highest.max(end);
        if position.is_last {
            stream.end = Some(end);
        }
        let before = stream.next;
        stream.beyond.insert(start..end);
        stream.next = stream.beyond.reaches(stream.next);
        stream.beyond.remove(0..stream.next);
        let has_advanced = stream.next > before;
        if has_advanced && !stream.is_stopped {
            self.notices.push_back(Notice::Readable(id));
        }
        if stream.is_complete() && !std::mem::replace(&mut stream.is_end_told, true) {
            self.notices.push_back(Notice::Ended(id));
        }
        if stream.is_complete() {
            self.due.note(id, stream, now);
        }
        if stream.is_stopped {
            let read = stream.next - stream.consumed;
            self.consume(id, read, now);
        }
        let skip = bytes.len() - (end - start) as usize;
        (start < end).then_some(Accepted {
            id,
            offset: start,
            skip: body.len() - bytes.len() + skip,
            len: (end - start) as usize,
        })
    }

    /// A datagram about a stream that is not here: a closed one is acknowledged whole. One that was
    /// never opened here was opened with the previous process this one, and is refused.
    fn on_unknown(&mut self, id: StreamId) {
        self.counters.unknown += 1;
        self.answered += 1;
        if self.answered > MAX_ANSWERED {
            return;
        }
        if self.was_opened(id) {
            let ack = Ack::new(id, 0, 0, true);
            self.events.push_back(Event::Send(Frame::Ack(ack)));
            return;
        }
        let (code, sent) = (reason::UNKNOWN, 0);
        for frame in [Frame::Stop { id, code }, Frame::Reset { id, code, sent }] {
            self.events.push_back(Event::Send(frame));
        }
    }

    /// Removes a stream whose connection was refused or reset, even if bytes are missing. What
    /// arrives later is acknowledged whole.
    pub fn forget(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.remove(&id) {
            self.consumed += stream.highest - stream.consumed;
            self.announce();
            self.release();
        }
    }

    /// Processes a frame of the peer.
    pub fn handle_frame(&mut self, frame: &Frame, now: Instant) {
        match frame {
            Frame::Open(open) => self.on_open(open, now),
            Frame::Reset { id, code, sent } => self.on_reset(*id, *code, *sent, now),
            Frame::Blocked { id, credit } => match self.streams.get_mut(id) {
                Some(stream) => {
                    stream.grow(*credit, self.config.max_window);
                    let window = stream.window;
                    self.due.note(*id, stream, now);
                    self.grow(window);
                    self.events.push_back(Event::Send(Frame::Session(self.promised)));
                }
                None => self.on_unknown(*id),
            },
            Frame::Answer { .. } | Frame::Ack(_) | Frame::Session(_) | Frame::Stop { .. } => {
                self.events.push_back(Event::Heard(*frame));
            }
        }
    }

    fn on_open(&mut self, open: &Open, now: Instant) {
        if self.was_opened(open.id) {
            if self.streams.contains_key(&open.id) {
                // Asked again: the sending half answers again.
                self.events.push_back(Event::Heard(Frame::Open(*open)));
            } else {
                self.on_unknown(open.id);
            }
            return;
        }
        if !self.admits(now) {
            let answer = Frame::Answer {
                id: open.id,
                outcome: hawser_wire::stream::Outcome::Exhausted,
                credit: 0,
            };
            self.events.push_back(Event::Send(answer));
            return;
        }
        self.note_opened(open.id);
        self.insert(open.id, now);
        self.events.push_back(Event::Heard(Frame::Open(*open)));
        self.notices.push_back(Notice::Open(*open));
    }

    /// Returns whether the bounds allow one more stream.
    fn admits(&mut self, now: Instant) -> bool {
        let counters = &mut self.counters;
        let refused = if !self.connects.take(now) {
            &mut counters.too_fast
        } else if self.streams.len() >= self.config.max_streams {
            &mut counters.too_many
        } else if !self.reserve() {
            &mut self.counters.no_memory
        } else {
            return true;
        };
        *refused += 1;
        false
    }

    /// Takes what the peer may send of the reserve; false where it has no room.
    fn reserve(&mut self) -> bool {
        if !self.streams.is_empty() {
            return true;
        }
        // Credit granted before the end of the last stream cannot be revoked.
        self.capacity = self.config.first_capacity.min(self.config.capacity);
        self.reserved.set(self.capacity.max(self.outstanding()))
    }

    /// Bytes that the peer may send, and those that are stored.
    fn outstanding(&self) -> u64 {
        self.promised.saturating_sub(self.consumed)
    }

    /// Returns the reserved memory when no stream is left.
    fn release(&mut self) {
        if self.streams.is_empty() {
            self.reserved.set(0);
        }
    }

    /// Makes the window of all streams twice the largest of one, as far as the reserve has room.
    fn grow(&mut self, window: u64) {
        let larger = (window * 2).min(self.config.capacity);
        if larger > self.capacity && self.reserved.set(larger.max(self.reserved.bytes())) {
            self.capacity = larger;
            self.announce();
        }
    }

    fn on_reset(&mut self, id: StreamId, code: u16, sent: u64, now: Instant) {
        let Some(stream) = self.streams.get_mut(&id) else {
            self.counters.unknown += 1;
            self.answered += 1;
            if self.answered <= MAX_ANSWERED {
                let ack = Ack::new(id, 0, 0, true);
                self.events.push_back(Event::Send(Frame::Ack(ack)));
            }
            return;
        };
        let sent = sent.clamp(stream.highest, stream.promised.max(stream.highest));
        self.received += sent - stream.highest;
        self.consumed += sent - stream.consumed;
        (stream.highest, stream.consumed, stream.next) = (sent, sent, sent);
        stream.end = Some(sent);
        stream.beyond = Ranges::default();
        self.due.note(id, stream, now);
        if !std::mem::replace(&mut stream.is_end_told, true) && !stream.is_stopped {
            self.notices.push_back(Notice::Reset(id, code));
        }
        self.announce();
    }

    /// Records that the driver has read `bytes` more of a stream and has freed their memory.
    pub fn consume(&mut self, id: StreamId, bytes: u64, now: Instant) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let bytes = bytes.min(stream.next - stream.consumed);
        stream.consumed += bytes;
        self.consumed += bytes;
        if stream.end.is_none() && stream.credit() - stream.promised >= stream.window / 4 {
            let at = (stream.last_ack + CREDIT_INTERVAL).max(now);
            self.due.note(id, stream, at);
        }
        self.announce();
        self.close(id);
    }

    /// Accepts no more data of a stream; its sender is notified of the reason.
    pub fn stop(&mut self, id: StreamId, code: u16, now: Instant) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.is_stopped = true;
        let unread = stream.next - stream.consumed;
        if !stream.is_complete() {
            self.events.push_back(Event::Send(Frame::Stop { id, code }));
        }
        self.consume(id, unread, now);
    }

    /// Raises the credit of all streams when a quarter of it was consumed.
    fn announce(&mut self) {
        let credit = self.consumed + self.capacity;
        if credit.saturating_sub(self.promised) >= self.capacity / 4 {
            self.promised = credit;
            self.events.push_back(Event::Send(Frame::Session(credit)));
        }
        let needed = self.capacity.max(self.outstanding());
        if needed < self.reserved.bytes() {
            self.reserved.set(needed);
        }
    }

    /// Forgets a stream of which all is read and acknowledged.
    fn close(&mut self, id: StreamId) {
        let is_over = self
            .streams
            .get(&id)
            .is_some_and(|stream| stream.is_acked && stream.end == Some(stream.consumed));
        if is_over {
            self.streams.remove(&id);
            self.release();
        }
    }

    /// Ends a batch: creates the acknowledgements that are due.
    pub fn flush(&mut self, now: Instant) {
        self.answered = 0;
        if self.due.first > now {
            return;
        }
        self.due.first = Instant::FAR_FUTURE;
        let mut at = 0;
        while let Some(id) = self.due.streams.get(at).copied() {
            let due = self.streams.get(&id).and_then(|stream| stream.ack_due);
            if let Some(due) = due.filter(|due| *due > now) {
                self.due.first = self.due.first.min(due);
                at += 1;
                continue;
            }
            self.due.streams.swap_remove(at);
            self.acknowledge(id, now);
        }
    }

    fn acknowledge(&mut self, id: StreamId, now: Instant) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.ack_due = None;
        stream.last_ack = now;
        stream.promised = stream.promised.max(stream.credit());
        stream.is_acked = stream.is_complete();
        let mut ack = Ack::new(id, stream.next, stream.promised, stream.is_acked);
        for range in stream.beyond.iter().take(ACK_RANGES) {
            ack.push(range.start, range.end);
        }
        self.events.push_back(Event::Send(Frame::Ack(ack)));
        self.close(id);
    }

    /// Returns a notice for the driver.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Returns an event for the sending half.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the time of the next [`Self::flush`], if no batch arrives before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.due.first < Instant::FAR_FUTURE).then_some(self.due.first)
    }
}

/// Streams with an acknowledgement due.
#[derive(Debug)]
struct Due {
    streams: Vec<StreamId>,
    /// Time before which none is due.
    first: Instant,
}

impl Due {
    /// Records that the acknowledgement of a stream is due at `at` at the latest.
    fn note(&mut self, id: StreamId, stream: &mut Incoming, at: Instant) {
        if stream.ack_due.is_none() {
            self.streams.push(id);
        }
        stream.ack_due = Some(stream.ack_due.map_or(at, |due| due.min(at)));
        self.first = self.first.min(at);
    }
}
