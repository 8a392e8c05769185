//! A member without Hawser: a router that forwards to the kernel's own GRE.
//!
//! The tests run in a separate kernel, because not every machine's kernel has GRE. The taker has a
//! network of 8 Mbit/s; the member's modem has 5 Mbit/s.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use hawser_linux::gre::GreSocket;
use hawser_testing::Kernel;
use hawser_wire::gre::Datagram;
use hawser_wire::inner::Ecn;
use serde_json::Value;

use super::neighbours::{rate, tc};
use super::transfer::Transfer;
use super::world::{Daemon, World, active, good, is_up, run};

/// Address of the member for the hub, and of the hub for the member.
const MEMBER: Ipv4Addr = Ipv4Addr::new(10, 0, 20, 2);
const HUB: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

/// Creates a router without Hawser, with a modem to the hub and a local network to the taker, by
/// the commands for Linux in docs/manual/neighbours.md.
fn build_member(world: &World, key: &str) {
    world.add_client("d", 20);
    let (own, client, hub) = (world.namespace("d"), world.namespace("c"), world.namespace("h"));
    let lan = [
        "link", "add", "lan", "netns", &own, "type", "veth", "peer", "name", "lan-d", "netns", &client,
    ];
    run("ip", &lan);
    for (namespace, device, last) in [(&own, "lan", 2), (&client, "lan-d", 1)] {
        world.ip(namespace, &format!("addr add 192.168.20.{last}/24 dev {device}"));
        // Real cards send packets one by one.
        world.ip(namespace, &format!("link set {device} gso_max_segs 1 up"));
    }
    tc(&own, "cable-d", "5mbit");
    tc(&hub, "cable-d", "5mbit");
    let mut forward = world.inside("d", "sysctl");
    forward.args(["-q", "-w", "net.ipv4.ip_forward=1"]);
    good(forward);
    world.ip(
        &own,
        &format!("link add hub type gre local {MEMBER} remote {HUB} ttl 64{key}"),
    );
    world.ip(&own, "link set hub up");
    world.ip(&own, "route add 10.47.47.0/24 dev hub");
}

fn write(world: &World, side: &str, file: &str, text: &str) {
    std::fs::create_dir_all(world.place(side)).unwrap();
    std::fs::write(world.place(side).join(file), text).unwrap();
}

/// Starts the hub and the taker, which has the member in its configuration.
fn start(world: &World, gre: &str) -> [Daemon; 2] {
    for side in ["c", "h"] {
        tc(&world.namespace(side), "fiber", "8mbit");
    }
    world.init();
    let place = world.place("h").join("hub.toml");
    let hub = std::fs::read_to_string(&place).unwrap();
    std::fs::write(
        &place,
        format!("{hub}\n[gre]\nnetwork = \"10.47.47.0/24\"\nmembers = [\"{MEMBER}\"]\n{gre}"),
    )
    .unwrap();
    write(world, "c", "client.toml", &client_toml(GRE));
    let hub = world.start("h", &["hub", "run"]);
    let client = world.start("c", &["up", &world.invite(), "--foreground"]);
    [hub, client]
}

const GRE: &str =
    "[[pool.gre]]\nname = \"bob's router\"\nmember = \"192.168.20.2\"\nnetwork = \"10.47.47.0/24\"\n";

fn client_toml(gre: &str) -> String {
    format!("exclude = [\"lte\"]\n{gre}")
}

/// Returns the status of the member in `hawser pool`.
fn member(world: &World) -> Value {
    world.status("c")["pool"]["gre"][0].clone()
}

fn hub_gre(world: &World) -> Value {
    world.status("h")["gre"].clone()
}

fn both(world: &World) -> bool {
    active(world) == ["bob's router", "fiber"]
}

#[test]
#[ignore = "slow: make test-all"]
fn a_router_without_hawser_adds_its_modem_and_may_vanish() {
    let name = "gre::a_router_without_hawser_adds_its_modem_and_may_vanish";
    if !Kernel::new().virtual_time().enter(name) {
        return;
    }
    let Some(world) = World::new("g1") else { return };
    let server = world.add_server();
    build_member(&world, " key 7");
    let before = world.system("c");
    let [mut hub, mut client] = start(&world, "key = 7\n");
    world.wait("up", is_up);
    world.wait("on both", both);
    let paths = world.status("h")["sessions"][0]["paths"].clone();
    let paths = paths.as_array().unwrap();
    let inside = paths.iter().filter(|path| path["over"] == "gre").count();
    assert_eq!(inside, 1, "{paths:?}");

    let transfer = Transfer::start(&server, &world.open("c"));
    world.wait("on the way", |_| transfer.received() > 2 << 20);
    let mut windows = (0..4).map(|_| rate(&transfer, Duration::from_secs(3)));
    let together = windows.find(|rate| *rate > 0.85 * 13.0);
    let together = together.expect("the sum is not reached");
    println!(
        "8 Mbit/s and a modem of 5 by GRE: {:.3} of the sum",
        together / 13.0
    );
    // The path has determined its MTU: 1,500 bytes less an outer header and a GRE header with key.
    let status = world.status("c");
    let paths = status["sessions"][0]["paths"].as_array().unwrap().clone();
    let of_member = paths.iter().find(|path| path["name"] == "bob's router").unwrap();
    println!("its path: {of_member}");
    assert_eq!(of_member["pmtu"], 1_472, "{of_member}");

    // The router fails without notice.
    transfer.take_longest_gap();
    world.ip(&world.namespace("d"), "link set cable-d down");
    world.wait("without the member", |world| active(world) == ["fiber"]);
    let before_alone = transfer.received();
    let alone = rate(&transfer, Duration::from_secs(4));
    println!(
        "no data for {:.3} s, then {:.3} of the sum",
        transfer.take_longest_gap().as_secs_f64(),
        alone / 13.0
    );
    assert!(
        transfer.received() > before_alone && alone < 0.75 * together,
        "{alone}"
    );
    world.wait("given up", |world| member(world)["why"] == "it no longer answers");
    // The router returns.
    world.ip(&world.namespace("d"), "link set cable-d up");
    world.ip(&world.namespace("d"), "route add default via 10.0.20.1");
    let is_back = |world: &World| (0..20).any(|_| both(world) || pause());
    world.wait("with the member again", is_back);

    // A reload removes the member, and another one adds it again; no state remains at the end, also
    // after a crash.
    write(&world, "c", "client.toml", &client_toml(""));
    good(world.hawser("c", &["reload"]));
    world.wait("taken no more", |world| active(world) == ["fiber"]);
    let rules = |world: &World| world.system("c").contains("10.47.47.");
    assert!(!rules(&world), "{}", world.system("c"));
    write(&world, "c", "client.toml", &client_toml(GRE));
    good(world.hawser("c", &["reload"]));
    world.wait("taken again", both);
    assert!(rules(&world));
    client.signal("-KILL");
    assert!(rules(&world));
    good(world.hawser("c", &["down"]));
    assert_eq!(world.system("c"), before);
    hub.signal("-TERM");
}

