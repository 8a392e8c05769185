use proptest::prelude::*;

use super::super::monitor::{Measured, Offer, UNCAPPED};
use super::*;

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn limits(uplinks: usize) -> Limits {
    Limits {
        uplinks,
        cost_below: None,
    }
}

/// An uplink that offers this rate at this cost, and of which nothing is known.
fn offered(member: u64, offered_kbps: u64, cost: u8) -> Reachable {
    Reachable {
        member: MemberId(member),
        offer: Offer {
            rate: if offered_kbps == 0 {
                UNCAPPED
            } else {
                Rate::from_bps(offered_kbps * 1_000)
            },
            cost,
        },
        measured: None,
    }
}

fn with_rate(reachable: Reachable, kbps: u64, loss: f64) -> Reachable {
    let measured = Measured {
        rate: Rate::from_bps(kbps * 1_000),
        is_filled: true,
        loss,
        delay: Duration::from_millis(50),
    };
    Reachable {
        measured: Some(measured),
        ..reachable
    }
}

fn measured(member: u64, kbps: u64) -> Reachable {
    with_rate(offered(member, 0, 0), kbps, 0.0)
}

fn in_use(selection: &Selection) -> Vec<u64> {
    selection.group.iter().map(|member| member.0).collect()
}

fn changes(selection: &mut Selection) -> Vec<Change> {
    std::iter::from_fn(|| selection.poll_change()).collect()
}

#[test]
fn free_positions_are_filled_at_once_and_those_of_leavers_too() {
    let mut selection = Selection::new(limits(2));
    let three = [1, 2, 3].map(|member| offered(member, 0, 0));
    selection.handle_reachable(&three[..1], at(0));
    assert_eq!(changes(&mut selection), [Change::Use(MemberId(1))]);
    selection.handle_reachable(&three, at(1));
    assert_eq!(changes(&mut selection), [Change::Use(MemberId(2))]);
    assert_eq!(selection.reason(MemberId(1)), Some(Reason::Trial));
    assert_eq!(selection.reason(MemberId(3)), Some(Reason::Full));
    selection.handle_reachable(&three[1..], at(2));
    assert_eq!(
        changes(&mut selection),
        [Change::Release(MemberId(1)), Change::Use(MemberId(3))]
    );
    selection.handle_reachable(&[], at(3));
    assert_eq!(in_use(&selection), [0; 0]);
    assert_eq!(selection.poll_timeout(), None);
}

#[test]
fn one_that_claims_much_and_delivers_little_gives_its_position_to_another() {
    let mut selection = Selection::new(limits(2));
    let boaster = offered(1, 1_000_000, 0);
    let other = offered(3, 2_000, 0);
    selection.handle_reachable(&[boaster, measured(2, 4_000)], at(0));
    assert_eq!(in_use(&selection), [1, 2]);
    // Its claim counts as the highest measured rate, not as what it says.
    assert_eq!(selection.promise(), Rate::from_bps(8_000_000));
    let found = with_rate(boaster, 100, 0.0);
    let all = [found, measured(2, 4_000), other];
    selection.handle_reachable(&all, at(1));
    assert_eq!(in_use(&selection), [1, 2], "a change is not made at once");
    assert_eq!(selection.reason(MemberId(1)), Some(Reason::Settled));
    selection.handle_reachable(&all, at(40));
    assert_eq!(in_use(&selection), [2, 3]);
    assert_eq!(selection.reason(MemberId(1)), Some(Reason::Full));
    // A higher claim does not bring it back.
    let louder = Reachable {
        offer: Offer {
            rate: UNCAPPED,
            cost: 0,
        },
        ..found
    };
    let tried = with_rate(other, 1_500, 0.0);
    selection.handle_reachable(&[louder, measured(2, 4_000), tried], at(100));
    assert_eq!(in_use(&selection), [2, 3]);
}

#[test]
fn small_differences_and_recent_changes_change_nothing() {
    let mut selection = Selection::new(limits(1));
    let both = |second| [measured(1, 1_000), measured(2, second)];
    selection.handle_reachable(&both(900), at(0));
    assert_eq!(in_use(&selection), [1]);
    selection.handle_reachable(&both(1_090), at(100));
    assert_eq!(in_use(&selection), [1]);
    selection.handle_reachable(&both(1_200), at(200));
    assert_eq!(in_use(&selection), [2]);
    selection.handle_reachable(&both(100), at(210));
    assert_eq!(in_use(&selection), [2]);
    selection.handle_reachable(&both(100), at(231));
    assert_eq!(in_use(&selection), [1]);
}

#[test]
fn loss_counts_against_an_uplink() {
    let lossy = with_rate(offered(1, 0, 0), 2_000, 0.3);
    let mut selection = Selection::new(limits(1));
    selection.handle_reachable(&[lossy, measured(2, 1_000)], at(0));
    assert_eq!(in_use(&selection), [2]);
}

