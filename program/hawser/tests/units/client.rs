//! Unit of the client with a kill switch: packets that leave outside the tunnel are counted at the
//! far end of its cables.

use std::os::unix::fs::PermissionsExt;

use crate::machine::Machine;
use crate::outside::{Outside, Traffic};
use crate::transfer::Transfer;
use crate::world::{Daemon, World, good};

const UNIT: &str = "hawser.service";

/// Creates a client that has joined a hub without IPv6 and is down.
fn joined(name: &str, config: &str) -> Option<(World, Daemon)> {
    let world = World::new(name)?;
    world.add_ipv6();
    world.add_server();
    world.init();
    let hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    good(world.hawser("c", &["up", &invitation]));
    good(world.hawser("c", &["down"]));
    world.configure("c", config);
    Some((world, hub))
}

/// Services stop in parallel and some still send, so the switch stays closed until the machine is
/// off.
#[test]
#[ignore = "slow: make test-all"]
fn nothing_gets_out_while_the_machine_shuts_down() {
    let Some((world, _hub)) = joined("ud", "kill_switch = true\n") else {
        return;
    };
    let Some(mut machine) = Machine::boot(&world, "c", &[]) else {
        return;
    };
    machine.systemctl(&["start", UNIT]);
    machine.wait_until("up", Machine::is_up);
    let outside = Outside::count(&world);
    let traffic = Traffic::start(&world.open("c"), None);
    machine.systemctl(&["poweroff", "--no-block"]);
    machine.wait_for_its_end(|| {
        traffic.send(10);
    });
    traffic.send(100);
    outside.assert_none("after a shutdown");
}

fn pid(machine: &Machine) -> String {
    machine.show(UNIT, "MainPID")
}