fn pause() -> bool {
    std::thread::sleep(Duration::from_millis(500));
    false
}

#[test]
#[ignore = "slow: make test-all"]
fn forged_packets_of_gre_are_refused_and_lead_nowhere() {
    let name = "gre::forged_packets_of_gre_are_refused_and_lead_nowhere";
    if !Kernel::new().virtual_time().enter(name) {
        return;
    }
    let Some(world) = World::new("g2") else { return };
    build_member(&world, "");
    let _daemons = start(&world, "");
    world.wait("on both", both);
    let taker = SocketAddrV4::new(Ipv4Addr::new(192, 168, 20, 77), 9);
    let genuine = Datagram {
        outer: (MEMBER, HUB),
        key: None,
        source: taker,
        destination: "10.47.47.9:47474".parse().unwrap(),
        ecn: Ecn::NotEct,
        payload: &[0x40; 40],
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.unwrap();
    let open = || {
        let _guard = runtime.enter();
        GreSocket::open()
    };
    let socket = world.open("d").run(open).unwrap();
    let send = |datagram: &Datagram<'_>, change: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        assert!(datagram.emit(&mut out));
        change(&mut out);
        for _ in 0..10 {
            socket.send(&out, HUB).unwrap();
        }
    };
    let other_source = (Ipv4Addr::new(10, 0, 20, 3), HUB);
    let resolver = "9.9.9.9:53".parse().unwrap();
    let hub_port = "10.47.47.9:4430".parse().unwrap();
    send(
        &Datagram {
            outer: other_source,
            ..genuine
        },
        &|_| {},
    );
    send(
        &Datagram {
            key: Some(7),
            ..genuine
        },
        &|_| {},
    );
    send(
        &Datagram {
            destination: resolver,
            ..genuine
        },
        &|_| {},
    );
    send(
        &Datagram {
            destination: hub_port,
            ..genuine
        },
        &|_| {},
    );
    send(&genuine, &|packet| packet[24 + 10] ^= 1);
    send(&genuine, &|packet| packet.truncate(30));
    world.wait("refused", |world| {
        let dropped = hub_gre(world)["dropped"].clone();
        let count = |reason: &str| dropped[reason].as_u64().unwrap_or(0);
        let each = ["no_member", "key", "checksum", "cut"].map(count);
        each == [10; 4] && count("destination") == 20
    });
    world.wait("known", |world| hub_gre(world)["strangers"] == 0);
    // Well-formed packets of an unknown sender temporarily get entries, up to the maximum.
    for port in 0..50 {
        let source = SocketAddrV4::new(*taker.ip(), port);
        let other = SocketAddrV4::new(Ipv4Addr::new(192, 168, 20, 100 + port as u8), port);
        send(&Datagram { source, ..genuine }, &|_| {});
        send(
            &Datagram {
                source: other,
                ..genuine
            },
            &|_| {},
        );
    }
    world.wait("bounded", |world| {
        hub_gre(world)["dropped"]["no_place"].as_u64() > Some(0)
    });
    assert!(
        hub_gre(&world)["strangers"].as_u64() <= Some(32),
        "{}",
        hub_gre(&world)
    );
    // If one of the member's packets was behind the flood, its path is overdue for a moment.
    world.wait("the taker goes on", both);
    std::thread::sleep(Duration::from_secs(17));
    assert_eq!(hub_gre(&world)["strangers"], 0, "{}", hub_gre(&world));
    assert!(both(&world), "the taker goes on");

    // The hub's configuration no longer contains the member.
    let place = world.place("h").join("hub.toml");
    let text = std::fs::read_to_string(&place).unwrap();
    std::fs::write(&place, text.replace("10.0.20.2", "192.0.2.1")).unwrap();
    good(world.hawser("h", &["reload"]));
    world.wait("without the member", |world| active(world) == ["fiber"]);
}
