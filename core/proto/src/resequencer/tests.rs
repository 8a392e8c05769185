use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

mod bounds;

/// Drives a resequencer as the data plane does; an item is (flow, sequence).
struct Rig {
    machine: Resequencer<(u16, u32)>,
    is_bulk: bool,
    out: Vec<(u16, u32)>,
}

impl Rig {
    fn new() -> Self {
        Self::with(Config::default())
    }

    fn with(config: Config) -> Self {
        Self {
            machine: Resequencer::new(config),
            is_bulk: false,
            out: Vec::new(),
        }
    }

    /// One packet: flow, sequence; the path; when it was sent and when it arrives, us. Whether it
    /// was taken.
    fn arrive(&mut self, flow: u16, sequence: u32, path: u16, sent: u64, now: u64) -> bool {
        self.machine.on_arrival(PathId(path), sent as u32, at(now));
        self.insert(flow, sequence, sent, now)
    }

    fn insert(&mut self, flow: u16, sequence: u32, sent: u64, now: u64) -> bool {
        let packet = Arrived {
            is_bulk: self.is_bulk,
            flow,
            sequence: Sequence(sequence),
            sent_us: sent as u32,
            item: (flow, sequence),
        };
        let refused = self.machine.insert(packet, at(now), &mut self.out);
        self.machine.release(at(now), &mut self.out);
        refused.is_none()
    }

    /// Advances the time, and executes timers.
    fn run_to(&mut self, now: u64) {
        while let Some(due) = self.machine.poll_timeout().filter(|&due| due <= at(now)) {
            self.machine.handle_timeout(due, &mut self.out);
        }
        self.machine.handle_timeout(at(now), &mut self.out);
    }

    fn drained(&mut self) -> Vec<u32> {
        self.out.drain(..).map(|(_, sequence)| sequence).collect()
    }

    /// Two paths of 5 and 30 ms, in use for a second.
    fn on_two_paths() -> Self {
        let mut rig = Self::new();
        for n in 0..1_000 {
            rig.machine
                .on_arrival(PathId(1), n * 1_000, at(u64::from(n) * 1_000 + 5_000));
            rig.machine
                .on_arrival(PathId(2), n * 1_000, at(u64::from(n) * 1_000 + 30_000));
        }
        rig
    }
}

fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1_000)
}

#[test]
fn delivers_in_order_packets_at_once() {
    let mut rig = Rig::new();
    for sequence in 0..10_000 {
        assert!(rig.arrive(1, sequence, 1, 0, 0));
    }
    assert_eq!(rig.drained(), (0..10_000).collect::<Vec<_>>());
    assert_eq!(rig.machine.counters().in_order, 10_000);
    assert!(rig.machine.is_empty());
}

#[test]
fn without_order_packets_are_delivered_as_they_come_and_once() {
    let mut rig = Rig::with(Config::none());
    rig.is_bulk = true;
    for (count, sequence) in [0, 1, 4, 2, 6, 5, 3, 4, 2].into_iter().enumerate() {
        let now = 1_000 + 10 * count as u64;
        let is_new = rig.arrive(1, sequence, 0, now - 500, now);
        assert_eq!(is_new, count < 7, "packet {sequence}");
        assert_eq!(rig.drained().len(), usize::from(is_new), "nothing is held");
    }
}

#[test]
fn puts_two_paths_back_in_order() {
    let mut rig = Rig::on_two_paths();
    assert!(rig.arrive(1, 0, 1, 1_030_000, 1_035_000));
    assert!(rig.arrive(1, 2, 1, 1_030_200, 1_035_200));
    assert!(rig.arrive(1, 3, 1, 1_030_300, 1_035_300));
    assert_eq!(rig.drained(), [0]);
    rig.run_to(1_060_000);
    assert!(rig.arrive(1, 1, 2, 1_030_100, 1_060_100));
    assert_eq!(rig.drained(), [1, 2, 3]);
    assert_eq!(rig.machine.counters().held, 2);
    assert_eq!(rig.machine.counters().longest_hold, Duration::from_micros(24_900));
}

