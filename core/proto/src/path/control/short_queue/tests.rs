use super::*;
use crate::path::FULL_PACKET;
use crate::path::control::Control;
use crate::path::control::tests::{Link, measured, new, run, run_with_client};
use crate::path::delay::Measured;

#[test]
fn fills_a_link_and_keeps_its_queue_short() {
    for (mbps, delay) in [(5, 10), (20, 20), (100, 40), (300, 16), (1, 2)] {
        let mut model = new(Control::ShortQueue, None);
        let (rate, queue) = run(
            &mut model,
            |_| Rate::from_mbps(mbps),
            Duration::from_millis(delay),
            6,
        );
        let share = rate.as_bps() as f64 / (mbps as f64 * 1e6);
        assert!(share > 0.96, "{mbps} Mbit/s {delay} ms: share {share}");
        let packet_time = FULL_PACKET as f64 * 8.0 / (mbps as f64 * 1e6);
        let bound = 0.020 + 0.3 * delay as f64 / 1e3 + 3.0 * packet_time;
        assert!(
            queue.as_secs_f64() < bound,
            "{mbps} Mbit/s {delay} ms: queue {queue:?}"
        );
    }
}

#[test]
fn a_start_keeps_ahead_of_an_inner_slow_start() {
    let mut model = new(Control::ShortQueue, None);
    let round_trip = Duration::from_millis(300);
    run(&mut model, |_| Rate::from_mbps(1_000), round_trip, 1);
    // Reports of three round trips, the last one's not all: ten segments have become more than
    // sixty.
    let window = model.window();
    assert!(window >= 6 * INITIAL_WINDOW, "{window}");
    let time = model.pacing().expect("a rate").time_for(Bytes(window));
    assert!(time < round_trip / 2, "{time:?}");
}

#[test]
fn a_far_path_grows_fourfold_each_round_trip_until_it_meets_a_queue() {
    let round_trip = Duration::from_millis(300);
    let window_after_a_second = |mbps| {
        let mut model = new(Control::ShortQueue, None);
        run(&mut model, |_| Rate::from_mbps(mbps), round_trip, 1);
        (model.window(), Rate::from_mbps(mbps).bytes_in(round_trip).0)
    };
    // Three round trips, the last one's reports not all.
    let (window, _) = window_after_a_second(1_000);
    assert!(window >= 30 * INITIAL_WINDOW, "{window}");
    let (window, product) = window_after_a_second(8);
    assert!(
        window < 3 * product,
        "{window} bytes on a link that holds {product}"
    );
}

#[test]
fn a_far_path_knows_its_rate_when_its_start_ends_by_a_short_queue() {
    for (mbps, round_trip, queue) in [(80, 520, 100), (30, 580, 100), (50, 640, 30), (15, 290, 100)] {
        let rate = Rate::from_mbps(mbps);
        let link = Link {
            rate_at: &|_| rate,
            delay: Duration::from_millis(round_trip),
            rival_at: &|_| 0,
            queue: Duration::from_millis(queue),
            loses_one_in: 0,
        };
        let mut model = new(Control::ShortQueue, None);
        let ran = link.run(&mut model, 10);
        let share = ran.rate.as_bps() as f64 / rate.as_bps() as f64;
        assert!(
            share > 0.8,
            "{mbps} Mbit/s {round_trip} ms: share {share}, {:?}",
            ran.states
        );
    }
}

#[test]
fn follows_a_link_that_slows_down_and_recovers() {
    for (first, second) in [(50, 5), (5, 50)] {
        let mut model = new(Control::ShortQueue, None);
        let rate_at = move |s| Rate::from_mbps(if s < 4 { first } else { second });
        let (rate, queue) = run(&mut model, rate_at, Duration::from_millis(30), 8);
        let share = rate.as_bps() as f64 / (second as f64 * 1e6);
        assert!(share > 0.9, "{first} to {second}: share {share}");
        assert!(
            queue < Duration::from_millis(60),
            "{first} to {second}: queue {queue:?}"
        );
    }
}

