//! Two devices with real daemons that join their bridges over two links, as seen by hosts behind
//! them.
//!
//! The tests need root; without it they are skipped with a message.
#![allow(clippy::unwrap_used, reason = "a test")]

mod air;
#[path = "../daemons/transfer.rs"]
mod transfer;
mod world;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hawser_host::control_socket::{Request, ask};
use hawser_host::run_dir;
use hawser_linux::netns::Namespace;
use transfer::Transfer;
use world::{Daemon, World, good};

#[test]
fn two_boxes_that_trust_each_other_become_one_network() {
    let Some(world) = World::new("a") else { return };
    let before = (world.system("a"), world.system("b"));
    let codes = ["a", "b"].map(|side| world.said(side, &["repeat", "code"]));
    let code = |side: &str| codes[usize::from(side == "b")].clone();
    let (mut ap, mut joining) = (world.start("a"), world.start("b"));
    // The devices do not trust each other yet: each shows the other's code.
    world.wait("heard", |world| {
        let strangers = |side: &str| world.status(side)["strangers"].clone();
        strangers("a") == serde_json::json!([code("b")]) && strangers("b") == serde_json::json!([code("a")])
    });
    assert!(
        world
            .said("b", &["status"])
            .contains(&format!("hawser repeat trust {}", code("a")))
    );
    world.said("b", &["repeat", "trust", &code("a")]);
    world.wait("told to be trusted there", |world| {
        let notice = world.status("b")["notice"].clone();
        notice.as_str().is_some_and(|notice| notice.contains(&code("b")))
    });
    assert!(!world.ping("ha", &["203.0.113.1"]).status.success());
    world.said("a", &["repeat", "trust", &code("b")]);
    world.wait_for_both_links();
    world.wait("through", |world| {
        world.ping("ha", &["203.0.113.1"]).status.success()
    });
    assert!(world.ping("hb", &["fd07::2"]).status.success());

    frames_of_a_vlan_pass(&world);
    multicast_passes_once(&world);
    large_packets_pass(&world);
    addresses_are_leased(&world);

    // Another program takes the interface out of its bridge.
    let mut taken_out = world.inside("b", "ip");
    taken_out.args(["link", "set", "hawserport0", "nomaster"]);
    good(taken_out);
    world.wait("in its bridge again", |world| {
        world.ping("ha", &["203.0.113.1"]).status.success()
    });

    // No state remains, neither after an orderly end nor after a crash.
    joining.signal("-TERM");
    assert_eq!(world.system("b"), before.1);
    ap.signal("-KILL");
    assert_eq!(world.system("a"), before.0);

    // The codes are stored; when one is revoked, the session ends immediately.
    let (_ap, _joining) = (world.start("a"), world.start("b"));
    world.wait("through again", |world| {
        world.ping("ha", &["203.0.113.1"]).status.success()
    });
    world.said("a", &["repeat", "distrust", &code("b")]);
    world.wait("apart", |world| {
        world.status("a")["state"] == "waiting" && world.status("b")["state"] == "waiting"
    });
    assert!(!world.ping("ha", &["203.0.113.1"]).status.success());
}

/// Tagged frames pass unchanged.
fn frames_of_a_vlan_pass(world: &World) {
    if !hawser_testing::require_program(&["python3"]) {
        return;
    }
    let listen = "import socket,sys\n\
        s=socket.socket(socket.AF_PACKET,socket.SOCK_RAW,socket.htons(3)); s.bind(('eth0',0)); s.settimeout(5)\n\
        print('ready',flush=True)\n\
        while True:\n\
        \x20 f=s.recv(2048)\n\
        \x20 if b'in a vlan' in f: print(f[:12].hex(),flush=True); sys.exit(0)\n";
    let mut listener = world.inside("hb", "python3");
    let mut listener = listener
        .args(["-c", listen])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut heard = listener.stdout.take().unwrap();
    heard.read_exact(&mut [0; 6]).unwrap();
    let mut sender = world.inside("ha", "python3");
    sender.args([
        "-c",
        "import socket\n\
         s=socket.socket(socket.AF_PACKET,socket.SOCK_RAW); s.bind(('eth0',0))\n\
         s.send(bytes.fromhex('ffffffffffff020000000001810000070806')+b'in a vlan'+bytes(50))\n",
    ]);
    good(sender);
    assert!(listener.wait().unwrap().success(), "no tagged frame came");
    let mut said = String::new();
    heard.read_to_string(&mut said).unwrap();
    assert_eq!(said.trim(), "ffffffffffff020000000001");
}

