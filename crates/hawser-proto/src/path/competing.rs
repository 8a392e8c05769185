//! Others in a path's queue: how they are noticed, and the window that takes the share beside them that a CUBIC sender would.
//!
//! The window grows by RFC 9438's function of the time since the last overflow, in bytes. Now and then a *look* holds back for a round: alone in the
//! queue, that shortens it by all that was held back; beside others, by this path's share of it.
//!
//! Source: RFC 9438 sections 4.2 to 4.7; Copa (Arun and Balakrishnan, NSDI 2018) section 2.2 for competing only while it is needed.

use hawser_units::{Bytes, Duration, Instant, Rate};

use super::FULL_PACKET;

/// What RFC 9438 calls a segment. Units: bytes.
const SEGMENT: f64 = FULL_PACKET as f64;
const MIN_WINDOW: f64 = 4.0 * SEGMENT;
/// RFC 9438 section 4.6.
const BETA: f64 = 0.7;
/// RFC 9438 section 5.1. Units: segments over seconds cubed.
const C: f64 = 0.4;
/// RFC 9438 section 4.3.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Growth in a round trip before the first overflow. Source: Linux `bictcp_update`: a segment for at most 20 acknowledged ones.
const FIRST_GROWTH: f64 = 1.05;
/// Share of the window that has to be in use for it to grow.
const IN_USE: f64 = 0.9;
/// Rounds between two looks.
const LOOK_AFTER: u32 = 16;
/// What a look leaves of what was in flight.
const HELD_BACK: f64 = 0.7;
/// A queue that shortens by this share of what was held back is one's own.
const OWN: f64 = 0.8;
/// Rounds without a queue after which the others count as gone: more than a CUBIC sender needs to fill a short one again.
const UNQUEUED: u32 = 32;

/// Rounds in a row in which holding back did not shorten the queue that say that others fill it.
const IN_VAIN: u32 = 3;
/// A queue that is left of one that yields, and a rate that is left where others take over: beyond what one round differs from the next.
const YIELDING: f64 = 0.95;
const FALLING: f64 = 0.97;
/// Losses are unusual at so many times what is lost without a queue.
const UNUSUAL: f64 = 3.0;

/// What a round showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// The shortest queue, if one stood.
    pub(super) queue: Option<Duration>,
    /// The delivery rate.
    pub(super) rate: Rate,
    /// Bytes in flight at its end.
    pub(super) in_flight: u64,
    /// Less was sent than the path delivered.
    pub(super) holds_back: bool,
}

/// Signs of others on a path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rivals {
    /// Rounds of holding back in vain.
    in_vain: u32,
    /// The most that was in flight of late before the first of them.
    flight: u64,
    last_queue: Duration,
    last_rate: Rate,
    usual_loss: f64,
}

impl Rivals {
    /// Takes in a round; gives what was in flight before if a queue does not yield although the path holds back and delivers ever less. Alone, a path
    /// delivers at the link's rate as long as there is a queue, and a queue that gets less than that shortens.
    pub(super) fn on_round(&mut self, seen: &Seen) -> Option<u64> {
        if self.in_vain == 0 && !seen.holds_back {
            self.flight = seen.in_flight.max(self.flight - self.flight / 8);
        }
        match seen.queue {
            None => self.in_vain = 0,
            Some(queue) => {
                let yields = queue < self.last_queue.mul_f64(YIELDING);
                let falls = seen.rate < self.last_rate.scale(FALLING);
                self.in_vain += u32::from(seen.holds_back && !yields && falls);
            }
        }
        self.last_queue = seen.queue.unwrap_or_default();
        self.last_rate = seen.rate;
        if self.in_vain < IN_VAIN {
            return None;
        }
        self.in_vain = 0;
        Some(self.flight)
    }

    /// So many of the `sent` packets of a round without a queue were lost.
    pub(super) fn on_usual_loss(&mut self, lost: u64, sent: f64) {
        if sent > 0.0 {
            self.usual_loss += (lost as f64 / sent - self.usual_loss) / 8.0;
        }
    }

