//! Unit of the hub: a transfer survives its crashes and restarts, and no state remains after a
//! stop.

use std::time::Duration;

use hawser_linux::netns::Namespace;

use crate::machine::Machine;
use crate::transfer::Transfer;
use crate::world::{World, good, is_up};

const UNIT: &str = "hawser-hub.service";
const KILL: &[&str] = &["kill", "--kill-who=main", "--signal=KILL", UNIT];
const RESTART: &[&str] = &["restart", UNIT];

/// Creates a hub under systemd, a connected client with a configuration, and a server behind the
/// hub.
fn hub(name: &str, client: &str) -> Option<(World, Machine, Namespace)> {
    let world = World::new(name)?;
    let server = world.add_server();
    world.init();
    let machine = Machine::boot(&world, "h", &[UNIT])?;
    machine.wait_until("up", |machine| machine.show(UNIT, "ActiveState") == "active");
    let invitation = machine.run("hawser", &["hub", "invite", "alice"]).stdout;
    let invitation = String::from_utf8(invitation).unwrap();
    world.configure("c", client);
    good(world.hawser("c", &["up", invitation.trim()]));
    world.wait("through", World::ping_hub);
    Some((world, machine, server))
}

/// Returns the longest pause of a transfer when the unit's process is replaced.
fn pause(world: &World, machine: &Machine, server: &Namespace, interruption: &[&str]) -> Duration {
    let transfer = Transfer::start(server, &world.open("c"));
    world.wait("on the way", |_| transfer.received() > 4 << 20);
    transfer.take_longest_gap();
    let first = machine.show(UNIT, "MainPID");
    machine.systemctl(interruption);
    machine.wait_until("started anew", |machine| {
        let now = machine.show(UNIT, "MainPID");
        now != first && now != "0"
    });
    let before = transfer.received();
    world.wait("going on", |_| transfer.received() > before + (4 << 20));
    assert!(!transfer.is_over(), "that came too late");
    let pause = transfer.take_longest_gap();
    transfer.finish();
    pause
}

/// Prints pauses in order: times are not asserted, because the machine is shared.
fn print(what: &str, mut pauses: Vec<Duration>) {
    pauses.sort_unstable();
    eprintln!(
        "longest pause of a transfer at each of {} {what}: {pauses:?}",
        pauses.len()
    );
}

/// Returns the number of repetitions: HAWSER_TEST_ROUNDS, or 2.
fn rounds() -> usize {
    let asked = std::env::var("HAWSER_TEST_ROUNDS").ok();
    asked.map_or(2, |rounds| {
        rounds.parse().expect("HAWSER_TEST_ROUNDS is a number")
    })
}

#[test]
#[ignore = "slow: make test-all"]
fn a_transfer_lives_through_crashes_of_the_unit() {
    let Some((world, machine, server)) = hub("uh", "tcp = \"end-to-end\"\n") else {
        return;
    };
    machine.systemctl(&["reload", UNIT]);
    let pauses = (0..rounds()).map(|_| {
        let pause = pause(&world, &machine, &server, KILL);
        world.wait("up after a crash", |world| is_up(world) && world.ping_hub());
        pause
    });
    print("crashes", pauses.collect());
}

/// A planned restart, as for an upgrade, continues the session with its keys.
#[test]
#[ignore = "slow: make test-all"]
fn a_restart_of_the_unit_keeps_sessions_and_transfers() {
    let Some((world, machine, server)) = hub("ur", "tcp = \"stream\"\n") else {
        return;
    };
    let session = world.status("c")["session"].clone();
    let pauses = (0..rounds()).map(|_| {
        let pause = pause(&world, &machine, &server, RESTART);
        assert_eq!(world.status("c")["session"], session, "{}", machine.journal());
        pause
    });
    print("restarts", pauses.collect());
    world.wait("control is back", is_up);
    // The transfers were streams.
    let counters = &world.status("c")["counters"];
    let connected = counters["streams_connected"].as_u64();
    assert!(connected >= Some(1), "{counters}");
    assert_eq!(counters["streams_reset"].as_u64(), Some(0));
}

