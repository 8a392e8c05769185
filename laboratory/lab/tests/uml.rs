//! Tests of the lab in a separate kernel: real daemons, virtual time, and reproducible results.

use std::process::{Command, Output};

use serde_json::Value;

const SCENARIO: &str = r#"
name = "two networks"
duration = "2s"
warmup = "500ms"
via = "hub"

[[network]]
name = "left"
down = { rate = "8mbit", delay = "5ms" }
up = { rate = "8mbit", delay = "5ms" }

[[network]]
name = "right"
down = { rate = "4mbit", delay = "20ms", loss = 0.001 }
up = { rate = "4mbit", delay = "20ms" }

[[workload]]
kind = "tcp"

[[workload]]
kind = "ping"
interval = "20ms"
"#;

/// Returns the output of `hawser-lab uml` for [`SCENARIO`]; `None` if the kernel is not built.
fn uml(arguments: &[&str]) -> Option<Output> {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("scenario.toml");
    std::fs::write(&file, SCENARIO).expect("written");
    let program = env!("CARGO_BIN_EXE_hawser-lab");
    let _ = hawser_testing::require_sibling(program, "hawser");
    if !hawser_testing::require_kernel() {
        return None;
    }
    let mut command = Command::new(program);
    command
        .arg("uml")
        .arg(&file)
        .args(["--time-limit", "300"])
        .args(arguments);
    // The current directory is that of this crate; the kernel's script is in a parent directory.
    Some(command.output().expect("the program starts"))
}

fn json(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}", output.status);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
#[ignore = "slow: make test-all"]
fn a_run_gives_the_same_json_to_the_byte_and_another_seed_another() {
    let Some(first) = uml(&["--json"]) else {
        return;
    };
    let second = uml(&["--json"]).expect("as before");
    let other = uml(&["--json", "--kernel-seed", "2"]).expect("as before");
    let found = json(&first);
    let goodput = found["goodput_bps"]["total"].as_f64().expect("a rate");
    assert!(
        (9e6..12e6).contains(&goodput),
        "two networks of 12 Mbit/s gave {goodput}"
    );
    assert!(first.stdout == second.stdout, "{found}\n{}", json(&second));
    assert_ne!(found, json(&other), "the seed changes nothing");
}

#[test]
#[ignore = "slow: make test-all"]
fn what_cannot_be_run_is_refused_before_a_kernel_starts() {
    if let Some(output) = uml(&["--set", "duration=soon"]) {
        assert_eq!(output.status.code(), Some(64));
    }
}

/// The kernel is 6.1, as in Debian 12: a TUN interface accepts no coalesced UDP segments. A fast
/// link delivers packets of several datagrams at the same instant.
#[test]
#[ignore = "slow: make test-all"]
fn a_kernel_without_udp_segmentation_loses_no_datagram() {
    let settings = [
        "--json",
        "--set",
        "network.0.down.rate=1000mbit",
        "--set",
        "network.1.down.rate=1000mbit",
        "--set",
        "workload=[{ kind = \"udp\", rate = \"20mbit\", size = \"1200B\" }]",
    ];
    let Some(output) = uml(&settings) else { return };
    let workload = &json(&output)["workloads"][0];
    assert!(workload["sent"].as_u64() > Some(2000), "{workload}");
    assert_eq!(workload["loss"], 0.0, "{workload}");
}

/// Returns the program if a kernel with radios and their requirements are available.
fn program_for_the_air() -> Option<&'static str> {
    let has_both = ["hostapd", "iw"].map(|program| hawser_testing::require_program(&[program]));
    if has_both.contains(&false) || !hawser_testing::require_kernel() {
        return None;
    }
    let program = env!("CARGO_BIN_EXE_hawser-lab");
    let _ = hawser_testing::require_sibling(program, "hawser");
    Some(program)
}

/// Two radios connect two devices, both with hostapd and `mac80211`: the traffic that an interferer
/// displaces from one link moves to the other.
#[test]
#[ignore = "slow: make test-all"]
fn a_repeater_on_the_air_moves_what_a_link_loses_to_the_other() {
    let Some(program) = program_for_the_air() else {
        return;
    };
    let output = Command::new(program)
        .args(["reproduce", "M.fig14.shift", "--real", "--runs", "1", "--json"])
        .output()
        .expect("the program starts");
    let found = json(&output);
    assert_eq!(found[0]["runs"][0]["is_as_good"], true, "{found}");
}

/// The last hop uses 802.11: real `mac80211` and hostapd over the simulator's own medium.
#[test]
#[ignore = "slow: make test-all"]
fn a_network_on_the_air_carries_what_the_simulator_says() {
    let Some(program) = program_for_the_air() else {
        return;
    };
    // A lossy network and then a network with other stations on its channel run in the same kernel.
    let output = Command::new(program)
        .args(["conform", "--air", "--runs", "1", "--json", "lossy", "crowded"])
        .output()
        .expect("the program starts");
    let found = json(&output);
    assert_eq!(found["beyond"], 0, "{found}");
    for row in found["scenarios"].as_array().expect("rows") {
        let ratio = row["ratio"].as_f64().expect("both worlds ran");
        assert!((0.95..1.05).contains(&ratio), "{row}");
    }
}
