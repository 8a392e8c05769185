//! JSON form of a reproduction.

use std::collections::BTreeMap;

use serde::Serialize;

use super::super::claims::Expected;
use super::super::runner::{Reproduced, Reproduction};
use super::super::verdict::Verdict;

/// Complete result.
#[derive(Clone, Debug, Serialize)]
pub struct ReproductionReport {
    /// Version of this format.
    pub version: u32,
    /// Number of seeds of each experiment.
    pub seeds: u32,
    /// Number of claims with each verdict.
    pub verdicts: BTreeMap<&'static str, usize>,
    /// Claims, in the order of the papers.
    pub claims: Vec<ClaimReport>,
}

/// Result of a claim. Units: all numbers are in `unit`; for a shape, `measured` and `spread` are
/// shares of the seeds for which the shape holds.
#[derive(Clone, Debug, Serialize)]
pub struct ClaimReport {
    /// Identifier, e.g. `H.tab2.n2.random`.
    pub id: String,
    /// Number printed in the paper, if it is known.
    pub paper: Option<f64>,
    /// Minimum accepted value.
    pub low: Option<f64>,
    /// Maximum accepted value.
    pub high: Option<f64>,
    /// Median over the seeds.
    pub measured: Option<f64>,
    /// Extremes over the seeds.
    pub spread: Option<SpreadReport>,
    /// Verdict.
    pub verdict: Verdict,
    /// Reason why the claim is not simply reproduced; empty if it is.
    pub reason: String,
    /// Unit of all numbers of the claim.
    pub unit: Option<&'static str>,
    /// Short name of the paper.
    pub publication: String,
    /// Evaluation that contains the claim.
    pub setup: String,
    /// Table, figure or section of the paper.
    pub place: String,
    /// Measured quantity.
    pub metric: String,
    /// Relation that a shape must satisfy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<String>,
    /// Supporting numbers of a shape: medians over the seeds, each with its unit.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub evidence: BTreeMap<String, (f64, &'static str)>,
}

/// Extremes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SpreadReport {
    /// Smallest value.
    pub min: f64,
    /// Largest value.
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
