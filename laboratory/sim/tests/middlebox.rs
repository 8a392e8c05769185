//! Middleboxes between modelled hosts and in front of the tunnel.

use std::path::Path;

use hawser_netem::report::Report;
use hawser_netem::scenario::Scenario;
use hawser_sim::run::{self, RunError, Watch};

fn outcome(text: &str) -> Result<Report, RunError> {
    let scenario = Scenario::parse(text, Path::new("x"), &[], &mut |_| Ok(Vec::new())).expect("legal");
    run::run(&scenario, &scenario.via, Watch::default(), &mut |_| {}).map(|outcome| outcome.report)
}

/// Simulates network `a` with `fields` towards the client, followed by `more`.
fn simulate(head: &str, fields: &str, more: &str) -> Report {
    let text = format!(
        "name = \"x\"\nduration = \"6s\"\n{head}\n[[network]]\nname = \"a\"\n\
         down = {{ rate = \"20mbit\", delay = \"5ms\"{fields} }}\nup = {{ rate = \"20mbit\", delay = \"5ms\" }}\n{more}"
    );
    outcome(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn total(report: &Report) -> f64 {
    report.goodput_bps.total
}

fn bytes(report: &Report, bins: std::ops::Range<usize>) -> u64 {
    report.series.bytes[bins].iter().sum()
}

const SINGLE: &str = "via = \"single:a\"";
const TCP: &str = "[[workload]]\nkind = \"tcp\"\n";

fn udp(rate: &str, size: u32) -> String {
    format!("[[workload]]\nkind = \"udp\"\nrate = \"{rate}\"\nsize = \"{size}B\"\n")
}

fn event(at: &str, set: &str) -> String {
    format!("[[event]]\nat = \"{at}\"\nnetwork = \"a\"\nset = {set}\n")
}

#[test]
fn a_path_mtu_drops_larger_datagrams_in_its_direction_only() {
    let two = udp("2mbit", 1200) + &udp("2mbit", 1253);
    let report = simulate(SINGLE, ", mtu = 1280", &two);
    let each = &report.goodput_bps.workloads;
    assert!(each[0] > 1.9e6, "{each:?}");
    assert_eq!(each[1], 0.0);
    assert!(report.networks["a"].down.lost > 1000);
    assert_eq!(report.networks["a"].up.lost, 0);
}

#[test]
fn tcp_takes_the_size_that_an_answer_names_and_stands_still_without_one() {
    let whole = total(&simulate(SINGLE, "", TCP));
    let answered = simulate(SINGLE, ", mtu = { size = 1280, icmp = true }", TCP);
    assert!(total(&answered) > 0.9 * whole, "{} of {whole}", total(&answered));
    assert_eq!(total(&simulate(SINGLE, ", mtu = 1280", TCP)), 0.0);
    let later = event("2s", "{ mtu = { size = 1000, icmp = true } }");
    let changed = simulate(SINGLE, "", &(TCP.to_owned() + &later));
    assert!(bytes(&changed, 300..600) > 5_000_000, "{}", total(&changed));
}

#[test]
fn a_policer_starts_when_it_is_told_and_may_spare_tcp() {
    let policer = |protocol: &str| {
        format!(
            ", policer = {{ rate = \"1mbit\", burst = \"15KiB\", protocol = \"{protocol}\", from = \"3s\" }}"
        )
    };
    let report = simulate(SINGLE, &policer("udp"), &udp("4mbit", 1200));
    let (before, after) = (bytes(&report, 0..300), bytes(&report, 310..600));
    assert!((1_450_000..1_510_000).contains(&before), "{before}");
    assert!((300_000..370_000).contains(&after), "{after}");
    let whole = total(&simulate(SINGLE, "", TCP));
    assert_eq!(total(&simulate(SINGLE, &policer("udp"), TCP)), whole);
    assert!(total(&simulate(SINGLE, &policer("all"), TCP)) < 0.7 * whole);
}

#[test]
fn ecn_is_marked_dropped_or_cleared() {
    let head = format!("{SINGLE}\ntcp_ecn = true");
    let of = |ecn: &str| total(&simulate(&head, &format!(", ecn = \"{ecn}\""), TCP));
    let whole = of("pass");
    assert_eq!(
        of("bleach"),
        whole,
        "nothing marks here, so nothing is lost with the marks"
    );
    assert!(of("mark") < whole / 2.0);
    // Retransmissions are not ECT and pass, so each timeout delivers a window.
    let dropped = of("drop");
    assert!(dropped > 0.0 && dropped < whole / 20.0, "{dropped}");
    let without = simulate(SINGLE, ", ecn = \"drop\"", TCP);
    assert!(total(&without) > 0.9 * whole, "nothing is ECT");
}

#[test]
fn a_hang_stops_both_directions_for_its_time() {
    let hang = ", hang = { above = 1300, time = \"2s\" }";
    let ping = "[[workload]]\nkind = \"ping\"\ninterval = \"20ms\"\n";
    let harmless = simulate(SINGLE, hang, &(udp("1mbit", 1200) + ping));
    assert_eq!(harmless.networks["a"].both.lost, 0);
    let large = udp("1mbit", 1200) + &udp("2800bit", 1400) + ping;
    let hung = simulate(SINGLE, hang, &large);
    // The large packets are sent at 0 and 4 s.
    assert_eq!(bytes(&hung, 10..200), 0);
    assert!(bytes(&hung, 210..390) > 200_000);
    assert!(hung.networks["a"].up.lost > 100, "{}", hung.networks["a"].up.lost);
}

/// A call in both directions uses two networks; the translator of one of them loses its mapping
/// twice.
#[test]
fn a_call_over_two_networks_misses_one_packet_at_most_where_a_nat_forgets_one() {
    for delay in ["10ms", "30ms", "60ms"] {
        let text = format!(
            "name = \"x\"\nduration = \"12s\"\nvia = \"hub\"\n[[network]]\nname = \"a\"\n\
             down = {{ rate = \"20mbit\", delay = \"{delay}\" }}\nup = {{ rate = \"20mbit\", delay = \"{delay}\" }}\n\
             nat = {{ timeout = \"300s\", change_ports = true }}\n[[network]]\nname = \"b\"\n\
             down = {{ rate = \"5mbit\", delay = \"40ms\" }}\nup = {{ rate = \"5mbit\", delay = \"40ms\" }}\n{}{}{}{}",
            udp("80kbit", 200),
            udp("80kbit", 200) + "direction = \"up\"\n",
            event("4s", "\"nat-flush\""),
            event("8s", "\"nat-flush\"")
        );
        let report = outcome(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        for workload in &report.workloads {
            let hawser_netem::report::Finding::Udp { sent, received, .. } = workload else {
                panic!("{workload:?}")
            };
            // At most one packet is lost at each of the two times.
            assert!(sent - received <= 2, "{delay}: {received} of {sent}");
        }
    }
}

#[test]
fn a_nat_that_forgets_is_found_again_by_the_tunnel_also_with_another_port() {
    let nat = "nat = { timeout = \"30s\", change_ports = true }\n";
    let flush = event("2s", "\"nat-flush\"");
    let report = simulate("via = \"hub\"", "", &format!("{nat}{TCP}{flush}"));
    assert!(bytes(&report, 300..600) > 4_000_000, "{}", total(&report));
    let kept = simulate(SINGLE, "", &format!("nat = {{}}\n{TCP}{flush}"));
    assert!(bytes(&kept, 300..600) > 5_000_000, "{}", total(&kept));
    let idle = total(&simulate("via = \"hub\"", "", &format!("{nat}{TCP}")));
    let plain = total(&simulate("via = \"hub\"", "", TCP));
    assert_eq!(idle, plain, "a translator that forgets nothing costs nothing");
}

#[test]
fn what_is_not_simulated_is_refused() {
    let text = |more: &str| {
        format!(
            "name = \"x\"\nduration = \"1s\"\n{SINGLE}\n[[network]]\nname = \"a\"\ndown = {{}}\n{more}{TCP}"
        )
    };
    let ports = outcome(&text("nat = { change_ports = true }\n"));
    assert_eq!(ports.expect_err("refused"), RunError::ChangedPorts);
    let device = text("") + &event("0s", "{ device_mtu = 1400 }");
    assert_eq!(outcome(&device).expect_err("refused"), RunError::DeviceMtu);
}
