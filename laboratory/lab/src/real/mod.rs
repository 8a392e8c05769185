//! Evaluations of a paper again, on real packets: the daemons in namespaces instead of modelled
//! schedulers.
//!
//! What is asked here is another question than that of `hawser_experiments::reproduce`, whose
//! claims these are: not whether a number of the paper comes out again, but whether Hawser does at
//! least as well as the paper with the same links, after its own headers. `framing` is the part of
//! a frame that is payload of the application here. Rankings of disciplines, and effects of single
//! disciplines, are asked for as the paper has them: a discipline that is better here than in the
//! paper misses its ranking. What is on the air runs in a kernel of its own ([`air`]).

mod air;
mod all_aps;
mod flow_switch;
mod found;
mod juggler;
mod lab;
mod multifacet;
mod piconet;
mod radio_world;

use std::collections::BTreeMap;

use hawser_experiments::reproduce::Selected;
use hawser_linux::shutdown;
use hawser_terminal::columns;
use hawser_testbed::{Kernel, Options, Progress};

use found::Measured;
pub(crate) use found::{Found, read};
use lab::Lab;

/// An evaluation of a paper.
struct Evaluation {
    /// Its name in the claims.
    setup: &'static str,
    /// What it measures.
    claims: fn() -> Vec<String>,
    run: fn(&mut Lab<'_>) -> anyhow::Result<Vec<Measured>>,
}

/// How evaluations are run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// How many times each.
    pub(crate) runs: u32,
    /// Those in namespaces too in a kernel of their own, in virtual time, each run by another seed
    /// of that kernel's.
    pub(crate) is_virtual: bool,
}

/// Measures what the selected claims need; what no evaluation here measures is left out. A run that
/// fails is told to `on_failure`, and the others go on.
///
/// Must be called on a thread that lives as long as the process: the daemons of the runs die with
/// it.
pub(crate) fn run(
    selected: &[Selected],
    plan: Plan,
    options: &Options,
    on_progress: &mut dyn FnMut(&str, &Progress<'_>),
    on_failure: &mut dyn FnMut(anyhow::Error),
) -> Vec<Found> {
    let mut all: BTreeMap<String, Found> = BTreeMap::new();
    for evaluation in evaluations() {
        if !is_any_asked(selected, (evaluation.claims)()) {
            continue;
        }
        for seed in 1..=plan.runs {
            let found = if plan.is_virtual {
                evaluation.find_inside(seed, selected, options)
            } else {
                let mut lab = Lab::new(evaluation.setup, options, on_progress);
                (evaluation.run)(&mut lab).map(|found| judge_all(found, selected))
            };
            let found = found.unwrap_or_else(|error| {
                on_failure(error);
                Vec::new()
            });
            if shutdown::is_requested() {
                return all.into_values().collect();
            }
            found::merge(&mut all, found);
        }
    }
    // In virtual time one run is like another.
    for evaluation in evaluations_on_air() {
        if shutdown::is_requested() {
            break;
        }
        if is_any_asked(selected, evaluation.claims) {
            let found = evaluation.find(selected, options, on_progress);
            let found = found.unwrap_or_else(|error| {
                on_failure(error);
                Vec::new()
            });
            found::merge(&mut all, found);
        }
    }
    all.into_values().collect()
}

impl Evaluation {
    fn find_inside(&self, seed: u32, selected: &[Selected], options: &Options) -> anyhow::Result<Vec<Found>> {
        let mut kernel = Kernel::find()?;
        kernel.seed = seed.into();
        kernel.memory = MEMORY.to_owned();
        air::find_in(kernel, (self.setup, &(self.claims)()), selected, options)
    }
}

/// Fourteen neighbours with their daemons.
const MEMORY: &str = "2G";

fn evaluations() -> impl Iterator<Item = &'static Evaluation> {
    piconet::evaluations().chain(flow_switch::EVALUATIONS)
}

fn evaluations_on_air() -> impl Iterator<Item = &'static air::Evaluation> {
    juggler::EVALUATIONS
        .iter()
        .chain(all_aps::EVALUATIONS)
        .chain(multifacet::EVALUATIONS)
}

fn is_any_asked(selected: &[Selected], claims: impl IntoIterator<Item: AsRef<str>>) -> bool {
    let is_asked = |claim: &str| selected.iter().any(|(_, _, known)| known.id == claim);
    claims.into_iter().any(|claim| is_asked(claim.as_ref()))
}

/// Those of them that are selected.
fn judge_all(found: Vec<Measured>, selected: &[Selected]) -> Vec<Found> {
    let judge = |measured: Measured| {
        let claim = selected.iter().find(|(_, _, known)| known.id == measured.claim);
        claim.map(|(_, _, claim)| measured.judge(claim))
    };
    found.into_iter().filter_map(judge).collect()
}

/// The claims that are measured on real packets.
pub(crate) fn claims() -> Vec<String> {
    let in_namespaces = evaluations().flat_map(|evaluation| (evaluation.claims)());
    let on_air = evaluations_on_air().flat_map(|evaluation| evaluation.claims);
    in_namespaces
        .chain(on_air.map(|claim| (*claim).to_owned()))
        .collect()
}

/// A table for a terminal.
pub(crate) fn table(all: &[Found]) -> String {
    let rows = all.iter().map(|found| {
        vec![
            found.claim.clone(),
            found.paper.map_or_else(|| "-".to_owned(), found::number),
            found.needed_in_words(),
            found.measured_in_words(),
            found.unit.clone(),
            found.framing_in_words(),
            found.verdict().to_owned(),
            found.numbers(),
        ]
    });
    let heads = [
        "claim",
        "paper",
        "framed",
        "measured",
        "unit or relation",
        "framing",
        "as good",
        "numbers",
    ];
    columns(&heads, &rows.collect::<Vec<_>>(), "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_experiments::reproduce::papers;

    #[test]
    fn each_claim_is_known_and_measured_by_one_evaluation() {
        let setups = papers().iter().flat_map(|paper| &paper.setups);
        let known: Vec<&str> = setups
            .flat_map(|setup| &setup.claims)
            .map(|claim| claim.id.as_str())
            .collect();
        let mut measured = claims();
        for claim in &measured {
            assert!(known.contains(&claim.as_str()), "{claim}");
        }
        let all = measured.len();
        measured.sort();
        measured.dedup();
        assert_eq!(measured.len(), all);
    }
}
