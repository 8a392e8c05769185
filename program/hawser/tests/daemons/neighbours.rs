//! Neighbours: a device uses the modems of others in addition to its own network.
//!
//! The taker has a network of 8 Mbit/s, two members have modems of 5 and 3 Mbit/s, and a local
//! network connects each of them to the taker.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::transfer::Transfer;
use super::world::{Daemon, World, active, good, is_up, run};

/// Member: a namespace with a modem to the hub, and a local network to the taker.
struct Member {
    side: &'static str,
    /// Number in the subnets of the modem, 10.0.NET.0/24, and of the local network,
    /// 192.168.NET.0/24.
    net: u8,
}

const BOB: Member = Member { side: "d", net: 20 };
const CAROL: Member = Member { side: "e", net: 21 };

/// Limits a device to the rate of a modem, with bursts of at most two packets. (With bursts of 40
/// ms, rates are overestimated in one run of three: docs/notebook/figures.md.)
pub(crate) fn tc(namespace: &str, device: &str, rate: &str) {
    let mut all = vec!["-n", namespace, "qdisc", "replace", "dev", device];
    all.extend(["root", "tbf", "rate", rate, "burst", "3k", "latency", "100ms"]);
    run("tc", &all);
}

impl Member {
    fn build(&self, world: &World, rate: &str) {
        let Self { side, net } = self;
        world.add_client(side, *net);
        let (own, client, hub) = (world.namespace(side), world.namespace("c"), world.namespace("h"));
        let cable = format!("cable-{side}");
        world.ip(&own, &format!("link set {cable} down"));
        world.ip(&own, &format!("link set {cable} name wwan0"));
        world.ip(&own, "link set wwan0 up");
        world.ip(&own, &format!("route add default via 10.0.{net}.1"));
        let lan = format!("lan-{side}");
        run(
            "ip",
            &[
                "link", "add", "lan", "netns", &own, "type", "veth", "peer", "name", &lan, "netns", &client,
            ],
        );
        for (namespace, device, last) in [(&own, "lan", 2), (&client, lan.as_str(), 1)] {
            world.ip(
                namespace,
                &format!("addr add 192.168.{net}.{last}/24 dev {device}"),
            );
            world.ip(namespace, &format!("link set {device} up"));
        }
        tc(&own, "wwan0", rate);
        tc(&hub, &cable, rate);
    }

    fn address(&self) -> String {
        format!("192.168.{}.2:47473", self.net)
    }

    fn configure(&self, world: &World, text: &str) {
        std::fs::create_dir_all(world.place(self.side)).unwrap();
        std::fs::write(world.place(self.side).join("share.toml"), text).unwrap();
    }

    fn share(&self, world: &World, arguments: &[&str]) -> Daemon {
        let daemon = world.start(self.side, &[&["share", "--foreground"], arguments].concat());
        world.wait("shared", |world| self.status(world)["state"] == "up");
        daemon
    }

    fn status(&self, world: &World) -> Value {
        json(world, self.side, &["share", "status", "--json"])
    }

    /// Returns the traffic of the only taker, to its hub and back. Units: bytes of IP packets.
    fn carried(&self, world: &World) -> [u64; 2] {
        let taker = self.status(world)["takers"][0].clone();
        ["up_bytes", "down_bytes"].map(|key| taker[key].as_u64().unwrap_or(0))
    }
}

