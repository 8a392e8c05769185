//! Networks that have a carrier and no address: Hawser obtains an address, with each DHCP client
//! that it supports, and removes it at the end.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use hawser_linux::process::command_lines;
use serde_json::Value;

use crate::choice;
use crate::names::{look_up, serve_names};
use crate::world::{Daemon, SERVER, World, ip};

const CONFIG: &str =
    "dns = \"networks\"\n[networks.net1]\ndhcp = \"auto\"\n[networks.net2]\ndhcp = \"auto\"\n";

/// Creates a machine with two cables, and no address except that of its LAN.
fn world() -> Option<World> {
    if !hawser_testing::require_dnsmasq() {
        return None;
    }
    let world = World::new()?;
    ip(&world.client, "addr flush dev net1\naddr flush dev net2");
    world.write_config(CONFIG);
    Some(world)
}

/// Starts a DHCP server at a cable, with ten addresses of the same subnet.
fn serve(world: &World, n: usize, first: u8) -> Daemon {
    let leases = world.dir.path().join(format!("leases{n}"));
    let _ = std::fs::remove_file(&leases);
    let mut command = world.gateways[n - 1].command("dnsmasq");
    hawser_testing::dhcp_server(&mut command, &leases);
    command.arg("--interface=in");
    command.arg(format!(
        "--dhcp-range=192.168.0.{first},192.168.0.{},2m",
        first + 9
    ));
    command.arg("--dhcp-option=option:dns-server,192.168.0.1");
    Daemon(command.spawn().expect("a DHCP server"))
}

/// Starts Hawser in an environment in which only this client can be run, with files in a separate
/// directory.
fn start(world: &World, client: &str) -> Daemon {
    let hide = |program: &str| {
        format!("file=$(command -v {program}) && mount --bind /dev/null $(readlink -f $file)")
    };
    let commands = match client {
        "udhcpc" => String::from(":"),
        "dhcpcd" => format!(
            "{}; for place in /run/dhcpcd /var/lib/dhcpcd; do mkdir -p $place; mount -t tmpfs none $place; done",
            hide("busybox")
        ),
        _ => format!("{}; {}", hide("busybox"), hide("dhcpcd")),
    };
    world.start_after(&format!("PATH=$PATH:/usr/sbin:/sbin; {commands}"))
}

/// Returns Hawser's status of a network's address.
fn lease(world: &World, name: &str) -> Value {
    let status = world.ask(&["status"]);
    let all = status["dhcp"].as_array().cloned().unwrap_or_default();
    all.into_iter()
        .find(|lease| lease["network"] == name)
        .unwrap_or(Value::Null)
}

fn is_active(world: &World, name: &str) -> bool {
    world.state(name) == "active"
}

/// Returns the last number of a network's DHCP address.
fn last_number(world: &World, name: &str) -> u8 {
    let lease = lease(world, name);
    let address = lease["address"]
        .as_str()
        .and_then(|address| address.strip_suffix("/24"));
    let address: Ipv4Addr = address
        .and_then(|address| address.parse().ok())
        .unwrap_or(Ipv4Addr::UNSPECIFIED);
    address.octets()[3]
}

/// Returns the DHCP clients that run in the machine, and their auxiliary processes.
fn clients(world: &World) -> Vec<String> {
    let all = world.client.run(|| Ok(command_lines())).expect("processes");
    let lines = all.into_iter().map(|(_, words)| words.join(" "));
    lines.filter(|line| line.contains("dhcpc")).collect()
}

/// Ends the processes of a failed test.
struct Tidy<'a>(&'a World);

impl Drop for Tidy<'_> {
    fn drop(&mut self) {
        let left = self.0.client.run(|| Ok(command_lines())).unwrap_or_default();
        let left = left
            .into_iter()
            .filter(|(_, words)| words.join(" ").contains("dhcpc"));
        for (id, _) in left {
            let _ = Command::new("kill")
                .args(["-KILL", &id.to_string()])
                .stderr(Stdio::null())
                .status();
        }
    }
}

