//! Streams in the sending direction: their turns among flows, their paths and their frames.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use hawser_units::{Duration, InnerBytes, Instant, PathId, Rate};
use hawser_wire::data::{Class, FRAMING};
use hawser_wire::stream::{Open, Outcome, STREAM_LEN, StreamId};

use super::choosing::Decision;
use super::preferring::in_use;
use super::{Body, Egress, Transmit, Turn};
use crate::flow::Flow;
use crate::path::Path;
use crate::scheduler::{Choice, Demand, default_of};
use crate::stream::{self, Chunk, SendingNotice};

/// Bytes of a stream that wait to be sent, at least.
///
/// Source: the first flights of several paths; a path's first window is ten packets and doubles.
const WAITING_MIN: u64 = 256 * 1024;
/// The same at most.
///
/// Source: `QUEUE_MAX` of a flow, `core/proto/src/egress/choosing.rs`.
const WAITING_MAX: u64 = 16 * 1024 * 1024;
/// Time that the newest byte waits beyond what the paths require.
///
/// Source: `TCP_NOTSENT_LOWAT` serves the same; 100 ms are what a person takes for at once.
const WAITING_TIME: Duration = Duration::from_millis(50);
/// Bytes of frames in one datagram: fits the smallest packets of IPv6 (RFC 8200 section 5).
const MAX_FRAMES: usize = 1_100;
/// A copy is worth sending where it arrives sooner by more than this.
///
/// Source: half of the margin of the resequencer; a path's delay is not known better.
const COPY_MARGIN: Duration = Duration::from_millis(5);
/// Timeout of streams where no path knows its own.
///
/// Source: RFC 9002 section 6.2.2, twice the initial round trip of 333 ms.
const UNKNOWN_TIMEOUT: Duration = Duration::from_millis(666);

/// Searches for overdue bytes in the shortest timeout of the paths.
///
/// Source: as for stalls (`CHECKS`, `core/proto/src/stream/sending.rs`): found a quarter late at
/// most.
const OVERDUE_CHECKS: u32 = 4;
/// The largest variation of a path's round trips that overdue bytes are allowed: those of a path
/// that falls to a fraction of its rate vary by seconds.
///
/// Source: the initial round trip of RFC 9002 section 6.2.2; no sweep.
const MAX_VARIATION: Duration = Duration::from_millis(333);

/// The flow whose turns a stream takes.
#[derive(Clone, Copy, Debug)]
struct Seat {
    /// Source and destination of its bytes.
    ends: (SocketAddr, SocketAddr),
    slot: Option<u16>,
}

/// State of all streams of an egress.
#[derive(Debug, Default)]
pub(super) struct Streaming {
    pub(super) sending: stream::Sending,
    seats: BTreeMap<StreamId, Seat>,
    /// The peer has said that it understands streams.
    pub(super) peer_takes_streams: bool,
    /// Frames of the datagram that was handed out last, and whom they are about.
    frames: Vec<u8>,
    about: Vec<Option<StreamId>>,
    timeout: Duration,
    /// Time of the next search for bytes that are overdue.
    overdue_at: Instant,
}

impl<B: Copy> Egress<B> {
    /// Returns whether the peer has said that it understands streams.
    #[must_use]
    pub fn takes_streams(&self) -> bool {
        self.streaming.peer_takes_streams
    }

    /// The streams.
    #[must_use]
    pub fn streams(&self) -> &stream::Sending {
        &self.streaming.sending
    }

    /// Asks the peer to open a connection and to make it a stream. The receiving half has to know
    /// of the stream first.
    pub fn open_stream(&mut self, open: Open, now: Instant) {
        self.used = now;
        self.add_seat(open.id, (open.source, open.destination));
        self.streaming.sending.open(open, now);
    }

    fn add_seat(&mut self, id: StreamId, ends: (SocketAddr, SocketAddr)) {
        self.streaming.seats.insert(id, Seat { ends, slot: None });
    }

    /// Answers the peer's request for a stream; `credit`: bytes that the receiving half takes.
    pub fn answer_stream(&mut self, open: &Open, outcome: Outcome, credit: u64, now: Instant) {
        self.used = now;
        self.add_seat(open.id, (open.destination, open.source));
        self.streaming.sending.answer(open, outcome, credit, now);
        self.settle_streams(now);
    }

    /// Takes note that the driver has `bytes` more of a stream.
    pub fn write_stream(&mut self, id: StreamId, bytes: u64, now: Instant) {
        self.used = now;
        self.streaming.sending.write(id, bytes);
        self.settle_streams(now);
    }

