//! A client as a gateway with a hub: machines behind it use only the tunnel, and ports of the hub
//! are forwarded to them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use hawser_linux::netns::Namespace;

use crate::mixed::add_machine_behind;
use crate::transfer::Transfer;
use crate::world::{Daemon, World, good, is_up};

const TIMEOUT: Duration = Duration::from_secs(3);

/// Hub, server, client, and a machine behind the client.
struct Home {
    world: World,
    server: Namespace,
    behind: Namespace,
    client: Daemon,
    hub: Daemon,
}

impl Home {
    fn new(name: &str, config: &str) -> Option<Self> {
        let world = World::new(name)?;
        let server = world.add_server();
        let behind = add_machine_behind(&world);
        let inside = world.namespace("c");
        // A new namespace has the machine's own setting.
        let mut sysctl = world.inside("c", "sysctl");
        sysctl.args(["-qw", "net.ipv4.ip_forward=0"]);
        good(sysctl);
        world.ip(&inside, "addr add fd00:7::1/64 dev home nodad");
        let mut ip = behind.command("sh");
        ip.args([
            "-ec",
            "ip link set lo up; ip addr add fd00:7::2/64 dev home nodad; ip -6 route add default via fd00:7::1",
        ]);
        good(ip);
        for (side, last) in [("h", 1), ("s", 2)] {
            let address = format!("addr add 2001:db8:50::{last}/64 dev lan nodad");
            world.ip(&world.namespace(side), &address);
        }
        world.init();
        world.configure("c", config);
        let hub = world.start("h", &["hub", "run"]);
        let client = world.start("c", &["up", &world.invite(), "--foreground"]);
        world.wait("up", is_up);
        world.wait("through", World::ping_hub);
        Some(Self {
            world,
            server,
            behind,
            client,
            hub,
        })
    }

    /// Returns the address that the server sees when the machine behind the gateway connects to it.
    fn seen(&self, server: &str) -> std::io::Result<String> {
        let to: SocketAddr = server.parse().unwrap();
        let listener = self.server.run(|| TcpListener::bind(to))?;
        let stream = self.behind.run(|| TcpStream::connect_timeout(&to, TIMEOUT))?;
        let (_accepted, from) = listener.accept()?;
        drop(stream);
        Ok(from.ip().to_string())
    }

    /// Connects from the server to a port of the hub. Returns the first received word.
    fn asked(&self, port: u16) -> std::io::Result<String> {
        let to = SocketAddr::new("203.0.113.1".parse().unwrap(), port);
        let mut stream = self
            .server
            .run(|| TcpStream::connect_timeout(&to, Duration::from_millis(500)))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }
}

/// Starts a server that sends a word to each connection.
fn answer(place: &Namespace, port: u16, word: &'static str) {
    let listener = place.run(|| TcpListener::bind(("0.0.0.0", port))).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| stream.write_all(word.as_bytes()));
        }
    });
}

/// Returns the number of a client's connections that became streams.
fn streams_of(world: &World) -> Option<u64> {
    world.status("c")["counters"]["streams_connected"].as_u64()
}

#[test]
fn connections_of_machines_behind_a_gateway_are_streams() {
    let Some(home) = Home::new("gw-st", "forward = true\ntcp = \"stream\"\n") else {
        return;
    };
    assert_eq!(
        home.seen("203.0.113.2:7001").unwrap(),
        "203.0.113.1",
        "as the hub"
    );
    assert_eq!(home.seen("[2001:db8:50::2]:7001").unwrap(), "2001:db8:50::1");
    assert_eq!(streams_of(&home.world), Some(2));
    Transfer::start(&home.server, &home.behind).finish();
    assert_eq!(streams_of(&home.world), Some(3));
    let refused: SocketAddr = "203.0.113.2:7".parse().unwrap();
    let refused = home.behind.run(|| TcpStream::connect_timeout(&refused, TIMEOUT));
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}

/// Returns the counter of packets into the tunnel in the client's namespace.
fn packets_into_the_tunnel(world: &World) -> u64 {
    let mut command = world.inside("c", "cat");
    command.arg("/sys/class/net/hawser0/statistics/tx_packets");
    let text = String::from_utf8(good(command).stdout).unwrap();
    text.trim().parse().unwrap()
}

