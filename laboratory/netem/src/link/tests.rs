use std::sync::Arc;

use hawser_units::Rate;
use proptest::prelude::*;

use super::*;
use crate::Trace;

const FULL_IP: u64 = 1500;

fn ms(n: u64) -> Instant {
    Instant::from_nanos(n * 1_000_000)
}

fn link(config: LinkConfig) -> Link<u64> {
    Link::new(config, 1, Instant::ZERO)
}

fn at_rate(mbps: u64) -> LinkConfig {
    LinkConfig {
        capacity: Capacity::Rate(Rate::from_mbps(mbps)),
        ..LinkConfig::default()
    }
}

fn drain(link: &mut Link<u64>, until: Instant) -> Vec<(Instant, u64)> {
    let mut out = Vec::new();
    while let Some(at) = link.poll_timeout().filter(|at| *at <= until) {
        while let Some(item) = link.poll_transmit(at) {
            out.push((at, item));
        }
    }
    out
}

/// Offers full packets every `gap` for `time`, and returns what came out with its times.
fn offer(link: &mut Link<u64>, gap: Duration, time: Duration) -> Vec<(Instant, u64)> {
    let mut out = Vec::new();
    let mut now = Instant::ZERO;
    let mut n = 0;
    while now < Instant::ZERO + time {
        out.extend(drain(link, now));
        let _ = link.handle_packet(n, FULL_IP, now);
        n += 1;
        now += gap;
    }
    out
}

#[test]
fn carries_its_rate_within_a_thousandth() {
    for mbps in [1, 20, 1000] {
        let mut link = link(at_rate(mbps));
        let gap = Rate::from_mbps(mbps * 2).time_for(Bytes(1514));
        offer(&mut link, gap, Duration::from_secs(2));
        let carried = Rate::of(Bytes(link.counters().bytes), Duration::from_secs(2)).expect("time passed");
        let ratio = carried.as_bps() as f64 / (mbps as f64 * 1e6);
        assert!((0.99..=1.0).contains(&ratio), "{mbps} Mbit/s: {ratio}");
        assert!(link.counters().lost_queue > 0);
    }
}

#[test]
fn a_late_driver_costs_no_capacity() {
    let mut link = link(at_rate(12));
    for n in 0..90 {
        assert!(link.handle_packet(n, FULL_IP, Instant::ZERO).is_none());
    }
    let mut count = 0;
    while link.poll_transmit(ms(60)).is_some() {
        count += 1;
    }
    assert_eq!(count, 59, "1514 bytes take 1.009 ms");
}

#[test]
fn delivers_after_serialisation_and_delay() {
    let mut link = link(LinkConfig {
        delay: Duration::from_millis(10),
        ..at_rate(12)
    });
    assert!(link.handle_packet(1, 1486, ms(5)).is_none());
    assert!(link.handle_packet(2, 1486, ms(5)).is_none());
    assert_eq!(drain(&mut link, ms(100)), [(ms(16), 1), (ms(17), 2)]);
    assert_eq!(link.poll_timeout(), None);
}

#[test]
fn the_queue_holds_its_bound() {
    let mut by_bytes = link(LinkConfig {
        queue: QueueBound::Bytes(Bytes(4000)),
        ..at_rate(1)
    });
    let taken = (0..10)
        .filter(|n| by_bytes.handle_packet(*n, 986, Instant::ZERO).is_none())
        .count();
    assert_eq!((taken, by_bytes.counters().lost_queue), (4, 6));

    let mut by_time = link(LinkConfig {
        queue: QueueBound::Time(Duration::from_millis(100)),
        ..at_rate(20)
    });
    let taken = (0..1000)
        .filter(|n| by_time.handle_packet(*n, FULL_IP, Instant::ZERO).is_none())
        .count();
    assert_eq!(taken, 250_000 / 1514);

    let mut tiny = link(LinkConfig {
        queue: QueueBound::Bytes(Bytes(0)),
        ..at_rate(1)
    });
    assert!(
        tiny.handle_packet(0, FULL_IP, Instant::ZERO).is_none(),
        "one packet always fits"
    );
    assert!(tiny.handle_packet(1, FULL_IP, Instant::ZERO).is_some());
}

