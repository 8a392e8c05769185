//! What the tunnel makes of networks that treat its packets unlike others: ECN bits, UDP.

use std::path::Path;

use hawser_netem::report::Report;
use hawser_netem::scenario::Scenario;
use hawser_sim::run::{Watch, run};
use hawser_units::Duration;

/// One download over network `a`; [`BESIDE`] is another network.
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
