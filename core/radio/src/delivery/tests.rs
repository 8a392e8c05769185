use proptest::prelude::*;
use serde_json::Value;

use super::efficiency::{Derivation, MARKING_CAP, printed_marking_rate, window_at};
use super::*;

fn vectors(section: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("../../tests/data/all_aps.json")).unwrap();
    all[section]["vectors"].as_array().unwrap().clone()
}

fn number(vector: &Value, field: &str) -> f64 {
    vector[field].as_f64().unwrap()
}

fn is_near(found: f64, wanted: f64) -> bool {
    (found - wanted).abs() <= wanted.abs() * 1e-9 + 1e-15
}

#[test]
fn packet_times_are_those_of_equation_1() {
    for vector in vectors("nsdi15_eq1_packet_time") {
        let airtime = Airtime {
            packet: number(&vector, "mss_bits"),
            constant: number(&vector, "K_us") * 1e-6,
            contention: number(&vector, "C_us") * 1e-6,
            retries: number(&vector, "R") as u8,
            doublings: None,
        };
        let (rate, loss) = (number(&vector, "mcs_mbps") * 1e6, number(&vector, "p"));
        let printed = airtime.printed(rate, loss);
        assert!(
            is_near(printed * 1e6, number(&vector, "T_us_printed")),
            "{vector}"
        );
        let mean = airtime.packet_time(rate, loss).unwrap();
        assert!(
            is_near(mean * 1e6, number(&vector, "T_us_conditional")),
            "{vector}"
        );
        let capped = Airtime {
            doublings: Some(6),
            ..airtime
        };
        assert!(capped.printed(rate, loss) <= printed);
    }
    assert_eq!(Airtime::ofdm().packet_time(54e6, 1.0), None);
    assert_eq!(Airtime::ofdm().packet_time(0.0, 0.1), None);
}

#[test]
fn delivery_is_that_of_equation_2() {
    for vector in vectors("nsdi15_eq2_delivery_prob") {
        let count = |field: &str| number(&vector, field) as u32;
        let counts = estimator::Counts {
            first: count("N0"),
            repeated: count("N1"),
            lost: count("Nlost"),
        };
        match (counts.delivery(), vector["delivery_prob"].as_f64()) {
            (Some(found), Some(wanted)) => assert!(is_near(found, wanted), "{vector}"),
            (found, wanted) => assert_eq!(found, wanted, "{vector}"),
        }
    }
}

#[test]
fn marking_rates_are_those_of_equations_4_and_5() {
    for vector in vectors("nsdi15_eq4_eq5_delta") {
        let (time, round_trip) = (number(&vector, "T1_s"), number(&vector, "RTT_s"));
        if let Some(printed) = vector["delta_printed"].as_f64() {
            assert!(
                is_near(printed_marking_rate(time, round_trip), printed),
                "{vector}"
            );
        }
        let capped = number(&vector, "delta_literal_cap5");
        assert!(is_near(marking_rate(time, round_trip), capped), "{vector}");
        for (field, buffer, constant) in [
            ("delta_exact_BUF100_c1", 100.0, 1.0),
            ("delta_exact_BUF100_c2", 100.0, 2.0),
            ("delta_exact_BUF200_c1", 200.0, 1.0),
            ("delta_exact_BUF200_c2", 200.0, 2.0),
        ] {
            let exact = Derivation { buffer, constant }.marking_rate(time, round_trip);
            match vector[field].as_f64() {
                Some(wanted) => assert!(is_near(exact.unwrap(), wanted), "{field} {vector}"),
                None => assert!(
                    round_trip - time * buffer / 2.0 < 1e-9,
                    "outside its domain: {vector}"
                ),
            }
        }
    }
}

#[test]
fn the_printed_rate_is_never_above_the_exact_one() {
    let derivation = Derivation {
        buffer: 100.0,
        constant: 1.0,
    };
    for share in 1..100 {
        let (time, round_trip) = (0.002, 0.1 * 100.0 / f64::from(share));
        let exact = derivation.marking_rate(time, round_trip).unwrap_or(f64::INFINITY);
        assert!(printed_marking_rate(time, round_trip) <= exact / 2.0);
    }
}

#[test]
fn slots_are_those_of_equation_6() {
    for vector in vectors("nsdi15_eq6_slots") {
        let numbers = |field: &str| -> Vec<f64> {
            let all = vector[field].as_array().unwrap();
            all.iter().map(|number| number.as_f64().unwrap()).collect()
        };
        let config = slots::Config {
            preference: number(&vector, "alpha"),
            cycle: Duration::from_secs_f64(number(&vector, "C_ms") / 1e3),
            ..slots::Config::default()
        };
        for (floor, field) in [(0, "c_ms_printed"), (10, "c_ms_floor10_waterfill")] {
            let config = slots::Config {
                floor: Duration::from_millis(floor),
                ..config
            };
            let found = config.slots(&numbers("b_mbps"));
            for (found, wanted) in found.iter().zip(numbers(field)) {
                assert!(
                    (found.as_secs_f64() * 1e3 - wanted).abs() < 1e-5,
                    "{field} {vector}"
                );
            }
        }
    }
}

#[test]
fn five_percent_leave_six_packets() {
    assert!((window_at(MARKING_CAP) - 6.3246).abs() < 1e-4);
}

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

