//! Effects of middleboxes on real packets: sizes, rates, ECN, hangs, translators and carriers.

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

/// Serializes the runs: two cores suffice for one.
static ALONE: Mutex<()> = Mutex::new(());

/// Returns a scenario of network `a` with `fields` towards the client, followed by `more`, with
/// workloads and events.
fn scenario(head: &str, fields: &str, more: &str) -> String {
    format!(
        "name = \"middlebox\"\nduration = \"3s\"\n{head}\n[[network]]\nname = \"a\"\n\
         down = {{ rate = \"20mbit\", delay = \"5ms\"{fields} }}\nup = {{ rate = \"20mbit\", delay = \"5ms\" }}\n{more}"
    )
}

/// Returns the lab's report; `None` if namespaces are not permitted.
fn lab(text: &str) -> Option<Value> {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("scenario.toml");
    std::fs::write(&file, text).expect("written");
    let program = env!("CARGO_BIN_EXE_hawser-lab");
    let _ = hawser_testing::require_sibling(program, "hawser");
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let output = Command::new(program)
        .arg("lab")
        .arg(&file)
        .arg("--json")
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    let forbidden = ["needs root", "not permitted", "Permission denied", "/dev/net/tun"];
    if output.status.code() == Some(1) && forbidden.iter().any(|word| said.contains(word)) {
        hawser_testing::skip(format!("the lab cannot run: {said}"));
        return None;
    }
    assert!(output.status.success(), "{said}");
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

fn udp(rate: &str, size: u32) -> String {
    format!("[[workload]]\nkind = \"udp\"\nrate = \"{rate}\"\nsize = \"{size}B\"\n")
}

const SINGLE: &str = "via = \"single:a\"";
const TCP: &str = "[[workload]]\nkind = \"tcp\"\n";

fn received(report: &Value, workload: usize) -> u64 {
    report["workloads"][workload]["received"]
        .as_u64()
        .expect("a number")
}

fn goodput(report: &Value) -> f64 {
    report["goodput_bps"]["total"].as_f64().expect("a number")
}

#[test]
fn a_path_mtu_without_answers_drops_the_larger_packets_only() {
    let more = udp("2mbit", 1200) + &udp("2mbit", 1253);
    let Some(report) = lab(&scenario(SINGLE, ", mtu = 1280", &more)) else {
        return;
    };
    assert!(received(&report, 0) > 0, "{report}");
    assert_eq!(received(&report, 1), 0, "{report}");
}

/// The kernel learns the size from the answer and cuts its segments (RFC 1191).
#[test]
fn a_path_mtu_with_answers_lets_tcp_pass_and_one_without_does_not() {
    let of = |mtu: &str| lab(&scenario(SINGLE, &format!(", mtu = {mtu}"), TCP));
    let (Some(answered), Some(silent)) = (of("{ size = 1280, icmp = true }"), of("1280")) else {
        return;
    };
    assert!(goodput(&answered) > 0.0, "{answered}");
    assert_eq!(goodput(&silent), 0.0, "{silent}");
}

#[test]
fn a_policer_of_udp_drops_what_exceeds_it_and_leaves_tcp_alone() {
    let policer = ", policer = { rate = \"1mbit\", burst = \"15KiB\", protocol = \"udp\" }";
    let Some(policed) = lab(&scenario(SINGLE, policer, &udp("4mbit", 1200))) else {
        return;
    };
    let loss = policed["workloads"][0]["loss"].as_f64().expect("a share");
    assert!(loss > 0.3, "a fourth conforms: {policed}");
    let tcp = lab(&scenario(SINGLE, policer, TCP)).expect("as before");
    // The queue drops few packets in comparison with those that pass.
    let down = |what: &str| tcp["networks"]["a"]["down"][what].as_f64().expect("a number");
    assert!(down("lost") < down("packets") / 5.0, "{tcp}");
}

#[test]
fn ecn_is_marked_dropped_or_cleared() {
    let of = |ecn: &str| {
        let head = format!("{SINGLE}\ntcp_ecn = true");
        lab(&scenario(&head, &format!(", ecn = \"{ecn}\""), TCP)).map(|report| goodput(&report))
    };
    let Some(cleared) = of("bleach") else { return };
    let (marked, dropped) = (of("mark").expect("as before"), of("drop").expect("as before"));
    assert!(marked < cleared / 2.0 && marked > 0.0, "{marked} of {cleared}");
    // Retransmissions are not ECT (RFC 3168 section 6.1.5), and pass.
    assert!(dropped < cleared / 20.0, "{dropped} of {cleared}");
}

#[test]
fn a_packet_above_the_size_stops_both_directions() {
    let hang = ", hang = { above = 1300, time = \"60s\" }";
    let ping = "[[workload]]\nkind = \"ping\"\ninterval = \"20ms\"\n";
    let Some(harmless) = lab(&scenario(SINGLE, hang, &(udp("1mbit", 1200) + ping))) else {
        return;
    };
    assert!(received(&harmless, 1) > 0, "{harmless}");
    let hung = lab(&scenario(SINGLE, hang, &(udp("1mbit", 1400) + ping))).expect("as before");
    assert_eq!(received(&hung, 0), 0, "{hung}");
    let sent = hung["workloads"][1]["sent"].as_u64().expect("a number");
    assert!(received(&hung, 1) < sent / 2, "{hung}");
    let up = hung["networks"]["a"]["up"]["lost"].as_u64().expect("a number");
    assert!(up > 0, "requests are lost on their way up: {hung}");
}

#[test]
fn a_router_that_forgets_and_changes_ports_does_not_end_the_tunnel() {
    let nat = "nat = { change_ports = true }\n";
    let flush = |at: &str| format!("[[event]]\nat = \"{at}\"\nnetwork = \"a\"\nset = \"nat-flush\"\n");
    let more = format!("{nat}{TCP}{}{}", flush("1s"), flush("2s"));
    let Some(report) = lab(&scenario("via = \"hub\"", "", &more)) else {
        return;
    };
    let bins = report["series"]["bytes"].as_array().expect("a series");
    let last: u64 = bins[250..].iter().filter_map(Value::as_u64).sum();
    assert!(
        last > 0,
        "nothing arrives after the router has forgotten: {report}"
    );
}

/// TCP over the kernel alone ends if its port changes; with the same port it continues.
#[test]
fn a_flush_that_keeps_the_port_lets_tcp_go_on() {
    let flush = "[[event]]\nat = \"1s\"\nnetwork = \"a\"\nset = \"nat-flush\"\n";
    let more = format!("nat = {{ timeout = \"30s\" }}\n{TCP}{flush}");
    let Some(report) = lab(&scenario(SINGLE, "", &more)) else {
        return;
    };
    let bins = report["series"]["bytes"].as_array().expect("a series");
    let last: u64 = bins[200..].iter().filter_map(Value::as_u64).sum();
    assert!(last > 0, "{report}");
}

#[test]
fn a_lost_carrier_stops_a_network_until_it_is_back() {
    let event = |at: &str, set: &str| format!("[[event]]\nat = \"{at}\"\nnetwork = \"a\"\nset = \"{set}\"\n");
    let more = TCP.to_owned() + &event("1s", "no-carrier") + &event("1500ms", "up");
    let Some(report) = lab(&scenario(SINGLE, "", &more)) else {
        return;
    };
    // The half second without a carrier, plus the time until TCP detects its return.
    let gap = report["longest_gap_ms"].as_f64().expect("a number");
    assert!(gap > 400.0, "{report}");
    let bins = report["series"]["bytes"].as_array().expect("a series");
    let last: u64 = bins[200..].iter().filter_map(Value::as_u64).sum();
    assert!(last > 0, "{report}");
}

#[test]
fn an_interface_gets_another_mtu() {
    let event = "[[event]]\nat = \"500ms\"\nnetwork = \"a\"\nset = { device_mtu = 1280 }\n";
    let upload = "[[workload]]\nkind = \"tcp\"\ndirection = \"up\"\n";
    let Some(report) = lab(&scenario(SINGLE, "", &format!("{upload}{event}"))) else {
        return;
    };
    let bins = report["series"]["bytes"].as_array().expect("a series");
    let last: u64 = bins[100..].iter().filter_map(Value::as_u64).sum();
    assert!(last > 0, "{report}");
}
