//! Unit of direct mode with DHCP: all of its actions work inside the sandbox.

use std::net::UdpSocket;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::machine::Machine;
use crate::world::{World, good};

const UNIT: &str = "hawser-direct.service";

/// DHCP server at the far end of `lte`.
struct Server(Child);

impl Server {
    fn start(world: &World) -> Option<Self> {
        if !hawser_testing::require_dnsmasq() {
            return None;
        }
        let mut command = world.inside("h", "dnsmasq");
        hawser_testing::dhcp_server(&mut command, &world.place("leases"));
        command.args([
            "--interface=lte",
            "--dhcp-range=10.0.11.100,10.0.11.109,255.255.255.0,2m",
        ]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Some(Self(command.spawn().unwrap()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Program whose packets a strict rule restricts to `lte`, each from a new socket; they are counted
/// at the far end.
struct Strict<'a> {
    world: &'a World,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<'a> Strict<'a> {
    fn send(world: &'a World) -> Self {
        let mut nft = world.inside("h", "nft");
        nft.arg(
            "add table inet strict; add counter inet strict lte; add counter inet strict fiber; \
             add chain inet strict in { type filter hook prerouting priority -400; }; \
             add rule inet strict in udp dport 7 counter name iifname map { lte : lte, fiber : fiber }",
        );
        good(nft);
        let ends = Arc::new(AtomicBool::new(false));
        let (end, client) = (Arc::clone(&ends), world.open("c"));
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let _ = client.run(|| UdpSocket::bind("0.0.0.0:0")?.send_to(b"strict", "203.0.113.2:7"));
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Self {
            world,
            ends,
            thread: Some(thread),
        }
    }

    fn packets(&self, network: &str) -> u64 {
        let mut nft = self.world.inside("h", "nft");
        nft.args(["-j", "list", "counter", "inet", "strict", network]);
        let listed: serde_json::Value = serde_json::from_slice(&good(nft).stdout).unwrap();
        let all = listed["nftables"].as_array().unwrap();
        let counter = all.iter().find(|found| found["counter"].is_object()).unwrap();
        counter["counter"]["packets"].as_u64().unwrap()
    }
}

impl Drop for Strict<'_> {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

#[test]
#[ignore = "slow: make test-all"]
fn direct_mode_is_managed_with_dhcp_and_programs_in_the_kernel() {
    let Some(world) = World::new("ud") else { return };
    world.ip(&world.namespace("c"), "addr flush dev lte");
    let Some(_server) = Server::start(&world) else {
        return;
    };
    // Packets to port 7 use the network that is not the machine's default, or are dropped.
    let config = "[direct]\nportal_check = \"off\"\n[networks.lte]\ndhcp = \"auto\"\n\
        [[rule]]\nport = 7\nnetwork = \"lte\"\nstrict = true\n";
    world.configure("c", config);
    let before = world.system("c");
    let Some(machine) = Machine::boot(&world, "c", &[UNIT]) else {
        return;
    };
    let has_both = |machine: &Machine| {
        let status = machine.say("hawser", &["status", "--json"]);
        status.matches("\"state\":\"active\"").count() >= 2 && status.contains("10.0.11.10")
    };
    machine.wait_until("on both networks", has_both);
    machine.systemctl(&["reload", UNIT]);
    let strict = Strict::send(&world);
    world.wait("sent over lte", |_| strict.packets("lte") > 20);
    let before_crash = strict.packets("fiber");
    machine.wait_longer_after_crashes_of(UNIT);
    machine.systemctl(&["kill", "--kill-who=main", "--signal=KILL", UNIT]);
    machine.wait_until("waiting", |machine| {
        machine.show(UNIT, "SubState") == "auto-restart"
    });
    let while_down = strict.packets("lte");
    world.wait("sent while nobody is there", |_| {
        strict.packets("lte") > while_down + 20
    });
    machine.wait_until("on both networks again", has_both);
    assert_eq!(
        (before_crash, strict.packets("fiber")),
        (0, 0),
        "packets that a strict rule keeps to lte"
    );
    drop(strict);
    machine.systemctl(&["stop", UNIT]);
    assert_eq!(machine.show(UNIT, "Result"), "success", "{}", machine.journal());
    assert_eq!(world.system("c"), before);
    let journal = machine.say("journalctl", &["-u", UNIT, "-o", "cat", "--no-pager"]);
    for complaint in [
        "cannot select a network by socket option",
        "may be dropped",
        "not permitted",
        "Read-only",
    ] {
        assert!(!journal.contains(complaint), "{journal}");
    }
}
