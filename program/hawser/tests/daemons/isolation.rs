//! Reachability through a hub: public addresses only, unless the hub's configuration permits more.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use hawser_linux::netns::Namespace;
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

use super::world::{World, good, is_up};

/// Port on which every machine listens.
const PORT: u16 = 2222;
const DNS: u16 = 53;
const TIMEOUT: Duration = Duration::from_millis(400);

/// Hub with two clients, and a server with public, private and metadata addresses in a segment of
/// the hub.
struct Segment {
    world: World,
    places: [Namespace; 4],
    _listening: Vec<TcpListener>,
    _daemons: Vec<super::world::Daemon>,
    /// Inner addresses of the clients.
    alice: Inner,
    bob: Inner,
    hub: Inner,
}

struct Inner {
    v4: String,
    v6: String,
}

impl Inner {
    fn of(status: &Value) -> Self {
        let address = |at: usize| {
            status["inner"][at]
                .as_str()
                .unwrap()
                .split('/')
                .next()
                .unwrap()
                .to_owned()
        };
        Self {
            v4: address(0),
            v6: address(1),
        }
    }
}

impl Segment {
    fn new(name: &str) -> Option<Self> {
        let world = World::new(name)?;
        let server = world.add_server();
        let (inside, outside) = (world.namespace("h"), world.namespace("s"));
        for (namespace, last) in [(&inside, 1), (&outside, 2)] {
            world.ip(namespace, &format!("addr add 10.50.0.{last}/24 dev lan"));
            world.ip(namespace, &format!("addr add fd00:50::{last}/64 dev lan nodad"));
            world.ip(
                namespace,
                &format!("addr add 2001:db8:50::{last}/64 dev lan nodad"),
            );
        }
        world.ip(&outside, "link set lo up");
        world.ip(&outside, "addr add 169.254.169.254/32 dev lo");
        world.ip(&inside, "route add 169.254.169.254/32 via 203.0.113.2");
        // A host of the segment has a route to the pool.
        world.ip(&outside, "route add 100.96.0.0/16 via 203.0.113.1");
        let other = world.add_client("d", 12);
        world.init();
        let mut config = std::fs::read_to_string(world.place("h").join("hub.toml")).unwrap();
        config = config.replace("pool6 = ", "# pool6 = ") + "pool6 = \"fd00:96::/64\"\n";
        std::fs::write(world.place("h").join("hub.toml"), config).unwrap();
        world.ip(&outside, "route add fd00:96::/64 via 2001:db8:50::1");
        let mut daemons = vec![world.start("h", &["hub", "run"])];
        let mut inner = Vec::new();
        for (side, name) in [("c", "alice"), ("d", "bob")] {
            // The test checks the hub's filter, so the client's own filter is open.
            world.configure(side, "inbound = \"open\"\n");
            daemons.push(world.start(side, &["up", &world.invite_as(name), "--foreground"]));
            world.wait("up", |world| world.status(side)["state"] == "up");
            inner.push(Inner::of(&world.status(side)));
        }
        let places = [world.open("c"), other, world.open("h"), server];
        let mut listening = Vec::new();
        for (place, port) in places.iter().flat_map(|place| [(place, PORT), (place, DNS)]) {
            listening.push(place.run(|| TcpListener::bind(("::", port))).unwrap());
        }
        let bob = inner.pop().unwrap();
        let segment = Self {
            world,
            places,
            _listening: listening,
            _daemons: daemons,
            alice: inner.pop().unwrap(),
            bob,
            hub: Inner {
                v4: "100.96.0.1".to_owned(),
                v6: "fd00:96::1".to_owned(),
            },
        };
        segment
            .world
            .wait("through", |_| segment.client_reaches("203.0.113.2", PORT));
        Some(segment)
    }

    fn reaches(&self, from: usize, to: &str, port: u16) -> bool {
        let to = SocketAddr::new(to.parse().unwrap(), port);
        self.places[from]
            .run(|| TcpStream::connect_timeout(&to, TIMEOUT))
            .is_ok()
    }

    fn client_reaches(&self, to: &str, port: u16) -> bool {
        self.reaches(0, to, port)
    }

    fn other_client_reaches(&self, to: &Inner) -> [bool; 2] {
        [&to.v4, &to.v6].map(|to| self.reaches(1, to, PORT))
    }

    fn server_reaches(&self, to: &Inner) -> [bool; 2] {
        [&to.v4, &to.v6].map(|to| self.reaches(3, to, PORT))
    }

    /// Adds to the hub's configuration and applies it.
    fn allow(&self, before: &str, after: &str) {
        let file = self.world.place("h").join("hub.toml");
        let config = std::fs::read_to_string(&file).unwrap();
        let config = config.split("\n# more\n").next().unwrap();
        std::fs::write(&file, format!("{config}\n# more\n{before}\n[reach]\n{after}\n")).unwrap();
        let applied = good(self.world.hawser("h", &["reload"]));
        assert_eq!(String::from_utf8_lossy(&applied.stdout), "applied\n");
    }
}

