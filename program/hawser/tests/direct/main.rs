//! `hawser up --direct` as run by a user, in network namespaces: two overlapping networks, and no
//! remaining state.

mod added;
mod checks;
mod conditions;
mod dhcp;
mod link_events;
mod metrics;
mod multipath;
mod names;
mod openvswitch;
mod portals;
mod quota;
mod record;
mod world;

use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use hawser_linux::bpf::{INTENT, NETWORK, choose};
use hawser_linux::direct::mark;
use socket2::{Domain, SockAddr, Socket, Type};
use world::{PORT, SERVER, SERVER6, World, connect, ip, nft, read_peer, way_of};

/// Returns the mark with which a program selects a network; networks are numbered in the order in
/// which they are found.
fn choice(world: &World, name: &str) -> u32 {
    let status = world.ask(&["status"]);
    let network = status["networks"]
        .as_array()
        .and_then(|all| all.iter().find(|network| network["name"] == name).cloned());
    let number = network
        .and_then(|network| network["number"].as_u64())
        .expect("a number");
    mark(0, u8::try_from(number).expect("a small number"))
}

#[test]
fn flows_of_every_kind_take_turns_and_come_back() {
    let Some(world) = World::new() else { return };
    world.write_config("[direct]\nforward = true\nspread = \"even\"\n");
    let before = world.system();
    let _daemon = world.up();
    for server in [SERVER, SERVER6] {
        let ways: Vec<_> = (0..6)
            .map(|_| world.way(&world.client, server, None).expect("an answer"))
            .collect();
        assert!(ways.windows(2).all(|two| two[0] != two[1]), "{server}: {ways:?}");
    }
    let forwarded: Vec<_> = (0..4)
        .map(|_| world.way(&world.lan, SERVER, None).expect("an answer"))
        .collect();
    assert!(forwarded.contains(&1) && forwarded.contains(&2), "{forwarded:?}");
    let datagrams: Vec<_> = (0..4)
        .map(|_| {
            let socket = world
                .client
                .run(|| UdpSocket::bind(("0.0.0.0", 0)))
                .expect("a socket");
            socket
                .set_read_timeout(Some(Duration::from_secs(2)))
                .expect("set");
            socket.send_to(b"who", (SERVER, PORT)).expect("sent");
            let mut buffer = [0; 64];
            let length = socket.recv(&mut buffer).expect("an answer");
            way_of(std::str::from_utf8(&buffer[..length]).expect("text"))
        })
        .collect();
    assert!(datagrams.windows(2).all(|two| two[0] != two[1]), "{datagrams:?}");
    for server in [SERVER, SERVER6] {
        let ping = world
            .client
            .command("ping")
            .args(["-c", "4", "-i", "0.2", "-W", "1", server])
            .output()
            .expect("ping runs");
        assert!(ping.status.success(), "{}", String::from_utf8_lossy(&ping.stdout));
    }
    let stream = connect(&world.client, SERVER, None).expect("a connection");
    assert_eq!(
        stream.local_addr().expect("an address").ip().to_string(),
        "100.64.0.2"
    );
    assert_eq!(world.down(), "down\n");
    assert_eq!(world.system(), before);
}

#[test]
fn one_program_reaches_two_hosts_of_the_same_address() {
    let Some(world) = World::new() else { return };
    let _daemon = world.up();
    for (gateway, name) in world.gateways.iter().zip(["net1", "net2"]) {
        // A counter of each gateway identifies the host that a connection reached.
        nft(
            gateway,
            &format!(
                "table inet who {{\n chain in {{\n type filter hook input priority 0;\n tcp dport {PORT} counter comment \"{name}\"\n }}\n}}"
            ),
        );
    }
    let marks = ["net1", "net2"].map(|name| choice(&world, name));
    let mut streams =
        marks.map(|mark| connect(&world.client, "192.168.0.5", Some(mark)).expect("a connection"));
    for stream in &mut streams {
        assert_eq!(read_peer(stream).expect("an answer"), "192.168.0.2");
        stream.write_all(b"hello").expect("sent");
    }
    for gateway in &world.gateways {
        let listed = gateway
            .command("nft")
            .args(["list", "table", "inet", "who"])
            .output()
            .expect("nft runs");
        assert!(
            !String::from_utf8_lossy(&listed.stdout).contains("packets 0"),
            "nothing came"
        );
    }
    let explained = world.ask(&["explain", "192.168.0.5"]);
    let why: Vec<_> = explained["flows"]
        .as_array()
        .expect("flows")
        .iter()
        .map(|flow| flow["why"].clone())
        .collect();
    assert_eq!(why, ["its program selected this network"; 2]);
    let nobody = connect(&world.client, SERVER, Some(mark(0, 77)));
    assert!(nobody.is_err(), "a network that does not exist carries nothing");
}

