//! Tests of `hawser-lab video` as run by a user.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn video(out: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hawser-lab"))
        .args(["video", "--sim", "--out"])
        .arg(out)
        .args(arguments)
        .output()
        .expect("the binary starts")
}

#[test]
#[ignore = "slow: make test-all"]
fn a_real_video_is_shown_in_three_codings_and_drawn() {
    let out = tempfile::tempdir().expect("a directory");
    let output = video(
        out.path(),
        &["--seconds", "3", "--versus", "earliest-delivery", "--json"],
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(rows.len(), 6);
    let best = |coding: &str| {
        let of_coding = rows
            .iter()
            .filter(|row| row["way"].as_str().is_some_and(|way| way.contains(coding)));
        of_coding
            .filter_map(|row| row["frozen"].as_f64())
            .fold(1.0, f64::min)
    };
    for coding in ["LPS", "FPS", "IPS"] {
        assert!(best(coding) < 0.5, "{coding}: {rows:?}");
    }
    let page = std::fs::read_to_string(out.path().join("video.html")).expect("a page");
    assert!(page.contains("temporal layers (LPS)"));
    for row in ["layers-layer-priority.jpg", "descriptions-independent-path.jpg"] {
        assert!(page.contains(row));
        let picture = std::fs::read(out.path().join(row)).expect("a picture");
        assert!(picture.starts_with(&[0xff, 0xd8]), "{row} is a JPEG");
    }
    // A scenario accepts the list of pictures.
    let list = std::fs::read_to_string(out.path().join("layers.csv")).expect("a list");
    assert_eq!(list.lines().filter(|line| !line.starts_with('#')).count(), 75);
}

#[test]
#[ignore = "slow: make test-all"]
fn what_cannot_be_shown_is_refused_in_one_line() {
    let out = tempfile::tempdir().expect("a directory");
    for (arguments, status, reason) in [
        (&["--versus", "fastest"][..], 64, "no such scheduler"),
        (&["--scenario", "nowhere.toml"], 64, "nowhere.toml"),
        (&["--input", "/dev/null", "--seconds", "1"], 1, "ffmpeg: "),
    ] {
        let output = video(out.path(), arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert_eq!(said.trim().lines().count(), 1, "{said}");
        assert!(said.contains(reason), "{said}");
    }
}
