//! `without_hub = "direct"`: new connections bypass a hub that does not answer, existing ones wait
//! for it, and its return restores the previous state.

use std::io::{Read, Write};

use crate::mixed::{CABLES, HUB, SERVER, THROUGH, connect, echo, seen, world};
use crate::world::is_up;

/// Configuration without streams, because a crash of the hub resets streams.
const CONFIG: &str = r#"
tcp = "end-to-end"
without_hub = "direct"
without_hub_after = "2s"
[direct]
portal_check = "off"
spread = "even"
[networks.lte]
use = "backup"
[[rule]]
port = 8002
via = "hub"
"#;
/// Port of the rule.
const WAITING: u16 = 8002;
/// Only network that is not a backup.
const FIBER: &str = CABLES[0];

#[test]
fn new_connections_bypass_a_hub_that_does_not_answer_and_old_ones_wait() {
    let Some(world) = world("wh", CONFIG) else { return };
    let port = echo(&world);
    let invitation = world.invite();
    let _client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("past a hub that has never answered", |world| {
        connect(world, SERVER, THROUGH).is_ok_and(|(way, _)| way == FIBER)
    });
    let mut hub = world.start("h", &["hub", "run"]);
    world.wait("up", is_up);
    world.wait("through the hub", |world| {
        connect(world, SERVER, THROUGH).is_ok_and(|(way, _)| way == HUB)
    });
    let status = world.status("c");
    assert_eq!(status["without_hub"]["state"], "hub", "{status}");
    let (_, mut old) = connect(&world, SERVER, port).expect("a connection through the hub");
    hub.signal("-KILL");
    world.wait("past the hub", |world| {
        world.status("c")["without_hub"]["state"] == "direct"
    });
    assert_eq!(seen(&world, THROUGH), FIBER);
    let notice = world.status("c")["notice"].to_string();
    assert!(notice.contains("new connections bypass it"), "{notice}");
    assert!(
        connect(&world, SERVER, WAITING).is_err(),
        "a rule names the hub, so its flows wait"
    );
    old.write_all(b"a").expect("the kernel keeps it");
    let (_, mut new) = connect(&world, SERVER, port).expect("a connection past the hub");
    let _hub = world.start("h", &["hub", "run"]);
    world.wait("up again", is_up);
    world.wait("through the hub again", |world| {
        connect(world, SERVER, THROUGH).is_ok_and(|(way, _)| way == HUB)
    });
    let mut byte = [0];
    old.read_exact(&mut byte).expect("the old connection goes on");
    assert_eq!(byte, *b"a");
    new.write_all(b"b").expect("the kernel keeps it");
    new.read_exact(&mut byte)
        .expect("and so does the one past the hub");
    assert_eq!(byte, *b"b");
    assert_eq!(world.status("c")["without_hub"]["state"], "hub");
}