const PUBLIC: [&str; 2] = ["203.0.113.2", "2001:db8:50::2"];
const PRIVATE: [&str; 2] = ["10.50.0.2", "fd00:50::2"];
/// Addresses of the hub: inner, of its segment, private.
const HUB: [&str; 5] = [
    "100.96.0.1",
    "fd00:96::1",
    "203.0.113.1",
    "2001:db8:50::1",
    "10.50.0.1",
];

#[test]
fn a_client_reaches_the_public_and_nobody_else() {
    let Some(segment) = Segment::new("xa") else { return };
    for to in PUBLIC {
        assert!(segment.client_reaches(to, PORT), "{to}");
    }
    for to in PRIVATE.iter().chain(&["169.254.169.254"]).chain(&HUB) {
        assert!(!segment.client_reaches(to, PORT), "{to}");
        assert!(!segment.client_reaches(to, DNS), "{to}");
    }
    assert_eq!(segment.other_client_reaches(&segment.alice), [false; 2]);
    assert_eq!(segment.server_reaches(&segment.alice), [false; 2]);
    assert_eq!(
        segment.server_reaches(&segment.hub),
        [false; 2],
        "the hub's inner address"
    );
    // Connections of the hub itself pass, and so does a ping of its inner address.
    assert!(segment.reaches(2, &segment.alice.v4, PORT) && segment.reaches(2, &segment.alice.v6, PORT));
    assert!(segment.world.ping(&segment.hub.v4) && segment.world.ping(&segment.hub.v6));
    assert!(!segment.world.ping("203.0.113.1"));
}

/// Sends packets of GRE (RFC 2784) from the client until one arrives at the server, for at most 1
/// s. Returns whether one arrived.
fn gre_passes(segment: &Segment) -> bool {
    let gre = || Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(47)));
    let receiver = segment.places[3].run(gre).unwrap();
    receiver
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let sender = segment.places[0].run(gre).unwrap();
    let to: SocketAddr = "203.0.113.2:0".parse().unwrap();
    (0..20).any(|_| {
        // A header of GRE with a payload: the hub's NAT drops shorter packets.
        let mut packet = [0; 64];
        packet[2] = 8;
        sender.send_to(&packet, &to.into()).unwrap();
        receiver.recv(&mut [std::mem::MaybeUninit::uninit(); 200]).is_ok()
    })
}

#[test]
fn only_tcp_udp_and_icmp_pass_unless_a_protocol_is_named_and_what_is_denied_does_not() {
    let Some(segment) = Segment::new("xp") else { return };
    assert!(!gre_passes(&segment), "a member would unpack it into its network");
    segment.allow("", "protocols = [\"gre\"]");
    assert!(gre_passes(&segment));
    segment.allow("", "deny = [\"203.0.113.0/24\"]\nnetworks = [\"203.0.113.0/24\"]");
    assert!(!segment.client_reaches("203.0.113.2", PORT));
    assert!(segment.client_reaches("2001:db8:50::2", PORT));
}

#[test]
fn what_is_named_is_reached_and_nothing_more() {
    let Some(segment) = Segment::new("xb") else { return };
    segment.allow("", "clients = true");
    assert_eq!(segment.other_client_reaches(&segment.alice), [true; 2]);
    assert_eq!(segment.server_reaches(&segment.bob), [false; 2]);
    assert!(!segment.client_reaches(HUB[0], PORT) && !segment.client_reaches(PRIVATE[0], PORT));

    segment.allow("", &format!("hub = [\"tcp {PORT}\"]"));
    for to in HUB {
        assert!(segment.client_reaches(to, PORT), "{to}");
        assert!(!segment.client_reaches(to, DNS), "{to}");
    }
    assert_eq!(segment.other_client_reaches(&segment.alice), [false; 2]);

    segment.allow("", "networks = [\"10.50.0.0/24\", \"fd00:50::/64\"]");
    for to in PRIVATE {
        assert!(segment.client_reaches(to, PORT), "{to}");
    }
    assert!(!segment.client_reaches("169.254.169.254", PORT) && !segment.client_reaches("10.50.0.1", PORT));

    segment.allow("", "from = [\"203.0.113.0/24\", \"fd00:50::/64\"]");
    assert_eq!(segment.server_reaches(&segment.alice), [true; 2]);
    assert_eq!(segment.server_reaches(&segment.hub), [false; 2]);

    // Resolvers that the hub announces are reachable at any address, for queries only.
    segment.allow("dns = [\"100.96.0.1\", \"10.50.0.2\"]", "");
    for to in ["100.96.0.1", "10.50.0.2"] {
        assert!(segment.client_reaches(to, DNS), "{to}");
        assert!(!segment.client_reaches(to, PORT), "{to}");
    }
    assert!(!segment.client_reaches(PRIVATE[1], DNS));
}

