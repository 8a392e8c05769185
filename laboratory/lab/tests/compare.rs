//! Tests of `hawser-lab compare` as run by a user.

use std::process::{Command, Output};

fn compare(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hawser-lab"))
        .arg("compare")
        .args(args)
        .output()
        .expect("the program runs")
}

#[test]
fn lists_what_there_is_and_names_it_when_asked_for_something_else() {
    let listed = compare(&["--list"]);
    assert_eq!(listed.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&listed.stdout).contains("slots"));
    let unknown = compare(&["slot"]);
    assert_eq!(unknown.status.code(), Some(2));
    let problem = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(
        problem.contains("\"slot\"") && problem.contains("slots"),
        "{problem}"
    );
}