#[test]
fn programs_choose_by_socket_option_and_by_hawser_run() {
    let Some(world) = World::new() else { return };
    world.write_config("[networks.net1]\ncost = 5\n");
    let _daemon = world.up();
    if world.ask(&["status"])["socket_option"] != true {
        hawser_testing::skip("no right to load eBPF programs");
        return;
    }
    let by = |option, name: &str| -> std::io::Result<usize> {
        world.client.run(|| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            choose(&socket, option, name)?;
            socket.connect(&SockAddr::from(SocketAddr::new(
                SERVER.parse().expect("an address"),
                PORT,
            )))?;
            Ok(way_of(&read_peer(&mut socket.into())?))
        })
    };
    for (name, way) in [("net1", 1), ("net2", 2), ("net2", 2), ("net1", 1)] {
        assert_eq!(by(NETWORK, name).expect("a connection"), way);
    }
    assert_eq!(by(INTENT, "cheap").expect("a connection"), 2);
    assert_eq!(by(INTENT, "cheap").expect("a connection"), 2);
    let error = by(NETWORK, "net3").expect_err("there is none");
    assert_eq!(error.raw_os_error(), Some(ENODEV));
    let script = format!("exec 3<>/dev/tcp/{SERVER}/{PORT}; head -n 1 <&3; exit 7");
    for network in ["net2", "net1", "net2"] {
        let output = world.run_program(&["--network", network], &["bash", "-c", &script]);
        assert_eq!(
            output.status.code(),
            Some(7),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(
            way_of(String::from_utf8_lossy(&output.stdout).trim()),
            usize::from(network == "net2") + 1
        );
    }
    let output = world.run_program(&["--network", "net3"], &["true"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        said.trim(),
        "hawser: --network net3: there is no such network now; available: net1, net2"
    );
    ip(&world.client, "link set net1 down");
    world.wait_until("net1 is gone", |world| world.state("net1") == "gone");
    assert_eq!(
        by(NETWORK, "net1").expect_err("it is gone").raw_os_error(),
        Some(ENODEV)
    );
}

/// Error number of Linux.
const ENODEV: i32 = 19;

#[test]
fn a_network_that_goes_is_avoided_at_once_and_taken_again() {
    let Some(world) = World::new() else { return };
    let _daemon = world.up();
    ip(&world.client, "link set net1 down");
    world.wait_until("net1 is gone", |world| world.state("net1") == "gone");
    assert_eq!(world.ways(6), [2; 6]);
    world.plug(1);
    world.wait_until("net1 is back", |world| world.state("net1") == "active");
    let ways = world.ways(6);
    assert_eq!(ways.iter().filter(|way| **way == 1).count(), 3, "{ways:?}");
}

#[test]
fn a_silent_gateway_is_found_out_and_its_flows_are_let_go() {
    let Some(world) = World::new() else { return };
    world.write_config("[direct]\nkeep_flows = \"500ms\"\n");
    let _daemon = world.up();
    let mut stream = connect(&world.client, SERVER, Some(choice(&world, "net2"))).expect("a connection");
    assert_eq!(way_of(&read_peer(&mut stream).expect("an answer")), 2);
    nft(
        &world.gateways[1],
        "table inet dead {\n chain in {\n type filter hook prerouting priority -400; policy drop;\n }\n}",
    );
    world.wait_until("net2 is silent", |world| world.state("net2") == "silent");
    assert_eq!(world.ways(4), [1; 4]);
    // The waiting program gets an error, because no answer will arrive.
    let error = stream.read(&mut [0; 16]).expect_err("the connection is gone");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted, "{error}");
    nft(&world.gateways[1], "delete table inet dead");
    world.wait_until("net2 answers", |world| world.state("net2") == "active");
    assert!(world.ways(4).contains(&2));
}

#[test]
fn without_any_network_programs_hear_so_at_once() {
    let Some(world) = World::new() else { return };
    let _daemon = world.up();
    ip(&world.client, "link set net1 down\nlink set net2 down");
    world.wait_until("both are gone", |world| {
        ["net1", "net2"].iter().all(|name| world.state(name) == "gone")
    });
    for server in [SERVER, SERVER6] {
        let error = connect(&world.client, server, None).expect_err("there is no network");
        assert_ne!(
            error.kind(),
            std::io::ErrorKind::TimedOut,
            "the kernel refuses it"
        );
    }
}

#[test]
fn a_crash_is_undone_by_down() {
    let Some(world) = World::new() else { return };
    world.write_config("[direct]\nforward = true\n");
    let before = world.system();
    let mut daemon = world.up();
    daemon.0.kill().expect("killed");
    daemon.0.wait().expect("gone");
    assert_ne!(world.system(), before);
    // Connections use the kernel's own route in the meantime.
    assert_eq!(world.way(&world.client, SERVER, None).expect("an answer"), 1);
    assert!(world.down().contains("undid the changes that it had left"));
    assert_eq!(world.system(), before);
}

