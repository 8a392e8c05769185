//! Figure 7: a competing link takes a part of one of the three hops.
//!
//! C1: the repeater's hop to the client, of three alike (45 Mb/s). C2 and C3: the shared and the
//! own link of the access point, with the hops that the paper's table 2 points to, those at 64 feet
//! of figure 2 (20, 20 and 45 Mb/s). The competitor sends as fast as the hop does; it is near the
//! client in C1, the access point in C2 and the repeater in C3; the other end of the hop just
//! senses it in C1 and C3, and in C1 and C2 the third station on the channel is not disturbed, as
//! the paper states.
//!
//! What the paper does not state, and what was taken: the competing link offers 10 to 50 % of what
//! the hop carries. The text may also be read as a hop that is left with 10 to 50 %; equation 2
//! then gives gains of 1.5 to 5.5 for C3, of which the paper's 1.7 cannot be the mean. This was
//! settled by the equation, before a run. The naive baseline is below one where the shared channel
//! is short (C1, C2), but not in C3: in turn over both links it can carry 21 Mb/s there, and the
//! traditional repeater has no more than the competitor leaves of the own link's 20. UDP is offered
//! at 60 Mb/s. Video: see [`super::video`].

use hawser_units::Rate;

use super::floor::{Hop, Load, Scheme, Setup, ht, picture, throughput};
use super::hops::{LONG, forty_five, twenty};
use super::others::{Competitor, FAINT, NEAR, Who};
use super::video;
use crate::reproduce::{Experiment, ExperimentError, Findings, Quantity, Unit};

/// Figure 7.
#[derive(Clone, Copy, Debug)]
pub struct Bottlenecks;

/// Which hop the competitor takes a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// The repeater's to the client.
    C1,
    /// The shared link.
    C2,
    /// The own link.
    C3,
}

impl Case {
    /// The own link, the shared one, and the hop to the client.
    #[must_use]
    pub fn hops(self) -> [Hop; 3] {
        match self {
            Self::C1 => [forty_five(), forty_five(), forty_five()],
            Self::C2 | Self::C3 => [twenty(), twenty(), forty_five()],
        }
    }

    /// Who takes `part` of the hop, on one of these channels of the own and the shared link.
    #[must_use]
    pub fn competitor(self, part: f64, channels: [u16; 2]) -> Competitor {
        let (mcs, near) = match self {
            Self::C1 => (7, vec![(Who::Repeater, FAINT), (Who::Clients, NEAR)]),
            Self::C2 => (3, vec![(Who::AccessPoint, NEAR)]),
            Self::C3 => (3, vec![(Who::AccessPoint, FAINT), (Who::Repeater, NEAR)]),
        };
        let rate = ht(mcs, 1, false);
        Competitor {
            channel: channels[usize::from(self != Self::C3)],
            rate,
            aggregate: Hop::fixed(mcs, 1, false).aggregate,
            load: part * rate.as_bps() as f64 / 1e6,
            near,
            period: None,
        }
    }

    /// The floor with that competitor.
    pub(super) fn setup(self, scheme: Scheme, part: f64) -> Setup {
        let [own, shared, down] = self.hops();
        let mut setup = Setup::new(own, shared, Some(down), scheme);
        setup.competitors.push(self.competitor(part, setup.channels));
        setup
    }
}

/// What the competitor takes.
pub const PARTS: [f64; 5] = [0.1, 0.2, 0.3, 0.4, 0.5];

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The gains of a scheme over the traditional repeater, by what the competitor takes.
fn gains(case: Case, scheme: Scheme, load: Load, seed: u64) -> Vec<f64> {
    let gain = |part: &f64| {
        let rate = |scheme| throughput(&case.setup(scheme, *part), load, LONG, seed);
        rate(scheme) / rate(Scheme::Traditional)
    };
    PARTS.iter().map(gain).collect()
}

impl Experiment for Bottlenecks {
    fn setups(&self) -> &'static [&'static str] {
        &["M-fig7"]
    }

    fn claims(&self) -> Vec<String> {
        ["c1", "c2", "c3", "c3udp", "psnr", "naive"]
            .map(|claim| format!("M.fig7.{claim}"))
            .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let mut findings = Findings::default();
        let mut naive = Vec::new();
        for (case, name) in [(Case::C1, "c1"), (Case::C2, "c2"), (Case::C3, "c3")] {
            let gain = mean(&gains(case, Scheme::Multifacet, Load::Tcp, seed));
            findings.value(format!("M.fig7.{name}"), gain, Unit::Times);
            let gain = mean(&gains(case, Scheme::Naive, Load::Tcp, seed));
            naive.push((name.to_owned(), Quantity::new(gain, Unit::Times)));
        }
        let offered = Load::Udp(Rate::from_mbps(60));
        let udp = gains(Case::C3, Scheme::Multifacet, offered, seed);
        findings.value("M.fig7.c3udp", mean(&udp), Unit::Times);
        let quality = |scheme| {
            let each = PARTS.map(|part| video::psnr(&Case::C2.setup(scheme, part), seed));
            mean(&each)
        };
        let gain = quality(Scheme::Multifacet) - quality(Scheme::Traditional);
        findings.value("M.fig7.psnr", gain, Unit::Decibels);
        let is_below = naive.iter().all(|(_, gain)| gain.value < 1.0);
        findings.shape("M.fig7.naive", is_below, naive);
        Ok(findings)
    }

    fn timeline(&self, seed: u64) -> Option<String> {
        let setup = Case::C3.setup(Scheme::Multifacet, PARTS[PARTS.len() - 1]);
        picture(
            &setup,
            Load::Tcp,
            "Figure 7: a competitor near the repeater (C3)",
            seed,
        )
    }
}
