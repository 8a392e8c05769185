use proptest::prelude::*;

use super::*;

const PACKET: u64 = 1_472;
const STEP: Duration = Duration::from_millis(5);
const ROUND_TRIP: Duration = Duration::from_millis(40);

/// Network between the ends.
#[derive(Clone, Copy, Debug)]
enum Network {
    Free,
    /// A token bucket of this rate and depth in bytes.
    Policer(Rate, u64),
    /// Each n-th packet is lost.
    Chance(u64),
    /// Each third packet is lost while a queue persists.
    Overflow,
}

/// A sender at a constant rate, or at the limit where that is less.
struct Driven {
    policing: Policing,
    network: Network,
    rate: Rate,
    now: Instant,
    owed: u64,
    tokens: u64,
    count: u64,
}

impl Driven {
    fn new(network: Network) -> Self {
        let tokens = match network {
            Network::Policer(_, depth) => depth,
            Network::Free | Network::Chance(_) | Network::Overflow => 0,
        };
        Self {
            policing: Policing::default(),
            network,
            rate: Rate::from_mbps(5),
            now: Instant::from_nanos(1_000_000_000),
            owed: 0,
            tokens,
            count: 0,
        }
    }

    fn passes(&mut self) -> bool {
        self.count += 1;
        match self.network {
            Network::Free => true,
            Network::Policer(..) if self.tokens >= PACKET => {
                self.tokens -= PACKET;
                true
            }
            Network::Policer(..) => false,
            Network::Chance(n) => !self.count.is_multiple_of(n),
            Network::Overflow => !self.count.is_multiple_of(3),
        }
    }

    fn step(&mut self) -> Seen {
        self.now += STEP;
        if let Network::Policer(rate, depth) = self.network {
            self.tokens = (self.tokens + rate.bytes_in(STEP).0).min(depth);
        }
        let rate = self
            .policing
            .limit()
            .map_or(self.rate, |limit| limit.min(self.rate));
        self.owed += rate.bytes_in(STEP).0;
        let mut seen = Seen {
            is_queued: matches!(self.network, Network::Overflow),
            round_trip: ROUND_TRIP,
            ..Seen::default()
        };
        while self.owed >= PACKET {
            self.owed -= PACKET;
            if self.passes() {
                seen.bytes += PACKET;
                seen.packets += 1;
            } else {
                seen.lost += 1;
            }
        }
        self.policing.on_report(&seen, self.now);
        seen
    }

    fn run(&mut self, time: Duration) -> (u64, u64) {
        let end = self.now + time;
        let (mut sent, mut lost) = (0, 0);
        while self.now < end {
            let seen = self.step();
            sent += seen.packets + seen.lost;
            lost += seen.lost;
        }
        (sent, lost)
    }

    fn policed_at(&self) -> Option<f64> {
        match self.policing.state() {
            State::Policed(rate) => Some(rate.as_bps() as f64 / 1e6),
            State::Free | State::Trial | State::Rejected => None,
        }
    }
}

fn policer(mbps: u64, kib: u64) -> Network {
    Network::Policer(Rate::from_mbps(mbps), kib * 1024)
}

#[test]
fn a_policer_is_recognised_at_its_rate_whatever_its_depth() {
    for kib in [3, 15, 40, 200] {
        for mbps in [1, 2, 3] {
            let mut driven = Driven::new(policer(mbps, kib));
            driven.run(Duration::from_secs(4));
            let rate = driven.policed_at().expect("policed");
            let share = rate / mbps as f64;
            assert!((0.9..1.05).contains(&share), "{mbps} Mbit/s, {kib} KiB: {rate}");
            let (sent, lost) = driven.run(Duration::from_secs(1));
            assert!(sent > 0 && lost == 0, "{lost} of {sent}");
        }
    }
}

#[test]
fn losses_by_chance_and_overflowing_queues_are_no_policer() {
    let mut chance = Driven::new(Network::Chance(6));
    chance.run(Duration::from_secs(4));
    assert_eq!(chance.policing.state(), State::Rejected);
    assert_eq!(chance.policing.limit(), None);
    for network in [Network::Overflow, Network::Free, Network::Chance(12)] {
        let mut driven = Driven::new(network);
        driven.run(Duration::from_secs(20));
        assert_eq!(driven.policing.state(), State::Free, "{network:?}");
    }
}

