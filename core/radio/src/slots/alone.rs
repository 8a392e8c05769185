//! Whether a radio serves its networks in turn, or one of them nearly alone.
//!
//! Serving in turn costs the switches, the shortest slots, and what senders lose because an access
//! point keeps only so much while the radio is away. Where one network fills the radio by itself,
//! that is more than the others bring.
//!
//! ```text
//!   in turn     R   = carried by all / time        measured
//!   alone       A_j = b_j (1 - visits)             before it was tried
//!               A_j = carried by all / time        measured
//!
//!   b_j     what comes in the last quarter of the slots of j: the backhaul's rate, when what was
//!           kept has come before, and the air's, when it has not
//!   visits  (networks - 1) floor / round
//!
//!   in turn -- A_j > R --> trial of j -- A_j > R still --> alone: j
//!      ^                      |                              | carries less than R, or it is time to
//!      +----------------------+------------------------------+ look at the others again
//! ```
//!
//! Both are means of half seconds, so `A_j` has to be more by a tenth over the root of their number
//! (the scatter of TCP in half a second): a large gain is taken at once, a small one when it is
//! certain. A trial gives the others the shortest slot of each cycle, so that nobody's sender falls
//! silent; the slots of `j` are long enough then for all that is kept to come before their last
//! quarter. A network that did not keep what it promised is not tried again for 30 s, then twice as
//! long each time, unless serving in turn carries less than it did. It starts in turn. It fails
//! softly: a rate that is too high costs a trial, one that is too low leaves things as they are.
//!
//! No trial is made while serving in turn loses nothing: no slot is full, and the access points
//! keep all that their backhauls bring while the radio is away. What is carried then is what
//! senders send, and they may send more: those that have just begun do.
//!
//! Does not model: that connections of networks that are left can stand still.
//!
//! Cost: O(networks) once a cycle.

use hawser_units::{Duration, Instant};

/// How the radio is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// All networks in turn.
    InTurn,
    /// One network, and the others for their shortest slot in each cycle.
    Trial(usize),
    /// One network, and the others for their shortest slot in each round.
    Alone(usize),
}

/// What a cycle brought from a network.
#[derive(Clone, Copy, Debug)]
pub(super) struct Brought {
    /// Units: bytes/s, of all the time.
    pub(super) load: f64,
    /// In the last quarter of its slots; `None`: none has ended. Units: bytes/s.
    pub(super) at_end: Option<f64>,
    /// Its slot was busy to the end.
    pub(super) is_full: bool,
    /// How long the radio is away from it in a cycle.
    pub(super) away: Duration,
}

/// The machine.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    way: Way,
    since: Instant,
    /// When the present window began, and its cycles.
    window: Instant,
    cycles: u32,
    /// Cycles of it in which serving in turn lost something.
    lossy: u32,
    /// What all carry in this window. Units: bytes/s.
    all: f64,
    /// What all carried in the window before, and in all since the last that carried much more than
    /// the one before it. Units: bytes/s.
    before: f64,
    mean: f64,
    windows: u32,
    /// What was carried in turn, when that was left. Units: bytes/s.
    in_turn: f64,
    networks: Vec<Candidate>,
}

/// A network that the radio could serve alone.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// As in [`Brought`], in all those windows.
    at_end: f64,
    ends: u32,
    /// What it carried alone, and until when that is believed.
    known: Option<(f64, Instant)>,
    believed: Duration,
}

impl Choice {
    pub(super) fn new(networks: usize) -> Self {
        let candidate = Candidate {
            at_end: 0.0,
            ends: 0,
            known: None,
            believed: BELIEVED,
        };
        Self {
            way: Way::InTurn,
            since: Instant::ZERO,
            window: Instant::ZERO,
            cycles: 0,
            lossy: 0,
            all: 0.0,
            before: 0.0,
            mean: 0.0,
            windows: 0,
            in_turn: 0.0,
            networks: vec![candidate; networks],
        }
    }

    pub(super) fn way(&self) -> Way {
        self.way
    }

    /// A cycle is over. `visits`: the part of the time that other networks have while one is served
    /// alone.
    pub(super) fn handle_cycle(&mut self, brought: &[Brought], visits: f64, now: Instant) {
        if now.since(self.since) < SETTLED {
            self.window = now;
            return;
        }
        self.cycles += 1;
        let count = f64::from(self.cycles);
        let mean = |value: &mut f64, new: f64| *value += (new - *value) / count;
        mean(&mut self.all, brought.iter().map(|one| one.load).sum());
        let mut is_lossy = false;
        for (known, one) in self.networks.iter_mut().zip(brought) {
            if let Some(at_end) = one.at_end {
                known.ends += 1;
                known.at_end += (at_end - known.at_end) / f64::from(known.ends.min(MOST_ENDS));
            }
            is_lossy |= one.is_full || known.at_end * one.away.as_secs_f64() > KEPT;
        }
        self.lossy += u32::from(is_lossy);
        if now.since(self.window) < WINDOW {
            return;
        }
        // While senders still find their rate, nothing is known of what they will bring.
        if self.all > (1.0 + SCATTER) * self.before {
            self.start();
        } else {
            self.windows += 1;
            self.mean += (self.all - self.mean) / f64::from(self.windows.min(MOST_WINDOWS));
            self.choose(1.0 - visits, now);
        }
        self.before = self.all;
        (self.window, self.cycles, self.lossy) = (now, 0, 0);
    }