/// After what time so many full packets come out that come in together at `at`.
fn out_after(link: &mut Link<u64>, packets: u64, at: Instant) -> Vec<Duration> {
    for n in 0..packets {
        assert!(link.handle_packet(n, FULL_IP, at).is_none());
    }
    let out = drain(link, at + Duration::from_secs(1));
    out.into_iter().map(|(out, _)| out.since(at)).collect()
}

#[test]
fn a_token_bucket_lets_a_burst_pass_at_once_after_a_pause_and_then_keeps_to_its_rate() {
    let frame = FULL_IP + FRAME_OVERHEAD;
    let mut link = link(LinkConfig {
        burst: Bytes(4 * frame),
        ..at_rate(10)
    });
    let each = Rate::from_mbps(10).time_for(Bytes(frame));
    let late = Instant::ZERO + Duration::from_secs(1);
    assert_eq!(
        out_after(&mut link, 7, late),
        [0, 0, 0, 0, 1, 2, 3].map(|n| each * n)
    );
    // Two packets' time later there are tokens for two.
    let again = late + each * 5;
    assert_eq!(out_after(&mut link, 4, again), [0, 0, 1, 2].map(|n| each * n));
}

#[test]
fn loses_its_share() {
    let mut link = link(LinkConfig {
        loss: Loss::Uniform(0.05),
        ..LinkConfig::default()
    });
    for n in 0..50_000 {
        assert!(link.handle_packet(n, 100, Instant::ZERO).is_none());
        let _ = link.poll_transmit(Instant::ZERO);
        let _ = link.poll_lost();
    }
    let share = link.counters().lost_random as f64 / 50_000.0;
    assert!((share - 0.05).abs() < 0.005, "{share}");
}

#[test]
fn jitter_has_its_deviation_and_keeps_order_unless_told() {
    let config = |reorder| LinkConfig {
        delay: Duration::from_millis(50),
        jitter: Jitter {
            sd: Duration::from_millis(5),
            reorder,
        },
        ..LinkConfig::default()
    };
    let mut sparse = link(config(false));
    let out = offer(&mut sparse, Duration::from_millis(100), Duration::from_secs(1000));
    let delays: Vec<f64> = out
        .iter()
        .map(|(at, n)| at.since(ms(n * 100)).as_secs_f64() * 1e3)
        .collect();
    let mean = delays.iter().sum::<f64>() / delays.len() as f64;
    let sd = (delays.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / delays.len() as f64).sqrt();
    assert!(
        (mean - 50.0).abs() < 0.3 && (sd - 5.0).abs() < 0.3,
        "mean {mean} sd {sd}"
    );

    let is_sorted = |out: &[(Instant, u64)]| out.windows(2).all(|w| w[0].1 < w[1].1);
    let mut ordered = link(config(false));
    assert!(is_sorted(&offer(
        &mut ordered,
        Duration::from_millis(1),
        Duration::from_secs(2)
    )));
    let mut overtaking = link(config(true));
    let out = offer(&mut overtaking, Duration::from_millis(1), Duration::from_secs(2));
    assert!(out.len() > 1900 && !is_sorted(&out));
}

#[test]
fn a_trace_that_is_set_starts_then() {
    let trace = Trace::parse("0,1250000\n1,2500000\n").expect("a trace");
    let config = LinkConfig {
        capacity: Capacity::Trace(Arc::new(trace)),
        queue: QueueBound::Bytes(Bytes(10_000_000)),
        ..LinkConfig::default()
    };
    let mut link = link(config.clone());
    offer(&mut link, Duration::from_micros(250), Duration::from_millis(1500));
    let again = Change {
        capacity: Some(config.capacity),
        ..Change::default()
    };
    link.set(again, ms(5000));
    for n in 0..4000u32 {
        let _ = link.handle_packet(u64::from(n), 1500, ms(5000));
    }
    let mut carried = |until| {
        let before = link.counters().bytes;
        while link.poll_transmit(until).is_some() {}
        link.counters().bytes - before
    };
    // Skip packets that were in flight before.
    carried(ms(5000));
    let (first, second) = (carried(ms(6000)), carried(ms(7000)));
    assert!(first.abs_diff(1_250_000) < 3_000, "{first}");
    assert!(second.abs_diff(2_500_000) < 3_000, "{second}");
}

