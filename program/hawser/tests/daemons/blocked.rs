//! Blocked UDP: the tunnel uses TLS on TCP, on those networks and for the time that need it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use hawser_linux::netns::Namespace;

use super::transfer::Transfer;
use super::world::{World, active, good, is_up};

fn nft(world: &World, rules: &str) {
    let mut nft = world.inside("h", "nft");
    nft.arg(rules);
    good(nft);
}

/// Drops these packets at the other end of a cable.
fn block(world: &World, cable: &str, what: &str) {
    nft(
        world,
        &format!(
            "add table inet block_{cable}; \
             add chain inet block_{cable} in {{ type filter hook prerouting priority -300; }}; \
             add rule inet block_{cable} in iifname {cable} {what} drop"
        ),
    );
}

fn unblock(world: &World, cable: &str) {
    nft(world, &format!("delete table inet block_{cable}"));
}

fn tls_of(world: &World, cable: &str) -> serde_json::Value {
    let status = world.status("c");
    let networks = status["networks"].as_array().cloned().unwrap_or_default();
    let network = networks.into_iter().find(|network| network["name"] == cable);
    network.map_or(serde_json::Value::Null, |mut network| network["tls"].take())
}

fn is_over_tls(world: &World, cable: &str) -> bool {
    tls_of(world, cable)["state"] == "up" && active(world).contains(&format!("{cable}/tls"))
}

fn took(what: &str, since: Instant) {
    let took = since.elapsed();
    eprintln!("{what}: {:.2} s", took.as_secs_f64());
}

#[test]
fn what_is_said_while_the_control_connection_moves_reaches_the_hub() {
    let Some(world) = World::new("tm") else { return };
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("on both networks", |world| active(world) == ["fiber", "lte"]);
    let status = world.status("c");
    let networks = status["networks"].as_array().cloned().unwrap_or_default();
    let has_control = |name: &str| {
        let mut networks = networks.iter();
        networks.any(|network| network["name"] == name && network["control"] == true)
    };
    let (first, other) = match has_control("fiber") {
        true => ("fiber", "lte"),
        false => ("lte", "fiber"),
    };
    // Both protocols are blocked, so there is no connection between the pause and the end of the
    // block.
    block(&world, other, "meta l4proto { tcp, udp }");
    good(world.hawser("c", &["pause", first]));
    good(world.hawser("c", &["use", other, "overflow"]));
    unblock(&world, other);
    world.wait("heard by the hub", |world| {
        let status = world.status("h");
        let paths = status["sessions"][0]["paths"].as_array().cloned();
        let mut paths = paths.unwrap_or_default().into_iter();
        paths.any(|path| path["state"] == "active" && path["priority"] == "overflow")
    });
}

#[test]
fn one_network_of_two_goes_over_tls_and_returns() {
    let Some(world) = World::new("t1") else { return };
    let server = world.add_server();
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("on both networks", |world| active(world) == ["fiber", "lte"]);
    assert!(tls_of(&world, "lte").is_null(), "UDP works");
    let session = world.status("c")["session"].clone();
    let transfer = Transfer::start(&server, &world.open("c"));
    world.wait("on the way", |_| transfer.received() > 1 << 20);

    block(&world, "lte", "meta l4proto udp");
    let since = Instant::now();
    world.wait("over TLS on one", |world| is_over_tls(world, "lte"));
    took(
        "one of two networks blocked, its path by TLS is there after",
        since,
    );
    let said = good(world.hawser("c", &["status"]));
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("lte: TLS on TCP 443 (UDP is blocked)"), "{said}");
    assert_eq!(tls_of(&world, "lte")["hub_key"], true);
    // The hub sees the source of the connection.
    world.wait("known at the hub by its address", |world| {
        let paths = world.status("h")["sessions"][0]["paths"].clone();
        paths.as_array().is_some_and(|paths| {
            paths.iter().any(|path| {
                let remote = path["remote"].as_str().unwrap_or_default();
                path["over"] == "tls" && remote.starts_with("10.0.11.2:")
            })
        })
    });
    world.wait("no stranger any more", |world| {
        world.status("h")["tls"]["connections"] == 1
    });

    unblock(&world, "lte");
    let since = Instant::now();
    world.wait("on UDP again", |world| {
        active(world) == ["fiber", "lte"] && tls_of(world, "lte").is_null()
    });
    took("UDP works again, and TLS has ended after", since);
    transfer.finish();
    assert_eq!(world.status("c")["session"], session, "the session went on");
}

