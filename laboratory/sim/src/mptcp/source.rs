//! The sending end of a multipath connection.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant};

use super::{Config, Coupling, MAX_SUBFLOWS, Relief, Scheduler, View};
use crate::app::outgoing;
use crate::host::{Application, Outgoing};
use crate::packet::{Body, Packet, Segment};
use crate::tcp::{Sender, Statistics};

/// Sends a number of bytes, or an endless stream, over one subflow per route.
#[derive(Clone, Debug)]
pub struct MptcpSource {
    config: Config,
    subflows: Vec<Subflow>,
    start: Instant,
    has_begun: bool,
    total: u64,
    next: u64,
    una: u64,
    right_edge: u64,
    /// Data of failed subflows, to be sent by others.
    reinjected: VecDeque<(u64, u64)>,
    /// Time at which an idle subflow repeats the first unacknowledged data.
    repeat_due: Option<Instant>,
    interval: Duration,
    /// Data repeated because the receive window was full.
    rescued: Option<u64>,
    /// Observed need of receive buffer beyond the acknowledged data. Units: bytes.
    buffer: u64,
    turn: usize,
}

#[derive(Clone, Debug)]
struct Subflow {
    sender: Sender,
    has_asked: bool,
    is_up: bool,
    is_backup: bool,
    /// Time of the last segment.
    heard: Instant,
    /// Send time of that segment at the other end, echoed in the next segment, so that the other
    /// end can measure the round-trip time too (RFC 7323 section 3).
    stamp: Instant,
    /// Time at which the window was halved because the subflow delayed the receiver.
    penalised: Instant,
    silence: Silence,
}

/// Consecutive expiries of the connection's timer with data in flight and without an answer.
#[derive(Clone, Copy, Debug, Default)]
struct Silence {
    count: u32,
    since: Instant,
    /// Set if the subflow is stale: it sends no new data until an answer arrives.
    is_stale: bool,
}

impl MptcpSource {
    /// Creates a source of `total` bytes over `subflows` routes from `start` on; `None`: endless.
    ///
    /// # Panics
    /// With no subflow or more than [`MAX_SUBFLOWS`].
    #[must_use]
    pub fn new(config: Config, subflows: usize, total: Option<u64>, start: Instant) -> Self {
        assert!((1..=MAX_SUBFLOWS).contains(&subflows), "1 to 16 subflows");
        let subflow = Subflow {
            sender: Sender::new(config.tcp),
            has_asked: false,
            is_up: true,
            is_backup: false,
            heard: start,
            stamp: Instant::ZERO,
            penalised: start,
            silence: Silence::default(),
        };
        Self {
            subflows: vec![subflow; subflows],
            start,
            has_begun: false,
            total: total.unwrap_or(u64::MAX),
            next: 0,
            una: 0,
            right_edge: u64::from(config.tcp.receive_window),
            reinjected: VecDeque::new(),
            repeat_due: None,
            interval: MIN_REPEAT,
            rescued: None,
            buffer: 0,
            turn: 0,
            config,
        }
    }

    /// Raises the limit to `total` bytes: another response on a persistent connection.
    pub fn extend(&mut self, total: u64) {
        self.total = self.total.max(total);
    }

    /// Marks a subflow as backup, used only while no other works.
    pub fn set_backup(&mut self, way: usize, is_backup: bool) {
        self.subflows[way].is_backup = is_backup;
    }

    /// Removes a subflow, or adds it again with a fresh window; the others send its unacknowledged
    /// data. [`Application::handle_link`] calls this for links that change.
    pub fn set_up(&mut self, way: usize, is_up: bool, now: Instant) {
        let subflow = &mut self.subflows[way];
        if subflow.is_up == is_up {
            return;
        }
        subflow.is_up = is_up;
        if is_up {
            subflow.sender.restart(now);
        } else {
            self.reinject(way);
        }
    }

    /// Returns the sender of one subflow.
    #[must_use]
    pub fn subflow(&self, way: usize) -> &Sender {
        &self.subflows[way].sender
    }

