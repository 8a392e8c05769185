//! Evaluations of the papers on real packets: daemons in network namespaces instead of modelled
//! schedulers.
//!
//! `hawser_experiments::reproduce`, which defines the claims, tests whether a number of the paper
//! is reproduced. This module tests whether Hawser does at least as well as the paper with the same
//! links, after its own headers. `framing` is the payload share of a frame. Rankings of schedulers,
//! and effects of single schedulers, must be as in the paper: a scheduler that is better here than
//! in the paper misses its ranking. Evaluations with 802.11 links run in a separate kernel
//! ([`air`]).

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
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;
use hawser_experiments::reproduce::{Claim, Selected};
use hawser_linux::shutdown;
use hawser_testbed::{Kernel, Options, Progress};
use serde::{Deserialize, Serialize};

pub(crate) use found::{Found, Measured, table};
use lab::Lab;

/// An evaluation of a paper in namespaces.
struct Evaluation {
    /// Name of the set-up in the claims.
    setup: &'static str,
    /// Measured claims.
    claims: fn() -> Vec<String>,
    run: fn(&mut Lab<'_>) -> anyhow::Result<Vec<Measured>>,
}

/// Evaluations with the source texts of their files.
struct Group<E: 'static> {
    evaluations: &'static [E],
    sources: &'static [&'static str],
}

/// An evaluation that can run on its own, in any world.
pub(crate) struct Part {
    /// Name of the set-up in the claims; if a set-up has several parts, with a distinguishing
    /// suffix.
    pub(crate) setup: &'static str,
    /// Claims that it measures.
    pub(crate) claims: Vec<String>,
    /// Source texts of its files.
    pub(crate) sources: &'static [&'static str],
    world: PartWorld,
}

