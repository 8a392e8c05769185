//! Bytes over TCP.

use hawser_units::Instant;

use super::Meter;
use crate::host::{Application, Outgoing};
use crate::packet::{Body, Ecn, Packet, Segment};
use crate::tcp::{Config, Receiver, Sender};

/// Sends a number of bytes, or without end.
#[derive(Clone, Debug)]
pub struct TcpSource {
    config: Config,
    sender: Sender,
    start: Instant,
    has_begun: bool,
    total: u64,
}

impl TcpSource {
    /// Sends `total` bytes from `start` on; `None` is without end.
    #[must_use]
    pub fn new(config: Config, total: Option<u64>, start: Instant) -> Self {
        Self {
            config,
            sender: Sender::new(config),
            start,
            has_begun: false,
            total: total.unwrap_or(u64::MAX),
        }
    }

    /// Lets one that has not begun begin at `start`.
    pub fn set_start(&mut self, start: Instant) {
        self.start = start;
    }

    /// Lets it send up to `total` bytes in all: an answer on a connection that persists.
    pub fn extend(&mut self, total: u64) {
        self.total = self.total.max(total);
    }

    /// The machine that sends.
    #[must_use]
    pub fn sender(&self) -> &Sender {
        &self.sender
    }

    /// Whether everything is acknowledged.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.sender.acknowledged() >= self.total
    }

    fn begin(&mut self, now: Instant) {
        if !self.has_begun && now >= self.start {
            self.has_begun = true;
            self.sender.open(now);
        }
    }
}

impl Application for TcpSource {
    fn handle_start(&mut self, now: Instant) {
        self.begin(now);
    }

    fn handle_packet(&mut self, _way: usize, packet: &Packet, now: Instant) {
        if let Body::Tcp(segment) = &packet.body {
            self.sender.handle_segment(segment, now);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.begin(now);
        self.sender.handle_timeout(now);
    }

    fn handle_too_big(&mut self, _way: usize, mtu: u16, _now: Instant) {
        let segment = mtu.saturating_sub(self.config.header);
        if (1..self.config.segment).contains(&segment) {
            self.config.segment = segment;
            self.sender.handle_too_big(segment);
        }
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        if !self.has_begun {
            return None;
        }
        if let Some(segment) = self.sender.poll_transmit(now) {
            // RFC 3168 section 6.1.5: what is sent again is not ECT.
            let again = outgoing(&self.config, 0, segment);
            return Some(Outgoing {
                ecn: Ecn::NotCapable,
                ..again
            });
        }
        let left = self.total - self.sender.sent();
        let len = left.min(u64::from(self.config.segment)) as u16;
        if len == 0 || !self.sender.has_room(len) {
            return None;
        }
        let data = self.sender.sent();
        let segment = self.sender.send(len, data, now);
        Some(outgoing(&self.config, 0, segment))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.has_begun {
            self.sender.poll_timeout()
        } else {
            Some(self.start)
        }
    }
}

/// Takes what a [`TcpSource`] sends.
#[derive(Clone, Debug)]
pub struct TcpSink {
    config: Config,
    receiver: Receiver,
    start: Instant,
    has_begun: bool,
    total: u64,
    meter: Meter,
    done: Option<Instant>,
}

impl TcpSink {
    /// Expects `total` bytes; opens at `start` where opening is the receiver's part.
    #[must_use]
    pub fn new(config: Config, total: Option<u64>, start: Instant) -> Self {
        Self {
            config,
            receiver: Receiver::new(config),
            start,
            has_begun: false,
            total: total.unwrap_or(u64::MAX),
            meter: Meter::default(),
            done: None,
        }
    }

    /// Lets one that has not begun begin at `start`.
    pub fn set_start(&mut self, start: Instant) {
        self.start = start;
    }

    /// What was delivered, and when.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// The machine that receives.
    #[must_use]
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// When the last byte was there.
    #[must_use]
    pub fn done(&self) -> Option<Instant> {
        self.done
    }

    fn begin(&mut self, now: Instant) {
        if !self.has_begun && now >= self.start {
            self.has_begun = true;
            self.receiver.open(now);
        }
    }
}

impl Application for TcpSink {
    fn handle_start(&mut self, now: Instant) {
        self.begin(now);
    }

    fn handle_packet(&mut self, _way: usize, packet: &Packet, now: Instant) {
        let Body::Tcp(segment) = &packet.body else { return };
        let bytes = self
            .receiver
            .handle_segment(segment, packet.sent, packet.ecn, now);
        self.meter.record(now, bytes);
        if self.done.is_none() && self.receiver.received() >= self.total {
            self.done = Some(now);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.begin(now);
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        let segment = self.receiver.poll_transmit(now)?;
        Some(outgoing(&self.config, 0, segment))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.has_begun {
            self.receiver.poll_timeout()
        } else {
            Some(self.start)
        }
    }
}

pub(crate) fn outgoing(config: &Config, way: usize, segment: Segment) -> Outgoing {
    let is_capable = config.ecn && segment.payload > 0;
    Outgoing {
        way,
        size: config.packet_size(segment.payload),
        ecn: if is_capable { Ecn::Capable } else { Ecn::NotCapable },
        body: Body::Tcp(segment),
    }
}
