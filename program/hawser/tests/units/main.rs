//! Units of `packaging` under a real systemd: start, stop, restart, reload, crash and upgrade, with
//! traffic.
//!
//! Each test boots a separate machine in about 1 s. The tests need root and systemd-nspawn; without
//! them they are skipped with a message.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../daemons/outside.rs"]
#[allow(dead_code, reason = "shared with the tests of daemons")]
mod outside;
#[path = "../daemons/transfer.rs"]
mod transfer;
#[path = "../daemons/world.rs"]
#[allow(dead_code, reason = "shared with the tests of daemons")]
mod world;

mod client;
mod direct;
mod hub;
mod machine;

use machine::Machine;
use world::World;

/// Maximum exposure level of `systemd-analyze security`, in tenths.
const MAX_EXPOSED: &str = "30";

#[test]
#[ignore = "slow: make test-all"]
fn no_unit_exposes_more_than_it_must() {
    let Some(world) = World::new("ue") else { return };
    let Some(machine) = Machine::boot(&world, "c", &[]) else {
        return;
    };
    for unit in ["hawser", "hawser-direct", "hawser-hub", "hawser-lockdown"] {
        let unit = format!("{unit}.service");
        let threshold = format!("--threshold={MAX_EXPOSED}");
        let analyze = ["security", "--no-pager", &threshold, &unit];
        let output = machine.inside("systemd-analyze", &analyze).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let last = said.lines().last().unwrap_or_default().to_owned();
        assert!(output.status.success(), "{said}");
        eprintln!("{last}");
        let verified = machine
            .inside("systemd-analyze", &["verify", &unit])
            .output()
            .unwrap();
        let complaints = String::from_utf8_lossy(&verified.stderr).into_owned();
        assert!(!complaints.contains("hawser"), "{complaints}");
    }
}
