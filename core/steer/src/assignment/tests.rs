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
        facts: NetworkFacts::default(),
    }
}

/// Adds networks one after the other.
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
        when: Conditions::default(),
        way: RuleAction::Spread(Vec::new(), measure),
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
        facts: NetworkFacts {
            cost,
            ..NetworkFacts::default()
        },
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
    let prefer = RuleAction::Prefer(vec![Selector::Network(B), Selector::Any]);
    let mut assignment = Assignment::new(vec![Wish {
        when: Conditions::default(),
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
    // Shares follow weights up to the step, every network with a weight gets a turn, and no run is
    // longer than necessary.
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

fn facts(moving: bool) -> Facts {
    Facts {
        moving: Some(moving),
        ..Facts::default()
    }
}

#[test]
fn a_rule_is_for_no_flow_while_its_conditions_do_not_hold_and_for_all_at_once_when_they_do() {
    let moving = Wish {
        when: Conditions {
            moving: Some(true),
            ..Conditions::default()
        },
        way: RuleAction::Prefer(vec![Selector::Network(C), Selector::Network(B)]),
        strict: true,
    };
    let otherwise = Wish {
        when: Conditions::default(),
        way: RuleAction::Prefer(vec![Selector::Network(A)]),
        strict: false,
    };
    let mut assignment = Assignment::new(vec![moving, otherwise]);
    assignment.handle_networks(BTreeMap::from([(A, network(1)), (B, network(1))]), at(0));
    assert!(assignment.poll_event());
    assert_eq!(
        assignment.decisions()[0],
        Decision::default(),
        "nor does it refuse"
    );
    assert_eq!(assignment.decisions()[1].turns[0], [A]);
    assignment.handle_facts(facts(true));
    assert!(assignment.poll_event(), "without waiting");
    assert_eq!(assignment.decisions()[0].turns[0], [B]);
    assert!(assignment.decisions()[0].strict);
    assert_eq!(assignment.holding().collect::<Vec<_>>(), [true, true]);
    assignment.handle_facts(facts(true));
    assert!(!assignment.poll_event(), "nothing is new");
    assignment.handle_facts(facts(false));
    assert_eq!(assignment.decisions()[0], Decision::default());
    assignment.handle_facts(Facts::default());
    assert!(!assignment.holding().next().unwrap(), "the fact is unknown");
}

#[test]
fn conditions_on_networks_leave_those_out_that_do_not_meet_them() {
    let cheap = |way| Wish {
        when: Conditions {
            cost_below: Some(5),
            ..Conditions::default()
        },
        way,
        strict: false,
    };
    let both = vec![Selector::Network(A), Selector::Network(B)];
    let mut assignment = Assignment::new(vec![
        cheap(RuleAction::Prefer(both.clone())),
        cheap(RuleAction::Spread(both, Measure::Even)),
    ]);
    let costing = |cost| Network {
        facts: NetworkFacts {
            cost,
            ..NetworkFacts::default()
        },
        ..network(1)
    };
    assignment.handle_networks(BTreeMap::from([(A, costing(1)), (B, costing(1))]), at(0));
    let turns = |assignment: &Assignment| [0, 1].map(|rule| assignment.decisions()[rule].turns[0].clone());
    assert_eq!(turns(&assignment), [vec![A], vec![A, B]]);
    assignment.handle_networks(BTreeMap::from([(A, costing(9)), (B, costing(1))]), at(1));
    assert_eq!(turns(&assignment), [vec![B], vec![B]], "left at once");
    assignment.handle_networks(BTreeMap::from([(A, costing(9)), (B, costing(5))]), at(2));
    assert_eq!(turns(&assignment), [vec![], vec![]]);
}
