use std::collections::BTreeSet;

use super::super::claims::{papers, select};
use super::super::experiment::{Curve, ExperimentError};
use super::super::quantity::{Quantity, Unit};
use super::*;
use crate::registry::EXPERIMENTS;

/// Experiment that takes longer at some seeds, so that runs finish out of order.
struct Uneven;

impl Experiment for Uneven {
    fn setups(&self) -> &'static [&'static str] {
        &["A-fig7", "A-mtu"]
    }

    fn claims(&self) -> Vec<String> {
        vec!["A.fig7.laptop".into(), "A.mtu".into()]
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let mut sum = seed;
        for _ in 0..(seed % 3) * 200_000 {
            sum = sum.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        }
        let mut found = Findings::default();
        found.value("A.fig7.laptop", 0.9 + (sum % 7) as f64 / 100.0, Unit::Ratio);
        found.value("A.mtu", 1400.0, Unit::Bytes);
        found.plots.push(Plot {
            setup: "A-fig7".into(),
            title: "t".into(),
            x: Axis::new("time", Unit::Seconds),
            y: Axis::new("rate", Unit::Mbps),
            curves: vec![Curve {
                name: "both".into(),
                points: vec![(2.0, seed as f64), (1.0, 5.0), (seed as f64 + 10.0, 1.0)],
            }],
        });
        Ok(found)
    }
}

/// Experiment that fails at its second seed and omits a claim.
struct Broken;

impl Experiment for Broken {
    fn setups(&self) -> &'static [&'static str] {
        &["A-fig9"]
    }

    fn claims(&self) -> Vec<String> {
        vec!["A.fig9.max".into(), "A.fig9.mono".into()]
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        assert!(seed < 3, "a bug");
        if seed == 2 {
            return Err(ExperimentError::Unfinished {
                setup: "A-fig9".into(),
                what: "a download".into(),
            });
        }
        let mut found = Findings::default();
        let evidence = vec![("T(1)".to_owned(), Quantity::new(1.0, Unit::Mbps))];
        found.shape("A.fig9.mono", true, evidence);
        Ok(found)
    }
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

fn reproduce(selection: &[&str], seeds: u32, jobs: usize) -> Reproduction {
    let selected = select(&names(selection)).expect("known");
    let plan = Plan {
        experiments: &[&Uneven, &Broken],
        seeds,
        jobs: NonZeroUsize::new(jobs).expect("some"),
    };
    run(&selected, &plan, &|_| {})
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let alone = reproduce(&["flow-switch"], 6, 1);
    assert_eq!(alone, reproduce(&["flow-switch"], 6, 2));
    assert_eq!(alone, reproduce(&["flow-switch"], 6, 5));
    assert_eq!(alone.count(Verdict::Reproduced), 2);
    assert_eq!(alone.count(Verdict::Outside), 2);
    assert_eq!(alone.count(Verdict::Device), 4);
    assert_eq!(alone.count(Verdict::Pending), 8);
}

#[test]
fn only_what_is_selected_is_run() {
    let count = AtomicUsize::new(0);
    let selected = select(&names(&["A.fig7.laptop"])).expect("known");
    let plan = Plan {
        experiments: &[&Uneven, &Broken],
        seeds: 3,
        jobs: NonZeroUsize::MIN,
    };
    let result = run(&selected, &plan, &|progress| {
        assert_eq!((progress.total, progress.setup), (3, "A-fig7"));
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!((count.into_inner(), result.claims.len()), (3, 1));
}

#[test]
fn failures_name_their_seed() {
    let reason = |seeds, claim: &str| {
        let result = reproduce(&[claim], seeds, 1);
        assert_eq!(result.claims[0].judgement.verdict, Verdict::Outside);
        result.claims[0].judgement.reason.clone()
    };
    assert_eq!(
        reason(1, "A.fig9.max"),
        "seed 1: the experiment measured nothing for it"
    );
    assert_eq!(
        reason(2, "A.fig9.mono"),
        "seed 2: set-up A-fig9: a download did not end"
    );
    let third = reproduce(&["A.fig9.mono"], 3, 2);
    assert_eq!(
        third.claims[0].judgement.verdict,
        Verdict::Outside,
        "a panic is a failed seed"
    );
}

#[test]
fn plots_of_seeds_join_by_curve_and_x() {
    let result = reproduce(&["A-mtu"], 3, 2);
    assert_eq!(result.plots.len(), 1);
    let points = &result.plots[0].curves[0].points;
    let xs: Vec<f64> = points.iter().map(|(x, _)| *x).collect();
    assert_eq!(xs, [1.0, 2.0, 11.0, 12.0, 13.0]);
    let at_two = points[1].1;
    assert_eq!((at_two.min, at_two.median, at_two.max), (1.0, 2.0, 3.0));
}

#[test]
fn registered_experiments_name_claims_that_exist_in_their_setups_and_only_once() {
    let mut seen = BTreeSet::new();
    for experiment in EXPERIMENTS {
        assert!(!experiment.claims().is_empty(), "{:?}", experiment.setups());
        for claim in experiment.claims() {
            assert!(
                seen.insert(claim.clone()),
                "{claim} is measured by two experiments"
            );
            let setup = papers()
                .iter()
                .flat_map(|paper| &paper.setups)
                .find(|setup| setup.claims.iter().any(|known| known.id == claim));
            let setup = setup.unwrap_or_else(|| panic!("{claim} does not exist"));
            assert!(
                experiment.setups().contains(&setup.id.as_str()),
                "{claim} belongs to {}",
                setup.id
            );
        }
    }
}