/// Another program deletes the rules as fast as it can, so only the filter in the process remains.
#[test]
fn while_the_rules_are_deleted_again_and_again_nothing_more_is_reached() {
    let Some(segment) = Segment::new("xf") else { return };
    let mut flush = segment.world.inside("h", "sh");
    flush.args(["-c", "while :; do nft flush ruleset; done"]);
    let mut flushing = flush.spawn().unwrap();
    let attempts = 10;
    let reached = (0..attempts).any(|_| {
        let own = HUB
            .iter()
            .chain(&PRIVATE)
            .any(|to| segment.client_reaches(to, PORT));
        own || segment.other_client_reaches(&segment.alice) != [false; 2]
    });
    let is_through = segment.client_reaches("203.0.113.2", PORT);
    flushing.kill().unwrap();
    flushing.wait().unwrap();
    assert!(!reached);
    assert!(is_through, "what is public stays within reach");
    let refused = &segment.world.status("h")["counters"]["ingress_not_allowed"];
    assert!(refused.as_u64() > Some(20), "{refused}");
}

/// A client accepts only traffic that its own configuration permits, regardless of the hub's
/// filter.
#[test]
fn a_client_is_closed_to_its_hub() {
    let Some(segment) = Segment::new("xd") else { return };
    segment.allow("", "clients = true");
    let (alice, world) = (&segment.alice, &segment.world);
    let from_hub = |port| segment.reaches(2, &alice.v4, port) || segment.reaches(2, &alice.v6, port);
    assert!(from_hub(PORT), "it is open");
    for (inbound, is_open) in [
        ("\"closed\"".to_owned(), [false; 2]),
        (format!("[\"tcp {PORT}\"]"), [true, false]),
        ("\"open\"".to_owned(), [true; 2]),
    ] {
        let file = world.place("c").join("client.toml");
        std::fs::write(file, format!("inbound = {inbound}\n")).unwrap();
        good(world.hawser("c", &["reload"]));
        assert_eq!([from_hub(PORT), from_hub(DNS)], is_open, "{inbound}");
        assert_eq!(segment.other_client_reaches(alice), [is_open[0]; 2], "{inbound}");
        // Answers and echo replies pass with every setting.
        assert!(segment.client_reaches("203.0.113.2", PORT), "{inbound}");
        let mut ping = world.inside("h", "ping");
        ping.args(["-c", "1", "-W", "5", &alice.v4]);
        good(ping);
    }
    std::fs::remove_file(world.place("c").join("client.toml")).unwrap();
    good(world.hawser("c", &["reload"]));
    assert!(!from_hub(PORT), "closed is the default");
}

/// A change of the reachable addresses does not affect permitted connections.
#[test]
fn a_transfer_lives_through_a_change_of_what_is_reached() {
    let Some(segment) = Segment::new("xc") else { return };
    let transfer = super::Transfer::start(&segment.places[3], &segment.places[0]);
    segment
        .world
        .wait("on the way", |_| transfer.received() > 1 << 20);
    for more in [
        "clients = true",
        "hub = [\"all\"]",
        "networks = [\"0.0.0.0/0\"]",
        "",
    ] {
        segment.allow("", more);
    }
    assert!(!transfer.is_over(), "the changes came too late");
    transfer.finish();
}

/// The hub's own port uses no entries in the kernel's connection table.
#[test]
fn the_outer_port_of_a_hub_is_not_tracked() {
    let Some(world) = World::new("notrack") else {
        return;
    };
    world.init();
    let before = world.system("h");
    let mut hub = world.start("h", &["hub", "run"]);
    // A packet that comes before the rules of the hub is tracked.
    world.wait("a hub", |world| world.status("h")["state"] == "up");
    let mut count = world.inside("h", "nft");
    count.arg(
        "add table inet seen; add counter inet seen tracked; add counter inet seen untracked; \
         add chain inet seen in { type filter hook input priority 0; }; \
         add rule inet seen in udp dport 4430 ct state untracked counter name untracked; \
         add rule inet seen in udp dport 4430 ct state != untracked counter name tracked; \
         add chain inet seen out { type filter hook output priority 0; }; \
         add rule inet seen out udp sport 4430 ct state untracked counter name untracked; \
         add rule inet seen out udp sport 4430 ct state != untracked counter name tracked",
    );
    good(count);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("up", |world| is_up(world) && world.ping_hub());
    let packets = |name: &str| {
        let mut list = world.inside("h", "nft");
        list.args(["list", "counter", "inet", "seen", name]);
        let said = String::from_utf8(good(list).stdout).unwrap();
        !said.contains("packets 0 ")
    };
    assert!(packets("untracked") && !packets("tracked"));
    let mut delete = world.inside("h", "nft");
    delete.arg("delete table inet seen");
    good(delete);
    hub.signal("-TERM");
    assert_eq!(world.system("h"), before);
}
