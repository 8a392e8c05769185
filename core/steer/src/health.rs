//! Health of a network by destinations beyond its gateway: decides from rounds of questions whether
//! the network is used.
//!
//! It starts online, because no probe has failed yet. In each round every target is asked `count`
//! times; a round is good if enough targets answered, with loss and delay within the thresholds.
//! `down` bad rounds in a row take the network offline, `up` good rounds in a row take it online
//! again. While the state is in doubt, rounds follow at separate intervals.
//!
//! ```text
//!            bad                 down bad ones in a row
//!   Online ------> (Failing) -------------------------------> Offline
//!     ^  ^----good----+                                        |   ^
//!     |                                       good             v   | bad
//!     +-------- up good ones in a row ------------------- (Recovering)
//! ```
//!
//! Source: the counts and thresholds are those of mwan3's tracker. Deviates: a round is judged by
//! the mean delay of each target, and a target above the loss or delay threshold counts as
//! unresponsive.

use hawser_units::{Duration, Instant};

/// Thresholds of one target; a value above one of them is bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thresholds {
    /// Share of questions without an answer, in percent.
    pub loss_percent: Option<u8>,
    /// Mean time to an answer.
    pub delay: Option<Duration>,
}

/// Thresholds by state: recovery may ask for more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quality {
    /// Thresholds of a network that is online.
    pub failing: Thresholds,
    /// Thresholds of a network that is offline.
    pub recovered: Thresholds,
}

/// Criteria by which a network is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Number of targets that have to answer.
    pub needed: u8,
    /// Number of questions to each target in a round.
    pub count: u8,
    /// Number of bad rounds in a row after which the network is offline.
    pub down: u8,
    /// Number of good rounds in a row after which it is online again.
    pub up: u8,
    /// Interval of rounds while the state is not in doubt.
    pub every: Duration,
    /// Interval after a bad round of a network that is online.
    pub every_failing: Duration,
    /// Interval after a good round of a network that is offline.
    pub every_recovering: Duration,
    /// Thresholds of loss and delay.
    pub quality: Quality,
}

impl Terms {
    /// Returns whether a round is good for a network that is online.
    #[must_use]
    pub fn is_good(&self, answers: &[Answers]) -> bool {
        self.is_good_by(answers, self.quality.failing)
    }

    fn is_good_by(&self, answers: &[Answers], thresholds: Thresholds) -> bool {
        let good = answers.iter().filter(|one| one.is_good(thresholds)).count();
        good >= usize::from(self.needed)
    }
}

/// Answers of one target in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Number of questions.
    pub asked: u8,
    /// Number of answers.
    pub answered: u8,
    /// Mean time to an answer; `None` without one.
    pub delay: Option<Duration>,
}

impl Answers {
    /// Share of questions without an answer, in percent.
    #[must_use]
    pub fn loss_percent(&self) -> u8 {
        let lost = u16::from(self.asked.saturating_sub(self.answered));
        u8::try_from(lost * 100 / u16::from(self.asked.max(1))).unwrap_or(100)
    }

    fn is_good(&self, thresholds: Thresholds) -> bool {
        let has_lost = thresholds
            .loss_percent
            .is_some_and(|most| self.loss_percent() > most);
        let is_slow = match (thresholds.delay, self.delay) {
            (Some(most), Some(delay)) => delay > most,
            (Some(_) | None, _) => false,
        };
        self.answered > 0 && !has_lost && !is_slow
    }
}

/// State of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Network that is used.
    Online,
    /// Network that is used, but whose last rounds were bad.
    Failing,
    /// Network that is not used.
    Offline,
    /// Network that is not used, but whose last rounds were good.
    Recovering,
}

impl State {
    /// Returns the state's name in the output of `status`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Online => "online",
            Self::Failing => "failing",
            Self::Offline => "offline",
            Self::Recovering => "recovering",
        }
    }

    /// Returns whether the network is used.
    #[must_use]
    pub fn is_used(self) -> bool {
        match self {
            Self::Online | Self::Failing => true,
            Self::Offline | Self::Recovering => false,
        }
    }
}

/// Health machine of one network.
///
/// Cost: O(targets) a round; memory is one count and one deadline.
#[derive(Clone, Debug)]
pub struct Health {
    terms: Terms,
    is_online: bool,
    /// Number of consecutive rounds that contradict the state.
    against: u8,
    /// Start of the next round; `None` while one runs.
    next: Option<Instant>,
    began: Instant,
}

impl Health {
    /// Creates a machine in the state online; the first round is due at once.
    #[must_use]
    pub fn new(terms: Terms, now: Instant) -> Self {
        Self {
            terms,
            is_online: true,
            against: 0,
            next: Some(now),
            began: now,
        }
    }

    /// Returns the state.
    #[must_use]
    pub fn state(&self) -> State {
        match (self.is_online, self.against) {
            (true, 0) => State::Online,
            (true, _) => State::Failing,
            (false, 0) => State::Offline,
            (false, _) => State::Recovering,
        }
    }

