//! Detection of a slow link by a queue that persists while the link delivers little.
//!
//! The size-dependent delay shows a slow link's rate ([`super::own_time`]) once packets of two
//! sizes have passed. If small packets fill the link, no larger one passes. Then the delivery rate
//! while the queue persists is the link's rate, less the headers that the link counts.
//!
//! ```text
//!            a long queue for STANDS_FOR, little delivered
//!   unknown ----------------------------------------------> saturated, at a rate
//!      ^                                                        | raised while no queue is long
//!      +------------- more than SLOW delivered, or raised to it +
//! ```
//!
//! It is wrong if other senders fill a fast link's queue for longer than this while this side sends
//! little. The link then counts as slow until this side sends more.

use hawser_units::{Bytes, Duration, Instant, Rate};

/// A queue is long from here on. Source: the budget of a call, 150 ms, less what its packets take
/// on a slow link.
const LONG: Duration = Duration::from_millis(100);
/// The rate is measured over this time while the queue is long. Source: ten packets of a call.
const STANDS_FOR: Duration = Duration::from_millis(500);
/// Size up to which packets count as small; larger packets show the rate of a link by their size.
/// Source: `path/own_time.rs` uses packets of more than this. Units: bytes of UDP payload.
const SMALL: u32 = 256;
/// Time without a long queue after which a known rate is raised: a link whose rate has risen is
/// found in a minute, and another one shows a queue of [`LONG`]. Source: docs/design/path-model.md,
/// "Packet size on slow links".
const RAISED_AFTER: Duration = Duration::from_secs(10);
/// Factor by which the known rate is raised. Source: BBR probes with 1.25 times the rate.
const RAISE: f64 = 1.25;
/// Factor by which a measured rate lowers the known one at most: a rate that is measured while
/// little is sent is not that of the link. Source: our choice, the inverse of [`RAISE`], so that a
/// wrong step down is undone by the next probe.
const LOWERED: f64 = 0.8;
/// Bytes that may be on a known link before a packet without a queue. Source: a piece of a transfer
/// and a bundle of a call, with their headers.
const BETWEEN: Bytes = Bytes(600);
/// Highest rate of a slow link. Source: a full packet takes 100 ms.
pub(super) const SLOW: Rate = Rate::from_bps(120_000);

/// The values of a report that are used here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// The queueing delay of its packets.
    pub(super) queue: Duration,
    /// Bytes of its packets, including the headers on the link.
    pub(super) bytes: u64,
    /// Their mean size.
    pub(super) size: u32,
}

/// A queue that has been long in every report.
#[derive(Clone, Copy, Debug)]
struct Standing {
    since: Instant,
    /// The time of the last report.
    last: Instant,
    /// Bytes reported since.
    bytes: u64,
}

/// Recognises a slow link by the queue of a path.
///
/// Cost: O(1) a report.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Saturation {
    standing: Option<Standing>,
    known: Option<(Rate, Instant)>,
}

impl Saturation {
    /// Processes a report of `bytes` in packets of a mean `size`. `queue`: their queueing delay;
    /// `best`: the highest recent delivery rate of the path.
    pub(super) fn on_report(&mut self, seen: Seen, best: Rate, now: Instant) {
        let Seen { queue, bytes, size } = seen;
        if best > SLOW {
            *self = Self::default();
            return;
        }
        let others = self.rate().map_or(Duration::ZERO, |rate| rate.time_for(BETWEEN));
        if queue < LONG + others || size > SMALL {
            self.standing = None;
            self.raise(now);
            return;
        }
        let begun = Standing {
            since: now,
            last: now,
            bytes: 0,
        };
        // Between reports that are further apart than the queue is long, it may have been empty.
        let standing = self.standing.filter(|standing| now.since(standing.last) < queue);
        let Some(standing) = standing else {
            self.standing = Some(begun);
            return;
        };
        let standing = Standing {
            last: now,
            bytes: standing.bytes + bytes,
            ..standing
        };
        self.standing = Some(standing);
        let elapsed = now.since(standing.since);
        if elapsed < STANDS_FOR {
            return;
        }
        let rate = Rate::of(Bytes(standing.bytes), elapsed).filter(|rate| *rate <= SLOW);
        let least = self.rate().map_or(Rate::ZERO, |known| known.scale(LOWERED));
        self.known = rate.map(|rate| (rate.max(least), now));
        self.standing = Some(begun);
    }

    fn raise(&mut self, now: Instant) {
        let Some((rate, at)) = self.known.filter(|(_, at)| now.since(*at) >= RAISED_AFTER) else {
            return;
        };
        let raised = rate.scale(RAISE);
        self.known = (raised <= SLOW).then_some((raised, at + RAISED_AFTER));
    }

    /// Sets the known rate of a link.
    #[cfg(test)]
    pub(super) fn set(&mut self, rate: Rate, now: Instant) {
        self.known = Some((rate, now));
    }

    /// The rate of the link; `None` where it is not known to be slow.
    pub(super) fn rate(&self) -> Option<Rate> {
        self.known.map(|(rate, _)| rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: Instant = Instant::from_nanos(1_000_000_000);

    fn seen(queue_ms: u64, bytes: u64, size: u32) -> Seen {
        Seen {
            queue: Duration::from_millis(queue_ms),
            bytes,
            size,
        }
    }

    /// Returns what is known after reports every 100 ms of a queue and a rate.
    fn after(saturation: &mut Saturation, from: u64, tenths: u64, queue_ms: u64, kbps: u64) -> Option<u64> {
        for n in from..from + tenths {
            let now = BEGIN + Duration::from_millis(100 * n);
            saturation.on_report(seen(queue_ms, kbps * 1_000 / 80, 108), Rate::ZERO, now);
        }
        saturation.rate().map(|rate| rate.as_bps() / 1_000)
    }

    #[test]
    fn a_queue_that_stands_at_a_low_rate_is_that_of_a_slow_link() {
        let mut saturation = Saturation::default();
        assert_eq!(after(&mut saturation, 0, 5, 300, 20), None, "a burst");
        assert_eq!(after(&mut saturation, 5, 5, 300, 20), Some(20));
        assert_eq!(after(&mut saturation, 10, 6, 900, 24), Some(24));
        assert_eq!(after(&mut saturation, 16, 90, 20, 20), Some(24));
        assert_eq!(
            after(&mut saturation, 106, 20, 20, 20),
            Some(30),
            "it may carry more"
        );
        assert_eq!(after(&mut saturation, 126, 700, 20, 20), None, "and is not slow");
    }

    #[test]
    fn a_path_that_carries_more_is_not_slow() {
        let mut saturation = Saturation::default();
        assert_eq!(after(&mut saturation, 0, 50, 300, 500), None);
        assert_eq!(after(&mut saturation, 50, 20, 300, 30), Some(30));
        let fast = Rate::from_bps(500_000);
        saturation.on_report(seen(0, 100, 108), fast, BEGIN + Duration::from_secs(7));
        assert_eq!(saturation.rate(), None);
    }

    #[test]
    fn what_large_packets_meet_says_nothing() {
        let mut saturation = Saturation::default();
        for n in 0..50 {
            let now = BEGIN + Duration::from_millis(100 * n);
            saturation.on_report(seen(300, 250, 1_400), Rate::ZERO, now);
        }
        assert_eq!(saturation.rate(), None);
    }
}
