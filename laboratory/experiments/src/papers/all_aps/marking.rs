//! Marking under a wide range of conditions: figure 6.
//!
//! Values that the paper does not state, chosen here in addition to those of [`super::contention`]:
//! - The measurement lasts 30 s after 10 s.
//! - Figure 6a's second scenario uses the same 120 conditions, with twenty TCP connections on the
//!   second access point's uplink of 25 Mb/s. This is the number at which figure 6b is level here
//!   (chosen by that curve; with twelve it still falls). The optimum is the throughput of the first
//!   access point alone, which is the paper's aim for this scenario.
//! - Throughput counts whole packets, as the queues of the paper's simulator do: a packet time of 3
//!   ms is 4 Mb/s.
//! - Figure 6c's round-trip time is 25 ms.

use hawser_units::{Duration, Rate};

use super::contention::{Point, Use, World};
use super::{mbps, ratio};
use crate::reproduce::{Curve, Experiment, ExperimentError, Findings, Plot, Quantity, Unit};
use hawser_sim::mptcp::Coupling;

/// Figure 6a: two access points at all round-trip times, packet times and weights.
#[derive(Clone, Copy, Debug)]
pub struct Sweep;

/// Figure 6b: a congested uplink behind the better access point.
#[derive(Clone, Copy, Debug)]
pub struct CongestedUplink;

/// Figure 6c: more access points.
#[derive(Clone, Copy, Debug)]
pub struct MoreAccessPoints;

/// Packet time of the perfect access point.
///
/// Source: All-APs section 6.2.1 (0.5 ms).
pub(super) const BEST: f64 = 0.5e-3;
/// Size of a packet. Source: 1,500 bytes. Units: bits.
const PACKET: f64 = 12_000.0;
/// Rate of the second access point's uplink. Source: All-APs section 6.2.1.
const UPLINK: Rate = Rate::from_mbps(25);
/// Number of TCP connections on that uplink. Source: chosen by figure 6b, which is level from this
/// number on (start of this file).
const COMPETITORS: usize = 20;

/// Returns the conditions of figure 6a.
fn conditions(seed: u64) -> Vec<World> {
    let mut all = Vec::new();
    for ms in [10, 25, 50, 100] {
        for packet_time in 1..=6 {
            for weight in [1.0, 2.0, 4.0, 8.0, 16.0] {
                let worse = Point {
                    packet_time: f64::from(packet_time) * 1e-3,
                    weight,
                };
                all.push(World {
                    points: vec![worse, PERFECT],
                    round_trip: Duration::from_millis(ms),
                    marks: true,
                    uplink: None,
                    worsens: None,
                    coupling: Coupling::Lia,
                    seed,
                });
            }
        }
    }
    all
}

pub(super) const PERFECT: Point = Point {
    packet_time: BEST,
    weight: 1.0,
};

impl Experiment for Sweep {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("comparison of access points")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["N-fig6a"]
    }

    fn claims(&self) -> Vec<String> {
        [
            "ecn_mean", "ecn_med", "ecn_min", "mp_mean", "mp_med", "order", "s2_mean", "s2_med",
        ]
        .map(|claim| format!("N.fig6a.{claim}"))
        .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let optimum = PACKET / BEST / 1e6;
        let (mut marked, mut plain, mut congested) = (Vec::new(), Vec::new(), Vec::new());
        for world in conditions(seed) {
            marked.push(100.0 * world.throughput(Use::All) / optimum);
            let unmarked = World {
                marks: false,
                ..world.clone()
            };
            plain.push(100.0 * unmarked.throughput(Use::All) / optimum);
            let alone = PACKET / world.points[0].packet_time / 1e6;
            let busy = World {
                uplink: Some((UPLINK, COMPETITORS)),
                ..world
            };
            congested.push(100.0 * busy.throughput(Use::All) / alone);
        }
        let mut findings = Findings::default();
        for all in [&mut marked, &mut plain, &mut congested] {
            all.sort_by(f64::total_cmp);
        }
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        let median = |all: &[f64]| f64::midpoint(all[all.len() / 2 - 1], all[all.len() / 2]);
        let mut percent =
            |claim: &str, value| findings.value(format!("N.fig6a.{claim}"), value, Unit::Percent);
        percent("ecn_mean", mean(&marked));
        percent("ecn_med", median(&marked));
        percent("ecn_min", marked[0]);
        percent("mp_mean", mean(&plain));
        percent("mp_med", median(&plain));
        percent("s2_mean", mean(&congested));
        percent("s2_med", median(&congested));
        let of = |name: &str, all: &[f64]| (name.to_owned(), Quantity::new(mean(all), Unit::Percent));
        findings.shape(
            "N.fig6a.order",
            mean(&marked) > 1.6 * mean(&plain),
            vec![of("marked", &marked), of("plain", &plain)],
        );
        let sorted = |all: &[f64]| {
            all.iter()
                .enumerate()
                .map(|(run, share)| (run as f64, *share))
                .collect()
        };
        findings.plots.push(Plot::new(
            "N-fig6a",
            "Share of the optimum, sorted",
            ("run", Unit::Count),
            ("share", Unit::Percent),
            vec![
                Curve::new("marked", sorted(&marked)),
                Curve::new("plain", sorted(&plain)),
                Curve::new("marked, congested uplink", sorted(&congested)),
            ],
        ));
        Ok(findings)
    }
}

