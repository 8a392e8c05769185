//! Tests of the lab as run by a user: real namespaces, real TCP, and no remaining state.

use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

const SCENARIO: &str = r#"
name = "two networks"
duration = "2s"
warmup = "500ms"
via = "single:left"

[[network]]
name = "left"
down = { rate = "20mbit", delay = "5ms" }
up = { rate = "20mbit", delay = "5ms" }

[[network]]
name = "right"
down = { rate = "20mbit", delay = "5ms" }
up = { rate = "20mbit", delay = "5ms" }

[[workload]]
kind = "tcp"

[[workload]]
kind = "ping"
interval = "20ms"
"#;

/// Serializes the runs: they measure the speed of the machine, and two cores suffice for one run.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs the lab. Returns its output and process id; `None` if namespaces are not permitted.
fn lab(name: &str, arguments: &[&str]) -> Option<(Output, u32)> {
    lab_of(SCENARIO, name, arguments)
}

fn lab_of(scenario: &str, name: &str, arguments: &[&str]) -> Option<(Output, u32)> {
    let file = std::env::temp_dir().join(format!("hawser-test-{}-{name}.toml", std::process::id()));
    std::fs::write(&file, scenario).expect("a temporary file can be written");
    let program = env!("CARGO_BIN_EXE_hawser-lab");
    // The lab runs this program's daemons.
    let _ = hawser_testing::require_sibling(program, "hawser");
    // A failed run leaves no state that affects the next one, so a poisoned lock is ignored.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let child = Command::new(program)
        .arg("lab")
        .arg(&file)
        .args(arguments)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let pid = child.id();
    let output = child.wait_with_output().expect("the binary ends");
    std::fs::remove_file(&file).expect("the temporary file is there");
    (!is_forbidden(&output)).then_some((output, pid))
}

/// Returns whether namespaces are forbidden here, and reports it.
fn is_forbidden(output: &Output) -> bool {
    let said = String::from_utf8_lossy(&output.stderr);
    let words = ["needs root", "not permitted", "Permission denied", "/dev/net/tun"];
    let is_forbidden = output.status.code() == Some(1) && words.iter().any(|word| said.contains(word));
    if is_forbidden {
        hawser_testing::skip(format!("the lab cannot run: {said}"));
    }
    is_forbidden
}

/// Scenario of a repeater with a link on its own channel and a link on its client's channel.
const REPEATER: &str = r#"
name = "shared air"
duration = "12s"
warmup = "5s"
via = "repeater"
client_hop = { rate = "30mbit", queue = "100ms" }

[[network]]
name = "own"
down = { rate = "20mbit", delay = "2ms" }
up = { rate = "20mbit", delay = "2ms" }

[[network]]
name = "near"
shares = "client-hop"
down = { rate = "40mbit", delay = "2ms" }
up = { rate = "40mbit", delay = "2ms" }

[[workload]]
kind = "udp"
rate = "36mbit"
size = "1200B"

[[workload]]
kind = "ping"
interval = "20ms"
"#;

/// Multifacet section 3.2: the access point's frames on the client's channel take the airtime that
/// the client's frames need, unless they are limited to the remaining airtime.
#[test]
fn a_repeater_leaves_its_client_the_air() {
    let run = |throttle: &str| {
        let setting = format!("client_hop.throttle={throttle}");
        let (output, _) = lab_of(REPEATER, throttle, &["--set", &setting, "--json"])?;
        let report = report(&output);
        let number = |value: &Value| value.as_f64().expect("a number");
        Some([
            number(&report["goodput_bps"]["workloads"][0]),
            number(&report["client_hop"]["lost"]),
            number(&report["rtt_ms"]["p50"]),
        ])
    };
    let (Some(with), Some(without)) = (run("true"), run("false")) else {
        return;
    };
    let said = format!("goodput, lost, round trip: {with:?} with, {without:?} without");
    assert!(with[0] > without[0] * 1.1, "{said}");
    assert!(with[1] * 4.0 < without[1], "{said}");
    assert!(with[2] * 1.5 < without[2], "{said}");
}

/// Returns a scenario with two networks, the second of which belongs to a neighbour.
fn with_member() -> String {
    let member = "[[member]]\nname = \"right\"\naway = [[\"4s\", \"9s\"]]";
    let (first, last) = SCENARIO
        .rsplit_once("[[network]]\nname = \"right\"")
        .expect("it is there");
    format!("{first}{member}{last}")
}

