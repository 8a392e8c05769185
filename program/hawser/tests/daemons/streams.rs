//! TCP connections split between a client and its hub, with real daemons. Counters show which
//! connections were streams.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use hawser_linux::netns::Namespace;
use serde_json::Value;

use crate::transfer::Transfer;
use crate::world::{Daemon, World, good, is_up};

const SERVER: &str = "203.0.113.2";
const TIMEOUT: Duration = hawser_testing::GIVE_UP;

/// Client whose connections are streams, its hub, and a server behind the hub.
struct Split {
    world: World,
    client: Namespace,
    server: Namespace,
    hub: Daemon,
    _client: Daemon,
}

/// Adds lines to the hub's configuration: keys above its tables, and tables.
fn configure(world: &World, keys: &str, tables: &str) {
    let path = world.place("h").join("hub.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path, format!("{keys}{config}{tables}")).unwrap();
}

impl Split {
    fn new(name: &str) -> Option<Self> {
        Self::with(name, "tcp = \"stream\"\n", "")
    }

    fn with(name: &str, client: &str, hub: &str) -> Option<Self> {
        Self::configured(name, client, ("", hub))
    }

    fn configured(name: &str, client: &str, (keys, tables): (&str, &str)) -> Option<Self> {
        let world = World::new(name)?;
        let server = world.add_server();
        world.init();
        configure(&world, keys, tables);
        let daemon = world.start("h", &["hub", "run"]);
        world.configure("c", client);
        let up = world.start("c", &["up", &world.invite(), "--foreground"]);
        world.wait("up", is_up);
        world.wait("through", World::ping_hub);
        world.wait("on both networks", |world| crate::world::active(world).len() == 2);
        Some(Self {
            client: world.open("c"),
            world,
            server,
            hub: daemon,
            _client: up,
        })
    }

    /// Restarts the hub, which continues the sessions.
    fn restart_hub(&mut self) {
        self.hub.signal("-TERM");
        self.hub = self.world.start("h", &["hub", "run"]);
        // Streams continue before the hub handles signals.
        self.world
            .wait("up again", |world| world.status("h")["state"] == "up");
    }

    fn listen(&self, port: u16) -> TcpListener {
        let address: SocketAddr = format!("{SERVER}:{port}").parse().unwrap();
        self.server.run(move || TcpListener::bind(address)).unwrap()
    }

    fn connect(&self, to: &str) -> std::io::Result<TcpStream> {
        let address: SocketAddr = to.parse().unwrap();
        let stream = self
            .client
            .run(move || TcpStream::connect_timeout(&address, TIMEOUT))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(stream)
    }

    /// Returns both ends of a connection to a port of the server.
    fn pair(&self, port: u16) -> (TcpStream, TcpStream) {
        let listener = self.listen(port);
        let near = self.connect(&format!("{SERVER}:{port}")).unwrap();
        let far = listener.accept().unwrap().0;
        far.set_read_timeout(Some(TIMEOUT)).unwrap();
        (near, far)
    }

    fn counter(&self, side: &str, name: &str) -> u64 {
        counter(&self.world.status(side), name)
    }
}

fn counter(status: &Value, name: &str) -> u64 {
    status["counters"][name]
        .as_u64()
        .unwrap_or_else(|| panic!("no {name} in {status}"))
}

fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    all
}