fn json(world: &World, side: &str, arguments: &[&str]) -> Value {
    let output = world.hawser(side, arguments).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

fn code(world: &World, side: &str) -> String {
    let all = json(world, side, &["pool", "--json"]);
    all["code"].as_str().unwrap().to_owned()
}

/// Configures the taker with its own network of 8 Mbit/s and these members.
fn taker(world: &World, members: &[&Member]) {
    let (client, hub) = (world.namespace("c"), world.namespace("h"));
    tc(&client, "fiber", "8mbit");
    tc(&hub, "fiber", "8mbit");
    let places: Vec<_> = members
        .iter()
        .map(|member| format!("{:?}", member.address()))
        .collect();
    let text = format!("exclude = [\"lte\"]\n[pool]\nmembers = [{}]\n", places.join(", "));
    world.configure("c", text);
}

/// Returns the rate of the transfer over some seconds. Units: Mbit/s.
pub(crate) fn rate(transfer: &Transfer, over: Duration) -> f64 {
    let (before, since) = (transfer.received(), Instant::now());
    std::thread::sleep(over);
    (transfer.received() - before) as f64 * 8e-6 / since.elapsed().as_secs_f64()
}

/// Returns what the taker has received over its own network, bob's and carol's. Unit: bytes.
fn received_by_network(world: &World) -> [u64; 3] {
    let [bob, carol] = [&BOB, &CAROL].map(|member| format!("lan-{}", member.side));
    ["fiber", &bob, &carol].map(|device| {
        let mut cat = world.inside("c", "cat");
        cat.arg(format!("/sys/class/net/{device}/statistics/rx_bytes"));
        let text = String::from_utf8(good(cat).stdout).unwrap();
        text.trim().parse().unwrap()
    })
}

fn took(what: &str, since: Instant) {
    let took = since.elapsed();
    eprintln!("{what}: {:.2} s", took.as_secs_f64());
}

#[test]
fn two_modems_of_neighbours_add_to_the_own_network_and_may_leave() {
    let Some(world) = World::new("n1") else { return };
    let server = world.add_server();
    BOB.build(&world, "5mbit");
    CAROL.build(&world, "3mbit");
    taker(&world, &[&BOB, &CAROL]);
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let alice = code(&world, "c");
    for (name, member) in [("bob", &BOB), ("carol", &CAROL)] {
        member.configure(&world, "announce = false\n");
        good(world.hawser("c", &["pool", "trust", name, &code(&world, member.side)]));
    }
    let before = world.system("d");
    let mut bob = BOB.share(&world, &[]);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("up", is_up);

    // A member must give its consent.
    world.wait("asked for", |world| {
        BOB.status(world)["takers"][0]["state"] == "waiting"
    });
    assert_eq!(BOB.status(&world)["takers"][0]["code"], alice);
    world.wait("told", |world| {
        world.status("c")["pool"]["members"][0]["state"] == "waits for consent"
    });
    world.wait("on its own", |world| active(world) == ["fiber"]);
    good(world.hawser("d", &["share", "allow", "alice", &alice]));
    world.wait("on bob's modem", |world| {
        active(world) == ["bob's modem", "fiber"]
    });

    let mut carol = CAROL.share(&world, &["--allow", &format!("alice={alice}")]);
    world.wait("on all", |world| {
        active(world) == ["bob's modem", "carol's modem", "fiber"]
    });
    let transfer = Transfer::start(&server, &world.open("c"));
    world.wait("on the way", |_| transfer.received() > 4 << 20);
    // Each of the networks of 8, 5 and 3 Mbit/s carries a part; `gre.rs` checks the sum in virtual
    // time.
    let (parts_before, start) = (received_by_network(&world), transfer.received());
    world.wait("on the way still", |_| transfer.received() > start + (4 << 20));
    let parts_after = received_by_network(&world);
    let parts = [0, 1, 2].map(|network| (parts_after[network] - parts_before[network]) as f64);
    let sum: f64 = parts.iter().sum();
    eprintln!(
        "parts of 8 Mbit/s and modems of 5 and 3: {:.2?}",
        parts.map(|part| part / sum)
    );
    assert!(parts.iter().all(|part| *part > 0.05 * sum), "{parts:?}");
    let said = String::from_utf8(good(world.hawser("c", &["status"])).stdout).unwrap();
    assert!(said.contains("\nbob's modem "), "{said}");
    let said = String::from_utf8(good(world.hawser("c", &["pool"])).stdout).unwrap();
    assert!(
        said.contains("\ncarol's modem ") && said.contains("active"),
        "{said}"
    );

    // A member fails without notice.
    transfer.take_longest_gap();
    carol.signal("-KILL");
    let since = Instant::now();
    world.wait("without carol", |world| active(world) == ["bob's modem", "fiber"]);
    took("a member was killed, its path is gone after", since);
    let gap = transfer.take_longest_gap();
    eprintln!("no data for {:.3} s", gap.as_secs_f64());
    // The member returns.
    let since = Instant::now();
    let _carol = CAROL.share(&world, &["--allow", "alice"]);
    world.wait("with carol again", |world| {
        active(world) == ["bob's modem", "carol's modem", "fiber"]
    });
    eprintln!(
        "it came back, and carries after {:.2} s",
        since.elapsed().as_secs_f64()
    );

    // A revoked consent takes effect immediately.
    transfer.take_longest_gap();
    good(world.hawser("d", &["share", "revoke", "alice"]));
    let since = Instant::now();
    let at_once = BOB.status(&world);
    world.wait("without bob", |world| active(world) == ["carol's modem", "fiber"]);
    took("revoked, its path is gone after", since);
    let later = BOB.status(&world);
    assert_eq!(
        at_once["carried_bytes"], later["carried_bytes"],
        "nothing passed any more"
    );
    assert!(at_once["carried_bytes"].as_u64() > Some(0));
    let before_more = transfer.received();
    world.wait("on the way still", |_| {
        transfer.received() > before_more + (1 << 20)
    });
    bob.signal("-TERM");
    assert_eq!(world.system("d"), before, "nothing stays behind");
}

/// Creates a pool in which bob gives to alice, who is allowed.
fn one_member(name: &str, config: &str) -> Option<(World, [Daemon; 3])> {
    let world = World::new(name)?;
    BOB.build(&world, "20mbit");
    taker(&world, &[&BOB]);
    world.init();
    BOB.configure(&world, config);
    good(world.hawser("c", &["pool", "trust", "bob", &code(&world, "d")]));
    let hub = world.start("h", &["hub", "run"]);
    let allowed = format!("alice={}", code(&world, "c"));
    let bob = BOB.share(&world, &["--allow", &allowed]);
    let client = world.start("c", &["up", &world.invite(), "--foreground"]);
    Some((world, [hub, bob, client]))
}

#[test]
fn a_cap_and_a_quota_hold_and_the_transfer_goes_on() {
    let config = "announce = false\ncap = \"2mbit\"\nquota = \"3MB\"\n";
    let Some((world, _daemons)) = one_member("n2", config) else {
        return;
    };
    let server = world.add_server();
    world.wait("on both", |world| active(world) == ["bob's modem", "fiber"]);
    let transfer = Transfer::start(&server, &world.open("c"));
    world.wait("on the way", |_| transfer.received() > 1 << 20);
    // The time is measured around the counts, so a busy machine can only reduce the rates.
    let (since, before) = (Instant::now(), BOB.carried(&world));
    std::thread::sleep(Duration::from_secs(4));
    let (after, passed) = (BOB.carried(&world), since.elapsed().as_secs_f64());
    // The cap applies to each direction. The uplink carries the acknowledgements of the whole
    // transfer, possibly including those for data received over the other network.
    let mbps = |direction: usize| (after[direction] - before[direction]) as f64 * 8e-6 / passed;
    let (up, down) = (mbps(0), mbps(1));
    eprintln!("a cap of 2 Mbit/s each way: {up:.3} Mbit/s of IP packets up, {down:.3} down");
    let at_most = 2.0 * 1.02 * 1.05;
    assert!(up < at_most && down < at_most && down > 0.0, "{up} {down}");
    world.wait("over", |world| BOB.status(world)["over"] == "quota");
    world.wait("without bob", |world| active(world) == ["fiber"]);
    let carried = BOB.status(&world)["carried_bytes"].as_u64().unwrap();
    assert!(carried <= 3_000_000 && carried > 2_990_000, "{carried}");
    let received = transfer.received();
    world.wait("on the way still", |_| transfer.received() > received + (1 << 20));
    assert_eq!(
        BOB.status(&world)["carried_bytes"].as_u64(),
        Some(carried),
        "to the packet"
    );
    // Each side has an account. The giver's contains the forwarded bytes: the datagram that
    // exceeded the quota ended the consent.
    let account = |side: &str, what: &str| -> u64 {
        let csv = good(world.hawser(side, &["pool", "--csv"])).stdout;
        let csv = String::from_utf8(csv).unwrap();
        let line = csv.lines().find(|line| line.starts_with(what));
        let counts = line.into_iter().flat_map(|line| line.rsplit(',').take(2));
        counts.map(|count| count.parse::<u64>().unwrap()).sum()
    };
    let fits = |given: u64| given <= carried && given + 1_500 > carried;
    world.wait("accounted", |_| fits(account("d", "given,alice,")));
    world.wait("accounted by the taker", |_| {
        account("c", "taken,bob,") > carried / 2
    });
    assert!(account("c", "taken,bob,") < carried, "without headers");
}

/// Returns the receipts of a side without the fields that differ between the sides, and their total
/// bytes.
fn signed(world: &World, side: &str) -> (Vec<Value>, u64) {
    let all = json(world, side, &["pool", "receipts", "--json"]);
    let mut receipts = all["receipts"].as_array().cloned().unwrap_or_default();
    for receipt in &mut receipts {
        let fields = receipt.as_object_mut().expect("a receipt");
        fields.retain(|field, _| field != "side" && field != "name");
    }
    let bytes = |receipt: &Value| {
        let bytes = |field: &str| receipt[field].as_u64().expect("a number");
        bytes("up_bytes") + bytes("down_bytes")
    };
    let sum = receipts.iter().map(bytes).sum();
    (receipts, sum)
}

#[test]
fn what_a_member_carries_is_signed_for_both_over_crashes() {
    let Some((world, [mut hub, mut bob, client])) = one_member("n6", "announce = false\n") else {
        return;
    };
    let server = world.add_server();
    world.wait("on both", |world| active(world) == ["bob's modem", "fiber"]);
    let transfer = Transfer::start(&server, &world.open("c"));
    world.wait("signed", |world| signed(world, "d").1 > 2 << 20);
    // A crashed member has its lost account again after its return, and another run begins.
    bob.signal("-KILL");
    world.wait("without bob", |world| active(world) == ["fiber"]);
    let at_crash = signed(&world, "d").1;
    let _bob = BOB.share(&world, &[]);
    world.wait("with bob again", |world| {
        active(world) == ["bob's modem", "fiber"]
    });
    world.wait("signed again", |world| {
        let (receipts, sum) = signed(world, "d");
        receipts.len() >= 2 && sum > at_crash + (2 << 20)
    });
    drop(transfer);
    // From here on nothing is signed, so both sides have stored the same receipts.
    hub.signal("-KILL");
    world.wait("equal", |world| {
        let (taken, given) = (signed(world, "c"), signed(world, "d"));
        taken == given && taken.0.len() >= 2
    });
    // The taker stores its account only every few seconds, and counts without headers.
    let sum = signed(&world, "c").1;
    world.wait("counted by the taker", |world| {
        let account = json(world, "c", &["pool", "--json"])["accounts"][0].clone();
        let bytes = |field: &str| account[field].as_u64().unwrap_or(0);
        let counted = bytes("up_bytes") + bytes("down_bytes");
        sum * 10 > counted * 7 && sum * 10 < counted * 13
    });

    let file = world.place("d").join("receipts.json");
    let text = good(world.hawser("d", &["pool", "receipts", "--json"])).stdout;
    let text = String::from_utf8(text).unwrap();
    std::fs::write(&file, &text).unwrap();
    let verify = || {
        let mut command = world.inside("c", env!("CARGO_BIN_EXE_hawser"));
        command.args(["pool", "verify"]).arg(&file).output().unwrap()
    };
    assert!(verify().status.success());
    let wish = text.replacen("\"up_bytes\":", "\"up_bytes\":1", 1);
    std::fs::write(&file, wish).unwrap();
    let refused = verify();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("not signed"), "{said}");
    drop(client);
}

