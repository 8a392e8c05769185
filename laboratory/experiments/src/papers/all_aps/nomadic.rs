//! Client with 802.11n at positions between two access points: section 4.2's last experiment, and
//! figure 7.
//!
//! Values that the paper does not state, chosen here:
//! - The positions of [`super::positions`], with slow fading only (1 dB): suitable rates then need
//!   no retries, as the paper describes minstrel_ht.
//! - A single stream of 20 MHz, a rate that delivers nine attempts in ten, and aggregates of twenty
//!   frames (the paper's number).
//! - The buffers of the access points are those of [`super::fairness`], and the server has a delay
//!   of 5 ms, as in [`super::mobility`]. Both were changed after the first results: initially the
//!   buffer was 200 packets, the paper's estimate for its eq. 5, and the server's delay 2 ms. After
//!   one overflow of such a large buffer a subflow's window is too small to fill it again, so the
//!   farther access point does not compete for the air, although it does in the paper.
//! - OLIA; the measurement lasts 30 s after 5 s.
//! - The optimum is the throughput of the better access point alone.

use hawser_netem::air::phy::{PhyRate, Standard};
use hawser_netem::air::{RateControl, Signal, StationConfig};
use hawser_units::Duration;

use super::fairness::BUFFER;
use super::positions::{POSITIONS, between, from};
use super::ratio;
use super::topology::{Flow, Load, Topology};
use crate::reproduce::{Curve, Experiment, ExperimentError, Findings, Plot, Unit};
use hawser_sim::mptcp::Coupling;
use hawser_sim::tcp::Congestion;

/// Section 4.2 on 802.11n, and figure 7.
#[derive(Clone, Copy, Debug)]
pub struct Nomadic;

/// Returns the configuration of an 802.11n card whose rate control maximizes delivery.
#[must_use]
pub fn minstrel_ht(channel: u16) -> StationConfig {
    let rates = Standard::N.rates();
    let rate = PhyRate::Ht {
        mcs: 0,
        streams: 1,
        wide: false,
        short_guard: false,
    };
    StationConfig {
        rate: RateControl::delivery_first(rates),
        aggregate: 20,
        queue: BUFFER,
        ..StationConfig::fixed(Standard::N, channel, rate)
    }
}

/// Starts a download of a client at a position through these access points.
fn download(seed: u64, at: usize, used: &[usize], marks: bool) -> (Topology, Flow) {
    let configs = [minstrel_ht(36), minstrel_ht(36)];
    let mut topology = Topology::new(seed, &configs, &Signal::clear(), Duration::from_millis(5));
    let signals = between(at).map(|signal| signal.fading(1.0, Duration::from_secs(1)));
    let client = topology.client(&signals, used, marks);
    let load = if used.len() == 1 {
        Load::Tcp(Congestion::NewReno)
    } else {
        Load::Mptcp(Coupling::Olia)
    };
    let flow = topology.download(&client, &load);
    (topology, flow)
}

/// Returns the client's rate. Units: Mb/s.
fn rate(seed: u64, at: usize, used: &[usize], marks: bool) -> f64 {
    let (mut topology, flow) = download(seed, at, used, marks);
    topology.run(from(35));
    topology.rate(flow, from(5), from(35))
}

impl Experiment for Nomadic {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("comparison of access points")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["N-fig3", "N-fig7"]
    }

    fn claims(&self) -> Vec<String> {
        ["N.sec4.11n", "N.fig7.share", "N.fig7.gain"]
            .map(str::to_owned)
            .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let of = |used: &[usize], marks| -> Vec<f64> {
            (0..POSITIONS).map(|at| rate(seed, at, used, marks)).collect()
        };
        let (first, second) = (of(&[0], false), of(&[1], false));
        let (plain, marked) = (of(&[0, 1], false), of(&[0, 1], true));
        let best: Vec<f64> = first.iter().zip(&second).map(|(a, b)| a.max(*b)).collect();
        let mut findings = Findings::default();
        let ends = [0, POSITIONS - 1];
        let near = ends.map(|at| plain[at] / best[at]);
        findings.value("N.sec4.11n", f64::midpoint(near[0], near[1]), Unit::Ratio);
        let shares = marked.iter().zip(&best).map(|(marked, best)| marked / best);
        let share = 100.0 * shares.sum::<f64>() / POSITIONS as f64;
        findings.value("N.fig7.share", share, Unit::Percent);
        let gains = ends.map(|at| marked[at] / plain[at]);
        findings.shape(
            "N.fig7.gain",
            gains.iter().all(|gain| *gain > 1.5),
            vec![
                ratio("near the first", gains[0]),
                ratio("near the second", gains[1]),
            ],
        );
        let points = |all: &[f64]| all.iter().enumerate().map(|(at, y)| (at as f64, *y)).collect();
        findings.plots.push(Plot::new(
            "N-fig7",
            "Throughput from one access point to the other, 802.11n",
            ("place", Unit::Count),
            ("throughput", Unit::Mbps),
            vec![
                Curve::new("TCP on the first", points(&first)),
                Curve::new("TCP on the second", points(&second)),
                Curve::new("MPTCP", points(&plain)),
                Curve::new("MPTCP, marked", points(&marked)),
            ],
        ));
        Ok(findings)
    }

    fn timeline(&self, seed: u64) -> Option<String> {
        let (topology, _) = download(seed, 0, &[0, 1], true);
        Some(topology.picture("Figure 7: near one of two access points, 802.11n, with marks"))
    }
}
