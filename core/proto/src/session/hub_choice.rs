//! Which of the hubs that it knows a client uses.
//!
//! The first that answers is kept for as long as it answers. When no path to it works, the others
//! are asked as well. One that answers takes over unless the hub in use answers within a while
//! ([`STAND_BY`]): networks that all fail for a time (a tunnel on the way) are no failure of the
//! hub, and connections of applications end with a change, because they surface elsewhere.
//!
//! Between hubs of a fleet they do not end: the session with the hub before stays for them. So one
//! that is nearer takes over too ([`super::nearest`]), and a silent one is waited for only half as
//! long.
//!
//! ```text
//!            no path works                   another answers            the one in use is silent
//!   in use ----------------> others are asked --------------> it is asked ------------> change
//!     ^                            |                             |
//!     +----------------------------+-----------------------------+  a path works, or it answers
//! ```
//!
//! The driver feeds what happens in (`handle_*`) and then asks what is to be done
//! ([`HubChoice::poll`]). Cost: O(hubs) a call.

use std::collections::BTreeMap;

use hawser_units::{Duration, Instant};

use super::nearest::Nearest;

/// No path works: less than what a path needs to be found alive again after a short gap.
const SILENCE: Duration = Duration::from_millis(100);
/// From one try of the others to the next, beside the one before. A handshake sends its own packets
/// again, but ever more rarely (RFC 9002 section 6.2.1): after 2.1 s it would find a hub that has
/// come back 2.4 s later.
const AGAIN: Duration = Duration::from_secs(2);
/// How many are asked at first, and how many more then, before all are, where it is known how near
/// they are: a hub that fails leaves thousands of clients, and each handshake is work for the hub
/// that it is with.
const ASKED: [usize; 2] = [3, 6];
/// When more are asked, because none has taken over.
const WIDER: Duration = Duration::from_millis(700);
/// At the start, before others are asked.
const FIRST_CHOICE: Duration = Duration::from_secs(1);
/// Between two looks whether there is a network.
const NO_NETWORK: Duration = Duration::from_millis(500);
/// How long another hub waits for the one in use to answer after all, at least.
const STAND_BY: Duration = Duration::from_millis(500);
/// The same of a hub of the fleet. A change is no loss there: it is enough that a hub which is
/// started anew, and is silent for a quarter of a second, keeps its clients.
const STAND_BY_OF_MATE: Duration = Duration::from_millis(250);
/// A hub that does not let this client in is asked again after so long, in which hubs of a fleet
/// hear of an enrolment at another one. Twice as long after each refusal, up to an hour: who has
/// been revoked should not ask all the time.
const REFUSED_FOR: Duration = Duration::from_secs(2);
const REFUSED_AT_MOST: Duration = Duration::from_secs(3600);

/// How a client stands with a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing<K> {
    /// The fleet that it is of, called by one of its hubs.
    pub fleet: K,
    /// The client has an invitation that it has not used.
    pub is_new: bool,
    /// Its place among hubs that are as near as each other, by chance and always the same for a
    /// client: so clients spread over the hubs of a site.
    pub rank: u64,
}

/// The hub with which there is a second session: the one that was in use before, or one that rules
/// choose for some destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before<K> {
    /// The hub.
    pub hub: K,
    /// A path to it works, and its control connection does.
    pub is_well: bool,
    /// It will be taken down.
    pub is_leaving: bool,
}

/// What the driver knows besides.
#[derive(Clone, Copy, Debug)]
pub struct Sight<K> {
    /// The hub before.
    pub before: Option<Before<K>>,
    /// There is a network to ask over.
    pub has_network: bool,
    /// There is a control connection to the hub in use.
    pub has_control: bool,
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<K> {
    /// Asks these hubs at once, beside what is under way. One that answers waits for so long, and
    /// for a few round trips, before it is presented with the client; where nothing is said, not at
    /// all.
    Ask(Vec<(K, Option<Duration>)>),
    /// Uses the hub before again, whose session is there still.
    Return,
    /// Measures how long these take to answer: [`HubChoice::handle_measured`].
    Measure(Vec<K>),
}

/// What was before a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left<K> {
    /// The hub.
    pub hub: K,
    /// It will be taken down.
    pub is_leaving: bool,
    /// No path to it works, since then.
    pub silent_since: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Refusal {
    until: Instant,
    lasts: Duration,
    is_over: bool,
}

/// The hubs of a client, and the one in use.
#[derive(Debug)]
pub struct HubChoice<K> {
    current: K,
    known: Vec<(K, Standing<K>)>,
    /// Those that do not let this client in.
    refused: BTreeMap<K, Refusal>,
    /// When others may be asked.
    next_try: Instant,
    /// No path to the hub in use works, since then.
    silent_since: Option<Instant>,
    /// The hub in use will be taken down.
    is_leaving: bool,
    /// How often others have been asked of which none has taken over.
    times_asked: usize,
    nearest: Nearest<K>,
}

impl<K: Copy + Ord> HubChoice<K> {
    /// Begins with one hub. Whether the nearest of its fleet is used is for the caller to say.
    #[must_use]
    pub fn new(current: K, now: Instant) -> Self {
        Self {
            current,
            known: Vec::new(),
            refused: BTreeMap::new(),
            next_try: now,
            silent_since: None,
            is_leaving: false,
            times_asked: 0,
            nearest: Nearest::new(now),
        }
    }

