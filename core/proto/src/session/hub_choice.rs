//! Choice of the hub that a client uses, among the known ones.
//!
//! The first hub that answers is used for as long as it answers. When no path to it works, the
//! client contacts the other hubs as well. A hub that answers takes over unless the hub in use
//! answers within [`STAND_BY`]. Reason: if all networks fail for a moment (in a road tunnel), the
//! hub has not failed, and a change ends connections of applications, because they leave the tunnel
//! at another address.
//!
//! Between hubs of a fleet connections do not end, because the session with the previous hub
//! continues for them. So a hub that is nearer takes over too ([`super::nearest`]), and the wait
//! for a hub that does not answer is half as long.
//!
//! ```text
//!            no path works                   another answers            the one in use is silent
//!   in use ----------------> others are asked --------------> it is asked ------------> change
//!     ^                            |                             |
//!     +----------------------------+-----------------------------+  a path works, or it answers
//! ```
//!
//! The driver reports events (`handle_*`) and then asks for the next action ([`HubChoice::poll`]).
//! Cost: O(hubs) a call.

use std::collections::BTreeMap;

use hawser_units::{Duration, Instant};

use super::nearest::Nearest;

/// Time without a working path after which other hubs are asked: less than a path needs to be
/// detected again after a short gap. Source: our choice; twice of it delays new connections after
/// the failure of a hub, 0.4 s in docs/manual/fleet.md, by another 0.1 s, and half asks other hubs
/// at each short outage of a radio.
const SILENCE: Duration = Duration::from_millis(100);
/// Interval between attempts to reach the other hubs, each beside the one before. A handshake
/// retransmits its own packets, but at growing intervals (RFC 9002 section 6.2.1): after 2.1 s it
/// would find a returned hub 2.4 s later.
const AGAIN: Duration = Duration::from_secs(2);
/// Number of hubs asked first, and then in addition, before all are asked, if their distances are
/// known: a failing hub leaves thousands of clients, and each handshake is work for the hub that it
/// reaches. Source: our choice; in docs/notebook/fleet.md 25,000 clients asked sixteen hubs at
/// once, which then had handshakes of clients that no longer waited. Fewer delay clients whose
/// nearest hubs are down too.
const ASKED: [usize; 2] = [3, 6];
/// Time after which more hubs are asked if none has taken over. Source: our choice, two round trips
/// of 300 ms, a handshake and a hello, with a margin; a shorter one asks more hubs although the
/// first ones answer, a longer one delays clients whose first three are down too.
const WIDER: Duration = Duration::from_millis(700);
/// Time at the start before other hubs are asked. Source: our choice, the initial timeout of a QUIC
/// handshake (RFC 9002 section 6.2.2), so the first hub has had one packet repeated.
const FIRST_CHOICE: Duration = Duration::from_secs(1);
/// Interval between checks for a usable network. Source: our choice; a longer one delays the first
/// connection after a network appears, a shorter one only wakes the machine.
const NO_NETWORK: Duration = Duration::from_millis(500);
/// Minimum time for which another hub waits for the hub in use to answer after all. Source: our
/// choice, longer than a change of access points takes; twice of it delays each failover by as
/// much, half ends connections at shorter outages.
const STAND_BY: Duration = Duration::from_millis(500);
/// Minimum time for which another hub of the same fleet waits. A change loses nothing there: it is
/// enough that a hub that restarts, and is silent for 250 ms, keeps its clients. Source: half of
/// [`STAND_BY`].
const STAND_BY_OF_MATE: Duration = Duration::from_millis(250);
/// Retry interval of a hub that rejected this client: hubs of a fleet receive an enrolment at
/// another one within it. Doubles after each rejection, up to one hour: a revoked client should not
/// ask all the time. Source: our choice; a shorter one asks hubs that cannot know yet, a longer one
/// delays the first session. An hour bounds a thousand revoked clients to one handshake in 3.6 s.
const REFUSED_FOR: Duration = Duration::from_secs(2);
const MAX_REFUSED_FOR: Duration = Duration::from_secs(3600);

/// State of a hub as seen by a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing<K> {
    /// The fleet of the hub, named by one of its hubs.
    pub fleet: K,
    /// Set if the client has an unused invitation.
    pub is_new: bool,
    /// Rank among hubs at the same distance, random but constant for a client, so that clients are
    /// distributed over the hubs of a site.
    pub rank: u64,
}

/// The hub of the second session: the one that was in use before, or one that rules choose for some
/// destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before<K> {
    /// The hub.
    pub hub: K,
    /// Set if a path to the hub and its control connection work.
    pub is_well: bool,
    /// Marks a hub that is about to shut down.
    pub is_leaving: bool,
}