    /// Returns the sum over all subflows.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let all = self.subflows.iter().map(|subflow| subflow.sender.statistics());
        all.fold(Statistics::default(), Statistics::plus)
    }

    /// Returns whether everything is acknowledged.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.una >= self.total
    }

    fn begin(&mut self, now: Instant) {
        if now < self.start {
            return;
        }
        self.has_begun = true;
        // Further subflows join once the first is open (RFC 8684 section 3.2).
        let is_open = self.subflows[0].sender.is_open();
        for (way, subflow) in self.subflows.iter_mut().enumerate() {
            if (way == 0 || is_open) && !subflow.has_asked {
                subflow.has_asked = true;
                subflow.sender.open(now);
            }
        }
    }

    fn couple(&mut self, way: usize) {
        if matches!(self.config.coupling, Coupling::Uncoupled(_)) {
            return;
        }
        let none = View {
            window: 0.0,
            round_trip: 0.0,
            loss_distance: 0.0,
        };
        let mut views = [none; MAX_SUBFLOWS];
        let (mut count, mut own) = (0, None);
        for (index, subflow) in self.subflows.iter().enumerate() {
            let round_trip = subflow.sender.round_trip().as_secs_f64();
            if !subflow.is_up || round_trip == 0.0 {
                continue;
            }
            if index == way {
                own = Some(count);
            }
            views[count] = View {
                window: subflow.sender.window(),
                round_trip,
                loss_distance: subflow.sender.loss_distance() as f64,
            };
            count += 1;
        }
        let Some(own) = own else { return };
        let response = self.config.coupling.response(&views[..count], own);
        self.subflows[way].sender.couple(response.increase, response.left);
    }

    /// Assigns the unacknowledged data of a subflow to the others.
    fn reinject(&mut self, way: usize) {
        let una = self.una;
        let owed = self.subflows[way].sender.outstanding();
        let owed: Vec<_> = owed
            .filter(|piece| piece.0 + piece.1 > una && !self.reinjected.contains(piece))
            .collect();
        self.reinjected.extend(owed);
    }

    fn is_usable(subflow: &Subflow) -> bool {
        subflow.is_up && subflow.sender.is_open() && subflow.sender.backoff() < STALE
    }

    fn choose(&mut self, len: u16) -> Option<usize> {
        let has_regular = self
            .subflows
            .iter()
            .any(|subflow| !subflow.is_backup && Self::is_usable(subflow));
        let count = self.subflows.len();
        let mut best: Option<usize> = None;
        for step in 0..count {
            let way = match self.config.scheduler {
                Scheduler::MinRtt => step,
                Scheduler::RoundRobin => (self.turn + step) % count,
            };
            let subflow = &mut self.subflows[way];
            let is_in_trouble = match self.config.relief {
                Relief::ByTurns => subflow.silence.is_stale,
                Relief::AtTimeout => subflow.sender.is_after_timeout(),
                Relief::None => false,
            };
            let is_allowed = subflow.is_up && !is_in_trouble && !(has_regular && subflow.is_backup);
            if !is_allowed || !subflow.sender.has_room(len) {
                continue;
            }
            match self.config.scheduler {
                Scheduler::RoundRobin => {
                    self.turn = way + 1;
                    return Some(way);
                }
                Scheduler::MinRtt => {
                    let is_better = best.is_none_or(|best| {
                        self.subflows[way].sender.round_trip() < self.subflows[best].sender.round_trip()
                    });
                    if is_better {
                        best = Some(way);
                    }
                }
            }
        }
        best
    }

    /// Returns the present size of the receiver's buffer: twice the bytes of one round trip, and
    /// never less than before.
    ///
    /// Source: Linux `mptcp_rcv_space_adjust`. Deviates: the sender computes it from its windows.
    fn buffer(&mut self) -> u64 {
        let windows: f64 = self.subflows.iter().map(|subflow| subflow.sender.window()).sum();
        let segments = windows as u64 * 2 + BUFFER_EXTRA;
        self.buffer = self.buffer.max(segments * u64::from(self.config.tcp.segment));
        self.buffer
    }

    /// Sets the connection's timer when something is sent: to the longest timer of the subflows
    /// that are not stale.
    ///
    /// Source: Linux `__mptcp_set_timeout`, called by the scheduler.
    fn set_interval(&mut self, now: Instant) {
        let heard = self.subflows.iter().filter(|subflow| subflow.silence.count == 0);
        let due = heard.filter_map(|subflow| subflow.sender.timer_due()).max();
        let after = due.map_or(Duration::ZERO, |due| due.since(now));
        self.interval = if after.is_zero() { MIN_REPEAT } else { after };
    }

    fn arm_repeat(&mut self, now: Instant) {
        let is_needed = self.next > self.una && self.config.relief == Relief::ByTurns;
        self.repeat_due = is_needed.then_some(now + self.interval);
    }

    /// Handles the connection's timer: a subflow without data in flight repeats the first data, and
    /// stale subflows are detected.
    ///
    /// Source: Linux `__mptcp_retrans`, `mptcp_pm_subflow_chk_stale`.
    fn repeat(&mut self, now: Instant) {
        let mut has_idle = false;
        for way in 0..self.subflows.len() {
            let subflow = &self.subflows[way];
            if !subflow.is_up || !subflow.sender.is_open() {
                continue;
            }
            if subflow.sender.is_idle() {
                has_idle |= !subflow.is_backup;
            } else {
                self.note_silence(way);
            }
        }
        if has_idle && self.reinjected.is_empty() {
            self.reinject_data(self.next.min(self.una + FRAGMENT));
        }
        self.arm_repeat(now);
    }

    fn note_silence(&mut self, way: usize) {
        let subflow = &mut self.subflows[way];
        let (heard, silence) = (subflow.heard, &mut subflow.silence);
        if silence.count > 0 && silence.since != heard {
            *silence = Silence::default();
            return;
        }
        silence.since = heard;
        silence.count += 1;
        let others = self
            .subflows
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != way);
        let has_other = { others }.any(|(_, other)| other.is_up && other.silence.count < STALE_AFTER);
        let silence = &mut self.subflows[way].silence;
        if silence.count > STALE_AFTER && !silence.is_stale && has_other {
            silence.is_stale = true;
            self.reinjected.clear();
            self.reinject_data(self.next);
        }
    }

    /// Queues the unacknowledged data before `end` for retransmission.
    fn reinject_data(&mut self, end: u64) {
        let full = u64::from(self.config.tcp.segment);
        let mut data = self.una;
        while data < end {
            let len = (end - data).min(full);
            self.reinjected.push_back((data, len));
            data += len;
        }
    }

    fn stamped(&self, way: usize, segment: Segment) -> Outgoing {
        let echo = self.subflows[way].stamp;
        outgoing(&self.config.tcp, way, Segment { echo, ..segment })
    }

    /// Returns the next data to send: of a failed subflow, or new.
    fn piece(&mut self) -> Option<(u64, u16)> {
        while let Some((data, len)) = self.reinjected.front().copied() {
            if data + len > self.una {
                return Some((data, len as u16));
            }
            self.reinjected.pop_front();
        }
        let edge = if self.config.grows_buffer {
            self.right_edge.min(self.una + self.buffer())
        } else {
            self.right_edge
        };
        let left = self.total.min(edge).saturating_sub(self.next);
        let full = u64::from(self.config.tcp.segment);
        let is_short = left < full && self.next + left < self.total;
        (left > 0 && !is_short).then(|| (self.next, left.min(full) as u16))
    }

    fn send(&mut self, now: Instant) -> Option<(usize, Segment)> {
        let Some((data, len)) = self.piece() else {
            return self.rescue(now);
        };
        let way = self.choose(len)?;
        if data == self.next {
            self.next += u64::from(len);
        } else {
            self.reinjected.pop_front();
        }
        let segment = self.subflows[way].sender.send(len, data, now);
        self.set_interval(now);
        Some((way, segment))
    }
}