/// Each datagram to a group arrives once: no loop, no copy.
fn multicast_passes_once(world: &World) {
    let group = Ipv4Addr::new(239, 7, 7, 7);
    let receiver = world.open("hb").run(|| {
        let socket = UdpSocket::bind((group, 7000))?;
        socket.join_multicast_v4(&group, &Ipv4Addr::new(203, 0, 113, 1))?;
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        Ok(socket)
    });
    let receiver = receiver.unwrap();
    let sender = world
        .open("ha")
        .run(|| UdpSocket::bind((Ipv4Addr::new(203, 0, 113, 2), 0)))
        .unwrap();
    for n in 0..50_u8 {
        sender.send_to(&[n], (group, 7000)).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut seen = Vec::new();
    let mut byte = [0];
    while receiver.recv(&mut byte).is_ok() {
        seen.push(byte[0]);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..50).collect::<Vec<_>>());
}

/// Frames larger than the links' MTU are fragmented, whether or not routers may fragment them.
fn large_packets_pass(world: &World) {
    // A payload of 1,472 bytes with two headers fills an Ethernet frame.
    for cutting in ["dont", "do"] {
        let ping = world.ping("ha", &["-M", cutting, "-s", "1472", "203.0.113.1"]);
        assert!(ping.status.success(), "{ping:?}");
    }
    let by_ipv6 = |_| world.ping("ha", &["-s", "1472", "fd07::1"]).status.success();
    assert!((0..5).any(by_ipv6), "no large packet came through");
}

/// A host behind one device gets its address from a server behind the other.
fn addresses_are_leased(world: &World) {
    let require = hawser_testing::require_program;
    if !hawser_testing::require_dnsmasq() || !require(&["udhcpc"]) {
        return;
    }
    let mut server = world.inside("ha", "dnsmasq");
    hawser_testing::dhcp_server(&mut server, &world.place("leases"));
    server.args([
        "--interface=eth0",
        "--dhcp-range=203.0.113.100,203.0.113.109,255.255.255.0,2m",
    ]);
    let _server = Daemon(server.spawn().unwrap());
    let mut client = world.inside("hb", "udhcpc");
    client.args(["-f", "-q", "-n", "-i", "eth0", "-s", "/bin/true"]);
    let output = good(client);
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("203.0.113.10"), "{said}");
}

#[test]
fn a_download_takes_both_links_and_lives_through_the_death_of_one() {
    let Some(world) = World::new("b") else { return };
    if !hawser_testing::require_program(&["tc"]) {
        return;
    }
    world.shape([20, 10]);
    world.trust();
    let (_ap, _joining) = (world.start("a"), world.start("b"));
    world.wait_for_both_links();
    let (mut from, to) = connect(&world);
    let received = std::thread::spawn(move || drain(to));
    let until = |seconds| Instant::now() + Duration::from_secs(seconds);
    // Slow start, in which a queue may overflow.
    let start = send_until(&mut from, until(2));
    let before = segments(&world);
    let carried_before = world.carried();
    let sent = send_until(&mut from, until(8));
    let carried = world.carried();
    let [fast, slow] = [0, 1].map(|link| (carried[link] - carried_before[link]) as f64);
    println!("{:.1} Mbit/s of links with 20 and 10", sent as f64 * 8.0 / 8e6);
    // A link of half the rate transfers a third of the bytes while both links are busy.
    assert!(fast > slow && slow > 0.2 * (fast + slow), "{fast} {slow}");
    let after = segments(&world);
    let all = after.sent - before.sent;
    let (again, unneeded) = (after.again - before.again, after.unneeded - before.unneeded);
    let said = format!("of {all} segments {again} were sent again, {unneeded} without need");
    println!("{said}");
    // The cost of reordering is unneeded retransmissions. If a queue overflows on a busy machine,
    // the cost is its drops: a packet of up to 45 segments at once.
    assert!(unneeded * 1000 <= all, "{said}");
    assert!(again * 100 <= all, "{said}");
    world.cut("eth1");
    let alone = send_until(&mut from, until(5));
    assert!(
        alone as f64 * 8.0 / 5e6 > 5.0,
        "{alone} bytes in 5 s over 10 Mbit/s alone"
    );
    world.wait("on one link", |world| world.active("b") == ["eth2"]);
    world.heal();
    world.wait_for_both_links();
    drop(from);
    let (bytes, gap) = received.join().unwrap();
    assert!(bytes >= start + sent + alone);
    println!("nothing came for {gap:?}");
}

