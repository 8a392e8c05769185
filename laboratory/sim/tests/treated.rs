//! The tunnel over networks that treat its packets specially: ECN bits, UDP.

use std::path::Path;

use hawser_netem::report::Report;
use hawser_netem::scenario::Scenario;
use hawser_sim::run::{Watch, run};
use hawser_units::Duration;

/// Scenario of a download over network `a`; [`BESIDE`] adds another network.
const ONE: &str = r#"
name = "treated"
duration = "10s"
warmup = "2s"
via = "hub"
[[network]]
name = "a"
down = { rate = "50mbit", delay = "20ms", queue = "100ms" }
up = { rate = "50mbit", delay = "20ms", queue = "100ms" }
[[workload]]
kind = "tcp"
direction = "down"
congestion = "cubic"
"#;
const BESIDE: &str = r#"
[[network]]
name = "b"
down = { rate = "50mbit", delay = "20ms", queue = "100ms" }
up = { rate = "50mbit", delay = "20ms", queue = "100ms" }
"#;

fn report(text: &str, settings: &[&str]) -> Report {
    let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
    let scenario = Scenario::parse(text, Path::new("test.toml"), &settings, &mut |_| {
        Err(std::io::Error::other("no files"))
    })
    .expect("a scenario");
    run(&scenario, &scenario.via, Watch::default(), &mut |_: Duration| {})
        .expect("it runs")
        .report
}

fn goodput(text: &str, settings: &[&str]) -> f64 {
    report(text, settings).goodput_bps.total
}

/// Before paths validated ECN, these were 0.01 and 0.001 of the clean network's.
#[test]
fn a_network_that_marks_or_drops_all_that_can_be_marked_carries_as_much_as_another() {
    let two = format!("{ONE}{BESIDE}");
    for text in [ONE, two.as_str()] {
        let clean = goodput(text, &["tcp_ecn=true"]);
        for treatment in ["mark", "drop", "bleach"] {
            let [down, up] =
                ["down", "up"].map(|direction| format!("network.0.{direction}.ecn=\"{treatment}\""));
            let treated = goodput(text, &["tcp_ecn=true", &down, &up]);
            assert!(treated > 0.95 * clean, "{treatment}: {treated} of {clean}");
        }
    }
}

/// Before policers were recognised, the first of these was 0.70 of the other network alone.
#[test]
fn a_network_that_polices_datagrams_never_costs_what_the_other_carries_alone() {
    let alone = goodput(ONE, &["duration=20s"]);
    let two = format!("{ONE}{BESIDE}");
    for (burst, from, delay) in [
        ("15KiB", "0s", "20ms"),
        ("5KiB", "0s", "70ms"),
        ("40KiB", "5s", "20ms"),
        ("15KiB", "5s", "70ms"),
    ] {
        let policer =
            format!("{{ rate = \"1mbit\", burst = \"{burst}\", protocol = \"udp\", from = \"{from}\" }}");
        let mut settings = vec!["duration=20s".to_owned()];
        for direction in ["down", "up"] {
            settings.push(format!("network.0.{direction}.policer={policer}"));
            settings.push(format!("network.0.{direction}.delay=\"{delay}\""));
        }
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let both = goodput(&two, &settings);
        assert!(both > 0.99 * alone, "{burst} {from} {delay}: {both} of {alone}");
        let policed = goodput(ONE, &settings);
        assert!(policed > 0.7e6, "{burst} {from} {delay} alone: {policed}");
    }
}

/// A far network, and a near one with a cap, which a video of this rate fills.
fn beside_a_video(rate: &str) -> Report {
    let text = format!(
        r#"
name = "capped"
duration = "8s"
via = "hub"
tcp = "end-to-end"
[[network]]
name = "far"
down = {{ rate = "40mbit", delay = "120ms", queue = "500ms" }}
up = {{ rate = "10mbit", delay = "120ms", queue = "500ms" }}
[[network]]
name = "near"
cap_down = "3500kbit"
down = {{ rate = "14mbit", delay = "4ms", queue = "500ms" }}
up = {{ rate = "4mbit", delay = "4ms", queue = "500ms" }}
[[workload]]
kind = "tcp"
[[workload]]
kind = "udp"
rate = "{rate}"
size = "1200B"
"#
    );
    report(&text, &[])
}

#[test]
fn a_video_starves_no_transfer_and_keeps_to_a_cap() {
    for rate in ["3mbit", "4mbit", "6mbit"] {
        let report = beside_a_video(rate);
        let transfer = report.goodput_bps.workloads[0];
        assert!(transfer > 1e6, "beside {rate}: {transfer} bit/s");
        let near = report.networks["near"].down.bytes as f64 * 8.0 / report.duration_s;
        // Outer headers and probes are not part of the cap.
        assert!(near < 1.1 * 3.5e6, "beside {rate}: {near} bit/s");
    }
}
