//! Runs the experiments of the selected claims, and combines claims and results.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::claims::{Claim, Paper, Setup};
use super::experiment::{Axis, Experiment, Findings, Outcome, Plot};
use super::verdict::{Evidence, Judgement, Verdict, judge};
use crate::parallel;
use hawser_netem::report::Spread;

/// A claim with its paper and its set-up.
pub type Selected = (&'static Paper, &'static Setup, &'static Claim);

/// Parameters of a run of experiments.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    /// Available experiments.
    pub experiments: &'a [&'a dyn Experiment],
    /// Number of seeds, counted from 1.
    pub seeds: u32,
    /// Number of concurrent runs; the results do not depend on it.
    pub jobs: NonZeroUsize,
}

/// Progress of the runs. A run is one experiment with one seed.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Number of finished runs.
    pub done: usize,
    /// Number of runs.
    pub total: usize,
    /// Set-up of the run that ended last.
    pub setup: &'a str,
}

/// Measurements of the selected claims.
#[derive(Clone, Debug, PartialEq)]
pub struct Reproduction {
    /// Number of seeds of each experiment.
    pub seeds: u32,
    /// Every selected claim, in the order of the papers.
    pub claims: Vec<Reproduced>,
    /// Plots of the experiments, in the order of the registry.
    pub plots: Vec<MergedPlot>,
}

/// A claim and its verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct Reproduced {
    /// Paper.
    pub paper: &'static Paper,
    /// Evaluation.
    pub setup: &'static Setup,
    /// Claim.
    pub claim: &'static Claim,
    /// Judgement.
    pub judgement: Judgement,
}

/// Plots of all seeds, merged.
#[derive(Clone, Debug, PartialEq)]
pub struct MergedPlot {
    /// Set-up of the plot.
    pub setup: String,
    /// Title.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Curves.
    pub curves: Vec<MergedCurve>,
}

/// A curve over all seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct MergedCurve {
    /// Name in the legend.
    pub name: String,
    /// Points in order of x, each over the seeds that have it.
    pub points: Vec<(f64, Spread)>,
}

impl Reproduction {
    /// Returns the number of claims with this verdict.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        let is_so = |reproduced: &&Reproduced| reproduced.judgement.verdict == verdict;
        self.claims.iter().filter(is_so).count()
    }
}

impl Reproduction {
    /// Judges the selected claims by the results of earlier runs, at up to `seeds` seeds each.
    #[must_use]
    pub fn of(selected: &[Selected], seeds: u32, evidence: &BTreeMap<String, Evidence>) -> Self {
        Self {
            seeds,
            claims: judge_all(selected, evidence),
            plots: Vec::new(),
        }
    }
}

/// Returns set-up and page of the first experiment of the selected claims that has a timeline;
/// `None` if none has.
#[must_use]
pub fn timeline(
    selected: &[Selected],
    experiments: &[&dyn Experiment],
    seed: u64,
) -> Option<(&'static str, String)> {
    let of = |experiment: &&dyn Experiment| Some((*experiment.setups().first()?, experiment.timeline(seed)?));
    needed(selected, experiments).iter().find_map(of)
}

/// Returns the experiments that measure one of the selected claims.
fn needed<'a>(selected: &[Selected], experiments: &[&'a dyn Experiment]) -> Vec<&'a dyn Experiment> {
    let wanted: BTreeSet<&str> = selected.iter().map(|(_, _, claim)| claim.id.as_str()).collect();
    let is_needed = |experiment: &&dyn Experiment| {
        experiment
            .claims()
            .iter()
            .any(|claim| wanted.contains(claim.as_str()))
    };
    experiments.iter().copied().filter(is_needed).collect()
}

