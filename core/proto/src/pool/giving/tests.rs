use proptest::prelude::*;

use super::*;

const ALICE: TakerId = TakerId(1);
const BOB: TakerId = TakerId(2);
const WAY: UplinkId = UplinkId(0);

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1_000)
}

fn giving(terms: Terms) -> Giving<u64> {
    let mut giving = Giving::new(terms, Bytes(0));
    assert!(giving.handle_taker(ALICE) && giving.handle_taker(BOB));
    giving
}

fn capped(mbps: u64) -> Terms {
    Terms {
        cap: Some(Rate::from_mbps(mbps)),
        ..Terms::default()
    }
}

/// Offers datagrams every millisecond and lets go what may; the bytes that went, by millisecond.
fn run(
    giving: &mut Giving<u64>,
    from: u64,
    to: u64,
    offered: impl Fn(u64) -> Vec<(TakerId, u64)>,
) -> Vec<(u64, TakerId, u64)> {
    let mut went = Vec::new();
    for ms in from..to {
        let now = at(ms * 1_000);
        for (taker, size) in offered(ms) {
            giving.handle_packet((taker, WAY), Direction::Up, Bytes(size), size, now);
        }
        while let Some(granted) = giving.poll_transmit(Direction::Up, now) {
            went.push((ms, granted.taker, granted.packet));
        }
    }
    went
}

#[test]
fn a_cap_holds_within_two_percent_over_any_second() {
    for mbps in [1, 5, 50] {
        let mut giving = giving(capped(mbps));
        let went = run(&mut giving, 0, 4_000, |_| {
            vec![(ALICE, 1_400); 1 + mbps as usize / 4]
        });
        let second = mbps as f64 * 1e6 / 8.0;
        for start in (0..3_000).step_by(50) {
            let bytes: u64 = went
                .iter()
                .filter(|(ms, ..)| (start..start + 1_000).contains(ms))
                .map(|(.., size)| size)
                .sum();
            let off = bytes as f64 / second - 1.0;
            assert!(off < 0.02 && off > -0.02, "{mbps} Mbit/s from {start} ms: {off}");
        }
    }
}

#[test]
fn a_quota_holds_to_the_packet() {
    let terms = Terms {
        quota: Some(Bytes(10_000)),
        ..Terms::default()
    };
    let mut giving = giving(terms);
    let nine = std::iter::repeat_n(Bytes(1_000), 9);
    assert_eq!(giving.pass((ALICE, WAY), Direction::Up, nine, at(0)), 9);
    assert_eq!(giving.over(at(0)), None);
    assert_eq!(
        giving.pass((BOB, WAY), Direction::Down, [Bytes(1_000); 3], at(0)),
        1
    );
    assert_eq!(giving.relayed(), Bytes(10_000));
    assert_eq!(giving.over(at(0)), Some(Over::Quota));
    assert_eq!(giving.relayed_for(BOB), [Bytes(0), Bytes(1_000)]);
}

#[test]
fn a_packet_that_does_not_fit_ends_it() {
    let terms = Terms {
        quota: Some(Bytes(1_500)),
        ..Terms::default()
    };
    let mut giving = giving(terms);
    assert_eq!(
        giving.pass(
            (ALICE, WAY),
            Direction::Up,
            [Bytes(1_000), Bytes(1_000), Bytes(10)],
            at(0)
        ),
        1
    );
    assert_eq!(giving.over(at(0)), Some(Over::Quota));
}

#[test]
fn what_was_carried_before_counts() {
    let terms = Terms {
        quota: Some(Bytes(100)),
        ..Terms::default()
    };
    assert_eq!(
        Giving::<()>::new(terms, Bytes(100)).over(at(0)),
        Some(Over::Quota)
    );
}

