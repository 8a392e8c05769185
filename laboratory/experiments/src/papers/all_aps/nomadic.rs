//! A client with 802.11n at places between two access points: section 4.2's last experiment, and
//! figure 7.
//!
//! What the paper does not state, and what was taken:
//! - The places of [`super::positions`], with slow fading only (1 dB): rates that deliver need no
//!   retries then, as the paper describes minstrel_ht.
//! - One stream of 20 MHz, a rate that delivers nine attempts in ten, twenty frames at once (the
//!   paper's number).
//! - The access points buffer as those of [`super::fairness`] do, and the server is 5 ms away, as
//!   in [`super::mobility`]. Chosen after a look: at first the buffer was 200 packets, the paper's
//!   estimate for its eq. 5, and the server 2 ms away. With so large a buffer a subflow that
//!   overran it once has too small a window to fill it again, so that the farther access point does
//!   not take its turns, which is what the paper sees it do.
//! - OLIA; 30 s after 5 s.
//! - The optimum is the better access point when it is alone.

use hawser_netem::air::phy::{PhyRate, Standard};
use hawser_netem::air::{RateControl, Signal, StationConfig};
use hawser_units::Duration;

use super::fairness::BUFFER;
use super::place::{Flow, Load, Place};
use super::positions::{PLACES, between, from};
use super::ratio;
use crate::reproduce::{Curve, Experiment, ExperimentError, Findings, Plot, Unit};
use hawser_sim::mptcp::Coupling;
use hawser_sim::tcp::Congestion;

/// Section 4.2 on 802.11n, and figure 7.
#[derive(Clone, Copy, Debug)]
pub struct Nomadic;

/// A card of 802.11n whose rate control wants frames delivered.
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

/// A client that downloads at a place through these access points.
fn download(seed: u64, at: usize, used: &[usize], marks: bool) -> (Place, Flow) {
    let configs = [minstrel_ht(36), minstrel_ht(36)];
    let mut place = Place::new(seed, &configs, &Signal::clear(), Duration::from_millis(5));
    let signals = between(at).map(|signal| signal.fading(1.0, Duration::from_secs(1)));
    let client = place.client(&signals, used, marks);
    let load = if used.len() == 1 {
        Load::Tcp(Congestion::NewReno)
    } else {
        Load::Mptcp(Coupling::Olia)
    };
    let flow = place.download(&client, &load);
    (place, flow)
}

/// What it gets, in Mb/s.
fn rate(seed: u64, at: usize, used: &[usize], marks: bool) -> f64 {
    let (mut place, flow) = download(seed, at, used, marks);
    place.run(from(35));
    place.rate(flow, from(5), from(35))
}

impl Experiment for Nomadic {
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
            (0..PLACES).map(|at| rate(seed, at, used, marks)).collect()
        };
        let (first, second) = (of(&[0], false), of(&[1], false));
        let (plain, marked) = (of(&[0, 1], false), of(&[0, 1], true));
        let best: Vec<f64> = first.iter().zip(&second).map(|(a, b)| a.max(*b)).collect();
        let mut findings = Findings::default();
        let ends = [0, PLACES - 1];
        let near = ends.map(|at| plain[at] / best[at]);
        findings.value("N.sec4.11n", f64::midpoint(near[0], near[1]), Unit::Ratio);
        let shares = marked.iter().zip(&best).map(|(marked, best)| marked / best);
        let share = 100.0 * shares.sum::<f64>() / PLACES as f64;
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
        let (place, _) = download(seed, 0, &[0, 1], true);
        Some(place.picture("Figure 7: near one of two access points, 802.11n, with marks"))
    }
}