impl Experiment for CongestedUplink {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("comparison of access points")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["N-fig6b"]
    }

    fn claims(&self) -> Vec<String> {
        ["plateau", "track", "plain"]
            .map(|claim| format!("N.fig6b.{claim}"))
            .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let worse = Point {
            packet_time: 3e-3,
            weight: 1.0,
        };
        let counts = [0, 1, 2, 3, 4, 6, 8, 12, 16, 20];
        let of = |marks: bool, which: Use| -> Vec<f64> {
            let world = |competitors| World {
                points: vec![worse, PERFECT],
                round_trip: Duration::from_millis(25),
                marks,
                uplink: Some((UPLINK, competitors)),
                worsens: None,
                coupling: Coupling::Lia,
                seed,
            };
            counts
                .iter()
                .map(|count| world(*count).throughput(which))
                .collect()
        };
        let (marked, plain, alone) = (of(true, Use::All), of(false, Use::All), of(false, Use::Only(1)));
        let mut findings = Findings::default();
        let level = &marked[counts.len() - 3..];
        findings.value(
            "N.fig6b.plateau",
            level.iter().sum::<f64>() / level.len() as f64,
            Unit::Mbps,
        );
        let worst = (0..4)
            .map(|index| (marked[index] - alone[index]).abs() / alone[index])
            .fold(0.0, f64::max);
        findings.shape(
            "N.fig6b.track",
            worst <= 0.2,
            vec![ratio("worst difference", worst)],
        );
        let last = plain[counts.len() - 1];
        findings.shape(
            "N.fig6b.plain",
            plain[0] < 0.5 * alone[0] && last >= 0.95 * 4.0,
            vec![
                mbps("idle", plain[0]),
                mbps("TCP, idle", alone[0]),
                mbps("busy", last),
            ],
        );
        let points = |all: &[f64]| counts.iter().zip(all).map(|(x, y)| (*x as f64, *y)).collect();
        findings.plots.push(Plot::new(
            "N-fig6b",
            "Throughput with a congested uplink",
            ("TCPs on the uplink", Unit::Count),
            ("throughput", Unit::Mbps),
            vec![
                Curve::new("marked", points(&marked)),
                Curve::new("plain", points(&plain)),
                Curve::new("TCP on the better", points(&alone)),
            ],
        ));
        Ok(findings)
    }
}

impl Experiment for MoreAccessPoints {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("comparison of access points")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["N-fig6c"]
    }

    fn claims(&self) -> Vec<String> {
        ["linear", "slope", "max"]
            .map(|claim| format!("N.fig6c.{claim}"))
            .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let share = |times: &[f64], seed| {
            let others = times.iter().map(|time| Point {
                packet_time: *time,
                weight: 1.0,
            });
            let world = World {
                points: std::iter::once(PERFECT).chain(others).collect(),
                round_trip: Duration::from_millis(25),
                marks: true,
                uplink: None,
                worsens: None,
                coupling: Coupling::Lia,
                seed,
            };
            world.throughput(Use::All) * BEST * 1e6 / PACKET
        };
        let counts = 0..=6usize;
        let poor: Vec<f64> = counts
            .clone()
            .map(|count| share(&vec![6e-3; count], seed))
            .collect();
        let mut random = hawser_sim::Streams::new(seed).get("packet times");
        let mut uniform = Vec::new();
        for count in counts {
            let mut sum = 0.0;
            for draw in 0..DRAWS {
                let times: Vec<f64> = (0..count).map(|_| BEST + random.uniform() * 5.5e-3).collect();
                sum += share(&times, seed.wrapping_add(draw));
            }
            uniform.push(sum / DRAWS as f64);
        }
        let (poor_slope, fit) = line(&poor[..=4]);
        let (uniform_slope, _) = line(&uniform[..=4]);
        let mut findings = Findings::default();
        findings.shape("N.fig6c.linear", fit >= 0.95, vec![ratio("R2", fit)]);
        findings.shape(
            "N.fig6c.slope",
            poor_slope < uniform_slope && uniform_slope < 0.0,
            vec![ratio("poor", poor_slope), ratio("uniform", uniform_slope)],
        );
        findings.shape(
            "N.fig6c.max",
            poor[4] < 0.5,
            vec![ratio("with four poor ones", poor[4])],
        );
        let points = |all: &[f64]| all.iter().enumerate().map(|(x, y)| (x as f64, *y)).collect();
        findings.plots.push(Plot::new(
            "N-fig6c",
            "Share of the best access point's rate",
            ("other access points", Unit::Count),
            ("share", Unit::Ratio),
            vec![
                Curve::new("poor", points(&poor)),
                Curve::new("uniform", points(&uniform)),
            ],
        ));
        Ok(findings)
    }
}

/// Number of draws of packet times for each mean. Source: our choice; the mean then varies by less
/// than the width of a plotted line.
const DRAWS: u64 = 8;

/// Returns the slope of the regression line through values at 0, 1, ..., and its coefficient of
/// determination.
fn line(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean_x = (count - 1.0) / 2.0;
    let mean_y = values.iter().sum::<f64>() / count;
    let (mut xy, mut xx, mut yy) = (0.0, 0.0, 0.0);
    for (x, y) in values.iter().enumerate() {
        let (dx, dy) = (x as f64 - mean_x, y - mean_y);
        (xy, xx, yy) = (xy + dx * dy, xx + dx * dx, yy + dy * dy);
    }
    (xy / xx, xy * xy / (xx * yy))
}