    /// Returns the start of the next round; `None` while one runs.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next
    }

    /// Begins a round if one is due and returns whether it did. The caller asks each target and
    /// passes the answers to [`handle_round`](Self::handle_round).
    pub fn poll_round(&mut self, now: Instant) -> bool {
        let is_due = self.next.is_some_and(|next| next <= now);
        if is_due {
            (self.next, self.began) = (None, now);
        }
        is_due
    }

    /// Handles the answers of the current round, by target. Returns the new state if it changes
    /// whether the network is used. Answers without a round are ignored.
    pub fn handle_round(&mut self, answers: &[Answers], now: Instant) -> Option<State> {
        if self.next.is_some() {
            return None;
        }
        let thresholds = match self.is_online {
            true => self.terms.quality.failing,
            false => self.terms.quality.recovered,
        };
        let is_good = self.terms.is_good_by(answers, thresholds);
        if is_good == self.is_online {
            self.against = 0;
        } else {
            self.against = self.against.saturating_add(1);
        }
        let enough = if self.is_online {
            self.terms.down
        } else {
            self.terms.up
        };
        let is_changed = self.against >= enough;
        if is_changed {
            (self.is_online, self.against) = (!self.is_online, 0);
        }
        let pause = match self.state() {
            State::Online | State::Offline => self.terms.every,
            State::Failing => self.terms.every_failing,
            State::Recovering => self.terms.every_recovering,
        };
        self.next = Some((self.began + pause).max(now));
        is_changed.then(|| self.state())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const TERMS: Terms = Terms {
        needed: 1,
        count: 1,
        down: 3,
        up: 2,
        every: s(5),
        every_failing: s(1),
        every_recovering: s(2),
        quality: Quality {
            failing: Thresholds {
                loss_percent: None,
                delay: None,
            },
            recovered: Thresholds {
                loss_percent: None,
                delay: None,
            },
        },
    };

    fn answers(answered: u8, asked: u8, ms: u64) -> Answers {
        Answers {
            asked,
            answered,
            delay: (answered > 0).then(|| Duration::from_millis(ms)),
        }
    }

    /// Runs a round at the time when it is due; returns the interval to the next.
    fn round(health: &mut Health, answers: &[Answers]) -> (Option<State>, Duration) {
        let now = health.poll_timeout().expect("no round runs");
        assert!(health.poll_round(now));
        assert_eq!(health.poll_timeout(), None, "one round at a time");
        let changed = health.handle_round(answers, now);
        (changed, health.poll_timeout().expect("it is over").since(now))
    }

    #[test]
    fn each_state_and_round_leads_to_one_state() {
        let (good, bad) = (answers(1, 1, 10), answers(0, 1, 0));
        let mut health = Health::new(TERMS, Instant::ZERO);
        let table = [
            (good, State::Online, None, 5),
            (bad, State::Failing, None, 1),
            (good, State::Online, None, 5),
            (bad, State::Failing, None, 1),
            (bad, State::Failing, None, 1),
            (bad, State::Offline, Some(State::Offline), 5),
            (bad, State::Offline, None, 5),
            (good, State::Recovering, None, 2),
            (bad, State::Offline, None, 5),
            (good, State::Recovering, None, 2),
            (good, State::Online, Some(State::Online), 5),
        ];
        for (step, (answers, state, changed, pause)) in table.into_iter().enumerate() {
            assert_eq!(round(&mut health, &[answers]), (changed, s(pause)), "step {step}");
            assert_eq!(health.state(), state, "step {step}");
        }
    }

    #[test]
    fn enough_targets_have_to_answer() {
        let terms = Terms {
            needed: 2,
            down: 1,
            ..TERMS
        };
        let (yes, no) = (answers(1, 1, 10), answers(0, 1, 0));
        for (all, expected) in [
            (&[yes, yes, no][..], State::Online),
            (&[yes, no, no], State::Offline),
            (&[], State::Offline),
        ] {
            let mut health = Health::new(terms, Instant::ZERO);
            round(&mut health, all);
            assert_eq!(health.state(), expected, "{all:?}");
        }
    }

    #[test]
    fn recovery_may_ask_for_more() {
        let limits = |loss, ms| Thresholds {
            loss_percent: Some(loss),
            delay: Some(Duration::from_millis(ms)),
        };
        let quality = Quality {
            failing: limits(40, 1_000),
            recovered: limits(10, 500),
        };
        let terms = Terms {
            down: 1,
            up: 1,
            quality,
            ..TERMS
        };
        let mut health = Health::new(terms, Instant::ZERO);
        for (answers, state) in [
            (answers(6, 10, 900), State::Online),
            (answers(5, 10, 900), State::Offline),
            (answers(6, 10, 100), State::Offline),
            (answers(10, 10, 501), State::Offline),
            (answers(9, 10, 500), State::Online),
            (answers(10, 10, 1_001), State::Offline),
        ] {
            round(&mut health, &[answers]);
            assert_eq!(health.state(), state, "{answers:?}");
        }
    }

    #[test]
    fn a_round_that_takes_long_delays_the_next() {
        let mut health = Health::new(TERMS, Instant::ZERO);
        assert!(health.poll_round(Instant::ZERO));
        assert!(!health.poll_round(Instant::ZERO + s(60)));
        let end = Instant::ZERO + s(60);
        health.handle_round(&[answers(1, 1, 10)], end);
        assert_eq!(health.poll_timeout(), Some(end));
        assert_eq!(health.handle_round(&[], end), None, "no round runs");
    }

    proptest::proptest! {
        #[test]
        fn it_changes_after_as_many_rounds_in_a_row_as_were_asked_for(
            rounds in proptest::collection::vec(proptest::bool::ANY, 0..200),
            down in 1_u8..6, up in 1_u8..6,
        ) {
            let mut health = Health::new(Terms { down, up, ..TERMS }, Instant::ZERO);
            let (mut is_online, mut row) = (true, 0);
            for is_good in rounds {
                row = if is_good == is_online { 0 } else { row + 1 };
                if row == if is_online { down } else { up } {
                    (is_online, row) = (!is_online, 0);
                }
                round(&mut health, &[answers(u8::from(is_good), 1, 1)]);
                proptest::prop_assert_eq!(health.state().is_used(), is_online);
            }
        }
    }
}
