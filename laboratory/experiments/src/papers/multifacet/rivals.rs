//! Multifacet against multipath TCP, overhearing and flow-level routing: figures 8a and 9, Table 4.
//!
//! Values that the paper does not state, chosen here:
//! - Figure 8a: the hops of Table 3 (20, 30 and 60 Mb/s). MPTCP has an address of the client on
//!   each link; both links continue over the repeater's hop. Without delay MPTCP nearly reaches
//!   Multifacet: its windows follow the acknowledgements, so nothing waits at the access point's
//!   shared radio, the queue is at the repeater, and the two do not contend for the channel.
//!   HighSpeed TCP instead of CUBIC and device queues of 1,000 packets do not change this.
//! - Figure 9: the own link is in the 5 GHz band, 40 MHz wide and one modulation scheme slower than
//!   the shared link, because the signal is 7 dB weaker there; the other contenders use the shared
//!   link's channel for all hops. The direct link uses the slowest rate and loses a third, as a
//!   link at the edge of coverage does. The own link's advantage and the direct link's loss were
//!   chosen by equation 2 and the paper's ratios, before a run.
//! - Table 4: the hops of figure 7's C3 when the competitor takes all it can, the most favourable
//!   case for ROMA (at most half of the channel until the first results were seen). Once a second
//!   ROMA's logic estimates the free capacity of the shared channel for the two hops of another
//!   packet, from the channel's busy time including the frames of the repeater and its own, and
//!   plans the links' shares for the next second by this estimate.

use hawser_radio::striping::access_point::SHARED;
use hawser_units::Duration;

use super::bottlenecks::Case;
use super::floor::{Floor, Hop, Load, START, Scheme, Setup, picture, throughput};
use super::hops::{LONG, alone_shared, five, forty_five, sixty, thirty, twenty};
use crate::reproduce::{Experiment, ExperimentError, Findings, Quantity, Unit};

/// Figure 8a.
#[derive(Clone, Copy, Debug)]
pub struct Delays;

/// Figure 9.
#[derive(Clone, Copy, Debug)]
pub struct Overhearing;

/// Table 4.
#[derive(Clone, Copy, Debug)]
pub struct Routing;

/// Round-trip times of the wire. Source: Multifacet section 5.2, 0 to 100 ms. Units: ms.
pub(super) const WIRED: [u64; 5] = [0, 25, 50, 75, 100];

/// Returns the set-up with the hops of figures 8a and 8b.
pub(super) fn testbed(scheme: Scheme, wired: u64) -> Setup {
    let mut setup = Setup::new(twenty(), thirty(), Some(sixty()), scheme);
    // The paper delays only what the source sends; half of the delay in each direction gives the
    // same round-trip time.
    setup.delay = Duration::from_millis(wired) / 2;
    setup
}

impl Experiment for Delays {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("backpressure striping")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["M-fig8a"]
    }

    fn claims(&self) -> Vec<String> {
        ["d0", "d100", "mono"]
            .map(|claim| format!("M.fig8a.{claim}"))
            .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        // The first ten seconds, as in the paper's runs.
        let whole = (Duration::ZERO, Duration::from_secs(10));
        let ratio = |wired: u64| {
            let mptcp = throughput(&testbed(Scheme::ByAddress, wired), Load::Mptcp, whole, seed);
            mptcp / throughput(&testbed(Scheme::Multifacet, wired), Load::Tcp, whole, seed)
        };
        let ratios = WIRED.map(ratio);
        let mut findings = Findings::default();
        findings.value("M.fig8a.d0", ratios[0], Unit::Ratio);
        findings.value("M.fig8a.d100", ratios[WIRED.len() - 1], Unit::Ratio);
        let evidence = WIRED.iter().zip(ratios);
        let evidence =
            evidence.map(|(wired, ratio)| (format!("{wired} ms"), Quantity::new(ratio, Unit::Ratio)));
        // A point may exceed the previous one by a tenth of the first one, the variation of ten
        // seconds of TCP.
        let grows = ratios.windows(2).all(|pair| pair[1] <= pair[0] + 0.1 * ratios[0]);
        findings.shape("M.fig8a.mono", grows, evidence.collect());
        Ok(findings)
    }

    fn timeline(&self, seed: u64) -> Option<String> {
        let setup = testbed(Scheme::ByAddress, WIRED[0]);
        picture(
            &setup,
            Load::Mptcp,
            "Figure 8a: multipath TCP over both links",
            seed,
        )
    }
}

