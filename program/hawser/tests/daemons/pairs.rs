//! A hub with two pairs of threads: each has its own sessions, without an effect for clients.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use hawser_linux::netns::Namespace;
use serde_json::Value;

use super::world::{Daemon, World, good};

/// Clients: namespace and name; the last client has the cables of the world.
const CLIENTS: [(&str, &str); 4] = [("d", "dora"), ("e", "emil"), ("f", "fritz"), ("c", "alice")];
/// Bytes of an exchange in each direction.
const LENGTH: usize = 6 << 20;
const TIMEOUT: Duration = hawser_testing::GIVE_UP;

struct Party {
    world: World,
    server: Namespace,
    places: Vec<Namespace>,
    hub: Daemon,
    clients: Vec<Daemon>,
}

impl Party {
    /// Creates a hub with clients, numbered in the order of their invitations, so that consecutive
    /// ones have different pairs.
    fn new(name: &str, config: &str) -> Option<Self> {
        let world = World::new(name)?;
        let server = world.add_server();
        let mut places: Vec<_> = (12..)
            .zip(&CLIENTS[..3])
            .map(|(net, (side, _))| world.add_client(side, net))
            .collect();
        places.push(world.open("c"));
        world.init();
        let file = world.place("h").join("hub.toml");
        let whole = format!("{config}{}", std::fs::read_to_string(&file).unwrap());
        std::fs::write(file, whole).unwrap();
        let hub = world.start("h", &["hub", "run"]);
        world.wait("a hub", |world| world.status("h")["state"] == "up");
        if world.status("h")["thread_pairs"].as_array().map(Vec::len) != Some(2) {
            hawser_testing::skip("no right to load eBPF programs");
            return None;
        }
        let mut clients = Vec::new();
        for (side, name) in CLIENTS {
            clients.push(world.start(side, &["up", &world.invite_as(name), "--foreground"]));
        }
        let party = Self {
            world,
            server,
            places,
            hub,
            clients,
        };
        party.wait_for_all();
        Some(party)
    }

    fn wait_for_all(&self) {
        for (side, name) in CLIENTS {
            let is_up =
                |world: &World| world.status(side)["state"] == "up" && world.ping_from(side, "100.96.0.1");
            self.world.wait(name, is_up);
        }
    }

    /// Lets all clients exchange data with an echo server at the same time, and compares the
    /// received data.
    fn exchange(&self) {
        let all = (9_100..).zip(&self.places);
        let all: Vec<_> = all
            .map(|(port, place)| exchange(&self.server, place, port))
            .collect();
        all.into_iter().for_each(|one| one.join().unwrap());
    }

    /// Returns the session of each client, in the order of [`CLIENTS`].
    fn sessions(&self) -> Vec<Value> {
        let status = self.world.status("h");
        let session = |name: &str| {
            let clients = status["clients"].as_array().unwrap();
            let client = clients.iter().find(|client| client["name"] == name);
            client.unwrap()["session"].clone()
        };
        CLIENTS.iter().map(|(_, name)| session(name)).collect()
    }

    /// Returns the sessions and the received and sent datagrams of both pairs.
    fn pairs(&self) -> Vec<[u64; 3]> {
        let status = self.world.status("h");
        let pairs = status["thread_pairs"].as_array().unwrap().iter();
        let figures = |pair: &Value| ["sessions", "received", "sent"].map(|key| pair[key].as_u64().unwrap());
        pairs.map(figures).collect()
    }

    fn counter(&self, name: &str) -> u64 {
        self.world.status("h")["counters"][name].as_u64().unwrap()
    }

    /// Pings over IPv6, which uses the same path as IPv4: from the hub's own address.
    fn ping_v6(&self) {
        for (side, name) in CLIENTS {
            let status = self.world.status(side);
            let inner = status["inner"].as_array().unwrap().iter();
            let inner =
                inner.filter_map(|address| address.as_str()?.split('/').next()?.parse::<IpAddr>().ok());
            let Some(IpAddr::V6(own)) = inner.into_iter().find(IpAddr::is_ipv6) else {
                panic!("{name} has no IPv6: {status}");
            };
            let hub = Ipv6Addr::from_bits(own.to_bits() & !0xffff | 1).to_string();
            self.world.wait(name, |world| world.ping_from(side, &hub));
        }
    }
}