#[test]
fn machines_behind_a_gateway_use_the_tunnel_as_their_own() {
    let Some(mut home) = Home::new("gw", "forward = true\n") else {
        return;
    };
    assert_eq!(
        home.seen("203.0.113.2:7001").unwrap(),
        "203.0.113.1",
        "as the hub"
    );
    assert_eq!(home.seen("[2001:db8:50::2]:7001").unwrap(), "2001:db8:50::1");
    // Its connections must announce a segment size that fits into the tunnel, or large segments
    // would be lost.
    Transfer::start(&home.server, &home.behind).finish();
    // A neighbour on an uplink is not a machine behind the gateway.
    let hub = home.world.namespace("h");
    home.world
        .ip(&hub, "route add 192.0.2.0/24 via 10.0.10.2 dev fiber");
    let before = packets_into_the_tunnel(&home.world);
    let mut ping = home.world.inside("h", "ping");
    ping.args(["-q", "-i", "0.01", "-c", "50", "-W", "1", "192.0.2.9"]);
    let _ = ping.output().unwrap();
    let more = packets_into_the_tunnel(&home.world) - before;
    assert!(more < 25, "{more} packets of 50 were forwarded for a neighbour");
    home.client.signal("-TERM");
    let tables = good({
        let mut nft = home.world.inside("c", "nft");
        nft.args(["list", "tables"]);
        nft
    });
    assert!(!String::from_utf8_lossy(&tables.stdout).contains("hawser"));
    let mut sysctl = home.world.inside("c", "sysctl");
    sysctl.args(["-n", "net.ipv4.ip_forward"]);
    assert_eq!(good(sysctl).stdout, b"0\n");
}

#[test]
fn the_kill_switch_holds_for_machines_behind_a_gateway_and_leaves_the_lan_alone() {
    let config = "kill_switch = true\nforward = [\"home\"]\n";
    let Some(mut home) = Home::new("gwk", config) else {
        return;
    };
    assert_eq!(home.seen("203.0.113.2:7001").unwrap(), "203.0.113.1");
    home.client.signal("-KILL");
    // The hub's machine would otherwise answer outside the tunnel.
    let inside = home.world.namespace("h");
    home.world.ip(&inside, "route add 192.168.7.0/24 via 10.0.10.2");
    let server = home.world.namespace("s");
    home.world.ip(&server, "route add 192.168.7.0/24 via 203.0.113.1");
    assert!(home.seen("203.0.113.2:7002").is_err(), "outside the tunnel");
    // The gateway's own machines get addresses and names from it, so they may reach it.
    let mut ping = home.world.inside("c", "ping");
    ping.args(["-c", "1", "-W", "2", "192.168.7.2"]);
    good(ping);
}

/// Rules that route some flows past the hub, so that direct mode forwards.
const PAST: &str = "[direct]\nportal_check = \"off\"\n[[rule]]\nport = 8999\nvia = \"direct\"\n";

#[test]
fn a_port_of_the_hub_leads_to_a_client_and_to_a_machine_behind_it() {
    ports_lead_in("gwp", "");
}

#[test]
fn a_port_of_the_hub_ends_at_a_machine_of_the_lan_with_rules_past_the_hub() {
    ports_lead_in("gwpd", PAST);
}