/// The link on the clients' channel is used while the clients leave airtime, is limited when they
/// do not, and is used fully when it is the only link.
#[test]
fn a_link_that_shares_its_air_is_held_to_what_the_clients_leave() {
    let Some(world) = World::new("e") else { return };
    if !hawser_testing::require_program(&["tc"]) {
        return;
    }
    world.shape([20, 20]);
    world.trust();
    let _ap = world.start("a");
    let _joining = world.start_with("b", &["--clients", "lan", "--shared", "eth2"]);
    world.wait_for_both_links();
    let clients = |world: &World, key: &str| world.status("b")["clients"][key].as_f64();
    let cap = |world: &World| {
        let status = world.status("a");
        let paths = status["sessions"][0]["paths"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let of_link = |link: &str| paths.iter().find(|path| path["name"] == link).cloned();
        assert!(of_link("eth1").is_none_or(|path| path["cap_bps"].is_null()));
        of_link("eth2").and_then(|path| path["cap_bps"].as_f64())
    };
    let is_over = Arc::new(AtomicBool::new(false));
    let sending = std::thread::spawn({
        let (is_over, place) = (Arc::clone(&is_over), world.open("ha"));
        move || send_datagrams(&place, &is_over)
    });
    world.wait("opened", |world| clients(world, "carries_bps") > Some(5e6));
    // The clients' hop is now slower than the other link alone, and the load does not adapt.
    world.shape_one("b", "lan", 12);
    world.wait("held at the joining box", |world| {
        clients(world, "held_bps").is_some_and(|held| held < 3e6)
    });
    world.wait("held at the access point's", |world| {
        cap(world).is_some_and(|cap| cap < 3e6)
    });
    let said = world.said("b", &["status"]);
    let is_said = said.contains("eth2: shares its channel with clients, limited to ")
        || said.contains("the clients need all the airtime");
    assert!(is_said, "{said}");
    let said = world.said("a", &["status"]);
    assert!(said.contains("eth2: limited to "), "{said}");
    world.cut("eth1");
    world.wait("not held alone", |world| {
        world.active("b") == ["eth2"] && cap(world).is_none() && clients(world, "held_bps").is_none()
    });
    world.heal();
    world.wait("held again", |world| cap(world).is_some());
    is_over.store(true, Ordering::Relaxed);
    sending.join().unwrap();
}

/// Measures the time from the slowdown of the clients' hop until the other device sends less: the
/// paper reacts within 200 ms at 70 % of the changes. The queue of 20 ms that triggers the reaction
/// grows within this time.
#[test]
#[ignore = "measures a time, for which the machine has to be idle"]
fn how_soon_the_other_box_sends_less() {
    let Some(world) = World::new("t") else { return };
    world.shape([20, 20]);
    world.trust();
    let _ap = world.start("a");
    let _joining = world.start_with("b", &["--clients", "lan", "--shared", "eth2"]);
    world.wait_for_both_links();
    let socket = run_dir::socket(&world.place("a-run"));
    let cap = || {
        let status = ask(&socket, &Request::Status).unwrap();
        let paths = status["sessions"][0]["paths"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let shared = paths.iter().find(|path| path["name"] == "eth2")?;
        shared["cap_bps"].as_f64()
    };
    let is_over = Arc::new(AtomicBool::new(false));
    let sending = std::thread::spawn({
        let (is_over, place) = (Arc::clone(&is_over), world.open("ha"));
        move || send_datagrams(&place, &is_over)
    });
    let mut took = Vec::new();
    for _ in 0..20 {
        world.shape_one("b", "lan", 40);
        world.wait("opened", |_| cap().is_none_or(|cap| cap > 8e6));
        std::thread::sleep(Duration::from_secs(1));
        let before = cap().unwrap_or(20e6);
        world.shape_one("b", "lan", 12);
        let since = Instant::now();
        while cap().is_none_or(|cap| cap > 0.9 * before) {
            assert!(since.elapsed() < Duration::from_secs(20), "never");
            std::thread::sleep(Duration::from_millis(2));
        }
        took.push(since.elapsed());
    }
    is_over.store(true, Ordering::Relaxed);
    sending.join().unwrap();
    took.sort();
    let within = took.iter().filter(|took| took.as_millis() < 200).count();
    println!(
        "{within} of {} within 200 ms; median {:?}, longest {:?}",
        took.len(),
        took[10],
        took[19]
    );
}

/// Sends 29 Mbit/s of datagrams to the other host, without regard to losses.
fn send_datagrams(from: &Namespace, is_over: &AtomicBool) {
    let socket = from.run(|| UdpSocket::bind("203.0.113.2:0")).unwrap();
    while !is_over.load(Ordering::Relaxed) {
        for _ in 0..6 {
            // No program listens, and the host may report this.
            let _ = socket.send_to(&[0; 1_200], "203.0.113.1:9");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn connect(world: &World) -> (TcpStream, TcpStream) {
    let listener = world
        .open("hb")
        .run(|| TcpListener::bind("203.0.113.1:7000"))
        .unwrap();
    let to: SocketAddr = "203.0.113.1:7000".parse().unwrap();
    let from = world
        .open("ha")
        .run(|| TcpStream::connect_timeout(&to, hawser_testing::GIVE_UP));
    (from.unwrap(), listener.accept().unwrap().0)
}

fn send_until(stream: &mut TcpStream, until: Instant) -> u64 {
    stream.set_write_timeout(Some(hawser_testing::GIVE_UP)).unwrap();
    let mut sent = 0;
    while Instant::now() < until {
        stream.write_all(&[7; 16 << 10]).unwrap();
        sent += 16 << 10;
    }
    sent
}

/// Reads until the end. Returns the number of bytes, and the longest time without any.
fn drain(mut stream: TcpStream) -> (u64, Duration) {
    let (mut bytes, mut gap, mut before) = (0, Duration::ZERO, Instant::now());
    let mut buffer = vec![0; 64 << 10];
    loop {
        match stream.read(&mut buffer).unwrap() {
            0 => return (bytes, gap),
            len => bytes += len as u64,
        }
        gap = gap.max(before.elapsed());
        before = Instant::now();
    }
}

/// Counters of the sender's segments in its kernel.
struct Segments {
    sent: u64,
    /// Retransmitted segments.
    again: u64,
    /// Segments retransmitted although the first copy had arrived, as reported by the receiver (RFC
    /// 2883).
    unneeded: u64,
}

fn segments(world: &World) -> Segments {
    let mut ss = world.inside("ha", "ss");
    ss.args(["-tinH", "dport", "=", ":7000"]);
    let said = String::from_utf8(good(ss).stdout).unwrap();
    let number = |key: &str| -> Option<u64> {
        let value = said.split(key).nth(1)?;
        let value = value.split([' ', '\n']).next()?;
        value.rsplit('/').next()?.parse().ok()
    };
    Segments {
        sent: number("data_segs_out:").unwrap_or_else(|| panic!("{said}")),
        again: number(" retrans:").unwrap_or(0),
        unneeded: number(" dsack_dups:").unwrap_or(0),
    }
}

#[test]
fn a_transfer_lives_through_a_restart_of_either_box() {
    let Some(world) = World::new("c") else { return };
    world.trust();
    let (mut ap, mut joining) = (world.start("a"), world.start("b"));
    world.wait_for_both_links();
    let transfer = Transfer::start(&world.open("ha"), &world.open("hb"));
    world.wait("on the way", |_| transfer.received() > 2 << 20);
    ap.signal("-KILL");
    let _ap = world.start("a");
    world.wait_for_both_links();
    let so_far = transfer.received();
    world.wait("on again", |_| transfer.received() > so_far + (2 << 20));
    joining.signal("-TERM");
    let _joining = world.start("b");
    world.wait_for_both_links();
    assert!(!transfer.is_over(), "the restart came too late");
    transfer.finish();
}

#[test]
fn what_would_make_a_loop_or_cannot_work_is_refused() {
    let Some(world) = World::new("d") else { return };
    let before = world.system("a");
    let refused = |bridge: &str, links: &str| {
        let output = world
            .hawser("a", &["repeat", "ap", "--bridge", bridge, "--links", links])
            .output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            (output.status.code(), said.lines().count()),
            (Some(1), 1),
            "{said}"
        );
        said
    };
    assert!(refused("br0", "eth1,lan").contains("lan is a port of br0"));
    assert!(refused("br0", "eth1,br0").contains("the bridge itself"));
    assert!(refused("br0", "eth1,eth9").contains("no interface eth9"));
    assert!(refused("br9", "eth1,eth2").contains("no bridge br9"));
    assert!(refused("eth2", "eth1").contains("is not a bridge"));
    assert!(refused("br0", "eth1,eth1").contains("twice"));
    let refused = |arguments: &[&str]| {
        let mut all = vec!["repeat", "join", "--bridge", "br0", "--links", "eth1,eth2"];
        all.extend(arguments);
        let output = world.hawser("a", &all).output().unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused(&["--clients", "eth1", "--shared", "eth2"]).contains("eth1 is not a port of br0"));
    assert!(refused(&["--clients", "lan", "--shared", "eth9"]).contains("not one of the links"));
    assert!(refused(&["--shared", "eth1"]).contains("--clients"));
    if !hawser_linux::wireless::cards::Wireless::is_there() {
        assert!(refused(&["--clients", "lan"]).contains("--shared LINK"));
    }
    assert_eq!(world.system("a"), before);
    let wrong = world.hawser("a", &["repeat", "trust", "abcd"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(1));
}
