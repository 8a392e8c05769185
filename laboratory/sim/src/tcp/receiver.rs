//! The receiving end of a connection.

use hawser_units::{Duration, Instant};

use super::{Config, Opening, Ranges};
use crate::packet::{Ecn, Sack, Segment, flag};

/// Orders segments and acknowledges them. Its application reads at once.
///
/// Cost: O(log holes) per segment.
#[derive(Clone, Debug)]
pub struct Receiver {
    config: Config,
    is_open: bool,
    opening_due: Option<Instant>,
    opening_timeout: Duration,
    owes_synack: bool,
    next: u64,
    /// Bytes taken beyond `next`, and the highest byte that was said to be taken.
    window: u32,
    edge: u64,
    beyond: Ranges,
    /// Positions of recent segments, the latest first.
    recent: [u64; 3],
    unacknowledged: u32,
    quick_acks: u32,
    owes_ack: bool,
    ack_due: Option<Instant>,
    duplicate: u16,
    echo: Instant,
    has_echo: bool,
    sees_marks: bool,
    out_of_order: u64,
    duplicates: u64,
}

impl Receiver {
    /// A receiver that is closed, or open if its configuration says so.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            is_open: config.opening == Opening::Open,
            opening_due: None,
            opening_timeout: config.rto.initial,
            owes_synack: false,
            next: 0,
            window: config.receive_window,
            edge: 0,
            beyond: Ranges::default(),
            recent: [0; 3],
            unacknowledged: 0,
            quick_acks: config.quick_acks,
            owes_ack: false,
            ack_due: None,
            duplicate: 0,
            echo: Instant::ZERO,
            has_echo: false,
            sees_marks: false,
            out_of_order: 0,
            duplicates: 0,
            config,
        }
    }

    /// Opens the connection, if the receiver does that.
    pub fn open(&mut self, now: Instant) {
        if !self.is_open && self.config.opening == Opening::ByReceiver {
            self.opening_due = Some(now);
        }
    }

    /// Sets the receive window to `bytes` beyond the data in order, for an application that does
    /// not read at once. A window that opens by two segments is announced.
    ///
    /// Source: RFC 9293 section 3.8.6.2.2 (the receiver's avoidance of silly windows). Deviates:
    /// what was announced before is taken even where the window has become smaller.
    pub fn set_window(&mut self, bytes: u64) {
        self.window = u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .min(self.config.receive_window);
        let opened = (self.next + u64::from(self.window)).saturating_sub(self.edge);
        self.owes_ack |= self.is_open && opened >= 2 * u64::from(self.config.segment);
    }

    /// Returns whether the other end has answered.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns the bytes received in order.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.next
    }

    /// Returns the number of segments that arrived before an earlier one.
    #[must_use]
    pub fn out_of_order(&self) -> u64 {
        self.out_of_order
    }

    /// Returns the number of segments received more than once.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Handles a segment sent at `sent`; returns the number of bytes that have become in order.
    pub fn handle_segment(&mut self, segment: &Segment, sent: Instant, ecn: Ecn, now: Instant) -> u64 {
        if segment.has(flag::SYN) {
            self.on_opening();
        }
        if segment.payload == 0 {
            return 0;
        }
        self.is_open = true;
        self.opening_due = None;
        self.note_marks(segment, ecn);
        if !self.has_echo {
            (self.echo, self.has_echo) = (sent, true);
        }
        let end = segment.sequence + u64::from(segment.payload);
        let is_new = segment.sequence >= self.next || end > self.next;
        let had_holes = !self.beyond.is_empty();
        if !is_new {
            self.on_duplicate(segment.payload);
            return 0;
        }
        if segment.sequence > self.next {
            self.on_beyond(segment.sequence, end);
            return 0;
        }
        let before = self.next;
        self.next = self.beyond.advance(end);
        self.unacknowledged += u32::from(segment.payload.div_ceil(self.config.segment));
        if had_holes || self.config.delayed_ack.is_none() || self.unacknowledged >= 2 || self.quick_acks > 0 {
            // A segment that fills a hole is acknowledged at once (RFC 5681 section 4.2).
            self.quick_acks = self.quick_acks.saturating_sub(1);
            self.owes_ack = true;
        } else if let Some(delay) = self.config.delayed_ack {
            self.ack_due.get_or_insert(now + delay);
        }
        self.next - before
    }

    /// Returns when [`Self::poll_transmit`] may have an output without further segments.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match (self.opening_due, self.ack_due) {
            (Some(opening), Some(ack)) => Some(opening.min(ack)),
            (opening, ack) => opening.or(ack),
        }
    }

    /// Returns the next acknowledgement.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Segment> {
        if std::mem::take(&mut self.owes_synack) {
            return Some(self.answer(flag::SYN | flag::ACK));
        }
        if self.opening_due.is_some_and(|due| due <= now) {
            self.opening_due = Some(now + self.opening_timeout);
            self.opening_timeout *= 2;
            return Some(Segment {
                window: self.window,
                flags: flag::SYN,
                ..Segment::default()
            });
        }
        let is_late = self.ack_due.is_some_and(|due| due <= now);
        (self.owes_ack || is_late).then(|| self.acknowledge())
    }

    fn on_opening(&mut self) {
        match self.config.opening {
            Opening::BySender | Opening::Open => self.owes_synack = true,
            Opening::ByReceiver => {
                self.is_open = true;
                self.opening_due = None;
                self.owes_ack = true;
            }
        }
    }

    /// Source: RFC 3168 section 6.1.3: echoes until the sender says that it has reduced its window.
    fn note_marks(&mut self, segment: &Segment, ecn: Ecn) {
        if segment.has(flag::CWR) {
            self.sees_marks = false;
        }
        if ecn == Ecn::Marked {
            self.sees_marks = true;
            self.owes_ack = true;
        }
    }

    fn on_duplicate(&mut self, payload: u16) {
        self.duplicates += 1;
        self.duplicate = payload;
        self.owes_ack = true;
    }

    fn on_beyond(&mut self, start: u64, end: u64) {
        self.owes_ack = true;
        if end > self.next + u64::from(self.config.receive_window) {
            return;
        }
        if self.beyond.insert(start, end, |_, _| {}) {
            self.out_of_order += 1;
            if let Some((first, _)) = self.beyond.around(start)
                && self.recent[0] != first
            {
                self.recent = [start, self.recent[0], self.recent[1]];
            } else {
                self.recent[0] = start;
            }
        } else {
            self.on_duplicate((end - start) as u16);
        }
    }

    fn acknowledge(&mut self) -> Segment {
        self.owes_ack = false;
        self.ack_due = None;
        self.unacknowledged = 0;
        let mut segment = self.answer(flag::ACK);
        if self.config.recovery.is_selective() {
            segment.sack = self.blocks();
            segment.duplicate = std::mem::take(&mut self.duplicate);
        }
        if self.config.recovery.undoes() && std::mem::take(&mut self.has_echo) {
            segment.echo = self.echo;
        }
        segment
    }

    fn answer(&mut self, flags: u8) -> Segment {
        self.edge = self.edge.max(self.next + u64::from(self.window));
        let echo = if self.sees_marks { flag::ECE } else { 0 };
        Segment {
            ack: self.next,
            window: self.window,
            flags: flags | echo,
            ..Segment::default()
        }
    }

    /// The blocks around what arrived lately, then the highest. Source: RFC 2018 section 4.
    fn blocks(&self) -> Sack {
        let mut sack = Sack::default();
        if self.beyond.is_empty() {
            return sack;
        }
        let lately = self.recent.iter().filter_map(|at| self.beyond.around(*at));
        let highest = self.beyond.last();
        let mut known = [(0, 0); 4];
        let mut count = 0;
        for block in lately.chain(highest) {
            if known[..count].contains(&block) {
                continue;
            }
            known[count] = block;
            count += 1;
            let from_ack = |at: u64| u32::try_from(at - self.next).unwrap_or(u32::MAX);
            if !sack.push(from_ack(block.0), from_ack(block.1)) {
                break;
            }
        }
        sack
    }
}
