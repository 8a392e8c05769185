//! Opening of a connection by the sender of the data.

use hawser_units::Instant;

use super::{Sender, State};
use crate::packet::{Segment, flag};
use crate::tcp::Opening;

impl Sender {
    pub(super) fn on_opening(&mut self, segment: &Segment, now: Instant) {
        match self.config.opening {
            Opening::BySender if self.state == State::Opening && segment.has(flag::SYN) => {
                self.state = State::Open;
                self.opening_due = None;
                self.measure(now.since(self.opening_sent));
                self.right_edge = u64::from(segment.window);
            }
            Opening::ByReceiver if segment.has(flag::SYN) => {
                self.state = State::Opening;
                self.opening_due = Some(now);
            }
            Opening::ByReceiver if self.state == State::Opening && segment.has(flag::ACK) => {
                self.state = State::Open;
                self.opening_due = None;
                self.measure(now.since(self.opening_sent));
            }
            Opening::BySender | Opening::ByReceiver | Opening::Open => {}
        }
    }

    pub(super) fn poll_opening(&mut self, now: Instant) -> Option<Segment> {
        let is_due = self.opening_due.is_some_and(|due| due <= now);
        if !is_due && !std::mem::take(&mut self.owes_synack) {
            return None;
        }
        if is_due {
            self.opening_sent = now;
            self.opening_due = Some(self.round_trip.deadline(now));
            self.round_trip.back_off();
        }
        let flags = match self.config.opening {
            Opening::BySender | Opening::Open => flag::SYN,
            Opening::ByReceiver => flag::SYN | flag::ACK,
        };
        Some(Segment {
            flags,
            ..Segment::default()
        })
    }
}
