//! A network without a connection beyond its gateway, as detected by a health check.

use crate::world::{World, nft};

/// `net2` is preferred, and is checked by the server beyond its gateway.
const CONFIG: &str = r#"
[direct]
portal_check = "off"
[networks.net2.check]
target = ["203.0.113.2:8000", "203.0.113.9:8000"]
method = "tcp"
timeout = "300ms"
every = "300ms"
down = 2
up = 2
[[rule]]
network = ["net2", "net1"]
"#;

#[test]
fn a_network_whose_targets_do_not_answer_takes_no_flows_until_they_do() {
    let Some(world) = World::new() else { return };
    world.write_config(CONFIG);
    let _daemon = world.up();
    world.wait_until("a target answers", |world| {
        let check = &network(world)["check"];
        check["state"] == "online" && check["targets"][0]["delay_ms"].is_number()
    });
    assert_eq!(
        network(&world)["check"]["targets"][1]["loss_percent"],
        100,
        "nobody is there"
    );
    assert_eq!(world.ways(3), [2; 3]);
    let gateway = &world.gateways[1];
    nft(
        gateway,
        "table inet dead {\n chain forward {\n type filter hook forward priority 0; policy drop;\n }\n}",
    );
    world.wait_until("the check fails", |world| world.state("net2") == "check fails");
    assert_eq!(world.ways(3), [1; 3]);
    let notice = world.ask(&["status"])["notice"].to_string();
    assert!(
        notice.contains("net2: its check fails (tcp 203.0.113.2:8000"),
        "{notice}"
    );
    nft(gateway, "delete table inet dead");
    world.wait_until("it is used again", |world| world.ways(1) == [2]);
}

fn network(world: &World) -> serde_json::Value {
    let status = world.ask(&["status"]);
    let networks = status["networks"].as_array().cloned().unwrap_or_default();
    let mut networks = networks.into_iter();
    networks
        .find(|network| network["name"] == "net2")
        .unwrap_or_default()
}
