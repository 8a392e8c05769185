//! Repeater's side of a migration: follows the announcements of its access point, and searches for
//! the access point after a missed announcement.
//!
//! It starts on the channel on which it associated. Steady state: it receives a frame of the access
//! point at least every beacon interval. It fails towards searching: after `timeout` without a
//! frame it tries every known channel in turn, without end, until it receives the access point
//! again.
//!
//! ```text
//!   settled --announced--> leaving --(countdown of beacons) --> settled, there
//!      |  ^
//!      |  +--- frame received ----+
//!      +--silence--> searching ---+---(silence for `dwell`)--> the next channel
//! ```
//!
//! Source: Multifacet sections 3.4 and 4 (announcements in beacons). Deviates: the search is not in
//! the paper, which does not describe a repeater that missed all announcements; after two lost
//! beacons it would be disconnected.

use hawser_units::{Duration, Instant};

/// Parameters of a [`Follower`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Interval between beacons.
    pub beacon: Duration,
    /// Time without a frame of the access point after which a search begins.
    pub timeout: Duration,
    /// Time spent on each channel of a search.
    pub dwell: Duration,
}

impl Default for Config {
    /// Beacons every 100 ms, as two of the paper's beacons take 200 ms; a search after seven missed
    /// beacons, as Linux's `IEEE80211_BEACON_LOSS`; on each channel long enough to receive two.
    fn default() -> Self {
        Self {
            beacon: Duration::from_millis(100),
            timeout: Duration::from_millis(700),
            dwell: Duration::from_millis(250),
        }
    }
}

/// Radio that follows an access point over channels.
///
/// Driven like every machine of this level; its output is the channel to tune to.
///
/// Cost: O(channels known) an announcement; memory for each channel that was ever announced.
#[derive(Clone, Debug)]
pub struct Follower {
    config: Config,
    channel: u16,
    /// Known channels, in order of their discovery.
    known: Vec<u16>,
    leaving: Option<(u16, Instant)>,
    /// Time at which the timeout without a frame expires.
    silent_at: Instant,
    is_searching: bool,
    searches: u64,
}

impl Follower {
    /// Creates a follower with an access point on `channel`.
    #[must_use]
    pub fn new(config: Config, channel: u16, now: Instant) -> Self {
        Self {
            config,
            channel,
            known: vec![channel],
            leaving: None,
            silent_at: now + config.timeout,
            is_searching: false,
            searches: 0,
        }
    }

    /// Handles a received frame of the access point.
    pub fn handle_heard(&mut self, now: Instant) {
        self.is_searching = false;
        self.silent_at = now + self.config.timeout;
    }

    /// Handles a beacon, due at `due`, that announces a switch to `channel` after `beacons` more
    /// beacons. The latest announcement counts.
    pub fn handle_announcement(&mut self, channel: u16, beacons: u8, due: Instant, now: Instant) {
        self.handle_heard(now);
        if !self.known.contains(&channel) {
            self.known.push(channel);
        }
        self.leaving = Some((channel, due + self.config.beacon * u32::from(beacons)));
    }

    /// Switches to an announced or searched channel that is due at `now`. Returns the channel to
    /// tune to.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<u16> {
        if let Some((channel, due)) = self.leaving.filter(|(_, due)| *due <= now) {
            self.leaving = None;
            self.silent_at = self.silent_at.max(due + self.config.timeout);
            return self.tune(channel);
        }
        if self.silent_at > now || self.leaving.is_some() {
            return None;
        }
        self.searches += u64::from(!self.is_searching);
        self.is_searching = true;
        self.silent_at = now + self.config.dwell;
        let place = self.known.iter().position(|known| *known == self.channel);
        let next = place.map_or(0, |place| (place + 1) % self.known.len());
        self.tune(self.known[next])
    }

    fn tune(&mut self, channel: u16) -> Option<u16> {
        let is_other = channel != self.channel;
        self.channel = channel;
        is_other.then_some(channel)
    }

    /// Returns when [`Self::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        self.leaving.map_or(self.silent_at, |(_, due)| due)
    }

    /// Returns whether the access point is on this radio's channel and has not announced another.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.leaving.is_none() && !self.is_searching
    }

    /// Returns the present channel of the radio.
    #[must_use]
    pub fn channel(&self) -> u16 {
        self.channel
    }

    /// Returns the number of searches for the access point.
    #[must_use]
    pub fn searches(&self) -> u64 {
        self.searches
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn follower() -> Follower {
        Follower::new(Config::default(), 36, at(0))
    }

    #[test]
    fn goes_when_the_announced_beacons_have_passed() {
        let mut follower = follower();
        follower.handle_announcement(40, 2, at(50), at(63));
        assert!(!follower.is_settled());
        assert_eq!(follower.handle_timeout(at(249)), None);
        assert_eq!(follower.poll_timeout(), at(250));
        assert_eq!(follower.handle_timeout(at(250)), Some(40));
        assert!(follower.is_settled());
    }

    #[test]
    fn the_latest_announcement_counts() {
        let mut follower = follower();
        follower.handle_announcement(40, 2, at(0), at(0));
        follower.handle_announcement(44, 2, at(100), at(100));
        assert_eq!(follower.handle_timeout(at(200)), None);
        assert_eq!(follower.handle_timeout(at(300)), Some(44));
    }

    #[test]
    fn one_left_behind_tries_what_it_knows_until_it_hears_something() {
        let mut follower = follower();
        follower.handle_announcement(40, 0, at(0), at(0));
        assert_eq!(follower.handle_timeout(at(0)), Some(40));
        let mut tuned = Vec::new();
        for _ in 0..4 {
            tuned.extend(follower.handle_timeout(follower.poll_timeout()));
        }
        assert_eq!(tuned, [36, 40, 36, 40]);
        assert_eq!((follower.is_settled(), follower.searches()), (false, 1));
        follower.handle_heard(at(2_000));
        assert!(follower.is_settled());
        assert_eq!(follower.poll_timeout(), at(2_700));
    }

    proptest! {
        /// The access point is found again on any of the announced channels, with any lost beacons.
        #[test]
        fn finds_an_access_point_that_stays(
            moves in proptest::collection::vec((37_u16..42, 0_u8..3, 0_u64..900, any::<bool>()), 1..30),
        ) {
            let mut follower = follower();
            let mut access_point = 36;
            let mut now = at(0);
            let mut announced = vec![36];
            let pass = |follower: &mut Follower, now: &mut Instant, until: Instant| {
                while follower.poll_timeout() <= until {
                    *now = follower.poll_timeout().max(*now);
                    follower.handle_timeout(*now);
                }
                *now = until;
            };
            for (channel, beacons, wait, is_heard) in moves {
                if is_heard && follower.channel() == access_point {
                    follower.handle_announcement(channel, beacons, now, now);
                    announced.push(channel);
                }
                if announced.contains(&channel) {
                    access_point = channel;
                }
                let until = now + Duration::from_millis(wait);
                pass(&mut follower, &mut now, until);
            }
            // Beacons of an access point that stays: at most `timeout`, and `dwell` on each
            // channel, pass until the repeater receives one.
            let mut waited = 0;
            while follower.channel() != access_point || !follower.is_settled() {
                let until = now + Duration::from_millis(100);
                pass(&mut follower, &mut now, until);
                if follower.channel() == access_point {
                    follower.handle_heard(now);
                }
                waited += 1;
                prop_assert!(waited < 30, "lost on {} of {access_point}", follower.channel());
            }
        }
    }
}
