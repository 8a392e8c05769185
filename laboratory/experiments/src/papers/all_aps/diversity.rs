//! Reception and inter-arrival times between two access points: figures 3b and 3c.
//!
//! Values that the paper does not state, chosen here: the middle position of [`super::positions`];
//! broadcasts of 500 bytes at 18 Mb/s, 100 per second from each access point, in windows of half a
//! second over one minute; downloads measured for 20 s after 3 s.

use hawser_netem::air::phy::{PhyRate, Standard};
use hawser_netem::air::{Air, AirEvent, Outgoing, Signal, StationConfig};
use hawser_units::{Duration, Instant};

use super::positions::{POSITIONS, between, from, minstrel};
use super::topology::{Client, Load, Topology};
use super::{millis, ratio};
use crate::reproduce::{Curve, Experiment, ExperimentError, Findings, Plot, Unit};
use hawser_sim::mptcp::Coupling;
use hawser_sim::tcp::Congestion;

/// Figures 3b and 3c.
#[derive(Clone, Copy, Debug)]
pub struct Diversity;

/// Returns the share of each access point's broadcasts that the client receives, in each window.
fn delivered(seed: u64) -> [Vec<f64>; 2] {
    let mut air: Air<()> = Air::new(seed, Instant::ZERO);
    let config = StationConfig::fixed(Standard::A, 36, PhyRate::Ofdm(18));
    let senders = [0; 2].map(|_| air.add_station(config.clone()));
    let client = air.add_station(config);
    air.set_signals(senders[0], senders[1], &Signal::clear());
    for (sender, signal) in senders.iter().zip(between(POSITIONS / 2)) {
        air.set_signals(*sender, client, &signal);
    }
    let mut counts = [vec![0u32; WINDOWS], vec![0u32; WINDOWS]];
    for frame in 0..(WINDOWS * EACH) {
        for sender in senders {
            let broadcast = Outgoing {
                to: None,
                body: (),
                len: 500,
                urgent: false,
            };
            let now = Instant::ZERO + APART * frame as u32;
            // The queue has room, since this is the only frame.
            let _ = air.handle_packet(sender, broadcast, now);
        }
        let until = Instant::ZERO + APART * (frame + 1) as u32;
        while let Some(due) = air.poll_timeout().filter(|due| *due < until) {
            air.handle_timeout(due);
            while let Some(event) = air.poll_event() {
                if let AirEvent::Delivered { at, frame: read } = event
                    && at == client
                {
                    counts[usize::from(read.from == senders[1])][frame / EACH] += 1;
                }
            }
        }
    }
    counts.map(|counts| {
        let share = |count: &u32| f64::from(*count) / EACH as f64;
        counts.iter().map(share).collect()
    })
}

/// Number of windows of half a second. Source: our choice, one minute (start of this file).
const WINDOWS: usize = 120;
/// Number of broadcasts in a window of half a second. Source: our choice, 100 per second (start of
/// this file).
const EACH: usize = 50;
/// Interval between broadcasts of an access point. Source: 100 per second (start of this file).
const APART: Duration = Duration::from_millis(10);

fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let pairs = || a.iter().zip(b).map(|(a, b)| (a - mean_a, b - mean_b));
    let (xy, xx, yy) = pairs().fold((0.0, 0.0, 0.0), |(xy, xx, yy), (x, y)| {
        (xy + x * y, xx + x * x, yy + y * y)
    });
    xy / (xx * yy).sqrt()
}

/// Returns the sorted times between packets when the client uses these access points. Units:
/// milliseconds.
fn inter_arrivals(seed: u64, used: &[usize]) -> Vec<f64> {
    let configs = [minstrel(), minstrel()];
    let mut topology = Topology::new(seed, &configs, &Signal::clear(), Duration::from_millis(10));
    let client: Client = topology.client(&between(POSITIONS / 2), used, false);
    let load = if used.len() == 1 {
        Load::Tcp(Congestion::NewReno)
    } else {
        Load::Mptcp(Coupling::Olia)
    };
    topology.download(&client, &load);
    topology.run(from(23));
    let arrivals = topology.arrivals(&client, from(3));
    let mut apart: Vec<f64> = arrivals
        .windows(2)
        .map(|pair| 1e3 * (pair[1] - pair[0]))
        .collect();
    apart.sort_by(f64::total_cmp);
    apart
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

impl Experiment for Diversity {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("comparison of access points")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["N-fig3"]
    }

    fn claims(&self) -> Vec<String> {
        ["N.fig3b.indep", "N.fig3c.iat", "N.fig3c.tail"]
            .map(str::to_owned)
            .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let mut findings = Findings::default();
        let [first, second] = delivered(seed);
        let correlated = correlation(&first, &second);
        findings.shape(
            "N.fig3b.indep",
            correlated.abs() < 0.2,
            vec![ratio("correlation", correlated)],
        );
        let all = [&[0][..], &[1], &[0, 1]].map(|used| inter_arrivals(seed, used));
        findings.value("N.fig3c.iat", quantile(&all[2], 0.5), Unit::Millis);
        let [one, two, both] = [0, 1, 2].map(|used| quantile(&all[used], 0.99));
        findings.shape(
            "N.fig3c.tail",
            both < one && both < two,
            vec![millis("first", one), millis("second", two), millis("both", both)],
        );
        let curve = |name: &str, sorted: &[f64]| {
            let points = (0..=100).map(|percent| {
                let share = f64::from(percent) / 100.0;
                (quantile(sorted, share), share)
            });
            Curve::new(name, points.collect())
        };
        findings.plots.push(Plot::new(
            "N-fig3",
            "Times between packets",
            ("time", Unit::Millis),
            ("share", Unit::Ratio),
            vec![
                curve("first", &all[0]),
                curve("second", &all[1]),
                curve("both", &all[2]),
            ],
        ));
        Ok(findings)
    }
}
