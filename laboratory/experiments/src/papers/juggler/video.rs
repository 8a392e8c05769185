//! Playback of a film during its download: figure 7.

use hawser_units::{Duration, Instant};

use super::lab::{Behind, FILE, Laptop, Plan, halves};
use crate::reproduce::{Experiment, ExperimentError, Findings, Unit};
use hawser_sim::app::{BlockClient, BlockServer, Blocks};
use hawser_sim::tcp;

/// Playback of a 10 MB film of 400 Kb/s over one access point or two, and the duration of its
/// stalls.
///
/// Values that the paper does not state: the player's buffer (here 144 KB, nine blocks: the 136 KB
/// that the paper's means imply, in whole blocks), and how a block is requested (here on a
/// connection of its own, as in HTTP/1.0). A run "without wait" never stalls after its start. The
/// run over two access points of 50 KB/s is repeated 20 times and never stalls, whereas one of the
/// paper's 20 runs does: this laboratory has no interference. Nor do frames that an access point's
/// card sends in vain after the radio has left cause a stall, in 600 runs.
#[derive(Clone, Copy, Debug)]
pub struct Video;

/// Result of playback.
#[derive(Clone, Debug, Default)]
struct Playback {
    /// Stalls, including the initial buffering. Units: seconds.
    waits: Vec<f64>,
    /// Playing times between two stalls. Units: seconds.
    plays: Vec<f64>,
}

impl Experiment for Video {
    fn setups(&self) -> &'static [&'static str] {
        &["J-fig7"]
    }

    fn claims(&self) -> Vec<String> {
        let claims = [
            "1x25",
            "1x25_gap",
            "1x25_play",
            "1x50_ratio",
            "25+25_ratio",
            "25+25_vs_50",
            "25+50_ratio",
            "50+50_nowait",
            "length",
        ];
        claims.map(|claim| format!("J.fig7.{claim}")).to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let one25 = play(seed, &[25.0])?;
        let one50 = play(seed, &[50.0])?.total();
        let two25 = play(seed, &[25.0, 25.0])?.total();
        let mixed = play(seed, &[25.0, 50.0])?.total();
        let mut smooth = 0;
        for run in 0..RUNS {
            let playback = play(seed * 1000 + run, &[50.0, 50.0])?;
            smooth += u64::from(playback.waits.len() == 1);
        }
        let mut findings = Findings::default();
        let mut add = |claim: &str, value, unit| findings.value(format!("J.fig7.{claim}"), value, unit);
        let total = one25.total();
        add("1x25", total, Unit::Seconds);
        add("1x25_gap", mean(&one25.waits), Unit::Seconds);
        add("1x25_play", mean(&one25.plays), Unit::Seconds);
        add("1x50_ratio", one50 / total, Unit::Ratio);
        add("25+25_ratio", two25 / total, Unit::Ratio);
        add("25+25_vs_50", two25 / one50, Unit::Ratio);
        add("25+50_ratio", mixed / total, Unit::Ratio);
        add("50+50_nowait", 100.0 * smooth as f64 / RUNS as f64, Unit::Percent);
        add("length", COUNT as f64 * BLOCK_PLAYS, Unit::Seconds);
        Ok(findings)
    }
}

impl Playback {
    /// Computes playback from the finish times of blocks, in order.
    ///
    /// The start of a block's predecessor determines the block's deadline. A block that misses its
    /// deadline stops playback until the buffer is full again.
    fn of(done: &[f64]) -> Self {
        let mut playback = Self::default();
        let mut ready = 0.0_f64;
        // Times by which all blocks up to each one have arrived.
        let ready: Vec<f64> = done
            .iter()
            .map(|at| {
                ready = ready.max(*at);
                ready
            })
            .collect();
        let (mut block, mut now) = (0, 0.0);
        while block < ready.len() {
            let last = (block + BUFFER).min(ready.len()) - 1;
            let begins = ready[last].max(now);
            playback.waits.push(begins - now);
            now = begins;
            while block < ready.len() && ready[block] <= now + 1e-9 {
                now += BLOCK_PLAYS;
                block += 1;
            }
            playback.plays.push(now - begins);
        }
        playback
    }

    fn total(&self) -> f64 {
        self.waits.iter().sum()
    }
}

fn play(seed: u64, rates: &[f64]) -> Result<Playback, ExperimentError> {
    let channels = [1, 11];
    let networks = rates.iter().zip(channels);
    let mut lab = Plan {
        seed,
        laptop: if rates.len() == 1 { Laptop::Cards } else { halves() },
        networks: networks
            .map(|(rate, channel)| (Behind::AccessPoint(channel), *rate))
            .collect(),
    }
    .build();
    let blocks = Blocks {
        config: tcp::Config::linux_2_6(),
        count: COUNT,
        bytes: BLOCK,
        paths: rates.len(),
    };
    let start = lab.start();
    let ways: Vec<usize> = (0..rates.len())
        .flat_map(|path| std::iter::repeat_n(path, COUNT))
        .collect();
    let (_, client) = lab.join(
        Box::new(BlockServer::new(blocks)),
        Box::new(BlockClient::new(blocks, start)),
        &ways,
    );
    let client = (lab.client, client);
    let is_done = |lab: &super::lab::Lab| lab.application::<BlockClient>(client).is_done();
    if !lab.run_until(Duration::from_secs(3600), is_done) {
        return Err(ExperimentError::Unfinished {
            setup: "J-fig7".to_owned(),
            what: format!("a film at {rates:?} KB/s"),
        });
    }
    let since = |at: &Option<Instant>| at.map_or(f64::INFINITY, |at| at.since(start).as_secs_f64());
    let done: Vec<f64> = lab
        .application::<BlockClient>(client)
        .done()
        .iter()
        .map(since)
        .collect();
    Ok(Playback::of(&done))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Size of a block. Source: Juggler section 6.2.2. Units: bytes.
const BLOCK: u64 = 16 << 10;
const COUNT: usize = (FILE / BLOCK) as usize;
/// Playing time of a block at 400 Kb/s. Source: Juggler section 6.2.2, where 10 MB last 204.8 s.
/// Units: seconds.
const BLOCK_PLAYS: f64 = BLOCK as f64 * 8.0 / (400.0 * 1024.0);
/// Capacity of the player's buffer. Source: the mean gaps of Juggler section 6.2.2 give 136 KB,
/// which are 8.5 blocks. Units: blocks.
const BUFFER: usize = 9;
/// Number of runs. Source: the number of the paper's runs (start of this file, and Juggler section
/// 6.2.2).
const RUNS: u64 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_the_first_fill_and_the_refills() {
        // Half of the speed that playback needs.
        let done: Vec<f64> = (1..=COUNT)
            .map(|block| block as f64 * 2.0 * BLOCK_PLAYS)
            .collect();
        let playback = Playback::of(&done);
        assert!((playback.waits[0] - 18.0 * BLOCK_PLAYS).abs() < 1e-9);
        let end = playback.total() + COUNT as f64 * BLOCK_PLAYS;
        assert!(end >= *done.last().unwrap() && end < *done.last().unwrap() + 18.0 * BLOCK_PLAYS);
        // Twice the speed: only the initial buffering.
        let done: Vec<f64> = (1..=COUNT)
            .map(|block| block as f64 * 0.5 * BLOCK_PLAYS)
            .collect();
        assert_eq!(Playback::of(&done).waits.len(), 1);
    }
}
