//! Sizes of packets that made a network fail, and for how long they are avoided.

use hawser_units::{Duration, Instant};

/// How long a size is avoided after it made a network fail for the first time. A modem that stops
/// for a minute costs more in one minute than packets of 1280 bytes in place of 1500 in an hour
/// (1.5 % of the goodput).
const FIRST: Duration = Duration::from_secs(3_600);
/// The longest time that a size is avoided.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

/// A size that made a network fail, with what is sent in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barred {
    /// The size of the probe after which nothing came any more.
    size: u16,
    /// The largest size to be tried meanwhile.
    safe: u16,
    until: Instant,
    span: Duration,
}

impl Barred {
    /// Avoids `size`: twice as long as the last time, if there was one.
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

    /// When it may be tried again.
    #[must_use]
    pub fn until(&self) -> Instant {
        self.until
    }

    /// The largest size that may be tried at `now`; `None` when every size may be.
    #[must_use]
    pub fn ceiling(&self, now: Instant) -> Option<u16> {
        (now < self.until).then_some(self.safe)
    }

    /// Returns whether the failure is so long ago that the next one counts as the first.
    pub(super) fn is_forgotten(&self, now: Instant) -> bool {
        now.since(self.until) > LONGEST
    }
}
