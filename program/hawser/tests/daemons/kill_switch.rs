//! The kill switch under crashes and restarts: packets that leave the client outside the tunnel are
//! counted at the far end of its cables.
//!
//! Programs in the client's namespace, and a machine behind it, send continuously: IPv4, IPv6
//! (which this hub does not carry), and queries to resolvers near and far. There are 6 rounds, or
//! as many as `HAWSER_CRASHES` specifies.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use hawser_linux::netns::Namespace;

use crate::mixed::add_machine_behind;
use crate::outside::{Outside, TO, Traffic};
use crate::world::{Files, World, good, is_up};

/// Creates a hub without IPv6, a client with both families on its cables, and a machine behind it.
fn world(name: &str, config: &str) -> Option<(World, Namespace)> {
    let world = World::new(name)?;
    world.add_ipv6();
    world.add_server();
    world.init();
    let hub = world.place("h").join("hub.toml");
    let text = std::fs::read_to_string(&hub).unwrap();
    let without: Vec<_> = text.lines().filter(|line| !line.starts_with("pool6")).collect();
    std::fs::write(&hub, without.join("\n")).unwrap();
    configure(&world, config);
    let behind = add_machine_behind(&world);
    let mut sysctl = world.inside("c", "sysctl");
    sysctl.args(["-qw", "net.ipv4.ip_forward=1"]);
    good(sysctl);
    Some((world, behind))
}

/// Creates such a world with a hub that is configured by name, and a resolver without a firewall.
fn world_by_name(name: &str, config: &str) -> Option<(World, Namespace, Resolver)> {
    let (world, behind) = world(name, config)?;
    let resolver = Resolver::start(&world)?;
    let hub = world.place("h").join("hub.toml");
    let text = std::fs::read_to_string(&hub).unwrap();
    std::fs::write(&hub, text.replace("198.51.100.1:4430", "hub.hawser.test:4430")).unwrap();
    let mut wall = world.inside("c", "nft");
    wall.arg("delete table inet wall");
    good(wall);
    Some((world, behind, resolver))
}

fn configure(world: &World, config: &str) {
    world.configure("c", config);
}

const CLOSED: &str = "kill_switch = true\nexclude = [\"home\"]\n";

fn rounds() -> u64 {
    let set = std::env::var("HAWSER_CRASHES").ok();
    set.map_or(6, |count| count.parse().expect("a number of crashes"))
}

#[test]
fn nothing_leaves_outside_the_tunnel_through_crashes_and_restarts() {
    crash_under_traffic("kill", CLOSED);
}

/// Rules that send other flows past the hub do not let these packets out.
#[test]
fn nothing_else_leaves_beside_rules_past_the_hub_through_crashes() {
    let rules = "[direct]\nportal_check = \"off\"\n[[rule]]\nport = 8000\nvia = \"direct\"\n";
    crash_under_traffic("kmix", &format!("{CLOSED}{rules}"));
}

fn crash_under_traffic(name: &str, config: &str) {
    let Some((world, behind)) = world(name, config) else {
        return;
    };
    let outside = Outside::count(&world);
    let traffic = Traffic::start(&world.open("c"), Some(&behind));
    world.wait("heard, each kind of it", |_| !outside.packets().contains(&0));
    let mut hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let mut client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("up", is_up);
    outside.reset();
    let before = traffic.sent();
    for round in 0..rounds() {
        client.signal("-KILL");
        std::thread::sleep(Duration::from_millis(round * 7 % 40));
        client = world.start("c", &["up", "--foreground"]);
        if round % 3 == 0 {
            // The restarted hub has no state; otherwise these would be two machines with one key.
            hub.signal("-KILL");
            hub = world.start("h", &["hub", "run"]);
            world.wait("up again", |world| is_up(world) && world.ping_hub());
        } else {
            // The kill falls into the client's start.
            std::thread::sleep(Duration::from_millis(round * 37 % 400));
        }
        outside.assert_none(&format!("in round {round}"));
    }
    let sent = traffic.sent() - before;
    assert!(sent > 100 * rounds(), "{sent} rounds of packets were tried");
    eprintln!(
        "{} crashes, {sent} times {} packets: none outside",
        rounds(),
        TO.len()
    );
    client.signal("-KILL");
    good(world.hawser("c", &["down"]));
    world.wait("open again", |_| !outside.packets().contains(&0));
    assert!(!world.system("c").contains("hawser"));
}

