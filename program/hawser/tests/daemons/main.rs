//! Real daemons in network namespaces: packets pass, transfers survive restarts and changes, and no
//! state remains, not even after a crash.
//!
//! The tests need root; without it they are skipped with a message.
#![allow(clippy::unwrap_used, reason = "a test")]

mod acme;
mod administration;
mod administration_page;
mod blocked;
mod browser;
mod checks;
mod dashboard;
mod deadlines;
mod declared;
mod dhcp;
mod first_steps;
mod gateway;
mod gre;
mod hubs;
mod intents;
mod interference;
mod isolation;
mod kill_switch;
mod layers;
mod limits;
mod mixed;
mod modems;
mod names;
mod nat64;
mod neighbours;
mod outside;
mod pairs;
mod path_mtu;
mod policy;
mod portal;
mod restart;
mod revocation;
mod standby;
mod streams;
mod transfer;
mod wireguard;
mod without_hub;
mod world;

use std::path::Path;

use transfer::Transfer;
use world::{World, active, good, is_up};

#[test]
fn packets_pass_and_nothing_stays_behind() {
    let Some(world) = World::new("a") else { return };
    let (client_before, hub_before) = (world.system("c"), world.system("h"));
    world.init();
    let mut hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let mut client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("up", is_up);
    world.wait("through", World::ping_hub);
    world.wait("on both networks", |world| {
        let paths = world.status("c")["sessions"][0]["paths"].clone();
        paths
            .as_array()
            .is_some_and(|paths| paths.len() == 2 && paths.iter().all(|p| p["state"] == "active"))
    });
    assert_ne!(world.system("c"), client_before);
    client.signal("-TERM");
    assert_eq!(world.system("c"), client_before);

    // From now on the identity suffices. A crash leaves rules, which `down` removes.
    let mut client = world.start("c", &["up", "--foreground"]);
    world.wait("up again", is_up);
    client.signal("-KILL");
    assert_ne!(world.system("c"), client_before);
    good(world.hawser("c", &["down"]));
    assert_eq!(world.system("c"), client_before);

    hub.signal("-KILL");
    assert_ne!(world.system("h"), hub_before);
    good(world.hawser("h", &["down"]));
    assert_eq!(world.system("h"), hub_before);
}