    /// Takes note that a stream ends with what was written.
    pub fn finish_stream(&mut self, id: StreamId, now: Instant) {
        self.streaming.sending.finish(id);
        self.settle_streams(now);
    }

    /// Gives a stream up; the peer learns the reason.
    pub fn reset_stream(&mut self, id: StreamId, code: u16, now: Instant) {
        self.streaming.sending.reset(id, code, now);
        self.settle_streams(now);
    }

    /// Forgets a stream that is over in both directions.
    pub fn close_stream(&mut self, id: StreamId, now: Instant) {
        self.streaming.sending.close(id);
        self.settle_streams(now);
        self.streaming.seats.remove(&id);
    }

    /// Bytes that the driver may write now of a stream: as many as the paths need to stay busy.
    /// More would only wait, and the window of the connection that feeds the stream would say
    /// nothing to its sender.
    #[must_use]
    pub fn stream_room(&self, id: StreamId) -> u64 {
        if !self.streaming.seats.contains_key(&id) {
            return 0;
        }
        let waiting = self.streaming.sending.waiting(id);
        self.waiting_limit().saturating_sub(waiting)
    }

    fn waiting_limit(&self) -> u64 {
        let rate = self
            .active()
            .map(|path| path.model().soon().rate().as_bps())
            .sum();
        let time = WAITING_TIME + self.delay_spread();
        let rate = self.limited(Rate::from_bps(rate));
        rate.bytes_in(time).0.clamp(WAITING_MIN, WAITING_MAX)
    }

    /// Difference between the delays of the nearest and the farthest path in use.
    fn delay_spread(&self) -> Duration {
        let delays = || self.active().filter_map(Path::relative_delay_us);
        match (delays().max(), delays().min()) {
            (Some(most), Some(least)) => {
                Duration::from_micros(u64::from(most.wrapping_sub(least).unsigned_abs()))
            }
            _ => Duration::ZERO,
        }
    }

    /// Returns a notice about a stream for the driver.
    pub fn poll_stream(&mut self) -> Option<SendingNotice> {
        self.streaming.sending.poll_notice()
    }

    /// Takes in what the receiving half tells of streams.
    pub fn handle_stream_event(&mut self, event: stream::Event, now: Instant) {
        self.streaming.sending.handle_event(event, now);
        self.settle_streams(now);
    }

    /// The frames of the datagram that was handed out last.
    #[must_use]
    pub fn stream_frames(&self) -> &[u8] {
        &self.streaming.frames
    }

    /// Lets the flows know how much of each stream may be sent.
    pub(super) fn settle_streams(&mut self, now: Instant) {
        while let Some(id) = self.streaming.sending.poll_changed() {
            let pending = self.streaming.sending.sendable(id);
            let Some(seat) = self.streaming.seats.get_mut(&id) else {
                continue;
            };
            let is_there = |slot: &u16| self.flows.get(*slot).is_some_and(|flow| flow.is_of_stream(id));
            let slot = seat.slot.filter(is_there);
            let slot = match slot {
                Some(slot) => Some(slot),
                None if pending > 0 => self.flows.slot_of_stream(id, seat.ends, now),
                None => None,
            };
            seat.slot = slot;
            if let Some(slot) = slot {
                self.flows.set_stream_pending(slot, pending, now);
            }
        }
    }

    /// Packets of a path are lost, or may be: their bytes go again.
    pub(super) fn on_missing_streams(
        &mut self,
        path: PathId,
        packet_numbers: std::ops::Range<u64>,
        now: Instant,
    ) {
        if self.streaming.seats.is_empty() {
            return;
        }
        self.streaming.sending.on_missing(path, packet_numbers, |_| {});
        self.settle_streams(now);
    }

    pub(super) fn handle_stream_timeout(&mut self, now: Instant) {
        if self.streaming.seats.is_empty() {
            return;
        }
        let timeouts = self.active().map(|path| path.model().timeout());
        self.streaming.timeout = timeouts.max().unwrap_or(UNKNOWN_TIMEOUT);
        self.streaming.sending.handle_timeout(self.streaming.timeout, now);
        self.handle_overdue(now);
        self.settle_streams(now);
    }

