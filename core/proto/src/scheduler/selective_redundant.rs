use hawser_units::{Duration, Instant};

use super::{Choice, Demand, EarliestDelivery, PathView, Scheduler};
use crate::fec::TOLERATED;
use crate::flow::behaviour::CALL_BUDGET;

/// Sends each packet on the path on which it arrives first, and copies on other paths while too
/// many packets would be lost: for flows whose packets are useless by the time that a loss is
/// detected and retransmitted.
///
/// Copies of a packet are sent on the paths on which they arrive next, until the share that all of
/// them lose together is tolerable. For a call a late packet is lost too, and the rate of one modem
/// falls without warning: its packets are always sent on two paths. Copies are omitted if they
/// would arrive later than a retransmission, those of a call if they would be too late, and while
/// the flows of this scheduler use more than a part of all paths: then copies would take rate from
/// the flows themselves.
///
/// Source: none published; the condition is that of forward error correction at a rate that follows
/// the measured loss, with the packet itself as its code. Cost: O(paths²) a packet while paths
/// lose, that of [`EarliestDelivery`] otherwise.
#[derive(Clone, Debug, Default)]
pub struct SelectiveRedundant {
    earliest: EarliestDelivery,
    /// Bytes of all flows, and of calls alone.
    all: Sent,
    calls: Sent,
}

/// Bytes chosen for in this window and the one before.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    now: u64,
    before: u64,
    since: Instant,
}

impl Sent {
    /// Adds a packet; returns the bytes of the fuller window.
    fn add(&mut self, bytes: u64, now: Instant) -> u64 {
        let windows = now.since(self.since).as_nanos() / WINDOW.as_nanos();
        if windows > 0 {
            self.before = if windows == 1 { self.now } else { 0 };
            (self.now, self.since) = (0, now);
        }
        self.now += bytes;
        self.now.max(self.before)
    }
}

impl SelectiveRedundant {
    /// Creates a scheduler that has sent nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether copies of these flows, or of calls alone, are a small part of the paths'
    /// capacity.
    fn is_sparse(&mut self, demand: &Demand, paths: &[PathView], now: Instant) -> bool {
        let all = self.all.add(demand.len.into(), now);
        let sent = match demand.is_call {
            true => self.calls.add(demand.len.into(), now),
            false => all,
        };
        let carried: u64 = paths.iter().map(|path| path.soon.rate().bytes_in(WINDOW).0).sum();
        sent <= carried / SPARSE_PART
    }

    /// The paths for the copies, `first` among them.
    fn copies(first: usize, is_call: bool, paths: &[PathView], now: Instant) -> u64 {
        let missed = |path: &PathView| {
            let late = if is_call { path.late } else { 0.0 };
            1.0 - (1.0 - path.loss) * (1.0 - late)
        };
        let mut longest_wait = paths[first].round_trip + LOSS_DETECTION;
        if is_call {
            longest_wait = longest_wait.max(CALL_BUDGET);
        }
        let latest = paths[first].arrival(now) + longest_wait;
        let (mut mask, mut loss) = (1_u64 << first, missed(&paths[first]));
        while loss > TOLERATED || (is_call && mask.count_ones() < CALL_PATHS) {
            let others = paths.iter().enumerate().take(64);
            let next = others
                .filter(|(at, path)| mask & 1 << at == 0 && path.is_ready(now) && path.arrival(now) < latest)
                .min_by_key(|(_, path)| path.arrival(now));
            let Some((at, path)) = next else { break };
            mask |= 1 << at;
            loss *= missed(path);
        }
        mask
    }
}

impl Scheduler for SelectiveRedundant {
    fn name(&self) -> &'static str {
        "selective-redundant"
    }

    fn choose(&mut self, demand: &Demand, paths: &[PathView], now: Instant) -> Choice {
        let choice = self.earliest.choose(demand, paths, now);
        let Choice::Send { path, .. } = choice else {
            return choice;
        };
        if !self.is_sparse(demand, paths, now) || path >= 64 {
            return choice;
        }
        match Self::copies(path, demand.is_call, paths, now) {
            mask if mask.count_ones() > 1 => Choice::Duplicate(mask),
            _ => choice,
        }
    }
}