fn no_client_is_left(world: &World) {
    world.wait_until("no client runs", |world| clients(world).is_empty());
}

fn serves_both_and_leaves_nothing(client: &str) {
    let Some(world) = world().filter(|_| hawser_testing::require_program(&[client])) else {
        return;
    };
    let _tidy = Tidy(&world);
    let _servers = [serve(&world, 1, 100), serve(&world, 2, 100)];
    serve_names(&world.gateways[0], Ipv4Addr::new(203, 0, 113, 2));
    serve_names(&world.gateways[1], Ipv4Addr::new(192, 168, 0, 5));
    let resolvers = std::fs::read_to_string("/etc/resolv.conf").ok();
    let before = (world.system(), addresses(&world));
    let _daemon = start(&world, client);
    world.wait_until("both are active", |world| {
        is_active(world, "net1") && is_active(world, "net2")
    });
    let ways = world.ways(6);
    assert!(ways.contains(&1) && ways.contains(&2), "{ways:?}");
    for (name, address) in [("net1", SERVER), ("net2", "192.168.0.5")] {
        let lease = lease(&world, name);
        assert_eq!(
            (&lease["state"], &lease["by"]),
            (&"leased".into(), &client.into()),
            "{lease}"
        );
        assert!((100..110).contains(&last_number(&world, name)), "{lease}");
        assert!(
            (1..=120).contains(&lease["seconds_left"].as_u64().expect("a time")),
            "{lease}"
        );
        // The same resolver address in both networks, and different resolvers.
        let found = look_up(&world, "www.example.org", choice(&world, name));
        assert_eq!(found, (0, Some(address.parse().expect("an address"))));
    }
    assert_eq!(std::fs::read_to_string("/etc/resolv.conf").ok(), resolvers);
    world.down();
    assert!(clients(&world).is_empty(), "{:?}", clients(&world));
    assert_eq!((world.system(), addresses(&world)), before);
}

fn addresses(world: &World) -> String {
    let output = world
        .client
        .command("ip")
        .args(["-4", "-brief", "address"])
        .output();
    String::from_utf8(output.expect("ip runs").stdout).expect("text")
}

#[test]
fn udhcpc_serves_two_networks_that_overlap() {
    serves_both_and_leaves_nothing("udhcpc");
}

#[test]
fn dhcpcd_serves_two_networks_that_overlap() {
    serves_both_and_leaves_nothing("dhcpcd");
}

fn comes_back_with_another_address(client: &str) {
    let Some(world) = world().filter(|_| hawser_testing::require_program(&[client])) else {
        return;
    };
    let _tidy = Tidy(&world);
    let mut first = serve(&world, 1, 100);
    let _daemon = start(&world, client);
    world.wait_until("it is active", |world| is_active(world, "net1"));
    let before = last_number(&world, "net1");
    assert_eq!(world.ways(2), [1, 1]);
    ip(&world.gateways[0], "link set in down");
    world.wait_until("it is gone", |world| world.state("net1") == "gone");
    world.wait_until("its client ends", |world| {
        !clients(world).iter().any(|line| line.contains("net1"))
    });
    // The cable now leads to another network.
    first.0.kill().expect("killed");
    first.0.wait().expect("gone");
    let _second = serve(&world, 1, 200);
    ip(&world.gateways[0], "link set in up");
    let took = world.wait_until("it has another address", |world| {
        last_number(world, "net1") >= 200
    });
    eprintln!("{client}: another address {took:?} after the carrier");
    world.wait_until("it is active", |world| is_active(world, "net1"));
    assert_eq!(world.ways(2), [1, 1]);
    let shown = addresses(&world);
    assert!(!shown.contains(&format!("192.168.0.{before}/")), "{shown}");
    // The cable stays unplugged, so the address is removed too.
    ip(&world.gateways[0], "link set in down");
    world.wait_until("the address is taken", |world| {
        !addresses(world).contains("192.168.0.") && lease(world, "net1")["state"] == "no carrier"
    });
    world.down();
    no_client_is_left(&world);
}

