//! Many flows that wait: what a look costs, who makes room, and what memory is kept.

use super::*;

#[test]
fn thousands_of_waiting_flows_cost_a_batch_no_more_than_a_few() {
    let mut rig = Rig::on_two_paths();
    for flow in 0..4_000 {
        rig.arrive(flow, 100, 1, 1_030_000, 1_035_000);
        rig.arrive(flow, 8_000, 1, 1_030_000, 1_035_000);
    }
    assert!(rig.machine.waiting.len() <= MAX_WAITING);
    let before = rig.machine.steps();
    for n in 0..1_000 {
        let now = Instant::from_nanos((1_035_000 + n) * 1_000);
        rig.machine.release(now, &mut rig.out);
        assert!(rig.machine.steps() - before <= (n + 1) * 64);
    }
    rig.run_to(2_500_000);
    assert!(rig.machine.is_empty(), "all are given up in the end");
}

/// A rig in which so many flows wait for their second packet since 1.035 s.
fn crowded(flows: u16) -> Rig {
    let mut rig = Rig::on_two_paths();
    for flow in 0..flows {
        rig.is_bulk = flow < 64;
        rig.arrive(flow, 0, 1, 1_030_000, 1_035_000);
        rig.arrive(flow, 2, 1, 1_030_000, 1_035_000);
    }
    rig.out.clear();
    rig
}

#[test]
fn where_many_flows_wait_each_of_them_is_looked_at_in_its_turn() {
    let mut rig = crowded(100);
    // Transfers wait longer; the others come behind them in the list.
    for _ in 0..4 {
        rig.machine.release(at(1_135_000), &mut rig.out);
    }
    let given_up: BTreeSet<_> = rig.out.iter().map(|(flow, _)| *flow).collect();
    assert_eq!(given_up, (64..100).collect());
}

#[test]
fn where_more_flows_wait_than_one_look_takes_in_the_next_look_is_soon() {
    let due = |flows| crowded(flows).machine.poll_timeout().expect("they wait");
    assert_eq!(due(65), at(1_036_000));
    assert!(due(64) > at(1_050_000), "as long as the slow path may take");
}

#[test]
fn room_is_made_as_often_as_it_is_asked_for() {
    let mut rig = crowded(100);
    for made in 1..=36 {
        assert!(rig.machine.relieve(at(1_036_000), &mut rig.out));
        assert_eq!((rig.out.len(), rig.machine.len()), (made, 100 - made));
    }
}

#[test]
fn the_end_of_a_session_delivers_what_is_held() {
    let mut rig = crowded(3);
    assert_eq!(rig.machine.len(), 3);
    rig.machine.drain(at(1_036_000), &mut rig.out);
    let mut out = rig.out.clone();
    out.sort_unstable();
    assert_eq!(out, [(0, 2), (1, 2), (2, 2)]);
    assert_eq!((rig.machine.len(), rig.machine.flows()), (0, 0));
}

#[test]
fn no_more_flows_wait_than_may() {
    for (flows, waiting) in [(1_023, 1_023), (1_024, 1_024), (1_025, 1_024), (1_026, 1_024)] {
        let rig = crowded(flows);
        assert_eq!(
            (rig.machine.len(), rig.out.len()),
            (waiting, 0),
            "what makes room is delivered before"
        );
    }
}

#[test]
fn each_look_begins_where_the_last_one_ended_and_takes_the_oldest() {
    let mut rig = Rig::on_two_paths();
    for flow in 0..100u16 {
        let now = 1_035_000 + u64::from(flow);
        rig.arrive(flow, 0, 1, 1_030_000, now);
        rig.arrive(flow, 2, 1, 1_030_000, now);
    }
    rig.out.clear();
    rig.machine.rotation = 0;
    let before = rig.machine.steps();
    assert!(rig.machine.relieve(at(1_036_000), &mut rig.out));
    assert_eq!(rig.machine.steps(), before + 64);
    assert!(rig.machine.relieve(at(1_036_000), &mut rig.out));
    assert_eq!(rig.out, [(0, 2), (64, 2)]);
}

#[test]
fn the_memory_of_a_flow_in_order_serves_the_next_and_no_more_than_a_few_are_kept() {
    for (flows, spare) in [(1, 1), (8, 8), (12, 8)] {
        let mut rig = crowded(flows);
        for flow in 0..flows {
            rig.arrive(flow, 1, 1, 1_030_000, 1_036_000);
        }
        assert!(rig.machine.is_empty());
        assert_eq!(rig.machine.spare.len(), spare);
    }
}
