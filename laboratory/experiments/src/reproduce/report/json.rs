//! The machine's view.

use std::collections::BTreeMap;

use serde::Serialize;

use super::super::claims::Expected;
use super::super::runner::{Reproduced, Reproduction};
use super::super::verdict::Verdict;

/// Everything that was judged.
#[derive(Clone, Debug, Serialize)]
pub struct ReproductionReport {
    /// Of this format.
    pub version: u32,
    /// How many seeds each experiment was run at.
    pub seeds: u32,
    /// How many claims have each verdict.
    pub verdicts: BTreeMap<&'static str, usize>,
    /// In the order of the papers.
    pub claims: Vec<ClaimReport>,
}

/// One claim. Units: all its numbers are in `unit`; for a shape, `measured` and `spread` are shares
/// of the seeds at which it holds.
#[derive(Clone, Debug, Serialize)]
pub struct ClaimReport {
    /// Like `H.tab2.n2.random`.
    pub id: String,
    /// The number that the paper prints, where it survives.
    pub paper: Option<f64>,
    /// The smallest accepted.
    pub low: Option<f64>,
    /// The largest accepted.
    pub high: Option<f64>,
    /// The median over the seeds.
    pub measured: Option<f64>,
    /// The extremes over the seeds.
    pub spread: Option<SpreadReport>,
    /// How it fares.
    pub verdict: Verdict,
    /// Why it is not simply reproduced.
    pub reason: String,
    /// Of all its numbers.
    pub unit: Option<&'static str>,
    /// The short name of the paper.
    pub publication: String,
    /// The evaluation that it is part of.
    pub setup: String,
    /// Table, figure or section of the paper.
    pub place: String,
    /// What is measured.
    pub metric: String,
    /// The relation that a shape must hold to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<String>,
    /// The numbers behind a shape, medians over the seeds, each with its unit.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub evidence: BTreeMap<String, (f64, &'static str)>,
}

/// Extremes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SpreadReport {
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

pub(super) fn report(reproduction: &Reproduction) -> ReproductionReport {
    ReproductionReport {
        version: 1,
        seeds: reproduction.seeds,
        verdicts: Verdict::ALL
            .iter()
            .map(|verdict| (verdict.label(), reproduction.count(*verdict)))
            .collect(),
        claims: reproduction.claims.iter().map(claim).collect(),
    }
}

fn claim(reproduced: &Reproduced) -> ClaimReport {
    let Reproduced {
        paper,
        setup,
        claim,
        judgement,
    } = reproduced;
    let (number, low, high, unit) = match &claim.expected {
        Expected::Interval {
            paper,
            low,
            high,
            unit,
        } => (*paper, Some(*low), Some(*high), Some(unit.symbol())),
        Expected::Shape { .. } | Expected::Lost => (None, None, None, None),
    };
    let check = match &claim.expected {
        Expected::Shape { check } => Some(check.clone()),
        Expected::Interval { .. } | Expected::Lost => None,
    };
    ClaimReport {
        id: claim.id.clone(),
        paper: number,
        low,
        high,
        measured: judgement.measured.map(|spread| spread.median),
        spread: judgement.measured.map(|spread| SpreadReport {
            min: spread.min,
            max: spread.max,
        }),
        verdict: judgement.verdict,
        reason: judgement.reason.clone(),
        unit,
        publication: paper.id.clone(),
        setup: setup.id.clone(),
        place: setup.place.clone(),
        metric: claim.metric.clone(),
        check,
        evidence: judgement
            .evidence
            .iter()
            .map(|(name, value, unit)| (name.clone(), (*value, unit.symbol())))
            .collect(),
    }
}