/// UDP from the hub above 1 Mbit/s is dropped on both networks; TCP passes.
#[test]
fn networks_that_police_datagrams_carry_the_bulk_over_tls() {
    let Some(world) = World::new("t8") else { return };
    let server = world.add_server();
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("on both networks", |world| active(world) == ["fiber", "lte"]);
    let mut police = world.inside("c", "nft");
    police.arg(
        "add table inet police; \
         add chain inet police in { type filter hook prerouting priority -300; }; \
         add rule inet police in iifname fiber meta l4proto udp \
             limit rate over 125 kbytes/second burst 15 kbytes drop; \
         add rule inet police in iifname lte meta l4proto udp \
             limit rate over 125 kbytes/second burst 15 kbytes drop",
    );
    good(police);
    let transfer = Transfer::start(&server, &world.open("c"));
    let since = Instant::now();
    // The first path over TLS may carry all traffic, so that the policer of the other network
    // remains undetected.
    world.wait("over TLS", |world| {
        is_over_tls(world, "fiber") || is_over_tls(world, "lte")
    });
    took("both networks police, and TLS carries after", since);
    let said = good(world.hawser("c", &["status"]));
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains(": TLS on TCP 443 (UDP is policed)"), "{said}");
    transfer.finish();
}

#[test]
fn all_networks_blocked_from_the_start() {
    let Some(world) = World::new("t2") else { return };
    let server = world.add_server();
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    for cable in ["fiber", "lte"] {
        block(&world, cable, "meta l4proto udp");
    }
    let invitation = world.invite();
    let since = Instant::now();
    let _client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("up", is_up);
    world.wait("through", World::ping_hub);
    took(
        "UDP blocked everywhere from the start, a ping is answered after",
        since,
    );
    world.wait("over TLS on both", |world| {
        is_over_tls(world, "fiber") && is_over_tls(world, "lte")
    });
    let session = world.status("c")["session"].clone();
    let transfer = Transfer::start(&server, &world.open("c"));
    world.wait("on the way", |_| transfer.received() > 4 << 20);
    for cable in ["fiber", "lte"] {
        unblock(&world, cable);
    }
    let since = Instant::now();
    world.wait("on UDP", |world| {
        active(world) == ["fiber", "lte"]
            && tls_of(world, "fiber").is_null()
            && tls_of(world, "lte").is_null()
    });
    took("UDP works again everywhere, and TLS has ended after", since);
    transfer.finish();
    assert_eq!(world.status("c")["session"], session, "the session went on");
    assert!(world.ping_hub());
}

#[test]
fn a_transfer_lives_through_a_block_of_all_and_broken_connections() {
    let Some(world) = World::new("t3") else { return };
    let server = world.add_server();
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("on both networks", |world| active(world) == ["fiber", "lte"]);
    let transfer = Transfer::start(&server, &world.open("c"));
    world.wait("on the way", |_| transfer.received() > 1 << 20);
    transfer.take_longest_gap();
    for cable in ["fiber", "lte"] {
        block(&world, cable, "meta l4proto udp");
    }
    world.wait("over TLS on both", |world| {
        is_over_tls(world, "fiber") && is_over_tls(world, "lte")
    });
    let before = transfer.received();
    world.wait("on", |_| transfer.received() > before + (1 << 20));
    let gap = transfer.take_longest_gap();
    eprintln!(
        "all networks blocked at once: no data for {:.2} s",
        gap.as_secs_f64()
    );
    // A middlebox loses the connections: TCP is reset and reconnects.
    let mut kill = world.inside("h", "ss");
    kill.args(["-K", "sport", "=", "443"]);
    good(kill);
    let before = transfer.received();
    world.wait("on after a reset", |_| transfer.received() > before + (1 << 20));
    let gap = transfer.take_longest_gap();
    eprintln!("all connections reset: no data for {:.2} s", gap.as_secs_f64());
    transfer.finish();
}

