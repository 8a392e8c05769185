//! Namespaces of the lab with Hawser on client and server, introduced to each other, and
//! translators that drop packets of connections whose beginning they have not seen.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hawser_linux::netns::Namespace;
use hawser_netem::scenario::{Scenario, Via};
use hawser_testbed::world;
pub(crate) use hawser_testing::Daemon;
use serde_json::Value;

pub(crate) const SERVER: &str = "203.0.113.2";
pub(crate) const PORT: u16 = 8000;
/// Round-trip time of both networks without queues.
pub(crate) const ROUND_TRIP: Duration = Duration::from_millis(20);
/// Round-trip time of a packet behind a download: with a full queue.
pub(crate) const LOADED: Duration = Duration::from_millis(40);

const SCENARIO: &str = r#"
name = "two networks"
duration = "60s"
via = "peer"

[[network]]
name = "wifi"
down = { rate = "40mbit", delay = "10ms", queue = "20ms" }
up = { rate = "40mbit", delay = "10ms", queue = "20ms" }

[[network]]
name = "lte"
down = { rate = "40mbit", delay = "10ms", queue = "20ms" }
up = { rate = "40mbit", delay = "10ms", queue = "20ms" }
"#;

pub(crate) struct World {
    pub(crate) lab: world::World,
    pub(crate) dir: tempfile::TempDir,
}

impl World {
    /// Creates the namespaces; `None` if they are not permitted.
    pub(crate) fn new() -> Option<Self> {
        let scenario = Scenario::parse(SCENARIO, "test.toml".as_ref(), &[], &mut |_| {
            unreachable!("no traces")
        });
        let lab = match world::World::build(&scenario.expect("a scenario"), &Via::Peer) {
            Ok(lab) => lab,
            Err(error) => {
                hawser_testing::skip(format!("no namespaces: {error:#}"));
                return None;
            }
        };
        // The translators reject connections from the middle and change ports.
        let strict = lab
            .net
            .run(|| std::fs::write("/proc/sys/net/netfilter/nf_conntrack_tcp_loose", "0"));
        strict.expect("the translators are strict");
        let world = Self {
            lab,
            dir: tempfile::tempdir().expect("a directory"),
        };
        for place in ["client", "server", "hub"] {
            std::fs::create_dir(world.dir.path().join(place)).expect("a directory");
        }
        world.write_config("server", "[direct]\npeer_port = 4443\n");
        serve(&world.lab.server);
        Some(world)
    }

    pub(crate) fn write_config(&self, place: &str, text: &str) {
        std::fs::write(self.dir.path().join(place).join("client.toml"), text).expect("written");
    }

    fn namespace(&self, place: &str) -> &Namespace {
        match place {
            "client" => &self.lab.client,
            "hub" => &self.lab.hub,
            _ => &self.lab.server,
        }
    }

    fn run_dir(&self, place: &str) -> PathBuf {
        self.dir.path().join(format!("{place}-run"))
    }

    /// Introduces server and client to each other.
    pub(crate) fn introduce(&self, endpoint: &str) {
        let invitation = self.keep("server", &["peer", "invite", "laptop", "--endpoint", endpoint]);
        let invitation = invitation.trim();
        self.keep("client", &["peer", "join", invitation, "--name", "server"]);
    }