#[test]
fn nobody_else_passes_and_nothing_goes_anywhere_else() {
    let Some((world, _daemons)) = one_member("n3", "announce = false\n") else {
        return;
    };
    world.wait("on both", |world| active(world) == ["bob's modem", "fiber"]);
    let way = || BOB.status(&world)["takers"][0]["ways"][0].clone();
    let port = way()["port"].as_u64().unwrap();
    let relay = format!("192.168.20.2:{port}");
    // Another address in the same network belongs to another machine.
    world.ip(&world.namespace("c"), "addr add 192.168.20.77/24 dev lan-d");
    let client = world.open("c");
    let stranger = client.run(|| UdpSocket::bind("192.168.20.77:0")).unwrap();
    for _ in 0..10 {
        stranger.send_to(&[0x40; 1_200], &relay).unwrap();
    }
    world.wait("refused", |_| way()["refused"].as_u64() >= Some(10));
    // The taker itself: its packets arrive at its hub, and many ports are not served.
    let refused = way()["refused"].as_u64().unwrap();
    let flood: Vec<_> = (0..50)
        .map(|_| client.run(|| UdpSocket::bind("192.168.20.1:0")).unwrap())
        .collect();
    for socket in &flood {
        socket.send_to(&[0x40; 1_200], &relay).unwrap();
    }
    world.wait("bounded", |_| way()["refused"].as_u64() >= Some(refused + 40));
    let mut sockets = world.inside("d", "ss");
    sockets.args(["-Hun", "state", "connected"]);
    let listed = String::from_utf8(good(sockets).stdout).unwrap();
    let peers: Vec<_> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    assert!((1..=4).contains(&peers.len()), "{listed}");
    assert!(peers.iter().all(|peer| *peer == "198.51.100.1:4430"), "{listed}");
    world.wait("still on both", |world| active(world) == ["bob's modem", "fiber"]);
}

