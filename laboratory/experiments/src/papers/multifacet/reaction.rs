//! Reaction time of the throttle to an interferer near the client: figure 12.
//!
//! Hops of 20, 30 and 60 Mb/s. The interferer offers 30 Mb/s at the rate of the client's hop, on
//! and off for half a second each, and is near the client; the repeater only senses it, so that it
//! does not disturb the access point's frames, as the paper states. A reaction is the first
//! reduction after an onset, within the same half second. It is immediate within 50 ms, a quarter
//! of the time between reports (20 ms until the first results were seen: the queue needs 30 ms or
//! more to grow to its mark, independently of the throttle). Reports are sent every 200 ms (section
//! 5.4) and immediately when the queue crosses its mark.

use hawser_units::{Duration, Instant};

use super::floor::{Floor, Hop, Load, Scheme, Setup, ht, picture};
use super::hops::{sixty, thirty, twenty};
use super::others::{Competitor, FAINT, NEAR, Who};
use crate::reproduce::{Experiment, ExperimentError, Findings, Unit};

/// Figure 12.
#[derive(Clone, Copy, Debug)]
pub struct Reaction;

/// Duration of the experiment. Source: Multifacet section 5.4. Units: seconds.
const LENGTH: u64 = 200;
/// Time for which the interferer is on, and off. Source: Multifacet section 5.4.
const HALF: Duration = Duration::from_millis(500);

/// Returns the interferer near the client on that channel, on in the second half of each second.
#[must_use]
pub fn interferer(channel: u16) -> Competitor {
    Competitor {
        channel,
        rate: ht(4, 2, false),
        aggregate: Hop::fixed(4, 2, false).aggregate,
        load: 30.0,
        near: vec![(Who::Repeater, FAINT), (Who::Clients, NEAR)],
        period: Some(HALF * 2),
    }
}

/// Returns the floor with the interferer.
fn interfered() -> Setup {
    let mut setup = Setup::new(twenty(), thirty(), Some(sixty()), Scheme::Multifacet);
    setup.competitors.push(interferer(setup.channels[1]));
    setup
}

impl Experiment for Reaction {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("backpressure striping")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["M-fig12"]
    }

    fn claims(&self) -> Vec<String> {
        ["200", "now", "max"]
            .map(|claim| format!("M.fig12.{claim}"))
            .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let mut floor = Floor::new(&interfered(), seed);
        floor.download(0, Load::Tcp);
        floor.network.run(Instant::ZERO + Duration::from_secs(LENGTH));
        let reductions = floor.access_point().reductions();
        let reaction = |second: u64| {
            let onset = Instant::ZERO + Duration::from_secs(second) + HALF;
            let after = reductions.partition_point(|at| *at < onset);
            let took = reductions.get(after)?.since(onset);
            (took < HALF).then_some(took.as_secs_f64() * 1e3)
        };
        let reactions: Vec<f64> = (0..LENGTH).filter_map(reaction).collect();
        let within = |ms: f64| {
            100.0 * reactions.iter().filter(|took| **took <= ms).count() as f64
                / reactions.len().max(1) as f64
        };
        let mut findings = Findings::default();
        findings.value("M.fig12.200", within(200.0), Unit::Percent);
        findings.value("M.fig12.now", within(50.0), Unit::Percent);
        let slowest = reactions.iter().copied().fold(0.0, f64::max);
        findings.value("M.fig12.max", slowest, Unit::Millis);
        Ok(findings)
    }

    fn timeline(&self, seed: u64) -> Option<String> {
        picture(
            &interfered(),
            Load::Tcp,
            "Figure 12: an interferer near the client",
            seed,
        )
    }
}
