//! Decides when a link is poor enough to search for a better channel.
//!
//! It starts without an expected rate. Steady state: it requests a test of the link every 10 s. A
//! search begins when two tests in a row find less than half of the best rate on this channel. It
//! fails towards staying: each search is followed by a rest, which doubles for each search in a row
//! that found nothing better. The rate after a search is the new expected rate.
//!
//! Source: Multifacet section 3.4, which has a threshold without a value. Deviates: the interval of
//! tests and the rest after searches are not in the paper.

use hawser_units::{Duration, Instant, Rate};

/// Decides when to test a link and when to search.
#[derive(Clone, Debug)]
pub struct Occasion {
    best: Rate,
    is_poor: bool,
    /// Number of searches in a row that found nothing better.
    in_vain: u32,
    test_at: Instant,
    search_at: Instant,
}

impl Occasion {
    /// Creates a state without measurements.
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

    /// Handles a test that measured `rate`. Returns whether a search should begin.
    pub fn handle_test(&mut self, rate: Rate, now: Instant) -> bool {
        let was_poor = self.is_poor;
        self.best = self.best.max(rate);
        self.is_poor = rate.as_bps() < self.best.as_bps() / POOR;
        self.test_at = now + if self.is_poor && !was_poor { AGAIN } else { PERIOD };
        self.is_poor && was_poor && self.search_at <= now
    }

    /// Handles an idle link, on which a test was not worth its time.
    pub fn handle_idle(&mut self, now: Instant) {
        self.test_at = now + PERIOD;
    }

    /// Handles the end of a search; `rate` is the link's rate on its present channel.
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

    /// Returns when the link is to be tested.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        self.test_at
    }

    /// Returns when the next search may begin.
    #[must_use]
    pub fn search_at(&self) -> Instant {
        self.search_at
    }

    /// Returns the expected rate of the link.
    #[must_use]
    pub fn best(&self) -> Rate {
        self.best
    }
}

/// Interval of tests. Source: a test of 20 ms (Multifacet section 5.4) then takes 0.2 % of the
/// link.
const PERIOD: Duration = Duration::from_secs(10);
/// Retry interval: long enough for one burst of another sender to end. Source: our choice, a tenth
/// of [`PERIOD`]; a shorter one searches for a single burst, a longer one stays on a poor channel
/// for longer.
const AGAIN: Duration = Duration::from_secs(1);
/// Divisor of the best rate: the link is poor below half of it. A search over ten channels costs 2
/// s (Multifacet section 5.4: 2.2 s), which twice the rate regains in the same time.
const POOR: u64 = 2;
/// Minimum rest after a search. Source: searches of 2 s (Multifacet section 5.4 has 2.2 s) take at
/// most a thirtieth of the link.
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

    /// Runs with every test poor. Returns the number of searches, none of which finds a better
    /// channel.
    fn searches(seconds: u64) -> u32 {
        let mut occasion = Occasion::new(at(0));
        let (mut now, mut searches) = (at(0), 0);
        occasion.handle_test(mbps(100), now);
        while now < at(seconds) {
            now = occasion.poll_timeout();
            // The rate falls with every test.
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
        assert!(!occasion.handle_test(mbps(9), at(20)), "a short burst");
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
