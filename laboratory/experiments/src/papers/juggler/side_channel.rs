//! Figure 9: slots for a neighbour in ad hoc mode, in addition to those of the access point.

use hawser_units::{Duration, Instant};

use super::lab::{Behind, Laptop, Plan};
use crate::reproduce::{Curve, Experiment, ExperimentError, Findings, Plot, Quantity, Unit};

/// Slots of 450 ms for the access point and of 50 ms for a neighbour in ad hoc mode that buffers
/// nothing; a download over each.
///
/// Values that the paper does not state: the rates (here 50 to 500 KB/s, the highest that the text
/// names), the measured time (here 60 s), and the rate control of the neighbour's card (here it
/// lowers the rate when acknowledgements are missing). The side channel's throughput depends on how
/// TCP recovers from its timeouts: packets in flight at the end of the slot are lost, the timer
/// then doubles, and only one retransmission in ten falls into a slot. With the laboratory's
/// round-trip time the third retransmission follows 1.46 s after the slot, which is near the edge
/// of a later slot. The paper's 40 KB/s are four fifths of the slots' capacity, so its neighbour
/// probably buffered packets, in a driver with more attempts or behind a slower rate. Here some
/// eighteen frames fail while the laptop is absent, more than are in flight. With 128 or more
/// attempts per frame the result is 41 KB/s, but TCP then adapts to the laptop's absence and its
/// timer expires twice in 60 s, whereas the paper names timeouts as the cause. The rates of
/// 802.11b, longer slots and other rate controls give 0.1 to 6 KB/s.
#[derive(Clone, Copy, Debug)]
pub struct SideChannel;

impl Experiment for SideChannel {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("ad hoc side channel")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["J-fig9"]
    }

    fn claims(&self) -> Vec<String> {
        ["J.fig9.adhoc500", "J.fig9.fg"].map(str::to_owned).to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let (mut alone, mut beside, mut side) = (Vec::new(), Vec::new(), Vec::new());
        for rate in RATES {
            let ap = (Behind::AccessPoint(1), rate);
            let rates = measure(seed, Laptop::Cards, vec![ap]);
            alone.push((rate, rates[0]));
            let laptop = Laptop::Juggler {
                weights: vec![9, 1],
                scan: None,
                slot: Duration::from_millis(50),
            };
            let rates = measure(seed, laptop, vec![ap, (Behind::Neighbour(11), rate)]);
            beside.push((rate, rates[0]));
            side.push((rate, rates[1]));
        }
        let mut findings = Findings::default();
        if let Some((_, at_500)) = side.last() {
            findings.value("J.fig9.adhoc500", *at_500, Unit::KilobytesPerSecond);
        }
        let shares: Vec<_> = alone
            .iter()
            .zip(&beside)
            .map(|((rate, all), (_, part))| (*rate, part / all))
            .collect();
        let holds = shares.iter().all(|(_, share)| *share >= 0.95);
        let evidence = shares
            .iter()
            .map(|(rate, share)| (format!("{rate} KB/s"), Quantity::new(*share, Unit::Ratio)));
        findings.shape("J.fig9.fg", holds, evidence.collect());
        findings.plots.push(Plot::new(
            "J-fig9",
            "A neighbour beside the access point",
            ("rate of each gateway", Unit::KilobytesPerSecond),
            ("throughput", Unit::KilobytesPerSecond),
            vec![
                Curve::new("access point alone", alone),
                Curve::new("access point, 90 %", beside),
                Curve::new("neighbour, 10 %", side),
            ],
        ));
        Ok(findings)
    }
}

/// Returns the rate of a download over each network. Units: KB/s.
pub(super) fn measure(seed: u64, laptop: Laptop, networks: Vec<(Behind, f64)>) -> Vec<f64> {
    let count = networks.len();
    let mut lab = Plan {
        seed,
        laptop,
        networks,
    }
    .build();
    let start = lab.start();
    let transfers: Vec<_> = (0..count)
        .map(|network| lab.download(network, None, start))
        .collect();
    let end = Instant::ZERO + Duration::from_secs(60) + start.since(Instant::ZERO);
    lab.network.run(end);
    transfers
        .iter()
        .map(|transfer| lab.sink(*transfer).meter().total() as f64 / 1024.0 / 60.0)
        .collect()
}

/// Rates of the primary access point. Source: our choice, up to 500, of which Juggler states the
/// rate of the side channel. Units: KB/s.
const RATES: [f64; 5] = [50.0, 100.0, 200.0, 350.0, 500.0];
