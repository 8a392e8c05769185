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
/// A test in which the other end acknowledges nothing says nothing of the channel: the other end
/// may have missed the announcement. After [`TESTS`] of them in a row this end goes back to the
/// channel that it has left, where the other end still is, and goes on from there; the channel is
/// tried once more after the others. After [`MISSES`] of these the search ends on the best channel
/// that is known. Where the other end answers on the
/// channel before neither, the search ends on the original channel, where the other end will look.
///
/// ```text
///   idle --start--> announcing --(beacons sent)--> probing --(adequate, and better)------------> idle, moved
///                     ^   ^                          |  | more to try                              ^
///                     |   +--------------------------|--+ none left: announce the best one --------+
///                     |                              | no answer                          (checked there)
///                     +---(answer)--- checking <-----+ back on the channel before
///                                        | no answer
///                                        +-------------> announce the original one --> idle, not followed
/// ```
///
/// Source: Multifacet section 3.4. Deviates: the paper does not say what becomes of an announcement
/// that is missed.
#[derive(Clone, Debug)]
pub struct Migration {
    config: Config,
    state: State,
    home: (u16, f64),
    current: u16,
    /// The channel before the present one.
    left: u16,
    untried: Vec<u16>,
    best: (u16, f64),
    tried: usize,
    /// Channels on which the other end was not found, in this search.
    missed: Vec<u16>,
    is_followed: bool,
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
    Announcing {
        to: u16,
        until: Instant,
        why: Why,
    },
    /// `tests`: how many there were on this channel, with this one.
    Testing {
        until: Instant,
        why: Why,
        tests: u32,
    },
}

/// Why a channel is gone to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// To see what it carries.
    Try,
    /// The search ends there.
    Last,
    /// The other end has not followed from there to one that was tried, or was to be the last.
    Back { is_last: bool },
    /// The other end is nowhere.
    Home,
}

