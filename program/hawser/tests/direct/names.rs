//! Name resolution per network, as seen by programs: each network's resolver has different names,
//! and rules match domains.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use hawser_linux::netns::Namespace;
use socket2::{Domain, Socket, Type};

use crate::choice;
use crate::world::{SERVER, World, read_peer};

const HAWSER: &str = "100.64.0.2";

/// Starts a resolver that answers the same address for every name below `example.org`, none for
/// `nothing.example`, and another one over TCP.
pub(crate) fn serve_names(namespace: &Namespace, address: Ipv4Addr) {
    let (datagrams, streams) = namespace
        .run(|| {
            Ok((
                UdpSocket::bind(("192.168.0.1", 53))?,
                TcpListener::bind(("192.168.0.1", 53))?,
            ))
        })
        .expect("a resolver");
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = datagrams.recv_from(&mut buffer) {
            // The first answer matches no query and must be ignored.
            let mut wrong = answer(&buffer[..length], Ipv4Addr::new(6, 6, 6, 6));
            wrong[1] ^= 1;
            let _ = datagrams.send_to(&wrong, from);
            let _ = datagrams.send_to(b"no message", from);
            let _ = datagrams.send_to(&answer(&buffer[..length], address), from);
        }
    });
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = streams.accept() {
            let mut length = [0; 2];
            while stream.read_exact(&mut length).is_ok() {
                let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
                stream.read_exact(&mut query).expect("a query");
                let answer = answer(&query, address);
                let length = u16::try_from(answer.len()).expect("short").to_be_bytes();
                let _ = stream.write_all(&[&length, answer.as_slice()].concat());
            }
        }
    });
}

/// Returns an answer to the question with this address.
fn answer(query: &[u8], address: Ipv4Addr) -> Vec<u8> {
    let mut bytes = query.to_vec();
    bytes[2] |= 0x80;
    if query.windows(8).any(|part| part == b"\x07nothing") {
        bytes[3] = 3;
        return bytes;
    }
    bytes[7] = 1;
    bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 90, 0, 4]);
    bytes.extend(address.octets());
    bytes
}

fn question(name: &str) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).expect("short"));
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

/// Queries Hawser's resolver as a program with this mark. Returns the response code and the address
/// at the end of the answer.
pub(crate) fn look_up(world: &World, name: &str, mark: u32) -> (u8, Option<IpAddr>) {
    let query = question(name);
    let reply = world
        .client
        .run(|| {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
            socket.set_mark(mark)?;
            socket.set_read_timeout(Some(Duration::from_secs(6)))?;
            let to: SocketAddr = format!("{HAWSER}:53").parse().expect("an address");
            let socket = UdpSocket::from(socket);
            socket.connect(to)?;
            socket.send(&query)?;
            let mut buffer = vec![0; 512];
            let length = socket.recv(&mut buffer)?;
            buffer.truncate(length);
            Ok(buffer)
        })
        .expect("an answer");
    read(&reply)
}

fn read(reply: &[u8]) -> (u8, Option<IpAddr>) {
    assert_eq!(reply[..2], [0x12, 0x34]);
    let address = reply
        .last_chunk::<4>()
        .filter(|_| reply[7] > 0)
        .map(|four| IpAddr::from(*four));
    (reply[3] & 15, address)
}

fn world(config: &str) -> Option<World> {
    let world = World::new()?;
    world.write_config(&format!(
        "dns = \"networks\"\n{config}\n[networks.net1]\ndns = [\"192.168.0.1\"]\n[networks.net2]\ndns = [\"192.168.0.1\"]\n"
    ));
    // The same resolver address in both networks, and different resolvers.
    serve_names(&world.gateways[0], Ipv4Addr::new(203, 0, 113, 2));
    serve_names(&world.gateways[1], Ipv4Addr::new(192, 168, 0, 5));
    Some(world)
}

#[test]
fn each_program_hears_what_its_network_says() {
    let Some(world) = world("") else { return };
    let before = world.system();
    let _daemon = world.up();
    let (first, second) = (
        (0, Some(SERVER.parse().expect("an address"))),
        (0, Some("192.168.0.5".parse().expect("an address"))),
    );
    assert_eq!(look_up(&world, "www.example.org", choice(&world, "net1")), first);
    assert_eq!(look_up(&world, "www.example.org", choice(&world, "net2")), second);
    assert_eq!(
        look_up(&world, "nothing.example", choice(&world, "net2")),
        (3, None)
    );
    let shown = world.ask(&["explain", "www.example.org"]);
    let mut networks: Vec<_> = shown["names"]
        .as_array()
        .expect("names")
        .iter()
        .map(|name| name["network"].as_str().unwrap_or("?").to_owned())
        .collect();
    networks.sort_unstable();
    assert_eq!(networks, ["net1", "net2"], "{shown}");
    world.down();
    assert_eq!(world.system(), before);
}

