//! Runs the experiments behind the selected claims, and brings claims and findings together.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::claims::{Claim, Paper, Setup};
use super::experiment::{Axis, Experiment, Findings, Outcome, Plot};
use super::verdict::{Evidence, Judgement, Verdict, judge};
use crate::parallel;
use hawser_netem::report::Spread;

/// A claim with the paper and the set-up that it belongs to.
pub type Selected = (&'static Paper, &'static Setup, &'static Claim);

/// How experiments are run.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    /// Which experiments there are.
    pub experiments: &'a [&'a dyn Experiment],
    /// At how many seeds, counted from 1.
    pub seeds: u32,
    /// How many runs at once; the results do not depend on it.
    pub jobs: NonZeroUsize,
}

/// How far the runs are. Runs are one experiment at one seed.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// How many have ended.
    pub done: usize,
    /// How many there are.
    pub total: usize,
    /// The set-up of the one that ended last.
    pub setup: &'a str,
}

/// What was measured of the selected claims.
#[derive(Clone, Debug, PartialEq)]
pub struct Reproduction {
    /// How many seeds each experiment was run at.
    pub seeds: u32,
    /// Every selected claim, in the order of the papers.
    pub claims: Vec<Reproduced>,
    /// What the experiments drew, in the order of the registry.
    pub plots: Vec<JoinedPlot>,
}

/// A claim and how it fared.
#[derive(Clone, Debug, PartialEq)]
pub struct Reproduced {
    /// Whose it is.
    pub paper: &'static Paper,
    /// Of which evaluation.
    pub setup: &'static Setup,
    /// What is claimed.
    pub claim: &'static Claim,
    /// What was found.
    pub judgement: Judgement,
}

/// The plots of all seeds in one.
#[derive(Clone, Debug, PartialEq)]
pub struct JoinedPlot {
    /// The set-up it belongs to.
    pub setup: String,
    /// What it shows.
    pub title: String,
    /// Along the bottom.
    pub x: Axis,
    /// Up the side.
    pub y: Axis,
    /// What is drawn.
    pub curves: Vec<JoinedCurve>,
}

/// One line over all seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct JoinedCurve {
    /// As in the legend.
    pub name: String,
    /// In order of x, over those seeds that have a point there.
    pub points: Vec<(f64, Spread)>,
}

impl Reproduction {
    /// How many of the claims fared so.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        let is_so = |reproduced: &&Reproduced| reproduced.judgement.verdict == verdict;
        self.claims.iter().filter(is_so).count()
    }
}

/// The set-up and the page of the first experiment behind the selected claims that draws the air;
/// `None` when none of them does.
#[must_use]
pub fn timeline(
    selected: &[Selected],
    experiments: &[&dyn Experiment],
    seed: u64,
) -> Option<(&'static str, String)> {
    let of = |experiment: &&dyn Experiment| Some((*experiment.setups().first()?, experiment.timeline(seed)?));
    needed(selected, experiments).iter().find_map(of)
}

/// The experiments that measure one of the selected claims.
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

/// Runs what the selected claims need, and judges them.
pub fn run(
    selected: &[Selected],
    plan: &Plan<'_>,
    on_progress: &(dyn Fn(Progress<'_>) + Sync),
) -> Reproduction {
    let needed = needed(selected, plan.experiments);
    let findings = run_all(&needed, plan, on_progress);
    let evidence = gather(&needed, &findings);
    let claims = selected
        .iter()
        .map(|&(paper, setup, claim)| Reproduced {
            judgement: judge(claim, evidence.get(claim.id.as_str()).unwrap_or(&Evidence::None)),
            paper,
            setup,
            claim,
        })
        .collect();
    Reproduction {
        seeds: plan.seeds,
        claims,
        plots: findings.iter().flat_map(|seeds| join_plots(seeds)).collect(),
    }
}

/// By experiment, then by seed.
type AllFindings = Vec<Vec<Result<Findings, String>>>;

fn run_all(
    needed: &[&dyn Experiment],
    plan: &Plan<'_>,
    on_progress: &(dyn Fn(Progress<'_>) + Sync),
) -> AllFindings {
    let seeds = plan.seeds as usize;
    let total = needed.len() * seeds;
    let done = AtomicUsize::new(0);
    // Neighbours in the queue are seeds of one experiment, so that a long experiment is shared
    // among the cores.
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

fn outcome(found: &Findings, claim: &str, seed: usize) -> Result<Outcome, String> {
    found
        .measured
        .iter()
        .find(|measured| measured.claim == claim)
        .map(|measured| measured.outcome.clone())
        .ok_or_else(|| format!("seed {seed}: the experiment measured nothing for it"))
}

/// The plots of one experiment, one for each set-up and title.
fn join_plots(seeds: &[Result<Findings, String>]) -> Vec<JoinedPlot> {
    let all: Vec<&Plot> = seeds.iter().flatten().flat_map(|found| &found.plots).collect();
    let mut joined: Vec<JoinedPlot> = Vec::new();
    for plot in &all {
        if joined
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
        joined.push(JoinedPlot {
            setup: plot.setup.clone(),
            title: plot.title.clone(),
            x: plot.x.clone(),
            y: plot.y.clone(),
            curves: curves.collect(),
        });
    }
    joined
}

fn join_curves(name: &str, points: impl Iterator<Item = (f64, f64)>) -> JoinedCurve {
    let mut points: Vec<(f64, f64)> = points.filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let same_x = points.chunk_by(|a, b| a.0 == b.0);
    let joined = same_x.filter_map(|chunk| {
        let spread = Spread::of(chunk.iter().map(|(_, y)| *y).collect())?;
        Some((chunk[0].0, spread))
    });
    JoinedCurve {
        name: name.to_owned(),
        points: joined.collect(),
    }
}

#[cfg(test)]
mod tests;
