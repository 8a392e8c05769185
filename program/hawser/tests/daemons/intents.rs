//! Intents that a program sets by socket option take effect at both ends of the tunnel, and answers
//! return over the same network.

use std::net::UdpSocket;
use std::time::Duration;

use hawser_linux::bpf::{INTENT, NETWORK, choose};

use crate::world::{World, active, good};

/// Port of the echo server.
const PORT: u16 = 7_777;
/// Error number of Linux.
const ENODEV: i32 = 19;

#[test]
fn what_a_program_says_holds_at_both_ends_of_the_tunnel() {
    let Some(world) = World::new("n") else { return };
    let server = world
        .add_server()
        .run(|| UdpSocket::bind(("203.0.113.2", PORT)))
        .unwrap();
    server.set_read_timeout(Some(hawser_testing::GIVE_UP)).unwrap();
    let answering = std::thread::spawn(move || {
        let mut datagram = [0; 64];
        while let Ok((length, from)) = server.recv_from(&mut datagram) {
            if datagram.starts_with(b"end") {
                break;
            }
            // The answer has no code point, since the server sets none.
            server.send_to(&datagram[..length], from).unwrap();
        }
    });
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let _client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("on both networks", |world| active(world) == ["fiber", "lte"]);
    if world.status("c")["socket_option"] != true {
        hawser_testing::skip("no right to load eBPF programs");
        return;
    }
    let socket = |intent: &str| {
        world
            .open("c")
            .run(|| {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                choose(&socket, INTENT, intent)?;
                socket.connect(("203.0.113.2", PORT))?;
                socket.set_read_timeout(Some(Duration::from_secs(5)))?;
                Ok(socket)
            })
            .unwrap()
    };
    let expected = [
        ("", "realtime", "UDP"),
        ("bulk", "bulk", "marked as low priority (DSCP)"),
        ("cheap", "bulk", "marked as low priority (DSCP)"),
        ("interactive", "interactive", "marked as low-latency data (DSCP)"),
        ("realtime", "realtime", "marked as telephony (DSCP)"),
    ];
    for (intent, class, why) in expected {
        let socket = socket(intent);
        let port = socket.local_addr().unwrap().port();
        for number in 0..5_u8 {
            socket.send(&[number; 32]).unwrap();
            assert_eq!(socket.recv(&mut [0; 64]).expect("an answer"), 32, "{intent}");
        }
        // The client decides about the forward direction, the hub about the reverse direction.
        for (place, flow) in [("c", format!(":{port} -> ")), ("h", format!(":{PORT} -> "))] {
            let status = world.status(place);
            let flows = status["sessions"][0]["flows"].as_array().unwrap();
            let found = flows.iter().find(|found| {
                let text = found["flow"].as_str().unwrap();
                text.contains(&flow) && text.contains(&port.to_string())
            });
            let found = found.unwrap_or_else(|| panic!("{intent} at {place}: {flows:?}"));
            assert_eq!(
                (&found["class"], &found["why"]),
                (&class.into(), &why.into()),
                "{intent} at {place}"
            );
        }
    }
    // A program cannot choose a network when a hub combines them.
    let refused = world.open("c").run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        Ok(choose(&socket, NETWORK, "fiber").map_err(|error| error.raw_os_error()))
    });
    assert_eq!(refused.unwrap(), Err(Some(ENODEV)));
    socket("").send(b"end").unwrap();
    answering.join().unwrap();
    good(world.hawser("c", &["down"]));
}