#[test]
fn a_rule_goes_by_domain_from_the_first_connection_on() {
    let rule = "[[rule]]\ndomain = [\"*.example.org\"]\nnetwork = \"net2\"\n[[rule]]\ndomain = \"example.net\"\nnetwork = \"net1\"";
    let Some(world) = world(rule) else { return };
    let _daemon = world.up();
    assert!(world.ways(4).contains(&1), "no name, no rule");
    assert_eq!(
        look_up(&world, "example.net", 0).1,
        Some(SERVER.parse().expect("an address"))
    );
    assert_eq!(world.ways(6), [1; 6]);
    let shown = world.ask(&["explain", "(example.net)"]);
    let why: Vec<_> = shown["flows"]
        .as_array()
        .expect("flows")
        .iter()
        .filter(|flow| flow["why"] == "the rule for domain example.net")
        .collect();
    assert_eq!(why.len(), 6, "{shown}");
    assert!(why.iter().all(|flow| flow["network"] == "net1"), "{shown}");
    let shown = world.ask(&["explain", "www.example.org"]);
    assert_eq!(shown["names"][0]["network"], "net2");
    assert_eq!(shown["names"][0]["why"], "the rule for domain *.example.org");
    // Learned addresses survive a change of the rules.
    world.write_config(
        "dns = \"networks\"\n[[rule]]\nport = 1\nnetwork = \"net1\"\n[[rule]]\ndomain = \"example.net\"\nnetwork = \"net2\"\n",
    );
    assert!(world.run(&["reload"]).status.success());
    assert_eq!(world.ways(6), [2; 6]);
}

#[test]
fn a_resolver_that_is_silent_is_passed_over_and_streams_work_too() {
    let Some(world) = world("") else { return };
    let _daemon = world.up();
    for gateway in &world.gateways[..1] {
        crate::world::nft(
            gateway,
            "table inet dead {\n chain in {\n type filter hook input priority -400; udp dport 53 drop\n }\n}",
        );
    }
    // There is an answer, whichever resolver is asked first.
    assert_eq!(look_up(&world, "www.example.org", 0).0, 0);
    let mut stream = world
        .client
        .run(|| TcpStream::connect((HAWSER, 53)))
        .expect("a connection");
    let query = question("www.example.org");
    for _ in 0..2 {
        let length = u16::try_from(query.len()).expect("short").to_be_bytes();
        stream
            .write_all(&[&length, query.as_slice()].concat())
            .expect("sent");
        let mut length = [0; 2];
        stream.read_exact(&mut length).expect("an answer");
        let mut reply = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut reply).expect("an answer");
        assert_eq!(read(&reply).0, 0);
    }
    let mut broken = question("www.example.org");
    broken[5] = 0;
    broken.truncate(12);
    let reply = world
        .client
        .run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.set_read_timeout(Some(Duration::from_secs(5)))?;
            socket.send_to(b"no message", (HAWSER, 53))?;
            socket.send_to(&broken, (HAWSER, 53))?;
            let mut buffer = vec![0; 512];
            let length = socket.recv(&mut buffer)?;
            Ok(buffer[..length].to_vec())
        })
        .expect("an answer");
    assert_eq!(read(&reply), (1, None), "no question");
}

#[test]
fn a_private_address_is_reached_where_it_was_named() {
    let Some(world) = world("") else { return };
    // A host beyond the subnet of the second network, which only that network can reach.
    crate::world::ip(&world.gateways[1], "addr add 10.77.0.5/32 dev lo");
    serve_names_again(&world);
    let _daemon = world.up();
    let name = "printer.corp.example";
    let mark = choice(&world, "net2");
    assert_eq!(
        look_up(&world, name, mark).1,
        Some("10.77.0.5".parse().expect("an address"))
    );
    for _ in 0..4 {
        let mut stream = crate::world::connect(&world.client, "10.77.0.5", None).expect("a connection");
        assert_eq!(read_peer(&mut stream).expect("an answer"), "192.168.0.2");
    }
    let shown = world.ask(&["explain", "10.77.0.5"]);
    assert_eq!(
        shown["flows"][0]["why"],
        "this network's resolver gave the private address"
    );
}

/// Starts another resolver in the second network, for the host that only that network can reach.
fn serve_names_again(world: &World) {
    let resolver = "192.168.0.9";
    crate::world::ip(&world.gateways[1], &format!("addr add {resolver}/24 dev in"));
    let socket = world.gateways[1]
        .run(|| UdpSocket::bind((resolver, 53)))
        .expect("a resolver");
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&answer(&buffer[..length], Ipv4Addr::new(10, 77, 0, 5)), from);
        }
    });
    world.write_config(&format!(
        "dns = \"networks\"\n[networks.net2]\ndns = [\"{resolver}\"]\n"
    ));
}

#[test]
fn a_domain_without_its_resolver_is_refused_before_anything_is_touched() {
    let Some(world) = World::new() else { return };
    world.write_config("[[rule]]\ndomain = \"example.org\"\nnetwork = \"net1\"\n");
    let dir = world.dir.path().to_str().expect("a path");
    let output = world.run(&["up", "--direct", "--dir", dir]);
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("write dns = \"networks\""), "{said}");
}
