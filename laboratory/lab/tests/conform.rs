//! Tests of the simulator's part of `hawser-lab conform`, and of its arguments.

use std::process::{Command, Output};

fn conform(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hawser-lab"))
        .arg("conform")
        .args(arguments)
        .output()
        .expect("the binary runs")
}

#[test]
fn the_simulator_runs_every_committed_scenario_and_repeats_itself() {
    let arguments = ["--sim-only", "--json", "--runs", "1"];
    let first = conform(&arguments);
    assert_eq!(first.status.code(), Some(0));
    let text = String::from_utf8(first.stdout.clone()).expect("text");
    assert_eq!(text.matches("\"scenario\":").count(), 26);
    assert!(
        text.contains("\"lab\":null") && text.contains("\"ratio\":null"),
        "{text}"
    );
    let numbers = text.split("\"sim_runs\":[").skip(1);
    for number in numbers.map(|rest| rest.split(']').next().expect("an end")) {
        let goodput: f64 = number.parse().expect("a number");
        assert!(goodput > 5e6, "{goodput}");
    }
    assert_eq!(conform(&arguments).stdout, first.stdout);
}

#[test]
fn a_scenario_is_chosen_by_name_or_by_file_and_refused_otherwise() {
    let output = conform(&["--sim-only", "--runs", "2", "single-udp"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text.lines().count(), 3, "{text}");
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../scenarios/conform/single-udp.toml"
    );
    assert_eq!(
        conform(&["--sim-only", "--runs", "1", file]).status.code(),
        Some(0)
    );
    let output = conform(&["--sim-only", "no-such"]);
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(conform(&["--runs", "0"]).status.code(), Some(2));
}
