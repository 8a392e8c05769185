//! Tests of `hawser-lab live` as used from two terminals: one runs the networks, the other changes
//! them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use serde_json::Value;

const SCENARIO: &str = r#"
name = "two modems"
duration = "2s"
via = "single:lte"

[[network]]
name = "lte"
down = { rate = "20mbit", delay = "5ms" }
up = { rate = "20mbit", delay = "5ms" }

[[network]]
name = "dsl"
down = { rate = "20mbit", delay = "5ms" }
up = { rate = "20mbit", delay = "5ms" }

[[event]]
at = "1s"
network = "dsl"
set = "blackhole"
"#;

/// Directory for the scenario and the control sockets.
struct Desk {
    directory: tempfile::TempDir,
    scenario: PathBuf,
}

impl Desk {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let scenario = directory.path().join("modems.toml");
        std::fs::write(&scenario, SCENARIO).expect("written");
        Self { directory, scenario }
    }

    fn run_dir(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hawser-lab"));
        command.arg("live").args(arguments);
        command.arg("--run-dir").arg(self.run_dir());
        command
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the program starts")
    }

    /// Returns the error message of a rejected command, which is one line.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.ask(arguments);
        let said = String::from_utf8(output.stderr).expect("text");
        assert!(!output.status.success(), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    }

    fn status(&self) -> Value {
        let output = self.ask(&["status", "--json"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Starts the networks and waits until they are up; `None` if namespaces are not permitted.
    fn start(&self, arguments: &[&str]) -> Option<Keeper> {
        let program = env!("CARGO_BIN_EXE_hawser-lab");
        let _ = hawser_testing::require_sibling(program, "hawser");
        let scenario = self.scenario.to_str().expect("text");
        let mut words = vec![scenario, "--json"];
        words.extend(arguments);
        let mut child = self
            .command(&words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("readable");
        if line.is_empty() {
            let output = child.wait_with_output().expect("it ends");
            let said = String::from_utf8_lossy(&output.stderr);
            let words = ["needs root", "not permitted", "Permission denied", "/dev/net/tun"];
            assert!(words.iter().any(|word| said.contains(word)), "{said}");
            hawser_testing::skip(format!("the lab cannot run: {said}"));
            return None;
        }
        let state = serde_json::from_str(&line).expect("JSON");
        Some(Keeper { child, state })
    }
}

struct Keeper {
    child: Child,
    /// Output when all networks were up.
    state: Value,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn network<'a>(state: &'a Value, name: &str) -> &'a Value {
    let networks = state["networks"].as_array().expect("networks");
    let found = networks.iter().find(|network| network["name"] == name);
    found.expect("a network of that name")
}

/// Sends a request to the server from the client's namespace. Returns whether it is answered.
fn reaches_the_server(desk: &Desk) -> bool {
    let ask = "exec 3<>/dev/tcp/203.0.113.2/8080 && printf 'GET /10 HTTP/1.0\\r\\n\\r\\n' >&3 && head -1 <&3";
    let mut command = Command::new(env!("CARGO_BIN_EXE_hawser-lab"));
    command
        .args(["live", "exec", "client", "--run-dir"])
        .arg(desk.run_dir());
    command.args(["--", "timeout", "1", "bash", "-c", ask]);
    let output = command.output().expect("the program starts");
    String::from_utf8_lossy(&output.stdout).contains("200")
}

/// Asks again until an answer comes: on a busy machine the first may take more than its second.
fn wait_for_the_server(desk: &Desk) {
    let deadline = Instant::now() + hawser_testing::GIVE_UP;
    while !reaches_the_server(desk) {
        assert!(Instant::now() < deadline, "no answer: {}", desk.status());
    }
}

fn has_nothing(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).expect("readable").flatten();
    entries
        .into_iter()
        .all(|entry| !entry.file_type().expect("known").is_dir())
}

#[test]
fn networks_change_by_command_while_they_run() {
    let desk = Desk::new();
    let Some(mut keeper) = desk.start(&[]) else { return };
    assert_eq!(keeper.state["version"], 1);
    assert_eq!(keeper.state["server"], "203.0.113.2");
    wait_for_the_server(&desk);

    assert!(
        desk.ask(&["set", "lte", "rate=2mbit", "delay=80ms"])
            .status
            .success()
    );
    assert!(desk.ask(&["set", "lte", "blackhole"]).status.success());
    let state = desk.status();
    assert_eq!(network(&state, "lte")["state"], "blackhole");
    assert_eq!(network(&state, "lte")["orders"][0], "rate=2mbit delay=80ms");
    assert!(!reaches_the_server(&desk));
    for word in ["up", "carrier", "up", "down", "up"] {
        assert!(desk.ask(&["set", "lte", word]).status.success(), "{word}");
    }
    wait_for_the_server(&desk);
    assert!(desk.ask(&["event", "1"]).status.success());
    assert_eq!(network(&desk.status(), "dsl")["state"], "blackhole");

    for (order, words) in [
        (
            &["set", "wifi", "down"][..],
            "no network is called \"wifi\"; there are lte, dsl",
        ),
        (&["set", "lte", "color=red"], "unknown field `color`"),
        (&["set", "lte", "rate=2mbit", "delay=80"], "80 has no unit"),
        (&["event", "7"], "there is no event 7: give a number from 1 to 1"),
    ] {
        let said = desk.refused(order);
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(
        network(&desk.status(), "lte")["orders"].as_array().map(Vec::len),
        Some(7),
        "a refused order changes nothing"
    );

    assert!(desk.ask(&["stop"]).status.success());
    assert!(keeper.child.wait().expect("it ends").success());
    assert!(has_nothing(&desk.run_dir()), "files are left");
}

#[test]
fn who_asks_is_told_when_none_runs_and_when_two_do() {
    let desk = Desk::new();
    assert!(desk.refused(&["status"]).contains("no laboratory runs"));
    let (Some(_first), Some(_second)) = (desk.start(&["--name", "one"]), desk.start(&["--name", "two"]))
    else {
        return;
    };
    assert!(
        desk.refused(&["set", "lte", "down"])
            .contains("say which with --name")
    );
    assert!(
        desk.refused(&["status", "--name", "three"])
            .contains("there is one, two")
    );
    let again = desk.refused(&[desk.scenario.to_str().expect("text"), "--name", "one"]);
    assert!(again.contains("runs already"), "{again}");
    assert!(desk.ask(&["stop", "--name", "two"]).status.success());
    assert_eq!(
        network(&desk.status(), "lte")["state"],
        "up",
        "the other one goes on"
    );
}

#[test]
fn what_a_killed_one_leaves_is_removed_by_the_next_start() {
    let desk = Desk::new();
    let Some(killed) = desk.start(&["--name", "killed"]) else {
        return;
    };
    drop(killed);
    assert!(desk.run_dir().join("killed").exists());
    assert!(desk.refused(&["status"]).contains("no laboratory runs"));
    let _next = desk.start(&["--name", "next"]).expect("as before");
    assert!(!desk.run_dir().join("killed").exists());
}

#[test]
fn a_command_runs_in_the_clients_namespace_and_ends_it_with_its_own_code() {
    let desk = Desk::new();
    let scenario = desk.scenario.to_str().expect("text").to_owned();
    let mut command = desk.command(&[&scenario]);
    let output = command
        .args(["--", "sh", "-c", "ip -o link show lte && exit 7"])
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(1) {
        hawser_testing::skip(format!("the lab cannot run: {said}"));
        return;
    }
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("lte"));
    assert!(has_nothing(&desk.run_dir()), "files are left");
}

#[test]
fn daemons_run_with_a_hub_and_without_one() {
    for via in ["via=hub", "via=direct"] {
        let desk = Desk::new();
        let Some(_keeper) = desk.start(&["--set", via]) else {
            return;
        };
        wait_for_the_server(&desk);
        let state = desk.status();
        let run_dir = state["client_run_dir"].as_str().expect("a daemon's");
        assert!(Path::new(run_dir).exists(), "{state}");
        assert!(!state["logs"].as_array().expect("logs").is_empty());
    }
}

#[test]
fn a_bad_scenario_is_refused_before_anything_starts() {
    let desk = Desk::new();
    let scenario = desk.scenario.to_str().expect("text").to_owned();
    let output = desk.ask(&[&scenario, "--set", "network.0.down.mtu=9"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(!desk.run_dir().exists());
}
