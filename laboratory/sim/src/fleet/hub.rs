//! Hub of a fleet, which handles the packets of attempts.

use hawser_units::{Duration, Instant};

use super::client::{Attempt, Kind, Outcome};
use super::{Event, WAITING, World};

/// State of one hub.
pub(super) struct Hub {
    pub(super) region: u16,
    pub(super) is_down: bool,
    pub(super) is_draining: bool,
    /// Time when it has processed all waiting handshakes.
    pub(super) busy_until: Instant,
}

impl Hub {
    pub(super) fn new(region: u16) -> Self {
        Self {
            region,
            is_down: false,
            is_draining: false,
            busy_until: Instant::ZERO,
        }
    }
}

impl World<'_> {
    /// Sends the packet of an attempt, after this many lost ones.
    pub(super) fn send(&mut self, attempt: Attempt, lost: u8) {
        let way = self.round_trip_to(attempt.client, attempt.hub) / 2;
        self.after(way, Event::Arrived(attempt, lost));
    }

    /// Handles the packet of an attempt at its hub.
    pub(super) fn on_arrived(&mut self, attempt: Attempt, lost: u8) {
        if !self.clients[attempt.client as usize].is_waiting_for(&attempt) {
            return;
        }
        let way = self.round_trip_to(attempt.client, attempt.hub);
        let answer = if self.random.chance(self.config.loss) {
            None
        } else {
            self.answer(&attempt)
        };
        let Some((work, outcome)) = answer else {
            let (first, timeout) = match attempt.kind {
                Kind::Handshake | Kind::Measurement => (FIRST_TIMEOUT, TIMEOUT),
                Kind::Hello => (way + way / 2, HELLO_TIMEOUT),
            };
            // This packet has already taken half a round trip.
            let wait = first * 2_u32.pow(u32::from(lost));
            if self.now + wait > attempt.begun + timeout {
                let left = (attempt.begun + timeout).since(self.now);
                return self.after(left, Event::Ended(attempt, Outcome::NoAnswer));
            }
            return self.after(wait, Event::Arrived(attempt, lost + 1));
        };
        self.after(work + way / 2, Event::Ended(attempt, outcome));
    }

    /// Returns the delay and the content of a hub's answer; `None` if the hub is down or
    /// overloaded.
    fn answer(&mut self, attempt: &Attempt) -> Option<(Duration, Outcome)> {
        if !self.is_up(attempt.hub) {
            return None;
        }
        let is_open = self.is_open(attempt.hub);
        let now = self.now;
        let hub = &mut self.hubs[usize::from(attempt.hub)];
        match attempt.kind {
            Kind::Handshake | Kind::Measurement => {
                let each = Duration::from_secs_f64(1.0 / self.config.handshakes);
                let waits = hub.busy_until.since(now);
                if waits.as_secs_f64() * self.config.handshakes > WAITING {
                    self.report.dropped += 1;
                    return None;
                }
                hub.busy_until = hub.busy_until.max(now) + each;
                self.report.handshakes += 1;
                let longest = &mut self.report.longest_queue_s;
                *longest = longest.max((waits + each).as_secs_f64());
                Some((waits + each, Outcome::Answered))
            }
            Kind::Hello if is_open => {
                self.report.hellos += 1;
                Some((Duration::ZERO, Outcome::Welcomed))
            }
            Kind::Hello => Some((Duration::ZERO, Outcome::Busy)),
        }
    }
}

/// Time until the first packet of a handshake is retransmitted: three times the round trip that the
/// daemon assumes (RFC 9002 section 6.2.2; `system/control/src/tls.rs`, `FIRST_ROUND_TRIP`).
const FIRST_TIMEOUT: Duration = Duration::from_millis(300);
/// Timeout of a handshake. Source: `TIMEOUT` of `system/control/src/client.rs`.
const TIMEOUT: Duration = Duration::from_secs(8);
/// Timeout of a hello. Source: `HELLO_TIMEOUT` of `system/control/src/client.rs`.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