#[test]
fn a_hub_in_a_private_network_is_no_hub_unless_it_is_named() {
    let Some(world) = World::new("n4") else { return };
    BOB.build(&world, "20mbit");
    taker(&world, &[&BOB]);
    world.init_at("10.0.10.1:4431");
    BOB.configure(&world, "announce = false\n");
    good(world.hawser("c", &["pool", "trust", "bob", &code(&world, "d")]));
    let _hub = world.start("h", &["hub", "run"]);
    let allowed = format!("alice={}", code(&world, "c"));
    let mut bob = BOB.share(&world, &["--allow", &allowed]);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("refused", |world| {
        let member = world.status("c")["pool"]["members"][0].clone();
        member["why"]
            .as_str()
            .is_some_and(|why| why.contains("share.toml"))
    });
    world.wait("on its own", |world| active(world) == ["fiber"]);
    bob.signal("-TERM");
    BOB.configure(&world, "announce = false\nhubs = [\"10.0.10.1:4431\"]\n");
    let _bob = BOB.share(&world, &[]);
    // The hub has that address over bob's modem too.
    world.wait("on both", |world| active(world) == ["bob's modem", "fiber"]);
}

/// Queries for neighbours and traffic through members pass the kill switch.
#[test]
fn members_are_found_and_taken_under_a_kill_switch() {
    let Some(world) = World::new("nkill") else { return };
    BOB.build(&world, "20mbit");
    taker(&world, &[]);
    world.init();
    let text = "kill_switch = true\nexclude = [\"lte\"]\n[pool]\nneighbours = true\n";
    world.configure("c", text);
    good(world.hawser("c", &["pool", "trust", "bob", &code(&world, "d")]));
    let _hub = world.start("h", &["hub", "run"]);
    let allowed = format!("alice={}", code(&world, "c"));
    let _bob = BOB.share(&world, &["--allow", &allowed]);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("found", |world| active(world) == ["bob's modem", "fiber"]);
    assert!(
        !world.ping("192.168.20.2"),
        "nothing else leaves for the neighbour"
    );
}

