//! Two devices with a bridge and a host each, connected by two links.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use hawser_linux::netns::Namespace;
pub(crate) use hawser_testing::{Daemon, good, run};
use serde_json::Value;

/// Namespaces: host `ha` behind box `a`, host `hb` behind box `b`.
pub(crate) struct World {
    id: String,
    dir: tempfile::TempDir,
    /// Poll interval. In virtual time, polls are the main cost.
    pause: Duration,
}

pub(crate) const LINKS: [&str; 2] = ["eth1", "eth2"];
pub(crate) const SIDES: [&str; 4] = ["ha", "a", "b", "hb"];

impl World {
    pub(crate) fn new(name: &str) -> Option<Self> {
        if !hawser_testing::require(hawser_linux::process::is_root(), "needs root") {
            return None;
        }
        let world = Self::boxes(name, Duration::from_millis(50));
        for link in LINKS {
            world.cable(("a", link), ("b", link));
        }
        world.cable(("b", "lan"), ("hb", "eth0"));
        world.ip("b", "link set lan master br0");
        world.address_hosts();
        Some(world)
    }

    /// Creates the devices with bridges, and `ha` behind that of `a`. Conditions are polled at the
    /// interval `pause`.
    pub(crate) fn boxes(name: &str, pause: Duration) -> Self {
        let world = Self {
            id: format!("hwr-{name}-{}", std::process::id()),
            dir: tempfile::tempdir().unwrap(),
            pause,
        };
        for side in SIDES {
            run("ip", &["netns", "add", &world.namespace(side)]);
            world.ip(side, "link set lo up");
        }
        for side in ["a", "b"] {
            world.ip(side, "link add br0 type bridge");
            world.ip(side, "link set br0 up");
        }
        world.cable(("a", "lan"), ("ha", "eth0"));
        world.ip("a", "link set lan master br0");
        world
    }

    pub(crate) fn address_hosts(&self) {
        for (host, last) in [("ha", 2), ("hb", 1)] {
            self.ip(host, &format!("addr add 203.0.113.{last}/24 dev eth0"));
            self.ip(host, &format!("addr add fd07::{last}/64 dev eth0 nodad"));
        }
    }

    fn cable(&self, from: (&str, &str), to: (&str, &str)) {
        let (near, far) = (self.namespace(from.0), self.namespace(to.0));
        let peer = ["type", "veth", "peer", "name", to.1, "netns", &far];
        run(
            "ip",
            &[&["link", "add", from.1, "netns", &near], &peer[..]].concat(),
        );
        for (side, name) in [from, to] {
            self.ip(side, &format!("link set {name} up"));
        }
    }

    /// Limits the rate of both directions of the links. Units: Mbit/s.
    pub(crate) fn shape(&self, rates: [u32; 2]) {
        for side in ["a", "b"] {
            for (link, rate) in LINKS.iter().zip(rates) {
                self.shape_one(side, link, rate);
            }
        }
    }

    /// Limits the rate at which a device sends on an interface. Units: Mbit/s.
    pub(crate) fn shape_one(&self, side: &str, interface: &str, rate: u32) {
        let mut tc = self.inside(side, "tc");
        tc.args(["qdisc", "replace", "dev", interface, "root", "tbf"]);
        tc.args([
            "rate",
            &format!("{rate}mbit"),
            "burst",
            "32kb",
            "latency",
            "100ms",
        ]);
        good(tc);
    }

    /// Makes a link drop all packets without notice.
    pub(crate) fn cut(&self, link: &str) {
        for side in ["a", "b"] {
            let mut nft = self.inside(side, "nft");
            nft.arg(format!(
                "add table inet cut; add chain inet cut in {{ type filter hook input priority -300; }}; \
                 add rule inet cut in iifname {link} drop"
            ));
            good(nft);
        }
    }

    pub(crate) fn heal(&self) {
        for side in ["a", "b"] {
            let mut nft = self.inside(side, "nft");
            good({
                nft.arg("delete table inet cut");
                nft
            });
        }
    }

    pub(crate) fn namespace(&self, side: &str) -> String {
        format!("{}-{side}", self.id)
    }

    pub(crate) fn ip(&self, side: &str, arguments: &str) {
        let namespace = self.namespace(side);
        let mut all = vec!["-n", namespace.as_str()];
        all.extend(arguments.split(' '));
        run("ip", &all);
    }

