//! Comparison of striping by feedback with round robin: figure 14.
//!
//! Two links of 30 Mb/s, packets of 1500 bytes; an interferer takes 20 Mb/s of one for 20 s, then
//! of the other. Values that the paper does not state, chosen here: a load of 35 Mb/s, which both
//! links together carry even under interference; 32 unacknowledged packets on a link; with round
//! robin a link queues the packets that it cannot send.

use std::collections::VecDeque;

use hawser_netem::Random;
use hawser_radio::striping::Striping;

use crate::reproduce::{Experiment, ExperimentError, Findings, Quantity, Unit};

/// Figure 14.
#[derive(Clone, Copy, Debug)]
pub struct Interfered;

/// Size of a packet. Source: 1,500 bytes. Units: Mbit.
const PACKET: f64 = 0.012;
/// Offered load, and rate of a link. Source: our choice, which both links carry even under
/// interference (start of this file). Units: Mb/s.
const LOAD: f64 = 35.0;
const LINK: f64 = 30.0;
/// Rate of the interferer. Source: Multifacet section 5.4. Units: Mb/s.
const INTERFERENCE: f64 = 20.0;
/// Duration of the experiment. Source: our choice, 20 s before, during and after the interference.
const SECONDS: usize = 60;
/// Maximum number of unacknowledged packets on a link. Source: our choice (start of this file).
const THRESHOLD: usize = 32;

/// Returns the packets delivered by each link in each second: without interference until 20 s, with
/// interference on the first link until 40 s and on the second until 60 s.
fn run(is_in_turn: bool, seed: u64) -> Vec<[f64; 2]> {
    let mut random = Random::new(seed, "load");
    let mut striping = Striping::new(&[THRESHOLD; 2]);
    let mut waiting = VecDeque::new();
    let mut queues = [0usize; 2];
    let mut ends = [f64::INFINITY; 2];
    let mut seconds = vec![[0.0; 2]; SECONDS];
    let (mut next, mut turn) = (0.0f64, 0);
    loop {
        let now = next.min(ends[0]).min(ends[1]);
        if now >= SECONDS as f64 {
            return seconds;
        }
        if now == next {
            waiting.push_back(());
            next = now - PACKET / LOAD * (1.0 - random.uniform()).ln();
        } else {
            let link = usize::from(ends[1] < ends[0]);
            queues[link] -= 1;
            ends[link] = f64::INFINITY;
            seconds[now as usize][link] += PACKET;
            striping.handle_answer(link);
        }
        while !waiting.is_empty() {
            let chosen = if is_in_turn {
                turn = 1 - turn;
                Some(turn)
            } else {
                striping.choose()
            };
            let Some(link) = chosen else { break };
            waiting.pop_front();
            queues[link] += 1;
        }
        for link in 0..2 {
            if queues[link] > 0 && ends[link].is_infinite() {
                let is_interfered = (20.0 * (link + 1) as f64..20.0 * (link + 2) as f64).contains(&now);
                let rate = if is_interfered { LINK - INTERFERENCE } else { LINK };
                ends[link] = now + PACKET / rate * (0.8 + 0.4 * random.uniform());
            }
        }
    }
}

fn mean(seconds: &[[f64; 2]], link: usize) -> f64 {
    seconds.iter().map(|second| second[link]).sum::<f64>() / seconds.len() as f64
}

impl Experiment for Interfered {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("backpressure striping")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["M-fig14"]
    }

    fn claims(&self) -> Vec<String> {
        ["M.fig14.shift", "M.fig14.rr"].map(str::to_owned).to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let mbps = |name: &str, value| (name.to_owned(), Quantity::new(value, Unit::Mbps));
        let mut findings = Findings::default();
        let follows = run(false, seed);
        let before = [mean(&follows[10..20], 0), mean(&follows[10..20], 1)];
        // The second that follows the onset's second.
        let after = follows[21];
        findings.shape(
            "M.fig14.shift",
            after[0] < before[0]
                && after[1] > before[1]
                && after[0] + after[1] >= 0.85 * (before[0] + before[1]),
            vec![
                mbps("interfered before", before[0]),
                mbps("interfered after", after[0]),
                mbps("other before", before[1]),
                mbps("other after", after[1]),
            ],
        );
        let in_turn = run(true, seed);
        let other = [mean(&in_turn[10..20], 1), mean(&in_turn[22..40], 1)];
        let burst = mean(&in_turn[41..46], 0);
        findings.shape(
            "M.fig14.rr",
            (other[1] / other[0] - 1.0).abs() < 0.1 && burst > 1.2 * LOAD / 2.0,
            vec![
                mbps("other before", other[0]),
                mbps("other during", other[1]),
                mbps("interfered afterwards", burst),
            ],
        );
        Ok(findings)
    }
}
