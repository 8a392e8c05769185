use super::*;

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn heard(number: u8, ssid: &str, frequency: u32, signal: i32) -> Heard {
    Heard {
        bssid: [2, 0, 0, 0, 0, number],
        ssid: ssid.as_bytes().to_vec(),
        frequency,
        signal,
        security: Security::default(),
    }
}

fn room(stations: usize, channels: usize, held: &[u32]) -> Room {
    Room {
        stations,
        channels,
        held: held.to_vec(),
    }
}

fn names(chosen: &[Heard]) -> Vec<String> {
    let mut names: Vec<_> = chosen
        .iter()
        .map(|one| String::from_utf8_lossy(&one.ssid).into_owned())
        .collect();
    names.sort();
    names
}

fn hear(stations: &mut Stations, all: &[Heard], now: Instant) {
    for one in all {
        stations.handle_heard(one.clone(), now);
    }
}

#[test]
fn one_channel_with_two_networks_is_better_than_another_with_one() {
    let mut stations = Stations::new();
    let all = [
        heard(1, "a", 2412, -50),
        heard(2, "b", 2437, -52),
        heard(3, "c", 2437, -55),
    ];
    hear(&mut stations, &all, at(0));
    assert_eq!(
        names(&stations.choose(&room(4, 1, &[]), &Rule::default(), at(0))),
        ["b", "c"]
    );
    assert_eq!(
        names(&stations.choose(&room(4, 2, &[]), &Rule::default(), at(0))),
        ["a", "b", "c"]
    );
}

#[test]
fn a_card_with_one_station_takes_the_strongest_and_stays_until_it_fades() {
    let mut stations = Stations::new();
    let one = room(1, 1, &[]);
    hear(
        &mut stations,
        &[heard(1, "a", 2412, -60), heard(2, "b", 5180, -60)],
        at(0),
    );
    let first = names(&stations.choose(&one, &Rule::default(), at(0)));
    assert_eq!(first.len(), 1);
    // Its signal gets weaker, but it still transfers as much as the network behind it.
    let (own, other) = if first == ["a"] { (1, 2) } else { (2, 1) };
    let of = |number, signal| {
        if number == 1 {
            heard(1, "a", 2412, signal)
        } else {
            heard(2, "b", 5180, signal)
        }
    };
    hear(&mut stations, &[of(own, -68), of(other, -55)], at(10));
    assert_eq!(names(&stations.choose(&one, &Rule::default(), at(10))), first);
    // Now the air transfers less than that network.
    hear(&mut stations, &[of(own, -80), of(other, -55)], at(20));
    assert_ne!(names(&stations.choose(&one, &Rule::default(), at(20))), first);
}

#[test]
fn on_a_channel_that_others_hold_only_that_channel_is_used() {
    let mut stations = Stations::new();
    let all = [
        heard(1, "a", 2412, -40),
        heard(2, "b", 2437, -70),
        heard(3, "home", 2437, -40),
    ];
    hear(&mut stations, &all, at(0));
    let taken = Rule {
        networks: vec![b"home".to_vec()],
        ..Rule::default()
    };
    assert_eq!(
        names(&stations.choose(&room(3, 1, &[2437]), &taken, at(0))),
        ["b"]
    );
    assert_eq!(
        names(&stations.choose(&room(3, 2, &[2437]), &taken, at(0))),
        ["a", "b"]
    );
    assert!(stations.choose(&room(0, 2, &[2437]), &taken, at(0)).is_empty());
}

#[test]
fn of_two_access_points_of_one_network_the_stronger_by_eight_decibels() {
    let mut stations = Stations::new();
    let one = room(4, 1, &[]);
    hear(
        &mut stations,
        &[heard(1, "a", 2412, -60), heard(2, "a", 2412, -66)],
        at(0),
    );
    let chosen = |stations: &mut Stations, now| {
        stations
            .choose(&one, &Rule::default(), now)
            .iter()
            .map(|one| one.bssid[5])
            .collect::<Vec<_>>()
    };
    assert_eq!(chosen(&mut stations, at(0)), [1]);
    hear(
        &mut stations,
        &[heard(1, "a", 2412, -66), heard(2, "a", 2412, -60)],
        at(1),
    );
    assert_eq!(chosen(&mut stations, at(1)), [1]);
    hear(&mut stations, &[heard(1, "a", 2412, -72)], at(2));
    assert_eq!(chosen(&mut stations, at(2)), [2]);
}

#[test]
fn who_refuses_is_left_alone_longer_each_time() {
    let mut stations = Stations::new();
    let one = room(1, 1, &[]);
    let mut now = at(0);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        hear(&mut stations, &[heard(1, "a", 2412, -60)], now);
        assert_eq!(stations.choose(&one, &Rule::default(), now).len(), 1);
        stations.handle_failed([2, 0, 0, 0, 0, 1], now);
        let since = now;
        while {
            hear(&mut stations, &[heard(1, "a", 2412, -60)], now);
            stations.choose(&one, &Rule::default(), now).is_empty()
        } {
            now += Duration::from_secs(1);
        }
        pauses.push(now.since(since).as_secs());
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 640]);
}

#[test]
fn nothing_behind_it_makes_room_for_any_other_and_is_better_than_none() {
    let mut stations = Stations::new();
    let one = room(1, 1, &[]);
    hear(
        &mut stations,
        &[heard(1, "a", 2412, -40), heard(2, "b", 2437, -79)],
        at(0),
    );
    assert_eq!(names(&stations.choose(&one, &Rule::default(), at(0))), ["a"]);
    stations.handle_behind([2, 0, 0, 0, 0, 1], false, at(1));
    assert_eq!(names(&stations.choose(&one, &Rule::default(), at(1))), ["b"]);
    stations.handle_failed([2, 0, 0, 0, 0, 2], at(2));
    assert_eq!(names(&stations.choose(&one, &Rule::default(), at(2))), ["a"]);
}

