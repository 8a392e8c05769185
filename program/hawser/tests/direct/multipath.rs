//! MPTCP over all networks for programs started with `hawser run --mptcp`.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use hawser_linux::netns::Namespace;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::world::{SERVER, World, ip, way_of};

/// Creates networks with different addresses, and a server that supports MPTCP and reports a
/// connection's protocol in its first line.
fn world() -> Option<World> {
    let world = World::new()?;
    if !hawser_testing::require_root_of_machine("the mark of MPTCP sockets (eBPF)") {
        return None;
    }
    ip(
        &world.client,
        "addr del 192.168.0.2/24 dev net2\naddr add 192.168.0.3/24 dev net2\nroute replace default via 192.168.0.1 dev net2 metric 102",
    );
    let mut limits = world.server.command("ip");
    limits.args(["mptcp", "limits", "set", "subflow", "8"]);
    if !limits.status().expect("ip runs").success() {
        hawser_testing::skip("no MPTCP");
        return None;
    }
    serve(&world.server);
    Some(world)
}

const PORT: u16 = 8001;

/// Starts an echo server.
fn serve(namespace: &Namespace) {
    let listener = namespace
        .run(|| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP))?;
            socket.bind(&SockAddr::from(SocketAddr::from(([0, 0, 0, 0], PORT))))?;
            socket.listen(16)?;
            Ok(std::net::TcpListener::from(socket))
        })
        .expect("a server");
    std::thread::spawn(move || {
        while let Ok((mut stream, peer)) = listener.accept() {
            std::thread::spawn(move || {
                let _ = stream.write_all(format!("{}\n", peer.ip()).as_bytes());
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..length]).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// Returns the network of each subflow that the server sees.
fn ways(world: &World) -> Vec<usize> {
    let output = world
        .server
        .command("ss")
        .args(["-Htn", "state", "established", "sport", "=", &format!(":{PORT}")])
        .output()
        .expect("ss runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut ways: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(3))
        .map(|peer| way_of(peer.trim_start_matches("[::ffff:")))
        .collect();
    ways.sort_unstable();
    ways
}

fn connect(world: &World) -> std::net::TcpStream {
    world
        .client
        .run(|| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP))?;
            let server = SocketAddr::new(SERVER.parse().expect("an address"), PORT);
            socket.connect_timeout(&server.into(), Duration::from_secs(3))?;
            socket.set_read_timeout(Some(Duration::from_secs(5)))?;
            Ok(socket.into())
        })
        .expect("a connection")
}

/// Transfers data in both directions; subflows start after the first data.
fn talk(stream: &mut std::net::TcpStream) {
    let (sent, mut received) = ([7; 1000], [0; 1000]);
    stream.write_all(&sent).expect("sent");
    stream.read_exact(&mut received).expect("echoed");
}

fn read_line(stream: &mut std::net::TcpStream) {
    let mut byte = [0];
    while stream.read(&mut byte).expect("a line") == 1 && byte != *b"\n" {}
}

#[test]
fn a_connection_has_one_subflow_on_each_network_and_outlives_any() {
    let Some(world) = world() else { return };
    let before = world.system();
    let _daemon = world.up();
    assert_ne!(world.system(), before, "endpoints");
    let mut stream = connect(&world);
    read_line(&mut stream);
    talk(&mut stream);
    world.wait_until("a subflow on each", |world| ways(world) == [1, 2]);
    let shown = world.ask(&["explain", SERVER]);
    let flows = shown["flows"].as_array().expect("flows");
    let mut networks: Vec<_> = flows.iter().filter_map(|flow| flow["network"].as_str()).collect();
    networks.sort_unstable();
    assert_eq!(networks, ["net1", "net2"], "{shown}");
    assert_eq!(
        flows[0]["why"],
        "it is a subflow of an MPTCP connection, which uses all networks"
    );
    for (name, other) in [("net1", 2), ("net2", 1)] {
        ip(&world.client, &format!("link set {name} down"));
        world.wait_until("it is gone", |world| world.state(name) == "gone");
        talk(&mut stream);
        let n = 3 - other;
        ip(
            &world.client,
            &format!(
                "link set net{n} up\naddr replace fd77::2/64 dev net{n} nodad\nroute replace ::/0 via fd77::1 dev net{n} metric 10{n}\n\
                 route replace default via 192.168.0.1 dev net{n} metric 10{n}"
            ),
        );
        world.wait_until("it is back", |world| world.state(name) == "active");
        talk(&mut stream);
        world.wait_until("a subflow on each again", |world| {
            let ways = ways(world);
            ways.contains(&1) && ways.contains(&2)
        });
    }
    world.down();
    assert_eq!(world.system(), before);
}

#[test]
fn a_program_started_with_it_uses_all_networks_without_knowing() {
    let Some(world) = world() else { return };
    let _daemon = world.up();
    // State that another program removes is restored.
    let shown = |what: &str| {
        let output = world.client.command("ip").args(["mptcp", what]).output();
        String::from_utf8(output.expect("ip runs").stdout).expect("text")
    };
    let before = (shown("endpoint"), shown("limits"));
    ip(&world.client, "mptcp endpoint flush\nmptcp limits set subflow 0");
    world.wait_until("endpoints and limits are restored", |_| {
        let lines = |text: &str| text.lines().count();
        lines(&shown("endpoint")) == lines(&before.0) && shown("limits") == before.1
    });
    let script = format!(
        "exec 3<>/dev/tcp/{SERVER}/{PORT}; head -n 1 <&3; echo hello >&3; head -n 1 <&3; sleep 1; exit 7"
    );
    let mut child = world
        .hawser(&["run", "--mptcp"])
        .args(["--", "bash", "-c", &script])
        .spawn()
        .expect("the program starts");
    world.wait_until("a subflow on each", |world| ways(world) == [1, 2]);
    assert_eq!(child.wait().expect("it ends").code(), Some(7));
}

#[test]
fn a_backup_carries_nothing_while_another_is_there_and_a_silent_network_is_left() {
    let Some(world) = world() else { return };
    world.write_config("[networks.net2]\nmptcp = \"backup\"\n");
    let _daemon = world.up();
    let part = |name: &str| {
        let status = world.ask(&["status"]);
        let networks = status["networks"].as_array().cloned().unwrap_or_default();
        let own = networks.into_iter().find(|network| network["name"] == name);
        own.map(|network| network["mptcp"].clone()).unwrap_or_default()
    };
    assert_eq!((part("net1"), part("net2")), ("yes".into(), "backup".into()));
    let mut stream = connect(&world);
    read_line(&mut stream);
    talk(&mut stream);
    world.wait_until("a subflow on each", |world| ways(world) == [1, 2]);
    crate::world::nft(
        &world.gateways[0],
        "table inet dead {\n chain in {\n type filter hook prerouting priority -400; policy drop;\n }\n}",
    );
    talk(&mut stream);
    world.wait_until("net1 is silent", |world| world.state("net1") == "silent");
    assert_eq!(part("net1"), serde_json::Value::Null);
    talk(&mut stream);
    crate::world::nft(&world.gateways[0], "delete table inet dead");
    world.write_config("[networks.net2]\nmptcp = \"no\"\n");
    world.wait_until("net1 answers", |world| world.state("net1") == "active");
    assert!(world.run(&["reload"]).status.success());
    world.wait_until("net2 takes no part", |_| part("net2").is_null());
    talk(&mut stream);
}

#[test]
fn endpoints_of_others_stay_and_a_crash_leaves_none_of_ours() {
    let Some(world) = world() else { return };
    ip(&world.client, "addr add 10.60.0.1/24 dev lan0");
    for endpoint in [
        "10.60.0.1 dev lan0 signal",
        "192.168.0.2 dev net1 subflow fullmesh",
    ] {
        let mut command = world.client.command("ip");
        command
            .args(["mptcp", "endpoint", "add"])
            .args(endpoint.split(' '));
        assert!(command.status().expect("ip runs").success());
    }
    let before = world.system();
    let mut daemon = world.up();
    daemon.0.kill().expect("killed");
    daemon.0.wait().expect("gone");
    assert_ne!(world.system(), before);
    drop(world.up());
    world.down();
    assert_eq!(world.system(), before);
}
