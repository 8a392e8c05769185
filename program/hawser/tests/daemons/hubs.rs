//! A client with several hubs: another hub takes over when the one in use has failed, and not
//! before. The hubs of a fleet share a database.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, IoSlice, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use hawser_linux::netns::Namespace;
use hawser_linux::tun::Tun;
use hawser_testing::Postgres;
use serde_json::Value;

use crate::world::{Daemon, World, good, is_up, run};

/// Address of the second hub, in the network behind the first one's machine.
const SECOND: &str = "203.0.113.2:4431";

struct Hubs {
    world: World,
    first: Daemon,
    second: Daemon,
    client: Daemon,
}

impl Hubs {
    fn new(name: &str) -> Option<Self> {
        let world = World::new(name)?;
        let server = world.add_server();
        world.ip(&world.namespace("s"), "link set lo up");
        world.ip(&world.namespace("s"), "route add default via 203.0.113.1");
        drop(server);
        world.init();
        good(world.hawser(
            "s",
            &["hub", "init", "--endpoint", SECOND, "--pool", "100.97.0.0/16"],
        ));
        let first = world.start("h", &["hub", "run"]);
        let second = world.start("s", &["hub", "run"]);
        let client = world.start("c", &["up", &world.invite(), "--foreground"]);
        world.wait("up", is_up);
        let hubs = Self {
            world,
            first,
            second,
            client,
        };
        let invited = good(hubs.world.hawser("s", &["hub", "invite", "alice"]));
        let invitation = String::from_utf8(invited.stdout).unwrap();
        good(hubs.world.hawser("c", &["join", invitation.trim()]));
        hubs.world
            .wait("joined", |world| world.status("c")["hubs"][1]["joined"] == true);
        hubs.world.wait("through", World::ping_hub);
        Some(hubs)
    }

    /// Creates hubs with a shared database; `prepare` runs before the client starts.
    fn fleet(name: &str, prepare: impl FnOnce(&World)) -> Option<(Self, Postgres)> {
        let database = Postgres::start()?;
        let world = World::new(name)?;
        drop(world.add_server());
        world.ip(&world.namespace("s"), "link set lo up");
        world.ip(&world.namespace("s"), "route add default via 203.0.113.1");
        let url = database.url();
        for (side, endpoint) in [("h", "198.51.100.1:4430"), ("s", SECOND)] {
            world.init_in_fleet(side, endpoint, &url);
        }
        let first = world.start("h", &["hub", "run"]);
        let second = world.start("s", &["hub", "run"]);
        prepare(&world);
        let client = world.start("c", &["up", &world.invite(), "--foreground"]);
        world.wait("through", World::ping_hub);
        // The client knows the second hub without an invitation to it.
        world.wait("told", |world| {
            world.status("c")["hubs"].as_array().map(Vec::len) == Some(2)
        });
        let hubs = Self {
            world,
            first,
            second,
            client,
        };
        Some((hubs, database))
    }

    fn in_use(&self) -> Value {
        let status = self.world.status("c");
        let hubs = status["hubs"].as_array().cloned().unwrap_or_default();
        let used = hubs.iter().find(|hub| hub["in_use"] == true);
        used.map_or(Value::Null, |hub| hub["endpoints"][0].clone())
    }

    /// Drops packets from the hubs' machines to the client by this rule; an empty rule ends the
    /// loss.
    fn lose(&self, rule: &str) {
        let mut nft = self.world.inside("h", "nft");
        nft.arg(format!(
            "add table inet lossy; add chain inet lossy out {{ type filter hook postrouting priority 300; }}; \
             flush chain inet lossy out; {rule}"
        ));
        good(nft);
    }
}

/// Rule that drops all packets to the client, over the cables.
const ALL: &str = "add rule inet lossy out oifname { fiber, lte } drop";
const OF_THE_FIRST: &str = "add rule inet lossy out oifname { fiber, lte } ip saddr 198.51.100.1 drop";

