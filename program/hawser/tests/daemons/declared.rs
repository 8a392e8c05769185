//! Declarations of a program for a socket are known at the client's end of the tunnel until the
//! socket is closed.

use std::net::{TcpListener, TcpStream, UdpSocket};

use hawser_linux::bpf::{Rate, declare};
use serde_json::Value;

use crate::world::{World, active, good};

const PORT: u16 = 7_778;
/// Error number of Linux.
const ENOTCONN: i32 = 107;
const ENOPROTOOPT: i32 = 92;

/// Returns the known declaration of the flow from this port; null without one.
fn declared(world: &World, port: u16) -> Value {
    let status = world.status("c");
    let flows = status["sessions"][0]["flows"].as_array().unwrap();
    let from = format!(":{port} -> ");
    let found = flows
        .iter()
        .find(|flow| flow["flow"].as_str().unwrap().contains(&from));
    found.unwrap_or_else(|| panic!("{flows:?}"))["declared_bps"].clone()
}

#[test]
fn a_declared_rate_is_heeded_until_it_is_taken_back_or_its_socket_is_closed() {
    let Some(world) = World::new("r") else { return };
    let server = world.add_server();
    let receiver = server.run(|| UdpSocket::bind(("203.0.113.2", PORT))).unwrap();
    let listener = server.run(|| TcpListener::bind(("203.0.113.2", PORT))).unwrap();
    world.init();
    // An idle stream has no flow in the status.
    world.configure("c", "tcp = \"end-to-end\"\n");
    let _hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let rate = |bits_per_second| Rate {
        bits_per_second,
        burst_bytes: 3_000,
        longest_wait_ms: 150,
    };
    let open = || world.open("c").run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    let said = |socket: &UdpSocket| declare(socket, rate(1_000_000)).map_err(|error| error.raw_os_error());
    assert_eq!(said(&open()), Err(Some(ENOPROTOOPT)), "nobody runs");
    let _client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("on both networks", |world| active(world) == ["fiber", "lte"]);
    if world.status("c")["socket_option"] != true {
        hawser_testing::skip("no right to load eBPF programs");
        return;
    }
    let socket = open();
    assert_eq!(said(&socket), Err(Some(ENOTCONN)));
    socket.connect(("203.0.113.2", PORT)).unwrap();
    let port = socket.local_addr().unwrap().port();
    let send = || assert_eq!(socket.send(&[7; 200]).unwrap(), 200);
    send();
    assert_eq!(declared(&world, port), Value::Null);
    assert_eq!(said(&socket), Ok(()));
    world.wait("declared", |world| declared(world, port) == 1_000_000);
    declare(&socket, rate(2_000_000)).unwrap();
    world.wait("declared anew", |world| declared(world, port) == 2_000_000);
    send();
    declare(&socket, Rate::default()).unwrap();
    world.wait("taken back", |world| declared(world, port) == Value::Null);
    declare(&socket, rate(1_000_000)).unwrap();
    world.wait("declared again", |world| declared(world, port) == 1_000_000);
    drop(socket);
    world.wait("forgotten", |world| declared(world, port) == Value::Null);
    receiver.recv(&mut [0; 300]).expect("what was sent has come");
    // A TCP connection is a flow like any other.
    let stream = world
        .open("c")
        .run(|| TcpStream::connect(("203.0.113.2", PORT)))
        .unwrap();
    let _accepted = listener.accept().unwrap();
    let port = stream.local_addr().unwrap().port();
    declare(&stream, rate(500_000)).unwrap();
    world.wait("declared", |world| declared(world, port) == 500_000);
    drop(stream);
    good(world.hawser("c", &["down"]));
}
