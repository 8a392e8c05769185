//! TCP connections that the tunnel splits.

use std::path::Path;

use hawser_netem::report::{Finding, Report};
use hawser_netem::scenario::Scenario;
use hawser_sim::run::{Watch, run};
use hawser_units::Duration;

const FAR: &str = r#"
name = "far"
duration = "8s"
warmup = "3s"
via = "hub"
[[network]]
name = "near"
down = { rate = "20mbit", delay = "10ms", queue = "100ms" }
up = { rate = "20mbit", delay = "10ms", queue = "100ms" }
[[network]]
name = "far"
down = { rate = "20mbit", delay = "110ms", queue = "100ms" }
up = { rate = "20mbit", delay = "110ms", queue = "100ms" }
"#;
const DOWNLOAD: &str = "[[workload]]\nkind = \"tcp\"\n";
const UPLOAD: &str = "[[workload]]\nkind = \"tcp\"\ndirection = \"up\"\n";
const PAGE: &str = "[[workload]]\nkind = \"http\"\nsize = \"3MB\"\n";

fn report(text: &str, tcp: &str, settings: &[&str]) -> Report {
    let tcp = format!("tcp={tcp}");
    let settings: Vec<String> = settings
        .iter()
        .map(|setting| (*setting).to_owned())
        .chain([tcp])
        .collect();
    let scenario = Scenario::parse(text, Path::new("streams.toml"), &settings, &mut |_| {
        Err(std::io::Error::other("no files"))
    })
    .expect("a scenario");
    run(&scenario, &scenario.via, Watch::default(), &mut |_: Duration| {})
        .expect("it runs")
        .report
}

fn share(text: &str, settings: &[&str]) -> f64 {
    let report = report(text, "stream", settings);
    report.share_of_stream_oracle.expect("a bound")
}

fn completed(report: &Report) -> f64 {
    report
        .workloads
        .iter()
        .find_map(|finding| {
            if let Finding::Http { completed_s, .. } = finding {
                return *completed_s;
            }
            None
        })
        .expect("it completes")
}

#[test]
fn one_connection_fills_a_near_and_a_far_network() {
    let down = format!("{FAR}{DOWNLOAD}");
    let end_to_end = report(&down, "end-to-end", &[])
        .share_of_stream_oracle
        .expect("a bound");
    let stream = share(&down, &[]);
    assert!(
        stream > 0.9 && stream > end_to_end + 0.1,
        "{stream} of {end_to_end}"
    );
    let up = share(&format!("{FAR}{UPLOAD}"), &[]);
    assert!(up > 0.9, "{up}");
}

#[test]
fn connections_share_what_they_have() {
    let text = format!("{FAR}{DOWNLOAD}streams = 4\n");
    let share = share(&text, &[]);
    assert!(share > 0.9, "{share}");
}

#[test]
fn a_transfer_ends_sooner_than_end_to_end_and_with_every_byte() {
    let text = format!("{FAR}{PAGE}");
    for settings in [
        &["warmup=0s"][..],
        &[
            "warmup=0s",
            "network.0.down.loss=0.03",
            "network.1.down.loss=0.03",
            "network.0.up.loss=0.03",
        ],
        &["warmup=0s", "network.1.down.jitter=30ms"],
    ] {
        let [end_to_end, stream] =
            ["end-to-end", "stream"].map(|tcp| completed(&report(&text, tcp, settings)));
        assert!(stream < end_to_end, "{settings:?}: {stream} of {end_to_end}");
    }
}

#[test]
fn a_transfer_outlives_a_network_that_fails_silently() {
    let event = "[[event]]\nat = \"500ms\"\nnetwork = \"far\"\nset = \"blackhole\"\n";
    let done = completed(&report(&format!("{FAR}{PAGE}{event}"), "stream", &["warmup=0s"]));
    assert!(done < 3.0, "{done}");
}

#[test]
fn streams_and_flows_take_turns() {
    let quic = "[[workload]]\nkind = \"quic\"\n";
    let even = [
        "network.1.down.delay=10ms",
        "network.1.up.delay=10ms",
        "duration=15s",
    ];
    let report = report(&format!("{FAR}{DOWNLOAD}{quic}"), "stream", &even);
    let stream = report.goodput_bps.workloads[0] / report.goodput_bps.total;
    assert!((0.35..0.65).contains(&stream), "{stream}");
    assert!(report.goodput_bps.total > 0.9 * 40e6 * 1430.0 / 1514.0);
}

const UNEQUAL: &str = r#"
name = "unequal"
duration = "8s"
warmup = "2s"
via = "hub"
[[network]]
name = "slow"
down = { rate = "2mbit", delay = "10ms", queue = "100ms" }
up = { rate = "2mbit", delay = "10ms", queue = "100ms" }
[[network]]
name = "fast"
use = "overflow"
down = { rate = "20mbit", delay = "20ms", queue = "100ms" }
up = { rate = "20mbit", delay = "20ms", queue = "100ms" }
"#;

#[test]
fn a_stream_uses_a_network_for_overflow_once_its_bytes_wait() {
    let download = share(&format!("{UNEQUAL}{DOWNLOAD}"), &[]);
    assert!(download > 0.85, "{download} of both networks");
    // A call alone leaves it alone.
    let call = "[[workload]]\nkind = \"udp\"\nrate = \"64kbit\"\nsize = \"160B\"\n";
    let report = report(&format!("{UNEQUAL}{call}"), "stream", &[]);
    let (slow, fast) = (
        report.networks["slow"].down.bytes,
        report.networks["fast"].down.bytes,
    );
    assert!(fast < slow / 5, "{fast} of {slow} bytes");
}