impl MptcpSource {
    /// Handles a full receive window: a faster subflow repeats the data that the receiver waits
    /// for, and the slow subflow reduces its window.
    ///
    /// Source: Raiciu et al. 2012 section 4.2, as MPTCP v0.8x has it.
    fn rescue(&mut self, now: Instant) -> Option<(usize, Segment)> {
        let full = self.config.tcp.segment;
        let is_full = self.next < self.total && self.next + u64::from(full) > self.right_edge;
        let knows = self.config.relief == Relief::AtTimeout;
        if !knows || !is_full || self.rescued == Some(self.una) {
            return None;
        }
        let way = self.choose(full)?;
        let una = self.una;
        let holds = |subflow: &Subflow| {
            let mut owed = subflow.sender.outstanding();
            owed.find(|(data, len)| (*data..data + len).contains(&una))
        };
        let slow = self
            .subflows
            .iter()
            .position(|subflow| holds(subflow).is_some())?;
        let (data, len) = holds(&self.subflows[slow])?;
        let slower = self.subflows[slow].sender.round_trip();
        if slow == way || slower <= self.subflows[way].sender.round_trip() {
            return None;
        }
        self.rescued = Some(una);
        let subflow = &mut self.subflows[slow];
        if now.since(subflow.penalised) > slower {
            subflow.penalised = now;
            subflow.sender.penalise();
        }
        Some((way, self.subflows[way].sender.send(len as u16, data, now)))
    }
}