/// What the embedding is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Announce this channel in beacons; data stop.
    Announce(u16),
    /// Measure the bandwidth on this channel, where both ends are now.
    Probe(u16),
    /// Measure it on this channel too, to see whether the other end is there at all.
    Check(u16),
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
            left: channel,
            untried: Vec::new(),
            best: (channel, 0.0),
            tried: 0,
            missed: Vec::new(),
            is_followed: true,
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
        (self.tried, self.is_followed) = (0, true);
        self.missed.clear();
        self.untried = candidates.iter().rev().copied().collect();
        self.untried.retain(|channel| *channel != self.current);
        let to = self.untried.pop()?;
        Some(self.announce(to, Why::Try, now))
    }

    fn announce(&mut self, to: u16, why: Why, now: Instant) -> Step {
        let until = now + self.config.announcement;
        self.state = State::Announcing { to, until, why };
        Step::Announce(to)
    }

    /// Time has passed. `measured`: the bandwidth found by the test, when one ends now; zero where
    /// nothing was acknowledged.
    pub fn handle_timeout(&mut self, measured: Option<f64>, now: Instant) -> Option<Step> {
        match self.state {
            State::Announcing { to, until, why } if until <= now => {
                self.left = std::mem::replace(&mut self.current, to);
                Some(match why {
                    Why::Home => self.resume(),
                    Why::Try | Why::Last | Why::Back { .. } => self.test(why, 1, now),
                })
            }
            State::Testing { until, why, tests } if until <= now => {
                let measured = measured.unwrap_or(0.0);
                Some(if measured > 0.0 {
                    self.on_answer(why, measured, now)
                } else if tests < TESTS {
                    self.test(why, tests + 1, now)
                } else {
                    self.on_silence(why, now)
                })
            }
            State::Idle | State::Announcing { .. } | State::Testing { .. } => None,
        }
    }

    fn test(&mut self, why: Why, tests: u32, now: Instant) -> Step {
        let until = now + self.config.probe;
        self.state = State::Testing { until, why, tests };
        match why {
            Why::Try => Step::Probe(self.current),
            Why::Last | Why::Back { .. } | Why::Home => Step::Check(self.current),
        }
    }

    /// The access point cannot announce what it was to announce: both ends are where they were, and
    /// the next channel is tried. Ignored while nothing is announced.
    pub fn handle_refused(&mut self, now: Instant) -> Option<Step> {
        let State::Announcing { why, .. } = self.state else {
            return None;
        };
        Some(match why {
            Why::Try => self.go_on(now),
            Why::Last | Why::Home => self.resume(),
            Why::Back { .. } => self.lose(now),
        })
    }

    fn on_answer(&mut self, why: Why, measured: f64, now: Instant) -> Step {
        match why {
            Why::Try => self.on_probe(measured, now),
            Why::Last | Why::Home => self.resume(),
            Why::Back { is_last } if self.missed.len() >= MISSES => {
                self.is_followed = false;
                if is_last { self.resume() } else { self.end(now) }
            }
            Why::Back { is_last: true } => self.end(now),
            Why::Back { is_last: false } => self.go_on(now),
        }
    }

    fn on_silence(&mut self, why: Why, now: Instant) -> Step {
        let is_last = match why {
            Why::Try => false,
            Why::Last => true,
            Why::Back { .. } | Why::Home => return self.lose(now),
        };
        let is_first = !self.missed.contains(&self.current);
        self.missed.push(self.current);
        if is_first && !is_last {
            self.untried.insert(0, self.current);
        }
        self.announce(self.left, Why::Back { is_last }, now)
    }

    fn on_probe(&mut self, measured: f64, now: Instant) -> Step {
        self.tried += 1;
        if measured > self.best.1 {
            self.best = (self.current, measured);
        }
        let is_enough = self.config.search == Search::Adequate && measured > self.home.1;
        if is_enough { self.end(now) } else { self.go_on(now) }
    }

    fn go_on(&mut self, now: Instant) -> Step {
        match self.untried.pop() {
            Some(to) => self.announce(to, Why::Try, now),
            None => self.end(now),
        }
    }

    fn end(&mut self, now: Instant) -> Step {
        if self.best.0 == self.current {
            return self.resume();
        }
        self.announce(self.best.0, Why::Last, now)
    }

    /// The other end is neither here nor on the channel before.
    fn lose(&mut self, now: Instant) -> Step {
        self.is_followed = false;
        if self.current == self.home.0 {
            return self.resume();
        }
        self.announce(self.home.0, Why::Home, now)
    }

    fn resume(&mut self) -> Step {
        self.state = State::Idle;
        Step::Resume(self.current)
    }

    /// When [`Self::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Idle => None,
            State::Announcing { until, .. } | State::Testing { until, .. } => Some(until),
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

    /// Whether the other end has followed in the last search; where not, the search says nothing of
    /// the channels that it did not try.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        self.is_followed
    }
}