#[test]
fn a_network_comes_back_with_another_address_by_udhcpc() {
    comes_back_with_another_address("udhcpc");
}

#[test]
fn a_network_comes_back_with_another_address_by_dhcpcd() {
    comes_back_with_another_address("dhcpcd");
}

fn crash(client: &str) {
    let Some(world) = world().filter(|_| hawser_testing::require_program(&[client])) else {
        return;
    };
    let _tidy = Tidy(&world);
    let _servers = [serve(&world, 1, 100), serve(&world, 2, 100)];
    let before = (world.system(), addresses(&world));
    for restart in [false, true] {
        let mut daemon = start(&world, client);
        world.wait_until("both are active", |world| {
            is_active(world, "net1") && is_active(world, "net2")
        });
        daemon.0.kill().expect("killed");
        daemon.0.wait().expect("gone");
        assert!(
            addresses(&world).contains("192.168.0."),
            "it stays until somebody clears up"
        );
        if restart {
            let _daemon = start(&world, client);
            world.wait_until("both are active", |world| {
                is_active(world, "net1") && is_active(world, "net2")
            });
            let shown = addresses(&world);
            assert_eq!(shown.matches("192.168.0.").count(), 2, "{shown}");
            world.down();
        } else {
            assert!(world.down().contains("undid the changes that it had left"));
        }
        no_client_is_left(&world);
        assert_eq!((world.system(), addresses(&world)), before);
    }
}

#[test]
fn a_crash_leaves_no_udhcpc() {
    crash("udhcpc");
}

#[test]
fn a_crash_leaves_no_dhcpcd() {
    crash("dhcpcd");
}

#[test]
fn what_is_missing_is_said() {
    let Some(world) = world() else { return };
    let _daemon = start(&world, "none");
    world.wait_until("it says so", |world| {
        let notice = world.ask(&["status"])["notice"].to_string();
        notice.contains("net1: ") && notice.contains("install udhcpc or dhcpcd")
    });
    world.down();
}

#[test]
fn the_client_of_somebody_else_is_left_alone_and_off_means_off() {
    let Some(world) = world().filter(|_| hawser_testing::require_program(&["udhcpc"])) else {
        return;
    };
    world.write_config("[networks.net1]\ndhcp = \"auto\"\n[networks.net2]\ndhcp = \"off\"\n");
    let mut command = world.client.command("sh");
    command.args([
        "-c",
        "PATH=$PATH:/usr/sbin:/sbin; exec udhcpc -f -i net1 -s /bin/true",
    ]);
    let other = Daemon(command.stderr(Stdio::null()).spawn().expect("a client"));
    let _daemon = start(&world, "udhcpc");
    world.wait_until("it is left", |world| lease(world, "net1")["state"] == "left");
    let by = lease(&world, "net1")["by"].to_string();
    assert!(by.contains(&format!("udhcpc (process {})", other.0.id())), "{by}");
    assert_eq!(lease(&world, "net2"), Value::Null);
    assert_eq!(clients(&world).len(), 1);
    // A change of the configuration takes effect immediately.
    let _server = serve(&world, 2, 100);
    world.write_config("[networks.net2]\ndhcp = \"auto\"\n");
    assert!(world.run(&["reload"]).status.success());
    world.wait_until("the other network is active", |world| is_active(world, "net2"));
    assert_eq!(lease(&world, "net1"), Value::Null);
    world.write_config("");
    assert!(world.run(&["reload"]).status.success());
    world.wait_until("its address is taken", |world| {
        !addresses(world).contains("192.168.0.")
    });
    world.down();
    assert_eq!(clients(&world).len(), 1);
}
