//! A small request and its echo, at a fixed interval.

use hawser_units::{Duration, Instant};

use super::datagram::UDP_HEADER;
use crate::host::{Application, Outgoing};
use crate::packet::{Body, Datagram, Ecn, Packet};

/// Sends requests periodically.
#[derive(Clone, Debug)]
pub struct Pinger {
    interval: Duration,
    due: Instant,
    end: Instant,
    sent: u64,
    trips: Vec<u64>,
}

impl Pinger {
    /// Creates a source of requests, every `interval` from `start` until `end`.
    #[must_use]
    pub fn new(interval: Duration, (start, end): (Instant, Instant)) -> Self {
        Self {
            interval,
            due: start,
            end,
            sent: 0,
            trips: Vec::new(),
        }
    }

    /// Returns the number of requests sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the round-trip times in order of arrival. Units: nanoseconds.
    #[must_use]
    pub fn trips(&self) -> &[u64] {
        &self.trips
    }
}

impl Application for Pinger {
    fn handle_packet(&mut self, _way: usize, packet: &Packet, now: Instant) {
        if let Body::Datagram(datagram) = packet.body {
            self.trips.push(now.since(datagram.stamp).as_nanos() as u64);
        }
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        if now < self.due || self.due >= self.end {
            return None;
        }
        let number = self.sent;
        self.sent += 1;
        self.due += self.interval;
        let datagram = Datagram {
            number,
            stamp: now,
            mark: 0,
        };
        Some(request(Body::Datagram(datagram)))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (self.due < self.end).then_some(self.due)
    }
}

/// Answers every request.
#[derive(Clone, Debug, Default)]
pub struct Echo {
    owed: std::collections::VecDeque<Body>,
}

impl Application for Echo {
    fn handle_packet(&mut self, _way: usize, packet: &Packet, _now: Instant) {
        self.owed.push_back(packet.body);
    }

    fn poll_transmit(&mut self, _now: Instant) -> Option<Outgoing> {
        self.owed.pop_front().map(request)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

fn request(body: Body) -> Outgoing {
    Outgoing {
        way: 0,
        size: PAYLOAD + UDP_HEADER,
        ecn: Ecn::NotCapable,
        body,
    }
}

/// Payload of a ping. Source: ping(8), and the lab's pings.
const PAYLOAD: u16 = 56;