enum PartWorld {
    /// Namespaces of this kernel, or of a separate one.
    Namespaces(&'static Evaluation),
    /// Evaluation of processor time: namespaces of this kernel, in real time.
    Machine(&'static Evaluation),
    /// A separate kernel with radios.
    Air(&'static air::Evaluation),
}

/// Number, seeds and world of runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Seed of the first run, for the links and the kernel.
    pub(crate) first_seed: u32,
    /// Number of runs of each evaluation.
    pub(crate) runs: u32,
    /// Runs evaluations in namespaces in a separate kernel too, in virtual time.
    pub(crate) is_virtual: bool,
}

/// Output of a run for the program that started it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    pub(crate) measured: Vec<Measured>,
    /// Reasons of evaluations that ended without a result.
    pub(crate) failures: Vec<String>,
}

/// Results by claim, in the order of the claims' names.
pub(crate) type Results = BTreeMap<String, Found>;

/// Measures the selected claims; claims without an evaluation are left out. A failed run is
/// reported to `on_failure`, and the others continue.
///
/// Must be called on a thread that lives as long as the process: the daemons of the runs end when
/// the thread ends.
pub(crate) fn run(
    selected: &[Selected],
    plan: Plan,
    options: &Options,
    on_progress: &mut dyn FnMut(&str, &Progress<'_>),
    on_failure: &mut dyn FnMut(anyhow::Error),
) -> Vec<Measured> {
    let mut all = Vec::new();
    let is_selected = |claim: &String| selected.iter().any(|(_, _, known)| known.id == *claim);
    for part in parts() {
        let asked: Vec<String> = part
            .claims
            .iter()
            .filter(|claim| is_selected(claim))
            .cloned()
            .collect();
        if asked.is_empty() {
            continue;
        }
        for seed in plan.first_seed..plan.first_seed + plan.runs {
            let measured = if part.is_inside(plan) {
                let keep = options.run_dir.is_retained().then(|| options.run_dir.path());
                part.measure(seed, &asked, keep)
                    .and_then(|measured| measured.map_err(anyhow::Error::msg))
            } else {
                part.measure_here(seed, &asked, options, on_progress)
            };
            if shutdown::is_requested() {
                return all;
            }
            match measured {
                Ok(measured) => all.extend(measured),
                Err(error) => on_failure(error),
            }
        }
    }
    all
}

impl Part {
    /// Runs the evaluation once in a world of its own, and returns its measurements of the
    /// requested claims, or the reason why it ended without a result. Except for processor time,
    /// the same seed gives the same result.
    ///
    /// # Errors
    /// When the world cannot be created.
    pub(crate) fn measure(
        &self,
        seed: u32,
        asked: &[String],
        keep: Option<&Path>,
    ) -> anyhow::Result<Result<Vec<Measured>, String>> {
        let seed_word = seed.to_string();
        let words = [
            "reproduce",
            "--real",
            "--raw",
            "--runs",
            "1",
            "--first-seed",
            &seed_word,
        ];
        let mut words: Vec<OsString> = words.map(Into::into).into();
        if let Some(keep) = keep {
            words.extend(["--keep".into(), keep.as_os_str().to_owned()]);
        }
        words.extend(asked.iter().map(OsString::from));
        let program = std::env::current_exe().context("cannot find this program")?;
        let said = match self.world {
            PartWorld::Machine(_) => {
                let mut command = Command::new(&program);
                command.args(&words).stdin(Stdio::null()).stderr(Stdio::inherit());
                let output = command.output().context("cannot start this program")?;
                String::from_utf8_lossy(&output.stdout).into_owned()
            }
            PartWorld::Namespaces(_) => {
                let mut kernel = Kernel::find()?;
                kernel.memory = MEMORY.to_owned();
                self.in_kernel(kernel, seed, keep, &words)?
            }
            PartWorld::Air(evaluation) => self.in_kernel(evaluation.kernel()?, seed, keep, &words)?,
        };
        let raw: Raw = serde_json::from_str(said.trim())
            .with_context(|| format!("{}: the test kernel ended without a result", self.setup))?;
        Ok(if raw.measured.is_empty() {
            let reason = raw.failures.into_iter().next();
            Err(reason.unwrap_or_else(|| format!("{}: nothing was measured", self.setup)))
        } else {
            Ok(raw.measured)
        })
    }

    fn in_kernel(
        &self,
        mut kernel: Kernel,
        seed: u32,
        keep: Option<&Path>,
        words: &[OsString],
    ) -> anyhow::Result<String> {
        kernel.seed = seed.into();
        kernel.time_limit_s = TIME_LIMIT_S;
        kernel.kept.extend(keep.map(Path::to_owned));
        let program = std::env::current_exe().context("cannot find this program")?;
        let (_, said) = kernel.output(&program, words).context(self.setup)?;
        Ok(said)
    }

    /// Runs the evaluation once in this process.
    fn measure_here(
        &self,
        seed: u32,
        asked: &[String],
        options: &Options,
        on_progress: &mut dyn FnMut(&str, &Progress<'_>),
    ) -> anyhow::Result<Vec<Measured>> {
        let measured = match self.world {
            PartWorld::Namespaces(evaluation) | PartWorld::Machine(evaluation) => {
                (evaluation.run)(&mut Lab::new((self.setup, seed), options, on_progress))
            }
            PartWorld::Air(evaluation) => {
                (evaluation.run)(&mut air::Lab::new((self.setup, seed), options, on_progress))
            }
        };
        let measured = measured.context(self.setup)?.into_iter();
        let measured = measured.filter(|measured| asked.contains(&measured.claim));
        Ok(measured.filter_map(Measured::finite).collect())
    }

    /// Returns whether the result depends on the seed only, because time stands still while
    /// programs compute.
    pub(crate) fn is_virtual(&self) -> bool {
        match self.world {
            PartWorld::Namespaces(_) => true,
            PartWorld::Machine(_) => false,
            PartWorld::Air(evaluation) => evaluation.is_virtual(),
        }
    }

    /// Returns whether a run needs a separate kernel.
    fn is_inside(&self, plan: Plan) -> bool {
        match self.world {
            PartWorld::Namespaces(_) => plan.is_virtual,
            PartWorld::Machine(_) => false,
            PartWorld::Air(_) => !Kernel::is_here(),
        }
    }
}

/// Memory of a kernel, for fourteen neighbours with their daemons.
const MEMORY: &str = "2G";
/// Time limit of a kernel. Units: seconds of real time. Source: twice the longest evaluation.
const TIME_LIMIT_S: u32 = 3600;

/// Returns all evaluations on real packets, in the order of the papers.
pub(crate) fn parts() -> Vec<Part> {
    let mut parts = Vec::new();
    for group in [juggler::GROUP, all_aps::GROUP] {
        parts.extend(on_air(group));
    }
    for group in piconet::GROUPS {
        parts.extend(in_namespaces(group, PartWorld::Namespaces));
    }
    parts.extend(in_namespaces(&flow_switch::GROUP, PartWorld::Namespaces));
    parts.extend(in_namespaces(&flow_switch::COSTS, PartWorld::Machine));
    parts.extend(on_air(multifacet::GROUP));
    parts
}

fn in_namespaces(
    group: &'static Group<Evaluation>,
    world: fn(&'static Evaluation) -> PartWorld,
) -> impl Iterator<Item = Part> {
    group.evaluations.iter().map(move |evaluation| Part {
        setup: evaluation.setup,
        claims: (evaluation.claims)(),
        sources: group.sources,
        world: world(evaluation),
    })
}

fn on_air(group: Group<air::Evaluation>) -> impl Iterator<Item = Part> {
    let Group { evaluations, sources } = group;
    evaluations.iter().map(move |evaluation| Part {
        setup: evaluation.setup,
        claims: evaluation
            .claims
            .iter()
            .map(|claim| (*claim).to_owned())
            .collect(),
        sources,
        world: PartWorld::Air(evaluation),
    })
}

/// Sorts runs by claim; runs of unknown claims are dropped.
pub(crate) fn by_claim(measured: impl IntoIterator<Item = Measured>) -> Results {
    let mut all = Results::new();
    for run in measured {
        if let Some(claim) = known(&run.claim) {
            let found = all.entry(run.claim.clone()).or_insert_with(|| Found::new(claim));
            found.runs.push(run);
        }
    }
    all
}

/// Returns the claim of that name.
pub(crate) fn known(id: &str) -> Option<&'static Claim> {
    let setups = hawser_experiments::reproduce::papers()
        .iter()
        .flat_map(|paper| &paper.setups);
    setups
        .flat_map(|setup| &setup.claims)
        .find(|claim| claim.id == id)
}

/// Returns the names of the claims that are measured on real packets.
pub(crate) fn claims() -> Vec<String> {
    parts().into_iter().flat_map(|part| part.claims).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_claim_is_known_and_measured_by_one_evaluation() {
        let mut measured = claims();
        for claim in &measured {
            assert!(known(claim).is_some(), "{claim}");
        }
        let all = measured.len();
        measured.sort();
        measured.dedup();
        assert_eq!(measured.len(), all);
    }

    #[test]
    fn parts_have_names_of_their_own() {
        let mut names: Vec<&str> = parts().iter().map(|part| part.setup).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
