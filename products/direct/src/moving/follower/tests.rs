use hawser_config::identity::random;
use hawser_steer::migration::proof::Challenger;
use hawser_wire::opening::Challenge;

use super::*;

fn tracked(port: u16) -> Tracked {
    let route = Route {
        near: "203.0.113.2:80".parse().unwrap(),
        far: SocketAddr::from(([192, 0, 2, 1], port)),
    };
    Tracked {
        protocol: protocol::TCP,
        inside: route,
        first: route,
        zone: Some(2),
        network: 2,
        reason: 7,
    }
}

fn expect(port: u16, numbers: Option<(u32, u32)>) -> Expect {
    Expect {
        flow: 1,
        nonce: 2,
        protocol: protocol::TCP,
        near: SocketAddr::from(([10, 0, 0, 2], port)),
        far: "203.0.113.2:80".parse().unwrap(),
        numbers,
    }
}

#[test]
fn a_flow_is_known_by_how_far_it_is_whatever_its_port_has_become() {
    let far = |tracked: &Tracked| match tracked.first.far.port() {
        5_001 => Some((100, 7_000)),
        _ => Some((900_000_000, 7)),
    };
    let both = vec![tracked(4_000), tracked(5_001)];
    let chosen = choose(both.clone(), &expect(4_000, Some((7_100, 90))), far);
    assert_eq!(chosen, Some(tracked(5_001)));
    assert_eq!(
        choose(both.clone(), &expect(4_000, Some((1 << 30, 1 << 31))), far),
        None
    );
}

#[test]
fn nobody_is_believed_without_numbers_and_nothing_where_two_could_be_meant() {
    let both = vec![tracked(4_000), tracked(5_001)];
    let known = |_: &Tracked| Some((100, 7_000));
    assert_eq!(choose(both.clone(), &expect(4_000, Some((1, 1))), |_| None), None);
    assert_eq!(choose(vec![tracked(4_000)], &expect(4_000, None), known), None);
    assert_eq!(choose(both, &expect(6_000, None), |_| None), None);
    let same = |_: &Tracked| Some((100, 100));
    let twins = vec![tracked(1), tracked(2)];
    assert_eq!(choose(twins, &expect(3, Some((100, 100))), same), None);
}

fn around<'a>(numbers: &'a Numbers, now: u64) -> Around<'a> {
    Around {
        numbers,
        device: &|_| "eth0".to_owned(),
        now: Instant::from_nanos(now),
    }
}

const GUEST: KeyHash = KeyHash([1; 32]);

/// Creates a guest at 192.0.2.1, whose own flow has port 4000; a flow of another host has port
/// 5001.
fn followers(numbers: &Numbers) -> Followers {
    let mut followers = Followers::default();
    let up = GuestEvent::Up {
        key: GUEST,
        name: "laptop".to_owned(),
        seen: "192.0.2.1:7".parse().unwrap(),
        outbox: Outbox::new(std::sync::Arc::default()).0,
    };
    followers.on_news(
        GuestNews { id: 1, what: up },
        &around(numbers, 0),
        &mut Out::default(),
    );
    followers
}

fn claim(followers: &mut Followers, flow: u32, numbers: &Numbers, now: u64) -> Vec<Challenge> {
    let possible: Vec<_> = [4_000, 5_001]
        .map(|port| Tracked {
            protocol: protocol::UDP,
            ..tracked(port)
        })
        .into();
    let routes: Vec<_> = possible.iter().map(|tracked| tracked.first).collect();
    let far = routes[0].near;
    let at = Instant::from_nanos(now);
    let challenger = Challenger::new(&routes, || u64::from_be_bytes(random()), at).unwrap();
    let believed = routes[0];
    let claim = Claim {
        challenger,
        possible,
        believed,
    };
    followers.claims.insert((GUEST, flow), claim);
    let mut out = Out::default();
    let near = "10.0.0.2:4000".parse().unwrap();
    followers
        .on_claim((GUEST, flow), near, far, &around(numbers, now), &mut out)
        .unwrap();
    out.packets
        .iter()
        .map(|(_, _, packet)| Challenge::parse(packet).unwrap())
        .collect()
}

