//! Direct mode with a real Open vSwitch in user space as its flow table.

use std::io::{ErrorKind, Read, Write};
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::world::{Daemon, PORT, SERVER, SERVER6, World, connect, ip, nft, read_peer, way_of};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const CONFIG: &str =
    "[direct]\ndataplane = \"openvswitch\"\nforward = true\nportal_check = \"off\"\nkeep_flows = \"500ms\"\n";

/// Starts the switch of the system for the client's namespace only.
fn start_switch(world: &World) -> Option<[Daemon; 2]> {
    let has = |program| Command::new(program).arg("--version").output().is_ok();
    if !Path::new(SCHEMA).exists() || !["ovs-vswitchd", "ethtool"].into_iter().all(has) {
        hawser_testing::skip("no Open vSwitch or no ethtool");
        return None;
    }
    let dir = world.switch_dir();
    std::fs::create_dir(&dir).expect("a directory");
    let place = |name: &str| dir.join(name).display().to_string();
    let (database, socket) = (place("conf.db"), place("db.sock"));
    let run = |program: &str, arguments: &[&str]| {
        let mut command = world.client.command(program);
        command.args(arguments).env("OVS_RUNDIR", &dir);
        command
    };
    let made = run("ovsdb-tool", &["create", &database, SCHEMA]).status();
    assert!(made.expect("it runs").success());
    let start = |mut command: Command| {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(dir.join("log"));
        let log = log.expect("a log");
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        Daemon(command.spawn().expect("it starts"))
    };
    let pid_file = format!("--pidfile={}", place("ovs-vswitchd.pid"));
    let server = start(run(
        "ovsdb-server",
        &[
            &database,
            &format!("--remote=punix:{socket}"),
            &format!("--unixctl={}", place("db.ctl")),
        ],
    ));
    world.wait_until("the database is there", |_| Path::new(&socket).exists());
    let begun = run("ovs-vsctl", &["--no-wait", "init"]).status();
    assert!(begun.expect("it runs").success());
    let switch = start(run("ovs-vswitchd", &[&format!("unix:{socket}"), &pid_file]));
    for gateway in &world.gateways {
        // Offloading is disabled, so that a cable carries packets as sent.
        let mut command = gateway.command("ethtool");
        command.args(["-K", "in", "tx", "off", "tso", "off", "gso", "off"]);
        assert!(command.output().expect("ethtool runs").status.success());
    }
    Some([server, switch])
}

fn is_reached(world: &World) -> bool {
    world.way(&world.client, SERVER, None).is_ok()
}

#[test]
fn a_switch_carries_flows_out_and_back_and_nothing_stays() {
    let Some(world) = World::new() else { return };
    let Some(_switch) = start_switch(&world) else {
        return;
    };
    world.write_config(&format!(
        "{CONFIG}[[rule]]\nprotocol = \"udp\"\nport = \"7990-8010\"\nnetwork = \"net2\"\n"
    ));
    let before = world.system();
    let _daemon = world.up();
    world.wait_until("gateways are known", is_reached);
    // The choice is random: the same network every time has a probability below 1 in 60,000.
    for (from, server) in [
        (&world.client, SERVER),
        (&world.client, SERVER6),
        (&world.lan, SERVER),
    ] {
        let ways: Vec<_> = (0..16)
            .map(|_| world.way(from, server, None).expect("an answer"))
            .collect();
        assert!(ways.contains(&1) && ways.contains(&2), "{server}: {ways:?}");
    }
    let socket = world
        .client
        .run(|| UdpSocket::bind(("0.0.0.0", 0)))
        .expect("a socket");
    socket
        .set_read_timeout(Some(Duration::from_secs(2)))
        .expect("set");
    for _ in 0..3 {
        socket.send_to(b"who", (SERVER, PORT)).expect("sent");
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).expect("an answer");
        assert_eq!(way_of(std::str::from_utf8(&buffer[..length]).expect("text")), 2);
    }
    for server in [SERVER, SERVER6] {
        let mut ping = world.client.command("ping");
        let output = ping
            .args(["-c", "4", "-i", "0.2", "-W", "1", server])
            .output()
            .expect("ping runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains(" 4 received") && !said.contains("DUP"), "{said}");
    }
    let mut stream = connect(&world.client, SERVER, None).expect("a connection");
    assert_eq!(
        stream.local_addr().expect("an address").ip().to_string(),
        "100.64.0.2"
    );
    let way = way_of(&read_peer(&mut stream).expect("an answer"));
    let sent: Vec<u8> = (0..400_000_u32).map(|at| (at % 251) as u8).collect();
    let mut echoed = vec![0; sent.len()];
    let mut writer = stream.try_clone().expect("a copy");
    let writing = std::thread::spawn({
        let sent = sent.clone();
        move || writer.write_all(&sent).expect("sent")
    });
    stream.read_exact(&mut echoed).expect("all of it");
    writing.join().expect("written");
    assert!(echoed == sent, "what came back is not what was sent");
    let explained = world.ask(&["explain", &stream.local_addr().expect("an address").to_string()]);
    assert_eq!(
        explained["flows"][0]["network"],
        format!("net{way}"),
        "{explained}"
    );
    let explained = world.ask(&["explain", "udp "]);
    assert_eq!(
        explained["flows"][0]["why"], "the rule for udp, ports 7990-8010",
        "{explained}"
    );
    let refused = [
        world.run_program(&["--network", "net1"], &["true"]),
        world.run(&["move", "tcp", "--to", "net1"]),
    ];
    for output in refused {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("openvswitch"), "{said}");
    }
    drop(stream);
    assert_eq!(world.down(), "down\n");
    assert_eq!(world.system(), before);
}