/// Two access points at 54 Mbit/s; the first repeats every `nth` frame.
fn heard(nth: u16, now: Instant) -> AccessPoints {
    let mut points = AccessPoints::new(Config::default(), 1);
    for index in [points.join(), points.join()] {
        points.handle_round_trip(index, Duration::from_millis(25));
        points.handle_round_trip(index, Duration::from_millis(60));
    }
    for sequence in 0..100 {
        points.handle_frame(0, sequence, sequence % nth == 0, 54e6, now);
        points.handle_frame(1, sequence, false, 54e6, now);
    }
    points
}

#[test]
fn marks_only_what_is_worse_by_a_fifth() {
    let now = at(10);
    let slightly = heard(20, now);
    assert_eq!(slightly.marking_rate(0, now), 0.0);
    let clearly = heard(2, now);
    assert!(clearly.packet_time(0) > clearly.packet_time(1));
    let time = clearly.packet_time(0).unwrap();
    assert!(
        is_near(clearly.marking_rate(0, now), marking_rate(time, 0.025)),
        "the least round trip"
    );
    assert_eq!(clearly.marking_rate(1, now), 0.0);
}

#[test]
fn forgets_an_access_point_that_is_silent() {
    let mut points = heard(2, at(10));
    points.handle_frame(0, 100, true, 54e6, at(4_900));
    assert!(
        points.marking_rate(0, at(4_900)) > 0.0,
        "the silent one is still the best"
    );
    points.handle_frame(0, 101, true, 54e6, at(5_100));
    assert_eq!(points.marking_rate(0, at(5_100)), 0.0);
    points.handle_timeout(at(5_100));
    assert_eq!(points.packet_time(1), None);
}

#[test]
fn the_worst_beyond_three_are_backups() {
    let mut points = AccessPoints::new(Config::default(), 1);
    for mbps in [6.0, 12.0, 54.0, 24.0, 36.0] {
        let index = points.join();
        for sequence in 0..20 {
            points.handle_frame(index, sequence, false, mbps * 1e6, at(0));
        }
    }
    points.handle_timeout(at(500));
    let backups: Vec<bool> = (0..5).map(|index| points.is_backup(index)).collect();
    assert_eq!(backups, [true, true, false, false, false]);
    assert!(points.poll_event().is_some());
    points.leave(2);
    points.handle_timeout(at(600));
    assert!(
        !points.is_backup(1),
        "the next best takes the place of one that is gone"
    );
    assert!(points.is_backup(0));
}

#[test]
fn one_that_comes_back_is_compared_anew() {
    let mut points = AccessPoints::new(Config::default(), 1);
    assert_eq!(points.has_left(0), None);
    points.join();
    for sequence in 0..20 {
        points.handle_frame(0, sequence, false, 54e6, at(0));
    }
    points.leave(0);
    assert_eq!(points.has_left(0), Some(true));
    points.rejoin(0);
    assert_eq!((points.has_left(0), points.packet_time(0)), (Some(false), None));
    for sequence in 20..40 {
        points.handle_frame(0, sequence, false, 54e6, at(100));
    }
    assert!(points.packet_time(0).is_some());
}

#[derive(Clone, Debug)]
enum Op {
    Join,
    Leave(usize),
    Frame(usize, u16, bool, u8),
    RoundTrip(usize, u16),
    Packet(usize),
    Timeout,
    Wait(u16),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        Just(Op::Join),
        (0usize..8).prop_map(Op::Leave),
        (0usize..8, any::<u16>(), any::<bool>(), 0u8..60)
            .prop_map(|(at, sequence, retry, rate)| Op::Frame(at, sequence, retry, rate)),
        (0usize..8, any::<u16>()).prop_map(|(at, ms)| Op::RoundTrip(at, ms)),
        (0usize..8).prop_map(Op::Packet),
        Just(Op::Timeout),
        (0u16..3_000).prop_map(Op::Wait),
    ]
}

proptest! {
    #[test]
    fn the_best_is_never_marked_and_shares_stay_below_the_cap(ops in proptest::collection::vec(op(), 1..200)) {
        let mut points = AccessPoints::new(Config::default(), 1);
        let (mut joined, mut now, mut gone) = (0, Instant::ZERO, Vec::new());
        for op in ops {
            match op {
                Op::Join => { points.join(); joined += 1; gone.push(false); }
                Op::Leave(index) if index < joined => { points.leave(index); gone[index] = true; }
                Op::Frame(index, sequence, retry, rate) if index < joined =>
                    points.handle_frame(index, sequence, retry, f64::from(rate) * 1e6, now),
                Op::RoundTrip(index, ms) if index < joined =>
                    points.handle_round_trip(index, Duration::from_millis(u64::from(ms))),
                Op::Packet(index) if index < joined => { points.handle_packet(index, now); }
                Op::Timeout => {
                    points.handle_timeout(now);
                    let regular = (0..joined).filter(|index| !gone[*index] && !points.is_backup(*index)).count();
                    let present = gone.iter().filter(|gone| !**gone).count();
                    prop_assert_eq!(regular, present.min(3), "as many carry data as may");
                }
                Op::Wait(ms) => now += Duration::from_millis(u64::from(ms)),
                Op::Leave(_) | Op::Frame(..) | Op::RoundTrip(..) | Op::Packet(_) => {}
            }
            let times = || (0..joined).filter_map(|index| points.packet_time(index));
            let best = times().fold(f64::INFINITY, f64::min);
            for index in 0..joined {
                let share = points.marking_rate(index, now);
                prop_assert!((0.0..=MARKING_CAP).contains(&share));
                prop_assert!(share == 0.0 || points.packet_time(index).unwrap() > best);
                prop_assert!(points.counters(index).marked <= points.counters(index).passed);
            }
        }
    }
}
