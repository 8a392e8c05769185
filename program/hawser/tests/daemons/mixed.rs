//! Flows past the hub concurrent with flows through it: rules decide, no other packets leave, and
//! no state remains.
//!
//! The server sees the route of a connection: through the hub its source is the hub's address, past
//! the hub that of a cable.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::time::Duration;

use hawser_linux::netns::Namespace;

use crate::hubs::lengthen;
use crate::world::{World, active, good, is_up, run};

pub(crate) const SERVER: &str = "203.0.113.2";
/// Address that only the resolver of `lte` knows.
pub(crate) const OTHER: &str = "203.0.113.3";
pub(crate) const HUB: &str = "203.0.113.1";
pub(crate) const CABLES: [&str; 2] = ["10.0.10.2", "10.0.11.2"];
const DIRECT: u16 = 8000;
pub(crate) const THROUGH: u16 = 8001;
const STRICT: u16 = 8002;
const ECHO: u16 = 8003;

const RULES: &str = r#"
[direct]
portal_check = "off"
spread = "even"
[[rule]]
port = 8000
via = "direct"
[[rule]]
port = 8002
via = "direct"
network = "lte"
strict = true
"#;

/// Creates a server that reports a connection's source, and a hub that counts packets that leave
/// the client outside the tunnel without a rule.
pub(crate) fn world(name: &str, config: &str) -> Option<World> {
    let world = World::new(name)?;
    let server = world.add_server();
    let namespace = world.namespace("s");
    world.ip(&namespace, &format!("addr add {OTHER}/24 dev lan"));
    world.ip(&namespace, &format!("route add 10.0.0.0/16 via {HUB}"));
    for port in [DIRECT, THROUGH, STRICT] {
        serve(&server, port);
    }
    let mut nft = world.inside("h", "nft");
    nft.arg(format!(
        "add table inet leaks; add counter inet leaks stray; add counter inet leaks inner; \
         add chain inet leaks in {{ type filter hook prerouting priority -400; }}; \
         add rule inet leaks in iifname {{ fiber, lte }} ip daddr {SERVER} tcp dport {THROUGH} counter name stray; \
         add rule inet leaks in iifname {{ fiber, lte }} ip daddr {SERVER} icmp type echo-request counter name stray; \
         add rule inet leaks in iifname {{ fiber, lte }} ip saddr {{ 100.64.0.0/10 }} counter name inner"
    ));
    good(nft);
    world.init();
    world.configure("c", config);
    // The hub's machine forwards even while the hub does not run.
    let forward = "net.ipv4.ip_forward=1";
    good({
        let mut sysctl = world.inside("h", "sysctl");
        sysctl.args(["-qw", forward]);
        sysctl
    });
    Some(world)
}

fn serve(server: &Namespace, port: u16) {
    let listener = server.run(|| TcpListener::bind(("0.0.0.0", port))).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, peer)) = listener.accept() {
            let _ = stream.write_all(format!("{}\n", peer.ip()).as_bytes());
            std::thread::spawn(move || stream.read(&mut [0; 1]));
        }
    });
}

/// Starts a server that reports its peer's address and then echoes. Returns its port.
pub(crate) fn echo(world: &World) -> u16 {
    let server = world.open("s");
    let listener = server.run(|| TcpListener::bind(("0.0.0.0", ECHO))).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, peer)) = listener.accept() {
            let _ = stream.write_all(format!("{}\n", peer.ip()).as_bytes());
            std::thread::spawn(move || {
                let mut byte = [0; 1];
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
            });
        }
    });
    ECHO
}

/// Adds a machine for which the client forwards.
pub(crate) fn add_machine_behind(world: &World) -> Namespace {
    let behind = Namespace::new().unwrap();
    let client = world.namespace("c");
    let address = behind.path();
    let link = [
        "link", "add", "home", "netns", &client, "type", "veth", "peer", "name", "home", "netns", &address,
    ];
    run("ip", &link);
    world.ip(&client, "addr add 192.168.7.1/24 dev home");
    world.ip(&client, "link set home up");
    let mut ip = behind.command("sh");
    ip.args([
        "-c",
        "ip addr add 192.168.7.2/24 dev home && ip link set home up && ip route add default via 192.168.7.1",
    ]);
    good(ip);
    behind
}

