//! A network with an exhausted quota, as seen by its user.

use std::io::{ErrorKind, Read, Write};

use crate::choice;
use crate::world::{SERVER, World, connect, ip, read_peer, way_of};

/// Returns a configuration in which `net2` is preferred and has this quota.
fn config(quota: &str, action: &str) -> String {
    format!(
        "[networks.net2]\nquota = \"{quota}\"\nquota_action = \"{action}\"\n[[rule]]\nprotocol = \"tcp\"\nnetwork = [\"net2\", \"net1\"]\n"
    )
}

/// Sends this many bytes and reads them back.
fn carry(stream: &mut (impl Read + Write), bytes: usize) {
    let mut buffer = [7; 4096];
    for _ in 0..bytes.div_ceil(buffer.len()) {
        stream.write_all(&buffer).expect("sent");
        stream.read_exact(&mut buffer).expect("echoed");
    }
}

fn used(world: &World) -> u64 {
    let dir = world.dir.path().to_str().expect("a path");
    let usage = world.ask(&["usage", "net2", "--dir", dir]);
    usage["networks"][0]["months"][0]["total_bytes"]
        .as_u64()
        .unwrap_or(0)
}

#[test]
fn a_quota_is_a_hard_stop_that_a_crash_does_not_undo() {
    let Some(world) = World::new() else { return };
    world.write_config(&config("300kB", "stop"));
    let mut daemon = world.up();
    let mut stream = connect(&world.client, SERVER, None).expect("a connection");
    assert_eq!(way_of(&read_peer(&mut stream).expect("an answer")), 2);
    carry(&mut stream, 122_000);
    world.wait_until("a fifth is left", |world| {
        world.ask(&["status"])["notice"] == "net2: 80 % of its quota are used"
    });
    assert_eq!(world.state("net2"), "active");
    carry(&mut stream, 40_000);
    world.wait_until("net2 is shut", |world| world.state("net2") == "over quota");
    let error = stream.read(&mut [0; 16]).expect_err("the connection is gone");
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    assert_eq!(world.ways(4), [1; 4]);
    let chosen = Some(choice(&world, "net2"));
    assert!(
        connect(&world.client, SERVER, chosen).is_err(),
        "nobody may choose it"
    );

    world.wait_until("it is written", |world| used(world) >= 300_000);
    daemon.0.kill().expect("killed");
    daemon.0.wait().expect("gone");
    let _daemon = world.start();
    world.wait_until("net2 is shut again", |world| world.state("net2") == "over quota");
    assert_eq!(world.ways(4), [1; 4]);

    world.write_config(&config("1GB", "stop"));
    assert!(world.run(&["reload"]).status.success());
    world.wait_until("net2 is open", |world| world.state("net2") == "active");
    world.wait_until("and preferred again", |world| world.ways(1) == [2]);
}

#[test]
fn a_drained_network_keeps_its_flows_and_a_warning_keeps_everything() {
    let Some(world) = World::new() else { return };
    world.write_config(&config("50kB", "drain"));
    let _daemon = world.up();
    let mut stream = connect(&world.client, SERVER, None).expect("a connection");
    assert_eq!(way_of(&read_peer(&mut stream).expect("an answer")), 2);
    carry(&mut stream, 40_000);
    world.wait_until("net2 is shut", |world| world.state("net2") == "over quota");
    assert_eq!(world.ways(4), [1; 4]);
    carry(&mut stream, 8_000);

    world.write_config(&config("50kB", "warn"));
    assert!(world.run(&["reload"]).status.success());
    world.wait_until("net2 is open", |world| world.state("net2") == "active");
    world.wait_until("net2 is preferred", |world| world.ways(1) == [2]);
    world.wait_until("the user hears of it", |world| {
        world.ask(&["status"])["notice"]
            .as_str()
            .is_some_and(|notice| notice.contains("net2: its quota is used up"))
    });
}

#[test]
fn a_backup_takes_flows_only_while_no_other_network_works() {
    let Some(world) = World::new() else { return };
    world.write_config(&config("50kB", "backup"));
    let _daemon = world.up();
    let mut stream = connect(&world.client, SERVER, None).expect("a connection");
    assert_eq!(way_of(&read_peer(&mut stream).expect("an answer")), 2);
    carry(&mut stream, 40_000);
    world.wait_until("net2 is shut", |world| world.state("net2") == "over quota");
    let error = stream.read(&mut [0; 16]).expect_err("the connection is gone");
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    assert_eq!(world.ways(4), [1; 4]);
    let notice = world.ask(&["status"])["notice"].clone();
    assert_eq!(
        notice,
        "net2: its quota is used up: it is used only while no other network works"
    );

    ip(&world.client, "link set net1 down");
    world.wait_until("net2 is open", |world| world.state("net2") == "active");
    assert_eq!(world.ways(4), [2; 4]);
    let mut stream = connect(&world.client, SERVER, None).expect("a connection");
    carry(&mut stream, 4_000);
    world.plug(1);
    world.wait_until("net2 is shut again", |world| {
        world.state("net1") == "active" && world.state("net2") == "over quota"
    });
    assert_eq!(world.ways(4), [1; 4]);
    let mut left = [0; 4096];
    while stream.read(&mut left).is_ok_and(|length| length > 0) {}
    assert!(
        stream.write(&left).is_err(),
        "the backup's connections are let go"
    );

    world.write_config(&config("1GB", "backup"));
    assert!(world.run(&["reload"]).status.success());
    world.wait_until("net2 is preferred again", |world| world.ways(1) == [2]);
}