    /// Runs a command that needs only the side's files. Returns its output.
    pub(crate) fn keep(&self, place: &str, arguments: &[&str]) -> String {
        let mut command = self.namespace(place).command(env!("CARGO_BIN_EXE_hawser"));
        let output = command
            .args(arguments)
            .arg("--dir")
            .arg(self.dir.path().join(place))
            .output();
        let output = output.expect("the program runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a command that needs the side's daemon.
    pub(crate) fn run(&self, place: &str, arguments: &[&str]) -> Output {
        let mut command = self.namespace(place).command(env!("CARGO_BIN_EXE_hawser"));
        command.args(arguments).arg("--run-dir").arg(self.run_dir(place));
        command.output().expect("the program runs")
    }

    pub(crate) fn ask(&self, place: &str, arguments: &[&str]) -> Value {
        let output = self.run(place, &[arguments, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    /// Starts a daemon, which is killed at the end of the thread that starts it.
    pub(crate) fn start(&self, place: &str, arguments: &[&str]) -> Daemon {
        let log = std::fs::File::create(self.dir.path().join(format!("{place}.log"))).expect("a log");
        let mut command = self.namespace(place).command(env!("CARGO_BIN_EXE_hawser"));
        command
            .args(arguments)
            .args(["--log", "debug", "--run-dir"])
            .arg(self.run_dir(place));
        command.arg("--dir").arg(self.dir.path().join(place));
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        Daemon(command.spawn().expect("the program starts"))
    }

    /// Starts both daemons, and waits until the client reaches the server over both networks.
    pub(crate) fn up(&self) -> [Daemon; 2] {
        self.up_at("203.0.113.2:4443")
    }

    /// Starts both daemons with another address of the server.
    pub(crate) fn up_at(&self, endpoint: &str) -> [Daemon; 2] {
        self.introduce(endpoint);
        let up = ["up", "--direct", "--foreground"];
        let daemons = [self.start("server", &up), self.start("client", &up)];
        self.wait_for_links(2);
        daemons
    }

    /// Waits until the client has this many connections to peers.
    pub(crate) fn wait_for_links(&self, count: usize) {
        self.wait_until("the peers are reached", || {
            let status = self.ask("client", &["status"]);
            let links = status["moving"]["links"].as_array().cloned().unwrap_or_default();
            links.iter().filter(|link| link["trouble"].is_null()).count() == count
        });
    }

    pub(crate) fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(
                start.elapsed() < hawser_testing::GIVE_UP,
                "never: {what}\n{}",
                self.logs()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn logs(&self) -> String {
        let read =
            |place| std::fs::read_to_string(self.dir.path().join(format!("{place}.log"))).unwrap_or_default();
        format!(
            "client:\n{}\nserver:\n{}\nhub:\n{}",
            read("client"),
            read("server"),
            read("hub")
        )
    }

    /// Returns the network of the only flow whose description contains this text.
    pub(crate) fn network_of(&self, flow: &str) -> String {
        let explained = self.ask("client", &["explain", flow]);
        let flows = explained["flows"].as_array().cloned().unwrap_or_default();
        assert_eq!(flows.len(), 1, "{explained}");
        flows[0]["network"].as_str().unwrap_or_default().to_owned()
    }

    /// Moves the flow, which must succeed. Returns the duration.
    pub(crate) fn move_to(&self, flow: &str, network: &str) -> Duration {
        self.move_through(flow, network, None)
    }

    /// Moves the flow through a waypoint, which must succeed. Returns the duration.
    pub(crate) fn move_through(&self, flow: &str, network: &str, through: Option<&str>) -> Duration {
        let mut arguments = vec!["move", flow, "--to", network];
        arguments.extend(through.iter().flat_map(|through| ["--through", through]));
        let answer = self.ask("client", &arguments);
        assert_eq!(answer["flows"][0]["moved"], true, "{answer}\n{}", self.logs());
        Duration::from_secs_f64(answer["flows"][0]["took_ms"].as_f64().expect("a time") / 1e3)
    }

    /// Starts a hub that the client has joined as a peer and may use as a waypoint.
    pub(crate) fn start_hub(&self) -> Daemon {
        self.start_hub_with("waypoint = [\"laptop\"]\n")
    }

    /// Starts such a hub with `more` at the end of its configuration.
    pub(crate) fn start_hub_with(&self, more: &str) -> Daemon {
        self.keep("hub", &["hub", "init", "--endpoint", "198.51.100.2:443"]);
        self.configure_hub(more);
        let invitation = self.keep("hub", &["hub", "invite", "laptop"]);
        self.keep("client", &["peer", "join", invitation.trim(), "--name", "hub"]);
        self.start("hub", &["hub", "run"])
    }

    /// Writes the hub's configuration with `more` at its end.
    pub(crate) fn configure_hub(&self, more: &str) {
        let file = self.dir.path().join("hub/hub.toml");
        let text = std::fs::read_to_string(&file).expect("there is a hub");
        let text = text.split("# test\n").next().expect("some text");
        std::fs::write(file, format!("{text}# test\n{more}")).expect("written");
    }

    pub(crate) fn ip(&self, place: &str, arguments: &str) {
        let mut command = self.namespace(place).command("ip");
        let output = command
            .args(arguments.split_whitespace())
            .output()
            .expect("ip runs");
        assert!(
            output.status.success(),
            "{arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    pub(crate) fn nft(&self, namespace: &Namespace, rules: &str) {
        let mut child = namespace
            .command("nft")
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("nft runs");
        child
            .stdin
            .take()
            .expect("a pipe")
            .write_all(rules.as_bytes())
            .expect("written");
        assert!(child.wait().expect("it ends").success(), "{rules}");
    }

    /// Returns all state that Hawser may change and must restore at the end.
    pub(crate) fn system(&self, place: &str) -> String {
        let script = "ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; nft list ruleset; ip -o link | cut -d' ' -f2";
        let mut command: Command = self.namespace(place).command("sh");
        let output = command.args(["-c", script]).output().expect("sh runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut lines: Vec<_> = text
            .lines()
            .filter(|line| !line.contains("fe80:") && !line.contains("ff00::"))
            .collect();
        lines.sort_unstable();
        lines.join("\n")
    }
}

/// Returns the number of bytes that a device has received.
pub(crate) fn received(namespace: &Namespace, device: &str) -> u64 {
    let path = format!("/sys/class/net/{device}/statistics/rx_bytes");
    let output = namespace.command("cat").arg(path).output().expect("cat runs");
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .expect("a number")
}

/// Returns the byte of a download at a position, so that a receiver can detect wrong bytes.
fn byte_at(position: u64) -> u8 {
    let mut z = (position >> 3).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> ((position & 7) * 8)) as u8
}

/// Starts servers: an endless download whose received bytes are checked too; datagrams are answered
/// with their source and content.
fn serve(namespace: &Namespace) {
    let (listener, datagrams) = namespace
        .run(|| Ok((TcpListener::bind(("::", PORT))?, UdpSocket::bind((SERVER, PORT))?)))
        .expect("a server");
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let reading = stream.try_clone().expect("another handle");
            std::thread::spawn(move || check_upload(reading));
            std::thread::spawn(move || send(stream));
        }
    });
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((len, peer)) = datagrams.recv_from(&mut buffer) {
            let answer = [peer.to_string().as_bytes(), b" ", &buffer[..len]].concat();
            let _ = datagrams.send_to(&answer, peer);
        }
    });
}

fn send(mut stream: TcpStream) {
    let mut position = 0_u64;
    loop {
        let block: Vec<u8> = (position..position + 65_536).map(byte_at).collect();
        if stream.write_all(&block).is_err() {
            return;
        }
        position += 65_536;
    }
}

/// Checks received bytes; a wrong one ends the connection, which the client detects.
fn check_upload(mut stream: TcpStream) {
    let mut position = 0;
    let mut buffer = [0; 4_096];
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        if buffer[..len]
            .iter()
            .zip(position..)
            .any(|(byte, at)| *byte != byte_at(at))
        {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            return;
        }
        position += len as u64;
    }
}

/// Download that runs until it is dropped.
pub(crate) struct Download {
    pub(crate) local: SocketAddr,
    received: Arc<AtomicU64>,
    /// Gaps of at least [`NOTABLE`]: end and length of each.
    gaps: Arc<Mutex<Vec<(Instant, Duration)>>>,
    trouble: Arc<Mutex<Option<String>>>,
    is_over: Arc<AtomicBool>,
}

impl Download {
    pub(crate) fn start(client: &Namespace) -> Self {
        Self::from(client, SERVER)
    }