/// Returns the report of a successful run.
fn report(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn carries_a_download_at_the_rate_of_its_network_and_leaves_nothing() {
    let devices_before = std::fs::read_to_string("/proc/net/dev")
        .expect("readable")
        .lines()
        .count();
    let Some((output, pid)) = lab("single", &["--json"]) else {
        return;
    };
    let result = report(&output);
    let goodput = result["goodput_bps"]["workloads"][0].as_f64().expect("a number");
    assert!((12e6..20e6).contains(&goodput), "{goodput}");
    let idle = result["networks"]["right"]["packets"].as_u64().expect("a number");
    assert!(idle < 20, "{idle} packets are more than IPv6's own");
    assert!(result["networks"]["left"]["bytes"].as_u64().expect("a number") > 2_000_000);
    assert!(result["rtt_ms"]["min"].as_f64().expect("a number") >= 10.0);
    assert_eq!(result["series"]["bytes"].as_array().map(Vec::len), Some(200));

    let run_dir = std::env::temp_dir().join(format!("hawser-lab-{pid}"));
    assert!(!run_dir.exists(), "{} is left", run_dir.display());
    let devices_after = std::fs::read_to_string("/proc/net/dev")
        .expect("readable")
        .lines()
        .count();
    assert_eq!(devices_before, devices_after, "a device is left");
}

#[test]
fn a_neighbour_adds_its_modem_until_it_leaves_without_a_word() {
    let settings = ["--json", "--set", "via=hub", "--set", "duration=7s"];
    let Some((output, _)) = lab_of(&with_member(), "member", &settings) else {
        return;
    };
    let result = report(&output);
    let bytes = result["networks"]["right"]["down"]["bytes"]
        .as_u64()
        .expect("a number");
    assert!(bytes > 2_000_000, "the neighbour has carried {bytes} bytes");
    let series = result["series"]["networks"]["right"]
        .as_array()
        .expect("a series");
    let late = &series[series.len() - 10..];
    let after: u64 = late.iter().filter_map(Value::as_u64).sum();
    // The hub may still send a few packets to the old address.
    assert!(after < 50_000, "{after} bytes went through it in the last second");
    let bins = result["series"]["bytes"].as_array().expect("a series");
    let last: u64 = bins[600..].iter().filter_map(Value::as_u64).sum();
    assert!(last > 1_000_000, "the download went on: {last}");
}

#[test]
fn a_video_over_a_network_that_loses_is_shown_whole() {
    let settings = [
        "--json",
        "--set",
        "via=hub",
        "--set",
        "workload.0.kind=video",
        "--set",
        "workload.0.rate=1mbit",
        "--set",
        "network.0.down.loss=0.03",
        "--set",
        "duration=5s",
    ];
    let Some((output, _)) = lab("video", &settings) else {
        return;
    };
    let result = report(&output);
    let video = &result["workloads"][0];
    let count = |what: &str| video[what].as_f64().expect("a number");
    // Pictures of the last 400 ms do not count, and the last two B pictures lack an anchor.
    assert!((100.0..=125.0).contains(&count("pictures")), "{video}");
    assert!(count("shown") > 0.9 * count("pictures"), "{video}");
}

#[test]
fn carries_quic() {
    let settings = ["--json", "--set", "workload.0.kind=quic", "--set", "duration=4s"];
    let Some((output, _)) = lab("quic", &settings) else {
        return;
    };
    let result = report(&output);
    let goodput = result["goodput_bps"]["workloads"][0].as_f64().expect("a number");
    assert!((10e6..20e6).contains(&goodput), "{goodput}");
}

#[test]
fn without_a_hub_parallel_connections_use_both_networks_and_go_on_over_the_one_that_is_left() {
    let off = [
        "--set",
        "event=[{ at = \"2500ms\", network = \"left\", set = \"down\" }]",
    ];
    let mut arguments = vec![
        "--json",
        "--set",
        "via=direct",
        "--set",
        "workload.0.streams=4",
        "--set",
        "duration=5s",
    ];
    arguments.extend(off);
    let Some((output, _)) = lab("direct", &arguments) else {
        return;
    };
    let result = report(&output);
    for network in ["left", "right"] {
        let bytes = result["networks"][network]["bytes"].as_u64().expect("a number");
        assert!(bytes > 2_000_000, "{network}: {bytes}");
    }
    let (both, left) = (mbps(&result, 1.0, 2.4), mbps(&result, 3.5, 4.8));
    assert!(both > 32.0, "both: {both}");
    assert!(left > 14.0, "the one that is left: {left}");
}

#[test]
fn without_a_hub_one_multipath_connection_uses_both_networks_and_outlives_one() {
    let arguments = [
        "--json",
        "--set",
        "via=direct-mptcp",
        "--set",
        "duration=7s",
        "--set",
        "event=[{ at = \"3s\", network = \"left\", set = \"down\" }]",
    ];
    let Some((output, _)) = lab("direct-mptcp", &arguments) else {
        return;
    };
    let result = report(&output);
    // The kernel retransmits the packets of the failed network's queue for 1 to 2 s, with pauses.
    let (both, left) = (mbps(&result, 1.0, 2.9), mbps(&result, 5.0, 6.8));
    assert!(both > 28.0, "both: {both}");
    assert!(left > 14.0, "the one that is left: {left}");
}

/// Returns the received rate between two times of a run. Units: s, Mbit/s.
fn mbps(result: &Value, from: f64, to: f64) -> f64 {
    let bins = result["series"]["bytes"].as_array().expect("bins of 10 ms");
    let within = &bins[(from * 100.0) as usize..(to * 100.0) as usize];
    let bytes: u64 = within.iter().filter_map(Value::as_u64).sum();
    bytes as f64 * 8.0 / 1e6 / (to - from)
}

#[test]
fn says_which_program_it_misses() {
    let alone = tempfile::tempdir().expect("a directory");
    let program = alone.path().join("hawser-lab");
    std::fs::copy(env!("CARGO_BIN_EXE_hawser-lab"), &program).expect("copied");
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/device-down.toml");
    let output = Command::new(&program).args(["lab", scenario]).output();
    let output = output.expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let expected = format!(
        "hawser-lab: there is no {}",
        alone.path().join("hawser").display()
    );
    assert!(said.starts_with(&expected), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn refuses_a_wrong_scenario_before_it_touches_anything() {
    let Some((output, _)) = lab("wrong", &["--set", "network.0.down.rate=5"]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        said.trim(),
        "hawser-lab: --set network.0.down.rate=5: 5 has no unit; write a string like \"20mbit\""
    );
}

#[test]
fn between_two_peers_one_connection_outlives_its_networks() {
    let events = "event=[{ at = \"2s\", network = \"left\", set = \"down\" }, { at = \"6s\", network = \"left\", set = \"up\" }, \
                  { at = \"10s\", network = \"right\", set = \"down\" }]";
    let arguments = [
        "--json",
        "--set",
        "via=peer",
        "--set",
        "workload=[{ kind = \"tcp\" }]",
        "--set",
        "duration=14s",
        "--set",
        events,
    ];
    let Some((output, _)) = lab("peer", &arguments) else {
        return;
    };
    let result = report(&output);
    // The end of a connection ends the run.
    assert_eq!(result["series"]["bytes"].as_array().map(Vec::len), Some(1_400));
    // Long enough for a busy machine to notice that a network has gone.
    for (from, to) in [(4.0, 6.0), (8.0, 10.0), (12.0, 14.0)] {
        assert!(
            mbps(&result, from, to) > 0.0,
            "nothing was delivered from {from} s on"
        );
    }
}

/// Frames between two bridges use both networks.
#[test]
fn a_repeater_carries_a_download_over_both_networks() {
    let Some((output, _)) = lab("repeater", &["--json", "--set", "via=repeater"]) else {
        return;
    };
    let result = report(&output);
    let delivered = mbps(&result, 0.5, 2.0);
    assert!(delivered > 24.0, "{delivered} Mbit/s of two networks of 20");
}

/// Every scheduler carries a download over a real hub. Schedulers that distribute traffic send each
/// byte over one network and deliver at least 1.5 times the bytes of the busier network.
/// `redundant` sends many bytes over both.
///
/// Delivered bytes are compared with the bytes on the networks in the same run, so that a slow
/// machine changes neither ratio.
#[test]
fn every_scheduler_carries_a_download_as_it_says() {
    for scheduler in SCHEDULERS {
        let set = format!("schedulers={{ bulk = \"{scheduler}\", interactive = \"{scheduler}\" }}");
        let arguments = ["--json", "--set", "via=hub", "--set", &set];
        let Some((output, _)) = lab(scheduler, &arguments) else {
            return;
        };
        let result = report(&output);
        let delivered = mbps(&result, 0.0, 2.0);
        let down = ["left", "right"].map(|network| {
            let bytes = result["networks"][network]["down"]["bytes"].as_u64();
            bytes.expect("a number") as f64 * 8.0 / 2e6
        });
        let (gain, spent) = (delivered / down[0].max(down[1]), (down[0] + down[1]) / delivered);
        if scheduler == "redundant" {
            assert!(spent > 1.15, "{scheduler}: {spent}, {down:?}");
        } else {
            assert!(
                gain > 1.5 && spent < 1.15,
                "{scheduler}: {gain}, {spent}, {down:?}"
            );
        }
    }
}

const SCHEDULERS: [&str; 11] = hawser_wire::control::SCHEDULERS;

#[test]
fn a_download_through_a_hub_has_the_sum_of_its_networks_and_then_the_one_that_is_left() {
    let arguments = [
        "--json",
        "--set",
        "via=hub",
        "--set",
        "duration=5s",
        "--set",
        "event=[{ at = \"3s\", network = \"right\", set = \"down\" }]",
    ];
    let Some((output, _)) = lab("sum", &arguments) else {
        return;
    };
    let result = report(&output);
    let (both, left) = (mbps(&result, 1.0, 2.9), mbps(&result, 3.7, 4.9));
    assert!(left > 0.0, "the download ended with its network");
    assert!(
        (1.6..2.5).contains(&(both / left)),
        "both: {both}, the one that is left: {left}"
    );
}

/// Returns the hub's rate divided by that of the better network alone, where TCP interprets losses
/// and reordering as congestion.
fn over_best_single(name: &str, link: &str) -> Option<f64> {
    let of = |network: u8, way: &str| format!("network.{network}.{way}={link}");
    let links = [of(0, "down"), of(1, "down"), of(0, "up"), of(1, "up")];
    let mut arguments = vec![
        "--json",
        "--set",
        "via=hub",
        "--set",
        "duration=5s",
        "--vs",
        "single:left",
    ];
    arguments.extend(links.iter().flat_map(|link| ["--set", link.as_str()]));
    let (output, _) = lab(name, &arguments)?;
    Some(report(&output)["over_best_single"].as_f64().expect("a number"))
}

#[test]
fn losses_of_networks_do_not_reach_a_download_through_a_hub() {
    let link = "{ rate = \"20mbit\", delay = \"20ms\", loss = 0.02 }";
    if let Some(gain) = over_best_single("loss", link) {
        assert!(gain > 3.0, "{gain}");
    }
}

#[test]
fn shuffled_packets_do_not_reach_a_download_through_a_hub() {
    let link = "{ rate = \"20mbit\", delay = \"20ms\", jitter = { sd = \"15ms\", reorder = true } }";
    if let Some(gain) = over_best_single("jitter", link) {
        assert!(gain > 3.0, "{gain}");
    }
}

#[test]
fn refuses_a_scheduler_that_is_none_before_it_touches_anything() {
    let Some((output, _)) = lab("scheduler", &["--set", "schedulers={ bulk = \"fastest\" }"]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("unknown scheduler \"fastest\"; write one of random,"),
        "{said}"
    );
}

/// The demonstration uses five networks, for two seconds in each direction.
#[test]
fn the_demonstration_of_five_networks_writes_its_page() {
    let out = std::env::temp_dir().join(format!("hawser-test-{}-five", std::process::id()));
    let program = env!("CARGO_BIN_EXE_hawser-lab");
    let _ = hawser_testing::require_sibling(program, "hawser");
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let output = Command::new(program)
        .args(["demo", "--five", "--set", "duration=2s", "--out"])
        .arg(&out)
        .output()
        .expect("the binary starts");
    if is_forbidden(&output) {
        return;
    }
    let read = |name: &str| std::fs::read_to_string(out.join(name)).expect("it was written");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let figures: Value = serde_json::from_str(&read("five.json")).expect("JSON");
    let ways = figures["ways"].as_array().expect("ways");
    let names: Vec<&str> = ways.iter().filter_map(|way| way["way"].as_str()).collect();
    assert_eq!(names, ["Hawser", "MPTCP, leo first", "leo alone"]);
    for way in ways {
        let uploaded = way["runs"][0]["upload_bps"].as_f64();
        assert!(uploaded.is_some_and(|rate| rate > 0.0), "{way}");
    }
    // The first network of MPTCP drops all packets from the beginning.
    assert!(figures["mptcp_by_the_dead"].is_string(), "{figures}");
    let page = read("five.html");
    assert!(
        page.contains("modem-2 blocks UDP") && !page.contains("<script"),
        "a page without code"
    );
    assert!(read("five.toml").contains("modem-1.up") && read("modem-1.up").contains(','));
    std::fs::remove_dir_all(&out).expect("it was there");
}
