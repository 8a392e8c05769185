//! Reaction time of the throttle to an interferer near the client: figure 12.
//!
//! Set-up and definition of a reaction are those of `hawser_experiments`: the first reduction of
//! the shared link's limit within the half second in which the interferer is on. The time of a
//! reduction is read from the log of the access point's box. Deviates: a shorter run than the
//! paper's 200 s.

use hawser_experiments::papers::multifacet::{Competitor, interferer, sixty, thirty, twenty};
use hawser_units::Duration;

use super::super::air::Lab;
use super::super::found::Measured;
use super::logs::{self, Entry};
use super::{CHANNELS, Carrier, Floor, SHARED};

/// Figure 12.
pub(super) fn reactions(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let interferer: Competitor = interferer(CHANNELS[SHARED]);
    let mut floor = Floor::new([twenty(), thirty(), sixty()]).with_competitor(interferer);
    (floor.warmup, floor.length) = (Duration::ZERO, LENGTH);
    floor.more.arguments = vec!["--log", "info,hawser_control=debug", "--log-format", "json"];
    let mbps = floor.tcp(lab, Carrier::Multifacet)?;
    let reductions = reductions(&logs::of_access_point(lab)?);
    let (onsets, reactions) = reactions_of(&reductions);
    let within = |seconds: f64| {
        let soon = reactions.iter().filter(|took| **took <= seconds).count();
        100.0 * soon as f64 / reactions.len().max(1) as f64
    };
    let slowest = reactions.iter().copied().fold(0.0, f64::max);
    let evidence = vec![
        ("onsets".to_owned(), onsets as f64),
        ("with a reaction".to_owned(), reactions.len() as f64),
        ("Mbit/s".to_owned(), mbps),
    ];
    Ok(vec![
        Measured::minimum("M.fig12.200", within(0.2)).with(evidence.clone()),
        Measured::minimum("M.fig12.now", within(0.05)).with(evidence.clone()),
        Measured::maximum("M.fig12.max", slowest * 1e3).with(evidence),
    ])
}

/// Returns the times at which the limit of the shared link decreased. Units: seconds.
fn reductions(log: &[Entry]) -> Vec<f64> {
    let limits = log.iter().filter(|entry| entry.said == "held to");
    let limits: Vec<(f64, u64)> = limits
        .filter_map(|entry| Some((entry.at, entry.fields["cap_bps"].as_u64()?)))
        .collect();
    let less = limits.windows(2).filter(|pair| pair[1].1 < pair[0].1);
    less.map(|pair| pair[1].0).collect()
}

/// Returns the number of onsets of the interferer after the throttle has settled, and the delays of
/// the first reductions during interference. Units: seconds.
fn reactions_of(reductions: &[f64]) -> (usize, Vec<f64>) {
    let (Some(first), Some(last)) = (reductions.first(), reductions.last()) else {
        return (0, Vec::new());
    };
    let (from, to) = ((first + SETTLING).ceil() as u64, last.floor() as u64);
    let reaction = |second: u64| {
        let onset = second as f64 + HALF;
        let after = reductions.partition_point(|at| *at < onset);
        let took = reductions.get(after)? - onset;
        (took < HALF).then_some(took)
    };
    let seconds = from..to.max(from);
    (seconds.clone().count(), seconds.filter_map(reaction).collect())
}

/// Duration of the run, of the paper's 200 s. Source: docs/notebook/real-packets.md, "Multifacet".
const LENGTH: Duration = Duration::from_secs(45);
/// Duty cycle: the interferer is on in the second half of each second. Source: Multifacet section
/// 5.4.
const HALF: f64 = 0.5;
/// Time to settle, from the first reduction. Units: seconds. Source: our choice, 15 reports of 200
/// ms (Multifacet section 5.4).
const SETTLING: f64 = 3.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reaction_is_the_first_reduction_while_the_interferer_is_on() {
        let reductions = [0.1, 4.2, 4.6, 4.9, 5.3, 6.95, 7.4, 8.5];
        let (onsets, reactions) = reactions_of(&reductions);
        assert_eq!(onsets, 4);
        let near = |a: &f64, b: f64| (a - b).abs() < 1e-9;
        assert!(
            reactions.len() == 2 && near(&reactions[0], 0.1) && near(&reactions[1], 0.45),
            "{reactions:?}"
        );
    }
}
