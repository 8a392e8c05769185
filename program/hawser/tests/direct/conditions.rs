//! Rules with conditions, while the sensors' values change.

use crate::world::{SERVER, World};

#[test]
fn a_fact_in_a_file_decides_for_new_flows_and_explain_names_it() {
    let Some(world) = World::new() else { return };
    world.write_config(
        "[[rule]]\nnetwork = \"net2\"\nwhen = { moving = true, cost_below = 5 }\n[[rule]]\nnetwork = \"net1\"\n",
    );
    let _daemon = world.up();
    assert_eq!(world.ways(3), [1; 3]);
    let say = |fact: &str, value: &str| {
        let dir = world.run_dir().join("facts");
        std::fs::create_dir_all(&dir).expect("a directory");
        std::fs::write(dir.join(fact), value).expect("written");
    };
    say("moving", "yes\n");
    world.wait_until("net2 takes new flows", |world| world.ways(1) == [2]);
    assert_eq!(world.ways(3), [2; 3]);
    let explained = world.ask(&["explain", SERVER]);
    let why: Vec<_> = explained["flows"]
        .as_array()
        .expect("flows")
        .iter()
        .filter(|flow| flow["network"] == "net2")
        .map(|flow| flow["why"].clone())
        .collect();
    assert_eq!(
        why.first().expect("a flow"),
        "the rule for all flows, when moving, cost below 5"
    );
    assert_eq!(world.ask(&["status"])["facts"]["moving"], true);
    say("cost.net2", "5");
    world.wait_until("net2 is too dear", |world| world.ways(1) == [1]);
    say("cost.net2", "4");
    world.wait_until("net2 is cheap again", |world| world.ways(1) == [2]);
    say("moving", "no");
    world.wait_until("the machine rests", |world| world.ways(1) == [1]);
    assert_eq!(world.ask(&["status"])["rules"][0]["holds"], false);
}