impl Application for MptcpSource {
    fn handle_start(&mut self, now: Instant) {
        self.begin(now);
    }

    fn handle_packet(&mut self, way: usize, packet: &Packet, now: Instant) {
        let Body::Tcp(segment) = &packet.body else { return };
        let subflow = &mut self.subflows[way];
        subflow.heard = now;
        subflow.stamp = packet.sent;
        if subflow.silence.is_stale {
            subflow.silence = Silence::default();
        }
        let has_advanced = segment.data_ack > self.una;
        self.una = self.una.max(segment.data_ack);
        self.right_edge = self.right_edge.max(segment.data_ack + u64::from(segment.window));
        self.couple(way);
        self.subflows[way].sender.handle_segment(segment, now);
        if has_advanced || self.repeat_due.is_none() {
            self.arm_repeat(now);
        }
        if self.subflows.iter().any(|subflow| !subflow.has_asked) {
            self.begin(now);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.begin(now);
        for way in 0..self.subflows.len() {
            self.couple(way);
            let sender = &mut self.subflows[way].sender;
            let timeouts = sender.statistics().timeouts;
            sender.handle_timeout(now);
            if self.config.relief == Relief::AtTimeout && sender.statistics().timeouts > timeouts {
                self.reinject(way);
            }
        }
        if self.repeat_due.is_some_and(|due| due <= now) {
            self.repeat(now);
        }
    }

    fn handle_link(&mut self, way: usize, is_up: bool, now: Instant) {
        self.set_up(way, is_up, now);
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        if !self.has_begun {
            return None;
        }
        for (way, subflow) in self.subflows.iter_mut().enumerate() {
            if subflow.is_up
                && let Some(segment) = subflow.sender.poll_transmit(now)
            {
                return Some(self.stamped(way, segment));
            }
        }
        let (way, segment) = self.send(now)?;
        Some(self.stamped(way, segment))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if !self.has_begun {
            return Some(self.start);
        }
        let up = self.subflows.iter().filter(|subflow| subflow.is_up);
        up.filter_map(|subflow| subflow.sender.poll_timeout())
            .chain(self.repeat_due)
            .min()
    }
}

/// Number of consecutive timeouts after which a subflow yields to a backup. Source: our choice;
/// after one timeout a subflow may only have lost a tail, and more delay the use of the backup.
const STALE: u32 = 2;
/// Number of expiries without an answer after which a subflow is stale. Source: Linux
/// `net.mptcp.stale_loss_cnt`.
const STALE_AFTER: u32 = 4;
/// Bytes repeated per expiry of the connection's timer: a fragment of the sender's pages. Source:
/// `SKB_FRAG_PAGE_ORDER` of net/core/sock.c of Linux.
const FRAGMENT: u64 = 32 << 10;
/// Connection's timer if no subflow has one. Source: Linux `TCP_RTO_MIN`.
const MIN_REPEAT: Duration = Duration::from_millis(200);
/// Segments that the receiver's buffer holds beyond its need. Source: our choice; without it a
/// connection with a small window waits for each acknowledgement.
const BUFFER_EXTRA: u64 = 16;
