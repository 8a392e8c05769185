//! Search for a better channel of the link that is not shared; both ends switch at the same time.

use hawser_units::{Duration, Instant};

/// Strategy of a search over channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// Takes the first channel that is better.
    Adequate,
    /// Tries all channels and takes the best.
    Best,
}

/// Announces a channel, switches to it, tests it, and continues with the next or stays.
///
/// Data wait during a search. A search that finds nothing better ends on the original channel.
///
/// ```text
///   idle --start--> announcing --(beacons sent)--> probing --(adequate, and better)------------> idle, moved
///                       ^                             | more to try                               ^
///                       +-----------------------------+ none left: announce the best one ----------+
/// ```
///
/// Source: Multifacet section 3.4.
#[derive(Clone, Debug)]
pub struct Migration {
    config: Config,
    state: State,
    home: (u16, f64),
    current: u16,
    untried: Vec<u16>,
    best: (u16, f64),
    tried: usize,
}

/// Durations of the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Strategy of the search.
    pub search: Search,
    /// Duration of the announcement: two beacons.
    pub announcement: Duration,
    /// Duration of the bandwidth test.
    pub probe: Duration,
}

impl Config {
    /// Returns the paper's durations: 200 ms of announcement, 20 ms of test.
    ///
    /// Source: Multifacet sections 3.4 and 5.4.
    #[must_use]
    pub const fn new(search: Search) -> Self {
        Self {
            search,
            announcement: Duration::from_millis(200),
            probe: Duration::from_millis(20),
        }
    }
}

/// Returns the minimum rate of another channel that justifies a move from a channel with the rate
/// `carries`: a quarter more, and more than chance explains. A test counts packets, each of which
/// contributes `one` to the rate. Counts vary between tests by their square root (Poisson); the
/// margin is twice the square root of the sum of both counts.
///
/// Units: all arguments and the result have the unit of `carries`.
#[must_use]
pub fn worth_moving(carries: f64, one: f64) -> f64 {
    // d = 2 sqrt(one (carries + carries + d)), solved for d.
    let chance = 2.0 * one + 2.0 * (one * one + 2.0 * one * carries).sqrt();
    (carries * 1.25).max(carries + chance)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Announcing { to: u16, until: Instant, is_last: bool },
    Probing { until: Instant },
}

/// Action for the embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Announce this channel in beacons, and stop data.
    Announce(u16),
    /// Measure the bandwidth on this channel, where both ends are now.
    Probe(u16),
    /// Resume data on this channel.
    Resume(u16),
}

impl Migration {
    /// Creates a machine on `channel`.
    #[must_use]
    pub fn new(config: Config, channel: u16) -> Self {
        Self {
            config,
            state: State::Idle,
            home: (channel, 0.0),
            current: channel,
            untried: Vec::new(),
            best: (channel, 0.0),
            tried: 0,
        }
    }

    /// Starts a search because the throughput of the present channel is too small: tries
    /// `candidates` in order. Ignored during a search.
    pub fn start(&mut self, candidates: &[u16], throughput: f64, now: Instant) -> Option<Step> {
        if self.state != State::Idle {
            return None;
        }
        self.home = (self.current, throughput);
        self.best = self.home;
        self.tried = 0;
        self.untried = candidates.iter().rev().copied().collect();
        self.untried.retain(|channel| *channel != self.current);
        let to = self.untried.pop()?;
        Some(self.announce(to, false, now))
    }

    fn announce(&mut self, to: u16, is_last: bool, now: Instant) -> Step {
        let until = now + self.config.announcement;
        self.state = State::Announcing { to, until, is_last };
        Step::Announce(to)
    }

    /// Executes the step that is due at `now`. `measured`: result of a bandwidth test that ends
    /// now.
    pub fn handle_timeout(&mut self, measured: Option<f64>, now: Instant) -> Option<Step> {
        match self.state {
            State::Announcing { to, until, is_last } if until <= now => {
                self.current = to;
                if is_last {
                    self.state = State::Idle;
                    return Some(Step::Resume(to));
                }
                let until = now + self.config.probe;
                self.state = State::Probing { until };
                Some(Step::Probe(to))
            }
            State::Probing { until } if until <= now => Some(self.on_probe(measured.unwrap_or(0.0), now)),
            State::Idle | State::Announcing { .. } | State::Probing { .. } => None,
        }
    }

