//! Streams in the sending direction: their turns among flows, their paths and their frames.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use hawser_units::{Duration, InnerBytes, Instant, PathId, Rate};
use hawser_wire::data::{Class, FRAMING};
use hawser_wire::stream::{Open, Outcome, STREAM_LEN, StreamId};

use super::choosing::{Decision, Excess};
use super::preferring::in_use;
use super::turns::Turn;
use super::{Body, Egress, Transmit};
use crate::checkpoint::{BadCheckpoint, SendingStreams};
use crate::flow::Flow;
use crate::path::Path;
use crate::scheduler::{Choice, Demand, default_of};
use crate::stream::{self, Chunk, SendingNotice};

/// Bytes of a stream that wait to be sent, at least.
///
/// Source: the first flights of several paths; a path's first window is ten packets and doubles.
const WAITING_MIN: u64 = 256 * 1024;
/// Maximum number of bytes of a stream that wait to be sent.
///
/// Source: `QUEUE_MAX` of a flow, `core/proto/src/egress/choosing.rs`.
const WAITING_MAX: u64 = 16 * 1024 * 1024;
/// Time that the newest byte waits beyond what the paths require.
///
/// Source: `TCP_NOTSENT_LOWAT` serves the same; 100 ms are what a person takes for at once.
const WAITING_TIME: Duration = Duration::from_millis(50);
/// Maximum size of the frames in one datagram, where all paths take as much. Units: bytes.
///
/// Source: fits the smallest packets of IPv6 (RFC 8200 section 5).
const MAX_FRAMES: u32 = 1_100;
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
    /// The peer has reported that it understands streams.
    pub(super) peer_takes_streams: bool,
    /// Frames of the datagram that was handed out last, and whom they are about.
    frames: Vec<u8>,
    about: Vec<Option<StreamId>>,
    timeout: Duration,
    /// No path is active.
    is_unreachable: bool,
    /// Time of the next search for bytes that are overdue.
    overdue_at: Instant,
}

impl Streaming {
    pub(super) fn checkpoint(&self) -> SendingStreams {
        let ends = |id| self.seats.get(&id).map(|seat| seat.ends);
        SendingStreams {
            peer_takes_streams: self.peer_takes_streams,
            ..self.sending.checkpoint(ends)
        }
    }

    pub(super) fn restore(saved: &SendingStreams, now: Instant) -> Result<Self, BadCheckpoint> {
        let sending = stream::Sending::restore(saved, now)?;
        let seat = |ends| Seat { ends, slot: None };
        let seats = saved.all.iter();
        let seats = seats.filter_map(|stream| Some((StreamId::new(stream.id)?, seat(stream.ends))));
        Ok(Self {
            seats: seats.collect(),
            sending,
            peer_takes_streams: saved.peer_takes_streams,
            ..Self::default()
        })
    }
}

impl<B: Copy> Egress<B> {
    /// Returns whether the peer has reported that it understands streams.
    #[must_use]
    pub fn takes_streams(&self) -> bool {
        self.streaming.peer_takes_streams
    }

    /// The streams.
    #[must_use]
    pub fn streams(&self) -> &stream::Sending {
        &self.streaming.sending
    }

    /// Requests that the peer opens a connection, whose bytes are sent as a stream. The receiving
    /// half has to know of the stream first.
    pub fn open_stream(&mut self, open: Open, now: Instant) {
        self.used = now;
        self.add_seat(open.id, (open.source, open.destination));
        self.streaming.sending.open(open, now);
    }

    fn add_seat(&mut self, id: StreamId, ends: (SocketAddr, SocketAddr)) {
        self.streaming.seats.insert(id, Seat { ends, slot: None });
    }

    /// Answers the peer's request for a stream; `credit`: bytes that the receiving half accepts.
    pub fn answer_stream(&mut self, open: &Open, outcome: Outcome, credit: u64, now: Instant) {
        self.used = now;
        self.add_seat(open.id, (open.destination, open.source));
        self.streaming.sending.answer(open, outcome, credit, now);
        self.settle_streams(now);
    }

    /// Records that the driver has `bytes` more of a stream.
    pub fn write_stream(&mut self, id: StreamId, bytes: u64, now: Instant) {
        self.used = now;
        self.streaming.sending.write(id, bytes);
        self.settle_streams(now);
    }

    /// Records that a stream ends with what was written.
    pub fn finish_stream(&mut self, id: StreamId, now: Instant) {
        self.streaming.sending.finish(id);
        self.settle_streams(now);
    }