#[test]
fn a_gap_is_given_up_when_every_path_is_past_it() {
    let mut rig = Rig::on_two_paths();
    rig.arrive(1, 0, 1, 1_030_000, 1_035_000);
    rig.arrive(1, 2, 1, 1_030_200, 1_035_200);
    rig.arrive(1, 3, 1, 1_030_300, 1_035_300);
    rig.arrive(2, 0, 2, 1_030_150, 1_060_150);
    assert_eq!(rig.drained(), [0, 0], "the slow path may still bring it");
    rig.arrive(2, 1, 2, 1_030_250, 1_060_250);
    assert_eq!(rig.drained(), [1, 2, 3], "the slow path is past it");
    assert_eq!(rig.machine.counters().gaps_given_up, 1);
}

#[test]
fn a_gap_is_given_up_when_a_silent_path_is_overdue() {
    let mut rig = Rig::on_two_paths();
    rig.arrive(1, 0, 1, 1_030_000, 1_035_000);
    for n in 2..100 {
        rig.arrive(
            1,
            n,
            1,
            1_030_000 + u64::from(n) * 100,
            1_035_000 + u64::from(n) * 100,
        );
    }
    assert_eq!(rig.drained(), [0]);
    rig.run_to(1_060_000);
    assert!(rig.drained().is_empty());
    rig.run_to(1_072_000);
    assert_eq!(rig.drained(), (2..100).collect::<Vec<_>>());
}

#[test]
fn a_transfer_takes_a_path_that_pauses_better_than_a_loss() {
    let mut rig = Rig::on_two_paths();
    rig.is_bulk = true;
    rig.arrive(1, 0, 1, 1_030_000, 1_035_000);
    for n in 2..100 {
        let later = u64::from(n) * 100;
        rig.arrive(1, n, 1, 1_030_000 + later, 1_035_000 + later);
    }
    assert_eq!(rig.drained(), [0]);
    // A quarter of a second late on the path that had paused.
    rig.run_to(1_310_000);
    rig.arrive(1, 1, 2, 1_030_000, 1_310_000);
    assert_eq!(rig.drained(), (1..100).collect::<Vec<_>>());
    assert_eq!(rig.machine.counters().gaps_given_up, 0);
}

#[test]
fn a_transfer_waits_while_gap_after_gap_is_being_filled() {
    for stops in [false, true] {
        let mut rig = Rig::on_two_paths();
        rig.is_bulk = true;
        rig.arrive(1, 0, 1, 1_030_000, 1_035_000);
        // Every other packet went the way of a path that is dead now.
        for n in 1..100 {
            rig.arrive(1, 2 * n, 1, 1_030_000, 1_035_000);
        }
        rig.drained();
        // They come again, ten in a second and so longer than anything else is held; the last ones,
        // maybe, never.
        for n in 0..10 {
            let now = 1_300_000 + u64::from(n) * 100_000;
            rig.run_to(now);
            rig.arrive(1, 2 * n + 1, 1, 1_030_000, now);
            assert_eq!(rig.drained(), [2 * n + 1, 2 * n + 2], "{n}");
        }
        if stops {
            rig.run_to(2_200_000 + 351_000);
            assert_eq!(rig.drained().len(), 89, "all that is held");
        } else {
            rig.run_to(2_500_000);
            assert_eq!(rig.drained(), [] as [u32; 0]);
        }
    }
}

#[test]
fn a_late_packet_is_delivered_once() {
    let mut rig = Rig::new();
    rig.arrive(1, 10, 1, 0, 0);
    assert!(rig.arrive(1, 9, 1, 0, 0), "sent before the first that arrived");
    assert!(!rig.arrive(1, 9, 1, 0, 0));
    assert!(!rig.arrive(1, 10, 1, 0, 0));
    rig.arrive(1, 13, 1, 0, 0);
    assert!(rig.arrive(1, 12, 1, 0, 0), "its gap was given up");
    assert!(!rig.arrive(1, 12, 1, 0, 0));
    assert!(!rig.arrive(1, 13, 1, 0, 0));
    assert_eq!(rig.drained(), [10, 9, 13, 12]);
    let counters = rig.machine.counters();
    assert_eq!((counters.late, counters.duplicates), (2, 4));
}