#[test]
fn nothing_passes_after_the_end() {
    let terms = Terms {
        until: Some(at(1_000)),
        ..capped(1)
    };
    let mut giving = giving(terms);
    giving.handle_packet((ALICE, WAY), Direction::Up, Bytes(9_000), 0, at(0));
    giving.handle_packet((ALICE, WAY), Direction::Up, Bytes(9_000), 1, at(0));
    assert!(giving.poll_transmit(Direction::Up, at(0)).is_some());
    assert_eq!(
        giving.poll_timeout(),
        Some(at(1_000)),
        "the end comes before the cap allows more"
    );
    assert_eq!(giving.poll_transmit(Direction::Up, at(1_000)), None);
    assert_eq!((giving.over(at(1_000)), giving.dropped()), (Some(Over::Time), 1));
}

#[test]
fn takers_have_equal_shares_whatever_their_sizes() {
    let mut giving = giving(capped(8));
    let went = run(&mut giving, 0, 3_000, |_| {
        [vec![(ALICE, 1_400); 4], vec![(BOB, 200); 6]].concat()
    });
    let share = |taker| {
        went.iter()
            .filter(|(_, of, _)| *of == taker)
            .map(|(.., size)| size)
            .sum::<u64>() as f64
    };
    let ratio = share(ALICE) / share(BOB);
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}

#[test]
fn a_flood_of_one_costs_the_other_nothing() {
    let mut giving = giving(capped(8));
    let went = run(&mut giving, 0, 2_000, |ms| {
        let mut offered = vec![(ALICE, 1_400); 50];
        // 2.2 Mbit/s, less than half of the cap.
        if ms % 5 == 0 {
            offered.push((BOB, 1_400));
        }
        offered
    });
    let of_bob = went.iter().filter(|(_, of, _)| *of == BOB).count();
    assert!(of_bob >= 399, "{of_bob} of 400");
    assert!(giving.lanes[0].bytes <= LONGEST_QUEUE);
}

#[test]
fn who_was_silent_has_no_claim_to_what_others_had() {
    let mut giving = giving(capped(8));
    let _ = run(&mut giving, 0, 1_000, |_| vec![(ALICE, 1_000); 4]);
    let went = run(&mut giving, 1_000, 2_000, |_| {
        vec![(ALICE, 1_000), (ALICE, 1_000), (BOB, 1_000), (BOB, 1_000)]
    });
    let of_alice = went.iter().filter(|(_, of, _)| *of == ALICE).count() as f64;
    assert!(of_alice > 0.4 * went.len() as f64, "{of_alice} of {}", went.len());
}

#[test]
fn a_taker_that_is_gone_has_nothing_in_the_queue() {
    let mut giving = giving(capped(1));
    for _ in 0..20 {
        giving.handle_packet((ALICE, WAY), Direction::Down, Bytes(1_000), 0, at(0));
    }
    giving.handle_taker_left(ALICE);
    assert_eq!(giving.poll_transmit(Direction::Down, at(0)), None);
    assert_eq!(giving.poll_timeout(), None);
    assert_eq!(giving.pass((ALICE, WAY), Direction::Up, [Bytes(1)], at(0)), 0);
    giving.handle_packet((ALICE, WAY), Direction::Up, Bytes(1_000), 0, at(0));
    assert_eq!(giving.poll_timeout(), None);
}

#[test]
fn there_is_a_bound_on_takers() {
    let mut giving = giving(Terms::default());
    let let_in = (0..1_000)
        .filter(|number| giving.handle_taker(TakerId(*number)))
        .count();
    assert_eq!(let_in, MAX_TAKERS, "the two who are in are among the thousand");
}

