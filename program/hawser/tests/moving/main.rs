//! Migration of live flows from one network to another, with real daemons, real TCP and strict
//! translators.

mod world;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use world::{Download, LOADED, PORT, ROUND_TRIP, SERVER, World, received};

const FLOW: &str = "203.0.113.2:8000";

fn other(network: &str) -> &'static str {
    if network == "wifi" { "lte" } else { "wifi" }
}

fn moves() -> usize {
    let asked = std::env::var("HAWSER_MOVES").ok();
    asked.and_then(|count| count.parse().ok()).unwrap_or(30)
}

/// The download moves 30 times, or as often as `HAWSER_MOVES` specifies (for example 1000).
#[test]
fn a_download_goes_back_and_forth_without_a_byte_wrong() {
    let Some(world) = World::new() else { return };
    let _daemons = world.up();
    let moves = moves();
    let download = Download::start(&world.lab.client);
    assert_eq!(download.local.ip().to_string(), "100.64.0.2");
    let before = download.rate_over(Duration::from_secs(2));
    let mut at = world.network_of(FLOW);
    let (mut took, mut gaps) = (Vec::new(), Vec::new());
    for number in 0..moves {
        let start = Instant::now();
        at = other(&at).to_owned();
        took.push(world.move_to(FLOW, &at));
        std::thread::sleep(4 * ROUND_TRIP);
        gaps.push(download.longest_gap(start));
        assert_eq!(download.trouble(), None, "after {number} moves\n{}", world.logs());
    }
    let after = download.rate_over(Duration::from_secs(2));
    assert_eq!(world.network_of(FLOW), at);
    eprintln!("{before:.3e} bit/s before, {after:.3e} after");
    check_moves("moves", took, gaps);
    download.advance(&world);
    assert_eq!(download.trouble(), None);
}

/// Prints the durations of moves and the gaps in a download around them.
fn check_moves(what: &str, mut took: Vec<Duration>, mut gaps: Vec<Duration>) {
    took.sort_unstable();
    gaps.sort_unstable();
    let last = took.len() - 1;
    let (took_median, median) = (took[took.len() / 2], gaps[gaps.len() / 2]);
    let within = gaps.partition_point(|gap| *gap <= 2 * LOADED);
    eprintln!(
        "{} {what}: median {took_median:?}, longest {:?}; time without data around one: median {median:?}, 99 % {:?}, longest {:?}, \
         at most two round trips in {within}",
        took.len(),
        took[last],
        gaps[last * 99 / 100],
        gaps[last],
    );
}

