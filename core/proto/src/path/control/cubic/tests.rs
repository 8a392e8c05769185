use super::*;
use crate::path::control::Control;
use crate::path::control::tests::{Link, measured, new};

const BEGIN: Instant = Instant::from_nanos(1_000_000_000);

/// A report on one packet, a round trip after it was sent.
fn sample(number: u64, round_trip: Duration, window: u64) -> Sample {
    Sample {
        delay: measured(round_trip),
        rate: Some(Rate::from_mbps(10)),
        delivered: window,
        reported: FULL_PACKET,
        interval: Duration::ZERO,
        lost: 0,
        app_limited: false,
        newest: number,
        next_packet_number: number + window / FULL_PACKET,
        in_flight: window,
    }
}

fn told(cubic: &mut Cubic, sample: &Sample, now: Instant) {
    let mut times = Times::new(now);
    times.on_round_trip(sample.delay.round_trip());
    cubic.on_report(sample, &mut times, now);
}

#[test]
fn a_window_is_back_after_k_as_the_rfc_says() {
    let round_trip = Duration::from_millis(200);
    let mut cubic = Cubic::new(BEGIN);
    cubic.resume(1_000 * FULL_PACKET);
    let (mut now, mut number) = (BEGIN, 1);
    let loss = Sample {
        lost: 1,
        ..sample(number, round_trip, cubic.window as u64)
    };
    told(&mut cubic, &loss, now);
    assert!((cubic.window / SEGMENT - 700.0).abs() < 1.0, "{}", cubic.window);
    // K = cbrt(1000 * 0.3 / 0.4) = 9.09 s.
    let mut back = None;
    while back.is_none() && now.since(BEGIN) < Duration::from_secs(20) {
        let window = cubic.window as u64;
        let packets = window / FULL_PACKET;
        now += round_trip / packets as u32;
        number += 1;
        told(&mut cubic, &sample(number + 2_000, round_trip, window), now);
        back = (cubic.window >= 0.999 * 1_000.0 * SEGMENT).then(|| now.since(BEGIN));
    }
    // The last thousandth is the flat part of the curve: 1 / 0.4 segments in 1.36 s.
    let back = back.expect("it comes back").as_secs_f64();
    assert!((7.2..9.3).contains(&back), "{back}");
}

#[test]
fn losses_of_one_round_trip_are_one_event() {
    let round_trip = Duration::from_millis(50);
    let mut cubic = Cubic::new(BEGIN);
    cubic.resume(100 * FULL_PACKET);
    for number in 1..=100 {
        let loss = Sample {
            lost: 1,
            next_packet_number: 101,
            ..sample(number, round_trip, 70 * FULL_PACKET)
        };
        told(&mut cubic, &loss, BEGIN);
    }
    assert_eq!((cubic.window / SEGMENT).round(), 70.0);
    let next = Sample {
        lost: 1,
        ..sample(101, round_trip, 70 * FULL_PACKET)
    };
    told(&mut cubic, &next, BEGIN + round_trip);
    assert_eq!((cubic.window / SEGMENT).round(), 49.0);
    // Fast convergence: it did not come back to what it was.
    assert_eq!((cubic.max / SEGMENT).round(), (70.0_f64 * 0.85).round());
}

#[test]
fn a_start_ends_by_round_trips_before_the_queue_overflows() {
    let rate = Rate::from_mbps(50);
    let link = Link {
        rate_at: &|_| rate,
        delay: Duration::from_millis(60),
        rival_at: &|_| 0,
        queue: Duration::from_millis(300),
        loses_one_in: 0,
    };
    let ran = link.run(&mut new(Control::Cubic, None), 4);
    let states = ["slow-start", "conservative-slow-start", "avoidance"];
    assert!(ran.states.starts_with(&states), "{:?}", ran.states);
    // Without them it starts until something is lost.
    let shallow = Link {
        queue: Duration::from_millis(2),
        ..link
    };
    let ran = shallow.run(&mut new(Control::Cubic, None), 4);
    assert!(
        ran.states.starts_with(&["slow-start", "avoidance"]),
        "{:?}",
        ran.states
    );
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    let round_trip = Duration::from_millis(50);
    let mut cubic = Cubic::new(BEGIN);
    let before = cubic.window;
    for number in 1..100 {
        let idle = Sample {
            in_flight: FULL_PACKET,
            ..sample(number, round_trip, FULL_PACKET)
        };
        told(&mut cubic, &idle, BEGIN + Duration::from_millis(number * 10));
    }
    assert!((cubic.window - before).abs() < f64::EPSILON);
}