fn ports_lead_in(name: &str, rules: &str) {
    let config = format!(
        "inbound = [\"tcp 8081\"]\nforward = true\n[[port_forward]]\nport = \"tcp 8080\"\nto = \"192.168.7.2:80\"\n{rules}"
    );
    let Some(home) = Home::new(name, &config) else {
        return;
    };
    answer(&home.behind, 80, "behind");
    answer(&home.world.open("c"), 8081, "client");
    assert!(home.asked(8080).is_err(), "nothing leads there yet");
    for port in ["8080", "8081"] {
        good(home.world.hawser("h", &["hub", "forward", "alice", "tcp", port]));
    }
    home.world.wait("led to the client", |_| {
        home.asked(8081).is_ok_and(|text| text == "client")
    });
    assert_eq!(home.asked(8080).unwrap(), "behind");
    assert!(home.asked(8082).is_err(), "a port that nobody was given");
    let refused = home
        .world
        .hawser("h", &["hub", "forward", "alice", "udp", "4430"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("is used by the hub itself"),
        "{said}"
    );
    good(
        home.world
            .hawser("h", &["hub", "forward", "alice", "tcp", "8080", "--off"]),
    );
    home.world.wait("off", |_| home.asked(8080).is_err());
    assert_eq!(home.asked(8081).unwrap(), "client");
}

/// Adds bob with a machine behind his client, and starts his daemon.
fn add_bob(world: &World) -> (Namespace, Daemon) {
    let bob = world.add_client("d", 12);
    let daemon = world.start("d", &["up", &world.invite_as("bob"), "--foreground"]);
    world.wait("bob is up", |world| world.status("d")["state"] == "up");
    (bob, daemon)
}

/// Connects to a machine. Returns the client's address as seen by the machine.
fn met(machine: &Namespace, from: &Namespace, to: &str) -> std::io::Result<String> {
    let to: SocketAddr = to.parse().unwrap();
    let listener = machine.run(|| TcpListener::bind(to))?;
    let stream = from.run(|| TcpStream::connect_timeout(&to, Duration::from_secs(1)))?;
    let (_accepted, from) = listener.accept()?;
    drop(stream);
    Ok(from.ip().to_string())
}

#[test]
fn a_subnet_behind_a_client_keeps_its_addresses_and_is_reached_by_whom_the_hub_allows() {
    subnets_keep_their_addresses("gws", "");
}

#[test]
fn a_subnet_behind_a_client_keeps_its_addresses_with_rules_past_the_hub() {
    subnets_keep_their_addresses("gwsd", PAST);
}

fn subnets_keep_their_addresses(name: &str, rules: &str) {
    if !hawser_testing::require_root_of_machine("a hub with several pairs of threads (eBPF)") {
        return;
    }
    let config = format!("forward = true\nsubnets = [\"192.168.7.0/24\", \"fd00:7::/64\"]\n{rules}");
    let Some(mut home) = Home::new(name, &config) else {
        return;
    };
    let (bob, _bobs) = add_bob(&home.world);
    assert_eq!(
        home.seen("203.0.113.2:7001").unwrap(),
        "203.0.113.1",
        "by NAT until led"
    );
    let kept = |world: &World| {
        let status = world.status("c");
        status["subnets"]["kept"].as_array().map_or(0, Vec::len)
    };
    assert_eq!(kept(&home.world), 0);
    let subnet = |rest: &[&str]| {
        let words = [&["hub", "subnet", "alice"], rest].concat();
        home.world.hawser("h", &words).output().unwrap()
    };
    for (wrong, why) in [
        ("100.96.7.0/24", "overlaps 100.96.0.0/16"),
        ("203.0.113.128/25", "a network of this machine"),
        ("127.1.0.0/16", "a network of this machine"),
        ("224.0.0.0/8", "not a subnet of hosts"),
        ("192.168.7.1/24", "without host bits"),
    ] {
        let refused = subnet(&[wrong]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(why), "{wrong}: {said}");
    }
    for net in ["192.168.7.0/24", "fd00:7::/64"] {
        assert!(subnet(&[net, "--for", "bob"]).status.success());
    }
    home.world.wait("both are kept", |world| kept(world) == 2);
    let (v4, v6) = ("192.168.7.2:80", "[fd00:7::2]:80");
    home.world.wait("bob gets in", |_| {
        met(&home.behind, &bob, v4).is_ok() && met(&home.behind, &bob, v6).is_ok()
    });
    assert_eq!(met(&home.behind, &bob, v4).unwrap(), "100.96.0.3", "as himself");
    assert!(met(&home.behind, &bob, v6).unwrap().starts_with("fd"));
    let hub = home.world.open("h");
    assert_eq!(met(&home.behind, &hub, v4).unwrap(), "100.96.0.1");
    assert_eq!(
        home.seen("203.0.113.2:7001").unwrap(),
        "203.0.113.1",
        "out, as the hub"
    );
    assert_eq!(home.seen("[2001:db8:50::2]:7001").unwrap(), "2001:db8:50::1");
    let server = home.world.namespace("s");
    home.world.ip(&server, "route add 192.168.7.0/24 via 203.0.113.1");
    assert!(
        met(&home.behind, &home.server, v4).is_err(),
        "nobody has let it in"
    );
    // Bob's consent does not let alice's machines reach his.
    assert!(met(&bob, &home.behind, "100.96.0.3:81").is_err());
    let clash = home
        .world
        .hawser("h", &["hub", "subnet", "bob", "192.168.0.0/16"]);
    let clash = { clash }.output().unwrap();
    assert!(String::from_utf8_lossy(&clash.stderr).contains("which is routed to alice"));
    home.hub.signal("-KILL");
    // With several pairs of threads, the subnet may belong to another pair than the address.
    let hub_toml = home.world.place("h").join("hub.toml");
    let text = std::fs::read_to_string(&hub_toml).unwrap();
    std::fs::write(&hub_toml, format!("thread_pairs = 3\n{text}")).unwrap();
    home.hub = home.world.start("h", &["hub", "run"]);
    home.world.wait("bob gets in again", |_| {
        met(&home.behind, &bob, v4).is_ok_and(|from| from == "100.96.0.3")
    });
    let pairs = home.world.status("h")["thread_pairs"].clone();
    assert_eq!(pairs.as_array().map(Vec::len), Some(3), "{pairs}");
    assert_eq!(met(&home.behind, &hub, v4).unwrap(), "100.96.0.1");
    let off = &["hub", "subnet", "alice", "192.168.7.0/24", "--off"];
    good(home.world.hawser("h", off));
    home.world.wait("one is kept", |world| kept(world) == 1);
    assert!(met(&home.behind, &bob, v4).is_err(), "it is taken away");
    assert!(met(&home.behind, &bob, v6).is_ok(), "the other is not");
    let mut routes = home.world.inside("h", "ip");
    routes.args(["route", "show", "192.168.7.0/24"]);
    assert!(good(routes).stdout.is_empty(), "no route stays");
    assert_eq!(
        home.seen("203.0.113.2:7001").unwrap(),
        "203.0.113.1",
        "by NAT again"
    );
}