#[test]
fn a_switch_avoids_networks_that_go_and_lets_go_of_their_flows() {
    let Some(world) = World::new() else { return };
    let Some(_switch) = start_switch(&world) else {
        return;
    };
    world.write_config(CONFIG);
    let before = world.system();
    let mut daemon = world.up();
    world.wait_until("gateways are known", is_reached);
    ip(&world.client, "link set net1 down");
    world.wait_until("net1 is gone", |world| world.state("net1") == "gone");
    assert_eq!(world.ways(8), [2; 8]);
    world.plug(1);
    world.wait_until("net1 is back", |world| {
        world.state("net1") == "active" && world.ways(16).contains(&1)
    });
    let mut stream = loop {
        let mut stream = connect(&world.client, SERVER, None).expect("a connection");
        if way_of(&read_peer(&mut stream).expect("an answer")) == 2 {
            break stream;
        }
    };
    nft(
        &world.gateways[1],
        "table inet dead {\n chain in {\n type filter hook prerouting priority -400; policy drop;\n }\n}",
    );
    world.wait_until("net2 is silent", |world| world.state("net2") == "silent");
    assert_eq!(world.ways(8), [1; 8]);
    let error = stream.read(&mut [0; 16]).expect_err("the connection is gone");
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");

    // After a crash the switch continues until its state is removed.
    daemon.0.kill().expect("killed");
    daemon.0.wait().expect("gone");
    assert_eq!(world.ways(2), [1; 2]);
    assert_ne!(world.system(), before);
    assert!(world.down().contains("undid the changes that it had left"));
    nft(&world.gateways[1], "delete table inet dead");
    assert_eq!(world.system(), before);
}

#[test]
fn a_switch_that_does_not_run_is_said_in_one_line() {
    let Some(world) = World::new() else { return };
    world.write_config(CONFIG);
    let before = world.system();
    let dir = world.dir.path().to_str().expect("a path");
    let output = world.run(&["up", "--direct", "--dir", dir]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("needs Open vSwitch (Debian: openvswitch-switch)") && said.lines().count() == 1,
        "{said}"
    );
    world.down();
    assert_eq!(world.system(), before);
    world.write_config(&format!(
        "{CONFIG}[[rule]]\ncgroup = \"a.service\"\nnetwork = \"net1\"\n"
    ));
    let output = world.run(&["up", "--direct", "--dir", dir]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("cannot distinguish programs, names"), "{said}");
}

#[test]
fn a_bridge_that_somebody_else_has_made_is_left_alone() {
    let Some(world) = World::new() else { return };
    let Some(_switch) = start_switch(&world) else {
        return;
    };
    world.write_config(CONFIG);
    let vsctl = |arguments: &[&str]| {
        let mut command = world.client.command("ovs-vsctl");
        command.args(arguments).env("OVS_RUNDIR", world.switch_dir());
        let output = command.output().expect("ovs-vsctl runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    vsctl(&[
        "add-br",
        "hawser0",
        "--",
        "set",
        "bridge",
        "hawser0",
        "datapath_type=netdev",
        "other-config:whose=theirs",
    ]);
    let is_theirs = || vsctl(&["get", "bridge", "hawser0", "other-config:whose"]).contains("theirs");
    let dir = world.dir.path().to_str().expect("a path");
    let mut up = world.hawser(&["up", "--direct", "--dir", dir]);
    let output = up
        .env("OVS_RUNDIR", world.switch_dir())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("the bridge hawser0 of Open vSwitch is not Hawser's") && said.lines().count() == 1,
        "{said}"
    );
    assert!(is_theirs());
    // The journal names the bridge, as if it had replaced that of Hawser after a crash.
    std::fs::write(
        world.run_dir().join("undo.json"),
        "{\"kind\":\"bridge\",\"name\":\"hawser0\"}\n",
    )
    .expect("written");
    world.down();
    assert!(is_theirs());
}
