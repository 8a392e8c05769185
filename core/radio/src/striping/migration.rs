//! Moving the channel that is not shared to a better one, both ends at once.

use hawser_units::{Duration, Instant};

/// Which channels are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// The first that is better is taken.
    Adequate,
    /// All are tried, and the best is taken.
    Best,
}

/// Announces, moves, measures, and moves on or stays.
///
/// Data wait meanwhile. A move that finds nothing better ends on the original channel.
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

/// How long each step takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which channels are tried.
    pub search: Search,
    /// Of the announcement: two beacons.
    pub announcement: Duration,
    /// Of the bandwidth test.
    pub probe: Duration,
}

impl Config {
    /// The paper's times: 200 ms of announcement, 20 ms of test.
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

/// What another channel has to carry, so that it is worth a move from one that carries `carries`: a
/// quarter more, and so much more that it is hardly chance. A test counts packets, of which each
/// stands for `one`; counts that come about by chance differ from one test to the next by the root
/// of what they are (Poisson), and here by twice the root of their sum.
///
/// Units: as those of `carries`, all of them.
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

/// What the embedding is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Announce this channel in beacons; data stop.
    Announce(u16),
    /// Measure the bandwidth on this channel, where both ends are now.
    Probe(u16),
    /// Data go on, on this channel.
    Resume(u16),
}

impl Migration {
    /// On `channel`.
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

    /// The throughput on the present channel is too small: tries `candidates` in their order.
    /// Ignored while a search goes on.
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

    /// Time has passed. `measured`: the bandwidth found by the test, when one ends now.
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

    /// The access point cannot announce what it was to announce: both ends are where they were, and
    /// the next channel is tried. Ignored while nothing is announced.
    pub fn handle_refused(&mut self, now: Instant) -> Option<Step> {
        let State::Announcing { .. } = self.state else {
            return None;
        };
        if let Some(to) = self.untried.pop() {
            return Some(self.announce(to, false, now));
        }
        // Not to the best one, where that was refused.
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

    /// When [`Self::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Idle => None,
            State::Announcing { until, .. } | State::Probing { until } => Some(until),
        }
    }

    /// How long its steps take.
    #[must_use]
    pub fn config(&self) -> Config {
        self.config
    }

    /// Whether data may be sent on the channel.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    /// The channel, and how many were tried in the last search.
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
        // Nor this one: it stays where it is.
        assert_eq!(migration.handle_refused(at(460)), Some(Step::Resume(3)));
        assert_eq!(migration.channel(), (3, 2));
    }
}
