//! When a link is poor enough to look for a better channel.
//!
//! It starts without an expectation. In its steady state it has the link tested now and then; what
//! a test finds may fall behind the best one of this channel, and where two in a row fall below
//! half of it, a search begins. It fails towards staying: after every search there is a rest, which
//! doubles for each one in a row that found nothing better, and what the link brings then is what
//! is expected of it from there on.
//!
//! Source: Multifacet section 3.4, which has a threshold and names none. Deviates: how often the
//! link is tested, and that searches rest, are not in the paper.

use hawser_units::{Duration, Instant, Rate};

/// Decides when to test a link and when to search.
#[derive(Clone, Debug)]
pub struct Occasion {
    best: Rate,
    is_poor: bool,
    /// Searches in a row that found nothing.
    in_vain: u32,
    test_at: Instant,
    search_at: Instant,
}

impl Occasion {
    /// Nothing is known of the channel.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            best: Rate::ZERO,
            is_poor: false,
            in_vain: 0,
            test_at: now + PERIOD,
            search_at: now,
        }
    }

    /// A test has found that the link carries so much. Says whether a search is to begin.
    pub fn handle_test(&mut self, rate: Rate, now: Instant) -> bool {
        let was_poor = self.is_poor;
        self.best = self.best.max(rate);
        self.is_poor = rate.as_bps() < self.best.as_bps() / POOR;
        self.test_at = now + if self.is_poor && !was_poor { AGAIN } else { PERIOD };
        self.is_poor && was_poor && self.search_at <= now
    }

    /// The link had nothing to carry: no test was worth its time.
    pub fn handle_idle(&mut self, now: Instant) {
        self.test_at = now + PERIOD;
    }

    /// A search is over; the link carries so much where it is now.
    pub fn handle_search(&mut self, is_moved: bool, rate: Rate, now: Instant) {
        self.in_vain = if is_moved {
            0
        } else {
            self.in_vain.saturating_add(1)
        };
        let rest = REST * 2_u32.saturating_pow(self.in_vain);
        self.search_at = now + rest.min(LONGEST_REST);
        (self.best, self.is_poor) = (rate, false);
        self.test_at = now + PERIOD;
    }

    /// When the link is to be tested.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        self.test_at
    }

    /// When the next search may begin.
    #[must_use]
    pub fn search_at(&self) -> Instant {
        self.search_at
    }

    /// What is expected of the link.
    #[must_use]
    pub fn best(&self) -> Rate {
        self.best
    }
}

/// A test of 20 ms takes two parts in a thousand of the link then.
const PERIOD: Duration = Duration::from_secs(10);
/// Long enough for one burst of somebody else to be over.
const AGAIN: Duration = Duration::from_secs(1);
/// One part of so many of the best. Ten channels that are tried cost the link 2 s (Multifacet
/// section 5.4: 2.2 s), which twice the rate wins back in as long.
const POOR: u64 = 2;
/// Searches of 2 s take at most a thirtieth of the link then.
const REST: Duration = Duration::from_secs(60);
const LONGEST_REST: Duration = Duration::from_secs(3_600);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Instant {
        Instant::from_nanos(s * 1_000_000_000)
    }

    fn mbps(rate: u64) -> Rate {
        Rate::from_mbps(rate)
    }

    /// Poor in every test. Counts the searches of that time, none of which finds anything.
    fn searches(seconds: u64) -> u32 {
        let mut occasion = Occasion::new(at(0));
        let (mut now, mut searches) = (at(0), 0);
        occasion.handle_test(mbps(100), now);
        while now < at(seconds) {
            now = occasion.poll_timeout();
            // It becomes worse all the time.
            if occasion.handle_test(Rate::from_bps(occasion.best().as_bps() / 3), now) {
                searches += 1;
                occasion.handle_search(false, mbps(100), now);
            }
        }
        searches
    }

    #[test]
    fn two_poor_tests_in_a_row_begin_a_search() {
        let mut occasion = Occasion::new(at(0));
        assert_eq!(occasion.poll_timeout(), at(10));
        assert!(!occasion.handle_test(mbps(20), at(10)));
        assert!(!occasion.handle_test(mbps(9), at(20)), "a burst of somebody else");
        assert_eq!(occasion.poll_timeout(), at(21));
        assert!(!occasion.handle_test(mbps(11), at(21)));
        assert!(!occasion.handle_test(mbps(9), at(31)));
        assert!(occasion.handle_test(mbps(9), at(32)));
        assert_eq!(occasion.poll_timeout(), at(42));
    }

    #[test]
    fn after_a_search_what_there_is_is_expected() {
        let mut occasion = Occasion::new(at(0));
        occasion.handle_test(mbps(20), at(10));
        occasion.handle_search(false, mbps(6), at(20));
        for test in 2..12 {
            assert!(!occasion.handle_test(mbps(6), at(10 * test)));
        }
        assert_eq!(occasion.search_at(), at(20 + 120));
        occasion.handle_search(true, mbps(20), at(200));
        assert_eq!((occasion.best(), occasion.search_at()), (mbps(20), at(260)));
        occasion.handle_idle(at(205));
        assert_eq!(occasion.poll_timeout(), at(215));
    }

    #[test]
    fn searches_in_vain_become_rare() {
        assert!((2..=4).contains(&searches(600)), "{}", searches(600));
        assert!((5..=7).contains(&searches(7_200)), "{}", searches(7_200));
        let day = searches(86_400);
        assert!((25..=30).contains(&day), "one an hour: {day}");
    }
}