    /// Has bytes sent again that a path delivers later than expected by what its round trips vary,
    /// and by the time in which another path would have reported them.
    fn handle_overdue(&mut self, now: Instant) {
        if now < self.streaming.overdue_at {
            return;
        }
        let times = |path: &Path| (path.id, path.model().timeout(), path.model().round_trip());
        let times: Vec<_> = self.active().map(times).collect();
        let soonest = times.iter().map(|(_, timeout, _)| *timeout).min();
        let soonest = soonest.unwrap_or(UNKNOWN_TIMEOUT);
        self.streaming.overdue_at = now + soonest / OVERDUE_CHECKS;
        if times.len() < 2 {
            return;
        }
        for (path, timeout, round_trip) in times {
            let allowed = soonest + timeout.saturating_sub(round_trip).min(MAX_VARIATION);
            self.streaming.sending.handle_overdue(path, now - allowed);
        }
    }

    pub(super) fn stream_due(&self) -> Instant {
        if self.streaming.seats.is_empty() {
            return Instant::FAR_FUTURE;
        }
        let due = self.streaming.sending.poll_timeout(self.streaming.timeout);
        if due == Instant::FAR_FUTURE {
            return due;
        }
        due.min(self.streaming.overdue_at)
    }

    /// Frames that wait go by the path that delivers them first.
    pub(super) fn poll_stream_frames(&mut self, now: Instant) -> Option<Transmit<B>> {
        if !self.streaming.sending.owes_frames() {
            return None;
        }
        self.build_views(MAX_FRAMES as u32, true, now);
        let view = self
            .views
            .iter()
            .enumerate()
            .min_by_key(|(_, view)| view.arrival(now));
        let (at, arrival) = view.map(|(at, view)| (at, view.arrival(now)))?;
        let path = &mut self.lanes[self.view_lanes[at]].path;
        let Streaming {
            sending,
            frames,
            about,
            ..
        } = &mut self.streaming;
        sending.write_frames(frames, MAX_FRAMES, about);
        let bytes = (frames.len() + FRAMING) as u64;
        let packet_number = path.on_data_sent(bytes, false, now);
        let id = path.id;
        sending.on_frames_sent((id, packet_number), about, arrival);
        self.charge(bytes, now);
        Some(Transmit {
            path: id,
            packet_number,
            body: Body::StreamFrames,
        })
    }

    /// Bytes of the largest inner packet that all paths in use take.
    fn common_mtu(&self) -> u32 {
        let mtus = in_use(&self.lanes).map(|(_, lane)| u32::from(lane.path.mtu()));
        mtus.min().unwrap_or(0)
    }

    /// Decides about the bytes of a stream whose turn it is.
    pub(super) fn choose_for_stream(&mut self, slot: u16, target: Duration, now: Instant) -> Decision {
        let Some(flow) = self.flows.get(slot) else {
            return Decision::Again;
        };
        let (class, pending) = (flow.class, flow.backlog());
        let len = self.common_mtu();
        self.build_views(len, false, now);
        if class == Class::Bulk {
            self.leave_out_dear(u64::from(len) + FRAMING as u64, now);
        }
        self.spare_sooner_flows(slot, class, now);
        let more_at = self.leave_out_unwanted(class, now, target, now);
        if self.views.is_empty() || len == 0 {
            return Decision::Wait(Instant::FAR_FUTURE);
        }
        let is_default = self.schedulers[class as usize].name() == default_of(class);
        let is_flowing = pending >= self.waiting_limit() / 4;
        if class == Class::Bulk && is_default && is_flowing {
            let Some(view) = stream::choose(&self.views, now) else {
                let ready = self.views.iter().map(|view| view.ready_at).filter(|at| *at > now);
                return Decision::Wait(ready.min().unwrap_or(Instant::FAR_FUTURE));
            };
            let fits = self.views[view].window.0 / u64::from(len);
            return Decision::Send {
                lane: self.view_lanes[view],
                count: fits.clamp(1, 64) as u16,
            };
        }
        let demand = Demand {
            flow: slot,
            len,
            packets: u16::try_from(pending.div_ceil(u64::from(len)))
                .unwrap_or(u16::MAX)
                .max(1),
            sustained: class == Class::Bulk,
            backlog: InnerBytes(self.flows.backlog_until(slot)),
            throughput: self.throughput.rate(now),
            layer: None,
            is_call: false,
        };
        match self.schedulers[class as usize].choose(&demand, &self.views, now) {
            Choice::Send { path, packets } => match self.views.get(path) {
                Some(view) => Decision::Send {
                    lane: self.view_lanes[path],
                    count: packets
                        .min((view.window.0 / u64::from(len)).clamp(1, 64) as u16)
                        .max(1),
                },
                None => Decision::Wait(Instant::FAR_FUTURE),
            },
            Choice::Duplicate(mask) if mask != 0 => Decision::Send {
                lane: self.view_lanes[mask.trailing_zeros() as usize],
                count: 1,
            },
            Choice::Wait(until) => Decision::Wait(until.min(more_at.unwrap_or(until))),
            Choice::Duplicate(_) | Choice::Drop => Decision::Wait(Instant::FAR_FUTURE),
        }
    }