#[test]
fn a_datagram_flow_is_its_movers_once_its_route_has_said_so() {
    let numbers = Numbers::default();
    let mut followers = followers(&numbers);
    let sent = claim(&mut followers, 1, &numbers, 0);
    assert_eq!(sent.len(), 2, "over each route that could be meant");
    // The guest sees the packets to its own port.
    let own = sent.iter().find(|sent| sent.destination.port() == 5_001).unwrap();
    let now = Instant::from_nanos(1);
    assert_eq!(followers.on_proof((GUEST, 1), own.secret, now), Ok(()));
    assert_eq!(followers.flows[&(GUEST, 1)].tracked.first.far.port(), 5_001);
    assert_eq!(
        followers.on_proof((GUEST, 1), 0, now),
        Ok(()),
        "it is proven already"
    );
    // Only an opening of this flow is awaited now.
    let expect = |flow| Expect {
        protocol: protocol::UDP,
        flow,
        nonce: flow,
        ..expect(4_000, None)
    };
    assert_eq!(followers.on_expect(GUEST, &expect(1), &numbers, now), Ok(()));
    assert_eq!(
        followers.on_expect(GUEST, &expect(2), &numbers, now),
        Err(Unexpected::UnknownFlow)
    );
}

#[test]
fn a_guess_gets_nobody_a_flow_and_many_are_not_listened_to() {
    let numbers = Numbers::default();
    let mut followers = followers(&numbers);
    let now = Instant::from_nanos(1);
    followers.is_patient(GUEST).unwrap();
    for flow in 0..100 {
        claim(&mut followers, flow, &numbers, 0);
        let guessed = followers.on_proof((GUEST, flow), 7, now);
        assert_eq!(guessed, Err(Unexpected::UnknownFlow));
    }
    assert!(followers.flows.is_empty());
    let far = "203.0.113.2:80".parse().unwrap();
    let again = followers.claim_of(GUEST, "10.0.0.2:1".parse().unwrap(), far, now);
    assert_eq!(again.err(), Some(Unexpected::Busy));
    let tcp = expect(4_000, Some((1, 1)));
    let found = followers.find(GUEST, &tcp, &numbers, now);
    assert_eq!(found, Err(Unexpected::Busy));
}

#[test]
fn a_guest_that_has_just_lost_an_address_still_speaks_from_it_and_nobody_else_does() {
    let (mut followers, mut numbers) = (Followers::default(), Numbers::default());
    numbers.watch(BTreeSet::new());
    let (lost, kept): (SocketAddr, SocketAddr) =
        ("192.0.2.1:7".parse().unwrap(), "198.51.100.1:7".parse().unwrap());
    let (guest, stranger) = (KeyHash([1; 32]), KeyHash([2; 32]));
    let mut tell = |id, what, at| {
        let news = GuestNews { id, what };
        followers.on_news(news, &around(&numbers, at), &mut Out::default());
    };
    let up = |key, seen| GuestEvent::Up {
        key,
        name: String::new(),
        seen,
        outbox: Outbox::new(std::sync::Arc::default()).0,
    };
    tell(1, up(guest, lost), 0);
    tell(2, up(guest, kept), 0);
    tell(3, up(stranger, kept), 0);
    tell(1, GuestEvent::Down, 1_000);
    let until = Instant::from_nanos(1_000) + ABSENCE;
    let both = BTreeSet::from([lost.ip(), kept.ip()]);
    let soon = until - Duration::from_nanos(1);
    assert_eq!(followers.speaks_from(guest, soon), both);
    assert_eq!(followers.speaks_from(guest, until), BTreeSet::from([kept.ip()]));
    assert_eq!(followers.speaks_from(stranger, soon), BTreeSet::from([kept.ip()]));
}

#[test]
fn an_order_for_a_route_that_was_never_opened_changes_nothing() {
    let mut flow = Flow {
        machine: Follower::new(tracked(4_000).first),
        tracked: tracked(4_000),
        believed: tracked(3_999).first,
        guest: String::new(),
        opened: VecDeque::new(),
        confirm: None,
        moved: 0,
    };
    let victim = Route {
        near: "203.0.113.2:4443".parse().unwrap(),
        far: "198.51.100.9:53".parse().unwrap(),
    };
    let order = Order {
        generation: 1,
        is_switch: true,
        route: victim,
        keep: flow.believed,
    };
    let now = Instant::from_nanos(0);
    assert_eq!(flow.on_order(&order, now, &mut Out::default()), None);
    assert_eq!(flow.machine.route(), flow.tracked.first);
    flow.opened.push_back(victim);
    assert!(flow.on_order(&order, now, &mut Out::default()).is_some());
    assert_eq!((flow.machine.route(), flow.moved), (victim, 1));
}