#[test]
fn a_member_is_found_by_its_tag_and_a_loop_is_refused() {
    let Some(world) = World::new("n5") else { return };
    BOB.build(&world, "20mbit");
    taker(&world, &[]);
    world.init();
    let text = "exclude = [\"lte\"]\n[pool]\nneighbours = true\n";
    world.configure("c", text);
    good(world.hawser("c", &["pool", "trust", "bob", &code(&world, "d")]));
    let _hub = world.start("h", &["hub", "run"]);
    let allowed = format!("alice={}", code(&world, "c"));
    let _bob = BOB.share(&world, &["--allow", &allowed]);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    let since = Instant::now();
    world.wait("found", |world| active(world) == ["bob's modem", "fiber"]);
    took("found by multicast DNS, its path is there after", since);

    // Bob would use alice's network while she uses his.
    let text = "exclude = [\"lan\"]\n[pool]\nmembers = [\"192.168.20.1:47473\"]\n";
    world.configure("d", text);
    good(world.hawser("d", &["pool", "trust", "alice", &code(&world, "c")]));
    let bobs = format!("bob={}", code(&world, "d"));
    let second = |side: &str, arguments: &[&str]| {
        let mut command = world.inside(side, env!("CARGO_BIN_EXE_hawser"));
        command.args(arguments).arg("--dir").arg(world.place(side));
        command
            .arg("--run-dir")
            .arg(world.run_dir(&format!("{side}-second")));
        command
    };
    good(second("c", &["share", "--allow", &bobs]));
    world.wait("still taken", |world| active(world) == ["bob's modem", "fiber"]);
    good(second("d", &["up", &world.invite_as("bob")]));
    let why = || {
        let output = second("d", &["status", "--json"]).output().unwrap();
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        status["pool"]["members"][0]["why"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    world.wait("refused", |_| {
        why().contains("uses this machine's networks itself")
    });
    world.wait("still taken", |world| active(world) == ["bob's modem", "fiber"]);
    good(second("d", &["down"]));
    good(second("c", &["share", "stop"]));
}
