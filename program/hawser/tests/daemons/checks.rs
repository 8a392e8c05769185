//! Health checks of a client's networks: the tunnel leaves a network whose target does not answer.

use serde_json::Value;

use crate::mixed::{HUB, SERVER, THROUGH, connect, world};
use crate::world::{World, active, good, is_up};

fn config(target: &str) -> String {
    format!(
        "[networks.lte.check]\ntarget = \"{target}\"\ntimeout = \"300ms\"\nevery = \"300ms\"\ndown = 2\nup = 2\n"
    )
}

fn lte(world: &World) -> Value {
    let status = world.status("c");
    let networks = status["networks"].as_array().cloned().unwrap_or_default();
    let mut networks = networks.into_iter();
    networks
        .find(|network| network["name"] == "lte")
        .unwrap_or_default()
}

#[test]
fn the_tunnel_leaves_a_network_whose_check_fails_and_comes_back() {
    // No machine has this address.
    let Some(world) = world("ck", &config("10.0.11.99")) else {
        return;
    };
    let _hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let _client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("up", is_up);
    world.wait("the tunnel has left lte", |world| {
        let lte = lte(world);
        lte["left_out"] == true && lte["path"].is_null() && lte["check"]["state"] == "offline"
    });
    let notice = world.status("c")["notice"].to_string();
    assert!(
        notice.contains("lte: its check fails (ping 10.0.11.99)"),
        "{notice}"
    );
    assert!(connect(&world, SERVER, THROUGH).is_ok_and(|(way, _)| way == HUB));
    // This address is at the other end of the cable.
    world.configure("c", config("10.0.11.1"));
    good(world.hawser("c", &["reload"]));
    world.wait("lte is used again", |world| {
        active(world).iter().any(|name| name == "lte")
    });
    assert_eq!(lte(&world)["check"]["state"], "online");
}
