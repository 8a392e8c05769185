use std::sync::Mutex;

use hawser_config::Pool;
use hawser_control::enrolment::ClientStore;

use super::*;

const ALICE: KeyHash = KeyHash([1; 32]);
const BOB: KeyHash = KeyHash([2; 32]);

struct World {
    _dir: tempfile::TempDir,
    path: std::path::PathBuf,
    tell: mpsc::Sender<GuestNews>,
    policy: watch::Sender<Policy>,
    /// Bodies of all installations.
    bodies: Arc<Mutex<Vec<String>>>,
}

fn pool() -> Pool {
    Pool {
        v4: ([100, 96, 0, 0].into(), 16),
        v6: None,
    }
}

fn policy(more: &str) -> Policy {
    let text = format!("endpoints = [\"h:1\"]\npool = \"100.96.0.0/16\"\n{more}");
    let config: HubConfig = hawser_config::parse(std::path::Path::new("hub.toml"), &text).unwrap();
    Policy::new(config.isolation(Vec::new(), Vec::new()), &config)
}

/// Creates a world in which a run of nft takes 30 ms.
fn world(more: &str) -> (World, Waypoint) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("clients");
    let mut store = ClientStore::open(&path, pool()).unwrap();
    for (name, key) in [("alice", ALICE), ("bob", BOB)] {
        let now = std::time::SystemTime::now();
        let token = store.invite(name, Duration::from_secs(60), now).unwrap();
        store.enrol(&token.0, key, now).unwrap();
    }
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let set: SetRules = {
        let bodies = Arc::clone(&bodies);
        Arc::new(move |body| {
            std::thread::sleep(Duration::from_millis(30));
            bodies.lock().unwrap().push(body.to_owned());
            Ok(())
        })
    };
    let machine = Machine {
        own_address: |to| (to != IpAddr::from([203, 0, 113, 9])).then_some([198, 51, 100, 1].into()),
        open_tap: || Ok(None),
    };
    let (tell, news) = hawser_control::peer::guest_news();
    let (policy, given) = watch::channel(policy(more));
    let waypoint = Waypoint::on(machine, set, news, SharedStore::new(store), given);
    let world = World {
        _dir: dir,
        path,
        tell,
        policy,
        bodies,
    };
    (world, waypoint)
}