#[test]
fn a_start_that_fails_after_a_crash_opens_nothing() {
    let Some((world, behind)) = world("fail", CLOSED) else {
        return;
    };
    let outside = Outside::count(&world);
    // No resolver is available for the hub's name, which would be resolved outside the tunnel.
    let _files = with_resolver(&world, "127.0.0.1");
    let hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let mut client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("up", is_up);
    client.signal("-KILL");
    let _traffic = Traffic::start(&world.open("c"), Some(&behind));
    outside.reset();
    let joined = world.place("c").join("hub-joined.toml");
    let known = std::fs::read_to_string(&joined).unwrap();
    let nowhere: Vec<_> = known
        .lines()
        .filter(|line| !line.starts_with("addresses"))
        .map(|line| line.replace("198.51.100.1", "nowhere.invalid"))
        .collect();
    for (config, joined_as, code, says) in [
        (
            "kill_switch = true\nmtu = 7\n",
            known.as_str(),
            64,
            "client.toml:2: mtu 7",
        ),
        (CLOSED, &nowhere.join("\n"), 1, "does not resolve"),
    ] {
        configure(&world, config);
        std::fs::write(&joined, joined_as).unwrap();
        let output = world.hawser("c", &["up", "--foreground"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(says), "{said}");
        outside.assert_none(&format!("after {said}"));
    }
    // The client also waits for a hub.
    drop(hub);
    std::fs::write(&joined, known).unwrap();
    configure(&world, CLOSED);
    let _client = world.start("c", &["up", "--foreground"]);
    world.wait("seeking its hub", |world| {
        world.status("c")["state"] == "connecting"
    });
    outside.assert_none("while it waits");
    good(world.hawser("c", &["down"]));
    world.wait("open again", |_| !outside.packets().contains(&0));
}

#[test]
fn locked_down_before_the_first_start_and_open_where_nobody_wants_it() {
    let Some((world, behind)) = world("lock", "mtu = 1400\n") else {
        return;
    };
    let outside = Outside::count(&world);
    let before = world.system("c");
    let said = good(world.hawser("c", &["lockdown"])).stdout;
    assert!(String::from_utf8_lossy(&said).starts_with("open"));
    assert_eq!(world.system("c"), before);

    // An invalid file counts as one that enables the kill switch.
    for (config, code) in [("kill_switch = maybe\n", 64), (CLOSED, 0)] {
        configure(&world, config);
        let output = world.hawser("c", &["lockdown"]).output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        let traffic = Traffic::start(&world.open("c"), Some(&behind));
        outside.reset();
        traffic.send(200);
        outside.assert_none(&format!("with {config}"));
        drop(traffic);
        if code != 0 {
            good(world.hawser("c", &["down"]));
            assert_eq!(world.system("c"), before);
        }
    }
    good(world.hawser("c", &["down"]));
    // A start that fails closes the switch if the file asks for it, and opens nothing otherwise.
    for (config, is_closed) in [
        ("kill_switch = true\nfoo = 1\n", true),
        ("kill_switch = true\nlocal = [\"10.0.0.0/8\"]\n", true),
        (CLOSED, true),
        ("foo = 1\n", false),
    ] {
        configure(&world, config);
        let output = world.hawser("c", &["up", "--foreground"]).output().unwrap();
        assert!(!output.status.success(), "{config}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            said.contains("kill_switch = true: no packet leaves"),
            is_closed,
            "{said}"
        );
        if is_closed {
            let traffic = Traffic::start(&world.open("c"), Some(&behind));
            outside.reset();
            traffic.send(200);
            outside.assert_none(&format!("after a start with {config}"));
            drop(traffic);
            good(world.hawser("c", &["down"]));
        }
        assert_eq!(world.system("c"), before, "{config}");
    }
    configure(&world, CLOSED);
    good(world.hawser("c", &["lockdown"]));
    let _hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let mut client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("up from behind the switch", is_up);
    // A reloaded firewall does the same to all tables.
    let mut gone = world.inside("c", "nft");
    gone.arg("delete table inet hawser_kill");
    good(gone);
    client.send_signal("-HUP");
    world.wait("closed again by a reload", |world| {
        world.system("c").contains("hawser_kill")
    });
    client.signal("-TERM");
    assert_eq!(world.system("c"), before);
}

/// While the switch is closed, only the name of the hub may be resolved outside, and only by
/// Hawser.
#[test]
fn a_hub_that_has_moved_is_found_by_its_name_behind_the_switch() {
    let Some((world, behind, resolver)) = world_by_name("name", CLOSED) else {
        return;
    };
    let _hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let mut client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("up", is_up);
    client.signal("-KILL");
    resolver.move_hub(&world);
    let _traffic = Traffic::start(&world.open("c"), Some(&behind));
    let mut other = world.inside("c", "getent");
    other.args(["hosts", "leak.hawser.test"]);
    assert!(!other.output().unwrap().status.success(), "another name resolves");
    let _client = world.start("c", &["up", "--foreground"]);
    world.wait("up where the hub is now", is_up);
    let asked = resolver.asked();
    assert!(
        asked.iter().all(|name| name == "hub.hawser.test"),
        "asked for outside: {asked:?}"
    );
    good(world.hawser("c", &["down"]));
}

/// The session and the connections in the tunnel continue.
#[test]
fn a_client_that_runs_follows_a_hub_to_its_new_address() {
    for (name, config) in [("follow", "exclude = [\"home\"]\n"), ("folsw", CLOSED)] {
        let Some((world, _behind, resolver)) = world_by_name(name, config) else {
            return;
        };
        let _hub = world.start("h", &["hub", "run"]);
        let invitation = world.invite();
        let _client = world.start("c", &["up", &invitation, "--foreground"]);
        world.wait("up", |world| is_up(world) && world.ping_hub());
        let session = world.status("c")["session"].clone();
        resolver.move_hub(&world);
        world.wait("in touch where the hub is now", World::ping_hub);
        assert_eq!(world.status("c")["session"], session, "{name}");
    }
}

/// A hub without configured resolvers announces those of its machine, or the client reports that
/// there is none.
#[test]
fn names_behind_the_switch_need_a_resolver_of_the_hub() {
    let Some((world, _behind)) = world("nores", "kill_switch = true\ndns = \"hub\"\n") else {
        return;
    };
    let named = |text: &str| Files::new(&world, "h", "resolv.conf", text);
    let public = named("nameserver 127.0.0.53\nnameserver 203.0.113.53\n");
    let hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let mut client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("up", is_up);
    let status = world.status("c");
    assert_eq!(status["resolvers"], serde_json::json!(["203.0.113.53"]));
    assert!(!status["notice"].to_string().contains("resolver"), "{status}");
    client.signal("-TERM");
    drop((hub, public));
    let _near = named("nameserver 10.7.0.53\n");
    let _hub = world.start("h", &["hub", "run"]);
    let _client = world.start("c", &["up", "--foreground"]);
    world.wait("up", is_up);
    let status = world.status("c");
    assert_eq!(status["resolvers"], serde_json::json!([]));
    let notice = status["notice"].as_str().unwrap_or_default();
    assert!(notice.contains("dns = [\"9.9.9.9\"]"), "{notice}");
}

/// Resolver of the local network, which knows the hub's address.
struct Resolver {
    server: Child,
    _files: Files,
    hosts: std::path::PathBuf,
    log: std::path::PathBuf,
}

impl Resolver {
    fn start(world: &World) -> Option<Self> {
        if !hawser_testing::require_dnsmasq() {
            return None;
        }
        let files = with_resolver(world, "10.0.10.1");
        let (hosts, log) = (world.place("hosts"), world.place("names.log"));
        std::fs::write(&hosts, "198.51.100.1 hub.hawser.test\n").unwrap();
        let mut command = world.inside("h", "dnsmasq");
        command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--user=root"]);
        command.args([
            "--no-resolv",
            "--no-hosts",
            "--pid-file=",
            "--log-queries",
            "--local=/test/",
        ]);
        command.args(["--listen-address=10.0.10.1", "--bind-interfaces"]);
        command.arg(format!("--addn-hosts={}", hosts.display()));
        command.arg(format!("--log-facility={}", log.display()));
        command.stdin(Stdio::null());
        let server = command.spawn().unwrap();
        let resolver = Self {
            server,
            _files: files,
            hosts,
            log,
        };
        let deadline = Instant::now() + hawser_testing::GIVE_UP;
        while !std::fs::read_to_string(&resolver.log).is_ok_and(|log| log.contains("started")) {
            assert!(Instant::now() < deadline, "the resolver does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(resolver)
    }

    /// Moves the hub to another address, and forgets all queries.
    fn move_hub(&self, world: &World) {
        let hub = world.namespace("h");
        world.ip(&hub, "addr add 198.51.100.7/32 dev lo");
        world.ip(&hub, "addr del 198.51.100.1/32 dev lo");
        std::fs::write(&self.hosts, "198.51.100.7 hub.hawser.test\n").unwrap();
        crate::world::run("kill", &["-HUP", &self.server.id().to_string()]);
        std::thread::sleep(Duration::from_millis(100));
        std::fs::write(&self.log, "").unwrap();
    }

    /// Returns the queried names.
    fn asked(&self) -> Vec<String> {
        let log = std::fs::read_to_string(&self.log).unwrap();
        let names = log.lines().filter_map(|line| {
            let (_, asked) = line.split_once("query[")?;
            asked.split_whitespace().nth(1).map(ToOwned::to_owned)
        });
        names.collect()
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Makes the client's programs use this resolver.
fn with_resolver(world: &World, address: &str) -> Files {
    let text = format!("nameserver {address}\noptions timeout:1 attempts:1\n");
    Files::new(world, "c", "resolv.conf", &text)
}
