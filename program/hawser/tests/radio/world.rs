//! Daemons among access points (`scripts/radio-world`), and requests to them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hawser_testing::Pings;
use serde_json::Value;

const CLIENT: &str = "/run/client";
const CLIENT_RUN: &str = "/run/client-run";
const SERVED: &str = "/run/served";
const SLOW: &str = "/run/slow";

/// Hub in the namespace of that name, a file server, and a client in this namespace.
pub(crate) struct World {
    hub: Child,
    server: Child,
    client: Option<Child>,
    invitation: Option<String>,
    /// Interfaces that existed before the client.
    interfaces: Vec<String>,
}

/// Creates a command.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// Returns the output of a command, which must succeed.
pub(crate) fn said(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let [said, errors] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(
        output.status.success(),
        "{command:?}: {}\n{said}{errors}",
        output.status
    );
    said
}

fn program() -> &'static str {
    env!("CARGO_BIN_EXE_hawser")
}

impl World {
    pub(crate) fn with_hub() -> Self {
        let hub = |arguments: &[&str]| {
            let mut command = run("ip", &["netns", "exec", "hub", program(), "hub"]);
            command.args(arguments).args(["--dir", "/run/hub"]);
            command
        };
        said(&mut hub(&["init", "--endpoint", "198.51.100.2:4433"]));
        let daemon = hub(&["run", "--run-dir", "/run/hub-run"])
            .stdout(Stdio::null())
            .stderr(fs::File::create("/run/hub.log").expect("a file"))
            .spawn()
            .expect("a hub");
        let invitation = wait("the hub answers", 20, || {
            let output = hub(&["invite", "alice", "--run-dir", "/run/hub-run"])
                .output()
                .ok()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let word = text
                .split_whitespace()
                .find(|word| word.starts_with("hawser://"))?;
            Some(word.to_owned())
        });
        fs::create_dir_all(SERVED).expect("a directory");
        fs::write(format!("{SERVED}/big"), vec![7; 100 << 20]).expect("a file");
        // The script is `http.server` without the query for the machine's name.
        let script = "import http.server as h, socketserver as s; s.ThreadingTCPServer(('', 80), h.SimpleHTTPRequestHandler).serve_forever()";
        let server = run("ip", &["netns", "exec", "server", "python3", "-c", script])
            .current_dir(SERVED)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a server");
        wait("the server listens", 20, || {
            let listening = ["netns", "exec", "server", "ss", "-Hltn", "sport = 80"];
            let output = run("ip", &listening).output().ok()?;
            (!output.stdout.is_empty()).then_some(())
        });
        Self {
            hub: daemon,
            server,
            client: None,
            invitation: Some(invitation),
            interfaces: interfaces(),
        }
    }

    /// Writes `client.toml`.
    pub(crate) fn configure(&self, config: &str) {
        fs::create_dir_all(CLIENT).expect("a directory");
        let file = format!("{CLIENT}/client.toml");
        let text = format!("log = \"info\"\n{config}");
        fs::write(&file, text).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("ours");
    }

    /// Starts the client with that `client.toml`.
    pub(crate) fn up(&mut self, config: &str) {
        self.configure(config);
        let mut command = run(program(), &["up", "--foreground"]);
        command.args(self.invitation.take()).args(places());
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open("/run/client.log")
            .expect("a file");
        let client = command
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("a client");
        self.client = Some(client);
    }

    /// Returns a `hawser` command for this client.
    pub(crate) fn hawser(&self, arguments: &[&str]) -> Command {
        let mut command = run(program(), arguments);
        if arguments.first() == Some(&"radio") {
            command.args(places());
        } else {
            command.args(["--run-dir", CLIENT_RUN]);
        }
        command
    }