    fn choose(&mut self, left: f64, now: Instant) {
        let sure = 1.0 + SCATTER / f64::from(self.windows).sqrt();
        match self.way {
            Way::InTurn if self.lossy * 2 < self.cycles => {}
            Way::InTurn => {
                let promises = self.networks.iter().map(|one| one.promises(left, now));
                let highest = promises
                    .enumerate()
                    .max_by(|one, other| one.1.total_cmp(&other.1));
                if let Some((place, promised)) = highest
                    && promised > sure * self.mean
                {
                    self.in_turn = self.mean;
                    self.go(Way::Trial(place), now);
                }
            }
            Way::Trial(place) => {
                let one = &mut self.networks[place];
                let carries = one.at_end * left;
                if carries > self.in_turn {
                    self.go(Way::Alone(place), now);
                } else {
                    one.has_carried(carries, now);
                    self.go(Way::InTurn, now);
                }
            }
            Way::Alone(place) => {
                let one = &mut self.networks[place];
                let is_less = sure * self.mean < self.in_turn || (1.0 + SCATTER) * self.all < self.in_turn;
                if is_less {
                    one.has_carried(self.mean, now);
                    self.go(Way::InTurn, now);
                } else if now.since(self.since) >= ALONE {
                    one.believed = BELIEVED;
                    self.go(Way::InTurn, now);
                }
            }
        }
    }

    /// What was carried so far says nothing of what will be.
    fn start(&mut self) {
        (self.mean, self.windows) = (0.0, 0);
        for one in &mut self.networks {
            one.ends = 0;
        }
    }

    fn go(&mut self, way: Way, now: Instant) {
        (self.way, self.since, self.before) = (way, now, 0.0);
        self.start();
    }
}

impl Candidate {
    /// What it carries alone, as far as that is known; at most. Units: bytes/s.
    fn promises(&self, left: f64, now: Instant) -> f64 {
        match self.known {
            Some((carried, until)) if now < until => carried,
            _ => self.at_end * left,
        }
    }

    /// It was not as good as it promised.
    fn has_carried(&mut self, carried: f64, now: Instant) {
        self.known = Some((carried, now + self.believed));
        self.believed = (self.believed * 2).min(LONGEST_BELIEVED);
    }
}