fn exchange(server: &Namespace, client: &Namespace, port: u16) -> JoinHandle<()> {
    let to = SocketAddr::new([203, 0, 113, 2].into(), port);
    let listener = server.run(|| TcpListener::bind(to)).unwrap();
    let echo = std::thread::spawn(move || {
        let (mut from, _) = listener.accept().unwrap();
        from.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut back = from.try_clone().unwrap();
        std::io::copy(&mut from, &mut back).unwrap();
    });
    let stream = client.run(|| TcpStream::connect_timeout(&to, TIMEOUT)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let sent: Vec<u8> = (0..LENGTH as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(u32::from(port)) >> 24) as u8)
        .collect();
    std::thread::spawn(move || {
        let (mut upwards, mut downwards) = (stream.try_clone().unwrap(), stream);
        let expected = sent.clone();
        let up = std::thread::spawn(move || {
            upwards.write_all(&sent).unwrap();
            upwards.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut got = Vec::new();
        downwards.read_to_end(&mut got).unwrap();
        assert!(got == expected, "{} bytes came back of {LENGTH}", got.len());
        up.join().unwrap();
        echo.join().unwrap();
    })
}

#[test]
fn clients_of_two_pairs_exchange_come_back_after_a_crash_and_go_when_revoked() {
    let Some(mut party) = Party::new("tp", "thread_pairs = 2\n") else {
        return;
    };
    party.exchange();
    party.ping_v6();
    let pairs = party.pairs();
    // A datagram carries fewer bytes than the 1,500 of a network's MTU.
    let least = (2 * LENGTH / 1_500) as u64;
    for [sessions, received, sent] in &pairs {
        assert_eq!(*sessions, 2, "{pairs:?}");
        assert!(*received > least && *sent > least, "{pairs:?}");
    }
    assert_eq!(
        party.counter("ingress_unknown_index"),
        0,
        "all came to their pair"
    );
    let status = party.world.status("h");
    assert_eq!(status["sessions"].as_array().map(Vec::len), Some(4), "{status}");

    // A crash of the hub.
    let before = party.sessions();
    party.hub.signal("-KILL");
    party.hub = party.world.start("h", &["hub", "run"]);
    let is_new = |party: &Party| {
        let up = party.world.status("h")["state"] == "up";
        up && party
            .sessions()
            .iter()
            .zip(&before)
            .all(|(now, before)| now != before && !now.is_null())
    };
    party.world.wait("new sessions", |_| is_new(&party));
    party.wait_for_all();
    party.exchange();
    assert!(party.pairs().iter().all(|[sessions, ..]| *sessions == 2));

    // A client of each pair restarts.
    for at in [0, 1] {
        let (side, name) = CLIENTS[at];
        party.clients[at].signal("-TERM");
        party.clients[at] = party.world.start(side, &["up", "--foreground"]);
        party.world.wait(name, |world| {
            world.status(side)["state"] == "up" && world.ping_from(side, "100.96.0.1")
        });
    }
    party.exchange();
    assert!(party.pairs().iter().all(|[sessions, ..]| *sessions == 2));

    // One client of each pair is revoked; the other one stays.
    for (at, left) in [(0, 3), (1, 2)] {
        let (side, name) = CLIENTS[at];
        good(party.world.hawser("h", &["hub", "revoke", name]));
        assert!(
            !party.world.ping_from(side, "100.96.0.1"),
            "{name} is still served"
        );
        let sessions: u64 = party.pairs().iter().map(|[sessions, ..]| sessions).sum();
        assert_eq!(sessions, left);
    }
    assert!(party.pairs().iter().all(|[sessions, ..]| *sessions == 1));
    for (side, name) in &CLIENTS[2..] {
        assert!(party.world.ping_from(side, "100.96.0.1"), "{name} is gone");
    }
}

#[test]
fn clients_of_two_pairs_reach_each_other_where_they_may_and_not_where_they_may_not() {
    for (config, may) in [
        ("thread_pairs = 2\n", false),
        ("thread_pairs = 2\nreach.clients = true\n", true),
    ] {
        let Some(party) = Party::new(if may { "tr" } else { "ti" }, config) else {
            return;
        };
        // The first has number 2, and so on.
        for (from, to) in [(0, 1), (1, 0), (0, 2), (3, 0), (2, 1)] {
            let reached = party
                .world
                .ping_from(CLIENTS[from].0, &format!("100.96.0.{}", 2 + to));
            assert_eq!(reached, may, "{} to {}", CLIENTS[from].1, CLIENTS[to].1);
        }
    }
}