#[test]
fn explain_tells_of_it_on_both_sides_and_the_traffic_is_where_it_says() {
    let Some(world) = World::new() else { return };
    let _daemons = world.up();
    let download = Download::start(&world.lab.client);
    std::thread::sleep(Duration::from_millis(500));
    let to = other(&world.network_of(FLOW));
    world.move_to(FLOW, to);
    let why = |place| {
        let explained = world.ask(place, &["explain", FLOW]);
        explained["flows"][0]["why"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let (here, there) = (why("client"), why("server"));
    assert!(
        here.contains("it was requested by `hawser move`") && here.contains("its peer is server"),
        "{here}"
    );
    assert!(
        there.contains("laptop has moved it") && there.contains("still sees"),
        "{there}"
    );
    let counted = |name: &str| received(&world.lab.client, name);
    std::thread::sleep(Duration::from_millis(300));
    let before = [counted(to), counted(other(to))];
    let received = download.received();
    std::thread::sleep(Duration::from_secs(1));
    let carried = download.received() - received;
    // Not all bytes are required, because some arrived before the move and were read only now.
    assert!(counted(to) - before[0] > carried / 2, "{carried}");
    assert!(counted(other(to)) - before[1] < carried / 20);
    let status = world.ask("client", &["status"]);
    assert_eq!(
        (&status["moving"]["moved"], &status["moving"]["port"]),
        (&1.into(), &serde_json::Value::Null)
    );
}

#[test]
fn a_download_survives_the_end_of_its_network_and_of_the_next() {
    let Some(world) = World::new() else { return };
    let _daemons = world.up();
    let download = Download::start(&world.lab.client);
    let full = download.rate_over(Duration::from_secs(2));
    for how in ["down", "silent"] {
        let from = world.network_of(FLOW);
        let start = Instant::now();
        if how == "down" {
            world.ip("client", &format!("link set {from} down"));
        } else {
            silence(&world, &from, true);
        }
        world.wait_until("the flow is on the other network", || {
            download.longest_gap(start) > 3 * world::NOTABLE && world.network_of(FLOW) == other(&from)
        });
        // TCP's own timeout doubles with each lost retransmission.
        download.advance(&world);
        std::thread::sleep(Duration::from_millis(1_500));
        let rate = download.rate_over(Duration::from_secs(1));
        eprintln!(
            "{how}: {:?} without data, then {rate:.3e} of {full:.3e} bit/s",
            download.longest_gap(start)
        );
        assert_eq!(download.trouble(), None, "{how}\n{}", world.logs());
        if how == "down" {
            let number = if from == "wifi" { 1 } else { 2 };
            world.ip("client", &format!("link set {from} up"));
            world.ip(
                "client",
                &format!("route replace default via 10.77.{number}.1 dev {from} metric 10{number}"),
            );
        } else {
            silence(&world, &from, false);
        }
        world.wait_for_links(2);
    }
}

#[test]
fn with_move_asked_a_flow_stays_on_its_dead_network_until_somebody_asks() {
    let Some(world) = World::new() else { return };
    world.write_config("client", "[direct]\nmove = \"asked\"\nkeep_flows = \"20s\"\n");
    let _daemons = world.up();
    let download = Download::start(&world.lab.client);
    std::thread::sleep(Duration::from_secs(1));
    let from = world.network_of(FLOW);
    silence(&world, &from, true);
    world.wait_until("its gateway is silent", || {
        let status = world.ask("client", &["status"]);
        let networks = status["networks"].as_array().cloned().unwrap_or_default();
        networks
            .iter()
            .any(|network| network["name"] == from.as_str() && network["state"] == "silent")
    });
    // Without the move the download would continue within this time.
    std::thread::sleep(Duration::from_secs(2));
    let received = download.received();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(download.received(), received, "it went on by itself");
    assert_eq!(world.network_of(FLOW), from);
    world.move_to(FLOW, other(&from));
    world.wait_until("it goes on", || download.received() > received + 1_000_000);
    assert_eq!(download.trouble(), None, "{}", world.logs());
}

/// Drops all packets at the far end of a network.
fn silence(world: &World, network: &str, is_on: bool) {
    let device = if network == "wifi" { "gw1" } else { "gw2" };
    let rules = if is_on {
        format!(
            "table inet silence {{ \nchain in {{ type filter hook prerouting priority -400; iifname \"{device}\" drop; \n}}\n\
             chain out {{ type filter hook postrouting priority 400; oifname \"{device}\" drop; \n}}\n}}\n"
        )
    } else {
        "delete table inet silence\n".to_owned()
    };
    world.nft(&world.lab.net, &rules);
}

/// Creates the client's end of a flow of datagrams, with this timeout for answers.
fn datagrams(world: &World, timeout: Duration) -> UdpSocket {
    let bind = || UdpSocket::bind(("0.0.0.0", 0));
    let socket = world.lab.client.run(bind).expect("a socket");
    socket.connect((SERVER, PORT)).expect("connected");
    socket.set_read_timeout(Some(timeout)).expect("set");
    socket
}

#[test]
fn datagrams_move_and_their_server_sees_the_same_sender() {
    let Some(world) = World::new() else { return };
    let _daemons = world.up();
    let socket = datagrams(&world, Duration::from_secs(2));
    let ask = |text: &str| {
        socket.send(text.as_bytes()).expect("sent");
        let mut buffer = [0; 100];
        let len = socket.recv(&mut buffer).expect("an answer");
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    };
    let (first, _) = (ask("0").replace(" 0", ""), ask("again"));
    std::thread::sleep(Duration::from_secs(1));
    for number in 1..6 {
        let to = other(&world.network_of("udp "));
        world.move_to("udp ", to);
        assert_eq!(ask(&number.to_string()), format!("{first} {number}"));
        assert_eq!(world.network_of("udp "), to);
    }
}

/// No packets arrive over a failed network, so the ownership of the flow was proven before.
#[test]
fn datagrams_go_on_when_their_network_dies() {
    let Some(world) = World::new() else { return };
    let _daemons = world.up();
    let socket = datagrams(&world, Duration::from_millis(200));
    let ask = |text: &str| {
        let mut buffer = [0; 100];
        socket.send(text.as_bytes()).ok()?;
        let len = socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..len]).into_owned())
    };
    let first = ask("0").expect("an answer").replace(" 0", "");
    // The exchange is long enough for the flow to count as lasting.
    for number in 1..30 {
        let answer = ask(&number.to_string());
        assert_eq!(answer.as_deref(), Some(format!("{first} {number}").as_str()));
        std::thread::sleep(Duration::from_millis(150));
    }
    let from = world.network_of("udp ");
    silence(&world, &from, true);
    let (start, mut number) = (Instant::now(), 100);
    let answer = loop {
        number += 1;
        let answer = ask(&number.to_string()).filter(|answer| answer.ends_with(&number.to_string()));
        if let Some(answer) = answer.filter(|_| start.elapsed() > Duration::from_millis(300)) {
            break answer;
        }
        assert!(
            start.elapsed() < hawser_testing::GIVE_UP,
            "no answer\n{}",
            world.logs()
        );
        std::thread::sleep(Duration::from_millis(50));
    };
    eprintln!("answered again after {:?}", start.elapsed());
    assert_eq!(
        answer,
        format!("{first} {number}"),
        "the server sees the same sender"
    );
    assert_eq!(world.network_of("udp "), other(&from));
}

