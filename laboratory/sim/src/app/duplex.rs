//! TCP connection on which both ends send at once.

use hawser_units::Instant;

use super::{Meter, outgoing};
use crate::host::{Application, Outgoing};
use crate::packet::{Body, Packet, Segment, flag};
use crate::tcp::{Config, Opening, Receiver, Sender};

/// End of a connection with data in both directions.
///
/// Acknowledgements travel with the data; a pure acknowledgement is sent only if no data may be.
/// The initiating end opens the connection, the other one answers.
///
/// Source: RFC 9293 section 3.8.6.3. Does not model: sequence numbers of the opening and of the
/// end.
#[derive(Clone, Debug)]
pub struct TcpDuplex {
    config: Config,
    sender: Sender,
    receiver: Receiver,
    asks: bool,
    start: Instant,
    has_begun: bool,
    total: u64,
    /// Last acknowledgement, which data repeat if nothing has arrived since.
    latest: Segment,
    owes_ack: bool,
    acks_alone: u64,
    meter: Meter,
}

impl TcpDuplex {
    /// The end that opens the connection at `start`, and sends `total` bytes; `None` is without
    /// end.
    #[must_use]
    pub fn asking(config: Config, total: Option<u64>, start: Instant) -> Self {
        Self::new(config, Opening::BySender, total, start)
    }

    /// The end that waits to be asked, and sends `total` bytes then; `None` is without end.
    #[must_use]
    pub fn answering(config: Config, total: Option<u64>) -> Self {
        Self::new(config, Opening::ByReceiver, total, Instant::ZERO)
    }

    fn new(config: Config, opening: Opening, total: Option<u64>, start: Instant) -> Self {
        // The sender's side opens; the receiver's has nothing to do for it.
        let [sending, taking] = [opening, Opening::Open].map(|opening| Config { opening, ..config });
        Self {
            sender: Sender::new(sending),
            receiver: Receiver::new(taking),
            asks: opening == Opening::BySender,
            start,
            has_begun: opening == Opening::ByReceiver,
            total: total.unwrap_or(u64::MAX),
            latest: Segment {
                window: config.receive_window,
                ..Segment::default()
            },
            owes_ack: false,
            acks_alone: 0,
            meter: Meter::default(),
            config,
        }
    }

    /// Lets one that has not begun begin at `start`.
    pub fn set_start(&mut self, start: Instant) {
        self.start = start;
    }

    /// Returns the bytes of the other end's data over time.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// The machine that sends.
    #[must_use]
    pub fn sender(&self) -> &Sender {
        &self.sender
    }

    /// Acknowledgements that no data carried.
    #[must_use]
    pub fn acks_alone(&self) -> u64 {
        self.acks_alone
    }

    /// Returns whether all of its own data is acknowledged.
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

    /// A segment of the opening, a retransmission or new data.
    fn next(&mut self, now: Instant) -> Option<Segment> {
        if let Some(segment) = self.sender.poll_transmit(now) {
            return Some(segment);
        }
        let sent = self.sender.sent();
        let len = (self.total - sent).min(u64::from(self.config.segment)) as u16;
        (len > 0 && self.sender.has_room(len)).then(|| self.sender.send(len, sent, now))
    }

    /// Lets a segment carry what is to be acknowledged.
    fn load(&mut self, segment: Segment, now: Instant) -> Segment {
        // One that waits for a second segment goes along now.
        let due = self.receiver.poll_timeout().map_or(now, |due| due.max(now));
        if let Some(ack) = self.receiver.poll_transmit(due) {
            self.latest = ack;
        }
        self.owes_ack = false;
        let loaded = Segment {
            ack: self.latest.ack,
            window: self.latest.window,
            echo: self.latest.echo,
            sack: self.latest.sack,
            duplicate: self.latest.duplicate,
            flags: segment.flags | (self.latest.flags & flag::ECE),
            ..segment
        };
        self.latest.duplicate = 0;
        loaded
    }

    fn alone(&mut self, now: Instant) -> Option<Segment> {
        if let Some(ack) = self.receiver.poll_transmit(now) {
            self.latest = ack;
        } else if !self.owes_ack {
            return None;
        }
        self.acks_alone += 1;
        let bare = Segment {
            flags: flag::ACK,
            ..Segment::default()
        };
        Some(self.load(bare, now))
    }
}

impl Application for TcpDuplex {
    fn handle_start(&mut self, now: Instant) {
        self.begin(now);
    }

    fn handle_packet(&mut self, _way: usize, packet: &Packet, now: Instant) {
        let Body::Tcp(segment) = &packet.body else { return };
        self.sender.handle_segment(segment, now);
        if segment.has(flag::SYN) {
            self.owes_ack |= self.asks;
            return;
        }
        let bytes = self
            .receiver
            .handle_segment(segment, packet.sent, packet.ecn, now);
        self.meter.record(now, bytes);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.begin(now);
        self.sender.handle_timeout(now);
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        if !self.has_begun {
            return None;
        }
        let segment = match self.next(now) {
            Some(segment) => self.load(segment, now),
            None => self.alone(now)?,
        };
        Some(outgoing(&self.config, 0, segment))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if !self.has_begun {
            return Some(self.start);
        }
        [self.sender.poll_timeout(), self.receiver.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
    }
}
