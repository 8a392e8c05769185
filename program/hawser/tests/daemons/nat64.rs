//! A hub with IPv4 only, and a network of the client with IPv6 only. Its translator (NAT64) is the
//! hub's machine itself, which has the translated address too.

use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hawser_wire::nat64::{Announced, Prefix};
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

use crate::blocked::{examined, finding};
use crate::world::{World, active, good};

/// Leaves only IPv6 on `lte`, with a translator of that prefix.
fn world(name: &str, prefix: Prefix) -> Option<World> {
    let world = World::new(name)?;
    let (client, hub) = (world.namespace("c"), world.namespace("h"));
    world.ip(&client, "addr flush dev lte");
    world.ip(&client, "addr add 2001:db8:11::2/64 dev lte nodad");
    world.ip(&hub, "addr add 2001:db8:11::1/64 dev lte nodad");
    let translated = prefix.address_of([198, 51, 100, 1].into()).unwrap();
    world.ip(&hub, &format!("addr add {translated}/128 dev lo nodad"));
    world.init();
    Some(world)
}

fn prefix(address: &str) -> Prefix {
    Prefix::new(address.parse().unwrap(), 96).unwrap()
}

/// Starts the resolver of `lte`, which knows the addresses of `ipv4only.arpa` while the returned
/// flag is set.
fn serve_known_name(world: &World) -> Arc<AtomicBool> {
    let bind = || UdpSocket::bind("[2001:db8:11::1]:53");
    let socket = world.open("h").run(bind).unwrap();
    let knows = Arc::new(AtomicBool::new(true));
    let is_known = Arc::clone(&knows);
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let mut bytes = buffer[..length].to_vec();
            bytes[2] |= 0x80;
            let is_asked = bytes.windows(8).any(|window| window == b"ipv4only");
            if is_asked && is_known.load(Ordering::Relaxed) {
                bytes[7] = 2;
                for address in ["64:ff9b::192.0.0.170", "64:ff9b::192.0.0.171"] {
                    // AAAA for the name in the question, for 90 s.
                    bytes.extend([0xc0, 12, 0, 28, 0, 1, 0, 0, 0, 90, 0, 16]);
                    bytes.extend(address.parse::<Ipv6Addr>().unwrap().octets());
                }
            }
            if socket.send_to(&bytes, from).is_err() {
                return;
            }
        }
    });
    knows
}

/// Sends router advertisements on `lte` that announce the prefix for that time, three a second,
/// until the returned flag is set.
fn advertise(world: &World, announced: Announced) -> Arc<AtomicBool> {
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_over);
    let open = || {
        let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6))?;
        socket.set_multicast_hops_v6(255)?;
        socket.bind_device(Some(b"lte"))?;
        Ok(socket)
    };
    let socket = world.open("h").run(open).unwrap();
    std::thread::spawn(move || {
        // Router for 1800 s (RFC 4861 section 4.2), and the option (RFC 8781 section 4).
        let head = [134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 38, 2];
        let bytes = [&head[..], &announced.emit()].concat();
        let all = SocketAddrV6::new(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), 0, 0, 0);
        while !ends.load(Ordering::Relaxed) {
            // At first there is no source address.
            let _ = socket.send_to(&bytes, &all.into());
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    is_over
}

fn lte(world: &World) -> Value {
    let status = world.status("c");
    let networks = status["networks"].as_array().cloned().unwrap_or_default();
    let mut networks = networks.into_iter();
    networks
        .find(|network| network["name"] == "lte")
        .unwrap_or_default()
}

#[test]
fn a_hub_with_ipv4_only_is_reached_over_a_network_with_ipv6_only() {
    let prefix = prefix("64:ff9b::");
    let Some(world) = world("n64", prefix) else { return };
    world.ip(
        &world.namespace("c"),
        "-6 route add default via 2001:db8:11::1 dev lte",
    );
    let knows = serve_known_name(&world);
    let _hub = world.start("h", &["hub", "run"]);
    world.configure(
        "c",
        "kill_switch = true\n[networks.lte]\ndns = [\"2001:db8:11::1\"]\n",
    );
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("on both networks", |world| active(world) == ["fiber", "lte"]);
    let shown = lte(&world);
    assert_eq!(
        (&shown["nat64"], &shown["hub"]),
        (&"64:ff9b::/96".into(), &"198.51.100.1:4430".into())
    );
    let paths = world.status("h")["sessions"][0]["paths"].to_string();
    assert!(
        paths.contains("[2001:db8:11::2]:") && paths.contains("10.0.10.2:"),
        "{paths}"
    );
    let said = good(world.hawser("c", &["status"]));
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(
        said.contains("lte: IPv6 only, to the hub through the network's NAT64 (64:ff9b::/96)"),
        "{said}"
    );

    world.ip(&world.namespace("c"), "link set fiber down");
    world.wait("over lte alone", |world| {
        active(world) == ["lte"] && world.ping_hub()
    });
    let mut nft = world.inside("h", "nft");
    nft.arg(
        "add table inet block; \
         add chain inet block in { type filter hook prerouting priority -300; }; \
         add rule inet block in iifname lte udp dport 4430 drop",
    );
    good(nft);
    world.wait("by TLS through the translator", |world| {
        active(world) == ["lte/tls"] && world.ping_hub()
    });
    let saved = std::fs::read_to_string(world.place("c").join("hub-joined.toml")).unwrap();
    assert!(!saved.contains("64:ff9b"), "addresses of one network: {saved}");

    let (good, said) = finding(&examined(&world).1, "lte", "nat64");
    assert!(good && said.contains("198.51.100.1 (64:ff9b::/96)"), "{said}");
    knows.store(false, Ordering::Relaxed);
    let (good, said) = finding(&examined(&world).1, "lte", "nat64");
    assert!(!good && said.contains("IPv6 only and no NAT64"), "{said}");
}

#[test]
fn routers_announce_and_withdraw_their_translator() {
    let prefix = prefix("2001:db8:64::");
    let Some(world) = world("ra64", prefix) else {
        return;
    };
    let mut sysctl = world.inside("c", "sysctl");
    good({
        sysctl.args(["-qw", "net.ipv6.conf.lte.accept_ra=1"]);
        sysctl
    });
    let _hub = world.start("h", &["hub", "run"]);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("on one network", |world| active(world) == ["fiber"]);
    let lifetime = Duration::from_secs(1_800);
    let is_over = advertise(&world, Announced { prefix, lifetime });
    world.wait("on both networks", |world| active(world) == ["fiber", "lte"]);
    assert_eq!(lte(&world)["nat64"], "2001:db8:64::/96");
    is_over.store(true, Ordering::Relaxed);
    let lifetime = Duration::ZERO;
    let _withdrawn = advertise(&world, Announced { prefix, lifetime });
    world.wait("on one network again", |world| active(world) == ["fiber"]);
    assert!(lte(&world)["nat64"].is_null());
}
