//! The end that has data.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant};

use super::{Config, Coupling, MOST_SUBFLOWS, Relief, Scheduler, View};
use crate::app::outgoing;
use crate::host::{Application, Outgoing};
use crate::packet::{Body, Packet, Segment};
use crate::tcp::{Sender, Statistics};

/// Sends a number of bytes, or without end, over one subflow for each of its ways.
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
    /// Data of failed subflows, to be sent again by others.
    reinjected: VecDeque<(u64, u64)>,
    /// When the first unacknowledged data is sent again, by a subflow that has nothing else to do.
    repeat_due: Option<Instant>,
    interval: Duration,
    /// The data that was sent again because the receive window was full.
    rescued: Option<u64>,
    /// Bytes beyond the acknowledged data that the receiver's buffer has been seen to need.
    buffer: u64,
    turn: usize,
}

#[derive(Clone, Debug)]
struct Subflow {
    sender: Sender,
    has_asked: bool,
    is_up: bool,
    is_backup: bool,
    /// When a segment came last.
    heard: Instant,
    /// When the other end sent it: what the next segment repeats, so that the other end knows the
    /// round trip too (RFC 7323 section 3).
    stamp: Instant,
    /// When its window was halved for keeping the receiver waiting.
    penalised: Instant,
    silence: Silence,
}

/// How often in a row the connection's timer found data on its way and nothing heard since the time
/// before.
#[derive(Clone, Copy, Debug, Default)]
struct Silence {
    count: u32,
    since: Instant,
    /// It was too often: nothing new goes this way until something is heard.
    is_stale: bool,
}

impl MptcpSource {
    /// Sends `total` bytes over `subflows` ways from `start` on; `None` is without end.
    ///
    /// # Panics
    /// With no subflow or more than [`MOST_SUBFLOWS`].
    #[must_use]
    pub fn new(config: Config, subflows: usize, total: Option<u64>, start: Instant) -> Self {
        assert!((1..=MOST_SUBFLOWS).contains(&subflows), "1 to 16 subflows");
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
            interval: LEAST_REPEAT,
            rescued: None,
            buffer: 0,
            turn: 0,
            config,
        }
    }

    /// Lets it send up to `total` bytes in all: an answer on a connection that persists.
    pub fn extend(&mut self, total: u64) {
        self.total = self.total.max(total);
    }

    /// Uses a subflow only while no other works.
    pub fn set_backup(&mut self, way: usize, is_backup: bool) {
        self.subflows[way].is_backup = is_backup;
    }

    /// Takes a subflow out, or in again with a fresh window; what it owes goes to the others.
    /// [`Application::handle_link`] does it for links that go down.
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

    /// The sender of one subflow.
    #[must_use]
    pub fn subflow(&self, way: usize) -> &Sender {
        &self.subflows[way].sender
    }

    /// The sum over all subflows.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let all = self.subflows.iter().map(|subflow| subflow.sender.statistics());
        all.fold(Statistics::default(), Statistics::plus)
    }

    /// Whether everything is acknowledged.
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
        let mut views = [none; MOST_SUBFLOWS];
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

    /// Hands what a subflow still owes to the others.
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

    /// What the receiver's buffer has grown to: twice what one round trip brings, and never less
    /// than before.
    ///
    /// Source: Linux `mptcp_rcv_space_adjust`. Deviates: the sender reckons it from its windows.
    fn buffer(&mut self) -> u64 {
        let windows: f64 = self.subflows.iter().map(|subflow| subflow.sender.window()).sum();
        let segments = windows as u64 * 2 + BUFFER_EXTRA;
        self.buffer = self.buffer.max(segments * u64::from(self.config.tcp.segment));
        self.buffer
    }

    /// Works out the connection's timer when something is sent: the longest of the subflows' own
    /// that are not silent.
    ///
    /// Source: Linux `__mptcp_set_timeout`, called by the scheduler.
    fn set_interval(&mut self, now: Instant) {
        let heard = self.subflows.iter().filter(|subflow| subflow.silence.count == 0);
        let due = heard.filter_map(|subflow| subflow.sender.timer_due()).max();
        let after = due.map_or(Duration::ZERO, |due| due.since(now));
        self.interval = if after.is_zero() { LEAST_REPEAT } else { after };
    }

    fn arm_repeat(&mut self, now: Instant) {
        let is_needed = self.next > self.una && self.config.relief == Relief::ByTurns;
        self.repeat_due = is_needed.then_some(now + self.interval);
    }

    /// The connection's timer fired: a subflow that has nothing on its way repeats the first data,
    /// and those that are silent are found out.
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

    /// Queues what is not acknowledged before `end` to be sent again.
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

    /// What to send next: data of a failed subflow, or new data.
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
    /// The receive window is full: a faster subflow sends the data again that the receiver waits
    /// for, and the slow one sends less.
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

/// A subflow with so many timeouts in a row gives way to a backup.
const STALE: u32 = 2;
/// Silent turns of the connection's timer after which a subflow is stale. Source: Linux
/// `net.mptcp.stale_loss_cnt`.
const STALE_AFTER: u32 = 4;
/// What one turn of the connection's timer repeats: a fragment of the sender's pages. Units: bytes.
const FRAGMENT: u64 = 32 << 10;
/// The connection's timer where no subflow has one. Source: Linux `TCP_RTO_MIN`.
const LEAST_REPEAT: Duration = Duration::from_millis(200);
/// Segments that the receiver's buffer holds beyond its need.
const BUFFER_EXTRA: u64 = 16;