#[test]
fn a_hub_that_does_not_listen_is_said() {
    let Some(world) = World::new("t4") else { return };
    world.init();
    let file = world.place("h").join("hub.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}\n[tls]\nlisten = \"off\"\n")).unwrap();
    let _hub = world.start("h", &["hub", "run"]);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("on both networks", |world| active(world) == ["fiber", "lte"]);
    block(&world, "lte", "meta l4proto udp");
    world.wait("said", |world| {
        let said = tls_of(world, "lte")["said"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        said.starts_with("no answer over UDP, and none over TLS on TCP 443: ") && said.contains("refused")
    });
    unblock(&world, "lte");
    world.wait("on both networks again", |world| {
        active(world) == ["fiber", "lte"] && tls_of(world, "lte").is_null()
    });
}

/// Starts a proxy in the hub's namespace that requires a name and a password.
fn proxy(hub: &Namespace, at: &str, greet: fn(&mut TcpStream) -> Option<SocketAddr>) {
    let listener = hub.run(|| TcpListener::bind(at)).unwrap();
    let hub = hub.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut client = stream.unwrap();
            let hub = hub.clone();
            std::thread::spawn(move || {
                let Some(to) = greet(&mut client) else { return };
                let far = hub.run(|| TcpStream::connect(to)).unwrap();
                let (mut up, mut down) = (client.try_clone().unwrap(), far.try_clone().unwrap());
                let (mut client, mut far) = (client, far);
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut up, &mut far);
                    let _ = far.shutdown(Shutdown::Both);
                });
                let _ = std::io::copy(&mut down, &mut client);
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    });
}

fn greet_http(client: &mut TcpStream) -> Option<SocketAddr> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    // "guest:let me/in" in base64.
    if !head.contains("Proxy-Authorization: Basic Z3Vlc3Q6bGV0IG1lL2lu\r\n") {
        client.write_all(b"HTTP/1.1 407 Who are you\r\n\r\n").ok()?;
        return None;
    }
    let to = head.strip_prefix("CONNECT ")?.split(' ').next()?.parse().ok()?;
    client
        .write_all(b"HTTP/1.1 200 Connected\r\nVia: test\r\n\r\n")
        .ok()?;
    Some(to)
}

/// RFC 1928 and RFC 1929.
fn greet_socks(client: &mut TcpStream) -> Option<SocketAddr> {
    let mut read = |len: usize| {
        let mut bytes = vec![0; len];
        client.read_exact(&mut bytes).ok()?;
        client.flush().ok()?;
        Some((bytes, client.try_clone().ok()?))
    };
    let (hello, mut answer) = read(2)?;
    read(hello[1].into())?;
    answer.write_all(&[5, 2]).ok()?;
    let (name_len, _) = read(2)?;
    let (name, _) = read(name_len[1].into())?;
    let (password_len, _) = read(1)?;
    let (password, _) = read(password_len[0].into())?;
    if (name.as_slice(), password.as_slice()) != (b"guest", b"let me/in") {
        answer.write_all(&[1, 1]).ok()?;
        return None;
    }
    answer.write_all(&[1, 0]).ok()?;
    let (request, _) = read(4)?;
    let host = match request[3] {
        1 => {
            let (bytes, _) = read(4)?;
            <[u8; 4]>::try_from(bytes).ok()?.into()
        }
        3 => {
            let (len, _) = read(1)?;
            let (name, _) = read(len[0].into())?;
            String::from_utf8(name).ok()?.parse().ok()?
        }
        _ => return None,
    };
    let (port, _) = read(2)?;
    answer.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).ok()?;
    Some(SocketAddr::new(host, u16::from_be_bytes([port[0], port[1]])))
}

