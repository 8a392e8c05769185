//! A captive portal on one of two networks, as seen by its user.

use std::io::{Read, Write};
use std::net::TcpListener;

use hawser_linux::netns::Namespace;

use crate::world::{PORT, SERVER, World, nft, way_of};

const PAGE: u16 = 8080;
const LOGIN: u16 = 8081;

/// Starts a server that gives every client the same answer.
fn serve(namespace: &Namespace, port: u16, answer: &'static str) {
    let listener = namespace
        .run(|| TcpListener::bind(("::", port)))
        .expect("a server");
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.read(&mut [0; 1000]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
}

/// Makes `net2` captive: without a login every HTTP request is answered by the portal, and all
/// other traffic is dropped.
fn capture(world: &World) {
    nft(
        &world.gateways[1],
        &format!(
            "table inet portal {{\n chain catch {{\n type nat hook prerouting priority dstnat;\n iifname \"in\" tcp dport {PAGE} redirect to :{LOGIN}\n }}\n\
             chain count {{\n type filter hook forward priority 0;\n iifname \"in\" counter comment \"leaked\"\n }}\n}}"
        ),
    );
}

fn config() -> String {
    format!("[direct]\nspread = \"even\"\nportal_check = \"http://{SERVER}:{PAGE}/check all is well\"\n")
}

fn world() -> Option<World> {
    let world = World::new()?;
    world.write_config(&config());
    serve(&world.server, PAGE, "HTTP/1.0 200 OK\r\n\r\nall is well\n");
    serve(
        &world.gateways[1],
        LOGIN,
        "HTTP/1.1 302 Found\r\nLocation: http://192.168.0.1/login\r\n\r\n",
    );
    Some(world)
}

/// Returns the counter of packets that the captive gateway was asked to forward.
fn leaked(world: &World) -> String {
    let listed = world.gateways[1]
        .command("nft")
        .args(["list", "chain", "inet", "portal", "count"])
        .output()
        .expect("nft runs");
    String::from_utf8_lossy(&listed.stdout)
        .lines()
        .find(|line| line.contains("leaked"))
        .expect("a counter")
        .trim()
        .to_owned()
}

#[test]
fn a_network_behind_a_portal_takes_nothing_until_somebody_logs_in() {
    if !hawser_testing::require_root_of_machine("a command over one network (eBPF)") {
        return;
    }
    let Some(world) = world() else { return };
    capture(&world);
    let _daemon = world.start();
    world.wait_until("the portal is found", |world| world.state("net2") == "portal");
    world.wait_until("net1 is there", |world| world.state("net1") == "active");
    let before = leaked(&world);
    assert_eq!(world.ways(6), [1; 6]);
    assert_eq!(leaked(&world), before);
    let status = world.ask(&["status"]);
    let notice = status["notice"].as_str().expect("a notice");
    assert!(
        notice.contains("net2: log in at http://192.168.0.1/login (sudo hawser login net2)"),
        "{notice}"
    );
    // The login can reach the portal.
    let script = format!("exec 3<>/dev/tcp/{SERVER}/{PORT}; head -n 1 <&3");
    let output = world.run_program(&["--network", "net2"], &["bash", "-c", &script]);
    let seen = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(way_of(seen.trim()), 2);
    nft(&world.gateways[1], "delete table inet portal");
    world.wait_until("somebody has logged in", |world| world.state("net2") == "active");
    let ways = world.ways(6);
    assert_eq!(ways.iter().filter(|way| **way == 2).count(), 3, "{ways:?}");
}

#[test]
fn a_network_that_comes_later_is_looked_at_before_it_carries_anything() {
    let Some(world) = world() else { return };
    crate::world::ip(&world.client, "link set net2 down");
    capture(&world);
    let _daemon = world.start();
    world.wait_until("net1 is there", |world| world.state("net1") == "active");
    world.plug(2);
    let mut ways = Vec::new();
    world.wait_until("the portal is found", |world| {
        ways.extend(world.ways(1));
        world.state("net2") == "portal"
    });
    assert!(ways.iter().all(|way| *way == 1), "{ways:?}");
    let before = leaked(&world);
    assert!(before.contains("packets 0 "), "{before}");
}

#[test]
fn nothing_is_asked_over_a_network_that_is_not_used() {
    let Some(world) = world() else { return };
    world.write_config(&format!("exclude = [\"net2\"]\n{}", config()));
    nft(
        &world.gateways[1],
        "table inet portal {\n chain count {\n type filter hook prerouting priority -300;\n iifname \"in\" ip protocol { tcp, udp } counter comment \"leaked\"\n }\n}",
    );
    let _daemon = world.start();
    world.wait_until("net1 is there", |world| world.state("net1") == "active");
    std::thread::sleep(std::time::Duration::from_secs(1));
    let seen = leaked(&world);
    assert!(seen.contains("packets 0 "), "{seen}");
}