#[test]
fn what_is_not_heard_any_more_is_forgotten() {
    let mut stations = Stations::new();
    hear(&mut stations, &[heard(1, "a", 2412, -60)], at(0));
    assert!(
        stations
            .choose(&room(1, 1, &[]), &Rule::default(), at(200))
            .is_empty()
    );
}

fn numbers(chosen: &[Heard]) -> Vec<u8> {
    let mut numbers: Vec<_> = chosen.iter().map(|one| one.bssid[5]).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn all_access_points_of_one_network_where_the_rule_allows_them() {
    let mut stations = Stations::new();
    let office = [
        heard(1, "office", 2437, -50),
        heard(2, "office", 2437, -56),
        heard(3, "office", 2437, -70),
        heard(4, "office", 5180, -52),
    ];
    hear(&mut stations, &office, at(0));
    let all = Rule {
        all: true,
        ..Rule::default()
    };
    let mut chosen = |room: &Room, rule: &Rule| numbers(&stations.choose(room, rule, at(0)));
    assert_eq!(chosen(&room(4, 1, &[]), &Rule::default()), [1]);
    assert_eq!(chosen(&room(4, 1, &[]), &all), [1, 2, 3]);
    assert_eq!(chosen(&room(4, 2, &[]), &all), [1, 2, 3, 4]);
    // An access point that others have joined is not joined again, and its channel is in use.
    let beside = Rule {
        networks: vec![b"office".to_vec()],
        access_points: vec![[2, 0, 0, 0, 0, 1]],
        all: true,
    };
    assert_eq!(chosen(&room(4, 1, &[2437]), &beside), [2, 3]);
    let one = Rule { all: false, ..beside };
    assert!(chosen(&room(4, 1, &[2437]), &one).is_empty());
}

#[test]
fn another_network_comes_before_a_further_access_point_and_one_station_stays() {
    let all = Rule {
        all: true,
        ..Rule::default()
    };
    let mut stations = Stations::new();
    let near = [
        heard(1, "office", 2437, -50),
        heard(2, "office", 2437, -51),
        heard(3, "cafe", 2437, -66),
    ];
    hear(&mut stations, &near, at(0));
    assert_eq!(numbers(&stations.choose(&room(2, 1, &[]), &all, at(0))), [1, 3]);
    // With one station, the signals of one network may vary.
    let mut stations = Stations::new();
    hear(&mut stations, &near[..2], at(0));
    assert_eq!(numbers(&stations.choose(&room(1, 1, &[]), &all, at(0))), [1]);
    hear(&mut stations, &[heard(1, "office", 2437, -57)], at(1));
    assert_eq!(numbers(&stations.choose(&room(1, 1, &[]), &all, at(1))), [1]);
    hear(&mut stations, &[heard(1, "office", 2437, -60)], at(2));
    assert_eq!(numbers(&stations.choose(&room(1, 1, &[]), &all, at(2))), [2]);
}

/// A corridor of six access points of one network on three channels; the card serves two channels.
#[test]
fn along_a_corridor_some_access_point_is_always_kept() {
    let all = Rule {
        all: true,
        ..Rule::default()
    };
    let (mut stations, card) = (Stations::new(), room(4, 2, &[]));
    let mut before = Vec::new();
    for second in 0..=105_u32 {
        let now = at(second.into());
        for number in 0..6_u8 {
            let metres = (f64::from(second) - f64::from(number) * 20.0).abs().max(1.0);
            // Path loss with an exponent of 3.5, as within buildings.
            let signal = (-40.0 - 35.0 * metres.log10()) as i32;
            let frequency = [2412, 2437, 2462][usize::from(number % 3)];
            stations.handle_heard(heard(number, "office", frequency, signal), now);
        }
        let chosen = numbers(&stations.choose(&card, &all, now));
        assert!(!chosen.is_empty());
        let is_kept = before.is_empty() || before.iter().any(|one| chosen.contains(one));
        assert!(is_kept, "{second} s: all of {before:?} for {chosen:?}");
        before = chosen;
    }
    assert!(before.contains(&5), "{before:?}");
}

proptest::proptest! {
    /// For any input, a plan fits on the card, has at most one station for each network unless all
    /// are wanted, and does not change without a change of the input.
    #[test]
    fn a_plan_fits_the_card(
        all in proptest::collection::vec((0_u8..40, 0_u8..12, 0_u32..6, -95_i32..-30), 0..60),
        stations in 0_usize..5,
        channels in 0_usize..4,
        held in 0_usize..2,
        all_of_one: bool,
    ) {
        let rule = Rule { all: all_of_one, ..Rule::default() };
        let held: Vec<u32> = [2412][..held].to_vec();
        let card = room(stations, channels, &held);
        let mut planner = Stations::new();
        for (number, ssid, channel, signal) in all {
            planner.handle_heard(heard(number, &format!("n{ssid}"), 2412 + 5 * channel, signal), at(0));
        }
        let first = planner.choose(&card, &rule, at(1));
        let second = planner.choose(&card, &rule, at(2));
        proptest::prop_assert_eq!(numbers(&first), numbers(&second));
        proptest::prop_assert!(first.len() <= stations);
        let mut ssids = names(&first);
        ssids.dedup();
        proptest::prop_assert!(all_of_one || ssids.len() == first.len());
        let mut frequencies: Vec<_> = first.iter().map(|one| one.frequency).chain(held.clone()).collect();
        frequencies.sort_unstable();
        frequencies.dedup();
        proptest::prop_assert!(frequencies.len() <= channels.max(held.len()));
    }
}
