use proptest::prelude::*;

use super::*;

const MEMBER: MemberId = MemberId(7);
const LIFETIME: Duration = Duration::from_secs(9);

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn announce(sequence: u64) -> Beacon {
    let offer = Offer {
        rate: Rate::from_bps(115_200),
        cost: 1,
    };
    Beacon {
        member: MEMBER,
        sequence,
        say: Say::Announce(offer, LIFETIME),
    }
}

fn withdraw(sequence: u64) -> Beacon {
    Beacon {
        say: Say::Withdraw,
        ..announce(sequence)
    }
}

const PATH: PathId = PathId(3);

fn measured(bps: u64, is_filled: bool) -> Measured {
    Measured {
        rate: Rate::from_bps(bps),
        is_filled,
        loss: 0.01,
        delay: Duration::from_millis(40),
    }
}

fn events(registry: &mut Registry) -> Vec<Event> {
    std::iter::from_fn(|| registry.poll_event()).collect()
}

/// Returns a registry in which the channel has this state at 1 s, after message number 1.
fn standing(state: Option<State>) -> Registry {
    let mut registry = Registry::new();
    let path = |registry: &mut Registry, state| registry.handle_path(MEMBER, PATH, state, at(1_000));
    if state.is_some() {
        registry.handle_beacon(&announce(1), at(1_000));
    }
    match state {
        None | Some(State::Offered) => {}
        Some(State::Active) => path(&mut registry, path::State::Active),
        Some(State::Suspect) => {
            path(&mut registry, path::State::Active);
            path(&mut registry, path::State::Suspect);
        }
        Some(State::Barred) => {
            path(&mut registry, path::State::Active);
            path(&mut registry, path::State::Dead);
        }
    }
    assert_eq!(registry.state(MEMBER), state);
    events(&mut registry);
    registry
}

#[test]
fn every_input_in_every_state() {
    use State::{Active, Barred, Offered, Suspect};
    type Input = fn(&mut Registry);
    let inputs: [Input; 7] = [
        |registry| registry.handle_beacon(&announce(2), at(2_000)),
        |registry| registry.handle_beacon(&withdraw(2), at(2_000)),
        |registry| registry.handle_path(MEMBER, PATH, path::State::Active, at(2_000)),
        |registry| registry.handle_path(MEMBER, PATH, path::State::Suspect, at(2_000)),
        |registry| registry.handle_path(MEMBER, PATH, path::State::Dead, at(2_000)),
        |registry| registry.handle_beacon(&withdraw(1), at(2_000)),
        |registry| registry.handle_timeout(at(10_000)),
    ];
    let joined = Event::Joined(MEMBER);
    let left = |why| Event::Left(MEMBER, why);
    let gone = |why| (Some(Barred), Some(left(why)));
    let stays = |state| (Some(state), None);
    let table = [
        (
            None,
            [
                (Some(Offered), Some(Event::Offered(MEMBER))),
                (None, None),
                (None, None),
                (None, None),
                (None, None),
                (None, None),
                (None, None),
            ],
        ),
        (
            Some(Offered),
            [
                stays(Offered),
                gone(Left::Withdrawn),
                (Some(Active), Some(joined)),
                stays(Offered),
                stays(Offered),
                stays(Offered),
                gone(Left::Expired),
            ],
        ),
        (
            Some(Active),
            [
                stays(Active),
                gone(Left::Withdrawn),
                stays(Active),
                stays(Suspect),
                gone(Left::Silent),
                stays(Active),
                gone(Left::Expired),
            ],
        ),
        (
            Some(Suspect),
            [
                stays(Suspect),
                gone(Left::Withdrawn),
                stays(Active),
                stays(Suspect),
                gone(Left::Silent),
                stays(Suspect),
                gone(Left::Expired),
            ],
        ),
        (
            Some(Barred),
            [
                stays(Barred),
                stays(Barred),
                stays(Barred),
                stays(Barred),
                stays(Barred),
                stays(Barred),
                stays(Barred),
            ],
        ),
    ];
    for (before, row) in table {
        for (number, (input, (after, event))) in inputs.iter().zip(row).enumerate() {
            let mut registry = standing(before);
            input(&mut registry);
            assert_eq!(registry.state(MEMBER), after, "{before:?}, input {number}");
            assert_eq!(
                events(&mut registry).first().copied(),
                event,
                "{before:?}, input {number}"
            );
        }
    }
}