#[test]
#[ignore = "slow: make test-all"]
fn a_stop_of_the_unit_leaves_nothing_also_after_a_restart() {
    let Some(world) = World::new("us") else { return };
    world.init();
    let before = world.system("h");
    let Some(machine) = Machine::boot(&world, "h", &[UNIT]) else {
        return;
    };
    machine.wait_until("up", |machine| machine.show(UNIT, "ActiveState") == "active");
    assert_ne!(world.system("h"), before);
    machine.systemctl(RESTART);
    machine.systemctl(&["stop", UNIT]);
    assert_eq!(machine.show(UNIT, "Result"), "success", "{}", machine.journal());
    assert_eq!(world.system("h"), before, "{}", machine.journal());
}

#[test]
#[ignore = "slow: make test-all"]
fn setup_makes_a_hub_of_a_fresh_server_behind_a_firewall() {
    let Some(world) = World::new("setup") else { return };
    let mut nft = world.inside("h", "nft");
    nft.arg(
        "table inet filter { \
         chain input { type filter hook input priority 0; policy drop; ct state established,related accept; }; \
         chain forward { type filter hook forward priority 0; policy drop; }; }",
    );
    good(nft);
    let Some(machine) = Machine::boot(&world, "h", &[]) else {
        return;
    };
    let setup = [
        "hub",
        "setup",
        "--endpoint",
        "198.51.100.1:4430",
        "--client",
        "alice",
        "--yes",
    ];
    let said = machine.say("hawser", &setup);
    assert!(
        said.contains("udp dport 4430 accept") && said.contains("nftables.conf"),
        "{said}"
    );
    assert_eq!(machine.show(UNIT, "ActiveState"), "active");
    let enabled = machine.say("systemctl", &["is-enabled", UNIT]);
    assert_eq!(enabled.trim(), "enabled");
    let mut words = said.split_whitespace();
    let invitation = words.find(|word| word.starts_with("hawser://"));
    let invitation = invitation.expect("an invitation");
    good(world.hawser("c", &["up", invitation]));
    world.wait("through", is_up);
    // A second setup keeps the existing files and invites another client.
    let again = machine.say("hawser", &["hub", "setup", "--client", "bob", "--yes"]);
    assert!(
        again.contains("a hub already") && !again.contains("nft insert"),
        "{again}"
    );
    let wrong = world
        .hawser("c", &["hub", "setup", "--yes"])
        .output()
        .expect("it starts");
    let error = String::from_utf8_lossy(&wrong.stderr);
    assert!(error.contains("--endpoint HOST:PORT"), "{error}");
}

/// With two pairs of threads a restart continues the sessions; another number of pairs ends them
/// and starts new ones.
#[test]
#[ignore = "slow: make test-all"]
fn a_restart_of_the_unit_keeps_sessions_of_two_pairs() {
    let Some(world) = World::new("up2") else { return };
    let server = world.add_server();
    world.init();
    let file = world.place("h").join("hub.toml");
    let config = std::fs::read_to_string(&file).expect("the hub has one");
    std::fs::write(&file, format!("thread_pairs = 2\n{config}")).expect("it is written");
    let Some(machine) = Machine::boot(&world, "h", &[UNIT]) else {
        return;
    };
    machine.wait_until("up", |machine| machine.show(UNIT, "ActiveState") == "active");
    let pairs = |machine: &Machine| {
        let status = machine.say("hawser", &["status", "--hub", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&status).unwrap_or_default();
        status["thread_pairs"].as_array().map_or(0, Vec::len)
    };
    assert_eq!(pairs(&machine), 2, "{}", machine.journal());
    // The second client uses the second pair.
    for (name, side) in [("nobody", None), ("alice", Some("c"))] {
        let invitation = machine.run("hawser", &["hub", "invite", name]).stdout;
        let invitation = String::from_utf8(invitation).expect("a line");
        if let Some(side) = side {
            good(world.hawser(side, &["up", invitation.trim()]));
        }
    }
    world.wait("through", World::ping_hub);
    let session = world.status("c")["session"].clone();
    print("restarts", vec![pause(&world, &machine, &server, RESTART)]);
    assert_eq!(world.status("c")["session"], session, "{}", machine.journal());
    assert_eq!(pairs(&machine), 2, "{}", machine.journal());
    world.wait("control is back", is_up);
    machine.say(
        "sed",
        &[
            "-i",
            "s/^thread_pairs = 2/thread_pairs = 1/",
            "/etc/hawser/hub.toml",
        ],
    );
    machine.systemctl(RESTART);
    world.wait("a new session", |world| {
        let now = world.status("c");
        now["state"] == "up" && now["session"] != session && world.ping_hub()
    });
    assert_eq!(pairs(&machine), 1, "{}", machine.journal());
}
