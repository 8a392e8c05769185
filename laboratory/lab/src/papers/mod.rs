//! `hawser-lab reproduce --page`: the page of the papers, from the results of all runs.
//!
//! Each run of a simulated experiment, or of an evaluation on real packets, has a seed. A journal
//! beside the page stores each result with a stamp: hashes of the programs and of the evaluation.
//! An order runs what is missing or stale until its budget is used up, starting with the
//! evaluations that have the fewest runs, and among these with the shortest; then it writes the
//! page from the whole journal. An interrupted order loses only unfinished runs.
//!
//! ```text
//!   sources --> stamps --+
//!                        +--> schedule --> runs --> journal --> page
//!   journal -------------+
//! ```
//!
//! Verdicts are not stored: they are computed when the page is written, from the claims' numbers at
//! that time.

mod again;
mod journal;
mod page;
mod schedule;
mod sources;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use hawser_experiments::registry::EXPERIMENTS;
use hawser_experiments::reproduce::{Experiment, Selected, papers};
use hawser_linux::shutdown;
use hawser_terminal::say;

use crate::{progress, real};
pub(crate) use again::{Again, again};
pub(crate) use journal::World;
use journal::{Entry, Found, Journal, Key, Stamp};
use schedule::{Next, Schedule};
use sources::Sources;

/// Parameters of `--page`.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    pub(crate) page: &'a Path,
    /// Journal; `None`: beside the page.
    pub(crate) results: Option<&'a Path>,
    /// Number of runs of each evaluation.
    pub(crate) seeds: u32,
    /// Maximum number of concurrent runs.
    pub(crate) jobs: NonZeroUsize,
    /// Time limit for runs; `None`: no limit.
    pub(crate) budget: Option<Duration>,
    /// Claims whose evaluations run; the page has all claims.
    pub(crate) selected: &'a [Selected],
    /// World of the runs; `None`: both the simulator and real packets.
    pub(crate) world: Option<World>,
}

/// An evaluation or an experiment, and the claims that it measures.
struct Evaluation {
    world: World,
    setup: String,
    claims: Vec<String>,
    stamp: Stamp,
    work: Work,
}

enum Work {
    Real(real::Part),
    Simulated(&'static dyn Experiment),
}

/// Runs what is missing or stale within the budget, and writes the page.
///
/// # Errors
/// When the programs are older than their sources, another process has the journal open, or the
/// file system fails.
pub(crate) fn run(order: &Order<'_>) -> anyhow::Result<()> {
    shutdown::catch_signals().context("cannot install signal handlers")?;
    let evaluations = evaluations(&Sources::read()?);
    let results = results_of(order.page, order.results);
    let mut journal = Journal::open(&results)?;
    let schedule = Schedule::new(&evaluations, order.selected, order.world, order.seeds);
    let ended = measure(&schedule, &mut journal, order.jobs, order.budget);
    journal.tidy()?;
    ended?;
    let text = page::write(&evaluations, journal.results(), order.seeds);
    std::fs::write(order.page, text).with_context(|| format!("cannot write {}", order.page.display()))?;
    say!("{}", page::summary(&evaluations, journal.results(), order.seeds))?;
    say!("written: {}, {}", order.page.display(), results.display())
}

/// Returns the path of a page's journal.
fn results_of(page: &Path, results: Option<&Path>) -> PathBuf {
    results.map_or_else(|| page.with_extension("jsonl"), Path::to_owned)
}

/// Returns all experiments and evaluations.
fn evaluations(sources: &Sources) -> Vec<Evaluation> {
    let simulated = EXPERIMENTS.iter().map(|experiment| {
        let claims = experiment.claims();
        Evaluation {
            world: World::Simulator,
            // Several experiments share a set-up, but no two measure the same claim.
            setup: format!(
                "{} from {}",
                experiment.setups().join(", "),
                claims.first().map_or("", String::as_str)
            ),
            stamp: sources.of_simulated(paper_of(&claims)),
            claims,
            work: Work::Simulated(*experiment),
        }
    });
    let real = real::parts().into_iter().map(|part| Evaluation {
        world: World::Real,
        setup: part.setup.to_owned(),
        claims: part.claims.clone(),
        stamp: sources.of_real(part.sources),
        work: Work::Real(part),
    });
    simulated.chain(real).collect()
}

/// Returns the short name of the paper of these claims.
fn paper_of(claims: &[String]) -> &'static str {
    let has_any = |paper: &&hawser_experiments::reproduce::Paper| {
        let all = paper.setups.iter().flat_map(|setup| &setup.claims);
        all.into_iter().any(|claim| claims.contains(&claim.id))
    };
    papers()
        .iter()
        .find(has_any)
        .map_or("", |paper| paper.id.as_str())
}

impl Evaluation {
    /// Runs the evaluation once; `asked` are the claims to measure.
    ///
    /// # Errors
    /// When the evaluation cannot run on this machine.
    fn run(&self, seed: u32, asked: &[String]) -> anyhow::Result<Found> {
        match &self.work {
            Work::Real(part) => {
                let measured = part.measure(seed, asked, None)?;
                Ok(measured.map_or_else(Found::Failed, Found::Real))
            }
            Work::Simulated(experiment) => {
                let found = catch_unwind(AssertUnwindSafe(|| experiment.run(seed.into())));
                Ok(match found {
                    Ok(Ok(found)) => Found::Simulated(found.measured),
                    Ok(Err(error)) => Found::Failed(error.to_string()),
                    Err(_) => Found::Failed(format!("{}: it panicked", self.setup)),
                })
            }
        }
    }