#[test]
fn follows_its_trace() {
    let trace = Trace::parse("0,1250000\n1,2500000\n").expect("a trace");
    let mut link = link(LinkConfig {
        capacity: Capacity::Trace(Arc::new(trace)),
        ..LinkConfig::default()
    });
    let out = offer(&mut link, Duration::from_micros(250), Duration::from_secs(4));
    let bytes = |from, to| {
        out.iter()
            .filter(|(at, _)| *at >= ms(from) && *at < ms(to))
            .count() as u64
            * 1514
    };
    for (from, expected) in [
        (0, 1_250_000),
        (1000, 2_500_000),
        (2000, 1_250_000),
        (3000, 2_500_000),
    ] {
        let got = bytes(from, from + 1000);
        assert!(
            got.abs_diff(expected) < 10_000,
            "second {from}: {got} of {expected}"
        );
    }
}

#[test]
fn a_new_rate_holds_at_once_also_for_the_packet_in_transmission() {
    let mut link = link(LinkConfig {
        delay: Duration::ZERO,
        ..at_rate(12)
    });
    assert!(link.handle_packet(1, 1486, Instant::ZERO).is_none());
    let slower = Change {
        capacity: Some(Capacity::Rate(Rate::from_mbps(6))),
        ..Change::default()
    };
    let half = Instant::from_nanos(500_000);
    link.set(slower, half);
    assert_eq!(drain(&mut link, ms(10)), [(Instant::from_nanos(1_500_000), 1)]);
}

#[test]
fn a_blackhole_swallows_what_is_inside_and_what_comes() {
    let mut link = link(LinkConfig {
        delay: Duration::from_millis(10),
        ..at_rate(12)
    });
    let state = |state| Change {
        state: Some(state),
        ..Change::default()
    };
    assert!(link.handle_packet(1, 1486, ms(0)).is_none());
    assert!(link.handle_packet(2, 1486, ms(5)).is_none());
    link.set(state(State::Blackhole), ms(5));
    assert_eq!(link.handle_packet(3, 1486, ms(6)), Some(3));
    assert_eq!(link.counters().lost_outage, 3);
    assert_eq!(core::iter::from_fn(|| link.poll_lost()).count(), 2);
    link.set(state(State::Up), ms(20));
    assert!(link.handle_packet(4, 1486, ms(20)).is_none());
    assert_eq!(drain(&mut link, ms(100)), [(ms(31), 4)]);
}

#[derive(Clone, Debug)]
enum Op {
    Packet { len: u64 },
    Wait { us: u64 },
    Rate { kbps: u64 },
    Delay { us: u64 },
    State(State),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (20u64..1500).prop_map(|len| Op::Packet { len }),
        4 => (0u64..20_000).prop_map(|us| Op::Wait { us }),
        1 => (0u64..50_000).prop_map(|kbps| Op::Rate { kbps }),
        1 => (0u64..50_000).prop_map(|us| Op::Delay { us }),
        1 => prop_oneof![Just(State::Up), Just(State::Down), Just(State::Blackhole)].prop_map(Op::State),
    ]
}

