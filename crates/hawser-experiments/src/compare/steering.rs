//! A client that marks what comes from the worse access point (All-APs) against a hub that sends
//! each packet where it arrives first.
//!
//! Both keep traffic off an access point that takes the air of a better one on the same channel.
//! Marking tells the sender's coupled windows what a byte costs there; a hub sees delay and rate of
//! each path and knows nothing of the air that both share.

use std::path::Path;

use hawser_netem::scenario::{Scenario, Via};

use super::{Comparison, Measure};
use crate::reproduce::Unit;
use hawser_sim::run::{self, Watch};

/// All-APs' marking against Hawser's own hub, and both against multipath TCP by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steering;

/// The scenario that all conditions change.
const SCENARIO: &str = include_str!("../../../../scenarios/wifi-steering.toml");

/// What a condition changes of the scenario.
const CONDITIONS: [(&str, &[&str]); 8] = [
    ("54 and 6 Mb/s", &[]),
    ("54 and 24 Mb/s", &["network.1.wifi.rate=24mbit"]),
    ("both 54 Mb/s", &["network.1.wifi.rate=54mbit"]),
    (
        "half of the poor one's frames lost",
        &["network.1.wifi.rate=54mbit", "network.1.wifi.loss=0.5"],
    ),
    (
        "good one 50 ms further",
        &["network.0.down.delay=35ms", "network.0.up.delay=35ms"],
    ),
    ("good one's backhaul 4 Mb/s", &["network.0.down.rate=4mbit"]),
    (
        "neighbour with 10 Mb/s on the channel",
        &["network.0.wifi.neighbours=[\"10mbit\"]"],
    ),
    ("on channels of their own", &["network.1.wifi.channel=11"]),
];

impl Comparison for Steering {
    fn name(&self) -> &'static str {
        "steering"
    }

    fn question(&self) -> &'static str {
        "Two access points on one channel, one of them poor: mark its packets, or send each where it arrives first?"
    }

    fn contenders(&self) -> &'static [&'static str] {
        &["hub, shared air", "marking", "hub", "multipath tcp"]
    }

    fn measures(&self) -> &'static [Measure] {
        &[
            Measure {
                name: "the download",
                unit: Unit::Mbps,
                is_more_better: true,
            },
            Measure {
                name: "round trip of a ping beside it, 99th percentile",
                unit: Unit::Millis,
                is_more_better: false,
            },
        ]
    }

    fn conditions(&self) -> Vec<String> {
        CONDITIONS.map(|(name, _)| name.to_owned()).to_vec()
    }

    fn run(&self, condition: usize, contender: usize, seed: u64) -> Vec<f64> {
        let mut settings: Vec<String> = CONDITIONS[condition].1.iter().map(ToString::to_string).collect();
        settings.push(format!("seed={seed}"));
        let (marks, tells) = (contender == 1, contender == 0);
        for network in [0, 1] {
            settings.push(format!("network.{network}.wifi.marks={marks}"));
            settings.push(format!("network.{network}.wifi.tells={tells}"));
        }
        let is_hub = contender == 0 || contender == 2;
        if is_hub {
            settings.push("workload.0.congestion=cubic".to_owned());
        }
        let via = if is_hub { Via::Hub } else { Via::Mptcp };
        let scenario = Scenario::parse(SCENARIO, Path::new("wifi-steering.toml"), &settings, &mut |_| {
            Err(std::io::ErrorKind::NotFound.into())
        });
        let scenario = scenario.expect("the committed scenario can be read");
        let outcome = run::run(&scenario, &via, Watch::default(), &mut |_| {});
        let report = outcome.expect("the committed scenario can be run").report;
        let ping = report.rtt_ms.map_or(f64::NAN, |trips| trips.p99);
        vec![report.goodput_bps.workloads[0] / 1e6, ping]
    }
}
