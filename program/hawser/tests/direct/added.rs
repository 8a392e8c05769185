//! Rules that a user adds while direct mode runs.

use crate::world::World;

fn said(world: &World, arguments: &[&str]) -> String {
    let output = world.run(&[&["rule"], arguments].concat());
    let [out, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    out + &error
}

#[test]
fn a_rule_stands_before_all_others_until_it_is_removed() {
    let Some(world) = World::new() else { return };
    world.write_config("[[rule]]\nprotocol = \"tcp\"\nnetwork = [\"net1\", \"net2\"]\n");
    let _daemon = world.up();
    assert_eq!(world.ways(2), [1; 2]);
    let add = [
        "add",
        "--protocol",
        "tcp",
        "--port",
        "8000,8001",
        "--network",
        "net2, net1",
    ];
    assert_eq!(said(&world, &add), "1: for tcp, port 8000, port 8001\n");
    world.wait_until("new flows take net2", |world| world.ways(1) == [2]);
    assert_eq!(world.ways(3), [2; 3]);
    let listed = said(&world, &["list"]);
    let expected = "  1  tcp, port 8000, port 8001: over net2, net1\n  -  tcp: over net1, net2\n";
    assert_eq!(listed, expected);

    // Rules of a reloaded configuration follow the added ones.
    world.write_config("[[rule]]\nport = 22\nspread = \"even\"\n");
    assert!(world.run(&["reload"]).status.success());
    let listed = said(&world, &["list"]);
    assert!(listed.ends_with("  -  port 22: distributed evenly\n"), "{listed}");
    assert_eq!(world.ways(2), [2; 2]);
    let latest = ["add", "--to", "203.0.113.0/24", "--network", "net1"];
    assert_eq!(said(&world, &latest), "2: for to 203.0.113.0/24\n");
    world.wait_until("the latest decides", |world| world.ways(1) == [1]);
    assert_eq!(said(&world, &["remove", "2"]), "2: removed\n");
    world.wait_until("the one before decides", |world| world.ways(1) == [2]);

    for (wrong, problem) in [
        (&["add", "--port", "22"][..], "has no effect on its flows"),
        (
            &["add", "--port", "http", "--network", "net1"],
            "a port such as 443",
        ),
        (&["add", "--via", "hub"], "needs a hub"),
        (&["remove", "2"], "there is no added rule 2"),
    ] {
        let said = said(&world, wrong);
        assert!(said.contains(problem), "{wrong:?}: {said}");
    }
    let output = world.run(&["scheduler", "bulk", "min-rtt"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("has no schedulers"));
    assert_eq!(said(&world, &["remove", "1"]), "1: removed\n");
    assert!(!said(&world, &["list"]).contains("net2"));
}