/// Further inputs from the driver.
#[derive(Clone, Copy, Debug)]
pub struct Sight<K> {
    /// The hub of the second session, if there is one.
    pub before: Option<Before<K>>,
    /// Set if a network is available.
    pub has_network: bool,
    /// Set if the control connection to the hub in use is up.
    pub has_control: bool,
}

/// Action for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<K> {
    /// Asks these hubs at once, beside the attempts under way. A hub that answers waits for this
    /// time, and for a few round trips, before the client presents itself; without a time, the
    /// client presents itself at once.
    Ask(Vec<(K, Option<Duration>)>),
    /// Uses the previous hub again, whose session is there still.
    Return,
    /// Measures how long these take to answer: [`HubChoice::handle_measured`].
    Measure(Vec<K>),
}

/// State before a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left<K> {
    /// The hub.
    pub hub: K,
    /// Marks a hub that is about to shut down.
    pub is_leaving: bool,
    /// Time since which no path to the hub works.
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
    /// Hubs that rejected this client.
    refused: BTreeMap<K, Refusal>,
    /// Time at which other hubs may be asked.
    next_try: Instant,
    /// Time since which no path to the hub in use works.
    silent_since: Option<Instant>,
    /// The hub in use will be taken down.
    is_leaving: bool,
    /// Number of attempts at other hubs of which none has taken over.
    times_asked: usize,
    nearest: Nearest<K>,
}

impl<K: Copy + Ord> HubChoice<K> {
    /// Creates the choice with one hub. The caller sets whether the nearest of its fleet is used.
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

    /// Sets the known hubs. Those that have refused stay refused.
    pub fn set_known(&mut self, known: Vec<(K, Standing<K>)>) {
        self.known = known;
        self.known.sort_by_key(|(_, own)| own.rank);
    }

    /// Sets whether the nearest hub of the fleet is used; otherwise the hub in use remains in use
    /// while it answers.
    pub fn set_nearest(&mut self, is_wanted: bool) {
        self.nearest.is_wanted = is_wanted;
    }

    /// Returns whether a hub rejected this client recently, so that it is not asked for a while.
    #[must_use]
    pub fn is_refused(&self, hub: K) -> bool {
        self.refused.get(&hub).is_some_and(|refusal| !refusal.is_over)
    }

    /// Returns whether a hub belongs to the fleet of the hub in use, so that inner addresses are
    /// the same, and is not known to refuse this client.
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

    /// Returns the hubs that may get a second session: those that are not in use, assign the same
    /// inner addresses, and have accepted this client.
    pub fn secondary_hubs(&self) -> impl Iterator<Item = K> {
        let known = self.known.iter().filter(|(_, own)| !own.is_new);
        let known = known.map(|(hub, _)| *hub);
        known.filter(|hub| *hub != self.current && self.is_mate(*hub))
    }

    /// Returns the hub that gets the second session: the first of `wanted` that may get one.
    #[must_use]
    pub fn selected_secondary(&self, wanted: impl IntoIterator<Item = K>) -> Option<K> {
        let mut wanted = wanted.into_iter();
        wanted.find(|hub| self.secondary_hubs().any(|further| further == *hub))
    }

    /// Returns whether a second session may start. Not while other hubs may be asked to take over:
    /// of two hellos at one hub, the second would end the session of the first.
    #[must_use]
    pub fn may_begin_secondary(&self, sight: &Sight<K>) -> bool {
        let is_calm = self.silent_since.is_none() && !self.is_leaving && self.nearest.preferred.is_none();
        sight.before.is_none() && sight.has_network && sight.has_control && is_calm
    }

    /// Returns a hub's last measured response time.
    #[must_use]
    pub fn round_trip(&self, hub: K) -> Option<Duration> {
        self.nearest.of(hub)
    }

    /// Returns the time since which no path to the hub in use works.
    #[must_use]
    pub fn silent_since(&self) -> Option<Instant> {
        self.silent_since
    }

    /// Handles the absence of a session with any hub: the first choice has one second to answer.
    pub fn handle_absent(&mut self, now: Instant) {
        if self.silent_since.is_none() {
            self.silent_since = Some(now);
            self.next_try = now + FIRST_CHOICE;
        }
    }

    /// Handles whether any path to the hub in use works.
    pub fn handle_alive(&mut self, is_alive: bool, now: Instant) {
        if is_alive {
            self.silent_since = None;
            self.times_asked = 0;
        } else {
            self.silent_since.get_or_insert(now);
        }
    }

    /// Handles an answer of the hub in use.
    pub fn handle_reached(&mut self, now: Instant) {
        self.next_try = now;
        self.silent_since = None;
        self.times_asked = 0;
    }

    /// Handles the request of the hub in use to change to another hub.
    pub fn handle_leave(&mut self, now: Instant) {
        self.is_leaving = true;
        self.next_try = now;
    }