#[test]
fn proxies_are_passed() {
    let Some(world) = World::new("t5") else { return };
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let hub = world.open("h");
    proxy(&hub, "10.0.10.1:3128", greet_http);
    proxy(&hub, "10.0.11.1:1080", greet_socks);
    let configure = |fiber: &str, lte: &str| {
        let text = format!("[networks.fiber]\nproxy = \"{fiber}\"\n[networks.lte]\nproxy = \"{lte}\"\n");
        world.configure("c", text);
    };
    configure(
        "http://guest:let%20me%2fin@10.0.10.1:3128",
        "socks5://guest:let%20me%2fin@10.0.11.1:1080",
    );
    // Only the proxies are reachable.
    block(
        &world,
        "fiber",
        "meta l4proto udp drop; add rule inet block_fiber in iifname fiber tcp dport 443",
    );
    block(
        &world,
        "lte",
        "meta l4proto udp drop; add rule inet block_lte in iifname lte tcp dport 443",
    );
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("up", is_up);
    world.wait("through", World::ping_hub);
    world.wait("over TLS through both proxies", |world| {
        is_over_tls(world, "fiber") && is_over_tls(world, "lte")
    });
    let log = std::fs::read_to_string(world.place("c").with_extension("log")).unwrap();
    let status = world.status("c").to_string();
    assert!(
        !log.contains("let me") && !status.contains("let me"),
        "a secret in {log} {status}"
    );
}

#[test]
fn strangers_at_the_listener_keep_nobody_out() {
    let Some(world) = World::new("t6") else { return };
    let server = world.add_server();
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    world.wait("listening", |world| {
        world.status("h")["tls"]["listen"].is_string()
    });
    let client = world.open("c");
    let connect = || {
        let hub: SocketAddr = "198.51.100.1:443".parse().unwrap();
        client
            .run(|| TcpStream::connect_timeout(&hub, hawser_testing::GIVE_UP))
            .unwrap()
    };
    // Many connections send nothing or send slowly, and some send invalid data.
    let mut slow: Vec<_> = (0..100).map(|_| connect()).collect();
    for _ in 0..20 {
        let mut rude = connect();
        let _ = rude.write_all(&[0x47; 100_000]);
    }
    world.add_client("d", 12);
    block(&world, "cable-d", "meta l4proto udp");
    std::fs::create_dir_all(world.place("d")).unwrap();
    let since = Instant::now();
    let _client = world.start("d", &["up", &world.invite(), "--foreground"]);
    world.wait("in from elsewhere", |world| world.status("d")["state"] == "up");
    took(
        "a hundred strangers at the listener, somebody else is in after",
        since,
    );
    for stream in &mut slow {
        let _ = stream.write_all(&[0x16]);
    }
    let counts = world.status("h")["tls"].clone();
    eprintln!("the listener: {counts}");
    assert!(counts["strangers"].as_u64().unwrap() <= 33, "{counts}");
    assert!(counts["turned_away"].as_u64().unwrap() >= 60, "{counts}");
    let transfer = Transfer::start(&server, &world.open("d"));
    transfer.finish();
    world.wait("without strangers", |world| {
        world.status("h")["tls"]["strangers"] == 0
    });
}

