//! The sending end of a connection.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant};

use super::congestion::{HyStart, Round, Saved, Window};
use super::rtt::RoundTrip;
use super::{Config, Opening, Ranges, Recovery};
use crate::packet::{Segment, flag};

mod loss;
mod opening;
mod size;
mod tail;

/// Counters of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Data segments sent, including retransmissions.
    pub segments: u64,
    /// Segments retransmitted.
    pub retransmitted: u64,
    /// Reductions of the window because of losses.
    pub reductions: u64,
    /// Reductions of the window because of ECN marks.
    pub marks: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Reductions that were undone.
    pub undone: u64,
    /// Duplicate acknowledgements.
    pub duplicate_acks: u64,
}

impl Statistics {
    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            segments: self.segments + other.segments,
            retransmitted: self.retransmitted + other.retransmitted,
            reductions: self.reductions + other.reductions,
            marks: self.marks + other.marks,
            timeouts: self.timeouts + other.timeouts,
            undone: self.undone + other.undone,
            duplicate_acks: self.duplicate_acks + other.duplicate_acks,
        }
    }
}

/// Sender of a stream of bytes without content.
///
/// Drive it with [`Self::handle_segment`] for received segments, and [`Self::handle_timeout`] when
/// [`Self::poll_timeout`] is past; then send the segments of [`Self::poll_transmit`] (openings and
/// retransmissions) and, while [`Self::has_room`], new data by [`Self::send`].
///
/// Cost: O(1) per segment, amortised; one record of 32 bytes per segment in flight.
#[derive(Clone, Debug)]
pub struct Sender {
    config: Config,
    state: State,
    opening_due: Option<Instant>,
    opening_sent: Instant,
    owes_synack: bool,
    records: VecDeque<Record>,
    una: u64,
    next: u64,
    right_edge: u64,
    /// Estimated bytes in flight.
    in_flight: u64,
    /// Bytes to retransmit.
    to_retransmit: u64,
    retransmission_hint: u64,
    sacked: Ranges,
    sacked_bytes: u64,
    window: Window,
    hystart: HyStart,
    round_trip: RoundTrip,
    episode: Option<Episode>,
    /// Highest byte sent when the last loss episode started.
    recover: u64,
    duplicate_acks: u32,
    timer: Option<Instant>,
    tail: tail::Tail,
    rack: loss::Rack,
    undo: Option<Undo>,
    owes_cwr: bool,
    cwr_until: u64,
    is_limited: bool,
    /// New segments since the last acknowledgement.
    burst: u32,
    last_sent: Instant,
    /// Bytes acknowledged since the last loss, and between the last two losses.
    between_losses: (u64, u64),
    statistics: Statistics,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Opening,
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Episode {
    FastRecovery,
    AfterTimeout,
}

#[derive(Clone, Copy, Debug)]
struct Undo {
    saved: Saved,
    /// Retransmissions that may still turn out to be spurious.
    retransmissions: u32,
    first_retransmission: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    sequence: u64,
    data: u64,
    sent: Instant,
    len: u16,
    is_sacked: bool,
    is_lost: bool,
    is_repeated: bool,
}

impl Sender {
    /// Creates a sender that is closed, or open if the configuration says so.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            state: match config.opening {
                Opening::Open => State::Open,
                Opening::BySender | Opening::ByReceiver => State::Closed,
            },
            opening_due: None,
            opening_sent: Instant::ZERO,
            owes_synack: false,
            records: VecDeque::new(),
            una: 0,
            next: 0,
            right_edge: u64::from(config.receive_window),
            in_flight: 0,
            to_retransmit: 0,
            retransmission_hint: 0,
            sacked: Ranges::default(),
            sacked_bytes: 0,
            window: Self::first_window(&config),
            hystart: HyStart::default(),
            round_trip: RoundTrip::new(config.rto),
            episode: None,
            recover: 0,
            duplicate_acks: 0,
            timer: None,
            tail: tail::Tail::default(),
            rack: loss::Rack::default(),
            undo: None,
            owes_cwr: false,
            cwr_until: 0,
            is_limited: false,
            burst: 0,
            last_sent: Instant::ZERO,
            between_losses: (0, 0),
            statistics: Statistics::default(),
            config,
        }
    }

    fn first_window(config: &Config) -> Window {
        Window::new(config.congestion, config.initial_window, config.initial_threshold)
            .with_min_window(config.least_window)
    }

    /// Opens the connection, if the sender does that.
    pub fn open(&mut self, now: Instant) {
        if self.state == State::Closed && self.config.opening == Opening::BySender {
            self.state = State::Opening;
            self.opening_due = Some(now);
        }
    }

    /// Returns whether data may be sent.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Returns the counters.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Returns the congestion window. Units: segments.
    #[must_use]
    pub fn window(&self) -> f64 {
        self.window.size()
    }

    /// Returns the threshold of slow start. Units: segments.
    #[must_use]
    pub fn threshold(&self) -> f64 {
        self.window.threshold()
    }

    /// Returns the smoothed round-trip time; zero before the first measurement.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.round_trip.smoothed()
    }

    /// Returns the present retransmission timeout, back-off included.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.round_trip.timeout()
    }

    /// Returns the number of acknowledged bytes.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.una
    }

    /// Returns the number of bytes sent at least once.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.next
    }

    /// Returns the estimated bytes in flight.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Returns the bytes acknowledged since the last loss, or between the last two losses if that
    /// is more.
    ///
    /// Source: OLIA's `l_r` (draft-khalili-mptcp-congestion-control-05 section 3).
    #[must_use]
    pub fn loss_distance(&self) -> u64 {
        self.between_losses.0.max(self.between_losses.1)
    }

    /// Returns when the next probe or timeout is due while data is in flight.
    #[must_use]
    pub fn timer_due(&self) -> Option<Instant> {
        self.tail.due.or(self.timer)
    }

    /// Returns whether everything sent is acknowledged.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns whether data that were in flight at a timeout are still unacknowledged.
    #[must_use]
    pub fn is_after_timeout(&self) -> bool {
        self.episode == Some(Episode::AfterTimeout)
    }

    /// Returns the number of consecutive timeouts without progress.
    #[must_use]
    pub fn backoff(&self) -> u32 {
        self.round_trip.backoff()
    }

    /// Sets the output of a coupling of subflows: growth per acknowledged segment, and the share of
    /// the window that remains after a loss.
    pub fn couple(&mut self, increase: f64, left_after_loss: f64) {
        self.window.couple(increase, left_after_loss);
    }

    /// Halves the window without a loss, because the connection's receiver waits for this subflow.
    ///
    /// Source: Raiciu et al. 2012 section 4.2 (penalising slow subflows).
    pub fn penalise(&mut self) {
        self.window.on_loss();
    }

    /// Restarts after an outage: everything in flight is lost, and the window is the initial one.
    pub fn restart(&mut self, now: Instant) {
        self.window = Self::first_window(&self.config);
        self.hystart = HyStart::default();
        self.round_trip.forgive();
        self.undo = None;
        self.is_limited = false;
        if self.opening_due.is_some() {
            self.opening_due = Some(now);
        }
        if !self.records.is_empty() {
            self.begin_slow_start();
            self.timer = Some(self.round_trip.deadline(now));
        }
    }

    /// Returns the unacknowledged parts of the data stream, as `(data, len)`.
    pub fn outstanding(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.records
            .iter()
            .filter(|record| !record.is_sacked)
            .map(|record| (record.data, u64::from(record.len)))
    }

    /// Handles a segment from the other end.
    pub fn handle_segment(&mut self, segment: &Segment, now: Instant) {
        if self.state != State::Open {
            self.on_opening(segment, now);
        } else if segment.has(flag::SYN) {
            // The earlier answer was lost.
            self.owes_synack = self.config.opening == Opening::ByReceiver && self.next == 0;
        }
        if self.state == State::Open && segment.has(flag::ACK) && !segment.has(flag::SYN) {
            self.on_ack(segment, now);
        }
    }

    /// Handles the passing of time.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.rack_due().is_some_and(|due| due <= now) {
            self.detect_losses(now);
        }
        if self.on_tail_due(now) {
            return;
        }
        if self.timer.is_some_and(|due| due <= now) {
            self.on_timeout(now);
        }
    }

    /// Returns the latest time of the next call of [`Self::handle_timeout`] or
    /// [`Self::poll_transmit`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.opening_due, self.timer, self.rack_due(), self.tail.due]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns the next segment of the opening, or the next retransmission.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Segment> {
        if self.state != State::Open || self.owes_synack {
            return self.poll_opening(now);
        }
        if self.tail.is_owed && !self.is_limited {
            return self.repeat_last(now);
        }
        if self.to_retransmit == 0 {
            return None;
        }
        self.retransmission(now)
    }

    /// Returns whether windows and retransmissions permit `len` new bytes.
    pub fn has_room(&mut self, len: u16) -> bool {
        if self.state != State::Open || self.to_retransmit > 0 {
            return false;
        }
        if self.next + u64::from(len) > self.right_edge {
            return false;
        }
        if self.tail.is_owed {
            return true;
        }
        let least = u32::from(self.config.least_burst).max(1);
        let begins_another =
            self.burst >= least && self.burst.is_multiple_of(least) && self.episode.is_none();
        let together = u64::from(if begins_another { least } else { 1 });
        let has_room = self.in_flight + u64::from(len) * together <= self.window_bytes() + self.extra_bytes();
        self.is_limited |= !has_room;
        has_room
    }

    /// Creates the next segment of new data: `len` bytes at `data` of the data stream.
    pub fn send(&mut self, len: u16, data: u64, now: Instant) -> Segment {
        if self.records.is_empty() {
            let is_idle = self.next > 0 && now.since(self.last_sent) > self.round_trip.timeout();
            if is_idle && self.config.restarts_after_idle {
                self.window.on_idle(self.config.initial_window);
            }
            self.timer = Some(self.round_trip.deadline(now));
        }
        let record = Record {
            sequence: self.next,
            data,
            sent: now,
            len,
            is_sacked: false,
            is_lost: false,
            is_repeated: false,
        };
        self.next += u64::from(len);
        self.in_flight += u64::from(len);
        self.burst += 1;
        self.last_sent = now;
        self.records.push_back(record);
        self.statistics.segments += 1;
        self.on_new_data(now);
        self.segment(&record)
    }

    fn segment(&mut self, record: &Record) -> Segment {
        let cwr = if std::mem::take(&mut self.owes_cwr) {
            flag::CWR
        } else {
            0
        };
        Segment {
            sequence: record.sequence,
            data: record.data,
            payload: record.len,
            flags: flag::ACK | cwr,
            ..Segment::default()
        }
    }

    fn window_bytes(&self) -> u64 {
        (self.window.size() as u64).max(1) * u64::from(self.config.segment)
    }

    /// Returns the bytes that limited transmit permits. With selective acknowledgements there are
    /// none, since acknowledged segments are no longer in flight.
    fn extra_bytes(&self) -> u64 {
        let is_early = self.config.limited_transmit && self.episode.is_none();
        if is_early && !self.config.recovery.is_selective() {
            u64::from(self.duplicate_acks.min(2)) * u64::from(self.config.segment)
        } else {
            0
        }
    }

    fn measure(&mut self, sample: Duration) {
        self.round_trip.measure(sample);
        self.round_trip.forgive();
    }

    fn on_ack(&mut self, segment: &Segment, now: Instant) {
        if segment.ack < self.una {
            return;
        }
        let edge = segment.ack + u64::from(segment.window);
        let is_window_update = edge != self.right_edge;
        self.right_edge = self.right_edge.max(edge);
        let had_limit = std::mem::take(&mut self.is_limited);
        self.burst = 0;
        let mut delivered = Delivered {
            echo: segment.echo,
            ..Delivered::default()
        };
        if self.config.recovery.is_selective() {
            self.read_sack(segment, now, &mut delivered);
        }
        let advanced = segment.ack - self.una;
        if advanced > 0 {
            self.advance(segment.ack, now, &mut delivered);
        } else if !self.records.is_empty() && segment.payload == 0 && !is_window_update {
            self.on_duplicate_ack();
        }
        if segment.duplicate > 0 {
            self.on_needless_retransmission();
        }
        self.judge_tail(segment);
        if let Some(sample) = delivered.round_trip {
            self.measure(sample);
            self.watch_slow_start(sample, now);
        } else if advanced > 0 && segment.echo > Instant::ZERO {
            // Without another measurement, the timestamp gives one (RFC 7323 section 4; Linux
            // `tcp_ack_update_rtt`).
            self.measure(now.since(segment.echo));
        }
        if advanced > 0 && self.episode.is_some() {
            self.on_progress(segment, advanced);
        }
        self.detect_losses(now);
        if segment.has(flag::ECE) {
            self.on_mark();
        }
        if advanced > 0 && had_limit && self.episode != Some(Episode::FastRecovery) {
            let acked = if self.config.counts_bytes {
                delivered.bytes as f64 / f64::from(self.config.segment)
            } else {
                1.0
            };
            if self.una > self.cwr_until {
                self.window.on_ack(acked, self.round_trip.min(), now);
            }
        }
    }

    fn watch_slow_start(&mut self, sample: Duration, now: Instant) {
        if !self.config.hystart || !self.window.is_in_slow_start() {
            return;
        }
        let round = Round {
            sample,
            min: self.round_trip.min(),
            acked: self.una,
            next: self.next,
        };
        if self.hystart.is_enough(round, self.window.size(), now) {
            self.window.leave_slow_start();
        }
    }

    fn advance(&mut self, ack: u64, now: Instant, delivered: &mut Delivered) {
        self.between_losses.0 += ack - self.una;
        self.split(ack);
        let sampled = delivered.round_trip;
        let (mut segments, mut has_retransmitted) = (0_u32, false);
        while let Some(record) = self
            .records
            .front()
            .filter(|record| record.sequence + u64::from(record.len) <= ack)
            .copied()
        {
            self.records.pop_front();
            segments += 1;
            if record.is_sacked {
                self.sacked_bytes -= u64::from(record.len);
                continue;
            }
            has_retransmitted |= record.is_repeated;
            self.leave_flight(&record);
            if record.is_repeated && was_sent_before(delivered.echo, record.sent) {
                // The delivered segment was sent before the retransmission. Source: Linux
                // `tcp_skb_spurious_retrans`.
                delivered.bytes += u64::from(record.len);
                continue;
            }
            self.on_delivered(&record, now, delivered);
        }
        if has_retransmitted && self.config.recovery.is_selective() {
            // Segments after the hole without selective acknowledgement may have waited for the
            // retransmission, for any time.
            delivered.round_trip = sampled;
        }
        self.una = ack;
        self.sacked.advance(ack);
        if !self.config.recovery.is_selective() {
            // Each duplicate acknowledgement stood for a segment that is now acknowledged.
            self.duplicate_acks = if self.episode.is_some() {
                self.duplicate_acks.saturating_sub(segments.saturating_sub(1))
            } else {
                0
            };
            self.recount_reno();
        }
        self.round_trip.forgive();
        self.timer = (!self.records.is_empty()).then(|| self.round_trip.deadline(now));
        self.arm_tail(now);
    }

    /// Splits a segment at `at`, if that lies within it: a sender of several segments at once may
    /// split them elsewhere.
    ///
    /// Source: Linux `tcp_match_skb_to_sack`, `tcp_trim_head`.
    fn split(&mut self, at: u64) {
        let index = self.records.partition_point(|record| record.sequence < at);
        let Some(front) = index
            .checked_sub(1)
            .and_then(|before| self.records.get_mut(before))
        else {
            return;
        };
        let end = front.sequence + u64::from(front.len);
        if end <= at {
            return;
        }
        let begin = front.sequence;
        let kept = at - begin;
        let back = Record {
            sequence: at,
            data: front.data + kept,
            len: (end - at) as u16,
            ..*front
        };
        front.len = kept as u16;
        if back.is_repeated {
            self.rack.on_split(begin, at);
        }
        self.records.insert(index, back);
    }

    fn leave_flight(&mut self, record: &Record) {
        let len = u64::from(record.len);
        if record.is_lost {
            self.to_retransmit -= len;
        } else {
            self.in_flight = self.in_flight.saturating_sub(len);
        }
    }

    fn on_timeout(&mut self, now: Instant) {
        if self.records.is_empty() {
            self.timer = None;
            return;
        }
        self.statistics.timeouts += 1;
        let is_first = self.round_trip.backoff() == 0 && self.episode != Some(Episode::AfterTimeout);
        if is_first {
            self.begin_undo();
            self.note_loss();
        }
        self.window.on_timeout(is_first);
        self.begin_slow_start();
        self.round_trip.back_off();
        self.timer = Some(self.round_trip.deadline(now));
    }

    /// Marks everything in flight as lost, and retransmits from the first byte.
    fn begin_slow_start(&mut self) {
        self.episode = Some(Episode::AfterTimeout);
        self.recover = self.next;
        self.duplicate_acks = 0;
        if !self.config.recovery.is_selective() {
            self.sacked.clear();
        }
        for record in self.records.iter_mut().filter(|record| !record.is_sacked) {
            if !record.is_lost {
                record.is_lost = true;
                self.to_retransmit += u64::from(record.len);
            }
        }
        self.in_flight = 0;
        self.retransmission_hint = self.una;
        self.tail = tail::Tail::default();
        self.rack.forget_retransmissions();
        self.rack.forget_distance();
    }

    fn note_loss(&mut self) {
        self.between_losses = (0, self.between_losses.0);
    }

    fn retransmission(&mut self, now: Instant) -> Option<Segment> {
        let hint = self.retransmission_hint.max(self.una);
        let mut index = self.records.partition_point(|record| record.sequence < hint);
        while !self.records.get(index)?.is_lost {
            index += 1;
        }
        let len = u64::from(self.records[index].len);
        // The first retransmission of an episode is sent at once (RFC 6582 section 3.2 step 2, RFC
        // 6675 section 5 step 4.3).
        let is_first = index == 0 && !self.records[index].is_repeated;
        if !is_first && self.in_flight + len > self.window_bytes() {
            self.is_limited = true;
            return None;
        }
        let record = &mut self.records[index];
        record.is_lost = false;
        record.is_repeated = true;
        record.sent = now;
        let record = *record;
        self.retransmission_hint = record.sequence + len;
        self.to_retransmit -= len;
        self.in_flight += len;
        self.last_sent = now;
        self.statistics.segments += 1;
        self.statistics.retransmitted += 1;
        if let Some(undo) = &mut self.undo {
            undo.retransmissions += 1;
            undo.first_retransmission.get_or_insert(now);
        }
        if self.config.recovery == Recovery::Rack {
            self.rack.on_retransmission(record.sequence, now);
        }
        self.timer.get_or_insert(self.round_trip.deadline(now));
        if record.sequence == self.una {
            self.timer = Some(self.round_trip.deadline(now));
        }
        Some(self.segment(&record))
    }
}

/// Data that one acknowledgement reports as delivered.
#[derive(Default)]
struct Delivered {
    /// Send time of the acknowledged segment, by its timestamp; zero without one.
    echo: Instant,
    round_trip: Option<Duration>,
    /// Bytes acknowledged for the first time.
    bytes: u64,
}

/// Returns whether the segment that an acknowledgement answers was sent before `retransmission`;
/// never without timestamps.
fn was_sent_before(echo: Instant, retransmission: Instant) -> bool {
    echo > Instant::ZERO && echo < retransmission
}
