//! Multifacet's naive baseline: the kernel forwards over both links in turn, without reordering,
//! feedback or throttling.
//!
//! The result must agree with the paper's. Deviates: above each card's queue is the kernel's
//! present queueing discipline (RFC 8290), which drops packets that wait long, whereas the queues
//! of the paper's kernel grew.

use anyhow::Context;
use hawser_experiments::papers::multifacet::{Case, PARTS, placements};

use super::super::air::Lab;
use super::super::found::Measured;
use super::{CHANNELS, Carrier, Floor, LOAD, OWN, SHARED, TRADITIONAL, interfered, mean, spread, tcp, udp};

/// Returns the gain of the naive baseline over the traditional repeater.
fn gain(lab: &mut Lab<'_>, floor: &Floor) -> anyhow::Result<f64> {
    let mut rate = |carrier| anyhow::Ok(floor.run(lab, carrier, &tcp())?.goodput_bps.total);
    Ok(rate(Carrier::InTurn)? / rate(TRADITIONAL)?)
}

/// Figure 6b.
pub(super) fn uncontrolled(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let (mut gains, mut evidence) = (Vec::new(), Vec::new());
    for (placement, hops) in placements(PLACEMENTS, lab.seed().into()).into_iter().enumerate() {
        let gain = gain(lab, &Floor::new(hops))?;
        evidence.push((format!("place {}", placement + 1), gain));
        gains.push(gain);
    }
    let median = spread(gains)?.median;
    evidence.insert(0, ("median".to_owned(), median));
    Ok(vec![Measured::ranking(
        "M.fig6b.naive",
        median < 1.0,
        1.0,
        evidence,
    )])
}

/// Figure 7.
pub(super) fn bottlenecks(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut evidence = Vec::new();
    for (case, name) in [(Case::C1, "C1"), (Case::C2, "C2"), (Case::C3, "C3")] {
        let mut gains = Vec::new();
        for part in PARTS.into_iter().step_by(2) {
            let floor = Floor::new(case.hops()).with_competitor(case.competitor(part, CHANNELS));
            gains.push(gain(lab, &floor)?);
        }
        evidence.push((name.to_owned(), mean(&gains)));
    }
    let is_below = evidence.iter().all(|(_, gain)| *gain < 1.0);
    Ok(vec![Measured::ranking("M.fig7.naive", is_below, 1.0, evidence)])
}

/// Figure 14b: the other link takes over no traffic, and queued packets leave in a burst
/// afterwards.
pub(super) fn interference(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let report = interfered().run(lab, Carrier::InTurn, &udp(LOAD))?;
    let rates = super::link_rates(&report, 1_000);
    let seconds = rates[OWN].len().min(rates[SHARED].len());
    // The interferer follows the kernel's clock: it is on in the half period in which its link
    // carries least.
    let of = |onset: usize| rates[OWN][onset..onset + HALF].iter().sum::<f64>();
    let onsets = 2..seconds.saturating_sub(HALF + 1);
    let onset = onsets.min_by(|a, b| of(*a).total_cmp(&of(*b)));
    let onset = onset.context("the links were not observed for long enough")?;
    let at = |second: usize| [OWN, SHARED].map(|link| rates[link][second]);
    let (before, during) = (at(onset - 2), at(onset + 2));
    let after = rates[OWN].iter().skip(onset + HALF).take(2);
    let burst = after.copied().fold(0.0, f64::max);
    let holds = (during[1] / before[1] - 1.0).abs() < 0.1 && burst > 1.2 * LOAD as f64 / 2.0;
    let evidence = vec![
        ("interfered before".to_owned(), before[0]),
        ("interfered during".to_owned(), during[0]),
        ("other before".to_owned(), before[1]),
        ("other during".to_owned(), during[1]),
        ("interfered afterwards, most in a second".to_owned(), burst),
    ];
    Ok(vec![Measured::ranking("M.fig14.rr", holds, 1.0, evidence)])
}

/// Number of placements, of the paper's thirty. Source: docs/notebook/real-packets.md,
/// "Multifacet".
const PLACEMENTS: u64 = 10;
/// Duration of an interference. Units: seconds. Source: our choice, long enough for the rate
/// before, during and after it.
const HALF: usize = 5;