#[test]
fn a_silent_leaver_waits_longer_each_time_and_is_forgiven() {
    let mut registry = standing(Some(State::Barred));
    let mut sequence = 1;
    let mut announced = |registry: &mut Registry, ms| {
        sequence += 1;
        registry.handle_beacon(&announce(sequence), at(ms));
        registry.state(MEMBER)
    };
    assert_eq!(announced(&mut registry, 2_900), Some(State::Barred));
    assert_eq!(announced(&mut registry, 3_000), Some(State::Offered));
    let leave = |registry: &mut Registry, ms| {
        registry.handle_path(MEMBER, PATH, path::State::Active, at(ms));
        registry.handle_path(MEMBER, PATH, path::State::Dead, at(ms + 100));
    };
    leave(&mut registry, 4_000);
    assert_eq!(announced(&mut registry, 8_000), Some(State::Barred));
    assert_eq!(announced(&mut registry, 8_100), Some(State::Offered));
    registry.handle_path(MEMBER, PATH, path::State::Active, at(8_200));
    for ms in (9_000..200_000).step_by(3_000) {
        announced(&mut registry, ms);
    }
    leave(&mut registry, 200_000);
    assert_eq!(announced(&mut registry, 202_100), Some(State::Offered));
}

#[test]
fn a_withdrawn_channel_comes_back_at_once() {
    let mut registry = standing(Some(State::Active));
    registry.handle_beacon(&withdraw(2), at(2_000));
    registry.handle_beacon(&announce(3), at(2_000));
    assert_eq!(registry.state(MEMBER), Some(State::Offered));
}

#[test]
fn channels_are_what_is_offered_and_measured() {
    let mut registry = standing(Some(State::Active));
    let rate = |registry: &Registry| registry.channels().next().expect("active").rate.as_bps();
    assert_eq!(rate(&registry), 115_200, "nothing is measured");
    registry.handle_measured(MEMBER, measured(100_000, true), at(1_000));
    assert_eq!(rate(&registry), 100_000);
    registry.handle_measured(MEMBER, measured(1_000_000, true), at(2_000));
    assert_eq!(rate(&registry), 115_200);
    registry.handle_path(MEMBER, PATH, path::State::Suspect, at(2_000));
    assert_eq!(registry.channels().count(), 0);
}

#[test]
fn a_member_that_returns_or_rests_does_not_lose_its_record() {
    let mut registry = standing(Some(State::Active));
    let rate = |registry: &Registry| registry.measured(MEMBER).map(|measured| measured.rate.as_bps());
    let lossy = Measured {
        loss: 0.2,
        ..measured(30_000, true)
    };
    registry.handle_measured(MEMBER, lossy, at(2_000));
    registry.handle_beacon(&withdraw(2), at(3_000));
    assert_eq!(registry.reachable().count(), 0);
    registry.handle_beacon(&announce(3), at(4_000));
    registry.handle_path(MEMBER, PATH, path::State::Active, at(4_000));
    let fresh = Measured {
        loss: 0.0,
        delay: Duration::from_millis(7),
        ..measured(10_000, false)
    };
    registry.handle_measured(MEMBER, fresh, at(5_000));
    let known = registry
        .reachable()
        .next()
        .and_then(|one| one.measured)
        .expect("known");
    assert_eq!(
        (known.rate.as_bps(), known.loss, known.delay),
        (30_000, 0.2, fresh.delay)
    );
    // It delivers more now.
    registry.handle_measured(MEMBER, measured(40_000, false), at(6_000));
    assert_eq!(rate(&registry), Some(40_000));
    registry.handle_measured(MEMBER, lossy, at(7_000));
    registry.handle_measured(MEMBER, fresh, at(7_000 + 600_000));
    assert_eq!(rate(&registry), Some(10_000), "too long ago");
}

#[test]
fn a_released_channel_is_offered_still() {
    let mut registry = standing(Some(State::Active));
    registry.handle_measured(MEMBER, measured(30_000, true), at(1_000));
    registry.handle_released(MEMBER);
    assert_eq!(registry.state(MEMBER), Some(State::Offered));
    assert_eq!(
        (registry.channels().count(), registry.reachable().count()),
        (0, 1)
    );
    registry.handle_path(MEMBER, PATH, path::State::Active, at(2_000));
    assert_eq!(events(&mut registry), [Event::Joined(MEMBER)]);
    let mut barred = standing(Some(State::Barred));
    barred.handle_released(MEMBER);
    assert_eq!(barred.state(MEMBER), Some(State::Barred));
}

#[test]
fn announces_three_times_a_lifetime_and_says_goodbye_three_times() {
    let mut announcer = Announcer::new(MEMBER, 0, LIFETIME);
    assert_eq!(announcer.poll_timeout(), None);
    let offer = Offer {
        rate: Rate::from_mbps(1),
        cost: 0,
    };
    announcer.handle_offer(Some(offer), at(0));
    let mut said = Vec::new();
    for ms in (0..9_000).step_by(10) {
        said.extend(announcer.poll_transmit(at(ms)));
    }
    assert_eq!(said.len(), 3);
    announcer.handle_offer(None, at(9_000));
    let mut farewells = 0;
    while let Some(due) = announcer.poll_timeout() {
        let beacon = announcer.poll_transmit(due).expect("due");
        assert!(beacon.say == Say::Withdraw && beacon.sequence > 3);
        farewells += 1;
    }
    assert_eq!(farewells, FAREWELLS);
    announcer.handle_offer(Some(offer), at(10_000));
    assert!(announcer.poll_transmit(at(10_000)).is_some());
}