    /// The hub in use.
    #[must_use]
    pub fn current(&self) -> K {
        self.current
    }

    /// The hubs that are known now. Those that have refused stay refused.
    pub fn set_known(&mut self, known: Vec<(K, Standing<K>)>) {
        self.known = known;
        self.known.sort_by_key(|(_, own)| own.rank);
    }

    /// Whether the nearest hub of the fleet is used, or the one in use for as long as it answers.
    pub fn set_nearest(&mut self, is_wanted: bool) {
        self.nearest.is_wanted = is_wanted;
    }

    /// Whether a hub does not let this client in, so that it is left alone for a while.
    #[must_use]
    pub fn is_refused(&self, hub: K) -> bool {
        self.refused.get(&hub).is_some_and(|refusal| !refusal.is_over)
    }

    /// Whether a hub is of the fleet of the one in use, so that inner addresses are the same there,
    /// and lets this client in as far as is known.
    #[must_use]
    pub fn is_mate(&self, hub: K) -> bool {
        let fleet = |hub| {
            self.known
                .iter()
                .find(|(known, _)| *known == hub)
                .map(|(_, own)| own.fleet)
        };
        fleet(hub).is_some() && fleet(hub) == fleet(self.current) && !self.is_refused(hub)
    }

    /// The hubs that may get a second session: those that are not in use, give the same inner
    /// addresses, and have let this client in.
    pub fn further(&self) -> impl Iterator<Item = K> {
        let known = self.known.iter().filter(|(_, own)| !own.is_new);
        let known = known.map(|(hub, _)| *hub);
        known.filter(|hub| *hub != self.current && self.is_mate(*hub))
    }

    /// The hub that gets it: the first of these that is one of them.
    #[must_use]
    pub fn chosen(&self, wanted: impl IntoIterator<Item = K>) -> Option<K> {
        let mut wanted = wanted.into_iter();
        wanted.find(|hub| self.further().any(|further| further == *hub))
    }

    /// Whether a second session may begin. Not while others may be asked to take over: of two
    /// hellos at one hub, the second would end the session of the first.
    #[must_use]
    pub fn may_begin_beside(&self, sight: &Sight<K>) -> bool {
        let is_calm = self.silent_since.is_none() && !self.is_leaving && self.nearest.preferred.is_none();
        sight.before.is_none() && sight.has_network && sight.has_control && is_calm
    }

    /// How long a hub took to answer when that was measured last.
    #[must_use]
    pub fn round_trip(&self, hub: K) -> Option<Duration> {
        self.nearest.of(hub)
    }

    /// No path to the hub in use works, since then.
    #[must_use]
    pub fn silent_since(&self) -> Option<Instant> {
        self.silent_since
    }

    /// There is no session with any hub: the first choice has a second to answer.
    pub fn handle_absent(&mut self, now: Instant) {
        if self.silent_since.is_none() {
            self.silent_since = Some(now);
            self.next_try = now + FIRST_CHOICE;
        }
    }

    /// A path to the hub in use works, or none does.
    pub fn handle_alive(&mut self, is_alive: bool, now: Instant) {
        if is_alive {
            self.silent_since = None;
            self.times_asked = 0;
        } else {
            self.silent_since.get_or_insert(now);
        }
    }

    /// The hub in use has answered.
    pub fn handle_reached(&mut self, now: Instant) {
        self.next_try = now;
        self.silent_since = None;
        self.times_asked = 0;
    }