#[test]
fn costs_bound_the_group_and_decide_between_equal_ones() {
    let costly = |member, kbps| with_rate(offered(member, 0, 5), kbps, 0.0);
    let reason = |limits, all: &[Reachable]| {
        let mut selection = Selection::new(limits);
        selection.handle_reachable(all, at(0));
        (in_use(&selection), selection.reason(MemberId(2)))
    };
    let little = [measured(1, 4_000), costly(2, 200)];
    let much = [measured(1, 4_000), costly(2, 2_000)];
    assert_eq!(
        reason(limits(4), &little),
        (vec![1], Some(Reason::CheaperSuffice))
    );
    assert_eq!(reason(limits(4), &much), (vec![1, 2], Some(Reason::Best)));
    let below = |cost| Limits {
        cost_below: Some(cost),
        ..limits(4)
    };
    assert_eq!(reason(below(5), &much), (vec![1], Some(Reason::Cost)));
    assert_eq!(reason(below(6), &much), (vec![1, 2], Some(Reason::Best)));
    // Other limits and costs take effect at once.
    let mut selection = Selection::new(limits(4));
    selection.handle_reachable(&much, at(0));
    selection.handle_limits(below(3));
    selection.handle_reachable(&much, at(0));
    assert_eq!(in_use(&selection), [1]);
    selection.handle_reachable(&[measured(1, 4_000), measured(2, 2_000)], at(0));
    assert_eq!(in_use(&selection), [1, 2]);
}

#[derive(Clone, Debug)]
enum Op {
    Reachable(u64, u64, u8),
    Measured(u64, u64, f64, bool),
    Gone(u64),
    Limit(usize, u8),
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0u64..20, 0u64..10_000, 0u8..4).prop_map(|(member, kbps, cost)| Op::Reachable(member, kbps, cost)),
        3 => (0u64..20, 0u64..10_000, 0.0f64..1.0, any::<bool>()).prop_map(|(member, kbps, loss, is_filled)| Op::Measured(member, kbps, loss, is_filled)),
        1 => (0u64..20).prop_map(Op::Gone),
        1 => (0usize..20, 0u8..5).prop_map(|(uplinks, below)| Op::Limit(uplinks, below)),
        3 => (0u64..60).prop_map(Op::Wait),
    ]
}

proptest! {
    #[test]
    fn the_group_is_reachable_within_its_limits_and_equals_the_changes(ops in prop::collection::vec(op(), 1..80)) {
        let mut selection = Selection::new(limits(3));
        let mut reachable: BTreeMap<u64, Reachable> = BTreeMap::new();
        let mut used: BTreeSet<MemberId> = BTreeSet::new();
        let mut now = at(0);
        for op in ops {
            match op {
                Op::Reachable(member, kbps, cost) => {
                    let offer = offered(member, kbps, cost).offer;
                    reachable.entry(member).or_insert(offered(member, kbps, cost)).offer = offer;
                }
                Op::Measured(member, kbps, loss, is_filled) => {
                    if let Some(one) = reachable.get_mut(&member) {
                        let rate = Rate::from_bps(kbps * 1_000);
                        one.measured = Some(Measured { rate, is_filled, loss, delay: Duration::ZERO });
                    }
                }
                Op::Gone(member) => drop(reachable.remove(&member)),
                Op::Limit(uplinks, below) => selection.handle_limits(Limits { uplinks, cost_below: Some(below).filter(|below| *below > 0) }),
                Op::Wait(seconds) => now += Duration::from_secs(seconds),
            }
            let all: Vec<_> = reachable.values().copied().collect();
            selection.handle_reachable(&all, now);
            while let Some(change) = selection.poll_change() {
                match change {
                    Change::Use(member) => prop_assert!(used.insert(member)),
                    Change::Release(member) => prop_assert!(used.remove(&member)),
                }
            }
            prop_assert_eq!(&used, &selection.group);
            let Limits { uplinks, cost_below } = selection.limits();
            prop_assert!(used.len() <= uplinks.clamp(1, MAX_UPLINKS));
            for member in &used {
                let one = reachable.get(&member.0);
                prop_assert!(one.is_some_and(|one| cost_below.is_none_or(|below| one.offer.cost < below)));
            }
            for one in &all {
                let reason = selection.reason(one.member);
                prop_assert_eq!(reason.map(Reason::is_in_use), Some(used.contains(&one.member)));
            }
            prop_assert!(selection.poll_timeout().is_none_or(|due| due > now), "spins");
        }
    }

    /// Compares with all groups of at most three of six. Of 38,923 random cases with extreme rates
    /// and losses, 23 were below 0.9 of the best group, and the worst was 0.46.
    #[test]
    fn the_greedy_group_is_within_a_factor_of_the_best_one(all in prop::collection::vec((50u64..10_000, 0.0f64..0.3, 1u64..300), 6)) {
        let all: Vec<_> = (0..).zip(all).map(|(member, (kbps, loss, delay))| {
            let mut one = with_rate(offered(member, 0, 0), kbps, loss);
            one.measured.as_mut().expect("set").delay = Duration::from_millis(delay);
            one
        }).collect();
        let candidates = Candidates::new(all.iter(), limits(3));
        let groups: Vec<Vec<usize>> = (1u32..1 << 6)
            .filter(|mask| mask.count_ones() <= 3)
            .map(|mask| (0..6).filter(|at| mask >> at & 1 == 1).collect())
            .collect();
        let mut estimates: Vec<_> = groups.iter().map(|group| candidates.estimates(group)).collect();
        estimates.push(candidates.estimates(&candidates.extend(&[], 0)));
        let bounds = group_bounds(&estimates, PACKET_BITS);
        let best = bounds.iter().copied().fold(0.0, f64::max);
        prop_assert!(bounds[groups.len()] >= 0.4 * best, "{} of {best}", bounds[groups.len()]);
    }
}