    /// Returns whether the evaluation uses real packets and its result depends on the seed only.
    fn is_repeatable(&self) -> bool {
        match &self.work {
            Work::Real(part) => part.is_virtual(),
            Work::Simulated(_) => false,
        }
    }

    fn key(&self, seed: u32) -> Key {
        Key {
            world: self.world,
            setup: self.setup.clone(),
            seed,
        }
    }
}

/// State that workers share.
struct Shared<'a> {
    journal: &'a mut Journal,
    running: BTreeSet<Key>,
    ended: usize,
    problem: Option<anyhow::Error>,
}

fn measure(
    schedule: &Schedule<'_>,
    journal: &mut Journal,
    jobs: NonZeroUsize,
    budget: Option<Duration>,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let total = schedule.missing(journal.results()).len();
    let shared = Mutex::new(Shared {
        journal,
        running: BTreeSet::new(),
        ended: 0,
        problem: None,
    });
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    let worker = || {
        loop {
            let next = {
                let mut shared = lock();
                if shutdown::is_requested() || shared.problem.is_some() {
                    return;
                }
                let left = budget.map(|budget| budget.saturating_sub(begun.elapsed()).as_secs_f64());
                let Some(next) = schedule.next(shared.journal.results(), &shared.running, left) else {
                    return;
                };
                shared.running.insert(next.evaluation.key(next.seed));
                next
            };
            let ran = run_one(&next);
            // An interrupted run has no result.
            if shutdown::is_requested() {
                return;
            }
            let mut shared = lock();
            let (entry, outcome) = match ran {
                Ok(ran) => ran,
                Err(error) => {
                    // All runs of the evaluation stay marked as running, so that none is tried
                    // again.
                    progress::note(&format!("{}: {error:#}", next.evaluation.setup));
                    shared
                        .running
                        .extend(schedule.seeds().map(|seed| next.evaluation.key(seed)));
                    continue;
                }
            };
            shared.running.remove(&entry.key);
            shared.ended += 1;
            if let Err(problem) = shared.journal.add(entry) {
                shared.problem = Some(problem);
                return;
            }
            let missing = schedule.missing(shared.journal.results());
            let expected = missing.iter().map(|next| next.expected_s);
            let rest = expected.sum::<f64>() / jobs.get() as f64;
            progress::note(&format!(
                "[{} of {total}, {} gone, about {} to go] {outcome}",
                shared.ended,
                in_words(begun.elapsed().as_secs_f64()),
                in_words(rest)
            ));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs.get().min(total) {
            scope.spawn(worker);
        }
    });
    let shared = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    shared.problem.map_or(Ok(()), Err)
}

/// Runs the next evaluation; returns its entry and a line about the result.
///
/// # Errors
/// When the evaluation cannot run on this machine.
fn run_one(next: &Next<'_>) -> anyhow::Result<(Entry, String)> {
    let evaluation = next.evaluation;
    let begun = Instant::now();
    let found = evaluation.run(next.seed, &evaluation.claims)?;
    let seconds = (begun.elapsed().as_secs_f64() * 10.0).round() / 10.0;
    let outcome = match &found {
        Found::Real(measured) => format!("{} claims", measured.len()),
        Found::Simulated(measured) => format!("{} claims", measured.len()),
        Found::Failed(reason) => format!("failed: {reason}"),
    };
    let world = match evaluation.world {
        World::Simulator => "simulated",
        World::Real => "on real packets",
    };
    let outcome = format!(
        "{} {world}, seed {}, {seconds:.0} s: {outcome}",
        evaluation.setup, next.seed
    );
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let entry = Entry {
        key: evaluation.key(next.seed),
        stamp: evaluation.stamp.clone(),
        at: now.map_or(0, |now| now.as_secs()),
        seconds,
        found,
    };
    Ok((entry, outcome))
}

fn in_words(seconds: f64) -> String {
    let minutes = (seconds / 60.0) as u64;
    match minutes {
        0 => format!("{seconds:.0} s"),
        1..60 => format!("{minutes} min"),
        _ => format!("{} h {} min", minutes / 60, minutes % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_evaluation_has_a_name_of_its_own_in_its_world() {
        let sources = Sources::default();
        let mut names: Vec<(World, String)> = evaluations(&sources)
            .into_iter()
            .map(|evaluation| (evaluation.world, evaluation.setup))
            .collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn every_experiment_belongs_to_a_paper() {
        for experiment in EXPERIMENTS {
            assert_ne!(paper_of(&experiment.claims()), "", "{:?}", experiment.setups());
        }
    }

    #[test]
    fn times_are_written_for_a_person() {
        let words = [12.4, 75.0, 3_700.0].map(in_words);
        assert_eq!(words, ["12 s", "1 min", "1 h 1 min"]);
    }
}
