//! Time that a sender takes to leave a path that has become worse: section 6.1.
//!
//! Values that the paper does not state, chosen here: the medium of [`super::contention`], with two
//! perfect access points (0.5 ms per packet) and a round-trip time of 50 ms; one of them begins to
//! lose a fifth of its packets after 20 s. The traffic has shifted when that access point delivers
//! at most a tenth of the packets in a second, as iperf counts. This criterion was chosen after the
//! first results: apart from this second, the shift only takes the 0.1 s of the queue and one or
//! two round trips.

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
        // The phase of the sawtooth at the change is random, so the result is a mean over several
        // times.
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

/// Number of changes, at different times of the connection. Source: our choice; the mean of fewer
/// depends on these times.
const CHANGES: u64 = 8;