/// Runs the experiments of the selected claims, and judges the claims.
pub fn run(
    selected: &[Selected],
    plan: &Plan<'_>,
    on_progress: &(dyn Fn(Progress<'_>) + Sync),
) -> Reproduction {
    let needed = needed(selected, plan.experiments);
    let findings = run_all(&needed, plan, on_progress);
    let evidence = gather(&needed, &findings);
    Reproduction {
        seeds: plan.seeds,
        claims: judge_all(selected, &evidence),
        plots: findings.iter().flat_map(|seeds| join_plots(seeds)).collect(),
    }
}

fn judge_all(selected: &[Selected], evidence: &BTreeMap<String, Evidence>) -> Vec<Reproduced> {
    let claims = selected.iter().map(|&(paper, setup, claim)| Reproduced {
        judgement: judge(claim, evidence.get(claim.id.as_str()).unwrap_or(&Evidence::None)),
        paper,
        setup,
        claim,
    });
    claims.collect()
}

/// Results by experiment, then by seed.
type AllFindings = Vec<Vec<Result<Findings, String>>>;

fn run_all(
    needed: &[&dyn Experiment],
    plan: &Plan<'_>,
    on_progress: &(dyn Fn(Progress<'_>) + Sync),
) -> AllFindings {
    let seeds = plan.seeds as usize;
    let total = needed.len() * seeds;
    let done = AtomicUsize::new(0);
    // Consecutive tasks are seeds of one experiment, so that a long experiment is distributed among
    // the cores.
    let results = parallel::run(total, plan.jobs, &|| false, |n| {
        let experiment = needed[n / seeds];
        let result = experiment
            .run((n % seeds) as u64 + 1)
            .map_err(|error| error.to_string());
        on_progress(Progress {
            done: done.fetch_add(1, Ordering::Relaxed) + 1,
            total,
            setup: experiment.setups().first().copied().unwrap_or_default(),
        });
        result
    });
    let mut results = results.into_iter().map(|result| {
        result
            .unwrap_or_else(|| Err("not run".to_owned()))
            .and_then(|found| found)
    });
    needed
        .iter()
        .map(|_| results.by_ref().take(seeds).collect())
        .collect()
}

fn gather(needed: &[&dyn Experiment], findings: &AllFindings) -> BTreeMap<String, Evidence> {
    let mut evidence = BTreeMap::new();
    for (experiment, seeds) in needed.iter().zip(findings) {
        for claim in experiment.claims() {
            let seeds = seeds.iter().enumerate().map(|(n, seed)| {
                seed.as_ref()
                    .map_err(|error| format!("seed {}: {error}", n + 1))
                    .and_then(|found| outcome(found, &claim, n + 1))
            });
            let seeds = Evidence::Seeds(seeds.collect());
            evidence.entry(claim).or_insert(seeds);
        }
    }
    evidence
}

/// Returns the measurement of a claim in a run of an experiment.
///
/// # Errors
/// A message if the run did not measure the claim.
pub fn outcome(found: &Findings, claim: &str, seed: usize) -> Result<Outcome, String> {
    found
        .measured
        .iter()
        .find(|measured| measured.claim == claim)
        .map(|measured| measured.outcome.clone())
        .ok_or_else(|| format!("seed {seed}: the experiment measured nothing for it"))
}

/// Returns the plots of one experiment, one per set-up and title.
fn join_plots(seeds: &[Result<Findings, String>]) -> Vec<MergedPlot> {
    let all: Vec<&Plot> = seeds.iter().flatten().flat_map(|found| &found.plots).collect();
    let mut merged: Vec<MergedPlot> = Vec::new();
    for plot in &all {
        if merged
            .iter()
            .any(|other| other.setup == plot.setup && other.title == plot.title)
        {
            continue;
        }
        let same = || {
            all.iter()
                .filter(|other| other.setup == plot.setup && other.title == plot.title)
        };
        let mut names: Vec<&str> = Vec::new();
        for curve in same().flat_map(|plot| &plot.curves) {
            if !names.contains(&curve.name.as_str()) {
                names.push(&curve.name);
            }
        }
        let curves = names.into_iter().map(|name| {
            let curves = same()
                .flat_map(|plot| &plot.curves)
                .filter(|curve| curve.name == name);
            join_curves(name, curves.flat_map(|curve| curve.points.iter().copied()))
        });
        merged.push(MergedPlot {
            setup: plot.setup.clone(),
            title: plot.title.clone(),
            x: plot.x.clone(),
            y: plot.y.clone(),
            curves: curves.collect(),
        });
    }
    merged
}

fn join_curves(name: &str, points: impl Iterator<Item = (f64, f64)>) -> MergedCurve {
    let mut points: Vec<(f64, f64)> = points.filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let same_x = points.chunk_by(|a, b| a.0 == b.0);
    let merged = same_x.filter_map(|chunk| {
        let spread = Spread::of(chunk.iter().map(|(_, y)| *y).collect())?;
        Some((chunk[0].0, spread))
    });
    MergedCurve {
        name: name.to_owned(),
        points: merged.collect(),
    }
}

#[cfg(test)]
mod tests;
