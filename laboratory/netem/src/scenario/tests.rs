use std::collections::BTreeMap;
use std::path::Path;

use hawser_units::{Bytes, Duration, Rate};

use super::*;
use crate::{Capacity, Jitter, Loss, QueueBound, State};

const FULL: &str = r#"
name = "fiber and lte"
seed = 7
duration = "20s"
via = "hub"

[[network]]
name = "fiber"
down = { rate = "300mbit", delay = "8ms", jitter = "0ms", loss = 0.0, queue = "100ms" }
up   = { rate = "300mbit", delay = "8ms" }

[[network]]
name = "lte"
down = { trace = "cell.mahimahi", delay = "40ms", jitter = { sd = "8ms", reorder = true }, loss = { good = 0.0, bad = 0.5, to_bad = 0.01, to_good = 0.2 } }
up   = { rate = "10mbit", delay = "40ms", queue = "64KiB" }

[[workload]]
kind = "tcp"
direction = "down"
streams = 1
congestion = "cubic"

[[event]]
at = "10s"
network = "fiber"
set = "blackhole"

[[event]]
at = "5s"
network = "lte"
direction = "up"
set = { rate = "1mbit", loss = 0.1 }
"#;

fn parse_with(text: &str, settings: &[&str]) -> Result<Scenario, ScenarioError> {
    let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
    Scenario::parse(text, Path::new("dir/a.toml"), &settings, &mut |path| {
        assert_eq!(path, Path::new("dir/cell.mahimahi"));
        Ok(b"1\n2\n3\n".to_vec())
    })
}

fn problem(text: &str) -> String {
    parse_with(text, &[]).expect_err("must be refused").to_string()
}

#[test]
fn reads_every_field_of_the_format() {
    let scenario = parse_with(FULL, &[]).expect("a scenario");
    assert_eq!((scenario.name.as_str(), scenario.seed), ("fiber and lte", 7));
    assert_eq!(scenario.duration, Duration::from_secs(20));
    let fiber = scenario.networks[0].links.as_ref().expect("emulated");
    assert_eq!(fiber.down.capacity, Capacity::Rate(Rate::from_mbps(300)));
    assert_eq!(fiber.up.delay, Duration::from_millis(8));
    let lte = scenario.networks[1].links.as_ref().expect("emulated");
    assert!(matches!(lte.down.capacity, Capacity::Trace(_)));
    assert_eq!(
        lte.down.jitter,
        Jitter {
            sd: Duration::from_millis(8),
            reorder: true
        }
    );
    assert!(matches!(lte.down.loss, Loss::GilbertElliott { .. }));
    assert_eq!(lte.up.queue, QueueBound::Bytes(Bytes(65536)));
    assert_eq!(scenario.events[0].network, 1, "events are in order of time");
    assert_eq!(scenario.events[0].direction, Some(Direction::Up));
    assert_eq!(scenario.events[1].change.state, Some(State::Blackhole));
}

#[test]
fn replaces_fields_from_the_command_line() {
    let settings = [
        "workload.0.streams=16",
        "network.0.down.rate=50mbit",
        "via=single:lte",
        "duration=\"3s\"",
    ];
    let scenario = parse_with(FULL, &settings).expect("a scenario");
    assert!(matches!(scenario.workloads[0], Workload::Tcp { streams: 16, .. }));
    assert_eq!(scenario.via, Via::Single("lte".into()));
    assert_eq!(scenario.duration, Duration::from_secs(3));
    let fiber = scenario.networks[0].links.as_ref().expect("emulated");
    assert_eq!(fiber.down.capacity, Capacity::Rate(Rate::from_mbps(50)));

    let refused = |setting| {
        parse_with(FULL, &[setting])
            .expect_err("must be refused")
            .to_string()
    };
    assert_eq!(refused("seed"), "--set seed: has no `=`; write field=value");
    assert!(refused("workload.3.streams=1").contains("index 3 is out of range; there are 1"));
    assert!(refused("workload.0.color=1").contains("unknown field `color`"));
    assert!(refused("network.0.down.rate=50").contains("50 has no unit"));
}