    /// Whether so many lost packets are more than chance.
    pub(super) fn is_unusual(&self, lost: u64, sent: f64) -> bool {
        lost as f64 > UNUSUAL * self.usual_loss * sent
    }
}

/// The window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Competing {
    window: f64,
    /// The window before the last overflow.
    max: f64,
    /// The window of a Reno sender with the same average.
    reno: f64,
    has_overflowed: bool,
    since: Instant,
    /// Seconds until the window is `max` again.
    k: f64,
    /// Nothing sent before is another sign of the same overflow.
    cut_until: u64,
    rounds: u32,
    unqueued: u32,
    /// While a look goes on: the queue before it, and what may be in flight.
    look: Option<(Duration, u64)>,
}

impl Competing {
    /// Begins with `flight` bytes.
    pub(super) fn new(flight: u64, now: Instant) -> Self {
        let window = (flight as f64).max(MIN_WINDOW);
        Self {
            window,
            max: window,
            reno: window,
            has_overflowed: false,
            since: now,
            k: 0.0,
            cut_until: 0,
            rounds: 0,
            unqueued: 0,
            look: None,
        }
    }

    /// Bytes that may be in flight.
    pub(super) fn window(&self) -> u64 {
        self.look.map_or(self.window as u64, |(_, window)| window)
    }

    /// Takes note of `reported` bytes that were delivered, with `in_flight` bytes still on their way.
    pub(super) fn on_reported(&mut self, reported: u64, in_flight: u64, round_trip: Duration, now: Instant) {
        let reported = reported as f64;
        if in_flight as f64 + reported < self.window() as f64 * IN_USE {
            return;
        }
        let t = (now.since(self.since) + round_trip).as_secs_f64() - self.k;
        let cubic = self.max + C * t.powi(3) * SEGMENT;
        self.reno += ALPHA * SEGMENT * reported / self.window;
        let least = if self.has_overflowed { 1.0 } else { FIRST_GROWTH };
        let target = cubic.max(self.reno).clamp(self.window * least, self.window * 1.5);
        self.window += (target - self.window) * (reported / self.window).min(1.0);
    }

    /// The queue has overflowed; `counters` are the newest one reported and the one to be sent next.
    pub(super) fn on_overflow(&mut self, counters: (u64, u64), now: Instant) {
        if counters.0 < self.cut_until {
            return;
        }
        // Fast convergence, RFC 9438 section 4.7.
        self.max = if self.window < self.max {
            self.window * f64::midpoint(1.0, BETA)
        } else {
            self.window
        };
        self.window = (self.window * BETA).max(MIN_WINDOW);
        self.reno = self.window;
        self.k = ((self.max - self.window).max(0.0) / SEGMENT / C).cbrt();
        self.since = now;
        self.cut_until = counters.1;
        self.has_overflowed = true;
        self.rounds = 0;
        self.look = None;
    }

    /// Takes in a round; says whether nobody else is there.
    pub(super) fn is_alone(&mut self, seen: &Seen) -> bool {
        self.rounds += 1;
        self.unqueued = if seen.queue.is_some() {
            0
        } else {
            self.unqueued + 1
        };
        let queue = seen.queue.unwrap_or_default();
        if let Some((before, window)) = self.look.take() {
            let held_back = Bytes((window as f64 / HELD_BACK) as u64 - window);
            let expected = seen.rate.time_for(held_back).min(before);
            let packet = seen.rate.time_for(Bytes(FULL_PACKET));
            let shorter = before.saturating_sub(queue) + packet;
            return shorter.as_secs_f64() > OWN * expected.as_secs_f64();
        }
        if self.rounds >= LOOK_AFTER && seen.queue.is_some() {
            self.rounds = 0;
            self.look = Some((queue, (seen.in_flight as f64 * HELD_BACK) as u64));
        }
        self.unqueued >= UNQUEUED
    }
}
