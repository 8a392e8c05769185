//! Multifacet against multipath TCP, overhearing and flow-level routing: figures 8a and 9, Table 4.
//!
//! What the paper does not state, and what was taken:
//! - Figure 8a: the hops of Table 3 (20, 30 and 60 Mb/s). MPTCP has an address of the client on
//!   each link; both end in the repeater's hop. MPTCP comes close to Multifacet without delay:
//!   windows that follow acknowledgements leave nothing waiting at the access point's shared radio,
//!   the queue is the repeater's, and so the two do not fight for the channel. HighSpeed TCP in
//!   place of CUBIC and device queues of 1,000 packets do not change that.
//! - Figure 9: the own link is in the 5 GHz band, 40 MHz wide and one scheme slower than the shared
//!   link, whose channel the others use for all hops: the signal is 7 dB weaker there. The direct
//!   link is at the slowest rate, and loses what a link at the edge loses (a third). The own link's
//!   advantage and the direct link's loss were chosen with equation 2 and the paper's ratios at
//!   hand, before a run.
//! - Table 4: the hops of figure 7's C3 when the competitor takes what it can, its most favourable
//!   case (half of the channel at most before a look at the results). ROMA's logic estimates once a
//!   second what the shared channel has free for the two hops of another packet, from how busy it
//!   was, the repeater's and its own frames included, and plans the shares of the links for the
//!   next second by it.

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

/// Of the wire, there and back. Units: ms.
pub(super) const WIRED: [u64; 5] = [0, 25, 50, 75, 100];

/// The hops of figures 8a and 8b.
pub(super) fn testbed(scheme: Scheme, wired: u64) -> Setup {
    let mut setup = Setup::new(twenty(), thirty(), Some(sixty()), scheme);
    // The source's machine delays what it sends; the way back is not delayed: half of it each way
    // is the same for a round trip.
    setup.delay = Duration::from_millis(wired) / 2;
    setup
}

impl Experiment for Delays {
    fn setups(&self) -> &'static [&'static str] {
        &["M-fig8a"]
    }

    fn claims(&self) -> Vec<String> {
        ["d0", "d100", "mono"]
            .map(|claim| format!("M.fig8a.{claim}"))
            .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        // Ten seconds from the beginning, as the paper's runs.
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
        // By less than a tenth of the first a point may stand above the one before: ten seconds of
        // TCP.
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

/// What the competitor of Table 4 takes.
const PART: f64 = 1.0;
const LOOK: Duration = Duration::from_secs(1);

/// The client's throughput when ROMA's logic chooses shares.
fn roma(seed: u64) -> f64 {
    let [shared, down] = [twenty(), forty_five()].map(|hop| alone_shared(hop, seed));
    let mut floor = Floor::new(&Case::C3.setup(Scheme::Turns, PART), seed);
    floor.record();
    let flow = floor.download(0, Load::Tcp);
    let (mut from, mut own) = (START, None);
    let end = START + LONG.0 + LONG.1 * 2;
    while from < end {
        floor.network.run(from + LOOK);
        let free = 1.0 - floor.busy(SHARED, from, from + LOOK);
        from += LOOK;
        let rate = floor.rate(flow, from.since(START) - LOOK, from.since(START));
        let spare = free.max(0.0) / (1.0 / shared + 1.0 / down);
        // In the first second everything went over the own link.
        floor.set_shares([*own.get_or_insert(rate), spare]);
    }
    floor.rate(flow, LONG.0, LONG.0 + LONG.1 * 2)
}

impl Experiment for Routing {
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