#[test]
fn a_start_after_a_crash_takes_over_and_still_ends_clean() {
    let Some(world) = World::new() else { return };
    let before = world.system();
    drop(world.up());
    let _daemon = world.up();
    let rules = world.system();
    let marks = rules
        .lines()
        .filter(|line| line.contains("fwmark 0x48570002/"))
        .count();
    assert_eq!(marks, 2, "one rule for each family: {rules}");
    let ways = world.ways(4);
    assert!(ways.contains(&1) && ways.contains(&2), "{ways:?}");
    world.down();
    assert_eq!(world.system(), before);
}

#[test]
fn a_daemon_whose_interface_is_removed_undoes_its_changes_and_ends() {
    let Some(world) = World::new() else { return };
    let before = world.system();
    let mut daemon = world.up();
    let mut remove = world.client.command("ip");
    assert!(
        remove
            .args(["link", "del", "hawser0"])
            .status()
            .expect("ip runs")
            .success()
    );
    let status = hawser_testing::wait_for_end(&mut daemon.0);
    assert!(!status.success(), "{status}");
    assert_eq!(world.system(), before);
}

#[test]
fn rules_decide_and_a_reload_changes_them() {
    let Some(world) = World::new() else { return };
    world.write_config(&format!(
        "[[rule]]\nport = {PORT}\nprotocol = \"tcp\"\nnetwork = [\"net2\", \"net1\"]\n"
    ));
    let _daemon = world.up();
    assert_eq!(world.ways(4), [2; 4]);
    let explained = world.ask(&["explain", &format!("{SERVER}:{PORT}")]);
    assert_eq!(
        explained["flows"][0]["why"],
        format!("the rule for tcp, port {PORT}")
    );
    world.write_config("[[rule]]\nto = \"203.0.113.0/24\"\nnetwork = \"net1\"\nstrict = true\n[[rule]]\ndscp = \"ef\"\nnetwork = \"net2\"\n");
    assert!(world.run(&["reload"]).status.success());
    assert_eq!(world.ways(4), [1; 4]);
    ip(&world.client, "link set net1 down");
    world.wait_until("net1 is gone", |world| world.state("net1") == "gone");
    assert!(
        world.way(&world.client, SERVER, None).is_err(),
        "the rule is strict"
    );
    assert_eq!(
        world
            .way(&world.client, SERVER6, None)
            .expect("no rule matches it"),
        2
    );
}

#[test]
fn a_control_group_has_a_rule_of_its_own_from_its_first_second_on() {
    let Some(world) = World::new() else { return };
    let group = format!("hawser-test-{}", std::process::id());
    world.write_config(&format!(
        "[[rule]]\ncgroup = \"{group}\"\nnetwork = \"net2\"\nstrict = true\n"
    ));
    let _daemon = world.up();
    let inside = format!(
        "mkdir /sys/fs/cgroup/{group} || exit 77; sleep 1.5; ( echo $BASHPID > /sys/fs/cgroup/{group}/cgroup.procs
         for turn in 1 2 3; do exec 3<>/dev/tcp/{SERVER}/{PORT}; head -n 1 <&3; done )
         rmdir /sys/fs/cgroup/{group}"
    );
    let output = world.script(&inside);
    if output.status.code() == Some(77) {
        hawser_testing::skip("no control groups");
        return;
    }
    let seen = String::from_utf8_lossy(&output.stdout).into_owned();
    let ways: Vec<_> = seen.lines().map(way_of).collect();
    assert_eq!(ways, [2; 3], "{}", String::from_utf8_lossy(&output.stderr));
    let ways = world.ways(4);
    assert!(
        ways.contains(&1) && ways.contains(&2),
        "others take turns: {ways:?}"
    );
}

#[test]
fn a_kill_switch_is_refused_before_anything_is_touched() {
    let Some(world) = World::new() else { return };
    world.write_config("kill_switch = true\n");
    let before = world.system();
    let dir = world.dir.path().to_str().expect("a path");
    let output = world.run(&["up", "--direct", "--dir", dir]);
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("client.toml: kill_switch = true needs a hub"),
        "{said}"
    );
    assert_eq!(world.system(), before);
}

#[test]
fn weights_are_kept_to() {
    let Some(world) = World::new() else { return };
    world.write_config("[networks.net1]\nweight = 3\n");
    let _daemon = world.up();
    let ways = world.ways(16);
    let first = ways.iter().filter(|way| **way == 1).count();
    assert!((11..=13).contains(&first), "{ways:?}");
}
