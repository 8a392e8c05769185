//! Tests of `hawser-lab reproduce` as run by a user.

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

#[test]
fn the_page_is_written_from_results_and_continues_where_it_stopped() {
    let _ = hawser_testing::require_sibling(env!("CARGO_BIN_EXE_hawser-lab"), "hawser");
    let dir = tempfile::tempdir().expect("a directory");
    let page = dir.path().join("page.md");
    let page_name = page.to_str().expect("a plain name");
    let mut runs = Vec::new();
    for seeds in ["1", "2", "2"] {
        let output = reproduce(&["A.mtu", "--page", page_name, "--seeds", seeds, "--jobs", "1"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{said}");
        runs.push(
            said.lines()
                .filter(|line| line.contains("A-mtu from A.mtu simulated"))
                .count(),
        );
    }
    assert_eq!(runs, [1, 1, 0], "what has a result is not run again");
    let text = std::fs::read_to_string(&page).expect("a page");
    assert!(text.starts_with("# The five papers, claim by claim"), "{text}");
    assert_eq!(text.matches("\n| `").count(), 363, "a row of every claim");
    assert!(
        text.contains("| 1400 B | reproduced; no product contains its flow table and stitch |"),
        "{text}"
    );
    let results = std::fs::read_to_string(page.with_extension("jsonl")).expect("results");
    assert_eq!(results.lines().count(), 2);
}

#[test]
fn a_budget_without_a_page_is_refused() {
    let output = reproduce(&["A.mtu", "--budget", "1min"]);
    assert_eq!(output.status.code(), Some(2));
    let problem = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(problem.contains("--page"), "{problem}");
}
