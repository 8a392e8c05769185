//! Comparison of published algorithms with each other and with Hawser, under the same conditions.
//!
//! [`crate::reproduce`] tests whether a paper's numbers are reproduced; this module tests which
//! algorithm is best. A [`Comparison`] runs its contenders under conditions outside the papers,
//! with several seeds, and gives a table and a ratio. `docs/notebook` contains the conclusions.

mod registry;
mod report;
mod slots;
mod steering;
mod throttling;

use std::num::NonZeroUsize;

use hawser_netem::report::Spread;

use crate::parallel;
use crate::reproduce::Unit;

pub use registry::COMPARISONS;
pub use report::ComparisonReport;

/// Contenders, their conditions, and the measures.
///
/// All random numbers come from the seed, and no state is kept between runs, so that runs can be
/// distributed among cores.
pub trait Comparison: Sync {
    /// Returns the name on the command line.
    fn name(&self) -> &'static str;

    /// Returns the question that the comparison answers, in one sentence.
    fn question(&self) -> &'static str;

    /// Returns the contenders. The first is compared with each of the others.
    fn contenders(&self) -> &'static [&'static str];

    /// Returns the measures of each contender.
    fn measures(&self) -> &'static [Measure];

    /// Returns the conditions, in the order of the table.
    fn conditions(&self) -> Vec<String>;

    /// Runs one contender in one condition, both counted from 0, and returns a number for each
    /// measure.
    fn run(&self, condition: usize, contender: usize, seed: u64) -> Vec<f64>;
}

/// A measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measure {
    /// Name.
    pub name: &'static str,
    /// Unit.
    pub unit: Unit,
    /// Set if a higher value is better.
    pub is_more_better: bool,
}

/// Result of one comparison.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Comparison.
    pub comparison: &'static dyn Comparison,
    /// Number of seeds for each contender in each condition.
    pub seeds: u32,
    /// Table of each measure: by condition, then by contender. `None` if a run failed.
    pub tables: Vec<Vec<Vec<Option<Spread>>>>,
}

/// Comparison of the first contender with another one: see [`Compared::outcome`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Number of conditions in which the first contender is better by more than [`CLOSE`].
    pub better: usize,
    /// Number of conditions in which it is worse by more than [`CLOSE`].
    pub worse: usize,
    /// Geometric mean of the ratios of medians, first contender over the other.
    pub factor: f64,
}

/// Distance of a ratio from one that counts as no difference. Source: our choice, the variation of
/// a run's goodput by its seed; a smaller one counts chance as a difference.
pub const CLOSE: f64 = 0.02;

/// Runs a comparison at seeds 1 to `seeds`; `on_done` is called after each run. The result does not
/// depend on `jobs`.
pub fn run(
    comparison: &'static dyn Comparison,
    seeds: u32,
    jobs: NonZeroUsize,
    on_done: &(dyn Fn() + Sync),
) -> Compared {
    let (contenders, count) = (comparison.contenders().len(), seeds as usize);
    let conditions = comparison.conditions().len();
    let results = parallel::run(conditions * contenders * count, jobs, &|| false, |n| {
        let (cell, seed) = (n / count, n % count);
        let found = comparison.run(cell / contenders, cell % contenders, seed as u64 + 1);
        on_done();
        found
    });
    let measured = |measure: usize, condition: usize, contender: usize| {
        let from = (condition * contenders + contender) * count;
        let seeds = results[from..from + count].iter();
        let values: Option<Vec<f64>> = seeds
            .map(|result| result.as_ref()?.as_ref().ok()?.get(measure).copied())
            .collect();
        Spread::of(values?)
    };
    let row = |measure, condition| (0..contenders).map(|c| measured(measure, condition, c)).collect();
    let table = |measure| (0..conditions).map(|condition| row(measure, condition)).collect();
    Compared {
        comparison,
        seeds,
        tables: (0..comparison.measures().len()).map(table).collect(),
    }
}

/// Returns the number of runs of [`run`].
#[must_use]
pub fn runs(comparison: &dyn Comparison, seeds: u32) -> usize {
    comparison.conditions().len() * comparison.contenders().len() * seeds as usize
}