#[derive(Clone, Debug)]
enum Op {
    Announce(u64, u64),
    Withdraw(u64),
    Repeat(usize),
    Path(u64, u8),
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0u64..80, 0u64..20_000).prop_map(|(member, lifetime)| Op::Announce(member, lifetime)),
        1 => (0u64..4).prop_map(Op::Withdraw),
        1 => (0usize..50).prop_map(Op::Repeat),
        4 => (0u64..4, 0u8..4).prop_map(|(member, state)| Op::Path(member, state)),
        3 => (0u64..30_000).prop_map(Op::Wait),
    ]
}

proptest! {
    #[test]
    fn joins_and_leaves_alternate_and_nobody_overstays(ops in prop::collection::vec(op(), 1..120)) {
        let mut registry = Registry::new();
        let mut now = at(0);
        let mut sent: Vec<Beacon> = Vec::new();
        let mut heard: BTreeMap<MemberId, u64> = BTreeMap::new();
        let mut known: BTreeMap<MemberId, bool> = BTreeMap::new();
        let mut promised: BTreeMap<MemberId, Instant> = BTreeMap::new();
        for op in ops {
            match op {
                Op::Announce(member, lifetime) => {
                    let lifetime = Duration::from_millis(lifetime);
                    let offer = Offer { rate: Rate::from_mbps(1), cost: 0 };
                    let beacon = Beacon { member: MemberId(member), sequence: sent.len() as u64 + 1, say: Say::Announce(offer, lifetime) };
                    sent.push(beacon);
                    heard.insert(beacon.member, beacon.sequence);
                    registry.handle_beacon(&beacon, now);
                    promised.insert(beacon.member, now + lifetime.max(SHORTEST_LIFETIME));
                }
                Op::Withdraw(member) => {
                    let beacon = Beacon { member: MemberId(member), sequence: sent.len() as u64 + 1, say: Say::Withdraw };
                    sent.push(beacon);
                    heard.insert(beacon.member, beacon.sequence);
                    registry.handle_beacon(&beacon, now);
                    prop_assert!(matches!(registry.state(beacon.member), None | Some(State::Barred)));
                }
                Op::Repeat(number) => {
                    let Some(&beacon) = sent.get(number) else { continue };
                    let before = registry.state(beacon.member);
                    registry.handle_beacon(&beacon, now);
                    // For a forgotten member, an old message is treated like a new one.
                    let heard = heard.entry(beacon.member).or_insert(0);
                    if before.is_none() {
                        *heard = beacon.sequence;
                    } else if beacon.sequence < *heard {
                        prop_assert_eq!(registry.state(beacon.member), before, "an old message");
                    }
                    *heard = beacon.sequence.max(*heard);
                    if let Say::Announce(_, lifetime) = beacon.say {
                        promised.insert(beacon.member, promised[&beacon.member].max(now + lifetime.max(SHORTEST_LIFETIME)));
                    }
                }
                Op::Path(member, state) => {
                    let state = [path::State::Validating, path::State::Active, path::State::Suspect, path::State::Dead][usize::from(state)];
                    registry.handle_path(MemberId(member), PATH, state, now);
                }
                Op::Wait(ms) => now += Duration::from_millis(ms),
            }
            registry.handle_timeout(now);
            prop_assert!(registry.poll_timeout().is_none_or(|due| due > now), "spins");
            prop_assert!(registry.entries.len() <= MAX_MEMBERS);
            while let Some(event) = registry.poll_event() {
                match event {
                    Event::Offered(member) => prop_assert_eq!(known.insert(member, false), None, "offered twice"),
                    Event::Joined(member) => prop_assert_eq!(known.insert(member, true), Some(false), "joined unoffered"),
                    Event::Left(member, why) => {
                        let joined = known.remove(&member);
                        prop_assert!(joined.is_some(), "left unoffered");
                        prop_assert!(why != Left::Silent || joined == Some(true));
                    }
                    Event::Changed(member) => prop_assert!(known.contains_key(&member)),
                }
            }
            for (&member, &until) in &promised {
                let here = !matches!(registry.state(member), None | Some(State::Barred));
                prop_assert_eq!(here, known.contains_key(&member));
                prop_assert!(!here || now < until, "overstays");
            }
            prop_assert_eq!(registry.channels().count(), registry.entries.values().filter(|entry| entry.state == State::Active).count());
        }
    }
}