    /// Handles added or removed networks.
    pub fn handle_networks(&mut self, now: Instant) {
        self.nearest.handle_networks(now);
    }

    /// Handles changed information about other hubs, which may be tried at once.
    pub fn handle_changed(&mut self, now: Instant) {
        self.next_try = now;
    }

    /// Handles a new invitation: a hub that has refused this client may be tried again.
    pub fn handle_invited(&mut self, hub: K) {
        self.refused.remove(&hub);
    }

    /// Handles the refusal or failure of a hub; `is_refused`: it does not know the client, or
    /// refuses it. `is_asking`: other hubs are still being asked.
    pub fn handle_failed(&mut self, hub: K, is_refused: bool, is_asking: bool, now: Instant) {
        if is_refused {
            let before = self.refused.get(&hub);
            let lasts = before.map_or(REFUSED_FOR, |before| (before.lasts * 2).min(MAX_REFUSED_FOR));
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

    /// Handles that a hub has accepted the client. Returns whether it is to take over: if not, the
    /// client sends a goodbye there.
    pub fn handle_welcomed(&mut self, hub: K, now: Instant) -> bool {
        self.refused.remove(&hub);
        self.next_try = now;
        hub != self.current && self.may_take_over(hub)
    }

    /// Handles new measurements of the hubs' response times.
    pub fn handle_measured(&mut self, found: BTreeMap<K, Duration>, now: Instant) {
        let by_rank: Vec<_> = self.known.iter().map(|(hub, _)| *hub).collect();
        self.nearest.handle_measured(self.current, found, &by_rank, now);
    }

    /// Changes the hub in use.
    pub fn go_over(&mut self, hub: K) -> Left<K> {
        self.nearest.preferred = None;
        self.times_asked = 0;
        Left {
            hub: std::mem::replace(&mut self.current, hub),
            is_leaving: std::mem::take(&mut self.is_leaving),
            silent_since: self.silent_since.take(),
        }
    }

    /// Returns a nearer hub, which is used once it answers.
    #[must_use]
    pub fn preferred(&self) -> Option<K> {
        self.nearest.preferred
    }

    /// Returns whether another hub may replace the one in use, because that is silent or shuts
    /// down, or because the other is nearer.
    fn may_take_over(&self, hub: K) -> bool {
        self.is_leaving || self.silent_since.is_some() || self.nearest.preferred == Some(hub)
    }

    /// Hubs to ask: those that may take over, and those where this client has not enrolled yet. The
    /// previous hub has a session, which a second hello would end.
    fn wanted(&self, sight: &Sight<K>) -> impl Iterator<Item = K> {
        let before = sight.before.map(|before| before.hub);
        let others = self.known.iter();
        let others = others.filter(move |(hub, _)| *hub != self.current && Some(*hub) != before);
        let wanted = others.filter(|(hub, own)| self.may_take_over(*hub) || own.is_new);
        wanted.map(|(hub, _)| *hub).filter(|hub| !self.is_refused(*hub))
    }

    /// Returns whether the previous hub takes over again. A hub that is about to shut down is
    /// better than none.
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

    /// Returns when other hubs may be asked.
    fn due(&self) -> Instant {
        let silent = self.silent_since.map(|since| since + SILENCE);
        silent.map_or(self.next_try, |silent| silent.max(self.next_try))
    }

    /// Returns when the previous hub takes over again: it need not be asked, and waits as long as
    /// others do.
    fn return_due(&self) -> Instant {
        match self.silent_since {
            Some(since) if !self.is_leaving => since + SILENCE + STAND_BY_OF_MATE,
            _ => self.due(),
        }
    }

    /// Returns when [`Self::poll`] has an output, if no other event occurs.
    #[must_use]
    pub fn poll_timeout(&self, sight: &Sight<K>) -> Option<Instant> {
        let asks = self.wanted(sight).next().is_some();
        let asks = asks.then(|| self.due());
        let returns = self.returns(sight).then(|| self.return_due());
        let measuring = self.nearest.poll_timeout();
        let measuring = measuring.filter(|_| !self.mates(sight).is_empty());
        [asks, returns, measuring].into_iter().flatten().min()
    }

    /// Returns the next action, if any.
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
        let chosen = |world: &World, named: &[u8]| world.choice.selected_secondary(named.iter().copied());
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
        assert!(world.choice.may_begin_secondary(&world.sight));
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
            assert!(!world.choice.may_begin_secondary(&sight), "{sight:?}");
        }
        world.silence();
        assert!(!world.choice.may_begin_secondary(&world.sight));
        world.choice.handle_alive(true, world.now);
        assert!(world.choice.may_begin_secondary(&world.sight));
        world.choice.handle_leave(world.now);
        assert!(!world.choice.may_begin_secondary(&world.sight));
        // A hub with a secondary session is not probed otherwise, and takes over if it works.
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