    /// The hub in use asks the client to go to another one.
    pub fn handle_leave(&mut self, now: Instant) {
        self.is_leaving = true;
        self.next_try = now;
    }

    /// Networks have come or gone.
    pub fn handle_networks(&mut self, now: Instant) {
        self.nearest.handle_networks(now);
    }

    /// Others may be asked at once: what is known of them has changed.
    pub fn handle_changed(&mut self, now: Instant) {
        self.next_try = now;
    }

    /// A hub that has refused this client may be asked again: there is a new invitation.
    pub fn handle_invited(&mut self, hub: K) {
        self.refused.remove(&hub);
    }

    /// A hub that was asked has not let the client in; `is_refused`: it said that it does not know
    /// it, or does not want it. `is_asking`: others are being asked still.
    pub fn handle_failed(&mut self, hub: K, is_refused: bool, is_asking: bool, now: Instant) {
        if is_refused {
            let before = self.refused.get(&hub);
            let lasts = before.map_or(REFUSED_FOR, |before| (before.lasts * 2).min(REFUSED_AT_MOST));
            let refusal = Refusal {
                until: now + lasts,
                lasts,
                is_over: false,
            };
            self.refused.insert(hub, refusal);
        }
        if !is_asking {
            self.nearest.preferred = None;
        }
    }

    /// A hub that was asked has let the client in. Returns whether it is to take over: if not, the
    /// client says goodbye there.
    pub fn handle_welcomed(&mut self, hub: K, now: Instant) -> bool {
        self.refused.remove(&hub);
        self.next_try = now;
        hub != self.current && self.may_take_over(hub)
    }

    /// How long hubs took to answer is known.
    pub fn handle_measured(&mut self, found: BTreeMap<K, Duration>, now: Instant) {
        let by_rank: Vec<_> = self.known.iter().map(|(hub, _)| *hub).collect();
        self.nearest.handle_measured(self.current, found, &by_rank, now);
    }

    /// Another hub is in use from now on.
    pub fn go_over(&mut self, hub: K) -> Left<K> {
        self.nearest.preferred = None;
        self.times_asked = 0;
        Left {
            hub: std::mem::replace(&mut self.current, hub),
            is_leaving: std::mem::take(&mut self.is_leaving),
            silent_since: self.silent_since.take(),
        }
    }

    /// A nearer hub, which takes over when it answers.
    #[must_use]
    pub fn preferred(&self) -> Option<K> {
        self.nearest.preferred
    }

    /// Whether another may take the place of the one in use: that is silent or goes, or this one is
    /// nearer.
    fn may_take_over(&self, hub: K) -> bool {
        self.is_leaving || self.silent_since.is_some() || self.nearest.preferred == Some(hub)
    }

    /// Whom to ask: those that may take over, and those where this client has not been yet. With
    /// the one before there is a session, which a second hello would end.
    fn wanted(&self, sight: &Sight<K>) -> impl Iterator<Item = K> {
        let before = sight.before.map(|before| before.hub);
        let others = self.known.iter();
        let others = others.filter(move |(hub, _)| *hub != self.current && Some(*hub) != before);
        let wanted = others.filter(|(hub, own)| self.may_take_over(*hub) || own.is_new);
        wanted.map(|(hub, _)| *hub).filter(|hub| !self.is_refused(*hub))
    }

    /// Whether the hub before takes over again. One that will be taken down is better than none.
    fn returns(&self, sight: &Sight<K>) -> bool {
        sight.before.is_some_and(|before| {
            let is_fit = !before.is_leaving || self.silent_since.is_some();
            before.is_well && is_fit && self.may_take_over(before.hub)
        })
    }

    /// The hubs of which it is measured how near they are, if any are.
    fn mates(&self, sight: &Sight<K>) -> Vec<K> {
        let known = self.known.iter().map(|(hub, _)| *hub);
        let mates: Vec<_> = known.filter(|hub| self.is_mate(*hub)).collect();
        if sight.has_control && mates.len() > 1 {
            mates
        } else {
            Vec::new()
        }
    }

    /// When others may be asked.
    fn due(&self) -> Instant {
        let silent = self.silent_since.map(|since| since + SILENCE);
        silent.map_or(self.next_try, |silent| silent.max(self.next_try))
    }

