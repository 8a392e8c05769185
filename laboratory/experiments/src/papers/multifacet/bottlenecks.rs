//! Competing link that takes part of one of the three hops: figure 7.
//!
//! C1: the repeater's hop to the client, with three equal hops (45 Mb/s). C2 and C3: the shared and
//! the own link of the access point, with the hops that the paper's table 2 suggests, those at 64
//! feet in figure 2 (20, 20 and 45 Mb/s). The competitor sends at the rate of the hop. It is near
//! the client in C1, the access point in C2 and the repeater in C3. In C1 and C3 the other end of
//! the hop only senses it, and in C1 and C2 it does not disturb the third station on the channel,
//! as the paper states.
//!
//! A value that the paper does not state, chosen here: the competing link offers 10 to 50 % of the
//! hop's throughput. The text may also mean that the hop retains 10 to 50 %; equation 2 then gives
//! gains of 1.5 to 5.5 for C3, whose mean cannot be the paper's 1.7. The equation decided this
//! before a run. The naive baseline is below one where the shared channel is the bottleneck (C1,
//! C2), but not in C3: alternating between both links, it can carry 21 Mb/s there, whereas the
//! traditional repeater has only the part of the own link's 20 Mb/s that the competitor leaves. The
//! offered UDP load is 60 Mb/s. Video: see [`super::video`].

use hawser_units::Rate;

use super::floor::{Hop, Load, Scheme, Setup, ht, picture, throughput};
use super::hops::{LONG, forty_five, twenty};
use super::others::{Competitor, FAINT, NEAR, Who};
use super::video;
use crate::reproduce::{Experiment, ExperimentError, Findings, Quantity, Unit};

/// Figure 7.
#[derive(Clone, Copy, Debug)]
pub struct Bottlenecks;

/// Hop on which the competitor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// Hop from the repeater to the client.
    C1,
    /// The shared link.
    C2,
    /// The own link.
    C3,
}

impl Case {
    /// Returns the own link, the shared link, and the hop to the client.
    #[must_use]
    pub fn hops(self) -> [Hop; 3] {
        match self {
            Self::C1 => [forty_five(), forty_five(), forty_five()],
            Self::C2 | Self::C3 => [twenty(), twenty(), forty_five()],
        }
    }

    /// Returns a competitor that takes `part` of the hop; `channels` are those of the own and the
    /// shared link.
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

    /// Returns the floor with the competitor of this case.
    pub(super) fn setup(self, scheme: Scheme, part: f64) -> Setup {
        let [own, shared, down] = self.hops();
        let mut setup = Setup::new(own, shared, Some(down), scheme);
        setup.competitors.push(self.competitor(part, setup.channels));
        setup
    }
}

/// Shares of the competitor. Source: Multifacet section 5.1, 10 to 50 %.
pub const PARTS: [f64; 5] = [0.1, 0.2, 0.3, 0.4, 0.5];

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the gains of a scheme over the traditional repeater, for each of [`PARTS`].
fn gains(case: Case, scheme: Scheme, load: Load, seed: u64) -> Vec<f64> {
    let gain = |part: &f64| {
        let rate = |scheme| throughput(&case.setup(scheme, *part), load, LONG, seed);
        rate(scheme) / rate(Scheme::Traditional)
    };
    PARTS.iter().map(gain).collect()
}

impl Experiment for Bottlenecks {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("backpressure striping")
    }

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