/// Tests in a row without an answer, after which the other end is not there. Not measured: on a
/// channel of which others take three quarters, the three may be too few.
pub const TESTS: u32 = 3;
/// Announcements that the other end may miss in one search. Not measured: if it missed one in thirty,
/// one search of ten channels in three hundred would end so.
pub const MISSES: usize = 3;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    /// What a search does where the other end is, and the channels that it announces. The other end
    /// misses those announcements of which `misses` has the places, and each channel carries ten
    /// times its number, where home carries 5; [`SILENT`] nothing.
    struct Followed {
        migration: Migration,
        announced: Vec<u16>,
        other_end: u16,
    }

    const SILENT: u16 = 9;

    fn follow(search: Search, candidates: &[u16], misses: &[usize]) -> Followed {
        let mut migration = Migration::new(Config::new(search), 1);
        let (mut announced, mut other_end, mut now) = (Vec::new(), 1, at(0));
        let mut step = migration.start(candidates, 5.0, now);
        loop {
            let mut measured = None;
            match step.expect("a step follows each") {
                Step::Announce(to) => {
                    let is_heard = migration.channel().0 == other_end && !misses.contains(&announced.len());
                    other_end = if is_heard { to } else { other_end };
                    announced.push(to);
                }
                Step::Probe(at) | Step::Check(at) => {
                    measured = Some(if at == other_end && at != SILENT {
                        f64::from(at) * 10.0
                    } else {
                        0.0
                    });
                }
                Step::Resume(_) => break,
            }
            now = migration.poll_timeout().expect("something is due");
            step = migration.handle_timeout(measured, now);
        }
        Followed {
            migration,
            announced,
            other_end,
        }
    }

    #[test]
    fn an_end_that_has_not_followed_is_gone_back_to_and_told_again() {
        let followed = follow(Search::Adequate, &[2, 3], &[0]);
        assert_eq!(followed.announced, [2, 1, 3]);
        assert_eq!((followed.migration.channel(), followed.other_end), ((3, 1), 3));
        assert!(followed.migration.is_followed());
        // The third one, from a channel that was tried; then the one that ends the search.
        let followed = follow(Search::Best, &[3, 4, 2], &[2, 5]);
        assert_eq!(followed.announced, [3, 4, 2, 4, 2, 4, 2, 4]);
        assert_eq!((followed.migration.channel(), followed.other_end), ((4, 3), 4));
        assert!(followed.migration.is_followed());
    }

    #[test]
    fn a_channel_without_any_answer_keeps_nobody_from_the_others() {
        let followed = follow(Search::Best, &[SILENT, 2, 3], &[]);
        assert_eq!(followed.announced, [SILENT, 1, 2, 3, SILENT, 3]);
        assert_eq!((followed.migration.channel(), followed.other_end), ((3, 2), 3));
        assert!(followed.migration.is_followed());
    }

    #[test]
    fn an_end_that_follows_nowhere_is_stayed_with() {
        let deaf: Vec<usize> = (0..20).collect();
        let followed = follow(Search::Adequate, &[2, 3, 4], &deaf);
        assert_eq!(followed.announced, [2, 1, 3, 1, 4, 1]);
        assert_eq!((followed.migration.channel(), followed.other_end), ((1, 0), 1));
        assert!(!followed.migration.is_followed());
        // On the channel that it reached, where it does not come away from there.
        let followed = follow(Search::Best, &[3, 2], &deaf[2..]);
        assert_eq!(followed.announced, [3, 2, 3, 2, 3, 2, 3, 2]);
        assert_eq!((followed.migration.channel(), followed.other_end), ((2, 2), 2));
    }

    #[test]
    fn where_the_other_end_is_nowhere_the_search_ends_at_home() {
        let mut migration = Migration::new(Config::new(Search::Adequate), 1);
        let mut step = migration.start(&[2, 3], 50.0, at(0));
        let mut steps = Vec::new();
        while let Some(one) = step {
            steps.push(one);
            let Some(due) = migration.poll_timeout() else {
                break;
            };
            // It was on the second one, and is lost on the way to the third.
            let measured = if steps.len() < 3 { 2.0 } else { 0.0 };
            step = migration.handle_timeout(Some(measured), due);
        }
        let mut wanted = vec![Step::Announce(2), Step::Probe(2), Step::Announce(3)];
        wanted.extend([Step::Probe(3); TESTS as usize]);
        wanted.push(Step::Announce(2));
        wanted.extend([Step::Check(2); TESTS as usize]);
        wanted.extend([Step::Announce(1), Step::Resume(1)]);
        assert_eq!(steps, wanted);
        assert!(!migration.is_followed() && migration.is_idle());
        assert!(migration.start(&[2], 1.0, at(9_000)).is_some() && migration.is_followed());
    }

    proptest! {
        #[test]
        fn whatever_is_missed_both_ends_are_on_one_channel_in_the_end(
            misses in prop::collection::vec(0_usize..40, 0..40),
            channels in prop::collection::vec(1_u16..9, 1..12),
            is_best in any::<bool>(),
        ) {
            let search = if is_best { Search::Best } else { Search::Adequate };
            prop_assume!(channels.iter().any(|channel| *channel != 1));
            let followed = follow(search, &channels, &misses);
            prop_assert_eq!(followed.migration.channel().0, followed.other_end);
            prop_assert!(followed.announced.len() <= channels.len() + 1 + 2 * (MISSES + 1));
            if misses.len() < 2 && is_best {
                prop_assert_eq!(Some(&followed.other_end), channels.iter().max());
            }
        }
    }
}
