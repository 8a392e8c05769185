//! Evidence that a path drops large packets and transfers small ones.
//!
//! Source: RFC 8899 section 4.3 (black hole detection). Deviates: the evidence is the path's own
//! reports, which count bytes, so a doubt takes one round trip and no timer. Limitations: where
//! small packets are lost in the same report, a large one that arrived may go unnoticed; a doubt
//! costs one probe.

/// Packets between two reports. Units: bytes of UDP payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    /// Large packets that were sent, without probes.
    pub(super) large: u32,
    /// Bytes of the small packets that were sent.
    pub(super) small_bytes: u64,
    /// Bytes that arrived.
    pub(super) came: u64,
}

/// Large packets in a row that have not arrived.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlackHole {
    lost: u32,
}

impl BlackHole {
    /// Takes in a report. Returns how many large packets in a row have not arrived.
    pub(super) fn on_report(&mut self, interval: Interval) -> u32 {
        if interval.came > interval.small_bytes {
            self.lost = 0;
        } else {
            self.lost = self.lost.saturating_add(interval.large);
        }
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_large_packets_until_one_arrives() {
        let mut hole = BlackHole::default();
        let report = |large, small_bytes, came| Interval { large, small_bytes, came };
        assert_eq!(hole.on_report(report(0, 100, 100)), 0, "nothing large was sent");
        assert_eq!(hole.on_report(report(2, 100, 100)), 2);
        assert_eq!(hole.on_report(report(1, 100, 50)), 3);
        assert_eq!(hole.on_report(report(5, 100, 1_500)), 0, "one of five arrived");
        assert_eq!(hole.on_report(report(1, 100, 0)), 1);
        assert_eq!(hole.on_report(report(0, 100, 1_500)), 0, "it was late");
    }
}
