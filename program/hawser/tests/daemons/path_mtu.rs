//! Networks with a smaller MTU than their devices, without ICMP messages.
//!
//! Larger packets are dropped at both ends of each cable, without ICMP.

use serde_json::Value;

use super::blocked::{examined, finding};
use super::transfer::Transfer;
use super::world::{World, active, good};

const CABLES: [&str; 2] = ["fiber", "lte"];

/// Drops IP packets of more than `size` bytes on arrival, on both cables and in both directions. At
/// the sender, a rule would see large packets before the device segments them.
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

/// Creates a world whose devices send single packets, as real cards do, so that a rule sees single
/// packets.
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

/// Returns the largest outer packet of each active path of a side.
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

/// Returns how many paths of a side have found the size, to within a probe's step.
fn found(world: &World, side: &str, size: u64) -> usize {
    let sizes = sizes(world, side).into_iter();
    sizes.filter(|found| *found <= size && *found + 8 >= size).count()
}

/// Returns whether a ping with this payload is answered.
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
        // The MTU of the networks decreases during the transfer.
        let transfer = Transfer::start(&server, &world.open("c"));
        world.wait("on the way", |_| transfer.received() > 1 << 20);
        narrow(&world, size);
        transfer.finish();
        for payload in [1_200, 1_300, 1_380, 1_392, 1_400, 1_432, 1_472, 2_000] {
            world.wait("the ping comes back", |world| ping(world, payload));
        }
        world.wait("both ends know the size", |world| {
            let found = |side| found(world, side, size.into());
            // Below the base size, a path is searched only after the loss of large packets on it:
            // the client sends few, and the hub sends them over the network that it prefers.
            let is_known = (size < 1_280 || found("c") == 2) && found("h") == 2;
            if !is_known {
                Transfer::start(&server, &world.open("c")).finish();
            }
            is_known
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
        (1_392..=1_400).any(|size| words.contains(&format!("at most {size} bytes"))),
        "{said}"
    );
}