/// Time to detect a loss beyond the round trip. Source: our choice, two of the reports, which are 5
/// ms apart (`REPORT_INTERVAL` of `ingress.rs`); a longer one copies more packets that a
/// retransmission would replace in time.
pub(crate) const LOSS_DETECTION: Duration = Duration::from_millis(10);
/// Number of paths on which each packet of a call is sent, if there are as many. Source: two pairs
/// of recorded drives and one of walks, a call alone: its 99th percentile falls from 76 to 42 ms,
/// from 104 to 78 and from 95 to 31; the lower bound of any scheduler is 39, 71 and 31 (`hawser-lab
/// oracle --delay`).
const CALL_PATHS: u32 = 2;
/// Averaging time of the flows' rate. Source: our choice, a dozen pictures of a video of 25 a
/// second; a shorter one takes a large picture for the rate, with a longer one a transfer is copied
/// for longer at its start.
const WINDOW: Duration = Duration::from_millis(500);
/// Inverse of the share of all paths from which a flow is not copied. Source: our choice, since a
/// copy of a flow doubles its rate, so that copies take at most another quarter of the paths; more
/// redundancy would delay other flows.
const SPARSE_PART: u64 = 4;

#[cfg(test)]
mod tests {
    use super::super::tests::{demand, open};
    use super::*;
    use hawser_units::InnerBytes;

    const NOW: Instant = Instant::from_nanos(10_000_000_000);

    fn with_loss<const N: usize>(losses: [f64; N]) -> Vec<PathView> {
        let path = |(at, loss): (usize, f64)| PathView {
            loss,
            ..open(at as u16 + 1, 50, 20 + 5 * at as u64)
        };
        losses.into_iter().enumerate().map(path).collect()
    }

    fn choose(paths: &[PathView]) -> Choice {
        SelectiveRedundant::new().choose(&demand(200, 1), paths, NOW)
    }

    #[test]
    fn copies_until_the_loss_of_all_together_is_tolerable() {
        assert_eq!(
            choose(&with_loss([0.0, 0.02])),
            Choice::Send { path: 0, packets: 1 }
        );
        let tolerated = Choice::Send { path: 0, packets: 1 };
        assert_eq!(choose(&with_loss([TOLERATED, 0.0])), tolerated);
        assert_eq!(choose(&with_loss([0.02, 0.02, 0.0])), Choice::Duplicate(0b11));
        assert_eq!(choose(&with_loss([0.1, 0.1, 0.02])), Choice::Duplicate(0b111));
        assert_eq!(choose(&with_loss([0.3])), Choice::Send { path: 0, packets: 1 });
    }

    #[test]
    fn a_copy_that_a_retransmission_would_overtake_is_left_out() {
        let mut paths = with_loss([0.02, 0.0]);
        paths[1].delay = Duration::from_millis(300);
        assert_eq!(choose(&paths), Choice::Send { path: 0, packets: 1 });
        paths[1].delay = Duration::from_millis(30);
        assert_eq!(choose(&paths), Choice::Duplicate(0b11));
        paths[1].window = InnerBytes(0);
        assert_eq!(choose(&paths), Choice::Send { path: 0, packets: 1 });
    }

    #[test]
    fn a_call_goes_over_two_paths_that_lose_nothing_and_a_video_over_one() {
        let paths = with_loss([0.0, 0.0, 0.0]);
        let call = Demand {
            is_call: true,
            ..demand(200, 1)
        };
        let choose =
            |demand: &Demand, paths: &[PathView]| SelectiveRedundant::new().choose(demand, paths, NOW);
        assert_eq!(choose(&call, &paths), Choice::Duplicate(0b11));
        assert_eq!(
            choose(&demand(200, 1), &paths),
            Choice::Send { path: 0, packets: 1 }
        );
        let mut far = paths.clone();
        far[1].delay = Duration::from_millis(300);
        far[2].delay = Duration::from_millis(300);
        assert_eq!(
            choose(&call, &far),
            Choice::Send { path: 0, packets: 1 },
            "copies would be late"
        );
    }

    #[test]
    fn what_takes_much_of_the_paths_is_not_copied() {
        let paths = with_loss([0.02, 0.02]);
        let mut scheduler = SelectiveRedundant::new();
        // 100 Mbit/s of both paths: a quarter is 1.56 MB in half a second.
        let choices: Vec<_> = (0..1200)
            .map(|_| scheduler.choose(&demand(1400, 1), &paths, NOW))
            .collect();
        assert_eq!(choices[0], Choice::Duplicate(0b11));
        assert!(matches!(choices[1199], Choice::Send { .. }));
        let later = NOW + WINDOW * 3;
        assert_eq!(
            scheduler.choose(&demand(1400, 1), &paths, later),
            Choice::Duplicate(0b11)
        );
    }
}
