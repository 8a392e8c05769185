//! Long run of a hub with mutually unrelated clients: eight with traffic, one that is absent while
//! packets are sent to it, one that is hostile, and a network event every 2 s. No connection may
//! end, and no daemon's memory may grow.
//!
//! The default is 20 s. Memory is compared with its bound in runs of 10 minutes or more:
//!
//! `HAWSER_SOAK_SECONDS=3600 cargo test -p hawser --test soak -- --nocapture`
//!
//! `HAWSER_SOAK_STREAM_BPS` is the payload rate of each of the eight, `HAWSER_SOAK_HOSTILE_BPS` the
//! UDP payload of the hostile client, both in bit/s; `HAWSER_SOAK_SESSION_PACKETS` is the number of
//! packets that the hostile client sends in one session.
#![allow(clippy::unwrap_used, reason = "a test")]

mod hostile;
#[path = "../../../../core/proto/tests/hostile/packet.rs"]
mod packet;
#[allow(dead_code, reason = "shared with the model of a hostile peer")]
#[path = "../../../../core/proto/tests/hostile/peer.rs"]
mod peer;
mod streams;
#[allow(dead_code, reason = "shared with the tests of daemons")]
#[path = "../daemons/world.rs"]
mod world;

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hawser_linux::netns::Namespace;
use hawser_testing::{Daemon, good};

use hostile::Hostile;
use peer::Lots;
use streams::Streams;
use world::World;

/// Number of clients with traffic.
const ACTIVE: usize = 8;
/// Interval between two network events.
const EVENT: Duration = Duration::from_secs(2);
/// Interval between two samples of memory.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Interval at which the absent client connects; its session ends 5 minutes after it vanished.
const RETURNS: Duration = Duration::from_secs(400);
/// Minimum duration of a run that is compared with [`GROWTH`].
const LONG: Duration = Duration::from_secs(600);
/// Maximum growth of private memory from the second and third minute to the last two minutes, as a
/// share of the resident memory at the beginning.
const GROWTH: f64 = 0.02;
/// Port of the hub that is forwarded to the absent client.
const FORWARDED: u16 = 9_999;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().expect("a number"))
}