#[test]
fn another_hub_takes_over_when_the_first_is_silent_and_stays() {
    let Some(mut hubs) = Hubs::new("hubs") else { return };
    assert_eq!(hubs.in_use(), "198.51.100.1:4430");
    let shown = good(hubs.world.hawser("c", &["status"])).stdout;
    assert!(
        String::from_utf8_lossy(&shown).contains("other hub 203.0.113.2:4431: takes over"),
        "{}",
        String::from_utf8_lossy(&shown)
    );
    // The machine sends nothing more, not even ICMP errors.
    hubs.lose(OF_THE_FIRST);
    hubs.first.signal("-KILL");
    let silent = Instant::now();
    hubs.world.wait("taken over", |world| world.ping("100.97.0.1"));
    println!("new flows after {:?}", silent.elapsed());
    assert_eq!(hubs.in_use(), SECOND);
    // A client that starts now begins with the first hub, which is unreachable.
    hubs.client.signal("-TERM");
    hubs.client = hubs.world.start("c", &["up", "--foreground"]);
    hubs.world.wait("up again", |world| world.ping("100.97.0.1"));
    // The first hub returns: connections over the second one are not interrupted.
    hubs.lose("");
    hubs.first = hubs.world.start("h", &["hub", "run"]);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(hubs.in_use(), SECOND);
    assert!(hubs.world.ping("100.97.0.1"));
    good(hubs.world.hawser("c", &["leave", "203.0.113.2"]));
    hubs.world.wait("back", World::ping_hub);
    assert_eq!(hubs.in_use(), "198.51.100.1:4430");
}

#[test]
fn who_was_invited_comes_in_while_the_hub_that_invited_is_away() {
    let Some((mut hubs, _database)) = Hubs::fleet("first-contact", |_| ()) else {
        return;
    };
    // The hubs know each other by now, so an invitation names all of them.
    let invited = good(hubs.world.hawser("h", &["hub", "invite", "bob"])).stdout;
    let invitation = String::from_utf8(invited).unwrap();
    hubs.client.signal("-TERM");
    hubs.client.0.wait().unwrap();
    std::fs::remove_dir_all(hubs.world.place("c")).unwrap();
    hubs.lose(OF_THE_FIRST);
    hubs.first.signal("-KILL");
    hubs.client = hubs.world.start("c", &["up", invitation.trim(), "--foreground"]);
    hubs.world.wait("let in", World::ping_hub);
    assert_eq!(hubs.in_use(), SECOND);
    // The invitation is used, also at the first hub, so nothing of it is stored.
    let joined = std::fs::read_to_string(hubs.world.place("c").join("hub-joined.toml")).unwrap();
    assert!(!joined.contains("token"), "{joined}");
    hubs.lose("");
    hubs.first = hubs.world.start("h", &["hub", "run"]);
    good(hubs.world.hawser("s", &["hub", "drain", "--within", "10s"]));
    assert_eq!(hubs.in_use(), "198.51.100.1:4430");
}

#[test]
fn networks_that_all_fail_for_a_while_are_no_failure_of_the_hub() {
    let Some(hubs) = Hubs::new("hubsgap") else { return };
    let session = hubs.world.status("c")["session"].clone();
    for seconds in [1, 4, 7] {
        hubs.lose(ALL);
        std::thread::sleep(Duration::from_secs(seconds));
        hubs.lose("");
        hubs.world.wait("through again", World::ping_hub);
        assert_eq!(hubs.in_use(), "198.51.100.1:4430", "after {seconds} s");
    }
    assert_eq!(hubs.world.status("c")["session"], session);
}

/// Returns the bytes sent to clients, as reported by the second hub.
fn carried(world: &World, arguments: &[&str]) -> u64 {
    let arguments = [&["hub", "usage", "--json"], arguments].concat();
    let said: Value = serde_json::from_slice(&good(world.hawser("s", &arguments)).stdout).unwrap();
    let months = said["months"].as_array().into_iter().flatten();
    months.filter_map(|month| month["down_bytes"].as_u64()).sum()
}

