use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// Treatment of ECT packets by a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    Clean,
    Marks,
    Drops,
    Clears,
    /// The receiver counts nothing.
    Uncounted,
}

/// A sender and the counts of its receiver; packets arrive at once.
struct Driven {
    ecn: Ecn,
    network: Network,
    now: Instant,
    number: u64,
    highest: u64,
    sent: u64,
    marks: Marks,
}

impl Driven {
    fn new(network: Network) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        Self {
            ecn: Ecn::new(now),
            network,
            now,
            number: 0,
            highest: 0,
            sent: 0,
            marks: Marks::default(),
        }
    }

    fn arrive(&mut self, is_ect: bool) {
        self.sent = self.ecn.sent();
        match self.network {
            Network::Drops if is_ect => return,
            Network::Clean if is_ect => self.marks.ect = self.marks.ect.wrapping_add(1),
            Network::Marks if is_ect => self.marks.ce = self.marks.ce.wrapping_add(1),
            Network::Clean | Network::Marks | Network::Drops | Network::Clears | Network::Uncounted => {}
        }
        self.highest = self.number;
    }

    fn send_data(&mut self) {
        self.number += 1;
        let is_ect = self.ecn.may_mark(self.now);
        if is_ect {
            self.ecn.on_sent();
        }
        self.arrive(is_ect);
    }

    fn send_probes(&mut self) {
        while self.ecn.due() <= self.now {
            self.number += 1;
            self.ecn.on_probe(self.number, self.now);
            self.arrive(true);
        }
    }

    /// Returns the probes that are excused.
    fn report(&mut self) -> u64 {
        let report = Feedback {
            highest: self.highest,
            marks: (self.network != Network::Uncounted).then_some(self.marks),
            ..Feedback::default()
        };
        self.ecn.on_report(&report, self.sent, self.now)
    }

    /// Sends data for `steps` of 10 ms, each of which ends with a report.
    fn run(&mut self, steps: u32) -> u64 {
        (0..steps)
            .map(|_| {
                self.send_probes();
                self.send_data();
                self.now += PROBE_INTERVAL;
                self.report()
            })
            .sum()
    }
}

fn after(network: Network, steps: u32) -> Driven {
    let mut driven = Driven::new(network);
    driven.run(steps);
    driven
}

/// Each state, each treatment, and the state that follows within the 12 steps of a test.
#[test]
fn every_state_has_its_successor_in_every_network() {
    use Network::{Clean, Clears, Drops, Marks, Uncounted};
    use State::{Capable, Failed, Testing, Unknown};
    let all = [Clean, Marks, Drops, Clears, Uncounted];
    let successors = [
        (Testing, [Capable, Failed, Failed, Failed, Failed]),
        (Unknown, [Capable, Failed, Failed, Failed, Failed]),
        (Capable, [Capable, Failed, Failed, Failed, Failed]),
        (Failed, [Failed; 5]),
    ];
    for (from, to) in successors {
        for (network, to) in all.into_iter().zip(to) {
            let mut driven = match from {
                Testing => Driven::new(network),
                Unknown => {
                    let mut driven = Driven::new(network);
                    for _ in 0..PROBES {
                        driven.ecn.may_mark(driven.now);
                        driven.send_probes();
                        driven.now += PROBE_INTERVAL;
                    }
                    driven
                }
                Capable => after(Clean, 5),
                Failed => after(Marks, 20),
            };
            assert_eq!(driven.ecn.state(), from, "{network:?}");
            driven.network = network;
            driven.run(SUSPICIOUS as u32 + 12);
            assert_eq!(driven.ecn.state(), to, "from {from:?} over {network:?}");
        }
    }
}

#[test]
fn data_is_not_ect_before_the_network_is_known_to_pass_it() {
    let mut driven = Driven::new(Network::Clean);
    assert_eq!(driven.ecn.due(), Instant::FAR_FUTURE, "nothing asks for ECN");
    assert!(!driven.ecn.may_mark(driven.now));
    assert_eq!(driven.ecn.due(), driven.now);
    driven.run(2);
    assert!(driven.ecn.may_mark(driven.now));
}

#[test]
fn probes_that_are_lost_are_excused_each_once() {
    assert_eq!(Driven::new(Network::Drops).run(30), u64::from(PROBES));
    assert_eq!(Driven::new(Network::Clean).run(30), 0);
    assert_eq!(Driven::new(Network::Marks).run(30), 0);
}

#[test]
fn a_failed_path_is_tested_again_after_ten_minutes() {
    let mut driven = after(Network::Marks, 20);
    driven.network = Network::Clean;
    driven.now += RETEST_AFTER - MS * 250;
    driven.run(3);
    assert_eq!(driven.ecn.state(), State::Failed);
    driven.now += MS * 250;
    driven.run(3);
    assert_eq!(driven.ecn.state(), State::Capable);
}

#[test]
fn an_honest_queue_that_marks_most_packets_stays_in_use() {
    let mut driven = after(Network::Clean, 5);
    for _ in 0..50 {
        driven.network = Network::Marks;
        driven.run(SUSPICIOUS as u32 / 2);
        driven.network = Network::Clean;
        driven.run(1);
    }
    assert_eq!(driven.ecn.state(), State::Capable);
}

#[test]
fn another_network_is_tested_from_the_start() {
    let mut driven = after(Network::Marks, 20);
    driven.ecn.restart(driven.now);
    driven.network = Network::Clean;
    driven.run(3);
    assert_eq!(driven.ecn.state(), State::Capable);
}

proptest! {
    /// Whatever is reported, data is ECT in one state only, and no more probes go than tests allow.
    #[test]
    fn false_reports_open_nothing_but_this_path(ops in prop::collection::vec((0u8..3, any::<u16>(), any::<u16>()), 1..200)) {
        let mut driven = Driven::new(Network::Clean);
        let mut probes = 0;
        for (kind, ect, ce) in ops {
            match kind {
                0 => {
                    let number = driven.number;
                    driven.send_probes();
                    probes += driven.number - number;
                }
                1 => prop_assert_eq!(driven.ecn.may_mark(driven.now), driven.ecn.state() == State::Capable),
                _ => {
                    driven.marks = Marks { ect, ce };
                    driven.highest = u64::from(ect);
                    prop_assert!(driven.report() <= u64::from(PROBES));
                }
            }
            driven.now += MS;
        }
        prop_assert!(probes <= driven.ecn.sent());
        prop_assert!(probes <= 200, "one in 10 ms at most");
    }
}