fn to(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn nobody_may_unless_named_and_nowhere_but_outside() {
    let server = to("203.0.113.2:443");
    let (_world, mut waypoint) = world("");
    let mut ask = |nonce, to| waypoint.relay(ALICE, "alice", nonce, protocol::TCP, to);
    assert_eq!(ask(1, server), Err(Unexpected::NotHere), "off by default");
    let (_world, mut waypoint) = world("waypoint = [\"alice\"]\n[reach]\nnetworks = [\"10.7.0.0/16\"]\n");
    let mut ask = |key, name, nonce, to| waypoint.relay(key, name, nonce, protocol::TCP, to);
    assert_eq!(ask(BOB, "bob", 1, server), Err(Unexpected::NotHere), "not named");
    assert_eq!(ask(ALICE, "alice", 1, server), Ok(61_000));
    for (wrong, why) in [
        ("203.0.113.9:22", "the hub itself"),
        ("100.96.0.3:22", "another client"),
        ("10.8.0.1:22", "a private network"),
        ("169.254.169.254:80", "metadata"),
        ("127.0.0.1:22", "loopback"),
        ("[fe80::1]:22", "the link"),
        ("203.0.113.2:0", "no port"),
    ] {
        assert_eq!(
            ask(ALICE, "alice", 2, to(wrong)),
            Err(Unexpected::NotHere),
            "{why}"
        );
    }
    assert_eq!(ask(ALICE, "alice", 2, to("10.7.0.1:22")), Ok(61_002));
}

#[test]
fn every_way_has_ports_of_its_own_and_is_asked_for_twice_in_vain() {
    let (_world, mut waypoint) = world("waypoint = [\"*\"]\n");
    let server = to("203.0.113.2:4443");
    assert_eq!(
        waypoint.relay(ALICE, "alice", 1, protocol::TCP, server),
        Ok(61_000)
    );
    assert_eq!(
        waypoint.relay(ALICE, "alice", 1, protocol::TCP, server),
        Ok(61_000)
    );
    assert_eq!(
        waypoint.relay(BOB, "bob", 1, protocol::TCP, server),
        Err(Unexpected::Busy)
    );
    assert_eq!(
        waypoint.relay(BOB, "bob", 2, protocol::ICMP, server),
        Err(Unexpected::NotHere)
    );
    assert_eq!(waypoint.rewriting().ports, [(6, 61_000), (6, 61_001)]);
    let relay = waypoint.relays.get_mut(&1).unwrap();
    let late = relay.quiet_since + WAIT;
    assert!(relay.is_over(late), "nothing has come");
    relay.near = Some((server, server));
    assert!(!relay.is_over(late) && relay.is_over(late + ABSENCE));
    for nonce in 2..=MAX_RELAYS as u32 {
        assert!(
            waypoint
                .relay(ALICE, "alice", nonce, protocol::UDP, server)
                .is_ok()
        );
    }
    assert_eq!(
        waypoint.relay(ALICE, "alice", 9_999, protocol::UDP, server),
        Err(Unexpected::Busy)
    );
    assert!(waypoint.relay(BOB, "bob", 9_999, protocol::UDP, server).is_ok());
}

#[test]
fn a_way_ends_with_the_leave_the_enrolment_or_the_network() {
    let server = to("203.0.113.2:443");
    let given = "waypoint = [\"*\"]\n[reach]\nnetworks = [\"10.7.0.0/16\"]\n";
    let (world, mut waypoint) = world(given);
    for (nonce, key, name, to) in [
        (1, ALICE, "alice", server),
        (2, BOB, "bob", server),
        (3, BOB, "bob", to("10.7.0.1:22")),
    ] {
        assert!(waypoint.relay(key, name, nonce, protocol::TCP, to).is_ok());
    }
    let mut left = || {
        waypoint.sweep(Instant::now());
        waypoint.relays.keys().copied().collect::<Vec<_>>()
    };
    assert_eq!(left(), [1, 2, 3]);
    world.policy.send_replace(policy("waypoint = [\"*\"]\n"));
    assert_eq!(left(), [1, 2]);
    world.policy.send_replace(policy("waypoint = [\"alice\"]\n"));
    assert_eq!(left(), [1]);
    ClientStore::open(&world.path, pool())
        .unwrap()
        .revoke("alice")
        .unwrap();
    drop(waypoint.store.refreshed().unwrap());
    waypoint.sweep(Instant::now());
    assert!(waypoint.relays.is_empty() && waypoint.rewriting().is_empty());
}

#[tokio::test]
async fn a_thousand_ways_take_a_few_runs_and_are_told_once_they_are_there() {
    let (world, waypoint) = world("waypoint = [\"alice\"]\n");
    let done = waypoint.done();
    hawser_linux::tasks::spawn(waypoint.run());
    let (outbox, mut answers) = Outbox::new(Arc::default());
    let up = GuestEvent::Up {
        key: ALICE,
        name: "alice".to_owned(),
        seen: to("192.0.2.1:5"),
        outbox,
    };
    world.tell.send(GuestNews { id: 1, what: up }).await.unwrap();
    for nonce in 0..1_000 {
        let message = PeerMessage::Relay {
            nonce,
            protocol: protocol::TCP,
            to: to("203.0.113.2:443"),
        };
        let what = GuestEvent::Message(message);
        world.tell.send(GuestNews { id: 1, what }).await.unwrap();
    }
    for nonce in 0..1_000 {
        let answer = answers.recv().await.unwrap();
        let PeerMessage::Relayed { nonce: of, port } = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(of, nonce);
        let bodies = world.bodies.lock().unwrap();
        assert!(
            bodies.last().unwrap().contains(&format!("6 . {port}")),
            "too early"
        );
    }
    let runs = world.bodies.lock().unwrap().len();
    assert!(runs <= 5, "{runs} runs of nft");
    assert_eq!(done.status()["relays"], 1_000);
}

#[tokio::test]
async fn rules_that_are_refused_once_are_set_again() {
    let (world, mut waypoint) = world("waypoint = [\"alice\"]\n");
    let server = to("203.0.113.2:443");
    let refusals = Arc::new(AtomicU64::new(2));
    waypoint.rules = Rules::new({
        let (refusals, bodies) = (Arc::clone(&refusals), Arc::clone(&world.bodies));
        Arc::new(move |body| {
            let left = refusals.load(Ordering::Relaxed);
            if left > 0 {
                refusals.store(left - 1, Ordering::Relaxed);
                return Err(io::Error::other("busy").into());
            }
            bodies.lock().unwrap().push(body.to_owned());
            Ok(())
        })
    });
    waypoint.relay(ALICE, "alice", 1, protocol::TCP, server).unwrap();
    hawser_linux::tasks::spawn(waypoint.run());
    let deadline = Instant::now() + Duration::from_secs(5);
    while world.bodies.lock().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "nobody tries again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(world.bodies.lock().unwrap()[0].contains("6 . 61000"));
}