    /// Sends at most `count` packets of a stream.
    pub(super) fn emit_stream(
        &mut self,
        Turn { skip, slot }: Turn,
        id: StreamId,
        (lane, count): (usize, u16),
        now: Instant,
    ) -> Option<Transmit<B>> {
        let room = self.piece_room(slot, lane, now);
        let count = if room.is_some() { 1 } else { count };
        let mtu = self.lanes[lane].path.mtu().min(room.unwrap_or(u16::MAX));
        let each = usize::from(mtu).saturating_sub(STREAM_LEN) as u16;
        let max = u64::from(each) * u64::from(count);
        let chunk = self.streaming.sending.next(id, max);
        let Some(chunk) = chunk else {
            self.flows.set_stream_pending(slot, 0, now);
            self.flows.end_turn(skip);
            return None;
        };
        let transmit = self.send_chunk(&chunk, (slot, lane, each), now);
        self.settle_streams(now);
        self.flows.end_turn(skip);
        Some(transmit)
    }

    fn send_chunk(
        &mut self,
        chunk: &Chunk,
        (slot, lane, each): (u16, usize, u16),
        now: Instant,
    ) -> Transmit<B> {
        let len = chunk.range.end - chunk.range.start;
        let count = (len.div_ceil(u64::from(each.max(1)))).max(1) as u16;
        let view = self.view_lanes.iter().position(|at| *at == lane);
        let arrival = view.map_or(now, |view| self.views[view].arrival(now));
        let path = &mut self.lanes[lane].path;
        let mut packet_number = 0;
        for step in 0..count {
            let part = (len - u64::from(step) * u64::from(each)).min(u64::from(each));
            let number = path.on_data_sent(part + (STREAM_LEN + FRAMING) as u64, false, now);
            if step == 0 {
                packet_number = number;
            }
        }
        let path = path.id;
        if self.gives_way_to_calls(slot) {
            self.lanes[lane]
                .owner
                .on_sent(packet_number + u64::from(count) - 1);
        }
        let udp = len + u64::from(count) * (STREAM_LEN + FRAMING) as u64;
        self.throughput.add(udp, now);
        self.charge(udp, now);
        let sent = (path, packet_number, count);
        let is_last = self.streaming.sending.on_sent(chunk, sent, each, (arrival, now));
        self.flows.on_stream_sent(slot, (count, len), path.0, now);
        self.streaming.sending.note_changed(chunk.id);
        let class = self
            .flows
            .get(slot)
            .map_or(Class::Bulk, |flow: &Flow<B>| flow.class);
        Transmit {
            path,
            packet_number,
            body: Body::Stream {
                id: chunk.id,
                offset: chunk.range.start,
                len: len as u32,
                each,
                count,
                class,
                is_last,
                is_repeated: chunk.is_repeated,
            },
        }
    }

    /// A path that has nothing else to do copies what others deliver later.
    pub(super) fn poll_copy(&mut self, now: Instant) -> Option<Transmit<B>> {
        if !self.streaming.sending.may_copy() {
            return None;
        }
        let len = self.common_mtu();
        self.build_views(len, false, now);
        let ready = (0..self.views.len()).filter(|at| self.views[*at].is_ready(now));
        let view = ready.min_by_key(|at| self.views[*at].arrival(now))?;
        let (lane, window) = (self.view_lanes[view], self.views[view].window.0);
        let arrival = self.views[view].arrival(now) + COPY_MARGIN;
        let path = &self.lanes[lane].path;
        let each = path.mtu().saturating_sub(STREAM_LEN as u16);
        let max = u64::from(each) * (window / u64::from(len.max(1))).clamp(1, 64);
        let id = path.id;
        let chunk = self.streaming.sending.copy_later_than(id, arrival, max)?;
        let slot = self.streaming.seats.get(&chunk.id)?.slot?;
        let transmit = self.send_chunk(&chunk, (slot, lane, each), now);
        self.settle_streams(now);
        Some(transmit)
    }
}