impl Experiment for Overhearing {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("backpressure striping")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["M-fig9"]
    }

    fn claims(&self) -> Vec<String> {
        ["M.fig9.over", "M.fig9.mf"].map(str::to_owned).to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let rate = |scheme| {
            let setup = Setup::new(Hop::fixed(2, 1, true), twenty(), Some(forty_five()), scheme);
            throughput(&setup, Load::Tcp, LONG, seed)
        };
        let one = rate(Scheme::OneChannel);
        let overhearing = one + alone_shared(five().lossy(1.0 / 3.0), seed);
        let mut findings = Findings::default();
        findings.value("M.fig9.over", overhearing / one, Unit::Times);
        findings.value("M.fig9.mf", rate(Scheme::Multifacet) / overhearing, Unit::Times);
        Ok(findings)
    }

    fn timeline(&self, seed: u64) -> Option<String> {
        let setup = Setup::new(twenty(), twenty(), Some(forty_five()), Scheme::OneChannel);
        picture(&setup, Load::Tcp, "Figure 9: a repeater with one channel", seed)
    }
}

/// Share of the competitor of Table 4. Source: our choice, the most favourable case for ROMA (start
/// of this file).
const PART: f64 = 1.0;
/// Interval between two plans of ROMA's logic. Source: our choice (start of this file).
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The client's throughput when ROMA's logic chooses shares.
fn roma(seed: u64) -> f64 {
    let [shared, down] = [twenty(), forty_five()].map(|hop| alone_shared(hop, seed));
    let mut floor = Floor::new(&Case::C3.setup(Scheme::Turns, PART), seed);
    floor.record();
    let flow = floor.download(0, Load::Tcp);
    let (mut from, mut own) = (START, None);
    let end = START + LONG.0 + LONG.1 * 2;
    while from < end {
        floor.network.run(from + SAMPLE_INTERVAL);
        let free = 1.0 - floor.busy(SHARED, from, from + SAMPLE_INTERVAL);
        from += SAMPLE_INTERVAL;
        let rate = floor.rate(flow, from.since(START) - SAMPLE_INTERVAL, from.since(START));
        let spare = free.max(0.0) / (1.0 / shared + 1.0 / down);
        // In the first second all packets used the own link.
        floor.set_shares([*own.get_or_insert(rate), spare]);
    }
    floor.rate(flow, LONG.0, LONG.0 + LONG.1 * 2)
}

impl Experiment for Routing {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("backpressure striping")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["M-tab4"]
    }

    fn claims(&self) -> Vec<String> {
        ["roma", "mf", "order"]
            .map(|claim| format!("M.tab4.{claim}"))
            .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let rate = |scheme| {
            throughput(
                &Case::C3.setup(scheme, PART),
                Load::Tcp,
                (LONG.0, LONG.1 * 2),
                seed,
            )
        };
        let traditional = rate(Scheme::Traditional);
        let (roma, multifacet) = (roma(seed) / traditional, rate(Scheme::Multifacet) / traditional);
        let mut findings = Findings::default();
        findings.value("M.tab4.roma", roma, Unit::Times);
        findings.value("M.tab4.mf", multifacet, Unit::Times);
        let number = |name: &str, value| (name.to_owned(), Quantity::new(value, Unit::Times));
        findings.shape(
            "M.tab4.order",
            1.0 < roma && roma < multifacet,
            vec![number("roma", roma), number("multifacet", multifacet)],
        );
        Ok(findings)
    }

    fn timeline(&self, seed: u64) -> Option<String> {
        let setup = Case::C3.setup(Scheme::Multifacet, PART);
        picture(
            &setup,
            Load::Tcp,
            "Table 4: a competitor that takes what it can",
            seed,
        )
    }
}
