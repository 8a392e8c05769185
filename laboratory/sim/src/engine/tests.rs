use proptest::prelude::*;

use super::*;

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

fn drain(queue: &mut EventQueue<u32>) -> Vec<u32> {
    std::iter::from_fn(|| queue.pop(Instant::FAR_FUTURE).map(|(_, event)| event)).collect()
}

#[test]
fn equal_times_fire_in_the_order_of_arming() {
    let mut queue = EventQueue::default();
    for event in 0..100 {
        queue.schedule(at(7), event);
    }
    assert_eq!(drain(&mut queue), (0..100).collect::<Vec<_>>());
}

#[test]
fn a_timer_armed_again_moves_behind_its_equals() {
    let mut queue = EventQueue::default();
    let moved = queue.register(1);
    queue.arm(moved, at(5));
    queue.schedule(at(5), 2);
    queue.arm(moved, at(5));
    assert_eq!(queue.due(moved), Some(at(5)));
    assert_eq!(drain(&mut queue), [2, 1]);
    assert_eq!(queue.due(moved), None);
}

#[test]
fn fires_nothing_beyond_the_time_asked_for() {
    let mut queue = EventQueue::default();
    queue.schedule(at(5), 1);
    assert_eq!(queue.pop(at(4)), None);
    assert_eq!(queue.pop(at(5)), Some((at(5), 1)));
    assert!(queue.is_empty());
}

#[test]
fn a_cancelled_event_does_not_happen() {
    let mut queue = EventQueue::default();
    let first = queue.schedule(at(1), 1);
    queue.schedule(at(2), 2);
    queue.cancel(first);
    assert_eq!(drain(&mut queue), [2]);
}

#[test]
fn slots_of_single_events_serve_again() {
    let mut queue = EventQueue::default();
    for round in 0..1_000 {
        queue.schedule(at(round), 0);
        queue.schedule(at(round), 1);
        assert_eq!(drain(&mut queue), [0, 1]);
    }
    assert!(queue.timers.len() <= 2);
}

#[test]
fn lanes_are_popped_apart_and_keep_their_order_when_divided_anew() {
    let mut queue = EventQueue::default();
    for event in 0..60 {
        queue.schedule(at(7 + u64::from(event % 3)), event);
    }
    queue.pop(at(7));
    queue.divide(2, |event| (event % 2) as u16);
    let sorted = |mut events: Vec<u32>| {
        events.sort_by_key(|event| event % 3);
        events
    };
    for lane in 0..2 {
        queue.enter(lane);
        assert_eq!(queue.pop(at(6)), None);
        if lane == 0 {
            let expected = sorted((1..30).map(|half| half * 2).collect());
            assert_eq!(drain(&mut queue), expected);
        }
    }
    queue.divide(1, |_| 0);
    assert_eq!(
        drain(&mut queue),
        sorted((0..30).map(|half| half * 2 + 1).collect())
    );
}

#[derive(Clone, Debug)]
enum Op {
    Arm(usize, u64),
    Cancel(usize),
    Schedule(u64),
    Pop(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..8_usize, 0..20_u64).prop_map(|(timer, after)| Op::Arm(timer, after)),
        1 => (0..8_usize).prop_map(Op::Cancel),
        2 => (0..20_u64).prop_map(Op::Schedule),
        4 => (0..20_u64).prop_map(Op::Pop),
    ]
}

proptest! {
    /// Beside a sorted list of everything that is armed.
    #[test]
    fn agrees_with_a_sorted_list(ops in prop::collection::vec(op(), 1..400)) {
        let mut queue = EventQueue::default();
        let timers: Vec<TimerId> = (0..8).map(|event| queue.register(event)).collect();
        let mut model: Vec<(u64, u64, u32)> = Vec::new();
        let (mut now, mut order) = (0, 0);
        for (step, op) in ops.into_iter().enumerate() {
            order += 1;
            match op {
                Op::Arm(timer, after) => {
                    queue.arm(timers[timer], at(now + after));
                    model.retain(|(_, _, event)| *event != timer as u32);
                    model.push((now + after, order, timer as u32));
                }
                Op::Cancel(timer) => {
                    queue.cancel(timers[timer]);
                    model.retain(|(_, _, event)| *event != timer as u32);
                }
                Op::Schedule(after) => {
                    queue.schedule(at(now + after), 100 + step as u32);
                    model.push((now + after, order, 100 + step as u32));
                }
                Op::Pop(within) => {
                    model.sort_unstable();
                    let expected = model.first().copied().filter(|(time, _, _)| *time <= now + within);
                    let popped = queue.pop(at(now + within));
                    prop_assert_eq!(popped, expected.map(|(time, _, event)| (at(time), event)));
                    if let Some((time, _, _)) = expected {
                        model.remove(0);
                        now = time;
                    }
                }
            }
            prop_assert_eq!(queue.len(), model.len());
            for (index, timer) in timers.iter().enumerate() {
                let armed = model.iter().find(|(_, _, event)| *event == index as u32);
                prop_assert_eq!(queue.due(*timer), armed.map(|(time, _, _)| at(*time)));
            }
        }
    }
}