#[test]
fn a_download_goes_through_a_waypoint_and_back() {
    let Some(world) = World::new() else { return };
    let _daemons = world.up();
    let _hub = world.start_hub();
    world.wait_for_links(4);
    let download = Download::start(&world.lab.client);
    let before = download.rate_over(Duration::from_secs(2));
    let mut at = world.network_of(FLOW);
    let moves = moves() / 3;
    let (mut took, mut gaps) = (Vec::new(), Vec::new());
    for number in 0..moves {
        let start = Instant::now();
        let through = number % 2 == 0;
        if through {
            let passed = received(&world.lab.hub, "eth0");
            took.push(world.move_through(FLOW, &at, Some("hub")));
            let moved = Instant::now();
            while received(&world.lab.hub, "eth0") <= passed + 10_000 {
                assert!(
                    moved.elapsed() < hawser_testing::GIVE_UP,
                    "it is elsewhere\n{}",
                    world.logs()
                );
                std::thread::sleep(ROUND_TRIP);
            }
            let explained = world.ask("client", &["explain", FLOW]);
            assert!(
                explained.to_string().contains("moved here through hub"),
                "{explained}"
            );
        } else {
            at = other(&at).to_owned();
            took.push(world.move_to(FLOW, &at));
            std::thread::sleep(4 * ROUND_TRIP);
        }
        gaps.push(download.longest_gap(start));
        assert_eq!(download.trouble(), None, "after {number} moves\n{}", world.logs());
    }
    let after = download.rate_over(Duration::from_secs(2));
    eprintln!("{before:.3e} bit/s before, {after:.3e} after");
    check_moves("moves through a waypoint and back", took, gaps);
    download.advance(&world);
    assert_eq!(download.trouble(), None);
}

