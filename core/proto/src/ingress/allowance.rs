//! How many reports, probes and answers a peer may send.

use hawser_units::Instant;

/// So many in a millisecond, and at once. A receiver reports on a path once in a millisecond at
/// most, and by another path as well: this is what sixteen busy paths send, or eight that lose.
const PER_MILLISECOND: u64 = 16;
/// What 16 ms allow, as a receiving thread may be that late.
const AT_ONCE: u64 = 256;

/// Counts what a peer sends that is work for the sending half: each report is looked up in what was
/// sent, each probe is answered.
///
/// A peer that sends more loses the rest, as if the network had lost it: reports are cumulative,
/// probes are repeated.
#[derive(Debug)]
pub(super) struct Allowance {
    left: u64,
    since: Instant,
}

impl Default for Allowance {
    fn default() -> Self {
        Self {
            left: AT_ONCE,
            since: Instant::ZERO,
        }
    }
}

impl Allowance {
    /// Takes one, if there is one left.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let milliseconds = now.since(self.since).as_millis() as u64;
        if milliseconds > 0 {
            let earned = milliseconds.saturating_mul(PER_MILLISECOND);
            self.left = self.left.saturating_add(earned).min(AT_ONCE);
            self.since = now;
        }
        let is_left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_units::Duration;

    #[test]
    fn a_flood_gets_its_share_and_a_steady_peer_all() {
        let mut allowance = Allowance::default();
        let mut now = Instant::from_nanos(1_000_000_000);
        let mut taken = 0;
        for _ in 0..1_000_000 {
            now += Duration::from_micros(1);
            taken += u64::from(allowance.take(now));
        }
        assert!((16_000..=16_300).contains(&taken), "{taken}");
        now += Duration::from_secs(1);
        for _ in 0..10_000 {
            now += Duration::from_micros(250);
            assert!(allowance.take(now));
        }
    }
}