#[test]
fn a_download_and_an_upload_are_streams_and_arrive_whole() {
    let Some(split) = Split::new("st-a") else { return };
    Transfer::start(&split.server, &split.client).finish();
    assert_eq!(split.counter("c", "streams_connected"), 1);
    assert!(split.counter("c", "streams_written_bytes") >= 48 << 20);
    assert!(split.counter("h", "streams_read_bytes") >= 48 << 20);
    let (mut near, mut far) = split.pair(9001);
    let sent: Vec<u8> = (0..20_000_000_u32)
        .map(|at| (at.wrapping_mul(0x9e37_79b9) >> 11) as u8)
        .collect();
    let copy = sent.clone();
    let sending = std::thread::spawn(move || {
        near.write_all(&copy).unwrap();
        near.shutdown(Shutdown::Write).unwrap();
        read_all(&mut near)
    });
    assert!(read_all(&mut far) == sent, "an upload arrives whole");
    // The other direction continues after the end of the first.
    far.write_all(b"got it").unwrap();
    drop(far);
    assert_eq!(sending.join().unwrap(), b"got it");
    assert_eq!(split.counter("c", "streams_connected"), 2);
    split.world.wait("over", |_| {
        let is_over =
            |side| split.counter(side, "streams_completed") == 2 && split.counter(side, "streams_open") == 0;
        is_over("c") && is_over("h")
    });
    assert_eq!(split.counter("c", "streams_held_bytes"), 0);
    assert_eq!(split.counter("h", "streams_held_bytes"), 0);
}

