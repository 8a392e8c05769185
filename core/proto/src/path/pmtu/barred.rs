//! Packet sizes that made a network fail, and the time for which they are avoided.

use hawser_units::{Duration, Instant};

/// Time for which a size is avoided after it made a network fail for the first time. Source: a
/// modem that stops for one minute loses 1.7 % of an hour, and packets of 1280 bytes instead of
/// 1500 cost 1.5 % of the goodput.
const FIRST: Duration = Duration::from_secs(3_600);
/// The longest time that a size is avoided. Source: docs/design/path-model.md, "Packet size".
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

/// A size that made a network fail, and the size that is used instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barred {
    /// Size of the probe after which no packets arrived.
    size: u16,
    /// The largest size to be tried meanwhile.
    safe: u16,
    until: Instant,
    span: Duration,
}

impl Barred {
    /// Bars `size` for twice as long as the last time, if there was one.
    pub(super) fn again(before: Option<Self>, size: u16, safe: u16, now: Instant) -> Self {
        let span = before.map_or(FIRST, |before| (before.span * 2).min(LONGEST));
        Self {
            size,
            safe: before.map_or(safe, |before| before.safe.min(safe)),
            until: now + span,
            span,
        }
    }

    /// The size that made the network fail.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Returns when the size may be tried again.
    #[must_use]
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Returns the largest size that may be tried at `now`; `None` if every size may be tried.
    #[must_use]
    pub fn ceiling(&self, now: Instant) -> Option<u16> {
        (now < self.until).then_some(self.safe)
    }

    /// Returns whether the failure is old enough for the next one to count as the first.
    pub(super) fn is_forgotten(&self, now: Instant) -> bool {
        now.since(self.until) > LONGEST
    }
}
