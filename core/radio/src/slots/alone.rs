//! Decides between serving all networks in turn and serving one of them almost exclusively.
//!
//! Serving in turn costs the switches, the shortest slots, and the packets that an access point
//! drops when its buffer is full while the radio is away. If one network can use all of the radio's
//! time, that cost may exceed the throughput of the others.
//!
//! ```text
//!   in turn     R   = bytes of all / time          measured
//!   alone       A_j = b_j (1 - visits)             before it was tried
//!               A_j = bytes of all / time          measured
//!
//!   b_j     rate in the last quarter of the slots of j: the backhaul's rate if all buffered
//!           packets arrived before, otherwise the air's rate
//!   visits  (networks - 1) floor / round
//!
//!   in turn -- A_j > R --> trial of j -- A_j > R still --> alone: j
//!      ^                      |                              | rate below R, or time to sample
//!      +----------------------+------------------------------+ the other networks again
//! ```
//!
//! Both are means of windows of 0.5 s, so `A_j` must exceed `R` by a tenth divided by the square
//! root of their number (the variation of TCP in 0.5 s): a large gain is used at once, a small one
//! when it is certain. A trial gives the other networks the shortest slot of each cycle, so that no
//! sender times out; the slots of `j` are then long enough to empty the access point's buffer
//! before their last quarter. A network that did not reach its predicted rate is not tried again
//! for 30 s, then twice as long each time, unless serving in turn transfers less than it did. It
//! starts in turn. It fails softly: a predicted rate that is too high costs a trial, and one that
//! is too low changes nothing.
//!
//! No trial starts while serving in turn loses nothing: no slot is full, and the access points
//! buffer all packets of their backhauls while the radio is away. The throughput is then that of
//! the senders, which may still increase their rate, as new ones do.
//!
//! Does not model: connections of the other networks can stall.
//!
//! Cost: O(networks) once a cycle.

use hawser_units::{Duration, Instant};

/// Mode of the radio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Serves all networks in turn.
    InTurn,
    /// Tries one network, and serves the others for their shortest slot in each cycle.
    Trial(usize),
    /// Serves one network, and the others for their shortest slot in each round.
    Alone(usize),
}

/// Throughput of a network in a cycle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Brought {
    /// Mean throughput over the whole cycle. Units: bytes/s.
    pub(super) load: f64,
    /// Throughput in the last quarter of its slots; `None`: none has ended. Units: bytes/s.
    pub(super) at_end: Option<f64>,
    /// Marks a slot that was busy to its end.
    pub(super) is_full: bool,
    /// Time in a cycle for which the radio is on other networks.
    pub(super) away: Duration,
}

/// Machine that selects the mode.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    way: Mode,
    since: Instant,
    /// Begin of the present window, and its cycles.
    window: Instant,
    cycles: u32,
    /// Number of its cycles with a full slot or an overflowing buffer.
    lossy: u32,
    /// Throughput of all networks in this window. Units: bytes/s.
    all: f64,
    /// Throughput of all networks in the previous window, and the mean since the last window that
    /// exceeded its predecessor by much. Units: bytes/s.
    before: f64,
    mean: f64,
    windows: u32,
    /// Throughput in turn when that mode was left. Units: bytes/s.
    in_turn: f64,
    networks: Vec<Candidate>,
}

/// A network that the radio could serve alone.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Running mean of [`Brought::at_end`] since the last restart.
    at_end: f64,
    ends: u32,
    /// Throughput of the network alone, and its expiry.
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
            way: Mode::InTurn,
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

    pub(super) fn mode(&self) -> Mode {
        self.way
    }

    /// Handles the end of a cycle. `visits`: share of time for the other networks while one is
    /// served alone.
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
                known.at_end += (at_end - known.at_end) / f64::from(known.ends.min(MAX_ENDS));
            }
            is_lossy |= one.is_full || known.at_end * one.away.as_secs_f64() > BUFFERED;
        }
        self.lossy += u32::from(is_lossy);
        if now.since(self.window) < WINDOW {
            return;
        }
        // While senders increase their rate, the throughput predicts nothing.
        if self.all > (1.0 + SCATTER) * self.before {
            self.start();
        } else {
            self.windows += 1;
            self.mean += (self.all - self.mean) / f64::from(self.windows.min(MAX_WINDOWS));
            self.choose(1.0 - visits, now);
        }
        self.before = self.all;
        (self.window, self.cycles, self.lossy) = (now, 0, 0);
    }

    fn choose(&mut self, left: f64, now: Instant) {
        let sure = 1.0 + SCATTER / f64::from(self.windows).sqrt();
        match self.way {
            Mode::InTurn if self.lossy * 2 < self.cycles => {}
            Mode::InTurn => {
                let promises = self.networks.iter().map(|one| one.promises(left, now));
                let highest = promises
                    .enumerate()
                    .max_by(|one, other| one.1.total_cmp(&other.1));
                if let Some((place, promised)) = highest
                    && promised > sure * self.mean
                {
                    self.in_turn = self.mean;
                    self.go(Mode::Trial(place), now);
                }
            }
            Mode::Trial(place) => {
                let one = &mut self.networks[place];
                let carries = one.at_end * left;
                if carries > self.in_turn {
                    self.go(Mode::Alone(place), now);
                } else {
                    one.record_throughput(carries, now);
                    self.go(Mode::InTurn, now);
                }
            }
            Mode::Alone(place) => {
                let one = &mut self.networks[place];
                let is_less = sure * self.mean < self.in_turn || (1.0 + SCATTER) * self.all < self.in_turn;
                if is_less {
                    one.record_throughput(self.mean, now);
                    self.go(Mode::InTurn, now);
                } else if now.since(self.since) >= ALONE {
                    one.believed = BELIEVED;
                    self.go(Mode::InTurn, now);
                }
            }
        }
    }

    /// Restarts the averages, since the throughput so far predicts nothing.
    fn start(&mut self) {
        (self.mean, self.windows) = (0.0, 0);
        for one in &mut self.networks {
            one.ends = 0;
        }
    }

    fn go(&mut self, way: Mode, now: Instant) {
        (self.way, self.since, self.before) = (way, now, 0.0);
        self.start();
    }
}