    /// When the hub before takes over again: it needs no asking, and waits as long as others do.
    fn return_due(&self) -> Instant {
        match self.silent_since {
            Some(since) if !self.is_leaving => since + SILENCE + STAND_BY_OF_MATE,
            _ => self.due(),
        }
    }

    /// When [`Self::poll`] has something to do, if nothing else happens.
    #[must_use]
    pub fn poll_timeout(&self, sight: &Sight<K>) -> Option<Instant> {
        let asks = self.wanted(sight).next().is_some();
        let asks = asks.then(|| self.due());
        let returns = self.returns(sight).then(|| self.return_due());
        let measuring = self.nearest.poll_timeout();
        let measuring = measuring.filter(|_| !self.mates(sight).is_empty());
        [asks, returns, measuring].into_iter().flatten().min()
    }

    /// What is to be done now, if anything is.
    pub fn poll(&mut self, sight: &Sight<K>, now: Instant) -> Option<Step<K>> {
        for refusal in self.refused.values_mut() {
            refusal.is_over |= refusal.until <= now;
        }
        if now >= self.return_due() && self.returns(sight) {
            return Some(Step::Return);
        }
        if now >= self.due()
            && let Some(step) = self.ask(sight, now)
        {
            return Some(step);
        }
        let mates = self.mates(sight);
        (!mates.is_empty() && self.nearest.poll(now)).then_some(Step::Measure(mates))
    }

