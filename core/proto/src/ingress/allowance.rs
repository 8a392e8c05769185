//! Rate limit of the reports, probes and answers of a peer.

use hawser_units::Instant;

/// Messages allowed per millisecond. Source: a receiver reports on a path at most once per
/// `REPORT_URGENT` of `ingress.rs`, and over another path as well, so this is what sixteen busy
/// paths send, or eight with losses.
const PER_MILLISECOND: u64 = 16;
/// Burst: the messages of 16 ms, since a receiving thread may be that late. Source: 16 ms at
/// [`PER_MILLISECOND`].
const AT_ONCE: u64 = 16 * PER_MILLISECOND;

/// Limits the packets of a peer that cause work for the sending half: each report is compared with
/// the sent packets, and each probe is answered.
///
/// Excess packets are dropped, as if the network had lost them: reports are cumulative, and probes
/// are repeated.
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
    /// Uses one unit of the allowance; returns false if there is none.
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