#[test]
#[ignore = "slow: make test-all"]
fn strangers_share_a_hub_for_a_long_time() {
    let Some(world) = World::new("soak") else { return };
    let length = Duration::from_secs(number("HAWSER_SOAK_SECONDS", 20));
    let server = world.add_server();
    world.init();
    let hub = world.start("h", &["hub", "run"]);

    let sides: Vec<String> = (0..ACTIVE).map(|number| format!("k{number}")).collect();
    let mut daemons = vec![("hub".to_owned(), hub)];
    let mut clients = Vec::new();
    for (number, side) in (0_u8..).zip(&sides) {
        clients.push(world.add_client(side, 20 + 2 * number));
        world.add_cable(side, &format!("lte-{side}"), 21 + 2 * number);
        add_route(&world, side, &format!("lte-{side}"), 21 + 2 * number);
        let invitation = world.invite_as(side);
        daemons.push((
            side.clone(),
            world.start(side, &["up", &invitation, "--foreground"]),
        ));
    }
    for side in &sides {
        world.wait("up", |world| world.status(side)["state"] == "up");
    }
    let streams = Streams::start(&server, &clients, number("HAWSER_SOAK_STREAM_BPS", 6_000_000));
    let absent = Absent::new(&world, &server);
    let hostile = hostile(&world);

    let begin = Instant::now();
    let mut lots = Lots::new(number("HAWSER_SOAK_SEED", 1));
    let mut broken = None;
    let mut memory: Vec<Vec<Memory>> = vec![Vec::new(); daemons.len()];
    let (mut events, mut looked) = (0_u64, begin);
    let mut returned = absent.vanish(&world);
    while begin.elapsed() < length {
        std::thread::sleep(EVENT);
        if let Some(event) = broken.take() {
            mend(&world, &event);
        }
        broken = Some(happen(&world, &sides, &mut lots));
        events += 1;
        if looked.elapsed() >= POLL_INTERVAL {
            looked = Instant::now();
            for (seen, (_, daemon)) in memory.iter_mut().zip(&daemons) {
                seen.push(Memory::of(daemon));
            }
        }
        if returned.elapsed() > RETURNS {
            returned = absent.vanish(&world);
        }
        streams.check();
    }
    if let Some(event) = broken.take() {
        mend(&world, &event);
    }

    let sent = hostile.end();
    let (received, gaps) = streams.end();
    let to_absent = absent.end();
    println!(
        "{} s, {events} network events, {} MB to clients, longest pauses {gaps:.1?} s",
        length.as_secs(),
        received.iter().sum::<u64>() / 1_000_000
    );
    println!(
        "hostile: {} sessions, {} packets, {} MB; to the absent client: {to_absent} packets",
        sent.sessions,
        sent.packets,
        sent.bytes / 1_000_000
    );
    assert!(
        sent.sessions > 0 && sent.packets > 1_000,
        "the hostile client was not heard"
    );
    assert!(to_absent > 0, "nothing was sent to the absent client");
    for ((name, _), seen) in daemons.iter().zip(&memory) {
        let growth = growth(seen);
        let last = seen.last().copied().unwrap_or_default();
        println!(
            "{name}: {} kB in the end, of them {} private; grew by {:.1} %",
            last.resident,
            last.private,
            100.0 * growth
        );
        if length >= LONG {
            assert!(growth < GROWTH, "{name} grows: {seen:?} kB");
        }
    }
    // Every client receives all of its data despite the other clients' traffic.
    for (side, bytes) in sides.iter().zip(&received) {
        assert!(*bytes > 100_000, "{side} got {bytes} bytes");
    }
}

/// Returns the growth of the median private memory from the second and third minute to the last two
/// minutes, as a share of the resident memory at the beginning.
fn growth(seen: &[Memory]) -> f64 {
    let minute = (60 / POLL_INTERVAL.as_secs()) as usize;
    let median = |part: &[Memory], of: fn(&Memory) -> u64| {
        let mut part: Vec<u64> = part.iter().map(of).collect();
        part.sort_unstable();
        part.get(part.len() / 2).copied().unwrap_or(1) as f64
    };
    let early = seen.get(minute..3 * minute).unwrap_or(seen);
    let late = &seen[seen.len().saturating_sub(2 * minute)..];
    let before = median(early, |memory| memory.private);
    (median(late, |memory| memory.private) - before) / median(early, |memory| memory.resident)
}

/// Memory of a daemon. Units: kB.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    resident: u64,
    /// Private part, which is not backed by a file. The rest is pages of the program and its
    /// libraries: each remains resident from its first use until memory is short, and their number
    /// is bounded.
    private: u64,
}

impl Memory {
    fn of(daemon: &Daemon) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.0.id())).unwrap();
        let value = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            let word = line.and_then(|line| line.split_whitespace().nth(1));
            word.and_then(|word| word.parse().ok())
                .expect("a daemon that runs")
        };
        Self {
            resident: value("VmRSS:"),
            private: value("RssAnon:"),
        }
    }
}

/// Change of a network, which the next event reverts.
#[derive(Debug)]
enum Event {
    /// The cable is unplugged.
    Unplugged { side: String, cable: String, net: u8 },
    /// All packets are dropped without notice.
    Silent,
    /// The client has another address in the network; there is nothing to revert.
    Moved,
    /// The client has no default route over this network.
    NoRoute { side: String, cable: String, net: u8 },
}