#[test]
fn reads_schedulers_by_class() {
    let with = |line: &str| {
        parse_with(
            &FULL.replace("via = \"hub\"", &format!("via = \"hub\"\n{line}")),
            &[],
        )
    };
    let named = |class, name: &str| (class, name.to_owned());
    assert_eq!(with("").expect("a scenario").schedulers, []);
    let two = with("schedulers = { bulk = \"min-rtt\", layered = \"layer-priority\" }").expect("a scenario");
    assert_eq!(
        two.schedulers,
        [
            named(Class::Bulk, "min-rtt"),
            named(Class::Layered, "layer-priority")
        ]
    );
    let set = parse_with(FULL, &["schedulers={ realtime = \"redundant\" }"]).expect("a scenario");
    assert_eq!(set.schedulers, [named(Class::Realtime, "redundant")]);
    let refused = |line| with(line).expect_err("must be refused").to_string();
    let said = refused("schedulers = { bulk = \"fastest\" }");
    assert!(
        said.starts_with("dir/a.toml:6: unknown scheduler \"fastest\"; write one of random, round-robin,"),
        "{said}"
    );
    assert_eq!(
        refused("schedulers = { video = \"random\" }"),
        "dir/a.toml:6: unknown class \"video\"; write bulk, interactive, realtime, layered"
    );
}

#[test]
fn a_burst_is_a_links_that_has_a_rate() {
    let text = |down: &str| {
        format!(
            "name = \"b\"\nduration = \"2s\"\nvia = \"hub\"\n\
             [[network]]\nname = \"a\"\ndown = {{ {down} }}\nup = {{}}"
        )
    };
    let scenario = parse_with(&text("rate = \"10mbit\", burst = \"32KiB\""), &[]).expect("a scenario");
    let links = scenario.networks[0].links.as_ref().expect("emulated");
    assert_eq!((links.down.burst, links.up.burst), (Bytes(32_768), Bytes(0)));
    let refused = problem(&text("burst = \"32KiB\""));
    assert!(refused.contains("give it a rate"), "{refused}");
}

#[test]
fn a_network_shares_the_air_of_the_hop_behind_a_repeater() {
    let text = |hop: &str, network: &str, rest: &str| {
        format!(
            "name = \"r\"\nduration = \"2s\"\nvia = \"repeater\"\n{hop}\n\
             [[network]]\nname = \"own\"\ndown = {{ rate = \"20mbit\" }}\n\
             [[network]]\nname = \"near\"\n{network}\n{rest}"
        )
    };
    let hop = "client_hop = { rate = \"30mbit\", queue = \"50ms\", throttle = false }";
    let links = "shares = \"client-hop\"\ndown = { rate = \"40mbit\" }\nup = { rate = \"40mbit\" }";
    let scenario = parse_with(&text(hop, links, ""), &[]).expect("a scenario");
    assert_eq!(scenario.networks[1].shares, Some(Shares::ClientHop));
    let expected = ClientHop {
        rate: Rate::from_mbps(30),
        queue: Duration::from_millis(50),
        throttle: false,
    };
    assert_eq!(scenario.client_hop, Some(expected));
    assert_eq!(scenario.sum_of_rates(), None);
    let throttled = parse_with(&text(hop, links, ""), &["client_hop.throttle=true"]);
    assert!(
        throttled
            .expect("a scenario")
            .client_hop
            .expect("is there")
            .throttle
    );
    let event = "[[event]]\nat = \"1s\"\nnetwork = \"near\"\nset = { rate = \"1mbit\" }";
    for (wrong, said) in [
        (text("", links, ""), "needs that hop: client_hop"),
        (text(hop, "shares = \"client-hop\"", ""), "needs down"),
        (
            text(hop, "shares = \"client-hop\"\ndown = { rate = \"1mbit\" }", ""),
            "a rate in both directions",
        ),
        (text(hop, links, event), "cannot change"),
        (
            text(hop, links, "").replace("via = \"repeater\"", "via = \"hub\""),
            "only via = \"repeater\"",
        ),
    ] {
        let problem = parse_with(&wrong, &[]).expect_err("must be refused").to_string();
        assert!(problem.contains(said), "{problem}");
    }
}

#[test]
fn a_network_shares_the_links_of_an_earlier_one() {
    let with = |network: &str| parse_with(&format!("{FULL}\n[[network]]\nname = \"c\"\n{network}\n"), &[]);
    let names = parse_with(FULL, &[]).expect("a scenario").networks;
    let first = &names[0].name;
    let shared = with(&format!("shares = \"{first}\"")).expect("a scenario");
    let last = shared.networks.last().expect("there are some");
    assert_eq!(
        (last.shares, last.links.is_none()),
        (Some(Shares::Links(0)), true)
    );
    assert_eq!(
        shared.sum_of_rates(),
        parse_with(FULL, &[]).expect("a scenario").sum_of_rates()
    );
    let refused = |network: &str| with(network).expect_err("must be refused").to_string();
    let said = refused("shares = \"nobody\"");
    assert!(said.contains("nobody"), "{said}");
    let said = refused(&format!("shares = \"{first}\"\ndown = {{ rate = \"1mbit\" }}"));
    assert!(
        said.ends_with("a network that shares the links of another has none of its own"),
        "{said}"
    );
}