impl Candidate {
    /// Returns the predicted throughput of the network alone: the measured one if it is known,
    /// otherwise an upper bound. Units: bytes/s.
    fn promises(&self, left: f64, now: Instant) -> f64 {
        match self.known {
            Some((carried, until)) if now < until => carried,
            _ => self.at_end * left,
        }
    }

    /// Records that the network alone did not reach its prediction.
    fn record_throughput(&mut self, carried: f64, now: Instant) {
        self.known = Some((carried, now + self.believed));
        self.believed = (self.believed * 2).min(LONGEST_BELIEVED);
    }
}

/// Buffer of an access point for an absent station. Source: 64 full packets (`STA_MAX_TX_BUFFER` of
/// linux/net/mac80211/sta_info.h). Units: bytes.
const BUFFERED: f64 = 64.0 * 1_500.0;
/// Time for senders to find their rate after slots have changed. Source: our choice, some ten round
/// trips of the internet; a shorter one measures senders that still grow, a longer one delays each
/// comparison.
const SETTLED: Duration = Duration::from_millis(500);
/// Averaging window of rates. Source: docs/notebook/slots.md, "The rule"; other values were not
/// tried.
const WINDOW: Duration = Duration::from_millis(500);
/// Relative variation of TCP's throughput in a window. Source: docs/notebook/slots.md, "The rule":
/// one half second differs from the next by some 10 %.
const SCATTER: f64 = 0.1;
/// Maximum weight of the averages, in windows and slots: 16 s, and 20 s at cycles of 200 ms. Not
/// from a sweep: `start` discards all values whenever the throughput jumps.
const MAX_WINDOWS: u32 = 32;
const MAX_ENDS: u32 = 100;
/// Time after which the other networks are sampled again. Source: docs/notebook/slots.md, "The
/// rule", where samples after 8 s, then after twice as long each time, cost 4 s each.
const ALONE: Duration = Duration::from_secs(60);
/// Minimum and maximum lifetime of a measured throughput alone.
const BELIEVED: Duration = Duration::from_secs(30);
const LONGEST_BELIEVED: Duration = Duration::from_secs(960);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Shares, SharesConfig};
    use super::*;

    /// Model of a radio with a capacity in packets of 1,500 bytes per second, networks with a rate
    /// each, access points with a buffer of 64 packets, and switches of 3 ms.
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

        /// Serves in turn for `time`; returns the longest slot of each network at the end.
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
                                self.shares.handle_transferred(place, 1_500, self.now);
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
            // The other networks are visited too.
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
        let mode = |is_full, away| {
            let mut choice = Choice::new(2);
            let mut now = Instant::ZERO;
            for _ in 0..20 {
                now += CYCLE;
                // A quarter of the backhauls' packets arrives at the ends of slots.
                let one = Brought {
                    load: 125e3,
                    at_end: Some(500e3),
                    is_full,
                    away,
                };
                choice.handle_cycle(&[one, one], 0.01, now);
            }
            choice.mode()
        };
        let half = CYCLE / 2;
        assert_eq!(mode(false, half), Mode::InTurn);
        assert_ne!(mode(true, half), Mode::InTurn, "the air is used up");
        assert_ne!(
            mode(false, CYCLE),
            Mode::InTurn,
            "access points keep only so much"
        );
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
            one.record_throughput(70.0, now);
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
                match choice.mode() {
                    Mode::InTurn => {}
                    Mode::Trial(place) | Mode::Alone(place) => prop_assert!(place < 2),
                }
            }
        }
    }
}
