//! Applications over both ends: transfers whose window halves at a loss, and streams of a fixed
//! rate.

use hawser_units::{Duration, Instant};
use hawser_wire::inner::protocol;

use super::ms;

/// Behaviour of an application.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// A transfer whose window halves at a loss, like TCP's.
    Bulk,
    /// Like `Bulk`, in packets of this length, each in its own buffer, so that they are not
    /// segmented.
    Whole(u64),
    /// Packets at a fixed rate, without a reaction to losses.
    Open { mbps: f64, len: u64, kind: u8 },
}

#[derive(Debug)]
pub(super) struct Application {
    pub(super) from: usize,
    pub(super) flow: u16,
    pub(super) work: Work,
    pub(super) start: Instant,
    pub(super) stop: Instant,
    pub(super) next: u64,
    pub(super) at: Instant,
    pub(super) window: f64,
    pub(super) threshold: f64,
    pub(super) newest: u64,
    pub(super) holes: u64,
    pub(super) recover: u64,
    pub(super) heard: Instant,
}

impl Application {
    pub(super) fn due(&self) -> Instant {
        let at = match self.work {
            Work::Bulk | Work::Whole(_) => self.at,
            Work::Open { .. } => self.at,
        };
        if at >= self.stop {
            Instant::FAR_FUTURE
        } else {
            at.max(self.start)
        }
    }

    fn in_flight(&self) -> f64 {
        (self.next - self.newest) as f64
    }

    /// Returns protocol, packet length and number of segments to offer now.
    pub(super) fn poll(&mut self, now: Instant) -> Option<(u8, u64, u16)> {
        if now < self.start || now >= self.stop {
            return None;
        }
        match self.work {
            Work::Bulk | Work::Whole(_) => {
                if now.since(self.heard) > ms(400) {
                    // All packets are considered lost, as after a retransmission timeout.
                    (self.newest, self.heard) = (self.next, now);
                    (self.threshold, self.window) = ((self.window / 2.0).max(2.0), 10.0);
                }
                self.at = self.heard + ms(400) + Duration::from_nanos(1);
                let room = (self.window - self.in_flight()).floor();
                if let Work::Whole(len) = self.work {
                    return (room >= 1.0).then_some((protocol::TCP, len, 1));
                }
                let run = (self.window / 8.0).clamp(2.0, 44.0);
                (room >= run).then_some((protocol::TCP, 1200, run as u16))
            }
            Work::Open { mbps, len, kind } => {
                if now < self.at {
                    return None;
                }
                self.at += Duration::from_secs_f64(len as f64 * 8.0 / (mbps * 1e6));
                Some((kind, len, 1))
            }
        }
    }

    pub(super) fn on_ack(&mut self, count: u64, newest: u64, now: Instant) {
        self.heard = now;
        let acknowledged = newest.saturating_sub(self.newest);
        self.newest = self.newest.max(newest);
        let holes = newest.saturating_sub(count);
        if holes > self.holes && newest > self.recover {
            self.window = (self.window * 0.7).max(4.0);
            self.threshold = self.window;
            self.recover = self.next;
        } else if self.window < self.threshold {
            self.window += acknowledged as f64;
        } else {
            self.window += 3.0 * acknowledged as f64 / self.window;
        }
        self.window = self.window.min(4_000.0);
        self.holes = self.holes.max(holes);
    }
}