#[test]
fn a_waypoint_is_for_who_is_named_and_ends_with_the_enrolment() {
    let Some(world) = World::new() else { return };
    let _daemons = world.up();
    let _hub = world.start_hub_with("");
    world.wait_for_links(4);
    let download = Download::start(&world.lab.client);
    std::thread::sleep(Duration::from_millis(500));
    let at = world.network_of(FLOW);
    let through = || {
        let output = world.run("client", &["move", FLOW, "--to", &at, "--through", "hub"]);
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    };
    let (is_moved, said) = through();
    assert!(!is_moved && said.contains("it does not support this"), "{said}");
    world.configure_hub("waypoint = [\"laptop\"]\n");
    assert!(world.run("hub", &["reload"]).status.success());
    let (is_moved, said) = through();
    assert!(is_moved, "{said}\n{}", world.logs());
    std::thread::sleep(Duration::from_millis(500));
    assert!(world.ask("hub", &["status"])["waypoint"]["relays"] == 1);
    let passed = || received(&world.lab.hub, "eth0");
    let before = passed();
    std::thread::sleep(Duration::from_millis(500));
    assert!(passed() > before + 100_000, "it is elsewhere\n{}", world.logs());
    assert_eq!(download.trouble(), None);

    let start = Instant::now();
    world.keep("hub", &["hub", "revoke", "laptop"]);
    world.wait_until("its ways are gone", || {
        let rules = world
            .lab
            .hub
            .command("nft")
            .args(["list", "table", "inet", "hawser_relay"])
            .output();
        !String::from_utf8_lossy(&rules.expect("nft runs").stdout).contains("dport set")
    });
    eprintln!("revoked, to no way through the hub: {:?}", start.elapsed());
    // Openings that the mover sends in the meantime are not answered.
    let (is_moved, said) = through();
    assert!(!is_moved, "{said}");
}

#[test]
fn ipv6_moves_too() {
    let Some(world) = World::new() else { return };
    let _daemons = world.up_at("[2001:db8:113::2]:4443");
    let download = Download::from(&world.lab.client, "2001:db8:113::2");
    std::thread::sleep(Duration::from_millis(500));
    for _ in 0..4 {
        let to = other(&world.network_of("tcp "));
        world.move_to("tcp ", to);
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(download.trouble(), None, "{}", world.logs());
        assert_eq!(world.network_of("tcp "), to);
    }
    download.advance(&world);
}

#[test]
fn a_network_that_gets_another_address_keeps_its_download() {
    let Some(world) = World::new() else { return };
    let _daemons = world.up();
    let download = Download::start(&world.lab.client);
    let at = world.network_of(FLOW);
    let number = if at == "wifi" { 1 } else { 2 };
    world.ip("client", &format!("addr add 10.77.{number}.77/24 dev {at}"));
    world.ip("client", &format!("addr del 10.77.{number}.2/24 dev {at}"));
    // The kernel has removed the routes that depended on the old address.
    world.ip("client", &format!("addr replace 10.77.{number}.77/24 dev {at}"));
    world.ip(
        "client",
        &format!("route replace default via 10.77.{number}.1 dev {at} metric 10{number}"),
    );
    world.wait_until("the flow has moved", || {
        world.ask("client", &["status"])["moving"]["moved"] == 1
    });
    download.advance(&world);
    assert_eq!(download.trouble(), None, "{}", world.logs());
}