fn happen(world: &World, sides: &[String], lots: &mut Lots) -> Event {
    let number = lots.below(sides.len() as u64) as usize;
    let side = sides[number].clone();
    let is_second = lots.one_in(2);
    let cable = format!("{}-{side}", if is_second { "lte" } else { "cable" });
    let net = 20 + 2 * number as u8 + u8::from(is_second);
    let (client, hub) = (world.namespace(&side), world.namespace("h"));
    match lots.below(4) {
        0 => {
            world.ip(&hub, &format!("link set {cable} down"));
            Event::Unplugged { side, cable, net }
        }
        1 => {
            let mut nft = world.inside("h", "nft");
            nft.arg(format!(
                "add table inet silent; add chain inet silent in {{ type filter hook prerouting priority -300; }}; \
                 add rule inet silent in iifname {cable} drop"
            ));
            good(nft);
            Event::Silent
        }
        2 => {
            let last = 2 + lots.below(200);
            world.ip(&client, &format!("addr flush dev {cable}"));
            world.ip(&client, &format!("addr add 10.0.{net}.{last}/24 dev {cable}"));
            add_route(world, &side, &cable, net);
            Event::Moved
        }
        _ => {
            let mut ip = world.inside(&side, "ip");
            ip.args(["route", "del", "default", "dev", &cable]);
            good(ip);
            Event::NoRoute { side, cable, net }
        }
    }
}

fn mend(world: &World, event: &Event) {
    match event {
        Event::Unplugged { side, cable, net } => {
            world.ip(&world.namespace("h"), &format!("link set {cable} up"));
            add_route(world, side, cable, *net);
        }
        Event::Silent => {
            let mut nft = world.inside("h", "nft");
            nft.args(["delete", "table", "inet", "silent"]);
            good(nft);
        }
        Event::Moved => {}
        Event::NoRoute { side, cable, net } => add_route(world, side, cable, *net),
    }
}

/// Adds a client's route over a network; a repeated call has no effect.
fn add_route(world: &World, side: &str, cable: &str, net: u8) {
    let mut ip = world.inside(side, "ip");
    let metric = (100 + net).to_string();
    let gateway = format!("10.0.{net}.1");
    ip.args([
        "route", "replace", "default", "via", &gateway, "dev", cable, "metric", &metric,
    ]);
    good(ip);
}

/// Enrolled client that connects only for moments, while packets are sent to it all the time.
struct Absent {
    invitation: std::cell::RefCell<Option<String>>,
    is_over: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    sending: std::thread::JoinHandle<()>,
}

impl Absent {
    fn new(world: &World, server: &Namespace) -> Self {
        world.add_client("a", 90);
        let invitation = world.invite_as("absent");
        let port = FORWARDED.to_string();
        good(world.hawser("h", &["hub", "forward", "absent", "udp", &port]));
        let (is_over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let socket = server.run(|| UdpSocket::bind("203.0.113.2:0")).unwrap();
        let (over, count) = (Arc::clone(&is_over), Arc::clone(&sent));
        let sending = std::thread::spawn(move || {
            // The sender sends 50 packets per second.
            while !over.load(Ordering::Relaxed) {
                if socket.send_to(&[7; 100], ("203.0.113.1", FORWARDED)).is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self {
            invitation: Some(invitation).into(),
            is_over,
            sent,
            sending,
        }
    }

    /// Connects the client and kills it without notice. Returns the time of the kill.
    fn vanish(&self, world: &World) -> Instant {
        let invitation = self.invitation.take();
        let arguments: Vec<&str> = ["up"].into_iter().chain(invitation.as_deref()).collect();
        let mut client = world.start("a", &[&arguments[..], &["--foreground"]].concat());
        world.wait("the absent client up", |world| world.status("a")["state"] == "up");
        client.signal("-KILL");
        good(world.hawser("a", &["down"]));
        Instant::now()
    }

    fn end(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        self.sending.join().unwrap();
        self.sent.load(Ordering::Relaxed)
    }
}

fn hostile(world: &World) -> Hostile {
    let rate = number("HAWSER_SOAK_HOSTILE_BPS", 20_000_000);
    Hostile::start(world.add_client("m", 92), &world.invite_as("mallory"), rate)
}
