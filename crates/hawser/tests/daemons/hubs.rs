//! A client with several hubs: another takes over when the one in use is gone, and not before. Hubs
//! of a fleet, which share a database.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use hawser_testing::Postgres;
use serde_json::Value;

use crate::world::{Daemon, World, good, is_up};

/// The second hub, in the network behind the first one's machine.
const SECOND: &str = "203.0.113.2:4431";

struct Hubs {
    world: World,
    first: Daemon,
    _second: Daemon,
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
            _second: second,
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

    fn in_use(&self) -> Value {
        let status = self.world.status("c");
        let hubs = status["hubs"].as_array().cloned().unwrap_or_default();
        let used = hubs.iter().find(|hub| hub["in_use"] == true);
        used.map_or(Value::Null, |hub| hub["endpoints"][0].clone())
    }

    /// What leaves the hubs' machines towards the client is lost, or not any more.
    fn lose(&self, rule: &str) {
        let mut nft = self.world.inside("h", "nft");
        nft.arg(format!(
            "add table inet lossy; add chain inet lossy out {{ type filter hook postrouting priority 300; }}; \
             flush chain inet lossy out; {rule}"
        ));
        good(nft);
    }
}

/// To the client, over the cables.
const ALL: &str = "add rule inet lossy out oifname { fiber, lte } drop";
const OF_THE_FIRST: &str = "add rule inet lossy out oifname { fiber, lte } ip saddr 198.51.100.1 drop";

#[test]
fn another_hub_takes_over_when_the_first_is_silent_and_stays() {
    let Some(mut hubs) = Hubs::new("hubs") else { return };
    assert_eq!(hubs.in_use(), "198.51.100.1:4430");
    let shown = good(hubs.world.hawser("c", &["status"])).stdout;
    assert!(
        String::from_utf8_lossy(&shown).contains("further hub 203.0.113.2:4431: takes over"),
        "{}",
        String::from_utf8_lossy(&shown)
    );
    // Not a word more from its machine, not even that nobody listens.
    hubs.lose(OF_THE_FIRST);
    hubs.first.signal("-KILL");
    let silent = Instant::now();
    hubs.world.wait("taken over", |world| world.ping("100.97.0.1"));
    println!("new flows after {:?}", silent.elapsed());
    assert_eq!(hubs.in_use(), SECOND);
    // Who starts now begins with the first, which is not there.
    hubs.client.signal("-TERM");
    hubs.client = hubs.world.start("c", &["up", "--foreground"]);
    hubs.world.wait("up again", |world| world.ping("100.97.0.1"));
    // The first comes back: nothing that goes on over the second is cut for that.
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

/// What the second hub says that clients were sent, bytes.
fn carried(world: &World, arguments: &[&str]) -> u64 {
    let arguments = [&["hub", "usage", "--json"], arguments].concat();
    let said: Value = serde_json::from_slice(&good(world.hawser("s", &arguments)).stdout).unwrap();
    let months = said["months"].as_array().into_iter().flatten();
    months.filter_map(|month| month["down_bytes"].as_u64()).sum()
}

#[test]
fn a_fleet_has_one_invitation_and_outlives_a_hub_and_its_database() {
    let Some(mut database) = Postgres::start() else {
        return;
    };
    let Some(world) = World::new("fleet") else { return };
    let _server = world.add_server();
    world.ip(&world.namespace("s"), "link set lo up");
    world.ip(&world.namespace("s"), "route add default via 203.0.113.1");
    let url = database.url();
    for (side, endpoint) in [("h", "198.51.100.1:4430"), ("s", SECOND)] {
        good(world.hawser(side, &["hub", "init", "--endpoint", endpoint, "--store", &url]));
    }
    let config = std::fs::metadata(world.place("h").join("hub.toml")).unwrap();
    assert_eq!(config.permissions().mode() & 0o777, 0o600);
    let first = world.start("h", &["hub", "run"]);
    let _second = world.start("s", &["hub", "run"]);
    let client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("through", World::ping_hub);
    let mut hubs = Hubs {
        world,
        first,
        _second,
        client,
    };
    // The second hub is known without an invitation to it.
    hubs.world.wait("told", |world| {
        world.status("c")["hubs"].as_array().map(Vec::len) == Some(2)
    });
    let listed = good(hubs.world.hawser("s", &["hub", "list", "--json"])).stdout;
    let listed: Value = serde_json::from_slice(&listed).unwrap();
    assert_eq!(listed["clients"][0]["name"], "alice");
    assert_eq!(listed["hubs"].as_array().map(Vec::len), Some(2), "{listed}");
    let inner = hubs.world.status("c")["inner"].clone();
    // Its database is gone: who is there stays, who is new does not come in.
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
    // What one hub says of a client's cap, the other does.
    good(
        hubs.world
            .hawser("s", &["hub", "limit", "alice", "--cap", "8mbit"]),
    );
    hubs.world
        .wait("held", |world| world.status("c")["limit"]["state"] == "capped");
    good(hubs.world.hawser("s", &["hub", "limit", "alice", "--default"]));
    hubs.world
        .wait("let go", |world| world.status("c")["limit"].is_null());
    // It is taken down by plan, and back: nothing is lost on the way.
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
    // Silence would cost a second each time: 100 of them.
    assert!(lost < 50, "{lost} lost");
    // A hub dies: the other takes over, with the same inner addresses.
    let by_first = |world: &World| carried(world, &["alice"]) > carried(world, &["--here"]);
    hubs.world.wait("counted by the first", by_first);
    hubs.lose(OF_THE_FIRST);
    hubs.first.signal("-KILL");
    let silent = Instant::now();
    hubs.world.wait("taken over", World::ping_hub);
    println!("new flows after {:?}", silent.elapsed());
    assert_eq!(hubs.in_use(), SECOND);
    assert_eq!(hubs.world.status("c")["inner"], inner);
    // Each hub says what all have carried, the dead one too.
    let by_second = |world: &World| carried(world, &["--here"]) > 0;
    hubs.world.wait("counted by the second", by_second);
    assert!(by_first(&hubs.world));
    assert_eq!(carried(&hubs.world, &["bob"]), 0);
    // A quota is for all hubs together: here it is used up by what the other one has carried.
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
    // What one hub decides the other knows at its start.
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
