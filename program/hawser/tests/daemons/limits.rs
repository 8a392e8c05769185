//! Clients with caps and quotas, next to one without.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hawser_linux::netns::Namespace;
use serde_json::Value;

use crate::world::{Daemon, World, good, is_up};

const SERVER: &str = "203.0.113.2";
const CHUNK: usize = 32 << 10;
/// Pause between two chunks: at most 50 Mbit/s, so that the two processors of a small machine
/// suffice.
const PAUSE: Duration = Duration::from_millis(5);
/// Duration of a measurement, and of the warm-up before it: data that was held for a gap of at most
/// 2 s must not count in the time of its release.
const MEASURED: Duration = Duration::from_secs(3);
const SETTLED: Duration = Duration::from_secs(3);
/// Minimum payload of a TCP connection as a share of the cap, which includes headers and framing.
const MIN: f64 = 0.86;
const MAX: f64 = 1.02;
const ATTEMPTS: usize = 4;

/// TCP connection with data in one direction, until it is dropped.
struct Stream {
    received: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Stream {
    /// Starts a stream from the server to a client.
    fn down(server: &Namespace, client: &Namespace, port: u16) -> Self {
        Self::start(server, client, port, true)
    }

    /// Starts a stream from a client to the server.
    fn up(server: &Namespace, client: &Namespace, port: u16) -> Self {
        Self::start(server, client, port, false)
    }

    fn start(server: &Namespace, client: &Namespace, port: u16, is_down: bool) -> Self {
        let stream = Self {
            received: Arc::default(),
            is_over: Arc::default(),
        };
        let address: SocketAddr = format!("{SERVER}:{port}").parse().unwrap();
        let listener = server.run(move || TcpListener::bind(address)).unwrap();
        let timeout = hawser_testing::GIVE_UP;
        let near = client.run(move || TcpStream::connect_timeout(&address, timeout));
        let (near, far) = (near.unwrap(), listener.accept().unwrap().0);
        let (from, to) = if is_down { (far, near) } else { (near, far) };
        let is_over = Arc::clone(&stream.is_over);
        std::thread::spawn(move || send(from, &is_over));
        let (received, is_over) = (Arc::clone(&stream.received), Arc::clone(&stream.is_over));
        std::thread::spawn(move || receive(to, &received, &is_over));
        stream
    }

    fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn send(mut stream: TcpStream, is_over: &AtomicBool) {
    stream
        .set_write_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    while !is_over.load(Ordering::Relaxed) {
        let _ = stream.write(&[0x5a; CHUNK]);
        std::thread::sleep(PAUSE);
    }
}

fn receive(mut stream: TcpStream, received: &AtomicU64, is_over: &AtomicBool) {
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut buffer = vec![0; CHUNK];
    while !is_over.load(Ordering::Relaxed) {
        let count = stream.read(&mut buffer).unwrap_or(0);
        received.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// Returns the rates of concurrent streams. Units: Mbit/s.
fn rates<const N: usize>(streams: [&Stream; N]) -> [f64; N] {
    std::thread::sleep(SETTLED);
    // The time is measured around the counts, so a busy machine can only reduce the rates.
    let (start, before) = (Instant::now(), streams.map(Stream::received));
    std::thread::sleep(MEASURED);
    let (after, time) = (streams.map(Stream::received), start.elapsed().as_secs_f64());
    std::array::from_fn(|at| (after[at] - before[at]) as f64 * 8e-6 / time)
}

/// Returns the rates of a capped stream and others. The cap must hold each time; its full use may
/// take several attempts if other programs keep the processors busy.
fn capped<const N: usize>(cap: f64, streams: [&Stream; N]) -> [f64; N] {
    let mut found = [0.0; N];
    for _ in 0..ATTEMPTS {
        found = rates(streams);
        eprintln!(
            "{:.2} Mbit/s at a cap of {cap}; beside it {:.2?}",
            found[0],
            &found[1..]
        );
        assert!(found[0] < cap * MAX, "{found:?} at a cap of {cap}");
        if found[0] > cap * MIN {
            return found;
        }
    }
    panic!("{found:?} at a cap of {cap}");
}

struct Limits {
    world: World,
    server: Namespace,
    hub: Daemon,
    _clients: [Daemon; 2],
}

impl Limits {
    /// Creates a hub with the clients alice and bob.
    fn new(name: &str) -> Option<Self> {
        Self::with(name, "")
    }

    /// Creates a hub with the clients alice, with this configuration, and bob.
    fn with(name: &str, config: &str) -> Option<Self> {
        let world = World::new(name)?;
        let server = world.add_server();
        world.init();
        world.configure("c", config);
        let hub = world.start("h", &["hub", "run"]);
        world.add_client("b", 12);
        let alice = world.start("c", &["up", &world.invite(), "--foreground"]);
        let bob = world.start("b", &["up", &world.invite_as("bob"), "--foreground"]);
        world.wait("up", is_up);
        world.wait("through", World::ping_hub);
        world.wait("bob is up", |world| world.status("b")["state"] == "up");
        Some(Self {
            world,
            server,
            hub,
            _clients: [alice, bob],
        })
    }

    fn limit(&self, arguments: &[&str]) {
        good(
            self.world
                .hawser("h", &[&["hub", "limit", "alice"], arguments].concat()),
        );
    }

    /// Checks the limits that alice's machine reports.
    fn is_told(&self, state: &str) {
        let told = |world: &World| world.status("c")["limit"]["state"] == state;
        self.world.wait(state, told);
    }

    /// Returns alice's usage of this month. Units: bytes.
    fn used(&self) -> u64 {
        let said = good(self.world.hawser("h", &["hub", "usage", "alice", "--json"])).stdout;
        let said: Value = serde_json::from_slice(&said).unwrap();
        let month = &said["months"][0];
        month["down_bytes"].as_u64().unwrap_or(0) + month["up_bytes"].as_u64().unwrap_or(0)
    }

    fn shown(&self, side: &str, arguments: &[&str]) -> String {
        String::from_utf8(good(self.world.hawser(side, arguments)).stdout).unwrap()
    }
}

#[test]
fn a_cap_holds_in_both_directions_and_others_are_not_touched() {
    let Some(mut limits) = Limits::new("cap") else {
        return;
    };
    let (alice, bob) = (limits.world.open("c"), limits.world.open("b"));
    limits.limit(&["--cap", "8mbit"]);
    limits.is_told("capped");
    let other = Stream::down(&limits.server, &bob, 9_001);
    let down = Stream::down(&limits.server, &alice, 9_000);
    let [held, free] = capped(8.0, [&down, &other]);
    assert!(free > 2.0 * held, "{free} beside {held}");
    // A capped client has queues for each of its flows, so a ping passes the download.
    assert!(limits.world.ping_hub());
    limits.limit(&["--cap", "16mbit"]);
    capped(16.0, [&down]);
    drop(down);
    limits.limit(&["--cap", "8mbit"]);
    let up = Stream::up(&limits.server, &alice, 9_002);
    capped(8.0, [&up, &other]);
    // The limit survives the hub, and is displayed.
    limits.hub.signal("-KILL");
    limits.hub = limits.world.start("h", &["hub", "run"]);
    limits.world.wait("through again", World::ping_hub);
    limits.is_told("capped");
    let list = limits.shown("h", &["hub", "list"]);
    assert!(list.contains("alice   connected  8.0 Mbit/s  -"), "{list}");
    let status = limits.shown("c", &["status"]);
    assert!(
        status.contains("\nthe hub limits this machine to 8.0 Mbit/s in each direction\n"),
        "{status}"
    );
    drop((up, other));
    limits.limit(&["--no-cap"]);
    let down = Stream::down(&limits.server, &alice, 9_003);
    let [free] = rates([&down]);
    println!("down: {free:.2} Mbit/s without a cap");
    assert!(free > 1.5 * held, "{free}");
    assert!(limits.world.status("c")["limit"].is_null());
    let log = limits.shown("h", &["hub", "log", "alice"]);
    let changes = [
        "invited",
        "enrolled",
        "cap 8000000 bit/s",
        "cap 16000000 bit/s",
        "cap 8000000 bit/s",
    ];
    let lines = log.lines().skip(1).zip(changes);
    assert!(lines.clone().all(|(line, change)| line.contains(change)), "{log}");
    assert_eq!(lines.count(), changes.len(), "{log}");
}

/// The client is old or does not comply: it does not receive the cap.
#[test]
fn a_client_that_does_not_keep_to_its_cap_is_held_to_it_by_the_hub() {
    let Some(limits) = Limits::new("capx") else { return };
    let alice = limits.world.open("c");
    // Packets other than data packets belong to the control connection: their first bytes differ.
    let mut nft = limits.world.inside("h", "nft");
    nft.arg(
        "add table inet deaf; add chain inet deaf out { type filter hook postrouting priority 300; }; \
         add rule inet deaf out oifname { fiber, lte } udp sport 4430 @th,64,2 != 0 drop",
    );
    good(nft);
    limits.limit(&["--cap", "8mbit"]);
    capped(8.0, [&Stream::up(&limits.server, &alice, 9_000)]);
    let said = limits.world.status("c");
    assert!(said["limit"].is_null() && said["state"] == "up", "{said}");
}

#[test]
fn a_quota_slows_or_stops_and_is_lifted_again() {
    let Some(limits) = Limits::new("quota") else {
        return;
    };
    let (alice, bob) = (limits.world.open("c"), limits.world.open("b"));
    let other = Stream::down(&limits.server, &bob, 9_001);
    let down = Stream::down(&limits.server, &alice, 9_000);
    limits.world.wait("counted", |_| limits.used() > 1_000_000);
    let quota = limits.used() + 8_000_000;
    limits.limit(&["--quota", &format!("{quota}B")]);
    limits.is_told("slowed");
    // New connections pass; TCP needs many seconds to retransmit the losses of 200 times the rate.
    drop(down);
    let down = Stream::down(&limits.server, &alice, 9_003);
    let [slow, free] = rates([&down, &other]);
    println!("{slow:.3} Mbit/s when the quota is used up, {free:.2} beside it");
    assert!(slow > 0.0 && free > 20.0 * slow, "{slow} and {free}");
    assert!(limits.used() >= quota);
    let status = limits.shown("c", &["status"]);
    assert!(
        status.contains("is used up: 256.0 kbit/s in each direction"),
        "{status}"
    );
    let usage = limits.shown("h", &["hub", "usage"]);
    assert!(usage.contains("used up: 256 kbit/s"), "{usage}");
    // The action of an exhausted quota changes during the run.
    let path = limits.world.place("h").join("hub.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, config + "\n[limits]\nwhen_used = \"stop\"\n").unwrap();
    good(limits.world.hawser("h", &["reload"]));
    limits.is_told("stopped");
    let [nothing] = rates([&down]);
    assert!(nothing == 0.0 && !limits.world.ping_hub(), "{nothing}");
    let status = limits.shown("c", &["status"]);
    assert!(
        status.contains("no packets pass until the month ends"),
        "{status}"
    );
    assert!(limits.shown("h", &["hub", "list"]).contains("used up: stopped"));
    // A larger quota lets new connections pass immediately. (The retransmission timeout of the old
    // ones is many seconds by now.)
    limits.limit(&["--no-quota"]);
    limits
        .world
        .wait("let go", |world| world.status("c")["limit"].is_null());
    drop(down);
    let down = Stream::down(&limits.server, &alice, 9_002);
    let [free] = rates([&down]);
    println!("{free:.2} Mbit/s when more is allowed");
    assert!(free > 20.0 * slow, "{free}");
}

#[test]
fn streams_are_held_to_caps_and_quotas_as_packets_are() {
    let Some(limits) = Limits::with("cap-st", "tcp = \"stream\"\n") else {
        return;
    };
    let alice = limits.world.open("c");
    let streams = || limits.world.status("c")["counters"]["streams_connected"].as_u64();
    limits.limit(&["--cap", "8mbit"]);
    limits.is_told("capped");
    let down = Stream::down(&limits.server, &alice, 9_000);
    capped(8.0, [&down]);
    assert!(limits.world.ping_hub(), "beside it");
    let received = down.received();
    limits
        .world
        .wait("counted as packets are", |_| limits.used() >= received);
    drop(down);
    let up = Stream::up(&limits.server, &alice, 9_002);
    capped(8.0, [&up]);
    let before = limits.used();
    limits.limit(&["--no-cap", "--quota", &format!("{before}B")]);
    limits.is_told("slowed");
    drop(up);
    let down = Stream::down(&limits.server, &alice, 9_003);
    let [slow] = rates([&down]);
    println!("{slow:.3} Mbit/s when the quota is used up");
    assert!(slow < 0.5, "{slow}");
    assert_eq!(streams(), Some(3));
}