    fn ask(&mut self, sight: &Sight<K>, now: Instant) -> Option<Step<K>> {
        let mut wanted: Vec<_> = self.wanted(sight).collect();
        if wanted.is_empty() {
            return None;
        }
        if !sight.has_network {
            self.next_try = now + NO_NETWORK;
            return None;
        }
        self.next_try = now + AGAIN;
        if let Some(count) = ASKED.get(self.times_asked).copied() {
            let skipped = ASKED[..self.times_asked].iter().sum::<usize>();
            let known = wanted
                .iter()
                .filter(|hub| self.round_trip(**hub).is_some())
                .count();
            if known > skipped + count {
                self.nearest.sort(&mut wanted);
                wanted = wanted.into_iter().skip(skipped).take(count).collect();
                self.next_try = now + WIDER;
            }
        }
        self.times_asked = self.times_asked.saturating_add(1);
        let is_silent = self.silent_since.is_some();
        let wait = |hub| {
            let wait = if self.is_mate(hub) {
                STAND_BY_OF_MATE
            } else {
                STAND_BY
            };
            (hub, is_silent.then_some(wait))
        };
        Some(Step::Ask(wanted.into_iter().map(wait).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hubs 1 to 3 are a fleet; 9 is another's.
    struct World {
        choice: HubChoice<u8>,
        sight: Sight<u8>,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            let now = Instant::from_nanos(1_000_000_000);
            let mut choice = HubChoice::new(1, now);
            let standing = |fleet| Standing {
                fleet,
                is_new: false,
                rank: 0,
            };
            choice.set_known(vec![
                (1, standing(1)),
                (2, standing(1)),
                (3, standing(1)),
                (9, standing(9)),
            ]);
            choice.set_nearest(false);
            let sight = Sight {
                before: None,
                has_network: true,
                has_control: true,
            };
            Self { choice, sight, now }
        }

        fn wait(&mut self, millis: u64) {
            self.now += Duration::from_millis(millis);
        }

        fn step(&mut self) -> Option<Step<u8>> {
            let step = self.choice.poll(&self.sight, self.now);
            let due = self.choice.poll_timeout(&self.sight);
            let is_idle = step.is_none() && due.is_some_and(|due| due <= self.now);
            assert!(!is_idle, "due now, and nothing to do");
            step
        }

        /// Whom it asks now.
        fn asked(&mut self) -> Vec<u8> {
            match self.step() {
                Some(Step::Ask(hubs)) => hubs.into_iter().map(|(hub, _)| hub).collect(),
                Some(Step::Return | Step::Measure(_)) | None => Vec::new(),
            }
        }

        fn silence(&mut self) {
            self.choice.handle_alive(false, self.now);
        }
    }

    #[test]
    fn asks_nobody_while_the_hub_in_use_answers() {
        let mut world = World::new();
        for _ in 0..100 {
            world.wait(100);
            assert_eq!(world.step(), None);
        }
        world.silence();
        world.wait(99);
        assert_eq!(world.step(), None, "a gap is no silence");
        world.choice.handle_alive(true, world.now);
        world.wait(1_000);
        assert_eq!(world.step(), None);
    }

    #[test]
    fn asks_all_others_once_it_is_silent_and_mates_wait_less() {
        let mut world = World::new();
        world.silence();
        world.wait(100);
        let (mate, other) = (Some(STAND_BY_OF_MATE), Some(STAND_BY));
        assert_eq!(
            world.step(),
            Some(Step::Ask(vec![(2, mate), (3, mate), (9, other)]))
        );
        assert_eq!(world.step(), None);
        world.wait(2_000);
        assert_eq!(world.asked(), [2, 3, 9], "beside what is under way");
        assert!(world.choice.handle_welcomed(3, world.now));
        let left = world.choice.go_over(3);
        assert_eq!((left.hub, left.is_leaving), (1, false));
        assert!(left.silent_since.is_some());
        assert_eq!(world.choice.current(), 3);
        world.wait(60_000);
        assert_eq!(world.step(), None, "silence has ended with the change");
    }

    #[test]
    fn one_that_answers_too_late_does_not_take_over() {
        let mut world = World::new();
        world.silence();
        world.wait(100);
        assert_eq!(world.asked(), [2, 3, 9]);
        world.choice.handle_alive(true, world.now);
        assert!(!world.choice.handle_welcomed(2, world.now));
    }

    #[test]
    fn a_hub_that_goes_is_left_at_once_and_its_clients_come_back_to_it_only_in_need() {
        let mut world = World::new();
        world.choice.handle_leave(world.now);
        assert_eq!(
            world.step(),
            Some(Step::Ask(vec![(2, None), (3, None), (9, None)]))
        );
        assert!(world.choice.handle_welcomed(2, world.now));
        assert!(world.choice.go_over(2).is_leaving);
        let mut before = Before {
            hub: 1,
            is_well: true,
            is_leaving: true,
        };
        world.sight.before = Some(before);
        world.choice.handle_leave(world.now);
        assert_eq!(world.asked(), [3, 9], "with the one before there is a session");
        world.choice.set_known(world.choice.known[..2].to_vec());
        assert_eq!(
            world.choice.poll_timeout(&world.sight),
            None,
            "there is nobody else"
        );
        world.silence();
        world.wait(5_000);
        assert_eq!(world.step(), Some(Step::Return));
        before.is_well = false;
        world.sight.before = Some(before);
        assert_eq!(
            (world.step(), world.choice.poll_timeout(&world.sight)),
            (None, None)
        );
    }

    #[test]
    fn a_hub_that_refuses_is_left_alone_for_longer_each_time_or_until_there_is_an_invitation() {
        let mut world = World::new();
        world.choice.handle_failed(2, true, true, world.now);
        world.choice.handle_failed(3, false, false, world.now);
        world.silence();
        world.wait(100);
        assert_eq!(world.asked(), [3, 9]);
        assert!(!world.choice.is_mate(2) && world.choice.is_refused(2));
        world.choice.handle_invited(2);
        world.wait(4_000);
        assert_eq!(world.asked(), [2, 3, 9]);
        for seconds in [2, 4, 8] {
            world.choice.handle_failed(2, true, true, world.now);
            world.wait(seconds * 1_000 - 1);
            world.step();
            assert!(world.choice.is_refused(2), "{seconds}");
            world.wait(1);
            world.step();
            assert!(
                !world.choice.is_refused(2),
                "it may have heard of the client by now"
            );
        }
        world.wait(2_000);
        assert_eq!(world.asked(), [2, 3, 9]);
        assert!(world.choice.handle_welcomed(2, world.now));
        world.choice.handle_failed(2, true, true, world.now);
        world.wait(2_000);
        assert_eq!(world.asked(), [2, 3, 9], "that begins anew");
    }

    #[test]
    fn a_hub_with_a_session_waits_for_the_one_in_use_as_others_do() {
        let mut world = World::new();
        world.sight.before = Some(Before {
            hub: 3,
            is_well: true,
            is_leaving: false,
        });
        world.silence();
        world.wait(100);
        assert_eq!(world.asked(), [2, 9]);
        world.wait(149);
        assert_eq!(world.step(), None, "a restart takes as long");
        world.choice.handle_alive(true, world.now);
        world.wait(1_000);
        assert_eq!(world.step(), None);
        world.silence();
        world.wait(100);
        world.step();
        world.wait(250);
        assert_eq!(world.step(), Some(Step::Return));
        // One that will be taken down is left at once.
        world.choice.handle_alive(true, world.now);
        world.choice.handle_leave(world.now);
        assert_eq!(world.step(), Some(Step::Return));
    }

    #[test]
    fn a_nearer_hub_takes_over_and_is_forgotten_when_it_does_not_answer() {
        let mut world = World::new();
        world.choice.set_nearest(true);
        let found = || BTreeMap::from([(1, 80), (2, 20)].map(|(hub, ms)| (hub, Duration::from_millis(ms))));
        for _ in 0..2 {
            world.wait(3_000);
            assert_eq!(world.step(), Some(Step::Measure(vec![1, 2, 3])));
            world.choice.handle_measured(found(), world.now);
        }
        assert_eq!(world.choice.preferred(), Some(2));
        assert_eq!(world.step(), Some(Step::Ask(vec![(2, None)])));
        world.choice.handle_failed(2, false, false, world.now);
        world.wait(10_000);
        assert_eq!(world.step(), None);
    }

    #[test]
    fn rules_choose_the_first_mate_that_is_not_in_use() {
        let mut world = World::new();
        let chosen = |world: &World, named: &[u8]| world.choice.chosen(named.iter().copied());
        assert_eq!(chosen(&world, &[]), None);
        assert_eq!(
            chosen(&world, &[1, 9, 7]),
            None,
            "in use, another fleet's, unknown"
        );
        assert_eq!(chosen(&world, &[1, 3, 2]), Some(3));
        world.choice.handle_failed(3, true, true, world.now);
        assert_eq!(chosen(&world, &[3, 2]), Some(2));
        world.choice.go_over(2);
        assert_eq!(chosen(&world, &[3, 2, 1]), Some(1));
        world
            .choice
            .known
            .iter_mut()
            .for_each(|(_, own)| own.is_new = true);
        assert_eq!(chosen(&world, &[1]), None, "it has not let this client in yet");
    }

    #[test]
    fn a_second_session_begins_only_while_nobody_else_is_asked() {
        let mut world = World::new();
        assert!(world.choice.may_begin_beside(&world.sight));
        let before = Some(Before {
            hub: 3,
            is_well: false,
            is_leaving: false,
        });
        for sight in [
            Sight {
                before,
                ..world.sight
            },
            Sight {
                has_control: false,
                ..world.sight
            },
            Sight {
                has_network: false,
                ..world.sight
            },
        ] {
            assert!(!world.choice.may_begin_beside(&sight), "{sight:?}");
        }
        world.silence();
        assert!(!world.choice.may_begin_beside(&world.sight));
        world.choice.handle_alive(true, world.now);
        assert!(world.choice.may_begin_beside(&world.sight));
        world.choice.handle_leave(world.now);
        assert!(!world.choice.may_begin_beside(&world.sight));
        // What has one is not asked by anybody else, and takes over when it is well.
        world.choice.go_over(1);
        world.sight.before = before;
        world.silence();
        world.wait(100);
        assert_eq!(world.asked(), [2, 9]);
    }

    #[test]
    fn looks_again_for_a_network_soon() {
        let mut world = World::new();
        world.silence();
        world.sight.has_network = false;
        world.wait(100);
        assert_eq!(world.step(), None);
        world.sight.has_network = true;
        assert_eq!(world.step(), None);
        world.wait(500);
        assert_eq!(world.asked(), [2, 3, 9]);
    }
    #[test]
    fn the_nearest_are_asked_first_where_they_are_known() {
        let mut world = World::new();
        let standing = Standing {
            fleet: 1,
            is_new: false,
            rank: 0,
        };
        world
            .choice
            .set_known((1..=6).map(|hub| (hub, standing)).collect());
        let found = [(1, 1), (2, 60), (3, 30), (4, 22), (5, 20), (6, 23)];
        let found = found.map(|(hub, ms)| (hub, Duration::from_millis(ms)));
        world.choice.handle_measured(BTreeMap::from(found), world.now);
        world.silence();
        world.wait(100);
        // The third is of another place than the two nearest.
        assert_eq!(world.asked(), [4, 5, 3]);
        world.wait(700);
        let mut all = world.asked();
        all.sort_unstable();
        assert_eq!(all, [2, 3, 4, 5, 6], "none has answered");
        world.choice.handle_alive(true, world.now);
        world.silence();
        world.wait(2_000);
        assert_eq!(world.asked(), [4, 5, 3], "that is over");
    }
}