#[test]
fn a_way_out_with_a_limit_is_paced_and_others_are_not() {
    let mut giving = giving(Terms::default());
    let free = UplinkId(1);
    assert!(!giving.is_paced(WAY, Direction::Up));
    giving.handle_limit(WAY, Direction::Up, Some(Rate::from_mbps(1)), at(0));
    assert!(giving.is_paced(WAY, Direction::Up) && !giving.is_paced(WAY, Direction::Down));
    assert!(!giving.is_paced(free, Direction::Up));
    let mut went = [0_u64; 2];
    for ms in 0..1_000 {
        for (place, way) in [WAY, free].into_iter().enumerate() {
            giving.handle_packet(
                (ALICE, way),
                Direction::Up,
                Bytes(1_000),
                place as u64,
                at(ms * 1_000),
            );
        }
        while let Some(granted) = giving.poll_transmit(Direction::Up, at(ms * 1_000)) {
            went[granted.packet as usize] += 1_000;
        }
    }
    // 1 Mbit/s for a second is 125,000 bytes.
    assert!((120_000..=128_000).contains(&went[0]), "{}", went[0]);
    assert_eq!(went[1], 1_000_000);
    // Queued packets are sent at once when the limit is removed, and then no packet is paced.
    giving.handle_limit(WAY, Direction::Up, None, at(1_000_000));
    while giving.poll_transmit(Direction::Up, at(1_000_000)).is_some() {}
    assert!(!giving.is_paced(WAY, Direction::Up));
    assert_eq!(giving.poll_timeout(), None);
}

#[test]
fn a_slow_limit_holds_two_packets_and_a_faster_one_ends_the_wait() {
    let mut giving = giving(Terms::default());
    giving.handle_limit(WAY, Direction::Down, Some(Rate::from_bps(12_000)), at(0));
    for _ in 0..10 {
        giving.handle_packet((ALICE, WAY), Direction::Down, Bytes(1_500), 0, at(0));
    }
    assert_eq!(giving.dropped(), 8);
    assert!(giving.poll_transmit(Direction::Down, at(0)).is_some());
    assert!(giving.poll_transmit(Direction::Down, at(900_000)).is_none());
    giving.handle_limit(WAY, Direction::Down, Some(Rate::from_mbps(12)), at(900_000));
    let due = giving.poll_timeout().expect("one waits");
    assert!(due <= at(902_000), "{due:?}");
    assert!(giving.poll_transmit(Direction::Down, due).is_some());
}

#[derive(Clone, Debug)]
enum Op {
    Packet(u64, bool, u64),
    Transmit(bool),
    Wait(u64),
    Gone(u64),
    Come(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..4_u64, any::<bool>(), 20..9_000_u64).prop_map(|(taker, up, size)| Op::Packet(taker, up, size)),
        4 => any::<bool>().prop_map(Op::Transmit),
        2 => (0..20_000_u64).prop_map(Op::Wait),
        1 => (0..4_u64).prop_map(Op::Gone),
        1 => (0..4_u64).prop_map(Op::Come),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_bounds_hold_and_nothing_is_lost_uncounted(ops in prop::collection::vec(op(), 0..300)) {
        let terms = Terms { cap: Some(Rate::from_mbps(2)), quota: Some(Bytes(400_000)), until: None };
        let mut giving = Giving::new(terms, Bytes(0));
        let (mut now, mut went) = (0, [0_u64; 2]);
        for op in ops {
            let way = |up| if up { Direction::Up } else { Direction::Down };
            match op {
                Op::Packet(taker, up, size) => giving.handle_packet((TakerId(taker), WAY), way(up), Bytes(size), size, at(now)),
                Op::Transmit(up) => {
                    if let Some(granted) = giving.poll_transmit(way(up), at(now)) {
                        went[way(up) as usize] += granted.packet;
                    }
                }
                Op::Wait(micros) => now += micros,
                Op::Gone(taker) => giving.handle_taker_left(TakerId(taker)),
                Op::Come(taker) => prop_assert!(giving.handle_taker(TakerId(taker))),
            }
            for lane in &giving.lanes {
                let held: u64 = lane.queues.values().map(|queue| queue.bytes).sum();
                let each: u64 = lane.queues.values().flat_map(|queue| &queue.packets).map(|(size, _)| size).sum();
                prop_assert_eq!((lane.bytes, held), (held, each));
                prop_assert!(lane.bytes <= SHORTEST_QUEUE);
            }
            prop_assert!(went[0] + went[1] <= 400_000);
            let most = 2e6 / 8.0 * (now as f64 / 1e6 + BURST.as_secs_f64()) + 9_000.0;
            prop_assert!((went[0] as f64) <= most && (went[1] as f64) <= most);
        }
    }
}