/// The load exceeds the connection's capacity; the excess is dropped before it forms a queue.
#[test]
fn a_slow_connection_has_a_short_queue_and_lives_on() {
    let Some(world) = World::new("t7") else { return };
    let _server = world.add_server();
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    world.ip(&world.namespace("c"), "link set fiber down");
    for side in ["c", "h"] {
        let mut tc = world.inside(side, "tc");
        tc.args("qdisc add dev lte root tbf rate 5mbit burst 16k latency 100ms".split(' '));
        good(tc);
    }
    block(&world, "lte", "meta l4proto udp");
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("over TLS", |world| is_over_tls(world, "lte"));
    let socket = world.open("c").run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    let blast = std::thread::spawn(move || {
        // The load is 20 Mbit/s for 6 s.
        let end = Instant::now() + Duration::from_secs(6);
        while Instant::now() < end {
            for _ in 0..20 {
                let _ = socket.send_to(&[7; 1_200], "203.0.113.2:9100");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    std::thread::sleep(Duration::from_secs(2));
    let mut ping = world.inside("c", "ping");
    ping.args(["-c", "15", "-i", "0.2", "-W", "5", "100.96.0.1"]);
    let said = String::from_utf8(ping.output().unwrap().stdout).unwrap();
    let summary = said.lines().last().unwrap_or_default().to_owned();
    eprintln!("a ping beside four times what 5 Mbit/s carry: {summary}");
    // "rtt min/avg/max/mdev = 1.0/2.0/3.0/0.5 ms"
    let mean = summary
        .split('=')
        .nth(1)
        .and_then(|numbers| numbers.split('/').nth(1));
    let mean: f64 = mean.and_then(|mean| mean.parse().ok()).unwrap_or(f64::MAX);
    // Unbounded socket buffers would hold 13 s of the load.
    assert!(mean < 2_000.0, "{said}");
    blast.join().unwrap();
    world.wait("through afterwards", World::ping_hub);
    assert!(is_over_tls(&world, "lte"), "{}", world.status("c"));
}

#[test]
fn a_hub_with_ipv6_alone_is_reached() {
    let Some(world) = World::new("t8") else { return };
    world.add_ipv6();
    world.init_at("[2001:db8:1::1]:4430");
    let _hub = world.start("h", &["hub", "run"]);
    for cable in ["fiber", "lte"] {
        block(&world, cable, "meta l4proto udp");
    }
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("over TLS on both", |world| {
        is_over_tls(world, "fiber") && is_over_tls(world, "lte")
    });
    world.wait("through", World::ping_hub);
    let paths = world.status("h")["sessions"][0]["paths"].to_string();
    assert!(paths.contains("[2001:db8:10::2]:"), "{paths}");
}

pub(super) fn examined(world: &World) -> (bool, serde_json::Value) {
    let output = world
        .inside("c", env!("CARGO_BIN_EXE_hawser"))
        .args(["doctor", "--json", "--dir"])
        .arg(world.place("c"))
        .output()
        .unwrap();
    let said = serde_json::from_slice(&output.stdout);
    (
        output.status.success(),
        said.unwrap_or_else(|_| panic!("{output:?}")),
    )
}

pub(super) fn finding(said: &serde_json::Value, cable: &str, what: &str) -> (bool, String) {
    let networks = said["networks"].as_array().unwrap();
    let network = networks.iter().find(|network| network["name"] == cable).unwrap();
    let findings = network["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["what"] == what);
    found.map_or((false, String::new()), |found| {
        (
            found["good"] == true,
            format!("{} {}", found["said"], found["next"]),
        )
    })
}

#[test]
fn the_doctor_says_what_works_and_what_to_do() {
    let Some(world) = World::new("t9") else { return };
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let mut client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("up", is_up);
    client.signal("-TERM");
    let before = world.system("c");
    block(&world, "lte", "meta l4proto udp");
    let (is_reached, said) = examined(&world);
    assert!(is_reached, "{said}");
    for what in ["link", "address", "udp", "tcp", "mtu"] {
        assert!(finding(&said, "fiber", what).0, "{what}: {said}");
    }
    assert!(finding(&said, "fiber", "mtu").1.contains("1500"), "{said}");
    let (works, words) = finding(&said, "lte", "udp");
    assert!(
        !works && words.contains("TLS on TCP is used on this network"),
        "{said}"
    );
    assert!(finding(&said, "lte", "tcp").0, "{said}");
    // Both networks drop all packets.
    for cable in ["fiber", "lte"] {
        block(&world, cable, "meta l4proto { udp, tcp }");
    }
    world.ip(&world.namespace("h"), "link set fiber down");
    let (is_reached, said) = examined(&world);
    assert!(!is_reached, "{said}");
    assert!(!finding(&said, "fiber", "link").0, "{said}");
    assert!(
        finding(&said, "lte", "udp")
            .1
            .contains("its firewall admits UDP port"),
        "{said}"
    );
    assert!(
        finding(&said, "lte", "tcp").1.contains("[tls] in hub.toml"),
        "{said}"
    );
    world.ip(&world.namespace("h"), "link set fiber up");
    assert_eq!(world.system("c"), before, "it has changed something");
}
