//! Networks that take smaller packets than their devices, and say nothing about it.
//!
//! Larger packets are dropped at both ends of each cable, without ICMP.

use serde_json::Value;

use super::blocked::{examined, finding};
use super::transfer::Transfer;
use super::world::{World, active, good};

const CABLES: [&str; 2] = ["fiber", "lte"];

/// Drops IP packets of more than `size` bytes where they arrive, on both cables and in both
/// directions. Where they leave, a rule would see large packets that the device is still to cut.
fn narrow(world: &World, size: u16) {
    for side in ["c", "h"] {
        let rule = |cable| format!("add rule ip narrow in iifname {cable} meta length > {size} drop; ");
        let rules: String = CABLES.into_iter().map(rule).collect();
        let mut nft = world.inside(side, "nft");
        nft.arg(format!(
            "add table ip narrow; delete table ip narrow; add table ip narrow; \
             add chain ip narrow in {{ type filter hook prerouting priority -300; }}; {rules}"
        ));
        good(nft);
    }
}

/// A world whose devices send packets one by one, as real cards do: a rule sees single packets.
fn world(name: &str) -> Option<World> {
    let world = World::new(name)?;
    for side in ["c", "h"] {
        for cable in CABLES {
            world.ip(
                &world.namespace(side),
                &format!("link set {cable} gso_max_segs 1"),
            );
        }
    }
    Some(world)
}

/// The largest outer packet of each active path, as a side sees it.
fn sizes(world: &World, side: &str) -> Vec<u64> {
    let status = world.status(side);
    let paths = status["paths"]
        .as_array()
        .or(status["sessions"][0]["paths"].as_array());
    let of = |path: &Value| {
        let pmtu = path["pmtu"].as_u64().unwrap_or_default();
        (path["state"] == "active").then_some(pmtu)
    };
    paths
        .map(|paths| paths.iter().filter_map(of).collect())
        .unwrap_or_default()
}

fn is_within(sizes: &[u64], size: u64) -> bool {
    sizes.len() == 2 && sizes.iter().all(|found| *found <= size && *found + 8 >= size)
}

/// Whether a ping of that many bytes of payload comes back.
fn ping(world: &World, payload: u16) -> bool {
    let mut ping = world.inside("c", "ping");
    let size = payload.to_string();
    ping.args(["-c", "1", "-W", "3", "-M", "dont", "-s", &size, "100.96.0.1"]);
    ping.output().is_ok_and(|output| output.status.success())
}

#[test]
fn packets_of_all_sizes_pass_networks_that_take_less_than_their_devices() {
    let Some(world) = world("pm1") else { return };
    let server = world.add_server();
    world.init();
    narrow(&world, 1_492);
    let _hub = world.start("h", &["hub", "run"]);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("on both networks", |world| active(world) == CABLES);
    for size in [1_492, 1_400, 1_280, 1_000] {
        // The networks shrink while it runs.
        let transfer = Transfer::start(&server, &world.open("c"));
        world.wait("on the way", |_| transfer.received() > 1 << 20);
        narrow(&world, size);
        transfer.finish();
        for payload in [1_200, 1_300, 1_380, 1_392, 1_400, 1_432, 1_472, 2_000] {
            world.wait("the ping comes back", |world| ping(world, payload));
        }
        world.wait("both ends know the size", |world| {
            let size = u64::from(size);
            // Below the base size the client, which sends few large packets, may go on repeating
            // them in smaller pieces; the hub sends the transfer.
            let is_known = size < 1_280 || is_within(&sizes(world, "c"), size);
            is_known && is_within(&sizes(world, "h"), size)
        });
    }
}

#[test]
fn the_doctor_names_the_size_that_passes() {
    let Some(world) = world("pm2") else { return };
    world.init();
    narrow(&world, 1_400);
    let _hub = world.start("h", &["hub", "run"]);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("on both networks", |world| active(world) == CABLES);
    let (_, said) = examined(&world);
    let (good, words) = finding(&said, "fiber", "mtu");
    assert!(good && words.contains("large packets do not pass"), "{said}");
    assert!(
        (1_392..=1_400).any(|size| words.contains(&format!("{size} bytes at most"))),
        "{said}"
    );
}
