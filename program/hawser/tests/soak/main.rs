//! A hub whose clients do not know each other, for a long time: eight with traffic, one that is
//! absent while somebody sends to it, one that is hostile, and a network event every two seconds.
//! No connection ends, and no daemon's memory grows.
//!
//! Twenty seconds by default. Memory is held against its bound in runs of ten minutes or more:
//!
//! `HAWSER_SOAK_SECONDS=3600 cargo test -p hawser --test soak -- --nocapture`
//!
//! `HAWSER_SOAK_STREAM_BPS` is the payload of each of the eight, `HAWSER_SOAK_HOSTILE_BPS` the UDP
//! payload of the hostile client, both in bit/s; `HAWSER_SOAK_SESSION_PACKETS` is what the hostile
//! client sends in one session.
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

/// Clients with traffic.
const ACTIVE: usize = 8;
/// Between two network events.
const EVENT: Duration = Duration::from_secs(2);
/// Memory is looked at so often.
const LOOK: Duration = Duration::from_secs(5);
/// The absent client is up once in so long; its session ends five minutes after it vanished.
const RETURNS: Duration = Duration::from_secs(400);
/// A run of at least so long is held against [`GROWTH`].
const LONG: Duration = Duration::from_secs(600);
/// By how much private memory may grow from the second and third minute to the last two, of the
/// resident memory then.
const GROWTH: f64 = 0.02;
/// A port of the hub that leads to the absent client.
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
        if looked.elapsed() >= LOOK {
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
    // Whoever was sent to beside strangers still gets all of it.
    for (side, bytes) in sides.iter().zip(&received) {
        assert!(*bytes > 100_000, "{side} got {bytes} bytes");
    }
}

/// Growth of private memory from the second and third minute to the last two, of the resident
/// memory of before; medians.
fn growth(seen: &[Memory]) -> f64 {
    let minute = (60 / LOOK.as_secs()) as usize;
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

/// A daemon's memory. Units: kB.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    resident: u64,
    /// Of it what no file holds. The rest is pages of the program and its libraries: each stays
    /// from its first use on, until memory is short, and their number is bounded.
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

/// What has happened to a network, to be mended at the next event.
#[derive(Debug)]
enum Event {
    /// The cable is out.
    Unplugged { side: String, cable: String, net: u8 },
    /// Nothing comes through, and nobody is told.
    Silent,
    /// The client has another address in it: nothing to mend.
    Moved,
    /// The client has no default route there.
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

/// The route of a client into a network; the same again changes nothing.
fn add_route(world: &World, side: &str, cable: &str, net: u8) {
    let mut ip = world.inside(side, "ip");
    let metric = (100 + net).to_string();
    let gateway = format!("10.0.{net}.1");
    ip.args([
        "route", "replace", "default", "via", &gateway, "dev", cable, "metric", &metric,
    ]);
    good(ip);
}

/// A client that is enrolled and never stays, and somebody who sends to it all the time.
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
            // Fifty packets a second.
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

    /// Comes up, and vanishes without a word; when that was.
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
