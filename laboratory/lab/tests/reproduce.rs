//! `hawser-lab reproduce` as it is used.

use std::process::{Command, Output};

use serde_json::Value;

fn reproduce(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hawser-lab"))
        .arg("reproduce")
        .args(args)
        .output()
        .expect("the program runs")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn lists_every_claim_without_running_anything() {
    let output = reproduce(&["--list", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let listed = json(&output);
    assert_eq!(listed["claims"].as_array().expect("a list").len(), 363);
    let text = reproduce(&["--list", "nsdi15"]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("102 claims"));
}

#[test]
fn says_what_cannot_be_simulated_and_writes_one_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let page = dir.path().join("report.html");
    let page_name = page.to_str().expect("a plain name");
    let output = reproduce(&["A-fig3", "J.fig3.nat", "--json", "--html", page_name]);
    assert_eq!(output.status.code(), Some(0), "nothing is outside");
    let claims = json(&output)["claims"].clone();
    let verdicts: Vec<&str> = claims
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|claim| claim["verdict"].as_str())
        .collect();
    assert_eq!(verdicts, ["lost", "device", "device", "device", "device"]);
    let html = std::fs::read_to_string(page).expect("a page");
    assert!(html.ends_with("</html>\n") && html.contains("A.fig3a"));
}

#[test]
fn an_unknown_name_is_a_usage_error_that_says_what_there_is() {
    let output = reproduce(&["H.tab2", "H-tab99"]);
    assert_eq!(output.status.code(), Some(2));
    let problem = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        problem.contains("\"H-tab99\"") && problem.contains("piconet"),
        "{problem}"
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn draws_the_air_of_an_experiment_that_has_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let page = dir.path().join("air.html");
    let page_name = page.to_str().expect("a plain name");
    let output = reproduce(&["M.fig12", "--timeline", page_name]);
    assert_eq!(output.status.code(), Some(0));
    let html = std::fs::read_to_string(&page).expect("a page");
    for name in [
        "access point, own",
        "repeater, shared",
        "client 1",
        "competitor 1",
    ] {
        assert!(html.contains(name), "{name}");
    }
    let refused = reproduce(&["H-tab2", "--timeline", page_name]);
    assert_eq!(refused.status.code(), Some(2), "it is not on the air");
}
