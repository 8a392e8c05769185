//! Stationary client in an office with varying other users: figure 9.
//!
//! Values that the paper does not state, chosen here:
//! - Channel 11; the server has a delay of 10 ms; OLIA with marks. The access points, which the
//!   paper's authors do not control, are the department's of figure 8: 802.11n with a rate control
//!   that maximizes delivery, and the buffers of [`super::fairness`]. Initially they had 802.11g,
//!   Minstrel and 100 packets; after the first results they were changed to section 6.3's
//!   description of the laboratory. Before the change TCP over both was faster than over either,
//!   whereas in the paper it is a fifth slower than over the first.
//! - The mean signals are 16 and 15 dB above a noise floor of -85 dBm: with them TCP takes about
//!   the paper's 5 and 5.6 s on the two access points. The results of MPTCP and the tails follow.
//!   People cause normally distributed shadowing of 5 dB that changes within 30 s, independently
//!   for each access point; fading has 3 dB with a coherence time of 50 ms.
//! - Another user near each access point downloads at 4 Mb/s for a tenth of the time, for 20 s at a
//!   time on average.
//! - 150 rounds of three downloads, two seconds apart, instead of five hours (initially 40 rounds,
//!   whose 99th percentiles are their longest downloads).

use std::cell::RefCell;
use std::rc::Rc;

use hawser_netem::Random;
use hawser_netem::air::{FrameLoss, Signal};
use hawser_units::{Duration, Instant, Rate};

use super::nomadic::minstrel_ht;
use super::topology::{Client, Load, START, Topology};
use crate::reproduce::{Curve, Experiment, ExperimentError, Findings, Plot, Unit};
use hawser_sim::mptcp::Coupling;
use hawser_sim::tcp::Congestion;

/// Figure 9.
#[derive(Clone, Copy, Debug)]
pub struct Office;

/// Size of the file. Source: All-APs section 6.4. Units: bytes.
const FILE: u64 = 10_000_000;
/// Number of rounds of three downloads, and the pause between them. Source: our choice (start of
/// this file), in place of five hours.
const ROUNDS: usize = 150;
const PAUSE: Duration = Duration::from_secs(2);
/// Mean powers. Source: chosen so that TCP takes about 5 and 5.6 s, as in All-APs section 6.4.
/// Units: dBm.
const POWERS: [f64; 2] = [-69.0, -70.0];
/// Attenuation by people, and the time in which it changes. Source: our choice (start of this
/// file). Units: dB.
const SHADOW: f64 = 5.0;
const SHADOW_TIME: Duration = Duration::from_secs(30);

/// Advances two values that vary randomly around zero.
fn wander(offsets: &mut [f64; 2], step: Duration, random: &mut Random) {
    let kept = (-step.as_secs_f64() / SHADOW_TIME.as_secs_f64()).exp();
    for offset in offsets {
        *offset = *offset * kept + (1.0 - kept * kept).sqrt() * SHADOW * random.normal();
    }
}

