//! A hub: what it does with the packets of attempts.

use hawser_units::{Duration, Instant};

use super::client::{Attempt, Kind, Outcome};
use super::{Event, WAITING, World};

/// One hub.
pub(super) struct Hub {
    pub(super) region: u16,
    pub(super) is_down: bool,
    pub(super) is_draining: bool,
    /// When it has taken all handshakes that wait.
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
    /// Sends the packet of an attempt, after so many that were lost.
    pub(super) fn send(&mut self, attempt: Attempt, lost: u8) {
        let way = self.way_to(attempt.client, attempt.hub) / 2;
        self.after(way, Event::Arrived(attempt, lost));
    }

    /// The packet of an attempt comes to its hub.
    pub(super) fn on_arrived(&mut self, attempt: Attempt, lost: u8) {
        if !self.clients[attempt.client as usize].is_waiting_for(&attempt) {
            return;
        }
        let way = self.way_to(attempt.client, attempt.hub);
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
            // This one was on its way for half a round trip.
            let wait = first * 2_u32.pow(u32::from(lost));
            if self.now + wait > attempt.begun + timeout {
                let left = (attempt.begun + timeout).since(self.now);
                return self.after(left, Event::Ended(attempt, Outcome::NoAnswer));
            }
            return self.after(wait, Event::Arrived(attempt, lost + 1));
        };
        self.after(work + way / 2, Event::Ended(attempt, outcome));
    }

    /// What a hub answers, and how long it takes to; nothing where it is not there, or has too much
    /// to do.
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

/// When the first packet of a handshake is sent again: three times the round trip that the daemon
/// assumes (RFC 9002 section 6.2.2; `system/control/src/tls.rs`, `FIRST_ROUND_TRIP`).
const FIRST_TIMEOUT: Duration = Duration::from_millis(300);
/// For how long a handshake is tried (`system/control/src/client.rs`).
const TIMEOUT: Duration = Duration::from_secs(8);
/// The same of a hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
