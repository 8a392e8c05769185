//! The constants of sections 3 and 4, and figure 15: how long a search for a better channel takes.
//!
//! What the paper does not state, and what was taken: channels' throughputs are drawn evenly, each for itself, and a search begins when the present
//! one is below three quarters of the largest possible.

use hawser_netem::Random;
use hawser_netem::air::phy::{ACK_LEN, DATA_OVERHEAD, PhyRate, Standard};
use hawser_radio::multifacet::migration::{Config, Migration, Search, Step};
use hawser_radio::multifacet::{BUFFER_PACKETS, REORDER_HOLD, REORDER_PACKETS};
use hawser_units::{Duration, Instant};

use crate::reproduce::{Experiment, ExperimentError, Findings, Unit};

/// The constants.
#[derive(Clone, Copy, Debug)]
pub struct Constants;

/// Figure 15.
#[derive(Clone, Copy, Debug)]
pub struct Searching;

/// Source: Multifacet section 5.4.
const CANDIDATES: u16 = 10;
const POOR: f64 = 0.75;
const SEARCHES: usize = 400;

/// How many channels were tried, and how long until the last test ended.
fn search(kind: Search, random: &mut Random) -> (usize, Duration) {
    let qualities: Vec<f64> = (0..=CANDIDATES).map(|_| random.uniform()).collect();
    let present = POOR * random.uniform();
    let mut migration = Migration::new(Config::new(kind), 0);
    let candidates: Vec<u16> = (1..=CANDIDATES).collect();
    let mut step = migration.start(&candidates, present, Instant::ZERO);
    let (mut now, mut last) = (Instant::ZERO, Instant::ZERO);
    while let Some(due) = migration.poll_timeout() {
        now = now.max(due);
        let measured = match step {
            Some(Step::Probe(channel)) => {
                last = now;
                Some(qualities[usize::from(channel)])
            }
            Some(Step::Announce(_) | Step::Resume(_)) | None => None,
        };
        step = migration.handle_timeout(measured, now);
    }
    (migration.channel().1, last.since(Instant::ZERO))
}

impl Experiment for Searching {
    fn setups(&self) -> &'static [&'static str] {
        &["M-fig15"]
    }

    fn claims(&self) -> Vec<String> {
        ["step", "adeq", "best"]
            .map(|claim| format!("M.fig15.{claim}"))
            .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let mut random = Random::new(seed, "channels");
        let adequate: Vec<_> = (0..SEARCHES)
            .map(|_| search(Search::Adequate, &mut random))
            .collect();
        let best: Vec<_> = (0..SEARCHES).map(|_| search(Search::Best, &mut random)).collect();
        let mut findings = Findings::default();
        let seconds = |all: &[(usize, Duration)]| all.iter().map(|(_, took)| took.as_secs_f64()).sum::<f64>();
        let tried: usize = adequate.iter().map(|(tried, _)| tried).sum();
        findings.value("M.fig15.step", seconds(&adequate) / tried as f64, Unit::Seconds);
        let soon = adequate.iter().filter(|(tried, _)| *tried <= 3).count();
        findings.value(
            "M.fig15.adeq",
            100.0 * soon as f64 / SEARCHES as f64,
            Unit::Percent,
        );
        findings.value("M.fig15.best", seconds(&best) / SEARCHES as f64, Unit::Seconds);
        Ok(findings)
    }
}

impl Experiment for Constants {
    fn setups(&self) -> &'static [&'static str] {
        &["M-consts"]
    }

    fn claims(&self) -> Vec<String> {
        ["reorder_size", "reorder_hold", "buf", "csa", "probe", "loop"]
            .map(|claim| format!("M.{claim}"))
            .to_vec()
    }

    fn run(&self, _seed: u64) -> Result<Findings, ExperimentError> {
        let mut findings = Findings::default();
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let config = Config::new(Search::Adequate);
        findings.value("M.reorder_size", REORDER_PACKETS as f64, Unit::Packets);
        findings.value("M.reorder_hold", ms(REORDER_HOLD), Unit::Millis);
        findings.value("M.buf", BUFFER_PACKETS as f64, Unit::Packets);
        findings.value("M.csa", ms(config.announcement), Unit::Millis);
        findings.value("M.probe", ms(config.probe), Unit::Millis);
        // From a packet's turn to its acknowledgement, which is what striping follows: 1500 bytes at 54 Mb/s.
        let (standard, rate) = (Standard::A, PhyRate::Ofdm(54));
        let answer = rate.response().airtime(standard, ACK_LEN);
        let backoff = standard.slot() * standard.cw_min() / 2;
        let frame = rate.airtime(standard, 1500 + DATA_OVERHEAD);
        findings.value(
            "M.loop",
            ms(standard.difs() + backoff + frame + standard.sifs() + answer),
            Unit::Millis,
        );
        Ok(findings)
    }
}