#[test]
fn a_fleet_has_one_invitation_and_outlives_a_hub_and_its_database() {
    let Some((mut hubs, mut database)) = Hubs::fleet("fleet", |_| ()) else {
        return;
    };
    let config = std::fs::metadata(hubs.world.place("h").join("hub.toml")).unwrap();
    assert_eq!(config.permissions().mode() & 0o777, 0o600);
    let listed = good(hubs.world.hawser("s", &["hub", "list", "--json"])).stdout;
    let listed: Value = serde_json::from_slice(&listed).unwrap();
    assert_eq!(listed["clients"][0]["name"], "alice");
    assert_eq!(listed["hubs"].as_array().map(Vec::len), Some(2), "{listed}");
    let inner = hubs.world.status("c")["inner"].clone();
    // The database has failed: existing clients stay, new ones are rejected.
    database.kill();
    hubs.world.wait("noticed", |world| {
        !world.status("h")["store"]["trouble"].is_null()
    });
    assert!(hubs.world.ping_hub());
    let refused = hubs
        .world
        .hawser("h", &["hub", "invite", "bob"])
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("database"),
        "{refused:?}"
    );
    database.restart();
    hubs.world.wait("well again", |world| {
        world.status("h")["store"]["trouble"].is_null()
    });
    // A cap that is set at one hub is enforced by the other.
    good(
        hubs.world
            .hawser("s", &["hub", "limit", "alice", "--cap", "8mbit"]),
    );
    hubs.world
        .wait("held", |world| world.status("c")["limit"]["state"] == "capped");
    good(hubs.world.hawser("s", &["hub", "limit", "alice", "--default"]));
    hubs.world
        .wait("let go", |world| world.status("c")["limit"].is_null());
    // The hub is drained and then resumed, without packet loss.
    let pings = hubs.world.pings("100.96.0.1");
    good(hubs.world.hawser("h", &["hub", "drain", "--within", "10s"]));
    assert_eq!(hubs.in_use(), SECOND);
    assert_eq!(hubs.world.status("h")["state"], "draining");
    good(hubs.world.hawser("h", &["hub", "drain", "--off"]));
    good(hubs.world.hawser("s", &["hub", "drain", "--within", "10s"]));
    assert_eq!(hubs.in_use(), "198.51.100.1:4430");
    good(hubs.world.hawser("s", &["hub", "drain", "--off"]));
    let (lost, sent) = pings.end();
    println!("{lost} of {sent} pings of 20 ms lost in two changes");
    // A failure without drain would cost one second each time, 100 pings in total.
    assert!(lost < 50, "{lost} lost");
    // A hub fails: the other one takes over, with the same inner addresses.
    let by_first = |world: &World| carried(world, &["alice"]) > carried(world, &["--here"]);
    hubs.world.wait("counted by the first", by_first);
    let pings = hubs.world.pings("100.96.0.1");
    hubs.lose(OF_THE_FIRST);
    hubs.first.signal("-KILL");
    hubs.world.wait("taken over", World::ping_hub);
    let (lost, _) = pings.end();
    println!("{lost} pings of 20 ms lost by the death of a hub");
    assert_eq!(hubs.in_use(), SECOND);
    assert_eq!(hubs.world.status("c")["inner"], inner);
    // Each hub reports the traffic of all hubs, including the failed one.
    let by_second = |world: &World| carried(world, &["--here"]) > 0;
    hubs.world.wait("counted by the second", by_second);
    assert!(by_first(&hubs.world));
    assert_eq!(carried(&hubs.world, &["bob"]), 0);
    // A quota applies to all hubs together: here the other hub's traffic has exhausted it.
    let (all, here) = (
        carried(&hubs.world, &["alice"]),
        carried(&hubs.world, &["--here"]),
    );
    assert!(here < all, "{here} of {all} bytes");
    let quota = format!("{all}B");
    good(
        hubs.world
            .hawser("s", &["hub", "limit", "alice", "--quota", &quota]),
    );
    hubs.world
        .wait("slowed", |world| world.status("c")["limit"]["state"] == "slowed");
    assert!(carried(&hubs.world, &["--here"]) < all);
    good(hubs.world.hawser("s", &["hub", "limit", "alice", "--no-quota"]));
    hubs.world
        .wait("let go", |world| world.status("c")["limit"].is_null());
    // The decision of one hub is known to the other at its start.
    good(hubs.world.hawser("s", &["hub", "revoke", "alice"]));
    hubs.world.wait("revoked", |world| !world.ping_hub());
    hubs.lose("");
    hubs.first = hubs.world.start("h", &["hub", "run"]);
    hubs.client.signal("-TERM");
    hubs.client = hubs.world.start("c", &["up", "--foreground"]);
    hubs.world.wait("refused", |world| {
        world.status("h")["counters"]["refused_not_enrolled"].as_u64() > Some(0)
    });
}