    /// Resets a stream; the peer is notified of the reason.
    pub fn reset_stream(&mut self, id: StreamId, code: u16, now: Instant) {
        self.streaming.sending.reset(id, code, now);
        self.settle_streams(now);
    }

    /// Removes a stream that has ended in both directions.
    pub fn close_stream(&mut self, id: StreamId, now: Instant) {
        self.streaming.sending.close(id);
        self.settle_streams(now);
        self.streaming.seats.remove(&id);
    }

    /// Returns the number of bytes that the driver may write now to a stream: as many as the paths
    /// need to stay busy, and none while no path is active. More bytes would only wait, and the
    /// window of the connection that feeds the stream would not slow its sender.
    #[must_use]
    pub fn stream_room(&self, id: StreamId) -> u64 {
        if !self.streaming.seats.contains_key(&id) || self.active().next().is_none() {
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

    /// Processes an event of streams from the receiving half.
    pub fn handle_stream_event(&mut self, event: stream::Event, now: Instant) {
        self.streaming.sending.handle_event(event, now);
        self.settle_streams(now);
    }

    /// Returns the frames of the datagram that was returned last.
    #[must_use]
    pub fn stream_frames(&self) -> &[u8] {
        &self.streaming.frames
    }

    /// Updates in the flows how much of each stream may be sent.
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

    /// Marks the bytes of packets of a path that are lost, or may be lost, for retransmission.
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
        let Some(timeout) = timeouts.max() else {
            // The peer may be away for hours, which costs nothing.
            self.streaming.is_unreachable = true;
            return self.settle_streams(now);
        };
        if std::mem::take(&mut self.streaming.is_unreachable) {
            self.streaming.sending.handle_reachable();
        }
        self.streaming.timeout = timeout;
        self.streaming.sending.handle_timeout(self.streaming.timeout, now);
        self.handle_overdue(now);
        self.settle_streams(now);
    }

    /// Marks bytes to be sent again that a path delivers later than expected by more than the
    /// variation of its round trips and the time in which another path would have reported them.
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
        if self.streaming.seats.is_empty() || self.active().next().is_none() {
            return Instant::FAR_FUTURE;
        }
        let due = self.streaming.sending.poll_timeout(self.streaming.timeout);
        if due == Instant::FAR_FUTURE {
            return due;
        }
        due.min(self.streaming.overdue_at)
    }

    /// Sends waiting frames on the path that delivers them first.
    pub(super) fn poll_stream_frames(&mut self, now: Instant) -> Option<Transmit<B>> {
        if !self.streaming.sending.owes_frames() {
            return None;
        }
        // A path may take less, and frames must not wait for one that takes more.
        let max = self.common_mtu().min(MAX_FRAMES);
        self.build_views(max, Excess::Any, now);
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
        sending.write_frames(frames, max as usize, about);
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

    /// Decides on which path the bytes of a stream are sent, when it is the stream's turn.
    pub(super) fn choose_for_stream(&mut self, slot: u16, target: Duration, now: Instant) -> Decision {
        let Some(flow) = self.flows.get(slot) else {
            return Decision::Again;
        };
        let (class, pending) = (flow.class, flow.backlog());
        let len = self.common_mtu();
        self.build_views(len, Excess::None, now);
        if class == Class::Bulk {
            self.leave_out_expensive(u64::from(len) + FRAMING as u64, now);
        }
        self.leave_to_realtime(class, now);
        self.spare_sooner_flows(slot, class, now);
        let since = self.flows.get(slot).map_or(now, Flow::backlogged_since);
        let more_at = self.leave_out_unwanted(class, since, target, now);
        if self.views.is_empty() || len == 0 {
            return Decision::Wait(Instant::FAR_FUTURE);
        }
        let is_default = self.schedulers[class as usize].name() == default_of(class);
        let is_flowing = pending >= self.waiting_limit() / 4;
        if class == Class::Bulk && is_default && is_flowing {
            let Some(view) = stream::choose(&self.views, now) else {
                let ready = self.views.iter().map(|view| view.ready_at).filter(|at| *at > now);
                return Decision::Wait(ready.chain(more_at).min().unwrap_or(Instant::FAR_FUTURE));
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
        if self.yields_to_calls(slot) {
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

    /// Sends copies of bytes that other paths deliver later, on a path that has nothing else to
    /// send.
    pub(super) fn poll_copy(&mut self, now: Instant) -> Option<Transmit<B>> {
        if !self.streaming.sending.may_copy() {
            return None;
        }
        let len = self.common_mtu();
        self.build_views(len, Excess::None, now);
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