/// What an access point keeps for a station that is away: 64 full packets (mac80211
/// `STA_MAX_TX_BUFFER`). Units: bytes.
const KEPT: f64 = 64.0 * 1_500.0;
/// For senders to find their rate after slots have changed.
const SETTLED: Duration = Duration::from_millis(500);
/// Over which rates are taken.
const WINDOW: Duration = Duration::from_millis(500);
/// The scatter of what TCP carries in a window.
const SCATTER: f64 = 0.1;
/// Windows and slots after which older ones are forgotten: 16 s, and 20 s at cycles of 200 ms.
/// Chosen, not swept: `start` forgets all whenever what is carried jumps.
const MOST_WINDOWS: u32 = 32;
const MOST_ENDS: u32 = 100;
/// Before the others are looked at again.
const ALONE: Duration = Duration::from_secs(60);
/// How long what was carried alone is believed, at first and at most.
const BELIEVED: Duration = Duration::from_secs(30);
const LONGEST_BELIEVED: Duration = Duration::from_secs(960);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Shares, SharesConfig};
    use super::*;

    /// A radio that carries so many packets of 1,500 bytes a second, networks that bring so many
    /// each, access points that keep 64, switches of 3 ms.
    struct World {
        shares: Shares,
        brings: Vec<f64>,
        kept: Vec<f64>,
        slots: Vec<Duration>,
        now: Instant,
        carried: Vec<u32>,
    }

    const STEP: Duration = Duration::from_micros(100);
    const AIR: f64 = 2_000.0;
    const SWITCH: Duration = Duration::from_millis(3);
    const CYCLE: Duration = Duration::from_millis(200);

    impl World {
        fn new(brings: &[f64]) -> Self {
            Self {
                shares: Shares::new(SharesConfig::default(), brings.len()),
                brings: brings.to_vec(),
                kept: vec![0.0; brings.len()],
                slots: vec![CYCLE / 2; brings.len()],
                now: Instant::ZERO,
                carried: vec![0; brings.len()],
            }
        }

        /// Serves in turn for so long; returns the longest slot of each network at the end.
        fn run(&mut self, time: Duration) -> Vec<Duration> {
            let end = self.now + time;
            let mut next = self.now + CYCLE;
            let mut may_send = 0.0;
            self.carried.fill(0);
            while self.now < end {
                for place in 0..self.brings.len() {
                    let until = self.now + self.slots[place];
                    let from = self.now + SWITCH;
                    let mut is_served = false;
                    while self.now < until.min(end) {
                        if self.now >= from && !is_served {
                            is_served = true;
                            self.shares.handle_switched(place, false, self.now);
                        }
                        self.now += STEP;
                        for (one, brings) in self.brings.iter().enumerate() {
                            let most = if is_served && one == place { 1e9 } else { 64.0 };
                            self.kept[one] = (self.kept[one] + brings * STEP.as_secs_f64()).min(most);
                        }
                        may_send = if is_served {
                            may_send + AIR * STEP.as_secs_f64()
                        } else {
                            0.0
                        };
                        if may_send >= 1.0 {
                            may_send -= 1.0;
                            if self.kept[place] >= 1.0 {
                                self.kept[place] -= 1.0;
                                self.carried[place] += 1;
                                self.shares.handle_carried(place, 1_500, self.now);
                            }
                        }
                        if self.now >= next {
                            next += CYCLE;
                            self.slots = self.shares.next_cycle(self.now);
                        }
                    }
                    self.shares.handle_left(false, self.now);
                }
            }
            self.slots.clone()
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn one_network_is_served_alone_where_it_fills_the_radio_by_itself() {
        for brings in [[1_950.0, 1_950.0], [1_950.0, 100.0], [50.0, 1_980.0]] {
            let mut world = World::new(&brings);
            world.run(SECOND * 8);
            let slots = world.run(SECOND * 8);
            let longest = *slots.iter().max().expect("there are two");
            assert!(longest > SECOND, "{brings:?}: {slots:?}");
            let all: u32 = world.carried.iter().sum();
            let alone = brings[0].max(brings[1]) * 8.0;
            assert!(f64::from(all) > 0.97 * alone, "{brings:?}: {all} of {alone}");
            // Those that are left are visited.
            assert!(world.carried.iter().all(|carried| *carried > 0), "{brings:?}");
        }
    }

    #[test]
    fn all_are_served_in_turn_where_that_brings_more() {
        for brings in [
            [300.0, 300.0],
            [1_000.0, 1_000.0],
            [1_300.0, 100.0],
            [1_000.0, 0.0],
            [0.0, 0.0],
        ] {
            let mut world = World::new(&brings);
            for _ in 0..20 {
                let slots = world.run(SECOND);
                assert!(slots.iter().all(|slot| *slot <= CYCLE), "{brings:?}: {slots:?}");
            }
        }
    }

    #[test]
    fn the_others_are_served_again_when_the_one_brings_less() {
        let mut world = World::new(&[1_950.0, 1_950.0]);
        let slots = world.run(SECOND * 16);
        let place = usize::from(slots[1] > slots[0]);
        assert!(slots[place] > SECOND, "{slots:?}");
        world.brings[place] = 0.0;
        let slots = world.run(SECOND * 3);
        assert!(slots.iter().all(|slot| *slot <= CYCLE), "{slots:?}");
    }

    #[test]
    fn nobody_is_left_for_what_senders_do_not_send_yet() {
        let way = |is_full, away| {
            let mut choice = Choice::new(2);
            let mut now = Instant::ZERO;
            for _ in 0..20 {
                now += CYCLE;
                // A quarter of what the backhauls bring at the ends of slots.
                let one = Brought {
                    load: 125e3,
                    at_end: Some(500e3),
                    is_full,
                    away,
                };
                choice.handle_cycle(&[one, one], 0.01, now);
            }
            choice.way()
        };
        let half = CYCLE / 2;
        assert_eq!(way(false, half), Way::InTurn);
        assert_ne!(way(true, half), Way::InTurn, "the air is used up");
        assert_ne!(way(false, CYCLE), Way::InTurn, "access points keep only so much");
    }

    #[test]
    fn who_did_not_keep_a_promise_is_asked_more_and_more_rarely() {
        let mut one = Candidate {
            at_end: 100.0,
            ends: 1,
            known: None,
            believed: BELIEVED,
        };
        let mut now = Instant::ZERO;
        for believed in [30, 60, 120] {
            assert_eq!(one.promises(1.0, now), 100.0);
            one.has_carried(70.0, now);
            now += Duration::from_secs(believed);
            assert_eq!(one.promises(1.0, now - STEP), 70.0);
        }
    }

    proptest! {
        #[test]
        fn whatever_is_brought(
            cycles in proptest::collection::vec((0.0..1e9, proptest::option::of(0.0..1e9), 1_u64..2_000), 0..400),
        ) {
            let mut choice = Choice::new(2);
            let mut now = Instant::ZERO;
            for (load, at_end, ms) in cycles {
                now += Duration::from_millis(ms);
                let one = Brought {
                    load,
                    at_end,
                    is_full: ms % 2 == 0,
                    away: Duration::from_millis(ms),
                };
                choice.handle_cycle(&[one, one], 0.01, now);
                prop_assert!(choice.mean.is_finite());
                match choice.way() {
                    Way::InTurn => {}
                    Way::Trial(place) | Way::Alone(place) => prop_assert!(place < 2),
                }
            }
        }
    }
}
