//! The page, from the results of all runs.

use std::collections::BTreeMap;

use hawser_experiments::reproduce::{
    Evidence, Findings, OnRealPackets, Reproduction, Selected, SimulatorNote, Standing, outcome, select,
};

use super::journal::{Entry, Found, Results};
use super::{Evaluation, Work};
use crate::real;

/// Writes the page of all claims.
pub(super) fn write(evaluations: &[Evaluation], results: &Results, seeds: u32) -> String {
    let (evidence, notes) = simulated(evaluations, results);
    let reproduction = Reproduction::of(&everything(), seeds, &evidence);
    reproduction.to_markdown(&cells(evaluations, results), &notes)
}

/// Returns the verdicts on real packets as one line.
pub(super) fn summary(evaluations: &[Evaluation], results: &Results, seeds: u32) -> String {
    let cells = cells(evaluations, results);
    let count = |of: &dyn Fn(&OnRealPackets) -> bool| cells.values().filter(|cell| of(cell)).count();
    let [good, except_headers, undecided, worse] =
        Standing::ALL.map(|standing| count(&|cell| cell.standing == standing));
    format!(
        "{} claims on real packets: {good} good, {except_headers} good except headers, {undecided} undecided, {worse} worse; \
         {} rest on {seeds} runs, {} are stale",
        cells.len(),
        count(&|cell| cell.runs >= seeds as usize),
        count(&|cell| cell.is_stale)
    )
}

/// Returns the results on real packets by claim. Stale runs count only where no others exist.
pub(super) fn on_real_packets(evaluations: &[Evaluation], results: &Results) -> real::Results {
    let mut all = real::Results::new();
    for evaluation in evaluations {
        if !matches!(evaluation.work, Work::Real(_)) {
            continue;
        }
        let (entries, is_stale) = entries_of(evaluation, results);
        for claim in entries.first().map_or(&[][..], |_| evaluation.claims.as_slice()) {
            if let Some(known) = real::known(claim) {
                let mut found = real::Found::new(known);
                found.is_stale = is_stale;
                all.insert(claim.clone(), found);
            }
        }
        for entry in entries {
            let measured = match &entry.found {
                Found::Real(measured) => measured.as_slice(),
                Found::Simulated(_) | Found::Failed(_) => &[],
            };
            for claim in &evaluation.claims {
                let Some(found) = all.get_mut(claim) else {
                    continue;
                };
                match measured.iter().find(|measured| measured.claim == *claim) {
                    Some(measured) => found.runs.push(measured.clone()),
                    // The earlier program may have measured fewer claims.
                    None if is_stale && !measured.is_empty() => {}
                    None => found.failed += 1,
                }
            }
        }
    }
    all.retain(|_, found| !found.runs.is_empty() || found.failed > 0);
    all
}

fn cells(evaluations: &[Evaluation], results: &Results) -> BTreeMap<String, OnRealPackets> {
    let all = on_real_packets(evaluations, results).into_iter();
    all.map(|(claim, found)| (claim, found.on_page())).collect()
}

fn simulated(
    evaluations: &[Evaluation],
    results: &Results,
) -> (BTreeMap<String, Evidence>, BTreeMap<String, SimulatorNote>) {
    let (mut evidence, mut notes) = (BTreeMap::new(), BTreeMap::new());
    for evaluation in evaluations {
        let Work::Simulated(experiment) = &evaluation.work else {
            continue;
        };
        let (entries, is_stale) = entries_of(evaluation, results);
        for claim in &evaluation.claims {
            let note = SimulatorNote {
                unshipped: experiment.unshipped(claim),
                is_stale,
            };
            notes.entry(claim.clone()).or_insert(note);
            if entries.is_empty() {
                continue;
            }
            let seeds = entries.iter().map(|entry| match &entry.found {
                Found::Simulated(measured) => {
                    let findings = Findings {
                        measured: measured.clone(),
                        plots: Vec::new(),
                    };
                    outcome(&findings, claim, entry.key.seed as usize)
                }
                Found::Failed(reason) => Err(format!("seed {}: {reason}", entry.key.seed)),
                Found::Real(_) => Err(format!("seed {}: measured on real packets", entry.key.seed)),
            });
            let seeds = Evidence::Seeds(seeds.collect());
            evidence.entry(claim.clone()).or_insert(seeds);
        }
    }
    (evidence, notes)
}

/// Returns the results of an evaluation by the present program, or else by earlier ones, and which
/// of the two.
fn entries_of<'a>(evaluation: &Evaluation, results: &'a Results) -> (Vec<&'a Entry>, bool) {
    let all: Vec<&Entry> = results.of(evaluation.world, &evaluation.setup).collect();
    let is_fresh = |entry: &&Entry| entry.stamp == evaluation.stamp;
    if all.iter().any(is_fresh) {
        (all.into_iter().filter(is_fresh).collect(), false)
    } else {
        let is_stale = !all.is_empty();
        (all, is_stale)
    }
}

fn everything() -> Vec<Selected> {
    select(&[]).unwrap_or_default()
}
