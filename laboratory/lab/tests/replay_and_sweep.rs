//! Tests of replays and sweeps as run by a user.

use std::process::{Command, Output};

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hawser-lab"))
        .args(args)
        .output()
        .expect("the program runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
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
    let output = lab(&["replay", &recording, "--add-network", &modem, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let goodput = |which: &str| found[which]["goodput_bps.total"].as_f64().expect("a number");
    assert_eq!(found["recorded_receive_bps"], 8e6);
    let gain = goodput("what_if") / goodput("as_recorded");
    assert!((1.4..2.2).contains(&gain), "{gain}");
    let text = lab(&["replay", &recording, "--policy", "single:network-1"]);
    let text = String::from_utf8(text.stdout).expect("text");
    assert!(
        text.contains("as recorded  what if") && text.contains("goodput_bps.total (Mbit/s)"),
        "{text}"
    );
}

/// Returns a recording with ten samples of two networks; the second receives 8 Mbit/s, about 1 MB
/// per sample.
fn two_networks() -> String {
    let mut text = "{\"hawser_recording\":1,\"interval_ms\":1000}\n".to_owned();
    for t_ms in (0..10_000).step_by(1000) {
        let seen = r#"{"state":"active","rate_bps":2000000,"send_bps":0,"receive_bps":8000000,"rtt_ms":21,"min_rtt_ms":20,"loss":0}"#;
        text += &format!("{{\"t_ms\":{t_ms},\"networks\":{{\"network-1\":{seen},\"network-2\":{seen}}}}}\n");
    }
    text
}

#[test]
fn each_of_the_four_questions_has_an_answer() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("a plain name").to_owned();
    std::fs::write(path("r.recording"), two_networks()).expect("written");
    let modem = "[[network]]\nname = \"modem\"\ndown = { rate = \"8mbit\", delay = \"20ms\" }\nup = { rate = \"4mbit\", delay = \"20ms\" }\n";
    std::fs::write(path("modem.toml"), modem).expect("written");
    let (recording, modem) = (path("r.recording"), path("modem.toml"));
    // Rate of the download relative to the unchanged replay.
    let gain = |change: &[&str]| {
        let output = lab(&[&["replay", &recording, "--json"], change].concat());
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let goodput = |which: &str| found[which]["goodput_bps.total"].as_f64().expect("a number");
        goodput("what_if") / goodput("as_recorded")
    };
    // The second network is available for the first three of ten seconds.
    let quota = gain(&["--quota", "network-2=3MB"]);
    assert!((0.55..0.85).contains(&quota), "{quota}");
    assert_eq!(gain(&["--quota", "network-2=1GB"]), 1.0, "it is not used up");
    let scheduler = gain(&["--set", "schedulers={ bulk = \"random\" }"]);
    assert!(scheduler != 1.0 && (0.3..1.3).contains(&scheduler), "{scheduler}");
    let modem = gain(&["--add-network", &modem]);
    assert!((1.2..1.7).contains(&modem), "{modem}");
    let direct = gain(&["--policy", "direct"]);
    assert!(
        (0.3..0.7).contains(&direct),
        "one connection has one network: {direct}"
    );

    for (wrong, problem) in [
        ("network-3=1MB", "no network of this name"),
        ("network-2=1", "such as network-2=500MB"),
    ] {
        let output = lab(&["replay", &recording, "--quota", wrong]);
        assert!(matches!(output.status.code(), Some(2 | 64)));
        assert!(said(&output).contains(problem), "{}", said(&output));
    }
}

#[test]
fn a_sweep_over_the_simulator_gives_a_row_for_each_run_and_shards_merge() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("a plain name").to_owned();
    let base = "name = \"b\"\nduration = \"1s\"\nvia = \"single:a\"\n[[network]]\nname = \"a\"\ndown = { rate = \"5mbit\", delay = \"5ms\" }\nup = { rate = \"5mbit\" }\n[[workload]]\nkind = \"tcp\"\n";
    let sweep = "name = \"s\"\nbase = \"b.toml\"\nseeds = 2\n[[axis]]\nfield = \"network.0.down.rate\"\nvalues = [\"2mbit\", \"8mbit\"]\n";
    std::fs::write(path("b.toml"), base).expect("written");
    std::fs::write(path("s.toml"), sweep).expect("written");
    let whole = lab(&["sweep", &path("s.toml"), "--json"]);
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
        let part = lab(&["sweep", &path("s.toml"), "--shard", shard, "--out", &out]);
        assert_eq!(part.status.code(), Some(0), "{}", said(&part));
    }
    assert_eq!(lab(&["sweep", "--merge", &out]).status.code(), Some(0));
    assert_eq!(
        std::fs::read_to_string(path("shards/results.csv")).expect("a table"),
        csv
    );
}

#[test]
fn files_that_are_no_recording_and_no_sweep_are_refused_with_their_place() {
    let bad = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bad/no-unit.toml");
    let replay = lab(&["replay", bad]);
    assert_eq!(replay.status.code(), Some(64));
    assert!(
        said(&replay).contains("no-unit.toml: line 1: not a recording"),
        "{}",
        said(&replay)
    );
    let sweep = lab(&["sweep", bad]);
    assert_eq!(sweep.status.code(), Some(64));
    assert!(
        said(&sweep).contains("no-unit.toml:3: unknown field `duration`"),
        "{}",
        said(&sweep)
    );
    let dir = tempfile::tempdir().expect("a directory");
    let merge = lab(&["sweep", "--merge", dir.path().to_str().expect("plain")]);
    assert_eq!(merge.status.code(), Some(1));
    assert!(
        said(&merge).contains("holds no journal of a sweep"),
        "{}",
        said(&merge)
    );
    let shard = lab(&["sweep", bad, "--shard", "2/2"]);
    assert_eq!(shard.status.code(), Some(2));
}
