use super::*;
use crate::path::control::Control;
use crate::path::control::tests::{Link, Ran, new};

fn ran(queue_ms: u64, loses_one_in: u64, seconds: u64) -> Ran {
    let link = Link {
        rate_at: &|_| Rate::from_mbps(20),
        delay: Duration::from_millis(40),
        rival_at: &|_| 0,
        queue: Duration::from_millis(queue_ms),
        loses_one_in,
    };
    link.run(&mut new(Control::Bbr, None), seconds)
}

#[test]
fn it_goes_through_its_states_and_keeps_a_deep_queue_short() {
    let ran = ran(1_000, 0, 12);
    // The drained queue is already within the target of the cruise phase, so the down phase ends at
    // once.
    let begin = ["startup", "drain", "probe-bw-cruise"];
    assert!(ran.states.starts_with(&begin), "{:?}", ran.states);
    for state in ["probe-bw-refill", "probe-bw-up", "probe-bw-down", "probe-rtt"] {
        assert!(ran.states.contains(&state), "{state}: {:?}", ran.states);
    }
    assert!(ran.queue < Duration::from_millis(60), "{:?}", ran.queue);
    assert!(ran.rate > Rate::from_mbps(18), "{}", ran.rate);
}

#[test]
fn chance_below_the_threshold_costs_little_and_above_it_much() {
    let one_percent = ran(80, 100, 20).rate;
    assert!(one_percent > Rate::from_mbps(16), "{one_percent}");
    let ten_percent = ran(80, 10, 20).rate;
    assert!(ten_percent < one_percent, "{ten_percent}");
}

#[test]
fn round_trips_are_probed_every_five_seconds_unless_a_lower_one_comes() {
    let probes = |seconds| {
        let states = ran(200, 0, seconds).states;
        states.iter().filter(|state| **state == "probe-rtt").count()
    };
    let (few, more) = (probes(8), probes(28));
    assert!((1..=2).contains(&few), "{few}");
    assert!((4..=6).contains(&more), "{more}");
}

#[test]
fn a_queue_that_overflows_while_probing_bounds_what_is_in_flight() {
    let rate = Rate::from_mbps(20);
    let mut model = new(Control::Bbr, None);
    let link = Link {
        rate_at: &|_| rate,
        delay: Duration::from_millis(40),
        rival_at: &|_| 0,
        queue: Duration::from_millis(10),
        loses_one_in: 0,
    };
    let ran = link.run(&mut model, 20);
    // The link and its queue hold 125 kB.
    assert!(model.window() < 150_000, "{}", model.window());
    assert!(ran.rate > Rate::from_mbps(17), "{}", ran.rate);
}
