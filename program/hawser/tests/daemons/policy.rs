//! `allow` of `[reach]`: destinations behind the hub that a group of clients may reach, until a
//! reload.

use crate::mixed::{THROUGH, connect, echo, world};
use crate::world::{good, is_up};

/// Address of the server in a private network behind the hub.
const PRIVATE: &str = "10.99.0.2";

#[test]
fn a_group_reaches_what_a_rule_names_and_nothing_else() {
    let Some(world) = world("pl", "") else { return };
    let other = echo(&world);
    world.ip(&world.namespace("s"), &format!("addr add {PRIVATE}/24 dev lan"));
    world.ip(&world.namespace("h"), "addr add 10.99.0.1/24 dev lan");
    let file = world.place("h").join("hub.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let write = |crew: &str| {
        let reach = format!(
            "[reach]\ngroups = {{ crew = [\"{crew}\"] }}\n\
             allow = [{{ from = \"crew\", to = \"10.99.0.0/24\", ports = [\"tcp {THROUGH}\"] }}]\n"
        );
        std::fs::write(&file, format!("{text}\n{reach}")).unwrap();
    };
    write("alice");
    let _hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let _client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("up", is_up);
    world.wait("reached", |world| connect(world, PRIVATE, THROUGH).is_ok());
    assert!(connect(&world, PRIVATE, other).is_err(), "another port");
    let tested = world.hawser(
        "h",
        &["hub", "policy", "test", "alice", &format!("{PRIVATE}:{THROUGH}")],
    );
    let said = String::from_utf8(good(tested).stdout).unwrap();
    assert!(said.contains("allowed; allow of [reach]"), "{said}");
    write("bob");
    good(world.hawser("h", &["reload"]));
    assert!(
        connect(&world, PRIVATE, THROUGH).is_err(),
        "alice is in no group any more"
    );
    assert!(connect(&world, crate::mixed::SERVER, THROUGH).is_ok());
}
