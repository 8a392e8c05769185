//! Real daemons in network namespaces: packets pass, a hub's restart is survived, and nothing stays behind, not even after a crash.
//!
//! Needs root; without it the tests say so and pass.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Two namespaces, a client's and a hub's, joined by two cables.
struct World {
    id: String,
    dir: tempfile::TempDir,
}

impl World {
    fn new(name: &str) -> Option<Self> {
        if !hawser_linux::process::is_root() {
            eprintln!("not tested: needs root");
            return None;
        }
        let id = format!("hwt-{name}-{}", std::process::id());
        let world = Self {
            id,
            dir: tempfile::tempdir().unwrap(),
        };
        let (client, hub) = (world.namespace("c"), world.namespace("h"));
        for namespace in [&client, &hub] {
            run("ip", &["netns", "add", namespace]);
            world.ip(namespace, "link set lo up");
        }
        world.ip(&hub, "addr add 198.51.100.1/32 dev lo");
        for (number, cable) in ["fiber", "lte"].iter().enumerate() {
            let net = 10 + number;
            run(
                "ip",
                &[
                    "link", "add", cable, "netns", &client, "type", "veth", "peer", "name", cable, "netns",
                    &hub,
                ],
            );
            world.ip(&client, &format!("addr add 10.0.{net}.2/24 dev {cable}"));
            world.ip(&hub, &format!("addr add 10.0.{net}.1/24 dev {cable}"));
            world.ip(&client, &format!("link set {cable} up"));
            world.ip(&hub, &format!("link set {cable} up"));
            world.ip(
                &hub,
                &format!("route replace 10.0.{net}.0/24 dev {cable} src 198.51.100.1"),
            );
            let metric = 100 + number;
            world.ip(
                &client,
                &format!("route add default via 10.0.{net}.1 metric {metric}"),
            );
        }
        Some(world)
    }

    fn namespace(&self, side: &str) -> String {
        format!("{}-{side}", self.id)
    }

    fn ip(&self, namespace: &str, arguments: &str) {
        let mut all = vec!["-n", namespace];
        all.extend(arguments.split(' '));
        run("ip", &all);
    }

