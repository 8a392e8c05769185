//! How fast a sender leaves a path that has become worse: section 6.1.
//!
//! What the paper does not state, and what was taken: the medium of [`super::contention`], with two
//! perfect access points (0.5 ms a packet) and a round trip of 50 ms; one of them begins to lose a
//! fifth of its packets after 20 s. The traffic has shifted when it has brought a tenth of the
//! packets of a second or less, as iperf counts (chosen after a look: the queue of 0.1 s and a
//! round trip or two are all that it takes besides).

use hawser_units::{Duration, Instant};

use super::contention::World;
use super::marking::PERFECT;
use crate::reproduce::{Experiment, ExperimentError, Findings, Unit};
use hawser_sim::mptcp::Coupling;

/// Section 6.1's reaction to an abrupt change.
#[derive(Clone, Copy, Debug)]
pub struct Shift;

impl Experiment for Shift {
    fn setups(&self) -> &'static [&'static str] {
        &["N-fig5"]
    }

    fn claims(&self) -> Vec<String> {
        vec!["N.sec6.1.shift".to_owned()]
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        // When in the sawtooth the change falls is chance: a mean over several times.
        let mut sum = 0.0;
        for change in 0..CHANGES {
            let after = Duration::from_secs(20) + Duration::from_millis(370 * change);
            let world = World {
                points: vec![PERFECT; 2],
                round_trip: Duration::from_millis(50),
                marks: false,
                uplink: None,
                worsens: Some((Instant::ZERO + after, 0.2)),
                coupling: Coupling::Olia,
                seed: seed * CHANGES + change,
            };
            let shift = world.shift().ok_or(ExperimentError::Unfinished {
                setup: "N-fig5".to_owned(),
                what: "the shift".to_owned(),
            })?;
            sum += shift.as_secs_f64();
        }
        let mut findings = Findings::default();
        findings.value("N.sec6.1.shift", sum / CHANGES as f64, Unit::Seconds);
        Ok(findings)
    }
}

const CHANGES: u64 = 8;