/// Returns the duration of each download over the first, the second and both access points. Units:
/// seconds.
fn downloads(seed: u64) -> Result<[Vec<f64>; 3], ExperimentError> {
    let config = minstrel_ht(11);
    let mut topology = Topology::new(
        seed,
        &[config.clone(), config],
        &Signal::clear(),
        Duration::from_millis(10),
    );
    let signal = |power: f64| {
        let signal = Signal {
            power: power as f32,
            loss: FrameLoss::Noise(-85.0),
            fading: None,
        };
        signal.fading(3.0, Duration::from_millis(50))
    };
    let client = topology.client(&POWERS.map(signal), &[0, 1], true);
    others(&mut topology, seed);
    let (access_points, station) = (topology.access_points.clone(), client.station);
    let random = RefCell::new(Random::new(seed, "people"));
    let offsets = Rc::new(RefCell::new([0.0; 2]));
    let step = Duration::from_millis(500);
    topology.radio().set_motion(step, move |_, air| {
        let mut offsets = offsets.borrow_mut();
        wander(&mut offsets, step, &mut random.borrow_mut());
        for (index, access_point) in access_points.iter().enumerate() {
            let signal = signal(POWERS[index] + offsets[index]);
            air.set_signals(*access_point, station, &signal);
        }
    });
    let ways: [(Client, Load); 3] = [
        (client.only(0), Load::Tcp(Congestion::NewReno)),
        (client.only(1), Load::Tcp(Congestion::NewReno)),
        (client, Load::Mptcp(Coupling::Olia)),
    ];
    let mut took: [Vec<f64>; 3] = Default::default();
    let mut now = Duration::from_secs(1);
    for _ in 0..ROUNDS {
        for ((client, load), took) in ways.iter().zip(&mut took) {
            let flow = topology.fetch(client, load, Some(FILE), START + now);
            let begun = START + now;
            let done = loop {
                now += Duration::from_millis(250);
                topology.run(now);
                if let Some(done) = topology.done(flow) {
                    break done;
                }
                if now > LIMIT {
                    return Err(ExperimentError::Unfinished {
                        setup: "N-fig9".to_owned(),
                        what: "a download".to_owned(),
                    });
                }
            };
            took.push(done.since(begun).as_secs_f64());
            now += PAUSE;
        }
    }
    Ok(took)
}

/// Adds a varying user of each access point.
fn others(topology: &mut Topology, seed: u64) {
    let mut random = Random::new(seed, "others");
    for point in 0..2 {
        let near = [Signal::of_power(-60.0), Signal::of_power(-60.0)];
        let user = topology.client(&near, &[point], false);
        let mut at = START;
        while at < START + LIMIT {
            let quiet = -180.0 * (1.0 - random.uniform()).ln();
            let busy = -20.0 * (1.0 - random.uniform()).ln();
            at += Duration::from_secs_f64(quiet);
            let end: Instant = at + Duration::from_secs_f64(busy);
            topology.visit(&user, Rate::from_mbps(4), (at, end));
            at = end;
        }
    }
}

/// Upper bound of the time for all downloads. Source: our choice; a run that takes longer is
/// reported as unfinished.
const LIMIT: Duration = Duration::from_secs(8_000);

fn quantile(took: &[f64], share: f64) -> f64 {
    let mut sorted = took.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() - 1) as f64 * share;
    let (low, part) = (rank as usize, rank.fract());
    let high = (low + 1).min(sorted.len() - 1);
    sorted[low] * (1.0 - part) + sorted[high] * part
}

impl Experiment for Office {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("comparison of access points")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["N-fig9"]
    }

    fn claims(&self) -> Vec<String> {
        ["ap1", "ap2", "mp", "p99"]
            .map(|claim| format!("N.fig9.{claim}"))
            .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let took = downloads(seed)?;
        let mut findings = Findings::default();
        for (name, took) in ["ap1", "ap2", "mp"].iter().zip(&took) {
            findings.value(format!("N.fig9.{name}"), quantile(took, 0.5), Unit::Seconds);
        }
        let [one, two, both] = [0, 1, 2].map(|way| quantile(&took[way], 0.99));
        findings.value("N.fig9.p99", both / f64::midpoint(one, two), Unit::Ratio);
        let curve = |name: &str, took: &[f64]| {
            let points = (0..=100).map(|percent| {
                let share = f64::from(percent) / 100.0;
                (quantile(took, share), share)
            });
            Curve::new(name, points.collect())
        };
        findings.plots.push(Plot::new(
            "N-fig9",
            "Times of 10 MB downloads",
            ("time", Unit::Seconds),
            ("share", Unit::Ratio),
            vec![
                curve("TCP on the first", &took[0]),
                curve("TCP on the second", &took[1]),
                curve("MPTCP", &took[2]),
            ],
        ));
        Ok(findings)
    }
}