#[test]
fn a_hub_restart_is_survived_and_revocation_is_immediate() {
    let Some(world) = World::new("b") else { return };
    world.init();
    let mut hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    // All steps of a user: the command returns when packets flow.
    let up = good(world.hawser("c", &["up", &invitation]));
    assert!(
        String::from_utf8_lossy(&up.stdout).starts_with("up: hawser0 to 198.51.100.1:4430 over fiber, lte")
    );
    world.wait("through", World::ping_hub);
    let first = world.status("c");
    hub.signal("-KILL");
    let _hub = world.start("h", &["hub", "run"]);
    world.wait("a new session", |world| {
        let now = world.status("c");
        now["session"] != first["session"] && now["state"] == "up"
    });
    world.wait("through again", World::ping_hub);
    assert_eq!(world.status("c")["inner"], first["inner"]);

    // The user did not request this end, so no packet leaves until the client is stopped.
    good(world.hawser("h", &["hub", "revoke", "alice"]));
    world.wait("ended", |world| {
        let notice = world.status("c")["notice"].to_string();
        notice.contains("when_ended")
    });
    let route = |world: &World| {
        world
            .inside("c", "ip")
            .args(["route", "get", "203.0.113.2"])
            .output()
            .unwrap()
    };
    let refused = String::from_utf8_lossy(&route(&world).stderr).into_owned();
    assert!(refused.contains("No route to host"), "{refused}");
    good(world.hawser("c", &["down"]));
    assert!(route(&world).status.success(), "outside again");
    // With `open` the client ends by itself.
    good(world.hawser("c", &["up", &world.invite_as("bob")]));
    good(world.hawser("c", &["down"]));
    world.configure("c", "when_ended = \"open\"\n");
    good(world.hawser("c", &["up"]));
    good(world.hawser("h", &["hub", "revoke", "bob"]));
    world.wait("gone", |world| world.status("c")["state"] == "down");
    let refused = world.hawser("c", &["up"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        said.contains("not enrolled") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn networks_come_and_go_under_a_kill_switch() {
    let Some(world) = World::new("d") else { return };
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    world.ip(&world.namespace("c"), "link set lte down");
    world.configure("c", "kill_switch = true\n");
    let invitation = world.invite();
    let mut client = world.start("c", &["up", &invitation, "--foreground"]);
    // Without the tunnel the hub's inner address would also be reachable, over the default route.
    world.wait("up", is_up);
    world.wait("through", World::ping_hub);
    let outside = |world: &World| world.ping("10.0.10.1");
    assert!(
        !outside(&world),
        "a packet left outside the tunnel: {}",
        world.system("c")
    );

    let session = world.status("c")["session"].clone();
    world.ip(&world.namespace("c"), "link set lte up");
    world.ip(
        &world.namespace("c"),
        "route add default via 10.0.11.1 metric 101",
    );
    world.wait("on the new network", |world| active(world) == ["fiber", "lte"]);
    world.ip(&world.namespace("c"), "link del fiber");
    world.wait("on the network that is left", |world| active(world) == ["lte"]);
    world.wait("controlled over it", |world| {
        let status = world.status("c");
        status["networks"][0]["control"] == true && status["networks"][0]["name"] == "lte"
    });
    assert!(world.ping_hub());
    assert_eq!(world.status("c")["session"], session, "the session went on");
    assert!(world.status("c")["epoch"].as_u64().unwrap() > 0, "with new keys");
    client.signal("-TERM");
    assert!(!world.system("c").contains("hawser"));
}

#[test]
fn bad_configuration_is_said_before_anything_is_touched() {
    let Some(world) = World::new("c") else { return };
    let before = world.system("c");
    world.configure("c", "\nmtu = 7\n");
    let output = world.hawser("c", &["up", "--foreground"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("client.toml:2: mtu 7"));
    assert!(!Path::new(&world.run_dir("c")).exists());
    assert_eq!(world.system("c"), before);
}

/// The connection of an application that is not split only pauses.
#[test]
fn a_transfer_lives_through_a_crash_of_the_hub() {
    let Some(world) = World::new("e") else { return };
    let server = world.add_server();
    world.init();
    world.configure("c", "tcp = \"end-to-end\"\n");
    let mut hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let _client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("up", is_up);
    let transfer = Transfer::start(&server, &world.open("c"));
    let first = world.status("c");
    world.wait("on the way", |_| transfer.received() > 2 << 20);
    hub.signal("-KILL");
    let _hub = world.start("h", &["hub", "run"]);
    world.wait("a new session", |world| {
        let now = world.status("c");
        now["session"] != first["session"] && now["state"] == "up"
    });
    assert!(!transfer.is_over(), "the crash came too late");
    transfer.finish();
}

#[test]
fn a_transfer_lives_through_a_reload_and_a_new_address() {
    let Some(world) = World::new("f") else { return };
    let server = world.add_server();
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("on both networks", |world| active(world) == ["fiber", "lte"]);
    let session = world.status("c")["session"].clone();
    let transfer = Transfer::start(&server, &world.open("c"));
    world.wait("on the way", |_| transfer.received() > 1 << 20);

    let configure = |text: &str| {
        world.configure("c", text);
        client.send_signal("-HUP");
    };
    configure("exclude = [\"fib*\"]\n");
    world.wait("on the network that is left", |world| active(world) == ["lte"]);
    // An invalid configuration changes nothing.
    configure("exclude = 7\n");
    configure("exclude = [\"nothing\"]\n");
    world.wait("on both networks again", |world| {
        active(world) == ["fiber", "lte"]
    });

    // The source address of all packets is removed; another one is added.
    let namespace = world.namespace("c");
    world.ip(&namespace, "addr del 10.0.11.2/24 dev lte");
    world.ip(&namespace, "addr add 10.0.11.7/24 dev lte");
    world.ip(&namespace, "route replace default via 10.0.11.1 metric 101");
    world.wait("known by its new address", |world| {
        let paths = world.status("h")["sessions"][0]["paths"].clone();
        paths.as_array().is_some_and(|paths| {
            paths.iter().any(|path| {
                let remote = path["remote"].as_str().unwrap_or_default();
                remote.starts_with("10.0.11.7:") && path["state"] == "active"
            })
        })
    });
    assert!(!transfer.is_over(), "the changes came too late");
    transfer.finish();
    assert_eq!(world.status("c")["session"], session, "the session went on");
}

#[test]
fn a_network_over_its_quota_leaves_the_tunnel_and_the_transfer_goes_on() {
    let Some(world) = World::new("q") else { return };
    let server = world.add_server();
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let configure = |quota: &str| {
        let text = format!("[networks.lte]\nquota = \"{quota}\"\n");
        world.configure("c", text);
    };
    // The quota is small, because two cables without limits carry no more than one: the second gets
    // only the packets that the first cannot accept immediately.
    configure("100kB");
    let invitation = world.invite();
    let client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("on both networks", |world| active(world) == ["fiber", "lte"]);
    let transfer = Transfer::start(&server, &world.open("c"));
    world.wait("on the network that is left", |world| active(world) == ["fiber"]);
    let status = world.status("c");
    assert_eq!(
        status["notice"],
        "lte: its quota is used up, so the tunnel does not use it"
    );
    transfer.finish();
    // A larger quota enables the network again.
    configure("10GB");
    client.send_signal("-HUP");
    world.wait("on both networks again", |world| {
        active(world) == ["fiber", "lte"]
    });
}

/// The usage belongs to a device, even if its name changes.
#[test]
fn two_devices_that_swap_names_keep_their_usage_and_the_swap_is_named() {
    let Some(world) = World::new("swap") else { return };
    let server = world.add_server();
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let text = "[networks.fiber]\nquota = \"10GB\"\n";
    world.configure("c", text);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("on both networks", |world| active(world) == ["fiber", "lte"]);
    good(world.hawser("c", &["pause", "lte"]));
    world.wait("on one network", |world| active(world) == ["fiber"]);
    Transfer::start(&server, &world.open("c")).finish();
    good(world.hawser("c", &["resume", "lte"]));
    world.wait("on both again", |world| active(world) == ["fiber", "lte"]);
    let used = |world: &World, name: &str| {
        let networks = world.status("c")["networks"].clone();
        let mut networks = networks.as_array().unwrap().iter();
        let network = networks.find(|network| network["name"] == name);
        network.and_then(|network| network["usage"]["total_bytes"].as_u64())
    };
    world.wait("counted", |world| used(world, "fiber") > Some(1_000_000));
    let namespace = world.namespace("c");
    let small = used(&world, "lte").unwrap();
    let large = used(&world, "fiber").unwrap();
    assert!(large > 2 * small, "fiber {large} and lte {small}");
    let swap = || {
        for (from, to) in [("fiber", "other"), ("lte", "fiber"), ("other", "lte")] {
            world.ip(&namespace, &format!("link set {from} down"));
            world.ip(&namespace, &format!("link set {from} name {to}"));
            world.ip(&namespace, &format!("link set {to} up"));
        }
        for (device, metric) in [("lte", 110), ("fiber", 111)] {
            let mut ip = world.inside("c", "ip");
            ip.args(["-br", "-4", "addr", "show", device]);
            let said = String::from_utf8(good(ip).stdout).unwrap();
            let net = if said.contains("10.0.10.2") { 10 } else { 11 };
            world.ip(
                &namespace,
                &format!("route replace default via 10.0.{net}.1 dev {device} metric {metric}"),
            );
        }
    };
    swap();
    world.wait("named", |world| {
        let notice = world.status("c")["notice"].to_string();
        notice.contains("fiber is another device now")
    });
    world.wait("on both networks again", |world| {
        active(world) == ["fiber", "lte"]
    });
    assert!(
        used(&world, "lte") >= Some(large),
        "the large sum went with its device"
    );
    assert!(
        used(&world, "fiber") < Some(large),
        "the quota is charged with its own device"
    );
    // Settings of a device apply to it under any name.
    let mut cat = world.inside("c", "cat");
    cat.arg("/sys/class/net/fiber/address");
    let address = String::from_utf8(good(cat).stdout).unwrap();
    let text = format!(
        "[networks.fiber]\ndevice = \"{}\"\nquota = \"7GB\"\n",
        address.trim()
    );
    world.configure("c", text);
    good(world.hawser("c", &["reload"]));
    let quota = |world: &World, name: &str| {
        let networks = world.status("c")["networks"].clone();
        let mut networks = networks.as_array().unwrap().iter();
        let network = networks.find(|network| network["name"] == name);
        network.is_some_and(|network| network["usage"]["quota_bytes"] == 7_000_000_000_u64)
    };
    world.wait("as before", |world| quota(world, "fiber") && !quota(world, "lte"));
    swap();
    world.wait("the settings follow", |world| {
        quota(world, "lte") && !quota(world, "fiber")
    });
}

/// A DHCP client that is not bound to the interface sends to a server beyond the link.
#[test]
fn renewals_of_leases_leave_outside_the_tunnel() {
    for config in [
        "",
        "kill_switch = true\n",
        "[[rule]]\nport = 1\nvia = \"direct\"\n",
    ] {
        let Some(world) = World::new("renew") else { return };
        world.init();
        world.configure("c", config);
        let _hub = world.start("h", &["hub", "run"]);
        let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
        world.wait("up", is_up);
        let way = |ports: &str| {
            let mut ip = world.inside("c", "ip");
            let question = format!("route get 203.0.113.67 ipproto udp {ports}");
            ip.args(question.split_whitespace());
            String::from_utf8(good(ip).stdout).unwrap()
        };
        assert!(way("sport 68 dport 67").contains(" dev fiber "), "{config}");
        assert!(way("sport 68 dport 68").contains(" dev hawser0 "), "{config}");
    }
}

#[test]
fn a_network_over_its_quota_becomes_a_backup_at_both_ends() {
    let Some(world) = World::new("qb") else { return };
    let server = world.add_server();
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let configure = |quota: &str| {
        let text = format!("[networks.lte]\nquota = \"{quota}\"\nquota_action = \"backup\"\n");
        world.configure("c", text);
    };
    configure("100kB");
    let client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("on both networks", |world| active(world) == ["fiber", "lte"]);
    let is_at_both_ends = |world: &World, priority: &str| {
        let networks = world.status("c")["networks"].clone();
        let mut networks = networks.as_array().unwrap().iter();
        let lte = networks.find(|network| network["name"] == "lte").unwrap();
        ["c", "h"].iter().all(|side| {
            let status = world.status(side);
            let paths = status["sessions"][0]["paths"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            paths
                .iter()
                .any(|path| path["path"] == lte["path"] && path["priority"] == priority)
        })
    };
    assert!(is_at_both_ends(&world, "always"));
    let transfer = Transfer::start(&server, &world.open("c"));
    world.wait("a backup", |world| is_at_both_ends(world, "backup"));
    transfer.finish();
    assert_eq!(
        world.status("c")["notice"],
        "lte: its quota is used up, so it is used only while no other network works"
    );
    // The user may change the preference in the meantime.
    let said = good(world.hawser("c", &["use", "lte", "always"]));
    assert_eq!(
        String::from_utf8_lossy(&said.stdout),
        "lte: up backup, down backup\n"
    );
    good(world.hawser("c", &["pause", "fiber"]));
    world.wait("carried by the backup", World::ping_hub);
    configure("10GB");
    client.send_signal("-HUP");
    world.wait("as before", |world| is_at_both_ends(world, "always"));
}

#[test]
fn an_invitation_lets_one_machine_in() {
    let Some(world) = World::new("g") else { return };
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let used = world.invite();
    let mut first = world.start("c", &["up", &used, "--foreground"]);
    world.wait("up", is_up);
    first.signal("-TERM");
    let revoked = world.invite_as("bob");
    good(world.hawser("h", &["hub", "revoke", "bob"]));
    for (invitation, why) in [
        (&used, "already been used"),
        (&revoked, "does not know this invitation"),
    ] {
        // Another machine has another key.
        std::fs::remove_dir_all(world.place("c")).unwrap();
        for _ in 0..2 {
            let refused = world.hawser("c", &["up", invitation]).output().unwrap();
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!(refused.status.code(), Some(1), "{said}");
            assert!(said.contains(why) && said.lines().count() == 1, "{said}");
        }
    }
    let mut again = world.start("c", &["up", &world.invite_as("carol"), "--foreground"]);
    world.wait("up with an invitation of its own", is_up);
    again.signal("-TERM");
    assert!(!world.system("c").contains("hawser"));
}

#[test]
fn ipv6_outside_carries_both_families_inside() {
    let Some(world) = World::new("i") else { return };
    world.add_ipv6();
    let server = world.add_server();
    world.init_at("[2001:db8:1::1]:443");
    let _hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let up = good(world.hawser("c", &["up", &invitation]));
    let said = String::from_utf8_lossy(&up.stdout).into_owned();
    assert!(
        said.starts_with("up: hawser0 to [2001:db8:1::1]:443 over fiber, lte"),
        "{said}"
    );
    world.wait("on both networks", |world| active(world) == ["fiber", "lte"]);
    let config = std::fs::read_to_string(world.place("h").join("hub.toml")).unwrap();
    let pool6 = config
        .lines()
        .find_map(|line| line.strip_prefix("pool6 = \""))
        .unwrap();
    let hub6 = format!("{}1", pool6.split('/').next().unwrap());
    world.wait("through by IPv6", |world| world.ping(&hub6));
    let transfer = Transfer::start(&server, &world.open("c"));
    world.wait("on the way", |_| transfer.received() > 1 << 20);
    transfer.finish();
    good(world.hawser("c", &["down"]));
}