#[test]
fn names_file_line_and_remedy() {
    let replaced = |from: &str, to: &str| {
        assert!(FULL.contains(from), "{from}");
        problem(&FULL.replace(from, to))
    };
    assert_eq!(
        replaced("delay = \"8ms\" }", "delay = 8 }"),
        "dir/a.toml:10: 8 has no unit; write a string like \"20ms\""
    );
    assert_eq!(
        replaced(
            "\"300mbit\", delay = \"8ms\", jitter",
            "\"fast\", delay = \"8ms\", jitter"
        ),
        "dir/a.toml:9: \"fast\" is not a rate; write a number with its unit, like \"20mbit\""
    );
    assert_eq!(
        replaced("network = \"fiber\"", "network = \"fibre\""),
        "dir/a.toml:25: no network is called \"fibre\"; there are fiber, lte"
    );
    assert!(replaced("loss = 0.0,", "loss = 1.5,").starts_with("dir/a.toml:9: 1.5 is not a probability"));
    assert!(replaced("\"blackhole\"", "\"dead\"").contains("unknown state \"dead\""));
    let kinds = replaced("kind = \"tcp\"", "kind = \"torrent\"");
    assert!(
        kinds.contains("write tcp, quic, udp, ping, http, video or capture"),
        "{kinds}"
    );
    assert!(replaced("via = \"hub\"", "via = \"hob\"").contains("unknown via"));
    assert!(replaced("name = \"lte\"", "name = \"fiber\"").contains("two networks"));
    assert!(
        replaced("streams = 1", "interval = \"1s\"").contains("interval means nothing to a tcp workload")
    );
    assert!(replaced("seed = 7", "sead = 7").starts_with("dir/a.toml:3: unknown field `sead`"));
    assert!(replaced("seed = 7", "seed = ").starts_with("dir/a.toml:3:"));
}

