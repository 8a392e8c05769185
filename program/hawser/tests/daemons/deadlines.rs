//! A deadline in a rule of the client applies at both ends of the tunnel until the rule is removed.

use std::net::UdpSocket;
use std::time::Duration;

use serde_json::Value;

use crate::world::{World, active, good};

const PORT: u16 = 7_779;
/// Timeout of an answer; a packet takes some 30 ms (measured).
const WAIT: Duration = Duration::from_millis(500);
const RULE: &str = "[[rule]]\nport = 7779\ndeadline = \"150ms\"\n";

/// Returns the deadline of the flow at `side` whose description has this text, ms.
fn deadline(world: &World, side: &str, text: &str) -> Value {
    let status = world.status(side);
    let flows = status["sessions"][0]["flows"].as_array();
    let mut flows = flows.into_iter().flatten();
    let flow = flows.find(|flow| flow["flow"].as_str().is_some_and(|name| name.contains(text)));
    flow.map_or(Value::Null, |flow| flow["deadline_ms"].clone())
}

fn deadlines(world: &World) -> [Value; 2] {
    [
        deadline(world, "c", &format!("203.0.113.2:{PORT}")),
        deadline(world, "h", &format!("203.0.113.2:{PORT} -> ")),
    ]
}

#[test]
fn a_rule_s_deadline_holds_at_both_ends_until_the_rule_is_taken_out() {
    let Some(world) = World::new("dl") else { return };
    let server = world.add_server();
    let receiver = server.run(|| UdpSocket::bind(("203.0.113.2", PORT))).unwrap();
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let file = world.place("c").join("client.toml");
    std::fs::create_dir_all(world.place("c")).unwrap();
    std::fs::write(&file, RULE).unwrap();
    let _client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("on both networks", |world| active(world) == ["fiber", "lte"]);
    let socket = world.open("c").run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
    socket.connect(("203.0.113.2", PORT)).unwrap();
    for end in [&receiver, &socket] {
        end.set_read_timeout(Some(WAIT)).unwrap();
    }
    // Each exchange is repeated.
    let exchange = || {
        socket.send(&[7; 200]).unwrap();
        let from = receiver.recv_from(&mut [0; 300]).map(|(_, from)| from);
        let answered = from.and_then(|from| receiver.send_to(&[7; 200], from));
        answered.and_then(|_| socket.recv(&mut [0; 300])).is_ok()
    };
    world.wait("the deadline is known", |world| {
        exchange() && deadlines(world) == [150, 150]
    });
    std::fs::write(&file, "").unwrap();
    good(world.hawser("c", &["reload"]));
    world.wait("it is taken back", |world| {
        exchange() && deadlines(world) == [Value::Null, Value::Null]
    });
    good(world.hawser("c", &["down"]));
}