#[test]
fn a_trickle_bounds_nothing_until_the_start_is_over() {
    let ms = Duration::from_millis;
    let mut model = new(Control::ShortQueue, None);
    let trickle = Sample {
        delay: measured(ms(60)),
        rate: Rate::of(Bytes(TRAIN), ms(180)),
        delivered: TRAIN,
        reported: TRAIN,
        interval: Duration::ZERO,
        lost: 0,
        app_limited: true,
        newest: 1,
        next_packet_number: 2,
        in_flight: 0,
    };
    model.on_sample(&trickle, Instant::ZERO + ms(100));
    assert!(
        model.rate().rate() < Rate::from_bps(300_000),
        "{}",
        model.rate().rate()
    );
    let first_window = Rate::of(Bytes(INITIAL_WINDOW), ms(66)).expect("a rate");
    assert_eq!(model.expected_rate(), first_window);
    assert!(model.pacing() > Some(first_window));
    // A queue says that the path is full: what was measured counts.
    for n in 0..u64::from(QUEUED_REPORTS) {
        let full = Sample {
            delay: measured(ms(200)),
            app_limited: false,
            newest: 2 + n,
            next_packet_number: 20,
            ..trickle
        };
        model.on_sample(&full, Instant::ZERO + ms(200 + n));
    }
    assert_eq!(model.expected_rate(), model.rate().rate());
}

#[test]
fn obeys_a_cap() {
    let mut model = new(Control::ShortQueue, Some(Rate::from_mbps(3)));
    let (rate, _) = run(&mut model, |_| Rate::from_mbps(20), Duration::from_millis(20), 4);
    assert!(rate <= Rate::from_bps(3_100_000), "{rate}");
}

#[test]
fn takes_its_share_of_a_queue_that_others_fill_and_empties_it_when_they_go() {
    const RIVAL: usize = 120;
    let mut model = new(Control::ShortQueue, None);
    let link = |_| Rate::from_mbps(20);
    let delay = Duration::from_millis(20);
    // The rival needs 34 packets to fill the link; the others stand in its queue.
    let (rate, _) = run_with_client(
        &mut model,
        link,
        |second| if second < 2 { 0 } else { RIVAL },
        delay,
        20,
    );
    let share = rate.as_bps() as f64 / 20e6;
    assert!(share > 0.25, "{share} beside another");

    let mut model = new(Control::ShortQueue, None);
    let rival = |second| if (2..12).contains(&second) { RIVAL } else { 0 };
    let (rate, queue) = run_with_client(&mut model, link, rival, delay, 24);
    assert!(rate > Rate::from_mbps(18), "{rate} alone again");
    assert!(queue < Duration::from_millis(40), "queue {queue:?} alone again");
}

#[test]
fn a_trickle_beside_a_queue_of_others_does_not_end_the_start() {
    let mut model = new(Control::ShortQueue, None);
    for n in 1..10_u64 {
        let probe = Sample {
            delay: measured(Duration::from_millis(if n % 2 == 0 { 120 } else { 40 })),
            rate: None,
            delivered: 48,
            reported: 48,
            interval: Duration::ZERO,
            lost: 0,
            app_limited: true,
            newest: n,
            next_packet_number: n + 1,
            in_flight: 0,
        };
        model.on_sample(&probe, Instant::from_nanos(n * 1_000_000_000));
    }
    assert_eq!(model.window(), INITIAL_WINDOW);
    assert_eq!(model.state(), "startup");
}

#[test]
fn packets_that_overtake_each_other_do_not_end_the_start_but_a_queue_that_overflows_does() {
    let cases = [
        (20_000, STARTUP_LOSS, true),
        (0, STARTUP_LOSS, false),
        (20_000, OVERFLOW_LOST, false),
    ];
    for (spread_us, lost, goes_on) in cases {
        let mut model = new(Control::ShortQueue, None);
        for n in 1..4_u64 {
            let sample = Sample {
                delay: Measured {
                    size: 1_472,
                    spread_us,
                    ..measured(Duration::from_millis(40))
                },
                rate: Some(Rate::from_mbps(n)),
                delivered: TRAIN,
                reported: TRAIN,
                interval: Duration::ZERO,
                lost,
                app_limited: true,
                newest: n * 20,
                next_packet_number: n * 20 + 10,
                in_flight: 10 * FULL_PACKET,
            };
            model.on_sample(&sample, Instant::from_nanos(n * 50_000_000));
        }
        assert_eq!(model.state() == "startup", goes_on, "{}", model.state());
    }
}
