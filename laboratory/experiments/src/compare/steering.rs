//! Comparison of a client that marks packets of the worse access point (All-APs) with a hub that
//! sends each packet on the path on which it arrives first.
//!
//! Both avoid an access point that uses the airtime of a better one on the same channel. Marking
//! informs the sender's coupled windows of the airtime cost of a byte; a hub measures delay and
//! rate of each path but does not know that the paths share the air.

use std::path::Path;

use hawser_netem::Capacity;
use hawser_netem::scenario::{Scenario, Via};
use hawser_units::Rate;

use super::{Comparison, Measure};
use crate::reproduce::Unit;
use hawser_sim::run::{self, Watch};

/// Compares Hawser's hub with airtime reports with the upper bound, All-APs' marking, a hub without
/// airtime reports, and multipath TCP alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steering {
    name: &'static str,
    conditions: &'static [(&'static str, &'static [&'static str])],
}

/// Conditions that were chosen before the first run.
pub(super) const STEERING: Steering = Steering {
    name: "steering",
    conditions: &CONDITIONS,
};
/// Neighbouring conditions, in which each number is doubled and halved.
pub(super) const AROUND: Steering = Steering {
    name: "steering-around",
    conditions: &NEIGHBOURHOOD,
};

/// The scenario that all conditions change.
const SCENARIO: &str = include_str!("../../../../scenarios/wifi-steering.toml");

/// Changes of the scenario for each condition.
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

/// Changes that double and halve each number, as far as 802.11g has such rates.
const NEIGHBOURHOOD: [(&str, &[&str]); 20] = [
    ("24 and 6 Mb/s", &["network.0.wifi.rate=24mbit"]),
    ("54 and 12 Mb/s", &["network.1.wifi.rate=12mbit"]),
    ("54 and 48 Mb/s", &["network.1.wifi.rate=48mbit"]),
    (
        "both 24 Mb/s",
        &["network.0.wifi.rate=24mbit", "network.1.wifi.rate=24mbit"],
    ),
    (
        "a quarter of the poor one's frames lost",
        &["network.1.wifi.rate=54mbit", "network.1.wifi.loss=0.25"],
    ),
    (
        "three quarters of them lost",
        &["network.1.wifi.rate=54mbit", "network.1.wifi.loss=0.75"],
    ),
    (
        "good one 25 ms further",
        &["network.0.down.delay=22500us", "network.0.up.delay=22500us"],
    ),
    (
        "good one 100 ms further",
        &["network.0.down.delay=60ms", "network.0.up.delay=60ms"],
    ),
    (
        "poor one 50 ms further",
        &["network.1.down.delay=35ms", "network.1.up.delay=35ms"],
    ),
    ("good one's backhaul 2 Mb/s", &["network.0.down.rate=2mbit"]),
    ("good one's backhaul 8 Mb/s", &["network.0.down.rate=8mbit"]),
    (
        "the same, 54 and 24 Mb/s",
        &["network.0.down.rate=8mbit", "network.1.wifi.rate=24mbit"],
    ),
    (
        "good one's backhaul 4 Mb/s, 54 and 24 Mb/s",
        &["network.0.down.rate=4mbit", "network.1.wifi.rate=24mbit"],
    ),
    (
        "neighbour with 5 Mb/s on the channel",
        &["network.0.wifi.neighbours=[\"5mbit\"]"],
    ),
    (
        "neighbour with 20 Mb/s on the channel",
        &["network.0.wifi.neighbours=[\"20mbit\"]"],
    ),
    (
        "round trip 10 ms",
        &[
            "network.0.down.delay=5ms",
            "network.0.up.delay=5ms",
            "network.1.down.delay=5ms",
            "network.1.up.delay=5ms",
        ],
    ),
    (
        "round trip 40 ms",
        &[
            "network.0.down.delay=20ms",
            "network.0.up.delay=20ms",
            "network.1.down.delay=20ms",
            "network.1.up.delay=20ms",
        ],
    ),
    (
        "both backhauls 50 Mb/s",
        &["network.0.down.rate=50mbit", "network.1.down.rate=50mbit"],
    ),
    (
        "both backhauls 200 Mb/s",
        &["network.0.down.rate=200mbit", "network.1.down.rate=200mbit"],
    ),
    (
        "on channels of their own, both 54 Mb/s",
        &["network.1.wifi.channel=11", "network.1.wifi.rate=54mbit"],
    ),
];

/// Indexes of the contenders. Source: the order of the columns of docs/notebook/steering.md.
const HUB_WITH_AIR: usize = 0;
const MAX: usize = 1;
const MARKING: usize = 2;
const HUB: usize = 3;

