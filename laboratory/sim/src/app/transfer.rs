//! Bytes over TCP.

use hawser_units::Instant;

use super::Meter;
use crate::host::{Application, Outgoing};
use crate::packet::{Body, Ecn, Packet, Segment};
use crate::tcp::{Config, Receiver, Sender};

/// Sends a number of bytes, or an endless stream.
#[derive(Clone, Debug)]
pub struct TcpSource {
    config: Config,
    sender: Sender,
    start: Instant,
    has_begun: bool,
    total: u64,
}

impl TcpSource {
    /// Creates a source of `total` bytes from `start` on; `None`: endless.
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

    /// Sets the start of a source that has not started.
    pub fn set_start(&mut self, start: Instant) {
        self.start = start;
    }

    /// Raises the limit to `total` bytes: another response on a persistent connection.
    pub fn extend(&mut self, total: u64) {
        self.total = self.total.max(total);
    }

    /// Returns the sending machine.
    #[must_use]
    pub fn sender(&self) -> &Sender {
        &self.sender
    }

    /// Returns whether everything is acknowledged.
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
            // RFC 3168 section 6.1.5: retransmissions are not ECT.
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

/// Receives the data of a [`TcpSource`].
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
    /// Creates a sink for `total` bytes; it opens at `start` if the receiver opens the connection.
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

    /// Sets the start of a sink that has not started.
    pub fn set_start(&mut self, start: Instant) {
        self.start = start;
    }

    /// Returns the delivered bytes over time.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Returns the receiving machine.
    #[must_use]
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Returns when the last byte arrived.
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
