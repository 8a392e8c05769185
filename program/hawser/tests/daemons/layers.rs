//! Layered streams through real daemons: the network of each layer's packets is counted at the far
//! end of the client's cables.

use std::net::UdpSocket;
use std::time::Duration;

use crate::world::{World, active, good};

/// Destination port of the stream, and its marking.
const PORT: u16 = 5004;
/// Code point AF41. Units: the whole byte of the IP header.
const MARKED: u32 = 34 << 2;
/// Payload sizes that distinguish the layers on the cables despite the encryption. Units: bytes.
const BASE: usize = 700;
const UPPER: usize = 500;
/// Difference between an inner payload and the length in the outer UDP header: inner IP and UDP,
/// framing, outer UDP. Units: bytes.
const AROUND: usize = 28 + 40 + 8;
/// Loss of `fiber`. Units: percent.
const LOST: usize = 20;

/// Two networks, of which the first loses a fifth and the second nothing, with counters of each
/// layer's packets on each network.
struct Cables<'a>(&'a World);

impl<'a> Cables<'a> {
    fn new(world: &'a World) -> Self {
        let counter = |cable: &str, payload: usize| {
            let len = payload + AROUND;
            format!("iifname {cable} udp dport 4430 udp length {len} counter name {cable}-{payload}\n")
        };
        let all = [("fiber", BASE), ("fiber", UPPER), ("lte", BASE), ("lte", UPPER)];
        let counters: String = all
            .map(|(cable, payload)| format!("counter {cable}-{payload} {{}}\n"))
            .concat();
        let rules: String = all.map(|(cable, payload)| counter(cable, payload)).concat();
        let every = 100 / LOST;
        let mut nft = world.inside("h", "nft");
        nft.arg(format!(
            "table inet cables {{\n{counters}chain in {{\ntype filter hook prerouting priority -400;\n{rules}}}\n\
             chain losing {{\ntype filter hook prerouting priority -399;\n\
             iifname fiber udp dport 4430 numgen inc mod {every} 0 drop\n}}\n}}"
        ));
        good(nft);
        // Packets that leave in one batch must be counted separately.
        for cable in ["fiber", "lte"] {
            let mut ethtool = world.inside("c", "ethtool");
            ethtool.args(["-K", cable, "tx-udp-segmentation", "off"]);
            good(ethtool);
        }
        Self(world)
    }

    /// Ends the loss of `fiber`, to avoid retransmissions: a retransmission uses the path on which
    /// it arrives first.
    fn lose_no_more(&self) {
        let mut nft = self.0.inside("h", "nft");
        nft.args(["flush", "chain", "inet", "cables", "losing"]);
        good(nft);
    }

    /// Returns the packets with this payload since the last call: over `fiber`, over `lte`.
    fn carried(&self, payload: usize) -> (u64, u64) {
        let packets = |cable: &str| {
            let mut nft = self.0.inside("h", "nft");
            nft.args([
                "-j",
                "reset",
                "counter",
                "inet",
                "cables",
                &format!("{cable}-{payload}"),
            ]);
            let listed: serde_json::Value = serde_json::from_slice(&good(nft).stdout).unwrap();
            let all = listed["nftables"].as_array().unwrap().clone();
            let counter = all.iter().find_map(|found| found["counter"]["packets"].as_u64());
            counter.unwrap()
        };
        (packets("fiber"), packets("lte"))
    }
}

/// Stream of two layers: port and code point identify the base layer, the element with id 3 of the
/// RTP header extension identifies the upper layer.
struct Stream(UdpSocket);

impl Stream {
    fn new(world: &World) -> Self {
        let socket = world.open("c").run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
        socket2::SockRef::from(&socket).set_tos_v4(MARKED).unwrap();
        socket.connect(("203.0.113.2", PORT)).unwrap();
        Self(socket)
    }

    /// Returns the client's status of the flow.
    fn flow(&self, world: &World) -> serde_json::Value {
        let port = format!(":{} -> ", self.0.local_addr().unwrap().port());
        let status = world.status("c");
        let flows = status["sessions"][0]["flows"].as_array().unwrap();
        let of_port = |flow: &&serde_json::Value| flow["flow"].as_str().unwrap().contains(&port);
        let flow = flows.iter().find(of_port);
        flow.unwrap_or_else(|| panic!("no flow from port {port}: {flows:?}"))
            .clone()
    }

    /// Sends 200 packets of each layer within 2 s, far below the capacity of the cables.
    fn send(&self) {
        for number in 0..200_u16 {
            for (payload, layer) in [(BASE, 0), (UPPER, 1)] {
                let mut datagram = vec![0x90, 96];
                datagram.extend(number.to_be_bytes());
                datagram.extend([0, 0, 0, 9, 0, 0, 0, 5, 0xbe, 0xde, 0, 1, 0x30, layer, 0, 0]);
                datagram.resize(payload, 0);
                self.0.send(&datagram).unwrap();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn packets_of_a_layer_go_the_way_that_the_configuration_says() {
    let Some(world) = World::new("l") else { return };
    // A listener prevents ICMP errors.
    let _listening = world
        .add_server()
        .run(|| UdpSocket::bind(("203.0.113.2", PORT)))
        .unwrap();
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("on both networks", |world| active(world) == ["fiber", "lte"]);
    let cables = Cables::new(&world);

    // The rule configures no layers.
    let plain = Stream::new(&world);
    plain.send();
    assert_eq!(plain.flow(&world)["class"], "realtime");
    cables.carried(BASE);
    cables.carried(UPPER);

    let configure = |scheduler: &str| {
        let text = format!(
            "[schedulers]\nlayered = \"{scheduler}\"\n\
             [[layer]]\nport = {PORT}\nextension = {{ id = 3, value = 1 }}\nlayer = 1\n\
             [[layer]]\nport = {PORT}\ndscp = \"af41\"\nlayer = 0\n"
        );
        world.configure("c", text);
        client.send_signal("-HUP");
        world.wait("configured", |world| {
            world.status("c")["sessions"][0]["schedulers"]["layered"] == scheduler
        });
    };

    configure("layer-priority");
    let stream = Stream::new(&world);
    stream.send();
    let base = cables.carried(BASE);
    assert!(
        base.1 >= 195 && base.0 <= 5,
        "the base goes over the network that loses nothing: {base:?}"
    );
    let ours = stream.flow(&world);
    assert_eq!(ours["class"], "layered");
    assert_eq!(
        (&ours["scheduler"], &ours["why"]),
        (&"layer-priority".into(), &"it has layer marks".into())
    );

    // Another scheduler applies to the same layers immediately: a path for each.
    configure("independent-path");
    cables.lose_no_more();
    cables.carried(UPPER);
    stream.send();
    let (base, upper) = (cables.carried(BASE), cables.carried(UPPER));
    assert!(base.1 >= 195 && base.0 <= 5, "the base: {base:?}");
    assert!(upper.0 >= 195 && upper.1 <= 5, "the other description: {upper:?}");

    // Without rules there are no layers.
    world.configure("c", "");
    good(world.hawser("c", &["reload"]));
    let plain = Stream::new(&world);
    plain.send();
    assert_eq!(plain.flow(&world)["class"], "realtime");
}