#[test]
fn a_rejection_ends_and_lasts_longer_each_time() {
    let mut driven = Driven::new(Network::Chance(6));
    driven.run(Duration::from_secs(4));
    for seconds in [30, 60] {
        driven.network = Network::Free;
        driven.run(Duration::from_secs(seconds) - Duration::from_secs(5));
        assert_eq!(driven.policing.state(), State::Rejected);
        driven.run(Duration::from_secs(6));
        assert_eq!(driven.policing.state(), State::Free);
        driven.network = Network::Chance(6);
        driven.run(Duration::from_secs(4));
    }
}

#[test]
fn more_is_tried_ever_less_often_while_the_policer_stays() {
    let mut driven = Driven::new(policer(1, 15));
    driven.run(Duration::from_secs(4));
    let lost = [15, 60, 60].map(|seconds| driven.run(Duration::from_secs(seconds)).1);
    assert!(lost[0] > 0, "it was tried");
    assert!(lost[2] < 60, "{lost:?}");
    assert!(driven.policed_at().is_some());
    assert!(driven.policing.hold > FIRST_HOLD * 4);
}

#[test]
fn a_policer_that_is_gone_and_another_rate_are_noticed() {
    let mut driven = Driven::new(policer(1, 15));
    driven.run(Duration::from_secs(4));
    driven.network = Network::Free;
    driven.run(Duration::from_secs(20));
    assert_eq!(driven.policing.state(), State::Free);
    driven.network = policer(3, 15);
    driven.run(Duration::from_secs(4));
    assert!(driven.policed_at().is_some_and(|rate| (2.7..3.2).contains(&rate)));
    driven.network = policer(1, 15);
    driven.run(Duration::from_secs(6));
    assert!(driven.policed_at().is_some_and(|rate| (0.9..1.1).contains(&rate)));
}

/// Each state and what follows it in each network within 12 s.
#[test]
fn every_state_has_its_successor_in_every_network() {
    let states = [
        State::Free,
        State::Trial,
        State::Policed(Rate::ZERO),
        State::Rejected,
    ];
    let networks = [
        Network::Free,
        policer(1, 15),
        Network::Chance(6),
        Network::Overflow,
    ];
    let expected = [
        ["free", "policed", "rejected", "free"],
        ["free", "policed", "rejected", "free"],
        ["free", "policed", "rejected", "free"],
        ["rejected"; 4],
    ];
    let name = |state| match state {
        State::Free => "free",
        State::Trial => "trial",
        State::Policed(_) => "policed",
        State::Rejected => "rejected",
    };
    for (from, expected) in states.into_iter().zip(expected) {
        for (network, expected) in networks.into_iter().zip(expected) {
            let first = if from == State::Rejected {
                Network::Chance(6)
            } else {
                policer(1, 15)
            };
            let mut driven = Driven::new(if from == State::Free { Network::Free } else { first });
            while name(driven.policing.state()) != name(from) {
                driven.step();
            }
            driven.network = network;
            driven.run(Duration::from_secs(12));
            assert_eq!(
                name(driven.policing.state()),
                expected,
                "from {from:?} in {network:?}"
            );
        }
    }
}

proptest! {
    /// Whatever is reported, a limit is above what was delivered at some time and never zero.
    #[test]
    fn a_limit_is_a_rate_that_was_delivered(
        reports in prop::collection::vec((0u64..20, 0u64..20, any::<bool>(), 1u64..200), 1..400)
    ) {
        let mut policing = Policing::default();
        let mut now = Instant::from_nanos(1_000_000_000);
        for (packets, lost, is_queued, ms) in reports {
            now += Duration::from_millis(ms);
            let seen = Seen { bytes: packets * PACKET, packets, lost, is_queued, round_trip: ROUND_TRIP };
            policing.on_report(&seen, now);
            if let Some(limit) = policing.limit() {
                prop_assert!(limit > Rate::ZERO);
                prop_assert!(limit <= Rate::from_mbps(20 * 12 * 8));
            }
            if let State::Policed(rate) = policing.state() {
                prop_assert!(policing.limit().expect("policed") >= rate.scale(MARGIN));
            }
        }
    }
}
