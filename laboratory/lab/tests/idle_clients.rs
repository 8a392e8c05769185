//! Tests of `hawser-lab bench idle-clients`: the cost of enrolled clients without traffic for a
//! hub.

use std::process::Command;

#[test]
fn idle_clients_are_counted_and_nothing_of_them_stays() {
    if !hawser_testing::require(hawser_linux::process::is_root(), "needs root") {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let output = Command::new(env!("CARGO_BIN_EXE_hawser-lab"))
        .args([
            "bench",
            "idle-clients",
            "--count",
            "30",
            "--seconds",
            "1",
            "--json",
        ])
        .env("TMPDIR", place.path())
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(figures["clients"], 30);
    assert!(figures["memory_per_client_bytes"].as_u64() > Some(1000));
    assert!(figures["enrolling_cpu_s"].as_f64() > Some(0.0));
    let left = std::fs::read_dir(place.path()).expect("the directory").count();
    assert_eq!(left, 0);
}