#[test]
#[ignore = "slow: make test-all"]
fn a_client_with_a_kill_switch_is_managed_and_nothing_gets_out() {
    let Some((world, _hub)) = joined("uc", "kill_switch = true\n") else {
        return;
    };
    let before = world.system("c");
    let Some(machine) = Machine::boot(&world, "c", &[]) else {
        return;
    };
    machine.systemctl(&["start", UNIT]);
    machine.wait_until("up", Machine::is_up);
    let said = machine.say("hawser", &["status", "--json"]);
    assert!(
        said.contains("\"socket_option\":true"),
        "what flows need is heard: {said}"
    );
    let outside = Outside::count(&world);
    let traffic = Traffic::start(&world.open("c"), None);
    let assert_closed = |when: &str| {
        traffic.send(100);
        outside.assert_none(when);
    };

    let first = pid(&machine);
    machine.systemctl(&["reload", UNIT]);
    assert_closed("after a reload");
    assert_eq!(pid(&machine), first, "a reload is no restart");

    // An upgrade is a restart with a replaced program.
    let (program, fresh) = (
        machine.path("/usr/bin/hawser"),
        machine.path("/usr/bin/hawser.new"),
    );
    std::fs::copy(&program, &fresh).unwrap();
    std::fs::set_permissions(&fresh, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::rename(&fresh, &program).unwrap();
    machine.systemctl(&["restart", UNIT]);
    assert_closed("in a restart");
    machine.wait_until("up after a restart", Machine::is_up);
    assert_ne!(pid(&machine), first);

    // These signals are those of the kernel and of the watchdog.
    for signal in ["KILL", "ABRT"] {
        let last = pid(&machine);
        machine.systemctl(&["kill", "--kill-who=main", &format!("--signal={signal}"), UNIT]);
        machine.wait_until("started anew", |machine| {
            let now = pid(machine);
            now != last && now != "0"
        });
        assert_closed(&format!("after a signal {signal}"));
    }

    // The process ended, but the unit was not stopped.
    machine.systemctl(&["kill", "--kill-who=main", "--signal=TERM", UNIT]);
    machine.wait_until("ended", |machine| machine.show(UNIT, "ActiveState") == "inactive");
    assert_closed("after a signal that asks for the end");

    // This configuration makes the start fail.
    let config = machine.path("/etc/hawser/client.toml");
    std::fs::write(&config, "kill_switch = true\nmtu = 7\n").unwrap();
    let _ = machine.inside("systemctl", &["restart", UNIT]).output();
    machine.wait_until("failed", |machine| machine.show(UNIT, "ActiveState") == "failed");
    assert_eq!(machine.show(UNIT, "ExecMainStatus"), "64");
    assert_closed("after a start with a wrong configuration");
    std::fs::write(&config, "kill_switch = true\n").unwrap();
    machine.systemctl(&["start", UNIT]);
    machine.wait_until("seeking its hub", |machine| {
        machine.say("hawser", &["status", "--json"]).contains("uptime")
    });
    assert_closed("while it starts");

    // If the unit is stopped while it waits for a restart, no process can open the switch; the
    // command opens it.
    machine.wait_longer_after_crashes_of(UNIT);
    machine.systemctl(&["kill", "--kill-who=main", "--signal=KILL", UNIT]);
    machine.wait_until("waiting", |machine| {
        machine.show(UNIT, "SubState") == "auto-restart"
    });
    machine.systemctl(&["stop", UNIT]);
    assert_closed("after a stop between a crash and the next start");
    let left = std::fs::read_to_string(machine.path("/run/hawser/undo.json")).unwrap();
    let down = machine.inside("hawser", &["down"]).output().unwrap();
    let said = String::from_utf8_lossy(&down.stderr);
    assert!(down.status.success(), "{said}{left}{}", machine.journal());
    world.wait("open after `hawser down`", |_| outside.packets()[0] > 0);
    drop(traffic);
    assert_eq!(world.system("c"), before);
}

#[test]
#[ignore = "slow: make test-all"]
fn a_stop_lifts_the_kill_switch_and_leaves_nothing() {
    let Some((world, _hub)) = joined("us", "kill_switch = true\n") else {
        return;
    };
    let before = world.system("c");
    let Some(machine) = Machine::boot(&world, "c", &["hawser.service", "hawser-lockdown.service"]) else {
        return;
    };
    machine.wait_until("up from boot on", Machine::is_up);
    let entered = |unit: &str| -> u64 {
        let said = machine.show(unit, "ActiveEnterTimestampMonotonic");
        said.parse().unwrap()
    };
    assert!(entered("hawser-lockdown.service") > 0, "{}", machine.journal());
    assert!(entered("hawser-lockdown.service") <= entered("network-pre.target"));
    assert!(entered("network-pre.target") <= entered("hawser.service"));
    let outside = Outside::count(&world);
    let traffic = Traffic::start(&world.open("c"), None);
    traffic.send(100);
    outside.assert_none("before the stop");
    machine.systemctl(&["stop", UNIT]);
    world.wait("open", |_| {
        outside.packets()[..3].iter().all(|packets| *packets > 0)
    });
    drop(traffic);
    assert_eq!(world.system("c"), before);
    assert_eq!(machine.show(UNIT, "Result"), "success");
}

/// A planned restart of the client continues the session and its streams, and starts no new ones.
#[test]
#[ignore = "slow: make test-all"]
fn a_restart_of_the_unit_keeps_session_and_streams() {
    let Some((world, _hub)) = joined("uk", "tcp = \"stream\"\n") else {
        return;
    };
    let before = world.system("c");
    let Some(machine) = Machine::boot(&world, "c", &[]) else {
        return;
    };
    machine.systemctl(&["start", UNIT]);
    machine.wait_until("up", Machine::is_up);
    let field = |name: &str| {
        let status = machine.say("hawser", &["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&status).unwrap_or_default();
        status[name].clone()
    };
    let session = field("session");
    let transfer = Transfer::start(&world.open("s"), &world.open("c"));
    for _ in 0..2 {
        let received = transfer.received();
        world.wait("data", |_| transfer.received() > received + (4 << 20));
        transfer.take_longest_gap();
        machine.systemctl(&["restart", UNIT]);
        let received = transfer.received();
        world.wait("going on", |_| transfer.received() > received + (4 << 20));
        eprintln!(
            "longest pause at a restart of the client: {:?}",
            transfer.take_longest_gap()
        );
    }
    transfer.finish();
    machine.wait_until("up again", Machine::is_up);
    assert_eq!(field("session"), session, "{}", machine.journal());
    assert_eq!(field("counters")["streams_reset"].as_u64(), Some(0));
    machine.systemctl(&["stop", UNIT]);
    assert_eq!(world.system("c"), before, "{}", machine.journal());
}