proptest! {
    #[test]
    fn keeps_order_and_accounts_for_every_packet(ops in prop::collection::vec(op(), 1..200), seed: u64) {
        let jitter = Jitter { sd: Duration::from_millis(3), reorder: false };
        let config = LinkConfig { loss: Loss::Uniform(0.1), jitter, ..at_rate(5) };
        let mut link = Link::new(config, seed, Instant::ZERO);
        let (mut now, mut offered, mut bounced, mut out) = (Instant::ZERO, 0u64, 0u64, Vec::new());
        for op in ops {
            match op {
                Op::Packet { len } => {
                    bounced += u64::from(link.handle_packet(offered, len, now).is_some());
                    offered += 1;
                }
                Op::Wait { us } => now += Duration::from_micros(us),
                Op::Rate { kbps } => {
                    let capacity = Some(Capacity::Rate(Rate::from_bps(kbps * 1000)));
                    link.set(Change { capacity, ..Change::default() }, now);
                }
                Op::Delay { us } => {
                    link.set(Change { delay: Some(Duration::from_micros(us)), ..Change::default() }, now);
                }
                Op::State(state) => link.set(Change { state: Some(state), ..Change::default() }, now),
            }
            out.extend(core::iter::from_fn(|| link.poll_transmit(now)));
            if let Some(at) = link.poll_timeout() {
                prop_assert!(at > now, "a drained link wants to be woken later");
            }
        }
        let fast = Change { capacity: Some(Capacity::Unlimited), ..Change::default() };
        link.set(fast, now);
        out.extend(core::iter::from_fn(|| link.poll_transmit(now + Duration::from_secs(3600))));
        let swallowed = core::iter::from_fn(|| link.poll_lost()).count() as u64;
        prop_assert!(out.windows(2).all(|w| w[0] < w[1]), "order");
        prop_assert_eq!(offered, out.len() as u64 + bounced + swallowed);
        prop_assert_eq!(link.counters().packets, out.len() as u64);
        prop_assert_eq!(link.counters().lost(), bounced + swallowed);
    }
}

#[test]
fn a_link_with_a_middlebox_is_inspected_and_counts_what_is_dropped() {
    let header = |ip_len| Header {
        ip_len,
        is_udp: true,
        ecn: crate::Codepoint::NotEct,
    };
    let mut plain = link(at_rate(20));
    assert!(!plain.has_middlebox());
    let small = crate::PathMtu {
        size: 1280,
        icmp: false,
    };
    let set = |mtu| Change {
        middlebox: MiddleboxChange {
            mtu: Some(mtu),
            ..MiddleboxChange::default()
        },
        ..Change::default()
    };
    plain.set(set(Some(small)), ms(1));
    assert!(plain.has_middlebox());
    assert_eq!(plain.inspect(header(1280), ms(1)), Verdict::Forward);
    assert_eq!(plain.inspect(header(1281), ms(1)), Verdict::Drop);
    assert_eq!((plain.counters().lost_middlebox, plain.counters().lost()), (1, 1));
    plain.set(set(None), ms(2));
    assert!(!plain.has_middlebox());
}

#[test]
fn a_link_that_stops_with_its_opposite_works_again_after_that_time() {
    let header = Header {
        ip_len: 100,
        is_udp: false,
        ecn: crate::Codepoint::NotEct,
    };
    let mut up = link(at_rate(20));
    let stop = Change {
        stop_until: Some(ms(50)),
        ..Change::default()
    };
    up.set(stop, ms(1));
    assert_eq!(up.inspect(header, ms(49)), Verdict::Drop);
    assert_eq!(up.inspect(header, ms(50)), Verdict::Forward);
    assert!(!up.has_middlebox(), "the next packet costs one test of a flag");
}

#[test]
fn a_lost_carrier_loses_what_a_device_that_is_down_loses() {
    let mut lost = link(at_rate(1));
    assert!(lost.handle_packet(1, FULL_IP, ms(0)).is_none());
    let state = |state| Change {
        state: Some(state),
        ..Change::default()
    };
    lost.set(state(State::NoCarrier), ms(1));
    assert!(lost.handle_packet(2, FULL_IP, ms(2)).is_some());
    assert_eq!(lost.counters().lost_outage, 2);
    assert!(!State::NoCarrier.shows_up() && !State::Down.shows_up() && State::Blackhole.shows_up());
    lost.set(state(State::Up), ms(3));
    assert!(lost.handle_packet(3, FULL_IP, ms(3)).is_none());
}
