//! Tests of `hawser record` as run by a user.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

fn hawser(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hawser"))
        .args(args)
        .output()
        .expect("the program runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Answers every status request like a daemon with one path.
fn pretend_daemon(socket: &Path, status: &'static str) {
    let listener = UnixListener::bind(socket).expect("a socket");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client");
            let mut line = String::new();
            let read = BufReader::new(stream.try_clone().expect("a copy")).read_line(&mut line);
            if read.expect("a request") > 0 {
                assert!(line.contains("\"status\""), "{line}");
                stream.write_all(status.as_bytes()).expect("an answer");
            }
        }
    });
}

const STATUS: &str = concat!(
    r#"{"version":1,"role":"client","name":"anna","hub":["hub.example:443"],"networks":[],"sessions":[{"paths":[{"path":0,"#,
    r#""name":"wlp3s0","remote":"203.0.113.9:443","state":"active","rtt_ms":12.5,"min_rtt_ms":10.0,"loss":0.0,"#,
    r#""rate_bps":9000000,"send_bps":100,"receive_bps":20000000}],"flows":[]}]}"#,
    "\n"
);

#[test]
fn records_what_the_daemon_sees_and_nothing_private() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("a plain name").to_owned();
    pretend_daemon(&hawser_host::run_dir::socket(dir.path()), STATUS);
    let (run_dir, out) = (path(""), path("commute.recording"));
    let arguments = ["record", "--out", &out, "--seconds", "2", "--run-dir", &run_dir];
    let output = hawser(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let text = std::fs::read_to_string(&out).expect("a recording");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert_eq!(lines[0], r#"{"hawser_recording":1,"interval_ms":1000}"#);
    assert!(
        lines[2].contains(r#""network-1":{"state":"active","rate_bps":9000000"#),
        "{text}"
    );
    for secret in ["wlp3s0", "anna", "hub.example", "203.0.113"] {
        assert!(!text.contains(secret), "{secret}");
    }
    let again = hawser(&arguments);
    assert_eq!(again.status.code(), Some(1), "a recording is not overwritten");
    assert_eq!(std::fs::read_to_string(&out).expect("a recording"), text);
}

#[test]
fn a_hub_is_not_recorded() {
    let dir = tempfile::tempdir().expect("a directory");
    let hub = "{\"version\":1,\"role\":\"hub\",\"sessions\":[]}\n";
    pretend_daemon(&hawser_host::run_dir::socket(dir.path()), hub);
    let out = dir.path().join("hub.recording");
    let (out_name, run_dir) = (out.to_str().expect("plain"), dir.path().to_str().expect("plain"));
    let output = hawser(&["record", "--out", out_name, "--run-dir", run_dir]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("record on a client") && !out.exists(),
        "{}",
        said(&output)
    );
}

#[test]
fn without_a_daemon_nothing_is_recorded() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("never.recording");
    let (out_name, run_dir) = (out.to_str().expect("plain"), dir.path().to_str().expect("plain"));
    let output = hawser(&["record", "--out", out_name, "--run-dir", run_dir]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("hawser is not running"));
    assert!(!out.exists());
}
