//! Another program changes Hawser's state in the kernel, and Hawser restores it.
//!
//! The changed objects are drawn from a dump of the kernel, with a seed: rules, routes, addresses,
//! interfaces, tables of nftables and settings are deleted, replaced, modified, or preceded by
//! other objects. There are 60 changes, or as many as `HAWSER_INTERFERENCES` specifies.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::outside::{Outside, Traffic};
use crate::world::{World, good, is_up};

/// Object of the kernel that Hawser wrote.
#[derive(Clone, Debug)]
enum Written {
    /// Family option of `ip`, and priority.
    Rule(&'static str, u32),
    /// Family option of `ip`, table, and the route as `ip` prints it.
    Route(&'static str, u32, String),
    /// Interface and address.
    Address(String, String),
    Link(String),
    /// A table of nftables and its first chain.
    Table(String, String),
    /// A setting and a value different from Hawser's.
    Setting(String, &'static str),
}

const FAMILIES: [&str; 2] = ["-4", "-6"];
/// Routing tables of near destinations, the tunnel, and the kill switch.
const TABLES: [u32; 3] = [18_517, 18_518, 18_519];

/// Side of the world whose state is changed.
struct Victim<'a> {
    world: &'a World,
    side: &'static str,
    interface: &'static str,
    settings: Vec<(String, &'static str)>,
}

impl Victim<'_> {
    fn sh(&self, script: &str) -> String {
        let mut command = self.world.inside(self.side, "sh");
        command.args(["-c", script]);
        let output = command.output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns all state that Hawser wrote, independent of the position of its rules.
    fn dump(&self) -> String {
        let mut lines = Vec::new();
        for family in FAMILIES {
            let rules = self.sh(&format!("ip {family} rule"));
            let own = rules.lines().filter(|line| line.contains("proto 72"));
            let parts = own.filter_map(|line| line.split_once(':'));
            lines.extend(parts.map(|(_, rule)| format!("{family} rule{rule}")));
            for table in TABLES {
                let routes = self.sh(&format!("ip {family} route show table {table} 2>/dev/null"));
                let mut routes: Vec<_> = routes
                    .lines()
                    .map(|line| format!("{family} {table} {line}"))
                    .collect();
                routes.sort();
                lines.extend(routes);
            }
        }
        let addresses = self.sh(&format!("ip -br addr show dev {} scope global", self.interface));
        lines.push(addresses);
        lines.push(self.sh(&format!("cat /sys/class/net/{}/mtu", self.interface)));
        for (table, _) in self.tables() {
            lines.push(self.sh(&format!("nft -s -t list table inet {table}")));
        }
        for (key, _) in &self.settings {
            lines.push(self.sh(&format!("sysctl {key}")));
        }
        lines.join("\n")
    }

    fn tables(&self) -> Vec<(String, String)> {
        let listed = self.sh("nft list tables");
        let names = listed
            .lines()
            .filter_map(|line| line.strip_prefix("table inet hawser_"));
        let first = |name: &str| {
            let table = format!("hawser_{name}");
            let listed = self.sh(&format!("nft list table inet {table}"));
            let chain = listed
                .lines()
                .find_map(|line| line.trim().strip_prefix("chain "))?;
            let chain = chain.trim_end_matches(" {").to_owned();
            Some((table, chain))
        };
        let mut found: Vec<_> = names.filter_map(first).collect();
        found.sort();
        found
    }

    fn written(&self) -> Vec<Written> {
        let mut found = Vec::new();
        for family in FAMILIES {
            for line in self.sh(&format!("ip {family} rule")).lines() {
                if let (true, Some((priority, _))) = (line.contains("proto 72"), line.split_once(':')) {
                    found.push(Written::Rule(family, priority.parse().unwrap()));
                }
            }
            for table in TABLES {
                for line in self
                    .sh(&format!("ip {family} route show table {table} 2>/dev/null"))
                    .lines()
                {
                    found.push(Written::Route(family, table, line.trim().to_owned()));
                }
            }
        }
        let shown = self.sh(&format!("ip -br addr show dev {} scope global", self.interface));
        let addresses = shown.split_whitespace().skip(2).filter(|word| word.contains('/'));
        found
            .extend(addresses.map(|address| Written::Address(self.interface.to_owned(), address.to_owned())));
        found.push(Written::Link(self.interface.to_owned()));
        found.extend(
            self.tables()
                .into_iter()
                .map(|(table, chain)| Written::Table(table, chain)),
        );
        let settings = self.settings.iter().cloned();
        found.extend(settings.map(|(key, value)| Written::Setting(key, value)));
        found
    }
}

/// Returns the command of another program that changes an object, and the command that removes its
/// additions.
fn interference(object: &Written, kind: u64) -> (String, String) {
    let none = String::new();
    let (via, prefix) = ("via 10.0.10.1 dev fiber", "203.0.113.0/24");
    match object {
        Written::Rule(family, priority) => {
            let delete = format!("ip {family} rule del pref {priority}");
            // The foreign rule has its own protocol, because its removal could otherwise delete a
            // rule of Hawser to `main` with the same priority: attributes that `ip` does not
            // receive match everything.
            let foreign = |action: &str, at: u32| {
                format!("ip {family} rule {action} pref {at} lookup main protocol 99")
            };
            let add = |at: u32| foreign("add", at);
            let back = |at: u32| foreign("del", at);
            match kind {
                0 => (delete, none),
                1 => (format!("{delete}; {}", add(*priority)), back(*priority)),
                2 => (add(priority - 1), back(priority - 1)),
                _ => (format!("{delete}; ip {family} rule flush protocol 72"), none),
            }
        }
        Written::Route("-4", table, route) => match kind {
            0 => (format!("ip route del {route} table {table}"), none),
            1 => (format!("ip route replace default {via} table {table}"), none),
            2 => (format!("ip route add {prefix} {via} table {table}"), none),
            _ => (format!("ip route flush table {table}"), none),
        },
        Written::Route(family, table, _) => (format!("ip {family} route flush table {table}"), none),
        Written::Address(interface, address) => match kind {
            0 => (format!("ip addr del {address} dev {interface}"), none),
            _ => (format!("ip addr flush dev {interface}"), none),
        },
        Written::Link(interface) => match kind {
            0 | 1 => (format!("ip link set {interface} down"), none),
            _ => (format!("ip link set {interface} mtu 1300"), none),
        },
        Written::Table(table, chain) => match kind {
            0 => (format!("nft delete table inet {table}"), none),
            1 => (format!("nft flush table inet {table}"), none),
            2 => (format!("nft insert rule inet {table} {chain} accept"), none),
            _ => ("nft flush ruleset".to_owned(), none),
        },
        Written::Setting(key, value) => (format!("sysctl -qw {key}={value}"), none),
    }
}

/// Returns the next pseudo-random number (xorshift): equal seeds draw equal changes.
fn draw(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn count() -> u64 {
    let set = std::env::var("HAWSER_INTERFERENCES").ok();
    set.map_or(60, |count| count.parse().expect("a number of changes"))
}

/// Changes the victim's objects one after the other, and calls `check` after each change.
fn interfere(victim: &Victim<'_>, seed: u64, check: impl Fn(&str)) {
    // Copied routes and addresses settle first.
    std::thread::sleep(Duration::from_secs(1));
    let wanted = victim.dump();
    let (mut state, mut slowest) = (seed, (Duration::ZERO, String::new()));
    let mut kinds = BTreeMap::new();
    for _ in 0..count() {
        let written = victim.written();
        let object = &written[draw(&mut state) as usize % written.len()];
        let (change, back) = interference(object, draw(&mut state) % 4);
        let started = Instant::now();
        victim.sh(&change);
        while victim.dump() != wanted {
            assert!(
                started.elapsed() < hawser_testing::GIVE_UP,
                "{change} is not restored: {}\nwanted: {wanted}",
                victim.dump()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        slowest = slowest.max((started.elapsed(), change.clone()));
        check(&change);
        victim.sh(&back);
        let kind = change.split(' ').take(3).collect::<Vec<_>>().join(" ");
        *kinds.entry(kind).or_insert(0_u32) += 1;
    }
    eprintln!("seed {seed}: {kinds:?}; slowest {slowest:?}, the dump itself included");
}

fn uplink_settings() -> Vec<(String, &'static str)> {
    let strict = |name: &str| (format!("net.ipv4.conf.{name}.rp_filter"), "1");
    vec![
        strict("fiber"),
        strict("lte"),
        ("net.ipv4.conf.fiber.arp_ignore".to_owned(), "0"),
        ("net.ipv4.conf.hawser0.accept_redirects".to_owned(), "1"),
        ("net.ipv6.conf.hawser0.accept_ra".to_owned(), "1"),
    ]
}

fn set(world: &World, side: &str, setting: &str) {
    let mut sysctl = world.inside(side, "sysctl");
    sysctl.args(["-qw", setting]);
    good(sysctl);
}

#[test]
fn what_another_program_changes_on_a_client_is_restored() {
    let Some(world) = World::new("if") else { return };
    for name in ["fiber", "lte"] {
        set(&world, "c", &format!("net.ipv4.conf.{name}.rp_filter=1"));
    }
    let before = world.system("c");
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let mut client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("up", is_up);
    world.wait("through", World::ping_hub);
    let victim = Victim {
        world: &world,
        side: "c",
        interface: "hawser0",
        settings: uplink_settings(),
    };
    interfere(&victim, 0x5eed_0001, |change| {
        world.wait(&format!("through after {change}"), World::ping_hub);
    });
    client.signal("-TERM");
    // Settings of another program since then are its own, and so are other programs' tables that it
    // has flushed.
    let without = |text: &str| {
        let (near, nft) = text.split_once("nft list ruleset").expect("the rules");
        let settings = nft.lines().filter(|line| line.starts_with("net."));
        let lines = near
            .lines()
            .chain(settings)
            .filter(|line| !line.contains("rp_filter"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let after = world.system("c");
    assert_eq!(without(&after), without(&before));
    assert!(!after.contains("hawser"), "{after}");
}

/// One layer of the kill switch works while the other is deleted.
#[test]
fn nothing_leaves_outside_while_another_program_interferes() {
    let Some(world) = World::new("ik") else { return };
    for name in ["fiber", "lte"] {
        set(&world, "c", &format!("net.ipv4.conf.{name}.rp_filter=1"));
    }
    world.add_ipv6();
    world.add_server();
    world.init();
    world.configure("c", "kill_switch = true\n");
    let _hub = world.start("h", &["hub", "run"]);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("up", is_up);
    world.wait("through", World::ping_hub);
    let outside = Outside::count(&world);
    let traffic = Traffic::start(&world.open("c"), None);
    let victim = Victim {
        world: &world,
        side: "c",
        interface: "hawser0",
        settings: uplink_settings(),
    };
    interfere(&victim, 0x5eed_0002, |change| {
        traffic.send(20);
        outside.assert_none(&format!("after {change}"));
    });
}

#[test]
fn what_another_program_changes_on_a_hub_is_restored() {
    let Some(world) = World::new("ih") else { return };
    let before = world.system("h");
    world.add_server();
    let with_server = world.system("h");
    world.init();
    let mut hub = world.start("h", &["hub", "run"]);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("up", is_up);
    world.wait("through", |world| world.ping("203.0.113.2"));
    let victim = Victim {
        world: &world,
        side: "h",
        interface: "hawserhub0",
        settings: vec![("net.ipv4.ip_forward".to_owned(), "0")],
    };
    interfere(&victim, 0x5eed_0003, |change| {
        world.wait(&format!("through after {change}"), |world| {
            world.ping("203.0.113.2")
        });
    });
    hub.signal("-TERM");
    assert_ne!(before, with_server);
    let nft = world.system("h");
    assert!(!nft.contains("hawser"), "{nft}");
}

/// Rules of another program before those of Hawser, at all kinds of positions, and their log
/// entries.
#[test]
fn rules_and_routes_that_lead_past_the_tunnel_do_not() {
    let Some(world) = World::new("ir") else { return };
    world.add_server();
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("up", is_up);
    let is_inside = |world: &World| {
        let mut ip = world.inside("c", "ip");
        ip.args(["route", "get", "203.0.113.2"]);
        String::from_utf8_lossy(&good(ip).stdout).contains("dev hawser0")
    };
    world.wait("inside", is_inside);
    let client = world.namespace("c");
    for priority in [18_517, 5000, 100, 3] {
        world.ip(&client, &format!("rule add pref {priority} lookup main"));
        world.wait(&format!("inside in spite of a rule at {priority}"), is_inside);
    }
    for half in ["0.0.0.0/1", "128.0.0.0/1"] {
        world.ip(&client, &format!("route add {half} via 10.0.10.1 dev fiber"));
    }
    world.wait("reported", |world| {
        world.status("c")["notice"]
            .as_str()
            .is_some_and(|notice| notice.contains("128.0.0.0/1"))
    });
    assert!(is_inside(&world));
    // An administrator's route to a private network stays outside the tunnel, a route of DHCP does
    // not.
    world.ip(
        &client,
        "route add 10.77.0.0/16 via 10.0.10.1 dev fiber proto static",
    );
    world.ip(
        &client,
        "route add 10.78.0.0/16 via 10.0.10.1 dev fiber proto dhcp",
    );
    let device = |to: &str| {
        let mut ip = world.inside("c", "ip");
        ip.args(["route", "get", to]);
        String::from_utf8_lossy(&good(ip).stdout).into_owned()
    };
    world.wait("near", |_| device("10.77.0.1").contains("dev fiber"));
    assert!(device("10.78.0.1").contains("dev hawser0"));
    // The subnet of an uplink contains the tunnel's inner addresses.
    world.ip(&client, "addr add 100.100.0.9/10 dev fiber");
    world.wait("a neighbour", |_| device("100.100.0.1").contains("dev fiber"));
    world.wait("the hub", |_| device("100.96.0.1").contains("dev hawser0"));
    world.ip(&client, "addr del 100.100.0.9/10 dev fiber");
    // Marks that other programs set on Hawser's packets have no effect.
    let mut nft = world.inside("c", "nft");
    nft.arg("add table inet others; add chain inet others out { type route hook output priority -150; }; add rule inet others out meta mark set mark or 0x100");
    good(nft);
    world.wait("through with marks", World::ping_hub);
}

/// The interface cannot be restored: the data plane holds a descriptor of the removed one.
#[test]
fn a_daemon_whose_interface_is_removed_ends_with_an_error() {
    let Some(world) = World::new("removed") else {
        return;
    };
    world.init();
    let mut hub = world.start("h", &["hub", "run"]);
    let mut client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("up", is_up);
    for (side, interface, daemon) in [("c", "hawser0", &mut client), ("h", "hawserhub0", &mut hub)] {
        world.ip(&world.namespace(side), &format!("link del {interface}"));
        let status = hawser_testing::wait_for_end(&mut daemon.0);
        assert!(!status.success(), "{side}: {status}");
    }
}

#[test]
fn beside_another_vpn_that_takes_everything_it_does_not_start() {
    let Some(world) = World::new("iv") else { return };
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let client = world.namespace("c");
    for step in [
        "tuntap add wg0 mode tun",
        "link set wg0 up",
        "route add default dev wg0 table 51820",
        "rule add not fwmark 0xca6c lookup 51820",
        "rule add lookup main suppress_prefixlength 0",
    ] {
        world.ip(&client, step);
    }
    let output = world
        .hawser("c", &["up", &invitation, "--foreground"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("another VPN (wg0)"),
        "{said}"
    );
    // A rule for its own destinations only is no obstacle, and keeps them.
    for step in [
        "rule del lookup 51820",
        "rule del lookup main suppress_prefixlength 0",
        "route add 198.18.7.0/24 dev wg0",
    ] {
        world.ip(&client, step);
    }
    let _client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("up", is_up);
    let mut ip = world.inside("c", "ip");
    ip.args(["route", "get", "198.18.7.1"]);
    let shown = String::from_utf8_lossy(&good(ip).stdout).into_owned();
    assert!(shown.contains("dev wg0"), "{shown}");
}
