//! Black hole detection: evidence that a path drops large packets and transfers small ones.
//!
//! Source: RFC 8899 section 4.3. Deviates: the evidence is the path's own reports, which count
//! bytes, so detection takes one round trip and no timer. Limitations: where small packets are lost
//! in the same report, a large packet that arrived may go unnoticed. A false suspicion costs one
//! probe.

use hawser_units::Instant;
use hawser_wire::data::FRAMING;

use super::Path;

/// Packets that would not fit on a path with a smaller MTU.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Large {
    /// Data packets.
    pub(super) packets: u32,
    /// Their bytes, and those of probes: UDP payload.
    pub(super) bytes: u64,
}

/// Packets between two reports. Units: bytes of UDP payload.
#[derive(Clone, Copy, Debug)]
struct Interval {
    /// Large packets that were sent, without probes.
    large: u32,
    /// Bytes of the small packets that were sent.
    small_bytes: u64,
    /// Bytes that arrived.
    came: u64,
}

/// Counts consecutive large packets that have not arrived.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlackHole {
    lost: u32,
}

impl BlackHole {
    /// Processes a report. Returns how many large packets in a row have not arrived.
    fn on_report(&mut self, interval: Interval) -> u32 {
        if interval.came > interval.small_bytes {
            self.lost = 0;
        } else {
            self.lost = self.lost.saturating_add(interval.large);
        }
        self.lost
    }
}

impl Path {
    /// Counts a packet that is larger than the size that is known to pass.
    pub(super) fn note_large(&mut self, udp_bytes: u64, eliciting: bool) {
        let outer = udp_bytes + u64::from(self.pmtu.overhead()).saturating_sub(FRAMING as u64);
        if self.pmtu.fallback().is_some_and(|size| outer > u64::from(size)) {
            self.large.bytes += udp_bytes;
            self.large.packets += u32::from(eliciting);
        }
    }

    /// Starts to doubt the packet size if large packets are lost and small ones arrive.
    pub(super) fn on_sizes(&mut self, highest: u64, previous: Option<u64>, came: u64, now: Instant) {
        let known = |packet_number: &u64| self.remembers(*packet_number);
        let (Some(previous), true) = (previous.filter(known), known(&highest)) else {
            return;
        };
        if previous + 1 < self.doubted_before {
            return;
        }
        let (first, last) = (self.sent(previous), self.sent(highest));
        let large = last.large.bytes - first.large.bytes;
        let interval = Interval {
            large: last.large.packets - first.large.packets,
            small_bytes: last.cumulative - first.cumulative - large,
            came,
        };
        if self.black_hole.on_report(interval) >= self.pmtu.doubted_after(now) {
            self.black_hole = BlackHole::default();
            self.doubted_before = self.next_packet_number;
            self.pmtu.suspect(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_large_packets_until_one_arrives() {
        let mut hole = BlackHole::default();
        let report = |large, small_bytes, came| Interval {
            large,
            small_bytes,
            came,
        };
        assert_eq!(hole.on_report(report(0, 100, 100)), 0, "nothing large was sent");
        assert_eq!(hole.on_report(report(2, 100, 100)), 2);
        assert_eq!(hole.on_report(report(1, 100, 50)), 3);
        assert_eq!(hole.on_report(report(5, 100, 1_500)), 0, "one of five arrived");
        assert_eq!(hole.on_report(report(1, 100, 0)), 1);
        assert_eq!(hole.on_report(report(0, 100, 1_500)), 0, "it was late");
    }
}