/// Server that is reachable through both hubs. It answers each line with its client's address.
struct Echo {
    client: Namespace,
}

/// Addresses under which each hub's clients appear at the server.
const BY_FIRST: &str = "192.0.2.1";
const BY_SECOND: &str = "203.0.113.2";

impl Echo {
    fn start(world: &World) -> Self {
        run("ip", &["netns", "add", &world.namespace("w")]);
        let (hub, server) = (world.namespace("h"), world.namespace("w"));
        let link = [
            "link", "add", "web", "netns", &hub, "type", "veth", "peer", "name", "web", "netns", &server,
        ];
        run("ip", &link);
        for (namespace, last) in [(&hub, 1), (&server, 2), (&server, 3)] {
            world.ip(namespace, &format!("addr add 192.0.2.{last}/24 dev web"));
            world.ip(namespace, "link set web up");
        }
        world.ip(&server, "route add default via 192.0.2.1");
        let listener = world.open("w").run(|| TcpListener::bind("0.0.0.0:8080")).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || answer(&stream));
            }
        });
        Self {
            client: world.open("c"),
        }
    }

    fn connect(&self) -> Conversation {
        self.connect_to("192.0.2.2:8080")
    }

    /// Connects to one of the server's two addresses.
    fn connect_to(&self, at: &str) -> Conversation {
        let at = at.parse().unwrap();
        let stream = self
            .client
            .run(|| TcpStream::connect_timeout(&at, hawser_testing::GIVE_UP));
        let stream = stream.unwrap();
        stream.set_read_timeout(Some(hawser_testing::GIVE_UP)).unwrap();
        Conversation(BufReader::new(stream))
    }
}

fn answer(mut stream: &TcpStream) -> std::io::Result<()> {
    let peer = stream.peer_addr()?.ip();
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        writeln!(stream, "{peer}")?;
    }
    Ok(())
}

/// TCP connection that is closed when dropped.
struct Conversation(BufReader<TcpStream>);

