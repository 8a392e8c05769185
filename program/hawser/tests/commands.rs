//! Commands that need no daemon: unknown ones, `import`, `hub policy`.

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

/// Returns the beginning of a command's description in `--help`.
fn summary(command: &str) -> String {
    let mut asked = Command::new(env!("CARGO_BIN_EXE_hawser"));
    let output = asked.args([command, "-h"]).output().expect("the program runs");
    let said = String::from_utf8(output.stdout).expect("text");
    said.split("\n\nUsage").next().unwrap_or_default().to_owned()
}

#[test]
fn each_command_says_what_it_does_and_no_two_say_the_same() {
    let output = Command::new(env!("CARGO_BIN_EXE_hawser")).arg("-h").output();
    let said = String::from_utf8(output.expect("the program runs").stdout).expect("text");
    let list = said.split_once("Commands:\n").expect("a list").1;
    let list = list.split("\n\n").next().expect("its end");
    // A command begins after two spaces; continuation lines of its description are indented
    // further.
    let lines = list.lines().filter(|line| !line.starts_with("   "));
    let names = lines.filter_map(|line| line.split_whitespace().next());
    let mut seen = std::collections::BTreeMap::new();
    for name in names.filter(|name| *name != "help") {
        if let Some(other) = seen.insert(summary(name), name) {
            panic!("{name} and {other} say the same of themselves");
        }
    }
    assert!(seen.len() > 20 && !seen.contains_key(""), "{seen:?}");
}

#[test]
fn an_import_prints_a_configuration_and_names_the_rest() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
    let (file, out) = (path("mwan3"), path("client.toml"));
    let text =
        "config interface 'wan'\n\toption enabled '1'\n\toption size '56'\n\tlist track_ip '9.9.9.9'\n";
    std::fs::write(&file, text).expect("written");
    let (code, said) = hawser(&["import", "mwan3", &file, "-o", &out]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("no counterpart: option size of interface wan\n"),
        "{said}"
    );
    assert_eq!(hawser(&["check", &out]), (Some(0), String::new()));
    let (code, said) = hawser(&["import", "mwan3", &file, "-o", &out]);
    assert_eq!(code, Some(1), "it overwrites nothing");
    assert!(said.contains("must not exist"), "{said}");
    std::fs::write(&file, "config interface 'wan'\nwrong\n").expect("written");
    let (code, said) = hawser(&["import", "mwan3", &file]);
    assert_eq!(code, Some(64));
    assert!(
        said.contains("mwan3:2: \"wrong\"") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn a_policy_is_tested_without_a_packet() {
    let directory = tempfile::tempdir().expect("a directory");
    let dir = directory.path().to_string_lossy().into_owned();
    let hub = |arguments: &[&str]| {
        let mut all = vec!["hub"];
        all.extend(arguments);
        all.extend(["--dir", &dir]);
        hawser(&all)
    };
    for made in [
        hub(&["init", "--endpoint", "hub.example.org:443"]),
        hub(&["invite", "alice"]),
    ] {
        assert_eq!(made.0, Some(0), "{}", made.1);
    }
    let test = |to: &str| hub(&["policy", "test", "alice", to]).0;
    assert_eq!(test("198.51.100.7:443"), Some(0));
    assert_eq!(test("10.255.0.1:22"), Some(1));
    let (code, said) = hub(&["policy", "test", "bob", "198.51.100.7:443"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("there is no client bob"), "{said}");
}
