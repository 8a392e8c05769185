//! Namespaces with a client, a hub and a server, and the daemons in them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hawser_host::control_socket::{Request, ask, is_alive};
use hawser_host::run_dir;
use hawser_linux::netns::Namespace;
pub(crate) use hawser_testing::{Daemon, Pings, good, run};
use serde_json::{Value, json};

/// Two namespaces, of a client and of a hub, connected by two cables.
pub(crate) struct World {
    id: String,
    dir: tempfile::TempDir,
}

impl World {
    pub(crate) fn new(name: &str) -> Option<Self> {
        if !hawser_testing::require(hawser_linux::process::is_root(), "needs root") {
            return None;
        }
        // Two concurrent tests may have chosen the same name.
        static WORLDS: AtomicU32 = AtomicU32::new(0);
        let number = WORLDS.fetch_add(1, Ordering::Relaxed);
        let id = format!("hwt-{name}-{}-{number}", std::process::id());
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
            let metric = 100 + number;
            world.ip(
                &client,
                &format!("route add default via 10.0.{net}.1 metric {metric}"),
            );
        }
        // A firewall like a home router's or a carrier's: only answers from the contacted address
        // pass.
        let wall = "add table inet wall; add chain inet wall in { type filter hook input priority 0; }; \
                    add rule inet wall in udp sport 4430 ip saddr != 198.51.100.1 drop";
        let mut nft = world.inside("c", "nft");
        nft.arg(wall);
        good(nft);
        Some(world)
    }

    pub(crate) fn namespace(&self, side: &str) -> String {
        format!("{}-{side}", self.id)
    }

    pub(crate) fn ip(&self, namespace: &str, arguments: &str) {
        let mut all = vec!["-n", namespace];
        all.extend(arguments.split(' '));
        run("ip", &all);
    }

    pub(crate) fn inside(&self, side: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(side), program]);
        command
    }

    pub(crate) fn hawser(&self, side: &str, arguments: &[&str]) -> Command {
        let mut command = self.inside(side, env!("CARGO_BIN_EXE_hawser"));
        command
            .args(arguments)
            .arg("--dir")
            .arg(self.place(side))
            .arg("--run-dir")
            .arg(self.run_dir(side));
        command
    }

    pub(crate) fn place(&self, side: &str) -> PathBuf {
        self.dir.path().join(side)
    }

    /// Writes the `client.toml` of a side.
    pub(crate) fn configure(&self, side: &str, text: impl AsRef<[u8]>) {
        std::fs::create_dir_all(self.place(side)).unwrap();
        std::fs::write(self.place(side).join("client.toml"), text).unwrap();
    }

    pub(crate) fn run_dir(&self, side: &str) -> PathBuf {
        self.dir.path().join(format!("{side}-run"))
    }

    pub(crate) fn start(&self, side: &str, arguments: &[&str]) -> Daemon {
        self.run_daemon(side, self.hawser(side, arguments))
    }

    /// Starts the daemon of a side with the options of `command`.
    pub(crate) fn run_daemon(&self, side: &str, mut command: Command) -> Daemon {
        let log = std::fs::File::create(self.dir.path().join(format!("{side}.log"))).unwrap();
        Daemon(
            command
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log)
                .spawn()
                .unwrap(),
        )
    }

    pub(crate) fn init(&self) {
        self.init_at("198.51.100.1:4430");
    }

    pub(crate) fn init_at(&self, endpoint: &str) {
        good(self.hawser("h", &["hub", "init", "--endpoint", endpoint]));
    }

    /// Adds a server in a separate network behind the hub. It has no route to the clients, so NAT
    /// must hide them.
    pub(crate) fn add_server(&self) -> Namespace {
        let (server, hub) = (self.namespace("s"), self.namespace("h"));
        run("ip", &["netns", "add", &server]);
        let link = [
            "link", "add", "lan", "netns", &hub, "type", "veth", "peer", "name", "lan", "netns", &server,
        ];
        run("ip", &link);
        for (namespace, address) in [(&hub, "203.0.113.1/24"), (&server, "203.0.113.2/24")] {
            self.ip(namespace, &format!("addr add {address} dev lan"));
            self.ip(namespace, "link set lan up");
        }
        self.open("s")
    }

    /// Adds a namespace for another client, with its own cable to the hub.
    pub(crate) fn add_client(&self, side: &str, net: u8) -> Namespace {
        run("ip", &["netns", "add", &self.namespace(side)]);
        self.ip(&self.namespace(side), "link set lo up");
        self.add_cable(side, &format!("cable-{side}"), net);
        self.ip(
            &self.namespace(side),
            &format!("route add default via 10.0.{net}.1"),
        );
        self.open(side)
    }

    /// Adds a cable from a client's namespace to the hub, with the client's address 10.0.`net`.2.
    pub(crate) fn add_cable(&self, side: &str, cable: &str, net: u8) {
        let (client, hub) = (self.namespace(side), self.namespace("h"));
        run(
            "ip",
            &[
                "link", "add", cable, "netns", &client, "type", "veth", "peer", "name", cable, "netns", &hub,
            ],
        );
        for (namespace, last) in [(&client, 2), (&hub, 1)] {
            self.ip(namespace, &format!("addr add 10.0.{net}.{last}/24 dev {cable}"));
            self.ip(namespace, &format!("link set {cable} up"));
        }
    }

    /// Opens the namespace of a side for threads of the test.
    pub(crate) fn open(&self, side: &str) -> Namespace {
        Namespace::open(Path::new("/run/netns").join(self.namespace(side))).unwrap()
    }

    /// Adds IPv6 on both cables, with the hub at 2001:db8:1::1 and the same firewall.
    pub(crate) fn add_ipv6(&self) {
        let (client, hub) = (self.namespace("c"), self.namespace("h"));
        self.ip(&hub, "addr add 2001:db8:1::1/128 dev lo nodad");
        for (number, cable) in ["fiber", "lte"].iter().enumerate() {
            let net = 10 + number;
            self.ip(
                &client,
                &format!("addr add 2001:db8:{net}::2/64 dev {cable} nodad"),
            );
            self.ip(&hub, &format!("addr add 2001:db8:{net}::1/64 dev {cable} nodad"));
            let route = format!(
                "-6 route add default via 2001:db8:{net}::1 dev {cable} metric {}",
                100 + number
            );
            let mut all = vec!["-n", client.as_str()];
            all.extend(route.split(' '));
            run("ip", &all);
        }
        let mut nft = self.inside("c", "nft");
        nft.arg("add rule inet wall in udp sport 443 ip6 saddr != 2001:db8:1::1 drop");
        good(nft);
    }

    pub(crate) fn invite(&self) -> String {
        self.invite_as("alice")
    }

    pub(crate) fn invite_as(&self, name: &str) -> String {
        let output = good(self.hawser("h", &["hub", "invite", name]));
        let line = String::from_utf8(output.stdout).unwrap();
        assert_eq!(line.lines().count(), 1);
        line.trim().to_owned()
    }

    /// Initialises a hub of a fleet. The database of a busy machine may need longer than the
    /// command waits, which then says so and changes nothing.
    pub(crate) fn init_in_fleet(&self, side: &str, endpoint: &str, store: &str) {
        for _ in 0..10 {
            let mut init = self.hawser(side, &["hub", "init", "--endpoint", endpoint, "--store", store]);
            let output = init.output().unwrap();
            if output.status.success() {
                return;
            }
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("the database does not answer"), "{said}");
        }
        panic!("the database does not answer");
    }

    /// Returns the output of `hawser status --json`, without starting a process.
    pub(crate) fn status(&self, side: &str) -> Value {
        let socket = run_dir::socket(&self.run_dir(side));
        if !is_alive(&socket) {
            return json!({ "version": 1, "state": "down" });
        }
        ask(&socket, &Request::Status).unwrap_or_default()
    }

    pub(crate) fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + hawser_testing::GIVE_UP;
        while !is_so(self) {
            if Instant::now() > deadline {
                let log = |side: &str| std::fs::read_to_string(self.dir.path().join(format!("{side}.log")));
                let (client, hub) = (self.status("c"), self.status("h"));
                panic!(
                    "not {what}\nclient: {client} {:?}\nhub: {hub} {:?}",
                    log("c"),
                    log("h")
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn ping_hub(&self) -> bool {
        self.ping("100.96.0.1")
    }

    /// Starts pings from the client, every 20 ms.
    pub(crate) fn pings(&self, address: &str) -> Pings {
        let mut ping = self.inside("c", "ping");
        ping.args(["-n", "-i", "0.02", address]);
        Pings::start(ping)
    }

    pub(crate) fn ping(&self, address: &str) -> bool {
        self.ping_from("c", address)
    }

    /// Returns whether a ping from a side is answered within a second.
    pub(crate) fn ping_from(&self, side: &str, address: &str) -> bool {
        let mut ping = self.inside(side, "ping");
        ping.args(["-c", "1", "-W", "1", address])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        ping.status().unwrap().success()
    }

    /// Returns all state that a daemon may change.
    pub(crate) fn system(&self, side: &str) -> String {
        let questions = [
            "ip rule",
            "ip -6 rule",
            "ip route show table all",
            "ip -6 route show table all",
            "ip -br link",
            "nft list ruleset",
            "sysctl -e net.ipv4.ip_forward net.ipv6.conf.all.forwarding net.ipv4.conf.lte.rp_filter",
        ];
        let mut answers = String::new();
        for question in questions {
            let mut words = question.split(' ');
            let mut command = self.inside(side, words.next().unwrap());
            let output = good({
                command.args(words);
                command
            });
            // Link-local addresses and multicast routes appear a moment after their link.
            let is_late = |line: &&str| line.contains("fe80") || line.contains("ff00::/8");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let mut lines: Vec<_> = text.lines().filter(|line| !is_late(line)).collect();
            // Routes with the same destination and metric are in the order of their creation.
            if question.contains("route") {
                lines.sort_unstable();
            }
            answers.push_str(&format!("{question}: {}\n", lines.join("\n")));
        }
        answers
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let own = format!("{}-", self.id);
        for namespace in names.filter(|name| name.starts_with(&own)) {
            // A failed test may leave a daemon in the background.
            let inside = Command::new("ip").args(["netns", "pids", &namespace]).output();
            for process in inside
                .iter()
                .flat_map(|found| found.stdout.split(|byte| *byte == b'\n'))
            {
                let _ = Command::new("kill")
                    .args(["-KILL", &String::from_utf8_lossy(process)])
                    .stderr(Stdio::null())
                    .status();
            }
            let _ = Command::new("ip")
                .args(["netns", "del", &namespace])
                .stderr(Stdio::null())
                .status();
        }
    }
}

pub(crate) fn is_up(world: &World) -> bool {
    world.status("c")["state"] == "up"
}

/// Returns the names of the networks whose path carries packets.
pub(crate) fn active(world: &World) -> Vec<String> {
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

/// Files that `ip netns exec` mounts in `/etc` for the programs of one side.
pub(crate) struct Files(String);

impl Files {
    pub(crate) fn new(world: &World, side: &str, name: &str, text: &str) -> Self {
        let files = Self(format!("/etc/netns/{}", world.namespace(side)));
        std::fs::create_dir_all(&files.0).unwrap();
        std::fs::write(Path::new(&files.0).join(name), text).unwrap();
        files
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
