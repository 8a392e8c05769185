//! The end that has data.

use std::collections::VecDeque;

use hawser_units::Instant;

use super::{Config, Coupling, MOST_SUBFLOWS, Scheduler, View};
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
    turn: usize,
}

#[derive(Clone, Debug)]
struct Subflow {
    sender: Sender,
    has_asked: bool,
    is_up: bool,
    is_backup: bool,
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
            turn: 0,
            config,
        }
    }

    /// Uses a subflow only while no other works.
    pub fn set_backup(&mut self, way: usize, is_backup: bool) {
        self.subflows[way].is_backup = is_backup;
    }

    /// Takes a subflow out, or in again with a fresh window; what it owes goes to the others. [`Application::handle_link`] does it for links
    /// that go down.
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
        self.reinjected
            .extend(owed.filter(|(data, len)| data + len > una));
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
            let is_allowed = subflow.is_up && !(has_regular && subflow.is_backup);
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

    /// What to send next: data of a failed subflow, or new data.
    fn piece(&mut self) -> Option<(u64, u16)> {
        while let Some((data, len)) = self.reinjected.front().copied() {
            if data + len > self.una {
                return Some((data, len as u16));
            }
            self.reinjected.pop_front();
        }
        let left = self.total.min(self.right_edge).saturating_sub(self.next);
        let full = u64::from(self.config.tcp.segment);
        let is_short = left < full && self.next + left < self.total;
        (left > 0 && !is_short).then(|| (self.next, left.min(full) as u16))
    }

    fn send(&mut self, now: Instant) -> Option<(usize, Segment)> {
        let (data, len) = self.piece()?;
        let way = self.choose(len)?;
        if data == self.next {
            self.next += u64::from(len);
        } else {
            self.reinjected.pop_front();
        }
        Some((way, self.subflows[way].sender.send(len, data, now)))
    }
}

impl Application for MptcpSource {
    fn handle_start(&mut self, now: Instant) {
        self.begin(now);
    }

    fn handle_packet(&mut self, way: usize, packet: &Packet, now: Instant) {
        let Body::Tcp(segment) = &packet.body else { return };
        self.una = self.una.max(segment.data_ack);
        self.right_edge = self.right_edge.max(segment.data_ack + u64::from(segment.window));
        self.couple(way);
        self.subflows[way].sender.handle_segment(segment, now);
        if self.subflows.iter().any(|subflow| !subflow.has_asked) {
            self.begin(now);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.begin(now);
        for way in 0..self.subflows.len() {
            let before = self.subflows[way].sender.backoff();
            self.couple(way);
            self.subflows[way].sender.handle_timeout(now);
            let is_failing = before == 0 && self.subflows[way].sender.backoff() > 0;
            if is_failing && self.subflows.len() > 1 && self.subflows[way].sender.is_open() {
                self.reinject(way);
            }
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
                return Some(outgoing(&self.config.tcp, way, segment));
            }
        }
        let (way, segment) = self.send(now)?;
        Some(outgoing(&self.config.tcp, way, segment))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if !self.has_begun {
            return Some(self.start);
        }
        let up = self.subflows.iter().filter(|subflow| subflow.is_up);
        up.filter_map(|subflow| subflow.sender.poll_timeout()).min()
    }
}

/// A subflow with so many timeouts in a row gives way to a backup.
const STALE: u32 = 2;