#[test]
fn units_mean_what_they_say() {
    assert_eq!(values::rate("1.5gbit"), Ok(Rate::from_bps(1_500_000_000)));
    assert_eq!(values::duration("250us"), Ok(Duration::from_micros(250)));
    assert_eq!(values::duration("2min"), Ok(Duration::from_secs(120)));
    assert_eq!(values::bytes("1KiB"), Ok(Bytes(1024)));
    assert_eq!(values::bytes("10MB"), Ok(Bytes(10_000_000)));
    for wrong in ["", "ms", "-1ms", "1e3ms", "5", "infs"] {
        assert!(values::duration(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn reads_codings_of_video() {
    let workload = |fields: &str| {
        let from = FULL.find("kind = \"tcp\"").expect("a workload");
        let to = FULL.find("[[event]]").expect("an event");
        let text = format!("{}kind = \"video\"\n{fields}\n{}", &FULL[..from], &FULL[to..]);
        parse_with(&text, &[]).map(|scenario| scenario.workloads[0].clone())
    };
    let video = |coding| Workload::Video {
        direction: Direction::Down,
        rate: Rate::from_mbps(2),
        coding,
        film: None,
    };
    assert_eq!(workload("rate = \"2mbit\""), Ok(video(Coding::Frames)));
    let three = "rate = \"2mbit\"\ncoding = \"descriptions\"\nstreams = 3";
    assert_eq!(workload(three), Ok(video(Coding::Descriptions(3))));
    for (wrong, said) in [
        ("coding = \"frames\"", "needs a rate"),
        ("rate = \"2mbit\"\ncoding = \"descriptions\"", "streams = 2 to 8"),
        (
            "rate = \"2mbit\"\ncoding = \"frames\"\nstreams = 3",
            "streams = 2 to 8",
        ),
        (
            "rate = \"2mbit\"\nsize = \"1kB\"",
            "size means nothing to a video workload",
        ),
    ] {
        let problem = workload(wrong).expect_err("must be refused").to_string();
        assert!(problem.contains(said), "{problem}");
    }
}

#[test]
fn datagrams_may_be_of_layers_in_turn() {
    let workload = |fields: &str| {
        let from = FULL.find("kind = \"tcp\"").expect("a workload");
        let to = FULL.find("[[event]]").expect("an event");
        let udp = format!("kind = \"udp\"\nrate = \"2mbit\"\n{fields}\n");
        let scenario = parse_with(&format!("{}{udp}{}", &FULL[..from], &FULL[to..]), &[]);
        scenario.map(|scenario| scenario.workloads[0].clone())
    };
    let layers_of = |fields| {
        let Workload::Udp { layers, .. } = workload(fields).expect("a workload") else {
            panic!("the workload is udp");
        };
        layers
    };
    assert_eq!([layers_of(""), layers_of("layers = 3")], [0, 3]);
    for wrong in ["layers = 0", "layers = 9"] {
        let problem = workload(wrong).expect_err("must be refused").to_string();
        assert!(problem.contains("layers must be 1 to 8"), "{problem}");
    }
}

#[test]
fn tcp_both_ways_at_once_is_a_workload_each_way() {
    let one = parse_with(FULL, &["workload.0.streams=3"])
        .expect("a scenario")
        .workloads;
    let two = ["workload.0.streams=3", "workload.0.direction=both"];
    let two = parse_with(FULL, &two).expect("a scenario").workloads;
    assert_eq!(two.len(), one.len() + 1);
    let way = |wanted: Direction| {
        let is_so = |workload: &&Workload| matches!(workload, Workload::Tcp { direction, streams: 3, .. } if *direction == wanted);
        two.iter().filter(is_so).count()
    };
    assert_eq!((way(Direction::Down), way(Direction::Up)), (1, 1));
    let udp = FULL.replace(
        "kind = \"tcp\"\ndirection = \"down\"",
        "kind = \"udp\"\ndirection = \"both\"",
    );
    assert!(problem(&udp).contains("unknown direction \"both\""));
}

#[test]
fn reads_a_last_hop_on_the_air_and_says_what_is_wrong_with_it() {
    let with = |wifi: &str| {
        FULL.replace(
            "name = \"fiber\"\ndown",
            &format!("name = \"fiber\"\nwifi = {{ {wifi} }}\ndown"),
        )
    };
    let whole = "standard = \"g\", channel = 6, rate = \"54mbit\", power = \"-70dBm\", fading = { sd = \"4dB\", coherence = \"100ms\" }, neighbours = [\"5mbit\"]";
    let scenario = parse_with(&with(whole), &[]).expect("a scenario");
    let wifi = scenario.networks[0].wifi.as_ref().expect("on the air");
    assert_eq!(
        (wifi.channel, wifi.rate),
        (6, Some(crate::air::phy::PhyRate::Ofdm(54)))
    );
    let expected = crate::air::Signal::of_power(-70.0).fading(4.0, Duration::from_millis(100));
    assert_eq!(wifi.signal, expected);
    assert_eq!(wifi.neighbours, [Rate::from_mbps(5)]);
    assert_eq!((wifi.marks, wifi.slots), (false, None));
    assert_eq!(scenario.networks[1].wifi, None);
    for (wrong, said) in [
        (
            "standard = \"ac\", channel = 6",
            "unknown standard \"ac\"; write a, b, g or n",
        ),
        (
            "standard = \"b\", channel = 6, rate = \"54mbit\"",
            "write one of 1mbit, 2mbit, 5.5mbit, 11mbit",
        ),
        (
            "standard = \"g\", channel = 6, power = \"-70\"",
            "like \"-70dBm\"",
        ),
        (
            "standard = \"g\", channel = 6, loss = 0.1, power = \"-70dBm\"",
            "remove one",
        ),
        ("standard = \"g\", channel = 6, loss = 1.0", "below 1.0"),
        (
            "standard = \"g\", channel = 6, slots = \"equal\"",
            "unknown variant `equal`, expected `fixed` or `adaptive`",
        ),
        (
            "standard = \"g\", channel = 6, colour = 1",
            "unknown field `colour`",
        ),
    ] {
        let problem = problem(&with(wrong));
        assert!(
            problem.starts_with("dir/a.toml:9: ") && problem.contains(said),
            "{problem}"
        );
    }
}

#[test]
fn a_workload_may_go_its_own_way() {
    let with = |via: &str| {
        FULL.replace(
            "congestion = \"cubic\"",
            &format!("direction = \"both\"\nvia = \"{via}\""),
        )
    };
    let with = |via: &str| parse_with(&with(via).replacen("direction = \"down\"\n", "", 1), &[]);
    let both = |way: CompetingSystem| BTreeMap::from([(0, way.clone()), (1, way)]);
    let single = with("single:lte").expect("legal");
    assert_eq!(single.competing, both(CompetingSystem::Single("lte".to_owned())));
    assert_eq!(
        with("other-client").expect("legal").competing,
        both(CompetingSystem::OtherClient)
    );
    for (wrong, part) in [
        ("single:wifi", "no network is called"),
        ("hub", "member:<member> or other-client"),
    ] {
        let error = with(wrong).expect_err("illegal").to_string();
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(parse_with(FULL, &[]).expect("legal").competing, BTreeMap::new());
}

const MEMBERS: &str = r#"
name = "neighbours"
duration = "20s"
via = "hub"

[[network]]
name = "own"
down = { rate = "8mbit", delay = "20ms" }
up = { rate = "8mbit", delay = "20ms" }

[[member]]
name = "bob"
down = { rate = "5mbit", delay = "25ms" }
up = { rate = "2mbit", delay = "25ms" }
local = { up = { delay = "2ms" } }
cap = "4mbit"
away = [["0s", "3s"], ["10s", "12s"]]

[[workload]]
kind = "tcp"

[[workload]]
kind = "tcp"
via = "member:bob"

[[event]]
at = "5s"
network = "bob"
set = { rate = "1mbit" }
"#;

#[test]
fn a_member_is_a_network_behind_a_local_link_that_comes_and_goes() {
    let scenario = parse_with(MEMBERS, &[]).expect("a scenario");
    let [own, bob] = scenario.networks.as_slice() else {
        panic!("{:?}", scenario.networks)
    };
    assert_eq!((&own.member, bob.name.as_str()), (&None, "bob"));
    let member = bob.member.as_ref().expect("a member");
    assert_eq!(member.cap, Some(Rate::from_mbps(4)));
    assert_eq!(member.local.up.delay, Duration::from_millis(2));
    assert_eq!(member.local.down, LinkConfig::default());
    assert!(member.is_away_at_start());
    let said: Vec<_> = scenario
        .events
        .iter()
        .map(|event| (event.at.as_secs(), event.network, event.hop, event.change.state))
        .collect();
    let (gone, back) = (Some(State::Blackhole), Some(State::Up));
    assert_eq!(
        said,
        [
            (0, 1, Hop::Local, gone),
            (3, 1, Hop::Local, back),
            (5, 1, Hop::WayOut, None),
            (10, 1, Hop::Local, gone),
            (12, 1, Hop::Local, back),
        ]
    );
    assert_eq!(
        scenario.competing.get(&1),
        Some(&CompetingSystem::Member("bob".into()))
    );
    assert_eq!(scenario.sum_of_rates(), Some(Rate::from_mbps(13)));
}

#[test]
fn members_that_make_no_sense_are_refused() {
    let changed = |from: &str, to: &str| problem(&MEMBERS.replace(from, to));
    assert!(changed("\"0s\", \"3s\"", "\"3s\", \"3s\"").contains(":17: write times that follow"));
    assert!(changed("\"10s\", \"12s\"", "\"2s\", \"12s\"").contains("follow each other"));
    assert!(changed("name = \"bob\"\ndown", "name = \"own\"\ndown").contains("two networks"));
    assert!(changed("name = \"bob\"\ndown", "name = \"Bob\"\ndown").contains("a-z, 0-9"));
    assert!(changed("member:bob", "member:own").contains("member:<member>"));
}

#[test]
fn a_network_may_block_udp() {
    let read = |udp: &str| {
        let text = format!(
            "name = \"b\"\nduration = \"1s\"\nvia = \"hub\"\n[[network]]\nname = \"a\"\nudp = \"{udp}\"\n"
        );
        Scenario::parse(&text, Path::new("b.toml"), &[], &mut |_| Ok(Vec::new()))
    };
    assert!(read("blocked").expect("legal").networks[0].blocks_udp);
    let error = read("open").expect_err("no such word").to_string();
    assert_eq!(
        error,
        "b.toml:6: unknown udp \"open\"; write \"blocked\", or nothing"
    );
}

fn with_capture(fields: &str) -> Result<Scenario, ScenarioError> {
    let text = format!(
        "name = \"c\"\nduration = \"20s\"\nvia = \"hub\"\n[[network]]\nname = \"a\"\n[[workload]]\nkind = \
         \"capture\"\n{fields}\n"
    );
    let call = include_bytes!("../../../../scenarios/call.pcap");
    Scenario::parse(
        &text,
        Path::new("dir/c.toml"),
        &[],
        &mut |path| match path.to_str() {
            Some("dir/call.pcap") => Ok(call.to_vec()),
            Some("dir/cut.pcap") => Ok(call[..call.len() - 1].to_vec()),
            Some("dir/notes.pcap") => Ok(b"notes".to_vec()),
            _ => Err(std::io::ErrorKind::NotFound.into()),
        },
    )
}

#[test]
fn a_capture_is_a_workload_in_each_direction_of_each_flow() {
    let read = |fields: &str| with_capture(fields).expect("a scenario").workloads;
    let workloads = read("file = \"cut.pcap\"\nstart = \"2s\"\nrepeat = 3");
    let [
        Workload::Capture {
            direction: Direction::Up,
            track: up,
        },
        Workload::Capture {
            direction: Direction::Down,
            track: down,
        },
    ] = workloads.as_slice()
    else {
        panic!("{workloads:?}")
    };
    assert_eq!(up.origin.flow, "192.168.1.5:5004 > 203.0.113.7:5004");
    assert_eq!(down.origin.flow, "203.0.113.7:5004 > 192.168.1.5:5004");
    let omitted = up.origin.omitted.as_deref();
    assert_eq!(
        omitted,
        Some("the file ends within a packet, the 399 before it are used")
    );
    assert_eq!(down.origin.omitted, None, "it is reported once");
    assert_eq!((up.datagrams.len(), down.datagrams.len()), (200, 199));
    let times = [0, 199, 200, 599].map(|number| up.datagram(number).map(|one| one.at.as_millis()));
    let times_ms = [2_000, 5_980, 6_000, 13_980].map(Some);
    assert_eq!(times, times_ms, "the repetitions continue the rhythm");
    assert_eq!(up.datagram(600), None);
    let from_the_other_side = read("file = \"call.pcap\"\nlocal = \"203.0.113.7\"");
    let [Workload::Capture { direction, track }, _] = from_the_other_side.as_slice() else {
        panic!("{from_the_other_side:?}")
    };
    assert_eq!(
        (*direction, track.origin.flow.as_str()),
        (Direction::Up, down.origin.flow.as_str())
    );
    let competing = with_capture("file = \"call.pcap\"\nvia = \"single:a\"").expect("a scenario");
    assert_eq!(competing.competing.len(), 2);
}

#[test]
fn captures_that_cannot_be_replayed_are_refused_with_the_reason() {
    for (fields, reason) in [
        ("", "a capture workload needs a file, like file = \"call.pcap\""),
        (
            "file = \"none.pcap\"",
            "capture dir/none.pcap: entity not found; it is looked for beside the scenario",
        ),
        (
            "file = \"notes.pcap\"",
            "capture dir/notes.pcap: it is neither pcap nor pcapng; write it with tcpdump -w or Wireshark",
        ),
        (
            "file = \"call.pcap\"\ndirection = \"up\"",
            "direction means nothing to a capture workload; remove it",
        ),
        (
            "file = \"call.pcap\"\nstart = \"20s\"",
            "start must be before the end of the scenario",
        ),
        (
            "file = \"call.pcap\"\nrepeat = 0",
            "repeat must be at least 1, and at most 2500 for this capture",
        ),
        (
            "file = \"call.pcap\"\nrepeat = 2501",
            "repeat must be at least 1, and at most 2500 for this capture",
        ),
        (
            "file = \"call.pcap\"\nlocal = \"10.0.0.1\"",
            "capture dir/call.pcap: no UDP datagram has the local address 10.0.0.1; the first is from 192.168.1.5 to \
             203.0.113.7",
        ),
    ] {
        let error = with_capture(fields).expect_err("must be refused").to_string();
        assert_eq!(error, format!("dir/c.toml:7: {reason}"));
    }
    let address = with_capture("file = \"call.pcap\"\nlocal = \"alice\"").expect_err("no address");
    assert!(
        address
            .to_string()
            .starts_with("dir/c.toml:9: \"alice\" is not an address")
    );
    assert!(
        problem(&FULL.replace("streams = 1", "repeat = 2"))
            .contains("repeat means nothing to a tcp workload")
    );
}