impl Compared {
    /// Returns the ratio of medians in a condition, first contender over another; `None` if one of
    /// them has no number.
    #[must_use]
    pub fn ratio(&self, measure: usize, condition: usize, other: usize) -> Option<f64> {
        let row = &self.tables[measure][condition];
        let (first, other) = (row[0]?.median, row[other]?.median);
        (other > 0.0).then(|| first / other)
    }

    /// Returns the comparison of the first contender with another one over all conditions; `None`
    /// without a ratio.
    #[must_use]
    pub fn outcome(&self, measure: usize, other: usize) -> Option<Outcome> {
        let sign = if self.comparison.measures()[measure].is_more_better {
            1.0
        } else {
            -1.0
        };
        let conditions = 0..self.tables[measure].len();
        let ratios: Vec<f64> = conditions
            .filter_map(|condition| self.ratio(measure, condition, other))
            .collect();
        if ratios.is_empty() {
            return None;
        }
        let far = |ratio: &f64, by: f64| by * sign * (ratio - 1.0) > CLOSE;
        let log: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
        Some(Outcome {
            better: ratios.iter().filter(|ratio| far(ratio, 1.0)).count(),
            worse: ratios.iter().filter(|ratio| far(ratio, -1.0)).count(),
            factor: (log / ratios.len() as f64).exp(),
        })
    }
}

impl std::fmt::Debug for dyn Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Comparison whose first contender is twice as fast in some conditions and then takes half of
    /// the time.
    struct Race;

    impl Comparison for Race {
        fn name(&self) -> &'static str {
            "race"
        }

        fn question(&self) -> &'static str {
            "Who wins?"
        }

        fn contenders(&self) -> &'static [&'static str] {
            &["hare", "tortoise"]
        }

        fn measures(&self) -> &'static [Measure] {
            &[
                Measure {
                    name: "speed",
                    unit: Unit::Mbps,
                    is_more_better: true,
                },
                Measure {
                    name: "time",
                    unit: Unit::Seconds,
                    is_more_better: false,
                },
            ]
        }

        fn conditions(&self) -> Vec<String> {
            vec!["awake".to_owned(), "asleep".to_owned(), "even".to_owned()]
        }

        fn run(&self, condition: usize, contender: usize, seed: u64) -> Vec<f64> {
            assert!((condition, contender, seed) != (2, 0, 3), "fell over");
            let speed = [[4.0, 2.0], [1.0, 2.0], [2.0, 2.0]][condition][contender];
            vec![speed + 0.1 * (seed as f64 - 2.0), 12.0 / speed]
        }
    }

    #[test]
    fn medians_are_held_against_each_other_and_a_failed_run_leaves_a_gap() {
        let compared = run(&Race, 3, NonZeroUsize::MIN, &|| {});
        assert_eq!(compared.ratio(0, 0, 1), Some(2.0));
        assert_eq!(compared.ratio(0, 2, 1), None, "one of its seeds failed");
        let speed = compared.outcome(0, 1).expect("two ratios");
        assert_eq!((speed.better, speed.worse), (1, 1));
        assert!((speed.factor - 1.0).abs() < 1e-9);
        let time = compared.outcome(1, 1).expect("two ratios");
        assert_eq!((time.better, time.worse), (1, 1), "less time is better");
        let text = compared.to_markdown();
        assert!(
            text.contains("| awake | 4 [3.9 .. 4.1] | 2 [1.9 .. 2.1] | 2 |"),
            "{text}"
        );
        assert!(text.contains("| even | - |"), "{text}");
        let json = serde_json::to_value(compared.to_report()).expect("JSON");
        assert_eq!(json["measures"][1]["rows"][0]["contenders"][1]["median"], 6.0);
    }

    #[test]
    fn every_comparison_has_a_name_of_its_own_and_measures_what_it_says() {
        let mut names: Vec<&str> = COMPARISONS.iter().map(|comparison| comparison.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COMPARISONS.len());
        for comparison in COMPARISONS {
            let found = comparison.run(0, 0, 1);
            assert_eq!(found.len(), comparison.measures().len(), "{}", comparison.name());
            assert_eq!(found, comparison.run(0, 0, 1), "the same again");
        }
    }
}
