use super::*;
use proptest::prelude::*;

const A: NetworkId = NetworkId(2);
const B: NetworkId = NetworkId(3);
const C: NetworkId = NetworkId(4);

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn network(mbps: u64) -> Network {
    Network {
        kind: Kind::Wired,
        carries: [true, false],
        weight: None,
        capacity: Some(Rate::from_mbps(mbps)),
        round_trip: None,
        cost: 0,
    }
}

/// One network after the other.
impl Assignment {
    fn handle_network(&mut self, id: NetworkId, network: Option<Network>, now: Instant) {
        let mut networks = self.networks.clone();
        match network {
            Some(network) => drop(networks.insert(id, network)),
            None => drop(networks.remove(&id)),
        }
        self.handle_networks(networks, now);
    }
}

fn spread(measure: Measure) -> Assignment {
    Assignment::new(vec![Wish {
        way: Way::Spread(Vec::new(), measure),
        strict: false,
    }])
}

#[test]
fn equal_networks_take_turns() {
    assert_eq!(turns(&[(A, 7), (B, 7), (C, 7)]), [A, B, C]);
    assert_eq!(turns(&[]), []);
    assert_eq!(turns(&[(A, 0)]), []);
}

#[test]
fn a_network_four_times_as_fast_takes_four_of_five_evenly_mixed() {
    assert_eq!(turns(&[(A, 40), (B, 10)]), [A, A, B, A, A]);
}

#[test]
fn a_rate_that_flickers_changes_nothing() {
    let mut assignment = spread(Measure::Capacity);
    assignment.handle_network(A, Some(network(100)), at(0));
    assignment.handle_network(B, Some(network(50)), at(0));
    assert!(assignment.poll_event());
    assignment.handle_network(B, Some(network(55)), at(1));
    assert!(!assignment.poll_event());
    assignment.handle_network(B, Some(network(100)), at(2));
    assert!(assignment.poll_event());
}

#[test]
fn an_unknown_network_counts_as_the_mean_and_a_weight_counts_before_any_rate() {
    let mut assignment = spread(Measure::Capacity);
    assignment.handle_network(A, Some(network(100)), at(0));
    let unknown = Network {
        capacity: None,
        ..network(0)
    };
    assignment.handle_network(B, Some(unknown.clone()), at(0));
    assert_eq!(assignment.decisions()[0].turns[0], [A, B]);
    let heavy = Network {
        weight: Some(2),
        ..unknown
    };
    assignment.handle_network(B, Some(heavy), at(0));
    assert_eq!(assignment.decisions()[0].turns[0], [B, A, B]);
}

#[test]
fn round_trip_and_cost_leave_the_others_out() {
    let timed = |ms, cost| Network {
        round_trip: Some(Duration::from_millis(ms)),
        cost,
        ..network(10)
    };
    for (measure, expected) in [(Measure::RoundTrip, vec![A, B]), (Measure::Cost, vec![C])] {
        let mut assignment = spread(measure);
        assignment.handle_network(A, Some(timed(10, 2)), at(0));
        assignment.handle_network(B, Some(timed(12, 2)), at(0));
        assignment.handle_network(C, Some(timed(40, 1)), at(0));
        assert_eq!(assignment.decisions()[0].turns[0], expected);
    }
}

#[test]
fn a_preferred_network_is_left_at_once_and_taken_again_after_the_hold() {
    let prefer = Way::Prefer(vec![Selector::Network(B), Selector::Any]);
    let mut assignment = Assignment::new(vec![Wish {
        way: prefer,
        strict: false,
    }]);
    assignment.handle_network(B, Some(network(1)), at(0));
    assignment.handle_network(A, Some(network(1)), at(0));
    assert_eq!(assignment.decisions()[0].turns, [vec![B], vec![]]);
    assignment.handle_network(B, None, at(10));
    assert_eq!(assignment.decisions()[0].turns[0], [A]);
    assignment.handle_network(B, Some(network(1)), at(20));
    assert_eq!(assignment.decisions()[0].turns[0], [A]);
    assert_eq!(assignment.poll_timeout(), Some(at(2_020)));
    assignment.handle_timeout(at(2_020));
    assert_eq!(assignment.decisions()[0].turns[0], [B]);
}

#[test]
fn a_family_goes_only_where_it_is_carried() {
    let mut assignment = spread(Measure::Even);
    let both = Network {
        carries: [true, true],
        ..network(1)
    };
    assignment.handle_network(A, Some(network(1)), at(0));
    assignment.handle_network(B, Some(both), at(0));
    assert_eq!(assignment.decisions()[0].turns, [vec![A, B], vec![B]]);
}

proptest! {
    // Shares follow weights up to the step, nobody with a weight is left out, and no run is longer than it must be.
    #[test]
    fn turns_keep_to_the_weights(list in prop::collection::vec(1u64..1_000_000, 1..10)) {
        let weights: Vec<_> = (0..).map(NetworkId).zip(list).collect();
        let order = turns(&weights);
        let most = weights.iter().map(|(_, weight)| *weight).max().unwrap_or(1);
        let count = |id| order.iter().filter(|turn| **turn == id).count() as f64;
        let full = weights.iter().find(|(_, weight)| *weight == most).map_or(1.0, |(id, _)| count(*id));
        for (id, weight) in &weights {
            let (exact, given) = (*weight as f64 / most as f64, count(*id) / full);
            let (exact, given) = (exact * 32.0, given * 32.0);
            prop_assert!(given >= 1.0 - 1e-9);
            // Half a step of the square root of two, and the rounding to whole turns.
            prop_assert!(exact < 1.0 || (given - exact).abs() <= 0.5 + 0.2 * exact, "{} {}", exact, given);
        }
        prop_assert!(order.len() <= 320);
    }
}