    fn inside(&self, side: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(side), program]);
        command
    }

    fn hawser(&self, side: &str, arguments: &[&str]) -> Command {
        let mut command = self.inside(side, env!("CARGO_BIN_EXE_hawser"));
        command
            .args(arguments)
            .arg("--dir")
            .arg(self.place(side))
            .arg("--run-dir")
            .arg(self.run_dir(side));
        command
    }

    fn place(&self, side: &str) -> PathBuf {
        self.dir.path().join(side)
    }

    fn run_dir(&self, side: &str) -> PathBuf {
        self.dir.path().join(format!("{side}-run"))
    }

    fn start(&self, side: &str, arguments: &[&str]) -> Daemon {
        let log = std::fs::File::create(self.dir.path().join(format!("{side}.log"))).unwrap();
        let mut command = self.hawser(side, arguments);
        Daemon(
            command
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log)
                .spawn()
                .unwrap(),
        )
    }

    fn init(&self) {
        good(self.hawser("h", &["hub", "init", "--endpoint", "198.51.100.1:4430"]));
    }

    fn invite(&self) -> String {
        let output = good(self.hawser("h", &["hub", "invite", "alice"]));
        let line = String::from_utf8(output.stdout).unwrap();
        assert_eq!(line.lines().count(), 1);
        line.trim().to_owned()
    }

    fn status(&self, side: &str) -> Value {
        let output = self.hawser(side, &["status", "--json"]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(15);
        while !is_so(self) {
            if Instant::now() > deadline {
                let log = |side: &str| std::fs::read_to_string(self.dir.path().join(format!("{side}.log")));
                panic!("not {what}; client: {:?}, hub: {:?}", log("c"), log("h"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn ping_hub(&self) -> bool {
        let mut ping = self.inside("c", "ping");
        ping.args(["-c", "1", "-W", "1", "100.96.0.1"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        ping.status().unwrap().success()
    }

    /// Everything that a daemon may change.
    fn system(&self, side: &str) -> String {
        let questions = [
            "ip rule",
            "ip -6 rule",
            "ip route show table all",
            "ip -6 route show table all",
            "ip -br link",
            "nft list ruleset",
            "sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding net.ipv4.conf.lte.rp_filter",
        ];
        let mut answers = String::new();
        for question in questions {
            let mut words = question.split(' ');
            let mut command = self.inside(side, words.next().unwrap());
            let output = good({
                command.args(words);
                command
            });
            // Link-local addresses appear a moment after their link.
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let lines: Vec<_> = text.lines().filter(|line| !line.contains("fe80")).collect();
            answers.push_str(&format!("{question}: {}\n", lines.join("\n")));
        }
        answers
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for side in ["c", "h"] {
            let _ = Command::new("ip")
                .args(["netns", "del", &self.namespace(side)])
                .status();
        }
    }
}

/// A daemon that does not outlive the test.
struct Daemon(Child);

impl Daemon {
    /// Its process id; `ip netns exec` has become the daemon.
    fn signal(&mut self, signal: &str) {
        run("kill", &[signal, &self.0.id().to_string()]);
        self.0.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(program: &str, arguments: &[&str]) {
    let mut command = Command::new(program);
    command.args(arguments);
    good(command);
}

fn good(mut command: Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn is_up(world: &World) -> bool {
    world.status("c")["state"] == "up"
}

#[test]
fn packets_pass_and_nothing_stays_behind() {
    let Some(world) = World::new("a") else { return };
    let (client_before, hub_before) = (world.system("c"), world.system("h"));
    world.init();
    let mut hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let mut client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("up", is_up);
    world.wait("through", World::ping_hub);
    world.wait("on both networks", |world| {
        let paths = world.status("c")["sessions"][0]["paths"].clone();
        paths
            .as_array()
            .is_some_and(|paths| paths.len() == 2 && paths.iter().all(|p| p["state"] == "active"))
    });
    assert_ne!(world.system("c"), client_before);
    client.signal("-TERM");
    assert_eq!(world.system("c"), client_before);

    // The identity is enough from now on. A crash leaves rules behind, which `down` removes.
    let mut client = world.start("c", &["up", "--foreground"]);
    world.wait("up again", is_up);
    client.signal("-KILL");
    assert_ne!(world.system("c"), client_before);
    good(world.hawser("c", &["down"]));
    assert_eq!(world.system("c"), client_before);

    hub.signal("-KILL");
    assert_ne!(world.system("h"), hub_before);
    good(world.hawser("h", &["down"]));
    assert_eq!(world.system("h"), hub_before);
}

#[test]
fn a_hub_restart_is_survived_and_revocation_is_immediate() {
    let Some(world) = World::new("b") else { return };
    world.init();
    let mut hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    // The whole way of a user: the command returns when packets flow.
    let up = good(world.hawser("c", &["up", &invitation]));
    assert!(
        String::from_utf8_lossy(&up.stdout).starts_with("up: hawser0 to 198.51.100.1:4430 over fiber, lte")
    );
    world.wait("through", World::ping_hub);
    let first = world.status("c");
    hub.signal("-KILL");
    let _hub = world.start("h", &["hub", "run"]);
    world.wait("a new session", |world| {
        let now = world.status("c");
        now["session"] != first["session"] && now["state"] == "up"
    });
    world.wait("through again", World::ping_hub);
    assert_eq!(world.status("c")["inner"], first["inner"]);

    good(world.hawser("h", &["hub", "revoke", "alice"]));
    world.wait("gone", |world| world.status("c")["state"] == "down");
    let refused = world.hawser("c", &["up"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        said.contains("not enrolled") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn networks_come_and_go_under_a_kill_switch() {
    let Some(world) = World::new("d") else { return };
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    world.ip(&world.namespace("c"), "link set lte down");
    std::fs::create_dir_all(world.place("c")).unwrap();
    std::fs::write(world.place("c").join("client.toml"), "kill_switch = true\n").unwrap();
    let invitation = world.invite();
    let mut client = world.start("c", &["up", &invitation, "--foreground"]);
    // Without the tunnel the hub's inner address would be reached too: over the default route.
    world.wait("up", is_up);
    world.wait("through", World::ping_hub);
    let outside = |world: &World| {
        let mut ping = world.inside("c", "ping");
        ping.args(["-c", "1", "-W", "1", "10.0.10.1"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        ping.status().unwrap().success()
    };
    assert!(
        !outside(&world),
        "a packet left outside the tunnel: {}",
        world.system("c")
    );

    let session = world.status("c")["session"].clone();
    world.ip(&world.namespace("c"), "link set lte up");
    world.ip(
        &world.namespace("c"),
        "route add default via 10.0.11.1 metric 101",
    );
    world.wait("on the new network", |world| active(world) == ["fiber", "lte"]);
    world.ip(&world.namespace("c"), "link del fiber");
    world.wait("on the network that is left", |world| active(world) == ["lte"]);
    world.wait("controlled over it", |world| {
        let status = world.status("c");
        status["networks"][0]["control"] == true && status["networks"][0]["name"] == "lte"
    });
    assert!(world.ping_hub());
    assert_eq!(world.status("c")["session"], session, "the session went on");
    assert!(world.status("c")["epoch"].as_u64().unwrap() > 0, "with new keys");
    client.signal("-TERM");
    assert!(!world.system("c").contains("hawser"));
}

/// The networks whose path carries packets, by name.
fn active(world: &World) -> Vec<String> {
    let status = world.status("c");
    let paths = status["sessions"][0]["paths"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let active = paths.iter().filter(|path| path["state"] == "active");
    let mut names: Vec<_> = active
        .filter_map(|path| Some(path["name"].as_str()?.to_owned()))
        .collect();
    names.sort();
    names
}

#[test]
fn bad_configuration_is_said_before_anything_is_touched() {
    let Some(world) = World::new("c") else { return };
    let before = world.system("c");
    std::fs::create_dir_all(world.place("c")).unwrap();
    std::fs::write(world.place("c").join("client.toml"), "\nmtu = 7\n").unwrap();
    let output = world.hawser("c", &["up", "--foreground"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("client.toml:2: mtu 7"));
    assert!(!Path::new(&world.run_dir("c")).exists());
    assert_eq!(world.system("c"), before);
}