impl Comparison for Steering {
    fn name(&self) -> &'static str {
        self.name
    }

    fn question(&self) -> &'static str {
        "Two access points on one channel, one of them poor: mark its packets, send each where it arrives first, or tell the hub what packets take of the air?"
    }

    fn contenders(&self) -> &'static [&'static str] {
        &[
            "hub with shared air",
            "most of the air",
            "marking",
            "hub",
            "multipath tcp",
        ]
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
        self.conditions
            .iter()
            .map(|(name, _)| (*name).to_owned())
            .collect()
    }

    fn run(&self, condition: usize, contender: usize, seed: u64) -> Vec<f64> {
        let mut settings: Vec<String> = self.conditions[condition]
            .1
            .iter()
            .map(ToString::to_string)
            .collect();
        settings.push(format!("seed={seed}"));
        let (marks, tells) = (contender == MARKING, contender == HUB_WITH_AIR);
        for network in [0, 1] {
            settings.push(format!("network.{network}.wifi.marks={marks}"));
            settings.push(format!("network.{network}.wifi.tells={tells}"));
        }
        let is_hub = matches!(contender, HUB_WITH_AIR | MAX | HUB);
        if is_hub {
            settings.push("workload.0.congestion=cubic".to_owned());
        }
        let scenario = Scenario::parse(SCENARIO, Path::new("wifi-steering.toml"), &settings, &mut |_| {
            Err(std::io::ErrorKind::NotFound.into())
        });
        let scenario = scenario.expect("the committed scenario can be read");
        if contender == MAX {
            return upper_bound(&scenario);
        }
        measure(&scenario, &if is_hub { Via::Hub } else { Via::Mptcp })
    }
}

/// Returns the rate of the download and the time of the ping. Units: Mbit/s, ms.
fn measure(scenario: &Scenario, via: &Via) -> Vec<f64> {
    let outcome = run::run(scenario, via, Watch::default(), &mut |_| {});
    let report = outcome.expect("the committed scenario can be run").report;
    let ping = report.rtt_ms.map_or(f64::NAN, |trips| trips.p99);
    vec![report.goodput_bps.workloads[0] / 1e6, ping]
}

/// Returns the throughput of a sender with full knowledge, see [`shared`]. The airtime of a byte,
/// including tunnel headers, is measured with a hub over each access point alone; the ping is that
/// of the access point with the smallest airtime.
fn upper_bound(scenario: &Scenario) -> Vec<f64> {
    let alone = |network: usize, is_wide: bool| {
        let mut alone = scenario.clone();
        let neighbours: Vec<_> = scenario
            .networks
            .iter()
            .filter_map(|network| network.wifi.as_ref())
            .flat_map(|wifi| wifi.neighbours.clone())
            .collect();
        alone.networks = vec![scenario.networks[network].clone()];
        let only = &mut alone.networks[0];
        if let Some(wifi) = &mut only.wifi {
            wifi.neighbours = neighbours;
        }
        if let Some(links) = only.links.as_mut().filter(|_| is_wide) {
            links.down.capacity = Capacity::Rate(Rate::from_mbps(100));
        }
        measure(&alone, &Via::Hub)
    };
    let found = [0, 1].map(|network| (alone(network, true), alone(network, false)));
    let [first, second] = found
        .each_ref()
        .map(|(wide, narrow)| (wide[0], narrow[0].min(wide[0])));
    let channels = [0, 1].map(|n| scenario.networks[n].wifi.as_ref().map(|wifi| wifi.channel));
    let least = &found[usize::from(second.0 > first.0)].1;
    let carried = if channels[0] == channels[1] {
        shared(&mut [first, second])
    } else {
        first.1 + second.1
    };
    vec![carried, least[1]]
}

/// Returns the maximum sum of rates `x_i` subject to `x_i <= b_i` and a sum of `x_i / c_i` of at
/// most one. Each path is `(c_i, b_i)`: its throughput with all of the air, and its throughput
/// alone with the network behind it. Paths with the smallest airtime per byte are filled first.
fn shared(paths: &mut [(f64, f64)]) -> f64 {
    paths.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut left, mut sum) = (1.0, 0.0);
    for (air, network) in paths {
        let rate = network.min(*air * left);
        left -= rate / *air;
        sum += rate;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_air_goes_to_the_path_that_takes_least_and_what_it_leaves_to_the_other() {
        assert!((shared(&mut [(4.0, 4.0), (20.0, 20.0)]) - 20.0).abs() < 1e-9);
        assert!((shared(&mut [(4.0, 4.0), (20.0, 5.0)]) - 8.0).abs() < 1e-9);
        assert!((shared(&mut [(4.0, 1.0), (20.0, 5.0)]) - 6.0).abs() < 1e-9);
        assert!((shared(&mut [(20.0, 20.0), (20.0, 20.0)]) - 20.0).abs() < 1e-9);
    }
}