#[test]
fn a_held_packet_is_a_duplicate_too() {
    let mut rig = Rig::on_two_paths();
    rig.arrive(1, 0, 1, 1_030_000, 1_035_000);
    assert!(rig.arrive(1, 2, 1, 1_030_000, 1_035_000));
    assert!(!rig.arrive(1, 2, 1, 1_030_000, 1_035_000));
}

#[test]
fn a_single_path_in_order_is_never_held() {
    let mut rig = Rig::new();
    for n in (0..300).filter(|n| n % 7 != 3) {
        rig.arrive(1, n, 1, u64::from(n) * 10, 5_000 + u64::from(n) * 10);
        assert!(rig.machine.is_empty());
    }
}

#[test]
fn one_flow_does_not_wait_for_another() {
    let mut rig = Rig::on_two_paths();
    rig.arrive(1, 0, 1, 1_030_000, 1_035_000);
    rig.arrive(1, 2, 1, 1_030_000, 1_035_000);
    rig.out.clear();
    for n in 0..10 {
        rig.arrive(2, n, 1, 1_030_000, 1_035_000);
    }
    assert_eq!(rig.drained(), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_dead_path_holds_nothing_up_for_longer_than_three_seconds() {
    let mut rig = Rig::on_two_paths();
    for n in 0..40 {
        let sent = 1_030_000 + n * 100_000;
        rig.arrive(1, n as u32 * 2, 1, sent, sent + 5_000);
        rig.run_to(sent + 99_999 + 5_000);
        assert_eq!(rig.drained(), [n as u32 * 2]);
    }
    // The path has been silent for 4 s: the other, in order, is enough.
    rig.arrive(1, 100, 1, 5_030_000, 5_035_000);
    assert_eq!(rig.drained(), [100]);
}

#[test]
fn a_quiet_path_is_waited_for_until_its_delay_has_passed() {
    let mut rig = Rig::on_two_paths();
    // The far path was last heard 1.5 s ago; 1 is on its way there.
    rig.arrive(1, 0, 1, 2_500_000, 2_505_000);
    rig.arrive(1, 2, 1, 2_500_100, 2_505_100);
    rig.run_to(2_520_000);
    assert_eq!(rig.drained(), [0]);
    rig.arrive(1, 1, 2, 2_500_050, 2_530_050);
    assert_eq!(rig.drained(), [1, 2]);
    assert_eq!(rig.machine.counters().late, 0);
}

#[test]
fn what_was_overtaken_in_a_first_flight_is_waited_for() {
    let mut rig = Rig::on_two_paths();
    rig.arrive(9, 2, 1, 1_030_000, 1_035_000);
    assert!(rig.drained().is_empty());
    rig.arrive(9, 0, 2, 1_029_900, 1_059_900);
    rig.arrive(9, 1, 2, 1_029_950, 1_059_950);
    assert_eq!(rig.drained(), [0, 1, 2]);
}

#[test]
fn a_forgotten_path_is_not_waited_for() {
    let mut rig = Rig::on_two_paths();
    rig.arrive(1, 0, 1, 1_030_000, 1_035_000);
    rig.arrive(1, 2, 1, 1_030_000, 1_035_000);
    assert_eq!(rig.drained(), [0]);
    rig.machine.forget_path(PathId(2));
    rig.run_to(1_035_000);
    assert_eq!(rig.drained(), [2]);
}

#[test]
fn sequence_and_clock_wrap_without_notice() {
    let mut rig = Rig::new();
    let start = (1u64 << 32) - 500_000;
    for n in 0..1_000u64 {
        let sent = start + n * 1_000;
        rig.machine.on_arrival(PathId(1), sent as u32, at(sent + 5_000));
        rig.machine.on_arrival(PathId(2), sent as u32, at(sent + 5_000));
        let swapped = ((u32::MAX - 499).wrapping_add(n as u32)) ^ 1;
        assert!(rig.insert(1, swapped, sent, sent + 5_000));
        rig.run_to(sent + 5_500);
    }
    rig.run_to(start + 2_000_000);
    let out = rig.drained();
    assert_eq!(out.len(), 1_000);
    assert!(
        out.windows(2)
            .skip(2)
            .all(|pair| pair[1] == pair[0].wrapping_add(1)),
        "{out:?}"
    );
}

#[test]
fn a_clock_that_jumps_costs_order_but_no_packet() {
    let mut rig = Rig::on_two_paths();
    rig.arrive(1, 0, 1, 1_030_000, 1_035_000);
    rig.arrive(1, 2, 1, 1_030_000, 1_035_000);
    rig.arrive(1, 4, 1, 3_500_000_000, 1_036_000);
    rig.arrive(1, 3, 2, 3_500_000_000, 1_062_000);
    rig.run_to(1_500_000);
    let delivered: BTreeSet<_> = rig.drained().into_iter().collect();
    assert_eq!(delivered, BTreeSet::from([0, 2, 3, 4]));
    assert!(rig.machine.is_empty());
}

#[test]
fn a_flow_numbered_anew_recovers() {
    let mut rig = Rig::new();
    rig.arrive(1, 1 << 20, 1, 0, 0);
    rig.out.clear();
    let taken = (0..100).filter(|&n| rig.arrive(1, n, 1, 0, 0)).count();
    assert_eq!(taken, 69);
    assert_eq!(rig.drained(), (31..100).collect::<Vec<_>>());
    assert_eq!(rig.machine.counters().restarts, 1);
}

#[test]
fn a_long_jump_ahead_gives_up_what_lies_between() {
    let mut rig = Rig::on_two_paths();
    for sequence in [0, 2, 3, 3_000_000_000] {
        rig.arrive(1, sequence, 1, 1_030_000, 1_035_000);
    }
    assert_eq!(rig.drained(), [0], "more than half the numbers ahead is behind");
    for sequence in [2_000_000_000, 2_000_000_001] {
        rig.arrive(1, sequence, 1, 1_030_000, 1_035_000);
    }
    assert_eq!(rig.drained(), [2, 3]);
    rig.run_to(1_500_000);
    assert_eq!(rig.drained(), [2_000_000_000, 2_000_000_001]);
}

#[test]
fn the_flow_that_waited_longest_makes_room() {
    let mut rig = Rig::with(Config {
        capacity: 10,
        ..Config::default()
    });
    rig.machine = {
        let mut ready = Rig::on_two_paths().machine;
        ready.config.capacity = 10;
        ready
    };
    for flow in 1..=2 {
        rig.arrive(flow, 0, 1, 1_030_000, 1_035_000);
    }
    for n in 0..5u64 {
        rig.arrive(1, 2 + n as u32, 1, 1_030_000, 1_035_000 + n);
        rig.arrive(2, 2 + n as u32, 1, 1_030_000, 1_035_000 + n);
    }
    rig.out.clear();
    rig.arrive(2, 7, 1, 1_030_000, 1_035_010);
    assert_eq!(rig.out, (2..7).map(|n| (1, n)).collect::<Vec<_>>());
    assert_eq!(rig.machine.len(), 6);
}

#[test]
fn idle_flows_are_forgotten_and_the_least_used_give_way() {
    let mut rig = Rig::with(Config {
        max_flows: 3,
        ..Config::default()
    });
    for flow in [1, 2, 3, 1, 4] {
        rig.arrive(flow, 5, 1, 0, 0);
    }
    assert_eq!(rig.machine.flows(), 3);
    rig.out.clear();
    assert!(!rig.arrive(1, 5, 1, 0, 1), "still known");
    assert!(rig.arrive(2, 5, 1, 0, 1), "forgotten");
    assert_eq!(rig.machine.poll_timeout(), Some(at(30_000_000)));
    rig.run_to(30_000_000);
    assert_eq!(rig.machine.flows(), 2);
    rig.run_to(40_000_000);
    assert_eq!((rig.machine.flows(), rig.machine.poll_timeout()), (0, None));
}

#[test]
fn memory_for_held_packets_is_given_back() {
    let mut rig = Rig::on_two_paths();
    for flow in 0..100 {
        rig.arrive(flow, 0, 1, 1_030_000, 1_035_000);
        rig.arrive(flow, 5_000, 1, 1_030_000, 1_035_000);
    }
    assert_eq!(rig.machine.waiting.len(), 100);
    rig.run_to(2_000_000);
    assert!(rig.machine.waiting.is_empty() && rig.machine.spare.len() <= SPARE);
    assert!(rig.machine.spare.iter().all(|held| held.memory() <= 4));
}

/// A deterministic stream of numbers from 0 to 1.
fn lots(mut state: u64) -> impl FnMut() -> f64 {
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A packet under way: arrival time, send time, path, sequence.
type Flight = (u64, u64, u16, u32);

/// A saturating flow over 5 and 30 ms with 1 ms of jitter, FIFO within a path, for 5 s; `lost`
/// selects the lost packets.
fn flights(mut lost: impl FnMut(u64, u16) -> bool) -> Vec<Flight> {
    let mut draw = lots(1);
    let mut last = [0u64; 2];
    let mut flights = Vec::new();
    for n in 0..25_000u32 {
        let sent = u64::from(n) * 200;
        let path = (n % 2) as usize;
        let arrival = (sent + [5_000, 30_000][path] + (draw() * 1_000.0) as u64).max(last[path] + 1);
        last[path] = arrival;
        if !lost(sent, path as u16) {
            flights.push((arrival, sent, path as u16, n));
        }
    }
    flights.sort_unstable();
    flights
}

/// Holds of each packet that was delivered, by sequence, and the order of delivery.
fn replay(flights: &[Flight]) -> (BTreeMap<u32, u64>, Vec<(u64, u32)>) {
    let mut rig = Rig::new();
    let mut arrived = BTreeMap::new();
    let (mut holds, mut order) = (BTreeMap::new(), Vec::new());
    let mut settle = |rig: &mut Rig, arrived: &BTreeMap<u32, u64>, now: u64| {
        for sequence in rig.drained() {
            holds.insert(sequence, now - arrived[&sequence]);
            order.push((now, sequence));
        }
    };
    for &(now, sent, path, sequence) in flights {
        while let Some(due) = rig.machine.poll_timeout().filter(|&due| due < at(now)) {
            rig.machine.handle_timeout(due, &mut rig.out);
            settle(&mut rig, &arrived, due.as_nanos() / 1_000);
        }
        arrived.insert(sequence, now);
        rig.arrive(1, sequence, path, sent, now);
        settle(&mut rig, &arrived, now);
    }
    let end = flights.last().expect("some").0 + 1_000_000;
    rig.run_to(end);
    settle(&mut rig, &arrived, end);
    (holds, order)
}

#[test]
fn holds_are_as_long_as_the_spread_of_the_delays() {
    let (holds, order) = replay(&flights(|_, _| false));
    assert_eq!(holds.len(), 25_000);
    let late = order.windows(2).filter(|pair| pair[1].1 < pair[0].1).count();
    assert!(late < 30, "only before the slow path is known: {late}");
    let settled: Vec<_> = holds.range(1_000..24_000).map(|(_, &hold)| hold).collect();
    let longest = *settled.iter().max().expect("some");
    assert!((24_000..27_500).contains(&longest), "{longest}");
}

#[test]
fn loss_costs_no_more_than_the_spread() {
    let mut draw = lots(2);
    let (holds, order) = replay(&flights(move |_, _| draw() < 0.02));
    let longest = *holds
        .range(1_000..24_000)
        .map(|(_, hold)| hold)
        .max()
        .expect("some");
    // The next packet of the slow path, 0.4 to 0.8 ms after the lost one, shows the loss.
    assert!(longest < 29_000, "{longest}");
    let late = order
        .windows(2)
        .filter(|pair| pair[1].0 > 1_000_000 && pair[1].1 < pair[0].1)
        .count();
    assert_eq!(late, 0);
}

#[test]
fn a_blackholed_path_delays_but_does_not_stall_the_other() {
    let flights = flights(|sent, path| path == 1 && sent > 1_000_000);
    let (holds, order) = replay(&flights);
    let longest = *holds.range(5_000..).map(|(_, hold)| hold).max().expect("some");
    assert!(longest < 45_000, "{longest}");
    let gap = order
        .windows(2)
        .skip(200)
        .map(|pair| pair[1].0 - pair[0].0)
        .max()
        .expect("some");
    assert!(gap < 20_000, "longest silence {gap}");
    // Three seconds later the dead path no longer counts, and nothing is held.
    let after = *holds
        .range(20_500..24_000)
        .map(|(_, hold)| hold)
        .max()
        .expect("some");
    assert_eq!(after, 0);
}

#[derive(Clone, Debug)]
enum Op {
    Arrive {
        flow: u16,
        ahead: i32,
        path: u16,
        age: u32,
    },
    Pass {
        us: u64,
    },
    Forget {
        path: u16,
    },
    /// Retransmissions are awaited for `us`, and take `takes` each; none any more when `us` is 0.
    Retransmissions {
        us: u64,
        takes: u64,
    },
}

/// Flows from this one on are transfers.
const FIRST_BULK: u16 = 2;
/// The longest time that a retransmission takes here. Units: microseconds.
const LONGEST_RETRANSMISSION: u64 = 3_000_000;

fn op() -> impl Strategy<Value = Op> {
    let ahead = prop_oneof![20 => -3..6i32, 3 => -100..100i32, 1 => -10_000..10_000i32];
    prop_oneof![
        20 => (0..4u16, ahead, 0..3u16, 0..60_000u32)
            .prop_map(|(flow, ahead, path, age)| Op::Arrive { flow, ahead, path, age }),
        4 => (0..30_000u64).prop_map(|us| Op::Pass { us }),
        1 => (0..900_000u64).prop_map(|us| Op::Pass { us }),
        1 => (0..3u16).prop_map(|path| Op::Forget { path }),
        2 => (prop_oneof![Just(0), 0..4_000_000u64], 0..=LONGEST_RETRANSMISSION)
            .prop_map(|(us, takes)| Op::Retransmissions { us, takes }),
    ]
}

/// Invariants of every resequencer, checked against all events.
#[derive(Default)]
struct Witness {
    /// Accepted and not yet delivered: when.
    inside: BTreeMap<(u16, u32), u64>,
    delivered: BTreeSet<(u16, u32)>,
    /// The highest sequence delivered, by flow.
    highest: BTreeMap<u16, u32>,
    /// Packets delivered below the highest, in total.
    late: u64,
}

impl Witness {
    fn on_delivery(&mut self, item: (u16, u32), now: u64, config: &Config) {
        let since = self
            .inside
            .remove(&item)
            .expect("was accepted, and not delivered before");
        let longest = if item.0 >= FIRST_BULK {
            // While its gaps are being filled, or as long as a retransmission takes.
            LONGEST_FILLING.max(Duration::from_micros(LONGEST_RETRANSMISSION))
        } else {
            config.max_hold
        };
        assert!(
            u128::from(now - since) <= longest.as_micros(),
            "{item:?} held for {} us",
            now - since
        );
        assert!(self.delivered.insert(item), "twice");
        let highest = self.highest.entry(item.0).or_insert(item.1);
        if item.1 < *highest {
            assert_eq!(since, now, "a held packet comes in order");
            self.late += 1;
        }
        *highest = item.1.max(*highest);
    }
}

proptest! {
    #[test]
    fn loses_nothing_and_repeats_nothing(ops in prop::collection::vec(op(), 1..400), capacity in 1..64usize) {
        let config = Config { capacity, flow_capacity: 256, ..Config::default() };
        let mut rig = Rig::with(config);
        let mut witness = Witness::default();
        let mut offered = BTreeMap::new();
        let mut now = 100_000_000u64;
        for op in ops {
            match op {
                Op::Arrive { flow, ahead, path, age } => {
                    let base = witness.highest.get(&flow).copied().unwrap_or(1 << 20);
                    let sequence = base.saturating_add_signed(ahead);
                    let known = witness.delivered.contains(&(flow, sequence))
                        || witness.inside.contains_key(&(flow, sequence));
                    if !known {
                        witness.inside.insert((flow, sequence), now);
                    }
                    rig.is_bulk = flow >= FIRST_BULK;
                    let taken = rig.arrive(flow, sequence, path, now - u64::from(age), now);
                    let highest = offered.entry(flow).or_insert(sequence);
                    *highest = sequence.max(*highest);
                    if known {
                        prop_assert!(!taken, "a duplicate was taken");
                    } else if !taken {
                        let highest: u32 = offered.get(&flow).copied().unwrap_or(0);
                        prop_assert!(highest.saturating_sub(sequence) > 7_900, "refused a packet never seen");
                        witness.inside.remove(&(flow, sequence));
                    }
                }
                Op::Pass { us } => {
                    let until = now + us;
                    while let Some(due) = rig.machine.poll_timeout().filter(|&due| due <= at(until)) {
                        now = now.max(due.as_nanos().div_ceil(1_000));
                        rig.machine.handle_timeout(at(now), &mut rig.out);
                        for item in rig.out.drain(..) {
                            witness.on_delivery(item, now, &config);
                        }
                    }
                    now = until.max(now);
                }
                Op::Forget { path } => rig.machine.forget_path(PathId(path)),
                Op::Retransmissions { us, takes } => {
                    let retransmissions = (at(now + us), Duration::from_micros(takes));
                    rig.machine.expect_retransmissions((us > 0).then_some(retransmissions));
                    rig.machine.release(at(now), &mut rig.out);
                }
            }
            for item in rig.out.drain(..) {
                witness.on_delivery(item, now, &config);
            }
            prop_assert_eq!(rig.machine.len(), witness.inside.len());
            prop_assert!(rig.machine.len() <= capacity);
        }
        rig.run_to(now + LONGEST_RETRANSMISSION);
        prop_assert!(rig.machine.is_empty());
        prop_assert!(rig.machine.counters().late >= witness.late);
    }

    #[test]
    fn restores_the_order_of_any_interleaving(lanes in prop::collection::vec(0..3usize, 1..300), lots in any::<u64>()) {
        let mut rig = Rig::new();
        for path in 0..3 {
            rig.machine.on_arrival(PathId(path), 0, at(0));
        }
        let mut queues = vec![VecDeque::new(); 3];
        for (sequence, &lane) in lanes.iter().enumerate() {
            queues[lane].push_back(sequence as u32);
        }
        let mut draw = self::lots(lots);
        rig.arrive(1, 0, lanes[0] as u16, 0, 0);
        queues[lanes[0]].pop_front();
        while queues.iter().any(|queue| !queue.is_empty()) {
            let lane = (draw() * 3.0) as usize;
            if let Some(sequence) = queues[lane].pop_front() {
                rig.arrive(1, sequence, lane as u16, u64::from(sequence), 0);
            }
        }
        prop_assert_eq!(rig.drained(), (0..lanes.len() as u32).collect::<Vec<_>>());
    }
}

#[test]
fn one_stale_packet_that_comes_again_and_again_numbers_nothing_anew() {
    let mut rig = Rig::new();
    let begin = 1 << 20;
    rig.arrive(1, begin, 1, 1_000_000, 1_005_000);
    for _ in 0..100 {
        assert!(!rig.arrive(1, 100, 1, 1_001_000, 1_006_000));
    }
    assert_eq!(rig.machine.counters().restarts, 0);
    assert!(rig.arrive(1, begin + 1, 1, 1_002_000, 1_007_000));
}

#[test]
fn the_packet_from_which_a_flow_is_numbered_anew_is_delivered_once() {
    let mut rig = Rig::new();
    let begin = 1 << 20;
    rig.arrive(1, begin, 1, 1_000_000, 1_005_000);
    for n in 0..32 {
        rig.arrive(1, 100 + n, 1, 1_001_000, 1_006_000);
    }
    assert_eq!(rig.machine.counters().restarts, 1);
    let before = rig.out.len();
    rig.arrive(1, 131, 1, 1_002_000, 1_007_000);
    assert_eq!(rig.out.len(), before, "it comes again");
    rig.arrive(1, 132, 1, 1_003_000, 1_008_000);
    assert_eq!(rig.out.len(), before + 1);
}

#[test]
fn a_flow_that_begins_beyond_its_first_flight_begins_there() {
    let mut rig = Rig::on_two_paths();
    rig.arrive(1, 64, 1, 1_030_000, 1_035_000);
    assert_eq!(rig.drained(), [64]);
    rig.arrive(2, 63, 1, 1_030_000, 1_035_000);
    assert_eq!(rig.drained(), [0_u32; 0], "those before it may still come");
}

#[test]
fn a_gap_stays_open_for_what_is_sent_again_and_for_that_once_more() {
    let waits = |retransmissions| {
        let mut rig = Rig::new();
        rig.machine.expect_retransmissions(retransmissions);
        rig.arrive(1, 0, 1, 1_000_000, 1_005_000);
        rig.arrive(1, 2, 1, 1_000_100, 1_005_100);
        let is_open = |rig: &mut Rig, now: u64| {
            rig.run_to(now);
            rig.out.len() == 1
        };
        let mut until = 1_005_100;
        while is_open(&mut rig, until) {
            until += 1_000;
        }
        until - 1_005_100
    };
    let takes = Duration::from_millis(50);
    assert_eq!(waits(None), 0, "a path in order alone has lost it");
    let long = waits(Some((at(2_000_000), takes)));
    assert!((149_000..=152_000).contains(&long), "{long}");
    let short = waits(Some((at(1_065_100), takes)));
    assert!((59_000..=62_000).contains(&short), "{short}");
}

#[test]
fn a_jump_that_ends_right_before_a_packet_lets_it_through() {
    let mut rig = Rig::on_two_paths();
    rig.machine.config.flow_capacity = 1;
    rig.arrive(1, 0, 1, 1_030_000, 1_035_000);
    rig.arrive(1, 5, 1, 1_030_100, 1_035_100);
    assert_eq!(rig.drained(), [0, 5]);
    let counters = rig.machine.counters();
    assert_eq!(
        (counters.in_order, counters.held, counters.gaps_given_up),
        (2, 0, 1)
    );
}

#[test]
fn a_packet_just_within_the_history_is_a_duplicate_and_one_beyond_it_stale() {
    let mut rig = Rig::new();
    for sequence in 0..=flow::HISTORY {
        rig.arrive(1, sequence, 1, 0, 0);
    }
    assert!(!rig.arrive(1, 1, 1, 0, 0));
    assert_eq!(
        (rig.machine.counters().duplicates, rig.machine.counters().stale),
        (1, 0)
    );
    assert!(!rig.arrive(1, 0, 1, 0, 0));
    assert_eq!(
        (rig.machine.counters().duplicates, rig.machine.counters().stale),
        (1, 1)
    );
}

#[test]
fn a_gap_that_has_left_the_history_is_forgotten() {
    let mut rig = Rig::new();
    // A single path in order: the gap at 5 is given up at once.
    for sequence in (0..5).chain(6..2 * flow::HISTORY) {
        let sent = u64::from(sequence);
        rig.arrive(1, sequence, 1, sent, sent + 5_000);
    }
    assert_eq!(rig.machine.counters().gaps_given_up, 1);
    // Where the gap was noted, another packet has its place now, which has come.
    let now = u64::from(2 * flow::HISTORY) + 6_000;
    assert!(!rig.arrive(1, flow::HISTORY + 5, 1, now, now + 5_000));
    assert_eq!(rig.machine.counters().late, 0);
    let slot = rig.machine.flows.oldest().expect("the flow");
    assert!(!rig.machine.flows[slot].notes_gaps());
}

#[test]
fn packets_held_at_every_distance_come_out_in_order() {
    for ahead in 1..200u32 {
        let mut rig = Rig::on_two_paths();
        rig.arrive(1, 0, 1, 1_030_000, 1_035_000);
        rig.arrive(1, 1 + ahead, 1, 1_030_000, 1_035_000);
        for sequence in 1..=ahead {
            assert!(rig.arrive(1, sequence, 1, 1_030_000, 1_035_000), "{ahead}");
        }
        assert_eq!(rig.drained(), (0..=1 + ahead).collect::<Vec<_>>());
    }
}