impl Conversation {
    /// Exchanges a line. Returns the address under which the client appears.
    fn appears(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        writeln!(self.0.get_ref(), "?")?;
        self.0.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

/// Adds [`LONGER`] to the delay from the hub's clients to the server, by a relay that delays their
/// packets.
pub(crate) fn lengthen(world: &World, hub: &'static str) {
    let mut nft = world.inside("h", "nft");
    nft.arg(
        "add table inet detour; \
         add chain inet detour in { type nat hook prerouting priority dstnat; }; \
         add rule inet detour in iifname { fiber, lte } udp dport 4430 redirect to :5530",
    );
    good(nft);
    let place = world.open("h");
    let relay = Arc::new(place.run(|| UdpSocket::bind("0.0.0.0:5530")).unwrap());
    std::thread::spawn(move || {
        let mut onward: HashMap<SocketAddr, mpsc::Sender<(Instant, Vec<u8>)>> = HashMap::new();
        let mut packet = [0; 2_000];
        while let Ok((len, from)) = relay.recv_from(&mut packet) {
            let queue = onward.entry(from).or_insert_with(|| {
                let socket = place.run(|| UdpSocket::bind("198.51.100.1:0")).unwrap();
                socket.connect(hub).unwrap();
                let (socket, back) = (Arc::new(socket), Arc::clone(&relay));
                let (queue, waiting) = mpsc::channel::<(Instant, Vec<u8>)>();
                let onward = Arc::clone(&socket);
                std::thread::spawn(move || {
                    for (due, packet) in waiting {
                        std::thread::sleep(due.saturating_duration_since(Instant::now()));
                        let _ = onward.send(&packet);
                    }
                });
                std::thread::spawn(move || {
                    let mut packet = [0; 2_000];
                    while let Ok(len) = socket.recv(&mut packet) {
                        let _ = back.send_to(&packet[..len], from);
                    }
                });
                queue
            });
            let _ = queue.send((Instant::now() + LONGER, packet[..len].to_vec()));
        }
    });
}

const LONGER: Duration = Duration::from_millis(50);

fn drained(hubs: &Hubs, side: &str, within: &str) -> Value {
    let drain = ["hub", "drain", "--json", "--within", within];
    serde_json::from_slice(&good(hubs.world.hawser(side, &drain)).stdout).unwrap()
}

/// Starts connections of this form at one hub, which continue there while others start at the next
/// hub, which is in use at the end. Returns a connection that started there.
fn finish(name: &str, form: &str) -> Option<(Hubs, Postgres, Echo, Conversation)> {
    let mut echo = None;
    let prepare = |world: &World| {
        echo = Some(Echo::start(world));
        let text = format!("tcp = \"{form}\"\n");
        world.configure("c", text);
    };
    let (hubs, database) = Hubs::fleet(name, prepare)?;
    let echo = echo.unwrap();
    let mut first = echo.connect();
    assert_eq!(first.appears().unwrap(), BY_FIRST);
    // The hub is drained: new connections use the other one, existing ones continue.
    assert_eq!(drained(&hubs, "h", "3s")["sessions"], 1);
    assert_eq!(hubs.in_use(), SECOND);
    let mut second = echo.connect();
    assert_eq!(second.appears().unwrap(), BY_SECOND);
    assert_eq!(first.appears().unwrap(), BY_FIRST);
    hubs.world.wait("told what goes on", |world| {
        world.status("c")["hubs"][0]["finishing"].as_u64() > Some(0)
    });
    // A network disappears and returns: both sessions follow.
    hubs.world.ip(&hubs.world.namespace("c"), "link set fiber down");
    hubs.world.ip(&hubs.world.namespace("c"), "link set fiber up");
    assert_eq!(first.appears().unwrap(), BY_FIRST);
    // The last connection ends, which ends the session.
    drop(first);
    assert_eq!(drained(&hubs, "h", "15s")["sessions"], 0);
    assert!(hubs.world.status("c")["hubs"][0]["finishing"].is_null());
    assert_eq!(second.appears().unwrap(), BY_SECOND);
    Some((hubs, database, echo, second))
}

#[test]
fn connections_finish_at_the_hub_where_they_began() {
    finish("finish-st", "stream");
}

#[test]
fn connections_go_on_over_the_silence_of_a_hub() {
    let Some((hubs, _database, echo, mut second)) = finish("finish", "end-to-end") else {
        return;
    };
    // The hub in use does not respond for some time: new connections use the other one, and
    // existing ones lose no data.
    good(hubs.world.hawser("h", &["hub", "drain", "--off"]));
    hubs.lose("add rule inet lossy out oifname { fiber, lte } ip saddr 203.0.113.2 drop");
    let silent = Instant::now();
    let mut third = echo.connect();
    println!("a connection after {:?}", silent.elapsed());
    assert_eq!(third.appears().unwrap(), BY_FIRST);
    hubs.lose("");
    assert_eq!(second.appears().unwrap(), BY_SECOND);
    assert_eq!(third.appears().unwrap(), BY_FIRST);
    // The client returns over the session that still exists.
    good(hubs.world.hawser("h", &["hub", "drain", "--within", "1s"]));
    assert_eq!(hubs.in_use(), SECOND);
    assert_eq!(echo.connect().appears().unwrap(), BY_SECOND);
    assert_eq!(second.appears().unwrap(), BY_SECOND);
    assert_eq!(third.appears().unwrap(), BY_FIRST);
}

#[test]
fn the_nearest_hub_is_used_and_connections_stay_where_they_began() {
    let mut echo = None;
    let prepare = |world: &World| {
        echo = Some(Echo::start(world));
        lengthen(world, "198.51.100.1:4430");
    };
    let Some((mut hubs, _database)) = Hubs::fleet("nearest", prepare) else {
        return;
    };
    let echo = echo.unwrap();
    let mut first = echo.connect();
    assert_eq!(first.appears().unwrap(), BY_FIRST);
    hubs.world.wait("at the nearer one", |_| hubs.in_use() == SECOND);
    let status = hubs.world.status("c");
    let trip = |hub: usize| status["hubs"][hub]["round_trip_ms"].as_f64();
    assert!(trip(1) < trip(0), "{status}");
    assert_eq!(first.appears().unwrap(), BY_FIRST);
    assert_eq!(echo.connect().appears().unwrap(), BY_SECOND);
    // The client uses this hub at its next start.
    hubs.client.signal("-TERM");
    hubs.client = hubs.world.start("c", &["up", "--foreground"]);
    hubs.world.wait("up again", is_up);
    assert_eq!(hubs.in_use(), SECOND);
}

/// Other address of the server, for which rules choose the second hub.
const BY_RULE: &str = "192.0.2.3:8080";

#[test]
fn a_rule_sends_a_destination_through_another_hub_while_that_answers() {
    // The hubs crash in this test, which streams do not survive.
    const RULE: &str =
        "tcp = \"end-to-end\"\nhub = \"stay\"\n[[rule]]\nto = \"192.0.2.3\"\nhub = \"203.0.113.2\"\n";
    let mut echo = None;
    let write = |world: &World, text: &str| {
        world.configure("c", text);
    };
    let prepare = |world: &World| {
        echo = Some(Echo::start(world));
        write(world, RULE);
        // No packet may leave the client outside the tunnel.
        let mut nft = world.inside("c", "nft");
        nft.arg(
            "add table inet seen; add chain inet seen out { type filter hook postrouting priority 300; }; \
             add rule inet seen out oifname { fiber, lte } ip daddr 192.0.2.0/24 counter",
        );
        good(nft);
    };
    let Some((mut hubs, _database)) = Hubs::fleet("byrule", prepare) else {
        return;
    };
    let echo = echo.unwrap();
    let by_rule = || echo.connect_to(BY_RULE).appears().unwrap();
    let answers = |world: &World| world.status("c")["hubs"][1]["answers"] == true;
    let text = |arguments: &[&str]| {
        let said = good(hubs.world.hawser("c", arguments)).stdout;
        String::from_utf8(said).unwrap()
    };
    hubs.world.wait("a session with it", answers);
    assert_eq!(hubs.in_use(), "198.51.100.1:4430");
    let mut there = echo.connect_to(BY_RULE);
    let mut here = echo.connect();
    assert_eq!(there.appears().unwrap(), BY_SECOND);
    assert_eq!(here.appears().unwrap(), BY_FIRST);
    assert_eq!(by_rule(), BY_SECOND);
    let explained = text(&["explain", BY_RULE]);
    assert!(
        explained.contains("through 203.0.113.2:4431 because a rule selects this hub (to 192.0.2.3/32)"),
        "{explained}"
    );
    assert!(!text(&["explain", "192.0.2.2:8080"]).contains("203.0.113.2"));
    hubs.world.wait("counted", |world| {
        world.status("c")["hubs"][0]["finishing"].is_null()
            && world.status("c")["hubs"][1]["finishing"].as_u64() > Some(0)
    });
    let shown = text(&["status"]);
    assert!(shown.contains(" to 192.0.2.3/32"), "{shown}");
    // After a crash, new connections use the hub in use, and existing ones continue at the crashed
    // hub after its return.
    hubs.second.signal("-KILL");
    let killed = Instant::now();
    assert_eq!(by_rule(), BY_FIRST);
    println!("through the hub in use after {:?}", killed.elapsed());
    hubs.second = hubs.world.start("s", &["hub", "run"]);
    let back = Instant::now();
    hubs.world.wait("there again", |_| by_rule() == BY_SECOND);
    println!("there again after {:?}", back.elapsed());
    assert_eq!(there.appears().unwrap(), BY_SECOND);
    assert_eq!(here.appears().unwrap(), BY_FIRST);
    // The hub is unreachable for so long that the client abandons its session.
    hubs.lose("add rule inet lossy out oifname { fiber, lte } ip saddr 203.0.113.2 drop");
    hubs.second.signal("-KILL");
    assert_eq!(by_rule(), BY_FIRST);
    hubs.world.wait("given up", |world| {
        world.status("c")["hubs"][1]["finishing"].is_null()
    });
    let heard = there.appears().unwrap_err().kind();
    assert_eq!(heard, ErrorKind::ConnectionReset, "its program hears of it");
    hubs.lose("");
    hubs.second = hubs.world.start("s", &["hub", "run"]);
    hubs.world.wait("there again", |_| by_rule() == BY_SECOND);
    // The hub is drained.
    assert_eq!(drained(&hubs, "s", "15s")["sessions"], 0);
    assert_eq!(by_rule(), BY_FIRST);
    good(hubs.world.hawser("s", &["hub", "drain", "--off"]));
    hubs.world.wait("there once more", |_| by_rule() == BY_SECOND);
    // A reload adds and removes rules; a rule with an unknown hub changes nothing.
    let mut there = echo.connect_to(BY_RULE);
    write(&hubs.world, &RULE.replace("203.0.113.2", "hub9.example.org"));
    good(hubs.world.hawser("c", &["reload"]));
    assert_eq!(by_rule(), BY_FIRST);
    assert_eq!(there.appears().unwrap(), BY_SECOND);
    let notice = hubs.world.status("c")["notice"].to_string();
    assert!(
        notice.contains("a rule names the hub hub9.example.org"),
        "{notice}"
    );
    write(&hubs.world, RULE);
    good(hubs.world.hawser("c", &["reload"]));
    assert_eq!(by_rule(), BY_SECOND);
    // The hub in use fails: the other one already has a session.
    hubs.lose(OF_THE_FIRST);
    hubs.first.signal("-KILL");
    let killed = Instant::now();
    assert_eq!(echo.connect().appears().unwrap(), BY_SECOND);
    println!("all through the other after {:?}", killed.elapsed());
    assert_eq!(hubs.in_use(), SECOND);
    assert_eq!(there.appears().unwrap(), BY_SECOND);
    // The hub returns with its state: its connections continue there.
    hubs.lose("");
    hubs.first = hubs.world.start("h", &["hub", "run"]);
    hubs.world.wait("there again", |world| {
        world.status("c")["hubs"][0]["answers"] == true
    });
    assert_eq!(here.appears().unwrap(), BY_FIRST);
    assert_eq!(by_rule(), BY_SECOND);
    let mut nft = hubs.world.inside("c", "nft");
    nft.args(["list", "chain", "inet", "seen", "out"]);
    let seen = String::from_utf8(good(nft).stdout).unwrap();
    assert!(seen.contains("counter packets 0 "), "{seen}");
}

/// Adds 2 * [`DETOUR`] to the delay from the hub in `side` to `destination`, for its clients only,
/// which the server sees as `seen_as`.
fn take_a_detour(world: &World, side: &str, destination: &str, seen_as: &str) {
    let device = format!("detour-{side}");
    let ends = [side, "w"].map(|side| {
        let tun = world
            .open(side)
            .run(|| Tun::create(&device, 1500).map_err(std::io::Error::other))
            .unwrap();
        world.ip(&world.namespace(side), &format!("link set {device} up"));
        Arc::new(tun)
    });
    let (hub, server) = (world.namespace(side), world.namespace("w"));
    world.ip(&hub, &format!("addr add {seen_as}/32 dev {device}"));
    world.ip(&hub, &format!("route add default dev {device} table 77"));
    world.ip(
        &hub,
        &format!("rule add iif hawserhub0 to {destination} lookup 77"),
    );
    world.ip(&server, &format!("route add {seen_as}/32 dev {device}"));
    for [from, to] in [[0, 1], [1, 0]] {
        let (from, to) = (Arc::clone(&ends[from]), Arc::clone(&ends[to]));
        let (queue, waiting) = mpsc::channel::<(Instant, Vec<u8>)>();
        std::thread::spawn(move || {
            for (due, packet) in waiting {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                let _ = to.write(&[IoSlice::new(&packet)]);
            }
        });
        std::thread::spawn(move || {
            let mut packet = vec![0; 70_000];
            loop {
                match from.read(&mut packet) {
                    Ok(Some(len)) => {
                        let _ = queue.send((Instant::now() + DETOUR, packet[..len].to_vec()));
                    }
                    Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                    Err(_) => return,
                }
            }
        });
    }
}

const DETOUR: Duration = Duration::from_millis(25);
const BY_DETOUR: &str = "192.0.9.1";
const BY_DETOUR_OF_SECOND: &str = "192.0.9.2";

#[test]
fn a_destination_is_reached_through_the_hub_that_is_sooner_there() {
    const BOTH: [&str; 2] = ["192.0.2.2:8080", "192.0.2.3:8080"];
    let (mut echo, mut before) = (None, String::new());
    let prepare = |world: &World| {
        before = world.system("c");
        echo = Some(Echo::start(world));
        take_a_detour(world, "h", "192.0.2.2", BY_DETOUR);
        take_a_detour(world, "s", "192.0.2.3", BY_DETOUR_OF_SECOND);
        // A hub crashes in this test, and the detour is selected by the interface, whereas
        // connections of streams begin on the hub itself.
        let text =
            "tcp = \"end-to-end\"\nhub = \"faster\"\nkill_switch = true\n[direct]\nportal_check = \"off\"\n";
        world.configure("c", text);
    };
    let Some((mut hubs, _database)) = Hubs::fleet("sooner", prepare) else {
        return;
    };
    let echo = echo.unwrap();
    let reached = |at: &str| echo.connect_to(at).appears().unwrap();
    let text = |arguments: &[&str]| {
        let said = good(hubs.world.hawser("c", arguments)).stdout;
        String::from_utf8(said).unwrap()
    };
    let mut here = echo.connect_to(BOTH[0]);
    assert_eq!(here.appears().unwrap(), BY_DETOUR, "what is not known goes there");
    let began = Instant::now();
    hubs.world
        .wait("through the nearer one", |_| reached(BOTH[0]) == BY_SECOND);
    println!("found out after {:?}", began.elapsed());
    assert_eq!(hubs.in_use(), "198.51.100.1:4430");
    for _ in 0..5 {
        assert_eq!(reached(BOTH[1]), BY_FIRST, "there the hub in use is nearer");
        assert_eq!(reached(BOTH[0]), BY_SECOND);
    }
    assert_eq!(here.appears().unwrap(), BY_DETOUR);
    let mut there = echo.connect_to(BOTH[0]);
    assert_eq!(there.appears().unwrap(), BY_SECOND);
    let explained = text(&["explain", BOTH[0]]);
    assert!(
        explained.contains("through 203.0.113.2:4431 because it is faster for this destination"),
        "{explained}"
    );
    assert!(explained.contains("; through 203.0.113.2:4431: "), "{explained}");
    hubs.world.wait("counted", |world| {
        world.status("c")["hubs"][1]["finishing"].as_u64() > Some(0)
    });
    let shown = text(&["status"]);
    assert!(shown.contains("faster for one destination"), "{shown}");
    assert!(!shown.contains("outside tunnel"), "{shown}");
    // The hub crashes and returns.
    hubs.second.signal("-KILL");
    assert_eq!(reached(BOTH[0]), BY_DETOUR);
    hubs.second = hubs.world.start("s", &["hub", "run"]);
    hubs.world.wait("there again", |_| reached(BOTH[0]) == BY_SECOND);
    assert_eq!(there.appears().unwrap(), BY_SECOND);
    hubs.client.signal("-KILL");
    good(hubs.world.hawser("c", &["down"]));
    assert_eq!(hubs.world.system("c"), before);
}
