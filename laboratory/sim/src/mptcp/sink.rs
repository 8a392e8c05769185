//! The receiving end of a multipath connection.

use hawser_units::Instant;

use super::Config;
use crate::app::{Meter, outgoing};
use crate::host::{Application, Outgoing};
use crate::packet::{Body, Packet};
use crate::tcp::{Ranges, Receiver};

/// Receives the data of an [`super::MptcpSource`] and orders it.
#[derive(Clone, Debug)]
pub struct MptcpSink {
    config: Config,
    subflows: Vec<(Receiver, bool)>,
    start: Instant,
    has_begun: bool,
    total: u64,
    next: u64,
    beyond: Ranges,
    out_of_order: u64,
    meter: Meter,
    done: Option<Instant>,
}

impl MptcpSink {
    /// Creates a sink for `total` bytes; it opens at `start` if the receiver opens the connection.
    #[must_use]
    pub fn new(config: Config, subflows: usize, total: Option<u64>, start: Instant) -> Self {
        Self {
            subflows: vec![(Receiver::new(config.tcp), false); subflows],
            start,
            has_begun: false,
            total: total.unwrap_or(u64::MAX),
            next: 0,
            beyond: Ranges::default(),
            out_of_order: 0,
            meter: Meter::default(),
            done: None,
            config,
        }
    }

    /// Returns the bytes delivered in order, over time.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Returns when the last byte arrived.
    #[must_use]
    pub fn done(&self) -> Option<Instant> {
        self.done
    }

    /// Returns the receiver of one subflow.
    #[must_use]
    pub fn subflow(&self, way: usize) -> &Receiver {
        &self.subflows[way].0
    }

    /// Returns the number of segments that arrived before earlier data of the connection, and
    /// before an earlier segment of their subflow.
    #[must_use]
    pub fn out_of_order(&self) -> (u64, u64) {
        let within = self.subflows.iter().map(|(subflow, _)| subflow.out_of_order());
        (self.out_of_order, within.sum())
    }

    fn begin(&mut self, now: Instant) {
        if now < self.start {
            return;
        }
        self.has_begun = true;
        let is_open = self.subflows[0].0.is_open();
        for (way, (subflow, has_asked)) in self.subflows.iter_mut().enumerate() {
            if (way == 0 || is_open) && !*has_asked {
                *has_asked = true;
                subflow.open(now);
            }
        }
    }
}

impl Application for MptcpSink {
    fn handle_start(&mut self, now: Instant) {
        self.begin(now);
    }

    fn handle_packet(&mut self, way: usize, packet: &Packet, now: Instant) {
        let Body::Tcp(segment) = &packet.body else { return };
        self.subflows[way]
            .0
            .handle_segment(segment, packet.sent, packet.ecn, now);
        if self.subflows.iter().any(|(_, has_asked)| !has_asked) {
            self.begin(now);
        }
        let end = segment.data + u64::from(segment.payload);
        if segment.payload == 0 || end <= self.next {
            return;
        }
        if segment.data > self.next {
            self.out_of_order += u64::from(self.beyond.insert(segment.data, end, |_, _| {}));
            return;
        }
        let before = self.next;
        self.next = self.beyond.advance(end);
        self.meter.record(now, self.next - before);
        if self.done.is_none() && self.next >= self.total {
            self.done = Some(now);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.begin(now);
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        for (way, (subflow, _)) in self.subflows.iter_mut().enumerate() {
            if let Some(mut segment) = subflow.poll_transmit(now) {
                segment.data_ack = self.next;
                return Some(outgoing(&self.config.tcp, way, segment));
            }
        }
        None
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if !self.has_begun {
            return Some(self.start);
        }
        let all = self.subflows.iter();
        all.filter_map(|(subflow, _)| subflow.poll_timeout()).min()
    }
}
