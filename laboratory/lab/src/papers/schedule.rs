//! Choice of the next run.

use std::collections::BTreeSet;

use hawser_experiments::reproduce::Selected;

use super::Evaluation;
use super::journal::{Key, Results, World};

/// The evaluations to run, at seeds from 1.
pub(super) struct Schedule<'a> {
    evaluations: Vec<&'a Evaluation>,
    seeds: u32,
}

/// A run that has no result of the present program.
#[derive(Clone, Copy)]
pub(super) struct Next<'a> {
    pub(super) evaluation: &'a Evaluation,
    pub(super) seed: u32,
    /// Expected duration of the run. Units: seconds.
    pub(super) expected_s: f64,
    /// Number of runs of the evaluation that have a result.
    runs: usize,
}

impl<'a> Schedule<'a> {
    /// Selects the evaluations of the selected claims in that world; `None`: in both worlds.
    pub(super) fn new(
        evaluations: &'a [Evaluation],
        selected: &[Selected],
        world: Option<World>,
        seeds: u32,
    ) -> Self {
        let selected: BTreeSet<&str> = selected.iter().map(|(_, _, claim)| claim.id.as_str()).collect();
        let is_selected = |evaluation: &&Evaluation| {
            let mut claims = evaluation.claims.iter();
            world.is_none_or(|world| world == evaluation.world)
                && claims.any(|claim| selected.contains(claim.as_str()))
        };
        Self {
            evaluations: evaluations.iter().filter(is_selected).collect(),
            seeds,
        }
    }

    pub(super) fn seeds(&self) -> impl Iterator<Item = u32> {
        1..=self.seeds
    }

    /// Returns the runs without a result of the present program, the next ones first.
    pub(super) fn missing(&self, results: &Results) -> Vec<Next<'a>> {
        let mut missing: Vec<Next<'a>> = Vec::new();
        for evaluation in &self.evaluations {
            let has_result = |seed: &u32| {
                let entry = results.get(&evaluation.key(*seed));
                entry.is_some_and(|entry| entry.stamp == evaluation.stamp)
            };
            let (done, open): (Vec<u32>, Vec<u32>) = (1..=self.seeds).partition(has_result);
            let expected_s = expected(evaluation, results);
            missing.extend(open.into_iter().zip(done.len()..).map(|(seed, runs)| Next {
                evaluation,
                seed,
                expected_s,
                runs,
            }));
        }
        missing.sort_by(|a, b| {
            let by_runs = a.runs.cmp(&b.runs);
            by_runs.then(a.expected_s.total_cmp(&b.expected_s))
        });
        missing
    }

    /// Returns the first missing run that is not running and fits into the remaining time.
    pub(super) fn next(
        &self,
        results: &Results,
        running: &BTreeSet<Key>,
        left_s: Option<f64>,
    ) -> Option<Next<'a>> {
        let fits = |next: &Next<'_>| {
            left_s.is_none_or(|left| left > 0.0 && next.expected_s <= left)
                && !running.contains(&next.evaluation.key(next.seed))
        };
        self.missing(results).into_iter().find(fits)
    }
}

/// Returns the expected duration of a run: the median of the earlier runs. Units: seconds.
pub(super) fn expected(evaluation: &Evaluation, results: &Results) -> f64 {
    let earlier = results.of(evaluation.world, &evaluation.setup);
    let mut earlier: Vec<f64> = earlier.map(|entry| entry.seconds).collect();
    earlier.sort_by(f64::total_cmp);
    earlier.get(earlier.len() / 2).copied().unwrap_or(UNKNOWN_S)
}

/// Expected duration of an evaluation without earlier runs. Source: a typical one of Piconet.
const UNKNOWN_S: f64 = 60.0;

#[cfg(test)]
mod tests {
    use super::super::journal::{Entry, Found, Journal, Stamp};
    use super::super::sources::Sources;
    use super::super::{Work, evaluations};
    use super::*;
    use hawser_experiments::reproduce::select;

    /// Two evaluations of the list, with a stamp.
    fn two() -> Vec<Evaluation> {
        let mut all = evaluations(&Sources::default());
        all.retain(|evaluation| {
            matches!(evaluation.work, Work::Real(_))
                && ["H-fig4", "H-fig5"].contains(&evaluation.setup.as_str())
        });
        for evaluation in &mut all {
            evaluation.stamp = stamp("now");
        }
        all
    }

    fn stamp(program: &str) -> Stamp {
        Stamp {
            program: program.to_owned(),
            row: String::new(),
        }
    }

    fn ran(setup: &str, seed: u32, program: &str, seconds: f64) -> Entry {
        Entry {
            key: Key {
                world: World::Real,
                setup: setup.to_owned(),
                seed,
            },
            stamp: stamp(program),
            at: 0,
            seconds,
            found: Found::Real(Vec::new()),
        }
    }

    #[test]
    fn the_fewest_runs_go_first_then_the_quickest_and_stale_ones_count_for_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut journal = Journal::open(&directory.path().join("results.jsonl")).expect("new");
        let evaluations = two();
        let selected = select(&["H-fig4".to_owned(), "H-fig5".to_owned()]).expect("known");
        let schedule = Schedule::new(&evaluations, &selected, None, 2);
        journal.add(ran("H-fig4", 1, "before", 30.0)).expect("written");
        journal.add(ran("H-fig5", 1, "now", 10.0)).expect("written");
        let order = |results: &Results| -> Vec<(String, u32)> {
            let missing = schedule.missing(results);
            let name = |next: &Next<'_>| (next.evaluation.setup.clone(), next.seed);
            missing.iter().map(name).collect()
        };
        let expected = [("H-fig4", 1), ("H-fig5", 2), ("H-fig4", 2)];
        assert_eq!(
            order(journal.results()),
            expected.map(|(setup, seed)| (setup.to_owned(), seed))
        );
        // Evaluations that do not fit into the remaining time wait, and so do those that are
        // already running.
        let mut running = BTreeSet::new();
        let next = |running: &BTreeSet<Key>, left| {
            let next = schedule.next(journal.results(), running, left);
            next.map(|next| (next.evaluation.setup.clone(), next.seed))
        };
        assert_eq!(next(&running, Some(20.0)), Some(("H-fig5".to_owned(), 2)));
        assert_eq!(next(&running, Some(5.0)), None);
        running.insert(ran("H-fig4", 1, "now", 0.0).key);
        assert_eq!(next(&running, None), Some(("H-fig5".to_owned(), 2)));
    }
}