/// Opens a connection. Returns its source as seen by the server, and the connection.
pub(crate) fn connect(world: &World, to: &str, port: u16) -> std::io::Result<(String, TcpStream)> {
    from(&world.open("c"), to, port)
}

fn from(machine: &Namespace, to: &str, port: u16) -> std::io::Result<(String, TcpStream)> {
    let address = SocketAddr::new(to.parse().unwrap(), port);
    machine.run(move || {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(3))?;
        stream.set_read_timeout(Some(Duration::from_secs(3)))?;
        let mut seen = [0; 64];
        let length = stream.read(&mut seen)?;
        Ok((String::from_utf8_lossy(&seen[..length]).trim().to_owned(), stream))
    })
}

pub(crate) fn seen(world: &World, port: u16) -> String {
    connect(world, SERVER, port).expect("a connection").0
}

fn assert_nothing_leaked(world: &World) {
    let mut nft = world.inside("h", "nft");
    nft.args(["list", "counters"]);
    let listed = String::from_utf8_lossy(&good(nft).stdout).into_owned();
    assert_eq!(listed.matches("packets 0 ").count(), 2, "{listed}");
}

#[test]
fn rules_send_flows_past_the_hub_and_a_kill_leaves_nothing() {
    let Some(world) = world("m", RULES) else { return };
    let before = world.system("c");
    let _hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let mut client = world.start("c", &["up", &invitation, "--foreground", "--log", "debug"]);
    world.wait("up", is_up);
    world.wait("through", World::ping_hub);
    let ways: Vec<_> = (0..4).map(|_| seen(&world, DIRECT)).collect();
    assert!(ways.windows(2).all(|two| two[0] != two[1]), "{ways:?}");
    assert!(ways.iter().all(|way| CABLES.contains(&way.as_str())), "{ways:?}");
    let (way, open) = connect(&world, SERVER, THROUGH).unwrap();
    assert_eq!(way, HUB);
    // The result is that of a client without such rules.
    assert!(open.local_addr().unwrap().to_string().starts_with("100.96."));
    assert_eq!(seen(&world, STRICT), CABLES[1]);

    let explain = |wanted: &str| {
        let output = good(world.hawser("c", &["explain", wanted]));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = explain(&format!("{SERVER}:{STRICT}"));
    assert!(
        said.contains("  over lte because the rule for port 8002\n"),
        "{said}"
    );
    let said = explain(&format!("{SERVER}:{THROUGH}"));
    assert!(
        said.contains("  through the hub because no rule matches it\n"),
        "{said}"
    );
    let shown = good(world.hawser("c", &["status"])).stdout;
    let shown = String::from_utf8_lossy(&shown).into_owned();
    assert!(shown.contains("outside tunnel  state"), "{shown}");

    world.ip(&world.namespace("c"), "link set lte down");
    world.wait("without lte", |world| connect(world, SERVER, STRICT).is_err());
    assert_eq!(seen(&world, DIRECT), CABLES[0]);
    assert_eq!(seen(&world, THROUGH), HUB);
    assert_nothing_leaked(&world);
    world.ip(&world.namespace("c"), "link set lte up");
    world.ip(
        &world.namespace("c"),
        "route add default via 10.0.11.1 metric 101",
    );

    client.signal("-KILL");
    assert_ne!(world.system("c"), before);
    good(world.hawser("c", &["down"]));
    assert_eq!(world.system("c"), before);
    // The client starts once more and ends in order.
    let mut client = world.start("c", &["up", "--foreground"]);
    world.wait("up again", is_up);
    assert_eq!(seen(&world, THROUGH), HUB);
    client.signal("-TERM");
    assert_eq!(world.system("c"), before);
}

#[test]
fn without_the_hub_its_flows_wait_and_go_nowhere_else() {
    let Some(world) = world("n", RULES) else { return };
    let invitation = world.invite();
    let _client = world.start("c", &["up", &invitation, "--foreground"]);
    // The hub has never answered: flows past it work, all others are rejected immediately.
    world.wait("past the hub", |world| {
        world.status("c")["direct"]["tunnel"] == false && connect(world, SERVER, DIRECT).is_ok()
    });
    let error = connect(&world, SERVER, THROUGH).expect_err("there is no hub");
    assert_ne!(
        error.kind(),
        std::io::ErrorKind::TimedOut,
        "the kernel refuses it"
    );
    assert_eq!(world.status("c")["state"], "connecting");

    let mut hub = world.start("h", &["hub", "run"]);
    world.wait("up", is_up);
    assert_eq!(seen(&world, THROUGH), HUB);
    hub.signal("-KILL");
    // The time suffices to detect the failure of every path.
    world.wait("without paths", |world| {
        world.status("c")["state"] == "connecting"
    });
    let waiting = connect(&world, SERVER, THROUGH).expect_err("nobody carries it");
    assert!(
        [std::io::ErrorKind::TimedOut, std::io::ErrorKind::WouldBlock].contains(&waiting.kind()),
        "it waits, and is not refused: {waiting}"
    );
    assert!(CABLES.contains(&seen(&world, DIRECT).as_str()));
    assert_nothing_leaked(&world);
    let _hub = world.start("h", &["hub", "run"]);
    world.wait("up again", is_up);
    world.wait("through again", |world| {
        connect(world, SERVER, THROUGH).is_ok_and(|(way, _)| way == HUB)
    });
}

#[test]
fn a_kill_switch_lets_out_what_rules_send_past_the_hub() {
    let config = format!(
        "kill_switch = true\n{}",
        RULES.replace("[direct]", "[direct]\nforward = true")
    );
    let Some(world) = world("o", &config) else { return };
    let behind = add_machine_behind(&world);
    let _hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let mut client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("up", is_up);
    assert!(CABLES.contains(&seen(&world, DIRECT).as_str()));
    assert_eq!(seen(&world, THROUGH), HUB);
    assert!(CABLES.contains(&from(&behind, SERVER, DIRECT).unwrap().0.as_str()));
    assert_eq!(from(&behind, SERVER, THROUGH).unwrap().0, HUB);
    // A neighbour would be reachable without the tunnel.
    assert!(!world.ping("10.0.10.1"));
    client.signal("-KILL");
    for port in [DIRECT, THROUGH] {
        assert!(connect(&world, SERVER, port).is_err(), "a crash opens nothing");
    }
    assert_nothing_leaked(&world);
    good(world.hawser("c", &["down"]));
    assert!(!world.system("c").contains("hawser"));
}

#[test]
fn a_rule_may_be_for_one_machine_behind() {
    let config = |from: &str| {
        format!(
            "forward = true\n[direct]\nportal_check = \"off\"\n\
             [[rule]]\nfrom = \"{from}\"\nvia = \"direct\"\nnetwork = \"lte\"\n"
        )
    };
    let Some(world) = world("mfrom", &config("192.168.7.2")) else {
        return;
    };
    let behind = add_machine_behind(&world);
    let _hub = world.start("h", &["hub", "run"]);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("up", is_up);
    world.wait("through", World::ping_hub);
    world.wait("its own way", |_| {
        from(&behind, SERVER, THROUGH).is_ok_and(|(way, _)| way == CABLES[1])
    });
    assert_eq!(seen(&world, DIRECT), HUB, "this machine is no machine behind");
    let explained = good(world.hawser("c", &["explain", "192.168.7.2"])).stdout;
    let explained = String::from_utf8_lossy(&explained).into_owned();
    assert!(
        explained.contains("because the rule for from 192.168.7.2/32\n"),
        "{explained}"
    );
    world.configure("c", config("192.168.7.128/25"));
    good(world.hawser("c", &["reload"]));
    assert_eq!(from(&behind, SERVER, DIRECT).unwrap().0, HUB, "it is for others");
}

#[test]
fn only_the_lans_that_are_named_are_forwarded_for() {
    let config = |lan: &str| format!("forward = [\"{lan}\"]\n{RULES}");
    let Some(world) = world("mlan", &config("home")) else {
        return;
    };
    let behind = add_machine_behind(&world);
    let _hub = world.start("h", &["hub", "run"]);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("up", is_up);
    world.wait("through", |_| {
        from(&behind, SERVER, THROUGH).is_ok_and(|(way, _)| way == HUB)
    });
    assert!(CABLES.contains(&from(&behind, SERVER, DIRECT).unwrap().0.as_str()));
    world.configure("c", config("br-lan"));
    good(world.hawser("c", &["reload"]));
    for port in [THROUGH, DIRECT] {
        assert!(from(&behind, SERVER, port).is_err(), "port {port} of another LAN");
    }
    assert_eq!(seen(&world, THROUGH), HUB, "this machine's own go on");
}

/// Two uplinks have their default routes in separate tables and none in the main table.
#[test]
fn uplinks_whose_default_routes_are_in_other_tables_carry_the_tunnel_and_rules_past_it() {
    for (name, config, is_mixed) in [("tabh", "", false), ("tabm", RULES, true)] {
        let Some(world) = world(name, config) else { return };
        let client = world.namespace("c");
        for (device, table) in [("fiber", 101), ("lte", 102)] {
            let net = if device == "fiber" { 10 } else { 11 };
            world.ip(&client, &format!("route del default dev {device}"));
            world.ip(
                &client,
                &format!("route add default via 10.0.{net}.1 dev {device} table {table}"),
            );
            world.ip(&client, &format!("rule add from 10.0.{net}.2 lookup {table}"));
        }
        let before = world.system("c");
        let _hub = world.start("h", &["hub", "run"]);
        let mut up = world.start("c", &["up", &world.invite(), "--foreground"]);
        world.wait("up over both", |world| is_up(world) && active(world).len() == 2);
        assert_eq!(seen(&world, THROUGH), HUB, "{name}");
        if is_mixed {
            assert!(CABLES.contains(&seen(&world, DIRECT).as_str()), "{name}");
        }
        let mut renewal = world.inside("c", "ip");
        let question = "route get 203.0.113.67 ipproto udp sport 68 dport 67";
        renewal.args(question.split(' '));
        let led = String::from_utf8(good(renewal).stdout).unwrap();
        assert!(!led.contains("hawser0"), "{led}");
        up.signal("-TERM");
        assert_eq!(world.system("c"), before, "{name}");
    }
}

#[test]
fn a_reload_changes_which_way_flows_go() {
    let Some(world) = world("p", RULES) else { return };
    let _hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let _client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("up", is_up);
    let (_, mut open) = connect(&world, SERVER, DIRECT).unwrap();
    let file = world.place("c").join("client.toml");
    // All traffic except one port bypasses the hub.
    std::fs::write(
        &file,
        "[direct]\nportal_check = \"off\"\n[[rule]]\nport = 8000\nvia = \"hub\"\n[[rule]]\nvia = \"direct\"\nnetwork = \"fiber\"\n",
    )
    .unwrap();
    let output = good(world.hawser("c", &["reload"]));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "applied\n");
    assert_eq!(seen(&world, DIRECT), HUB);
    assert_eq!(seen(&world, THROUGH), CABLES[0]);
    // Existing connections keep their route.
    open.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert_eq!(
        open.read(&mut [0; 1]).expect_err("it is alive").kind(),
        std::io::ErrorKind::WouldBlock
    );
    std::fs::write(&file, "[[rule]]\nvia = \"hub\"\nnetwork = \"lte\"\n").unwrap();
    let refused = world.hawser("c", &["reload"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(seen(&world, DIRECT), HUB, "bad configuration changes nothing");
    let checked = world.hawser("c", &["up"]).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert_eq!(checked.status.code(), Some(64), "{said}");
    assert!(
        said.contains("client.toml:1: the tunnel to the hub uses all networks"),
        "{said}"
    );
}

/// The tunnel has 50 ms more delay; past the hub a connection opens at once, until the server no
/// longer answers there.
#[test]
fn the_faster_way_is_learnt_by_destination() {
    let rules = "[direct]\nportal_check = \"off\"\n[[rule]]\nport = [8000, 8002]\nvia = \"faster\"\n";
    let Some(world) = world("f", rules) else { return };
    lengthen(&world, "198.51.100.1:4430");
    let before = world.system("c");
    let _hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let mut client = world.start("c", &["up", &invitation, "--foreground", "--log", "debug"]);
    world.wait("up", is_up);
    world.wait("through", World::ping_hub);
    assert_eq!(seen(&world, DIRECT), HUB, "what is unknown goes through the hub");
    let is_past = |world: &World, port| CABLES.contains(&seen(world, port).as_str());
    world.wait("past the hub", |world| is_past(world, DIRECT));
    assert!(is_past(&world, STRICT), "by address, whatever the port");
    assert_eq!(seen(&world, THROUGH), HUB, "no rule matches it");
    let said = good(world.hawser("c", &["explain", &format!("{SERVER}:{DIRECT}")])).stdout;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(
        said.contains("because the rule for port 8000, port 8002: over fiber: "),
        "{said}"
    );
    assert!(said.contains("; through the hub: "), "{said}");
    let shown = good(world.hawser("c", &["status"])).stdout;
    let shown = String::from_utf8_lossy(&shown).into_owned();
    assert!(
        shown.contains("1 of 1 destinations are faster outside the tunnel"),
        "{shown}"
    );

    let mut nft = world.inside("h", "nft");
    nft.arg(
        "add table inet wall; add chain inet wall through { type filter hook forward priority 0; }; \
         add rule inet wall through iifname { fiber, lte } tcp dport 8000 drop",
    );
    good(nft);
    world.wait("through the hub again", |world| {
        connect(world, SERVER, DIRECT).is_ok_and(|(way, _)| way == HUB)
    });
    assert_nothing_leaked(&world);
    client.signal("-KILL");
    good(world.hawser("c", &["down"]));
    assert_eq!(world.system("c"), before);
}

#[test]
fn a_network_does_not_choose_what_leaves_the_tunnel() {
    let rules = r#"
dns = "networks"
[direct]
portal_check = "off"
[networks.lte]
dns = ["10.0.11.1"]
[[rule]]
domain = "*.example.org"
via = "direct"
network = "lte"
"#;
    let Some(world) = world("q", rules) else { return };
    // An answer of the network's resolver would route a flow to the server past the hub.
    let asked_server = serve_names(&world.open("s"), SERVER, OTHER);
    let asked_lte = serve_names(&world.open("h"), "10.0.11.1", SERVER);
    let file = world.place("h").join("hub.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("dns = [\"{SERVER}\"]\n{text}")).unwrap();
    let _hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let _client = world.start("c", &["up", &invitation, "--foreground", "--log", "debug"]);
    world.wait("up", is_up);
    assert_eq!(
        look_up(&world, "www.example.org"),
        OTHER.parse::<IpAddr>().unwrap()
    );
    assert_eq!(connect(&world, OTHER, THROUGH).unwrap().0, CABLES[1]);
    assert_eq!(
        look_up(&world, "www.example.net"),
        OTHER.parse::<IpAddr>().unwrap()
    );
    // The query went through the hub, and no other resolver received it.
    assert_eq!(asked_server.try_recv().unwrap(), HUB.parse::<IpAddr>().unwrap());
    assert!(asked_lte.try_recv().is_err());
    assert_eq!(seen(&world, THROUGH), HUB);
    assert_nothing_leaked(&world);
}

/// Starts a resolver that answers every query with an address, and reports the source of each
/// query.
pub(crate) fn serve_names(namespace: &Namespace, address: &str, answer: &str) -> mpsc::Receiver<IpAddr> {
    let socket = namespace.run(|| UdpSocket::bind((address, 53))).unwrap();
    let answer: Ipv4Addr = answer.parse().unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let mut bytes = buffer[..length].to_vec();
            (bytes[2], bytes[7]) = (bytes[2] | 0x80, 1);
            bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 90, 0, 4]);
            bytes.extend(answer.octets());
            if tell.send(from.ip()).is_err() || socket.send_to(&bytes, from).is_err() {
                return;
            }
        }
    });
    told
}

/// Returns the answer of the system's resolver, which is Hawser.
fn look_up(world: &World, name: &str) -> IpAddr {
    look_up_at(world, "100.64.0.2", name).expect("an answer")
}

/// Queries a resolver for the IPv4 address of a name; `None` without an answer or without an
/// address.
pub(crate) fn look_up_at(world: &World, server: &str, name: &str) -> Option<IpAddr> {
    let server: IpAddr = server.parse().unwrap();
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).unwrap());
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    let reply = world.open("c").run(move || {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        socket.send_to(&query, (server, 53))?;
        let mut reply = [0; 512];
        let length = socket.recv(&mut reply)?;
        Ok(reply[..length].to_vec())
    });
    let reply: Vec<u8> = reply.ok().filter(|reply: &Vec<u8>| reply[7] > 0)?;
    reply.last_chunk().map(|address: &[u8; 4]| IpAddr::from(*address))
}
