//! Figure 8: a torrent from two seeds.

use hawser_units::Duration;

use super::lab::{Behind, FILE, Laptop, Plan, halves};
use crate::papers::juggler::striping;
use crate::reproduce::{Curve, Experiment, ExperimentError, Findings, Plot, Quantity, Unit};
use hawser_sim::app::{Leecher, Pieces, Seeds};
use hawser_sim::tcp;

/// Download of a 10 MB torrent over one access point and over two, with the seeds evenly
/// distributed among them.
///
/// Values that the paper does not state: how the client requests pieces (here as the program that
/// the paper modified, by its published source, see [`Leecher`]; version 2.4 does not exist, the
/// newest of that time is 2.2.4), and the rates above 500 KB/s (here those of figure 5). "Poor
/// bandwidth" is the median of the rates up to 100 KB/s. A rate has a gain if the download over two
/// access points is at least 5 % faster. The gain persists up to rates five times as high as in the
/// paper, which does not state what limited its client or seeds there. The rate at which a gain
/// falls below 1.2 is interpolated. The rates above 1000 KB/s and the interpolation were added
/// after the first results, in which neither the torrent's nor the file's gain fell below 1.2 up to
/// 1000 KB/s.
#[derive(Clone, Copy, Debug)]
pub struct Swarm;

impl Experiment for Swarm {
    fn setups(&self) -> &'static [&'static str] {
        &["J-fig8"]
    }

    fn claims(&self) -> Vec<String> {
        ["J.fig8.low", "J.fig8.limit", "J.fig8.faster_decay"]
            .map(str::to_owned)
            .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let mut gains = Vec::new();
        let (mut ones, mut twos) = (Vec::new(), Vec::new());
        for rate in RATES {
            let one = download(seed, Laptop::Cards, vec![(Behind::AccessPoint(1), rate)], &[0, 0])?;
            let networks = vec![(Behind::AccessPoint(1), rate), (Behind::AccessPoint(11), rate)];
            let two = download(seed, halves(), networks, &[0, 1])?;
            gains.push((rate, one / two));
            ones.push((rate, one));
            twos.push((rate, two));
        }
        let mut findings = Findings::default();
        let low = gains
            .iter()
            .filter(|(rate, _)| *rate <= POOR)
            .map(|(_, gain)| *gain);
        let mut low: Vec<f64> = low.collect();
        low.sort_by(f64::total_cmp);
        findings.value("J.fig8.low", low[low.len() / 2], Unit::Times);
        let last = gains.iter().take_while(|(_, gain)| *gain >= 1.05).last();
        let limit = last.map_or(0.0, |(rate, _)| *rate);
        findings.value("J.fig8.limit", limit, Unit::KilobytesPerSecond);
        let plain = striping::gains(seed, &RATES)?;
        let mut evidence: Vec<_> = gains
            .iter()
            .map(|(rate, gain)| (format!("{rate} KB/s: torrent"), Quantity::new(*gain, Unit::Ratio)))
            .collect();
        evidence.extend(
            plain
                .iter()
                .map(|(rate, gain)| (format!("{rate} KB/s: file"), Quantity::new(*gain, Unit::Ratio))),
        );
        findings.shape("J.fig8.faster_decay", falls(&gains) < falls(&plain), evidence);
        findings.plots.push(Plot::new(
            "J-fig8",
            "A 10 MB torrent",
            ("rate of each gateway", Unit::KilobytesPerSecond),
            ("time", Unit::Seconds),
            vec![Curve::new("1 AP", ones), Curve::new("Juggler", twos)],
        ));
        Ok(findings)
    }
}

/// Returns the rate at which the gain falls below 1.2. Units: KB/s.
fn falls(gains: &[(f64, f64)]) -> f64 {
    let below = gains.windows(2).find(|pair| pair[1].1 < LITTLE);
    below.map_or(f64::INFINITY, |pair| {
        let [(rate, gain), (next, less)] = [pair[0], pair[1]];
        rate + (next - rate) * (gain - LITTLE).max(0.0) / (gain - less)
    })
}

/// Returns the duration of a download; `seeds` lists the network of each seed. Units: seconds.
fn download(
    seed: u64,
    laptop: Laptop,
    networks: Vec<(Behind, f64)>,
    seeds: &[usize],
) -> Result<f64, ExperimentError> {
    let rate = networks[0].1;
    let mut lab = Plan {
        seed,
        laptop,
        networks,
    }
    .build();
    let start = lab.start();
    let pieces = Pieces {
        config: tcp::Config::linux_2_6(),
        count: FILE / PIECE,
        bytes: PIECE,
    };
    let (_, leecher) = lab.join(
        Box::new(Seeds::new(pieces, seeds.len())),
        Box::new(Leecher::new(pieces, seeds.len(), start)),
        seeds,
    );
    let leecher = (lab.client, leecher);
    let limit = Duration::from_secs_f64(60.0 + 3.0 * FILE as f64 / 1024.0 / rate);
    let is_done = |lab: &super::lab::Lab| lab.application::<Leecher>(leecher).done().is_some();
    if !lab.run_until(limit, is_done) {
        return Err(ExperimentError::Unfinished {
            setup: "J-fig8".to_owned(),
            what: format!("a torrent at {rate} KB/s"),
        });
    }
    let done = lab.application::<Leecher>(leecher).done().unwrap_or(start);
    Ok(done.since(start).as_secs_f64())
}

/// Length of a request in the protocol. Source: BEP 3 of BitTorrent, 2^14. Units: bytes.
const PIECE: u64 = 16 << 10;
/// Gain below which it counts as little. Source: our choice, as the paper gives no number for
/// little.
const LITTLE: f64 = 1.2;
/// Highest rate of "poor bandwidth". Units: KB/s. Source: our choice, as the paper gives no number
/// for poor.
const POOR: f64 = 100.0;
const RATES: [f64; 13] = [
    25.0, 50.0, 100.0, 200.0, 250.0, 300.0, 350.0, 400.0, 500.0, 700.0, 1000.0, 1500.0, 2000.0,
];