    pub(crate) fn inside(&self, side: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(side), program]);
        command
    }

    pub(crate) fn open(&self, side: &str) -> Namespace {
        Namespace::open(std::path::Path::new("/run/netns").join(self.namespace(side))).unwrap()
    }

    pub(crate) fn hawser(&self, side: &str, arguments: &[&str]) -> Command {
        let mut command = self.inside(side, env!("CARGO_BIN_EXE_hawser"));
        command.args(arguments);
        command.arg("--dir").arg(self.place(side));
        command.arg("--run-dir").arg(self.place(&format!("{side}-run")));
        command
    }

    pub(crate) fn place(&self, side: &str) -> PathBuf {
        self.dir.path().join(side)
    }

    /// Returns the output of a command.
    pub(crate) fn said(&self, side: &str, arguments: &[&str]) -> String {
        let output = good(self.hawser(side, arguments));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Makes each device trust the other.
    pub(crate) fn trust(&self) {
        for (side, other) in [("a", "b"), ("b", "a")] {
            let code = self.said(other, &["repeat", "code"]);
            self.said(side, &["repeat", "trust", &code]);
        }
    }

    /// Starts the daemon of a device; `a` is the access point.
    pub(crate) fn start(&self, side: &str) -> Daemon {
        self.start_with(side, &[])
    }

    /// Starts the daemon of a device with additional arguments.
    pub(crate) fn start_with(&self, side: &str, arguments: &[&str]) -> Daemon {
        let role = if side == "a" { "ap" } else { "join" };
        let log = self.place(&format!("{side}.log"));
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(log)
            .unwrap();
        let mut command = self.hawser(side, &["repeat", role, "--bridge", "br0", "--links", "eth1,eth2"]);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        Daemon(command.spawn().unwrap())
    }

    pub(crate) fn status(&self, side: &str) -> Value {
        let output = self.hawser(side, &["status", "--json"]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Returns the bytes that each link has transferred in both directions.
    pub(crate) fn carried(&self) -> [u64; 2] {
        ["eth1", "eth2"].map(|link| {
            let count = |direction: &str| -> u64 {
                let mut cat = self.inside("a", "cat");
                cat.arg(format!("/sys/class/net/{link}/statistics/{direction}_bytes"));
                let text = String::from_utf8(good(cat).stdout).unwrap();
                text.trim().parse().unwrap()
            };
            count("rx") + count("tx")
        })
    }

    pub(crate) fn active(&self, side: &str) -> Vec<String> {
        let status = self.status(side);
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

    pub(crate) fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + hawser_testing::GIVE_UP;
        while !is_so(self) {
            if Instant::now() > deadline {
                let log = |side: &str| std::fs::read_to_string(self.place(&format!("{side}.log")));
                panic!(
                    "not {what}; a: {} {:?}, b: {} {:?}",
                    self.status("a"),
                    log("a"),
                    self.status("b"),
                    log("b")
                );
            }
            std::thread::sleep(self.pause);
        }
    }

    pub(crate) fn wait_for_both_links(&self) {
        self.wait("on both links", |world| {
            world.active("a") == LINKS && world.active("b") == LINKS
        });
    }

    pub(crate) fn ping(&self, from: &str, arguments: &[&str]) -> Output {
        let mut ping = self.inside(from, "ping");
        ping.args(["-c", "1", "-W", "1"]).args(arguments);
        ping.output().unwrap()
    }

    /// Returns all state that a device may change; carriers appear a moment after their link.
    pub(crate) fn system(&self, side: &str) -> String {
        let mut all = String::new();
        for question in ["ip -br link", "ip rule", "nft list ruleset", "bridge link"] {
            let mut words = question.split(' ');
            let mut command = self.inside(side, words.next().unwrap());
            command.args(words);
            let text = String::from_utf8_lossy(&good(command).stdout).into_owned();
            for line in text.lines() {
                let of_link: Vec<_> = line.split_whitespace().step_by(2).take(2).collect();
                all.push_str(&if question == "ip -br link" {
                    of_link.join(" ")
                } else {
                    line.to_owned()
                });
                all.push('\n');
            }
        }
        all
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for side in SIDES {
            let _ = Command::new("ip")
                .args(["netns", "del", &self.namespace(side)])
                .stderr(Stdio::null())
                .status();
        }
    }
}
