//! `hawser record`, `hawser sim --replay` and `--sweep` as they are used.

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

/// Answers every status request as a daemon with one path would.
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
    pretend_daemon(&hawser_node::run_dir::socket(dir.path()), STATUS);
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

const RECORDING: &str = concat!(
    r#"{"hawser_recording":1,"interval_ms":1000}"#,
    "\n",
    r#"{"t_ms":0,"networks":{"network-1":{"state":"active","rate_bps":4000000,"send_bps":0,"receive_bps":8000000,"rtt_ms":21,"min_rtt_ms":20,"loss":0}}}"#,
    "\n",
    r#"{"t_ms":1000,"networks":{"network-1":{"state":"active","rate_bps":4000000,"send_bps":0,"receive_bps":8000000,"rtt_ms":21,"min_rtt_ms":20,"loss":0}}}"#,
    "\n",
    r#"{"t_ms":2000,"networks":{"network-1":{"state":"active","rate_bps":4000000,"send_bps":0,"receive_bps":8000000,"rtt_ms":21,"min_rtt_ms":20,"loss":0}}}"#,
    "\n",
);

#[test]
fn a_replay_shows_what_a_second_network_would_have_brought() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("a plain name").to_owned();
    std::fs::write(path("r.recording"), RECORDING).expect("written");
    let modem = "[[network]]\nname = \"modem\"\ndown = { rate = \"8mbit\", delay = \"20ms\" }\nup = { rate = \"4mbit\", delay = \"20ms\" }\n";
    std::fs::write(path("modem.toml"), modem).expect("written");
    let (recording, modem) = (path("r.recording"), path("modem.toml"));
    let output = hawser(&["sim", "--replay", &recording, "--add-network", &modem, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let goodput = |which: &str| found[which]["goodput_bps.total"].as_f64().expect("a number");
    assert_eq!(found["recorded_receive_bps"], 8e6);
    let gain = goodput("what_if") / goodput("as_recorded");
    assert!((1.4..2.2).contains(&gain), "{gain}");
    let text = hawser(&["sim", "--replay", &recording, "--policy", "single:network-1"]);
    let text = String::from_utf8(text.stdout).expect("text");
    assert!(
        text.contains("as recorded  what if") && text.contains("goodput_bps.total (Mbit/s)"),
        "{text}"
    );
}

#[test]
fn a_sweep_over_the_simulator_gives_a_row_for_each_run_and_shards_merge() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("a plain name").to_owned();
    let base = "name = \"b\"\nduration = \"1s\"\nvia = \"single:a\"\n[[network]]\nname = \"a\"\ndown = { rate = \"5mbit\", delay = \"5ms\" }\nup = { rate = \"5mbit\" }\n[[workload]]\nkind = \"tcp\"\n";
    let sweep = "name = \"s\"\nbase = \"b.toml\"\nseeds = 2\n[[axis]]\nfield = \"network.0.down.rate\"\nvalues = [\"2mbit\", \"8mbit\"]\n";
    std::fs::write(path("b.toml"), base).expect("written");
    std::fs::write(path("s.toml"), sweep).expect("written");
    let whole = hawser(&["sim", "--sweep", &path("s.toml"), "--json"]);
    assert_eq!(whole.status.code(), Some(0), "{}", said(&whole));
    let csv = std::fs::read_to_string(path("s.results/results.csv")).expect("a table");
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 5, "{csv}");
    let column = lines[0]
        .split(',')
        .position(|name| name == "goodput_bps.total")
        .expect("a column");
    let goodput = |line: &str| {
        line.split(',')
            .nth(column)
            .and_then(|cell| cell.parse::<f64>().ok())
            .expect("a number")
    };
    assert!(goodput(lines[4]) > 2.0 * goodput(lines[1]), "{csv}");
    let out = path("shards");
    for shard in ["1/2", "0/2"] {
        let part = hawser(&["sim", "--sweep", &path("s.toml"), "--shard", shard, "--out", &out]);
        assert_eq!(part.status.code(), Some(0), "{}", said(&part));
    }
    assert_eq!(hawser(&["sim", "--merge", &out]).status.code(), Some(0));
    assert_eq!(
        std::fs::read_to_string(path("shards/results.csv")).expect("a table"),
        csv
    );
}

#[test]
fn a_hub_is_not_recorded() {
    let dir = tempfile::tempdir().expect("a directory");
    let hub = "{\"version\":1,\"role\":\"hub\",\"sessions\":[]}\n";
    pretend_daemon(&hawser_node::run_dir::socket(dir.path()), hub);
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
    assert!(said(&output).contains("hawser does not run here"));
    assert!(!out.exists());
}

#[test]
fn files_that_are_no_recording_and_no_sweep_are_refused_with_their_place() {
    let bad = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bad/no-unit.toml");
    let replay = hawser(&["sim", "--replay", bad]);
    assert_eq!(replay.status.code(), Some(64));
    assert!(
        said(&replay).contains("no-unit.toml: line 1: this is no recording"),
        "{}",
        said(&replay)
    );
    let sweep = hawser(&["sim", "--sweep", bad]);
    assert_eq!(sweep.status.code(), Some(64));
    assert!(
        said(&sweep).contains("no-unit.toml:3: unknown field `duration`"),
        "{}",
        said(&sweep)
    );
    let dir = tempfile::tempdir().expect("a directory");
    let merge = hawser(&["sim", "--merge", dir.path().to_str().expect("plain")]);
    assert_eq!(merge.status.code(), Some(1));
    assert!(
        said(&merge).contains("holds no journal of a sweep"),
        "{}",
        said(&merge)
    );
    let shard = hawser(&["sim", "--sweep", bad, "--shard", "2/2"]);
    assert_eq!(shard.status.code(), Some(2));
}