    pub(crate) fn from(client: &Namespace, server: &str) -> Self {
        let stream = client
            .run(|| TcpStream::connect((server, PORT)))
            .expect("a connection");
        stream
            .set_read_timeout(Some(hawser_testing::GIVE_UP))
            .expect("set");
        let download = Self {
            local: stream.local_addr().expect("an address"),
            received: Arc::default(),
            gaps: Arc::default(),
            trouble: Arc::default(),
            is_over: Arc::default(),
        };
        let (received, gaps) = (Arc::clone(&download.received), Arc::clone(&download.gaps));
        let (trouble, is_over) = (Arc::clone(&download.trouble), Arc::clone(&download.is_over));
        let uploading = stream.try_clone().expect("another handle");
        let until = Arc::clone(&download.is_over);
        std::thread::spawn(move || upload(uploading, &until));
        std::thread::spawn(move || {
            let said = receive(stream, &received, &gaps, &is_over);
            *trouble.lock().expect("no panic") = said.err();
        });
        download
    }

    /// Returns the number of received bytes.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Returns the error of the download, if any.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().expect("no panic").clone()
    }

    /// Returns the longest time without data since `since`.
    pub(crate) fn longest_gap(&self, since: Instant) -> Duration {
        let gaps = self.gaps.lock().expect("no panic");
        gaps.iter()
            .filter(|(at, _)| *at > since)
            .map(|(_, gap)| *gap)
            .max()
            .unwrap_or(NOTABLE)
    }

    /// Waits until 1 MB more has arrived.
    pub(crate) fn advance(&self, world: &World) {
        let before = self.received();
        world.wait_until("the download goes on", || self.received() > before + 1_000_000);
    }

    /// Returns the rate over a time, for the output of tests only, because a busy machine reduces
    /// it. Units: bit/s.
    pub(crate) fn rate_over(&self, time: Duration) -> f64 {
        let before = self.received();
        std::thread::sleep(time);
        (self.received() - before) as f64 * 8.0 / time.as_secs_f64()
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn upload(mut stream: TcpStream, is_over: &AtomicBool) {
    let mut position = 0_u64;
    while !is_over.load(Ordering::Relaxed) {
        let block: Vec<u8> = (position..position + 100).map(byte_at).collect();
        if stream.write_all(&block).is_err() {
            return;
        }
        position += 100;
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn receive(
    mut stream: TcpStream,
    received: &AtomicU64,
    gaps: &Mutex<Vec<(Instant, Duration)>>,
    is_over: &AtomicBool,
) -> Result<(), String> {
    let (mut buffer, mut position, mut last) = (vec![0; 65_536], 0_u64, Instant::now());
    while !is_over.load(Ordering::Relaxed) {
        let len = match stream.read(&mut buffer) {
            Ok(0) => return Err("the server has ended it".to_owned()),
            Ok(len) => len,
            Err(error) => return Err(error.to_string()),
        };
        let now = Instant::now();
        if now - last > NOTABLE {
            gaps.lock().expect("no panic").push((now, now - last));
        }
        last = now;
        let wrong = buffer[..len]
            .iter()
            .zip(position..)
            .position(|(byte, at)| *byte != byte_at(at));
        if let Some(at) = wrong {
            return Err(format!("byte {} is wrong", position + at as u64));
        }
        position += len as u64;
        received.store(position, Ordering::Relaxed);
    }
    Ok(())
}

/// Minimum length of a recorded gap.
pub(crate) const NOTABLE: Duration = Duration::from_millis(20);
