//! `hawser-lab reproduce --again`: repeats a random part of the good rows, and fails when one of
//! these rows is no longer good.
//!
//! Evaluations are drawn by a seed until their good rows are a tenth of all good rows, or their
//! expected time reaches the budget. A row that is not good in its run is measured with two further
//! seeds, and fails if it is good in none of the three runs.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hawser_experiments::reproduce::Standing;
use hawser_linux::shutdown;
use hawser_netem::Random;
use hawser_terminal::{complain, say};

use super::journal::{Found, Results};
use super::schedule::expected;
use super::sources::Sources;
use super::{Evaluation, evaluations, in_words, page};
use crate::{progress, real};

/// Selection of the rows to repeat.
#[derive(Debug)]
pub(crate) struct Again<'a> {
    /// Journal with the earlier verdicts.
    pub(crate) results: &'a Path,
    pub(crate) seed: u64,
    /// Number of seeds of the journal's runs.
    pub(crate) seeds: u32,
    /// Time after which no further evaluation starts.
    pub(crate) budget: Duration,
}

/// An evaluation and its good rows.
struct Drawn<'a> {
    evaluation: &'a Evaluation,
    good: Vec<String>,
    expected_s: f64,
}

/// Repeats the selected rows. Exit code 1: a row is no longer good.
///
/// # Errors
/// When the journal cannot be read or has no good row, or no evaluation gives a result.
pub(crate) fn again(order: &Again<'_>) -> anyhow::Result<ExitCode> {
    shutdown::catch_signals().context("cannot install signal handlers")?;
    let evaluations = evaluations(&Sources::read()?);
    let candidates = candidates(&evaluations, &Results::read(order.results)?);
    ensure!(
        !candidates.is_empty(),
        "{} has no row that is good",
        order.results.display()
    );
    let drawn = draw(candidates, order.seed, order.budget.as_secs_f64());
    let begun = Instant::now();
    let (mut repeated, mut failed) = (0, Vec::new());
    for one in &drawn {
        if shutdown::is_requested() || begun.elapsed() >= order.budget {
            break;
        }
        let first = 1 + (order.seed % u64::from(order.seeds)) as u32;
        let bad = repeat(one, first, order.seeds)?;
        repeated += one.good.len();
        progress::note(&format!(
            "{}: {} of {} rows are good, {} gone",
            one.evaluation.setup,
            one.good.len() - bad.len(),
            one.good.len(),
            in_words(begun.elapsed().as_secs_f64())
        ));
        failed.extend(bad);
    }
    for row in &failed {
        complain(format_args!("{row} was good, and is not in three runs"));
    }
    say!("{repeated} good rows repeated, {} of them failed", failed.len())?;
    Ok(if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns the evaluations with good rows that run on real packets in virtual time.
fn candidates<'a>(evaluations: &'a [Evaluation], results: &Results) -> Vec<Drawn<'a>> {
    let rows = page::on_real_packets(evaluations, results);
    let is_good = |claim: &&String| {
        let found = rows.get(*claim);
        found.is_some_and(|found| found.standing() == Standing::Good)
    };
    let real = evaluations.iter().filter(|evaluation| evaluation.is_repeatable());
    let drawn = real.map(|evaluation| Drawn {
        evaluation,
        good: evaluation.claims.iter().filter(is_good).cloned().collect(),
        expected_s: expected(evaluation, results),
    });
    drawn.filter(|drawn| !drawn.good.is_empty()).collect()
}

/// Draws evaluations until they have a tenth of the good rows, within the budget; at least one.
fn draw(mut candidates: Vec<Drawn<'_>>, seed: u64, budget_s: f64) -> Vec<Drawn<'_>> {
    let mut random = Random::new(seed, "rows");
    let wanted = candidates
        .iter()
        .map(|one| one.good.len())
        .sum::<usize>()
        .div_ceil(10);
    let (mut drawn, mut rows, mut left) = (Vec::new(), 0, budget_s);
    while rows < wanted && !candidates.is_empty() {
        let at = (random.uniform() * candidates.len() as f64) as usize;
        let one = candidates.swap_remove(at.min(candidates.len() - 1));
        let is_last_hope = candidates.is_empty() && drawn.is_empty();
        if one.expected_s <= left || is_last_hope {
            left -= one.expected_s;
            rows += one.good.len();
            drawn.push(one);
        }
    }
    drawn
}

/// Returns the rows that are good in none of three runs.
fn repeat(drawn: &Drawn<'_>, first: u32, seeds: u32) -> anyhow::Result<Vec<String>> {
    let mut bad = drawn.good.clone();
    for run in 0..RUNS {
        let seed = 1 + (first - 1 + run) % seeds.max(RUNS);
        let found = drawn.evaluation.run(seed, &bad);
        if shutdown::is_requested() {
            return Ok(Vec::new());
        }
        let measured = match found {
            Ok(Found::Real(measured)) => measured,
            Ok(Found::Simulated(_) | Found::Failed(_)) => Vec::new(),
            Err(error) => {
                complain(format_args!("{error:#}"));
                Vec::new()
            }
        };
        let results = real::by_claim(measured);
        bad.retain(|claim| !results.get(claim).is_some_and(real::Found::is_as_good));
        if bad.is_empty() {
            break;
        }
    }
    Ok(bad)
}

/// Number of runs before a row fails. Source: a majority needs three.
const RUNS: u32 = 3;

#[cfg(test)]
mod tests {
    use super::super::World;
    use super::*;

    fn candidates(evaluations: &[Evaluation], seconds: f64) -> Vec<Drawn<'_>> {
        let real = evaluations.iter().filter(|one| one.world == World::Real);
        let drawn = real.map(|evaluation| Drawn {
            evaluation,
            good: evaluation.claims.clone(),
            expected_s: seconds,
        });
        drawn.collect()
    }

    #[test]
    fn a_tenth_of_the_rows_is_drawn_and_another_seed_draws_others() {
        let evaluations = evaluations(&Sources::default());
        let names = |seed| -> Vec<&str> {
            let drawn = draw(candidates(&evaluations, 1.0), seed, 240.0);
            drawn.iter().map(|one| one.evaluation.setup.as_str()).collect()
        };
        let rows: usize = draw(candidates(&evaluations, 1.0), 1, 240.0)
            .iter()
            .map(|one| one.good.len())
            .sum();
        let all: usize = candidates(&evaluations, 1.0)
            .iter()
            .map(|one| one.good.len())
            .sum();
        assert!(rows * 10 >= all && rows * 4 < all, "{rows} of {all}");
        assert_eq!(names(1), names(1));
        assert_ne!(names(1), names(2));
    }

    #[test]
    fn the_budget_bounds_what_is_drawn() {
        let evaluations = evaluations(&Sources::default());
        assert_eq!(draw(candidates(&evaluations, 100.0), 1, 240.0).len(), 2);
        assert_eq!(draw(candidates(&evaluations, 300.0), 1, 240.0).len(), 1);
    }
}