    /// Handles an announcement that the access point could not send: both ends stay on their
    /// channel, and the next channel is tried. Ignored while nothing is announced.
    pub fn handle_refused(&mut self, now: Instant) -> Option<Step> {
        let State::Announcing { .. } = self.state else {
            return None;
        };
        if let Some(to) = self.untried.pop() {
            return Some(self.announce(to, false, now));
        }
        // The best channel is not tried again if it was the one refused.
        let is_elsewhere = self.best.0 != self.current
            && !matches!(self.state, State::Announcing { to, .. } if to == self.best.0);
        if is_elsewhere {
            return Some(self.announce(self.best.0, true, now));
        }
        self.state = State::Idle;
        Some(Step::Resume(self.current))
    }

    fn on_probe(&mut self, measured: f64, now: Instant) -> Step {
        self.tried += 1;
        if measured > self.best.1 {
            self.best = (self.current, measured);
        }
        let is_enough = self.config.search == Search::Adequate && measured > self.home.1;
        if !is_enough && let Some(to) = self.untried.pop() {
            return self.announce(to, false, now);
        }
        if self.best.0 == self.current {
            self.state = State::Idle;
            return Step::Resume(self.current);
        }
        self.announce(self.best.0, true, now)
    }

    /// Returns when [`Self::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Idle => None,
            State::Announcing { until, .. } | State::Probing { until } => Some(until),
        }
    }

    /// Returns the durations of its steps.
    #[must_use]
    pub fn config(&self) -> Config {
        self.config
    }

    /// Returns whether data may be sent on the channel.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    /// Returns the channel, and how many channels the last search tried.
    #[must_use]
    pub fn channel(&self) -> (u16, usize) {
        (self.current, self.tried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_few_packets_more_are_chance_and_many_are_a_quarter_more() {
        // Three packets of one test and six of another, and eighteen.
        let least = worth_moving(3.0, 1.0);
        assert!(least > 6.0 && least < 18.0, "{least}");
        let (now, then) = (3.0, worth_moving(3.0, 1.0));
        assert!((then - now - 2.0 * (now + then).sqrt()).abs() < 1e-9);
        assert!((worth_moving(900.0, 1.0) - 1_125.0).abs() < 1e-9);
        assert!(worth_moving(0.0, 1.0) > 0.0, "one packet alone is nothing");
    }

    #[test]
    fn a_channel_that_is_refused_is_left_out() {
        let mut migration = Migration::new(Config::new(Search::Adequate), 1);
        assert_eq!(migration.handle_refused(at(0)), None);
        assert_eq!(migration.start(&[2, 3], 5.0, at(0)), Some(Step::Announce(2)));
        assert_eq!(migration.handle_refused(at(1)), Some(Step::Announce(3)));
        assert_eq!(migration.handle_refused(at(2)), Some(Step::Resume(1)));
        assert_eq!((migration.is_idle(), migration.channel()), (true, (1, 0)));
    }

    #[test]
    fn after_a_refusal_the_best_that_was_found_is_gone_back_to() {
        let mut migration = Migration::new(Config::new(Search::Best), 1);
        migration.start(&[2, 3, 4], 5.0, at(0));
        migration.handle_timeout(None, at(200));
        assert_eq!(
            migration.handle_timeout(Some(9.0), at(220)),
            Some(Step::Announce(3))
        );
        migration.handle_timeout(None, at(420));
        assert_eq!(
            migration.handle_timeout(Some(1.0), at(440)),
            Some(Step::Announce(4))
        );
        assert_eq!(migration.handle_refused(at(450)), Some(Step::Announce(2)));
        // The access point refuses this one too, and stays on its channel.
        assert_eq!(migration.handle_refused(at(460)), Some(Step::Resume(3)));
        assert_eq!(migration.channel(), (3, 2));
    }
}