#[test]
fn a_network_that_is_back_gets_its_part_of_what_had_fled() {
    let Some(world) = World::new() else { return };
    // Early measurements of networks say little about their capacity.
    world.write_config("client", "[direct]\nspread = \"even\"\n");
    let _daemons = world.up();
    let downloads = [(); 4].map(|()| Download::start(&world.lab.client));
    let on_wifi = || {
        let places = downloads
            .iter()
            .map(|download| world.network_of(&format!("{} -> ", download.local)));
        places.filter(|place| place == "wifi").count()
    };
    assert_eq!(on_wifi(), 2);
    // The user requests this network for the flow.
    let flows = downloads
        .each_ref()
        .map(|download| format!("{} -> ", download.local));
    let wanted = flows
        .iter()
        .find(|flow| world.network_of(flow) == "wifi")
        .expect("there are two");
    world.move_to(wanted, "lte");
    world.ip("client", "link set wifi down");
    world.wait_until("all have fled", || on_wifi() == 0);
    world.ip("client", "link set wifi up");
    world.ip(
        "client",
        "route replace default via 10.77.1.1 dev wifi metric 101",
    );
    world.wait_until("half of them are back", || on_wifi() == 2);
    assert_eq!(world.network_of(wanted), "lte");
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(on_wifi(), 2, "and there they stay\n{}", world.logs());
    for download in &downloads {
        assert_eq!(download.trouble(), None, "{}", world.logs());
        download.advance(&world);
    }
}

#[test]
fn what_cannot_be_moved_is_said_in_one_line() {
    let Some(world) = World::new() else { return };
    let _daemons = world.up();
    let said = |arguments: &[&str]| {
        let output = world.run("client", arguments);
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        assert_eq!(text.lines().count(), 1, "{text}");
        (output.status.code(), text)
    };
    let (code, text) = said(&["move", FLOW, "--to", "wifi"]);
    assert_eq!(code, Some(1));
    assert!(
        text.contains("no flow that can be moved contains \"203.0.113.2:8000\""),
        "{text}"
    );
    let (code, text) = said(&["move", FLOW, "--to", "eth9"]);
    assert_eq!(code, Some(2));
    assert_eq!(
        text,
        "hawser: --to eth9: there is no such network now; available: wifi, lte"
    );
    let download = Download::start(&world.lab.client);
    std::thread::sleep(Duration::from_millis(300));
    let (code, text) = said(&["move", FLOW, "--to", "lte", "--through", "nobody"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("there is no peer nobody"), "{text}");
    world.keep("client", &["peer", "leave", "server"]);
    std::thread::sleep(Duration::from_millis(1_500));
    let (code, text) = said(&["move", FLOW, "--to", "lte"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("no peer has the address 203.0.113.2"), "{text}");
    assert_eq!(download.trouble(), None);
}

#[test]
fn a_guest_whose_leave_is_taken_back_moves_nothing() {
    let Some(world) = World::new() else { return };
    let _daemons = world.up();
    let download = Download::start(&world.lab.client);
    std::thread::sleep(Duration::from_millis(500));
    let at = world.network_of(FLOW);
    world.keep("server", &["peer", "revoke", "laptop"]);
    let answer = world.ask("client", &["move", FLOW, "--to", other(&at)]);
    assert_eq!(answer["flows"][0]["moved"], false, "{answer}");
    assert_eq!(world.network_of(FLOW), at);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(download.trouble(), None);
}

#[test]
fn nothing_is_left_after_down_nor_after_a_crash() {
    let Some(world) = World::new() else { return };
    let before = ["client", "server"].map(|place| world.system(place));
    for crash in [false, true] {
        let mut daemons = world.up();
        let download = Download::start(&world.lab.client);
        std::thread::sleep(Duration::from_millis(500));
        // The kernel still has the state of the previous connection.
        let flow = format!("{} -> ", download.local);
        let at = world.network_of(&flow);
        world.move_to(&flow, other(&at));
        assert!(
            world.system("client").contains("hawser_moved")
                && world.system("server").contains("hawser_moved")
        );
        drop(download);
        if crash {
            for daemon in &mut daemons {
                daemon.0.kill().expect("killed");
                daemon.0.wait().expect("ended");
            }
        }
        for place in ["client", "server"] {
            let output = world.run(place, &["down"]);
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        assert_eq!(["client", "server"].map(|place| world.system(place)), before);
        drop(daemons);
        world.keep("server", &["peer", "revoke", "laptop"]);
    }
}
