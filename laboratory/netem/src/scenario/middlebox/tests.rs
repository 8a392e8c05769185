use std::path::Path;

use super::super::{Scenario, ScenarioError};
use super::*;
use crate::State;

fn parse(down: &str, more: &str) -> Result<Scenario, ScenarioError> {
    let text = format!(
        "name = \"x\"\nduration = \"60s\"\nvia = \"hub\"\n[[network]]\nname = \"a\"\n\
         down = {{ rate = \"5mbit\"{down} }}\nup = {{ rate = \"5mbit\" }}\n{more}"
    );
    Scenario::parse(&text, Path::new("x.toml"), &[], &mut |_| Ok(Vec::new()))
}

fn down(field: &str) -> crate::MiddleboxConfig {
    let scenario = parse(&format!(", {field}"), "").unwrap_or_else(|error| panic!("{field}: {error}"));
    let links = scenario.networks[0].links.as_ref().expect("emulated");
    assert!(links.up.middlebox.is_transparent(), "a field is of one direction");
    links.down.middlebox
}

#[test]
fn reads_a_path_mtu_with_and_without_answers() {
    let is = |field, size, icmp| assert_eq!(down(field).mtu, Some(PathMtu { size, icmp }), "{field}");
    is("mtu = 1492", 1492, false);
    is("mtu = \"1492B\"", 1492, false);
    is("mtu = { size = 1280, icmp = true }", 1280, true);
    is("mtu = { size = \"1400B\" }", 1400, false);
    assert_eq!(down("mtu = \"off\"").mtu, None);
}

#[test]
fn reads_policers_treatments_of_ecn_and_hangs() {
    let policer = down("policer = { rate = \"1mbit\", burst = \"15KiB\", protocol = \"udp\" }").policer;
    let wanted = Policer {
        rate: Rate::from_mbps(1),
        burst: Bytes(15 * 1024),
        protocol: Protocol::Udp,
        from: Duration::ZERO,
    };
    assert_eq!(policer, Some(wanted));
    for (name, ecn) in [
        ("mark", EcnTreatment::Mark),
        ("drop", EcnTreatment::Drop),
        ("bleach", EcnTreatment::Bleach),
        ("pass", EcnTreatment::Pass),
    ] {
        assert_eq!(down(&format!("ecn = \"{name}\"")).ecn, ecn);
    }
    let hang = Hang {
        above: 1436,
        time: Duration::from_secs(60),
        protocol: Protocol::All,
    };
    assert_eq!(down("hang = { above = 1436, time = \"60s\" }").hang, Some(hang));
}

#[test]
fn a_policer_that_starts_later_is_an_event_of_its_direction() {
    let scenario = parse(
        ", policer = { rate = \"1mbit\", burst = \"15KiB\", from = \"30s\" }",
        "",
    )
    .expect("legal");
    let [event] = scenario.events.as_slice() else {
        panic!("{:?}", scenario.events);
    };
    assert_eq!(
        (event.at, event.direction),
        (Duration::from_secs(30), Some(Direction::Down))
    );
    let started = event.change.middlebox.policer.flatten().expect("a policer");
    assert!(started.from.is_zero());
}

#[test]
fn reads_a_nat_and_the_events_that_are_new() {
    let event = |set: &str| format!("[[event]]\nat = \"1s\"\nnetwork = \"a\"\nset = {set}\n");
    let of = |more: &str| parse("", more).expect("legal");
    let nat = of("nat = { timeout = \"30s\", change_ports = true }").networks[0].nat;
    assert_eq!(
        nat,
        Some(NatConfig {
            timeout: Some(Duration::from_secs(30)),
            change_ports: true
        })
    );
    let flush = of(&format!("nat = {{}}\n{}", event("\"nat-flush\"")));
    assert!(flush.events[0].network_change.flush_nat);
    let state = |set: &str| of(&event(set)).events[0].change.state;
    assert_eq!(state("\"no-carrier\""), Some(State::NoCarrier));
    assert_eq!(state("\"carrier\""), Some(State::NoCarrier));
    let device = of(&event("{ device_mtu = 1400 }"));
    assert_eq!(device.events[0].network_change.device_mtu, Some(1400));
    let off = of(&event("{ mtu = \"off\", hang = \"off\", policer = \"off\" }"));
    let change = off.events[0].change.middlebox;
    assert_eq!(
        (change.mtu, change.hang, change.policer),
        (Some(None), Some(None), Some(None))
    );
}

#[test]
fn bad_values_are_refused_in_one_line_that_shows_how_to_write_them() {
    let table = [
        (
            ", mtu = 20",
            "20 is no size of IP packets; write 68 to 65535 bytes",
        ),
        (
            ", mtu = \"1492\"",
            "\"1492\" is not a size; write 1492 or \"1492B\"",
        ),
        (", mtu = true", "1492 or { size = 1492, icmp = true }, or \"off\""),
        (", mtu = { icmp = true }", "missing field `size`"),
        (", policer = { rate = \"1mbit\" }", "missing field `burst`"),
        (", policer = { rate = 1, burst = \"15KiB\" }", "1 has no unit"),
        (
            ", policer = { rate = \"1mbit\", burst = \"1KiB\" }",
            "at least \"1514B\"",
        ),
        (
            ", policer = { rate = \"1mbit\", burst = \"15KiB\", protocol = \"tcp\" }",
            "unknown variant `tcp`, expected `udp` or `all`",
        ),
        (", policer = 1000", "write { rate = \"1mbit\", burst = \"15KiB\""),
        (", ecn = \"clear\"", "expected one of `mark`, `drop`, `bleach`"),
        (", hang = { above = 1436 }", "missing field `time`"),
        (", hang = { above = 1436, time = 60 }", "60 has no unit"),
        (", hang = { above = 1436, time = \"0s\" }", "takes no time"),
        (
            ", hang = \"60s\"",
            "\"60s\" is not known; write { above = 1436, time = \"60s\" }",
        ),
        (", device_mtu = 1400", "for a link write mtu"),
    ];
    for (field, words) in table {
        let said = parse(field, "").expect_err("must be refused").to_string();
        assert!(
            said.starts_with("x.toml:6: ") && said.contains(words),
            "{field}: {said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let refused = |more: &str| parse("", more).expect_err("must be refused").to_string();
    let event = |set: &str| format!("[[event]]\nat = \"1s\"\nnetwork = \"a\"\nset = {set}\n");
    assert!(refused(&event("\"nat-flush\"")).contains("no nat to flush"));
    assert!(refused(&event("{ device_mtu = 9000 }")).contains("576 to 1500"));
    let late = "{ policer = { rate = \"1mbit\", burst = \"15KiB\", from = \"3s\" } }";
    assert!(refused(&event(late)).contains("remove `from`"));
    assert!(refused("nat = { timeout = \"500ms\" }").contains("whole seconds"));
}
