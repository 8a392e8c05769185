//! Commands that this program does not have say where they are.

use std::process::{Command, Output};

fn hawser(arguments: &[&str]) -> (Option<i32>, String) {
    let output: Output = Command::new(env!("CARGO_BIN_EXE_hawser"))
        .args(arguments)
        .output()
        .expect("the program runs");
    let said = String::from_utf8(output.stderr).expect("text");
    (output.status.code(), said)
}

#[test]
fn a_command_of_the_laboratory_is_named_there() {
    for arguments in [&["demo"][..], &["sim", "--json", "scenario.toml"]] {
        let expected = format!("hawser: use `hawser-lab {}`\n", arguments[0]);
        assert_eq!(hawser(arguments), (Some(2), expected));
    }
    let (code, said) = hawser(&["statis"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("'status'"), "a slip of the pen: {said}");
}

#[test]
fn a_scenario_is_tested_there() {
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/device-down.toml");
    let (code, said) = hawser(&["check", scenario]);
    assert_eq!(code, Some(64));
    assert!(said.ends_with("use `hawser-lab check`\n"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}