#[test]
fn destinations_refuse_as_they_would_without_streams() {
    let Some(split) = Split::with(
        "st-b",
        "tcp = \"stream\"\n",
        "[reach]\ndeny = [\"203.0.113.9/32\"]\n",
    ) else {
        return;
    };
    let refused = split.connect(&format!("{SERVER}:7")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
    // No machine has this address.
    let unreachable = split.connect("203.0.113.77:80").unwrap_err();
    assert_eq!(unreachable.kind(), ErrorKind::HostUnreachable, "{unreachable}");
    // Packets to forbidden destinations are dropped, and streams to them time out likewise.
    split
        .world
        .ip(&split.world.namespace("s"), "addr add 203.0.113.9/32 dev lan");
    let forbidden: SocketAddr = "203.0.113.9:9000".parse().unwrap();
    let listener = split.server.run(move || TcpListener::bind(forbidden)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let soon = Duration::from_secs(2);
    let silent = split
        .client
        .run(move || TcpStream::connect_timeout(&forbidden, soon));
    assert_eq!(silent.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(split.counter("h", "streams_forbidden") >= 1);
    // The hub's own address is not reachable by streams, nor by packets.
    let hub: SocketAddr = "100.96.0.1:22".parse().unwrap();
    let own = split.client.run(move || TcpStream::connect_timeout(&hub, soon));
    assert_eq!(own.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(split.counter("c", "streams_connected"), 0);
}

#[test]
fn ipv6_connections_are_streams_too() {
    let Some(split) = Split::new("st-k") else { return };
    for (side, last) in [("h", 1), ("s", 2)] {
        let address = format!("addr add 2001:db8:50::{last}/64 dev lan nodad");
        split.world.ip(&split.world.namespace(side), &address);
    }
    let to: SocketAddr = "[2001:db8:50::2]:9000".parse().unwrap();
    let listener = split.server.run(move || TcpListener::bind(to)).unwrap();
    let mut near = split.connect(&to.to_string()).unwrap();
    let (mut far, from) = listener.accept().unwrap();
    assert_eq!(from.ip().to_string(), "2001:db8:50::1", "as the hub");
    let sent = vec![7; 2_000_000];
    let copy = sent.clone();
    let answering = std::thread::spawn(move || {
        let received = read_all(&mut far);
        far.write_all(&received).unwrap();
    });
    near.write_all(&copy).unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    assert!(read_all(&mut near) == sent, "both directions arrive whole");
    answering.join().unwrap();
    assert_eq!(split.counter("c", "streams_connected"), 1);
    drop(listener);
    let refused = split.connect(&to.to_string()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
    let unreachable = split.connect("[2001:db8:50::77]:80").unwrap_err();
    assert_eq!(unreachable.kind(), ErrorKind::HostUnreachable, "{unreachable}");
}

#[test]
fn a_reset_passes_with_bytes_in_flight() {
    let Some(split) = Split::new("st-c") else { return };
    for (port, is_near) in [(9002, true), (9003, false)] {
        let (near, far) = split.pair(port);
        let (mut one, mut other) = if is_near { (near, far) } else { (far, near) };
        one.write_all(&[1; 100_000]).unwrap();
        socket2::SockRef::from(&one)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(one);
        let mut sink = Vec::new();
        let reset = other.read_to_end(&mut sink).unwrap_err();
        assert_eq!(reset.kind(), ErrorKind::ConnectionReset, "{reset}");
        other.write_all(&[1]).unwrap_err();
    }
    split.world.wait("forgotten", |_| {
        split.counter("c", "streams_open") == 0 && split.counter("h", "streams_open") == 0
    });
}

#[test]
fn a_program_that_only_reads_is_reset_when_its_client_ends() {
    let Some(split) = Split::new("st-n") else { return };
    let (mut near, mut far) = split.pair(9008);
    far.write_all(b"first").unwrap();
    near.read_exact(&mut [0; 5]).unwrap();
    assert_eq!(split.counter("c", "streams_connected"), 1);
    good(split.world.hawser("c", &["down"]));
    let error = near.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

#[test]
fn revocation_ends_streams() {
    let Some(split) = Split::new("st-d") else { return };
    assert_ends_streams(&split, &["hub", "revoke", "alice"]);
}

#[test]
fn a_key_that_expires_ends_streams() {
    let Some(split) = Split::new("st-k") else { return };
    assert_ends_streams(&split, &["hub", "limit", "alice", "--expires", "2s"]);
}

/// Asserts that the command ends a stream at both ends.
fn assert_ends_streams(split: &Split, command: &[&str]) {
    let (mut near, mut far) = split.pair(9004);
    near.write_all(b"before").unwrap();
    let mut buffer = [0; 6];
    far.read_exact(&mut buffer).unwrap();
    good(split.world.hawser("h", command));
    assert_eq!(
        far.read(&mut buffer).unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    let near_end = near.read(&mut buffer).unwrap_err();
    assert_eq!(near_end.kind(), ErrorKind::ConnectionReset, "{near_end}");
}

#[test]
fn a_network_that_dies_ends_no_stream() {
    let Some(split) = Split::new("st-e") else { return };
    let transfer = Transfer::start(&split.server, &split.client);
    split.world.wait("going on", |_| transfer.received() > 4 << 20);
    split.world.ip(&split.world.namespace("c"), "link set fiber down");
    split
        .world
        .wait("still going on", |_| transfer.received() > 16 << 20);
    // Streams need no rules in the kernel.
    let mut flush = split.world.inside("c", "nft");
    flush.args(["flush", "ruleset"]);
    good(flush);
    split.world.ip(&split.world.namespace("c"), "link set fiber up");
    transfer.finish();
    assert_eq!(split.counter("c", "streams_connected"), 1);
    assert_eq!(split.counter("c", "streams_reset"), 0);
}

#[test]
fn a_firewall_before_the_listener_costs_a_second_and_no_connection() {
    let Some(split) = Split::new("st-h") else { return };
    let mut rules = split.world.inside("c", "nft");
    rules.arg(
        "add chain inet wall closed { type filter hook input priority 0; }; \
         add rule inet wall closed iifname hawser0 ct state new drop",
    );
    good(rules);
    let listener = split.listen(9006);
    let accepting = std::thread::spawn(move || {
        // The first connection is the hub's, which is abandoned; the second is the program's own.
        let mut first = listener.accept().unwrap().0;
        first.set_read_timeout(Some(TIMEOUT)).unwrap();
        assert_eq!(
            first.read(&mut [0; 8]).unwrap_err().kind(),
            ErrorKind::ConnectionReset
        );
        read_all(&mut listener.accept().unwrap().0)
    });
    let mut near = split.connect(&format!("{SERVER}:9006")).unwrap();
    near.write_all(b"hello").unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    assert_eq!(accepting.join().unwrap(), b"hello");
    assert_eq!(split.counter("c", "streams_connected"), 0);
    let explained = good(split.world.hawser("c", &["explain", "9006"])).stdout;
    let explained = String::from_utf8(explained).unwrap();
    assert!(explained.contains("firewall"), "{explained}");
}

impl Split {
    /// Opens a connection, sends bytes through it, and returns the output of `explain` about it.
    fn explained(&self, port: u16) -> String {
        let (mut near, mut far) = self.pair(port);
        near.write_all(b"hello").unwrap();
        let mut buffer = [0; 5];
        far.read_exact(&mut buffer).unwrap();
        let of_port = format!("{SERVER}:{port}");
        String::from_utf8(good(self.world.hawser("c", &["explain", &of_port])).stdout).unwrap()
    }

    fn reload(&self, client: &str) -> String {
        self.world.configure("c", client);
        let reload = good(self.world.hawser("c", &["reload"]));
        String::from_utf8([reload.stdout, reload.stderr].concat()).unwrap()
    }
}

#[test]
fn rules_and_interactive_ports_choose_the_form() {
    let rules = "tcp = \"stream\"\n[[rule]]\nport = 9007\ntcp = \"end-to-end\"\n\
                 [[rule]]\nport = 23\ntcp = \"stream\"\n";
    let Some(split) = Split::with("st-i", rules, "") else {
        return;
    };
    let mut streams = 0;
    for (port, is_stream, reason) in [
        (9008, true, "tcp of client.toml is"),
        (9007, false, "a rule has tcp = \"end-to-end\""),
        (22, false, "interactive service"),
        (23, true, "a rule has tcp = \"stream\""),
    ] {
        let explained = split.explained(port);
        assert!(explained.contains(reason), "{port}: {explained}");
        assert_eq!(explained.contains("a stream:"), is_stream, "{explained}");
        streams += u64::from(is_stream);
        assert_eq!(split.counter("c", "streams_connected"), streams, "{port}");
    }
    // A changed file applies to new connections immediately.
    let said = split.reload("tcp = \"end-to-end\"\n[[rule]]\nport = 22\ntcp = \"stream\"\n");
    assert!(!said.contains("restart"), "{said}");
    let whole = split.explained(9009);
    assert!(whole.contains("no rule has tcp = \"stream\" for it"), "{whole}");
    assert!(split.explained(22).contains("a stream:"));
    assert_eq!(split.counter("c", "streams_connected"), 3);
}

#[test]
fn connections_beyond_the_bounds_of_the_hub_go_as_packets() {
    let bounds = "[streams]\nmost_per_client = 3\nconnects_per_second = 1\n";
    let Some(split) = Split::with("st-j", "tcp = \"stream\"\n", bounds) else {
        return;
    };
    // The limit is three concurrent connections, and bursts of five requests.
    let mut open: Vec<_> = (0..5).map(|at| split.pair(9010 + at)).collect();
    assert_eq!(split.counter("h", "streams_connected"), 3);
    assert_eq!(split.counter("h", "streams_too_many"), 2);
    let (mut near, mut far) = open.pop().unwrap();
    near.write_all(b"hello").unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut far), b"hello");
    let explained = good(split.world.hawser("c", &["explain", &format!("{SERVER}:9014")])).stdout;
    let explained = String::from_utf8(explained).unwrap();
    assert!(
        explained.contains("has reached its limit of streams"),
        "{explained}"
    );
    // The limit is one more per second, and these requests are faster.
    for port in 9020..9220 {
        open.push(split.pair(port));
        if split.counter("h", "streams_too_fast") > 0 {
            break;
        }
    }
    assert!(split.counter("h", "streams_too_fast") > 0);
    let (mut near, mut far) = open.pop().unwrap();
    far.write_all(b"hello").unwrap();
    drop(far);
    assert_eq!(read_all(&mut near), b"hello");
}

#[test]
fn without_streams_at_either_end_connections_go_as_packets() {
    let cases = [
        ("st-f", "tcp = \"end-to-end\"\n", ""),
        ("st-g", "", "[streams]\nmost_per_client = 0\n"),
    ];
    for (name, client, hub) in cases {
        let Some(split) = Split::with(name, client, hub) else {
            return;
        };
        let (mut near, mut far) = split.pair(9005);
        near.write_all(b"hello").unwrap();
        near.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&mut far), b"hello");
        drop(far);
        assert_eq!(read_all(&mut near), b"");
        assert_eq!(split.counter("c", "streams_connected"), 0);
        assert_eq!(split.counter("h", "streams_connected"), 0);
    }
}

/// Exchanges data in both directions.
fn exchange(near: &mut TcpStream, far: &mut TcpStream) {
    let mut buffer = [0; 5];
    near.write_all(b"there").unwrap();
    far.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"there");
    far.write_all(b"again").unwrap();
    near.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"again");
}

#[test]
fn streams_go_on_over_restarts_of_the_hub() {
    let keeps = ("when_stopped = \"keep\"\n", "");
    let Some(mut split) = Split::configured("st-l", "tcp = \"stream\"\n", keeps) else {
        return;
    };
    let (mut idle, mut idle_far) = split.pair(9040);
    exchange(&mut idle, &mut idle_far);
    // One half has ended, and the other is not read for some time.
    let (mut half, mut half_far) = split.pair(9041);
    half.write_all(&[7; 100]).unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut half_far), [7; 100]);
    let slow = std::thread::spawn(move || half_far.write_all(&[8; 24 << 20]).unwrap());
    let (mut abandoned, abandoned_far) = split.pair(9042);
    let transfer = Transfer::start(&split.server, &split.client);
    for _ in 0..3 {
        let received = transfer.received();
        split
            .world
            .wait("data", |_| transfer.received() > received + (4 << 20));
        split.restart_hub();
    }
    eprintln!("the longest pause: {:?}", transfer.take_longest_gap());
    transfer.finish();
    assert_eq!(split.counter("c", "streams_connected"), 4, "no other connection");
    assert_eq!(split.counter("c", "streams_reset"), 0);
    exchange(&mut idle, &mut idle_far);
    let all = read_all(&mut half);
    assert!(all.len() == 24 << 20 && all.iter().all(|byte| *byte == 8));
    slow.join().unwrap();
    // A reset is also delivered afterwards, and the end of a program ends both directions.
    socket2::SockRef::from(&abandoned_far)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(abandoned_far);
    let reset = abandoned.read(&mut [0; 1]).unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset, "{reset}");
    drop(idle);
    assert_eq!(read_all(&mut idle_far), b"");
    drop(idle_far);
    split.world.wait("over", |_| {
        split.counter("c", "streams_open") == 0 && split.counter("h", "streams_open") == 0
    });
    assert_eq!(split.counter("h", "streams_held_bytes"), 0);
}

#[test]
fn streams_wait_for_a_client_that_is_away() {
    let Some(split) = Split::new("st-m") else { return };
    let (mut near, mut far) = split.pair(9050);
    exchange(&mut near, &mut far);
    let set_links = |state: &str| {
        for link in ["fiber", "lte"] {
            let change = format!("link set {link} {state}");
            split.world.ip(&split.world.namespace("h"), &change);
        }
    };
    set_links("down");
    far.write_all(b"meanwhile").unwrap();
    near.write_all(b"waiting").unwrap();
    std::thread::sleep(Duration::from_secs(4));
    set_links("up");
    let (mut heard, mut said) = ([0; 9], [0; 7]);
    near.read_exact(&mut heard).unwrap();
    far.read_exact(&mut said).unwrap();
    assert_eq!((&heard, &said), (b"meanwhile", b"waiting"));
    exchange(&mut near, &mut far);
    assert_eq!(split.counter("c", "streams_reset"), 0);
}