    pub(crate) fn status(&self) -> Value {
        let output = self.hawser(&["status", "--json"]).output().expect("it starts");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Waits until the client's status meets a condition.
    pub(crate) fn until(&self, what: &str, seconds: u64, mut holds: impl FnMut(&Value) -> bool) {
        wait_or(
            what,
            seconds,
            || holds(&self.status()).then_some(()),
            || format!("{:#}\n{}", self.status(), log()),
        );
    }

    /// Returns the rate of a download over all networks in this time. Units: bit/s.
    pub(crate) fn download(&self, time: Duration) -> f64 {
        let limit = time.as_secs().to_string();
        let arguments = [
            "--silent",
            "--show-error",
            "--output",
            "/dev/null",
            "--max-time",
            &limit,
            "--write-out",
            "%{speed_download}",
            "http://203.0.113.2/big",
        ];
        let output = run("curl", &arguments).output().expect("curl");
        let [text, errors] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        // The download is complete, or the time limit ended it.
        let is_good = matches!(output.status.code(), Some(0 | 28));
        assert!(is_good, "curl: {}\n{text}\n{errors}{}", output.status, log());
        8.0 * text.parse::<f64>().expect("a number")
    }

    /// Ends the client, and checks that no state remains.
    pub(crate) fn down(&mut self) {
        said(&mut self.hawser(&["down"]));
        let ended = self.client.take().expect("it runs").wait().expect("a status");
        assert!(ended.success(), "{ended}");
        self.assert_clean();
    }

    /// Checks that no state of a client remains.
    pub(crate) fn assert_clean(&self) {
        assert_eq!(interfaces(), self.interfaces);
        assert_eq!(supplicants(), 0, "one is left");
        let rules = said(&mut run("nft", &["list", "tables"]));
        assert!(!rules.contains("hawser"), "{rules}");
    }

    /// Kills the client.
    pub(crate) fn crash(&mut self) {
        let mut client = self.client.take().expect("it runs");
        client.kill().expect("it runs");
        client.wait().expect("a status");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let others = [&mut self.hub, &mut self.server];
        for child in self.client.iter_mut().chain(others) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn places() -> [&'static str; 4] {
    ["--dir", CLIENT, "--run-dir", CLIENT_RUN]
}

/// Returns the client's log.
pub(crate) fn log() -> String {
    fs::read_to_string("/run/client.log").unwrap_or_default()
}

/// Returns the names of the associated Wi-Fi networks, including those of other programs.
pub(crate) fn joined(status: &Value) -> Vec<String> {
    let all = status["radio"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut names: Vec<_> = all
        .iter()
        .filter(|station| station["state"] == "joined")
        .filter_map(|station| station["ssid"].as_str().map(str::to_owned))
        .collect();
    names.sort();
    names
}

/// Returns the status of a Wi-Fi network.
pub(crate) fn station(status: &Value, ssid: &str) -> Value {
    let all = status["radio"].as_array().expect("stations");
    all.iter()
        .find(|one| one["ssid"] == ssid)
        .expect("it is there")
        .clone()
}

/// Returns the number of networks that carry the tunnel.
pub(crate) fn active(status: &Value) -> usize {
    let all = status["networks"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    all.iter().filter(|network| network["state"] == "active").count()
}

/// Returns the interfaces of this machine.
pub(crate) fn interfaces() -> Vec<String> {
    let all = fs::read_dir("/sys/class/net").expect("a list").flatten();
    let mut names: Vec<_> = all.filter_map(|one| one.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Returns the Wi-Fi cards of this machine, including simulated ones.
pub(crate) fn radios() -> Vec<String> {
    let all = fs::read_dir("/sys/class/ieee80211").expect("a list").flatten();
    all.filter_map(|one| one.file_name().into_string().ok()).collect()
}

/// Returns the number of running wpa_supplicants that Hawser started.
pub(crate) fn supplicants() -> usize {
    let all = fs::read_dir("/proc").expect("a list").flatten();
    all.filter(|one| {
        let line = fs::read_to_string(one.path().join("cmdline")).unwrap_or_default();
        line.contains("wpa_supplicant") && line.contains(CLIENT_RUN)
    })
    .count()
}

/// Stops an access point without notice, like a loss of power.
pub(crate) fn access_point_vanishes(number: usize) {
    let all = fs::read_dir("/proc").expect("a list").flatten();
    let config = format!("/run/hostapd/ap{number}.conf");
    let process = all
        .filter_map(|one| one.file_name().to_str()?.parse::<u32>().ok())
        .find(|id| {
            let line = fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
            line.contains("hostapd") && line.contains(&config)
        });
    let process = process.expect("it runs").to_string();
    // The interface is removed first, so that no station is notified.
    let (namespace, card) = (format!("ap{number}"), format!("wlan{number}"));
    said(&mut run("ip", &["-n", &namespace, "link", "set", &card, "down"]));
    said(&mut run("kill", &["-9", &process]));
}

/// Returns a command to an access point.
pub(crate) fn access_point(number: usize, words: &[&str]) -> Command {
    let mut command = run("hostapd_cli", &["-p", &format!("/run/hostapd/ap{number}")]);
    command.args(words);
    command
}

/// Long-lived connection.
pub(crate) struct SlowDownload(Child);

impl SlowDownload {
    pub(crate) fn start() -> Self {
        let arguments = [
            "--silent",
            "--limit-rate",
            "100k",
            "--output",
            SLOW,
            "http://203.0.113.2/big",
        ];
        Self(run("curl", &arguments).spawn().expect("curl"))
    }

    /// Returns the received bytes; the connection must still exist.
    pub(crate) fn bytes(&mut self) -> u64 {
        let ended = self.0.try_wait().expect("a child");
        assert!(ended.is_none(), "the connection is gone: {ended:?}");
        fs::metadata(SLOW).map_or(0, |found| found.len())
    }
}

impl Drop for SlowDownload {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lets another program associate with a network on an interface of the machine, and configure its
/// address.
pub(crate) fn somebody_joins(interface: &str, ssid: &str, password: &str) {
    let config = format!("network={{\nssid=\"{ssid}\"\npsk=\"{password}\"\n}}\n");
    fs::write("/run/other.conf", config).expect("written");
    said(&mut run(
        "wpa_supplicant",
        &["-B", "-i", interface, "-c", "/run/other.conf"],
    ));
    wait("somebody has joined", 20, || {
        let link = said(&mut run("iw", &["dev", interface, "link"]));
        link.contains(ssid).then_some(())
    });
    let script = "#!/bin/sh\n[ \"$1\" = bound ] || exit 0\nip addr add $ip/$mask dev $interface\nip route add default via $router dev $interface metric 600\n";
    fs::write("/run/other.sh", script).expect("written");
    fs::set_permissions("/run/other.sh", fs::Permissions::from_mode(0o755)).expect("ours");
    said(&mut run(
        "udhcpc",
        &["-q", "-n", "-i", interface, "-s", "/run/other.sh"],
    ));
}

/// Starts NetworkManager, which has joined the first of these networks and knows all of them.
/// Returns the files of its profiles.
pub(crate) fn network_manager(networks: &[&str]) -> Vec<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/uml.d/network-manager");
    said(&mut run(script, networks));
    let file = |name| format!("/etc/NetworkManager/system-connections/{name}.nmconnection");
    networks.iter().map(file).collect()
}

/// Starts concurrent pings over an interface.
pub(crate) fn pings(interface: &str, to: &str, every: Duration, most: u32) -> Pings {
    let (every, most) = (every.as_secs_f64().to_string(), most.to_string());
    Pings::start(run("ping", &["-I", interface, "-i", &every, "-c", &most, to]))
}

fn wait<T>(what: &str, seconds: u64, look: impl FnMut() -> Option<T>) -> T {
    wait_or(what, seconds, look, String::new)
}

fn wait_or<T>(
    what: &str,
    seconds: u64,
    mut look: impl FnMut() -> Option<T>,
    say: impl FnOnce() -> String,
) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(seconds),
            "not within {seconds} s: {what}\n{}",
            say()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}
