//! A replayed capture has the results of the same datagrams from a generator.

use std::path::Path;

use hawser_netem::oracle::delay::bound_delays;
use hawser_netem::report::{Finding, Report};
use hawser_netem::scenario::Scenario;
use hawser_sim::run::{Watch, run};
use hawser_units::Duration;

/// Two networks, of which the near one fails for a while and loses packets.
const TWO: &str = r#"
name = "call"
seed = 4
duration = "20s"
warmup = "3s"
via = "hub"
[[network]]
name = "a"
down = { rate = "2mbit", delay = "15ms", jitter = "3ms", loss = 0.01 }
up = { rate = "1mbit", delay = "15ms", jitter = "3ms", loss = 0.01 }
[[network]]
name = "b"
down = { rate = "3mbit", delay = "35ms" }
up = { rate = "1mbit", delay = "35ms" }
[[event]]
at = "8s"
network = "a"
set = "blackhole"
[[event]]
at = "12s"
network = "a"
set = "up"
"#;
const CAPTURE: &str = "[[workload]]\nkind = \"capture\"\nfile = \"call.pcap\"\nrepeat = 5\n";

fn scenario(workloads: &str) -> Scenario {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let path = directory.join("test.toml");
    Scenario::parse(&format!("{TWO}{workloads}"), &path, &[], &mut |path| {
        std::fs::read(path)
    })
    .expect("a scenario")
}

fn report(scenario: &Scenario) -> Report {
    run(scenario, &scenario.via, Watch::default(), &mut |_: Duration| {})
        .expect("it runs")
        .report
}

#[test]
fn a_captured_call_has_the_delay_and_loss_of_a_generated_one() {
    let udp = |direction: &str| {
        format!(
            "[[workload]]\nkind = \"udp\"\ndirection = \"{direction}\"\nrate = \"68.8kbit\"\nsize = \"172B\"\n"
        )
    };
    let captured = scenario(CAPTURE);
    let generated = scenario(&(udp("up") + &udp("down")));
    let (of_capture, of_generator) = (report(&captured), report(&generated));
    for (captured, generated) in of_capture.workloads.iter().zip(&of_generator.workloads) {
        let figures = |finding: &Finding| {
            let Finding::Udp {
                sent,
                received,
                late,
                reordered,
                delay_p50_ms,
                delay_p99_ms,
                arrivals,
                ..
            } = finding
            else {
                panic!("{finding:?}")
            };
            assert_eq!(*sent, 950, "those of the last second do not count");
            assert!((*received, *delay_p50_ms) > (900, 15.0), "{finding:?}");
            let counts = (*sent, *received, *late, *reordered);
            (counts, *delay_p50_ms, *delay_p99_ms, arrivals.clone())
        };
        assert_eq!(figures(captured), figures(generated));
    }
    let bounds = |scenario: &Scenario| bound_delays(scenario, &scenario.via).expect("a bound");
    assert_eq!(bounds(&captured), bounds(&generated));
    let text = of_capture.to_text();
    let line = "call.pcap, up, 192.168.1.5:5004 > 203.0.113.7:5004: 9";
    assert!(text.contains(line), "{text}");
}
