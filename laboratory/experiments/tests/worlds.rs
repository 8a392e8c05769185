//! Checks that drawn worlds have all properties, except for the known failures of
//! `scenarios/worlds`.

use std::path::{Path, PathBuf};

use hawser_experiments::parallel;
use hawser_experiments::worlds::{Fit, Judgement, Known, Property, World, judge};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/worlds")
}

fn known() -> Known {
    let text = std::fs::read_to_string(directory().join("known.toml")).expect("the list is committed");
    Known::parse(&text).expect("the list is legal")
}

fn judged(seeds: std::ops::RangeInclusive<u64>) -> Vec<(u64, Judgement)> {
    let fit = Fit::committed();
    let first = *seeds.start();
    let judgements = parallel::run(seeds.count(), parallel::cores(), &|| false, |index| {
        let scenario = World::draw(first + index as u64, &fit).scenario();
        judge(&scenario.expect("each seed draws a scenario"), &Property::ALL)
    });
    let numbered = judgements.into_iter().flatten().zip(first..);
    numbered
        .map(|(judgement, seed)| (seed, judgement.expect("panics are judged")))
        .collect()
}

/// Returns whether two other draws of the world's losses and jitter both contradict its judgement.
///
/// A property that measures quality has a limit near which a world ends on either side after any
/// change in the order of events, so one draw that contradicts the list is not a result.
fn is_contradicted(seed: u64, property: Property, is_violated: bool) -> bool {
    let contradicts = |draw: u64| {
        let scenario = World::draw(seed, &Fit::committed()).scenario();
        let mut scenario = scenario.expect("each seed draws a scenario");
        scenario.seed += draw * 1000;
        let violations = judge(&scenario, &[property]).violations;
        violations.iter().any(|found| found.property == property) != is_violated
    };
    !property.is_functional() && (1..=2).all(contradicts)
}

/// Checks that each violation is known, and that each known violation still occurs.
fn holds(seeds: std::ops::RangeInclusive<u64>) {
    let known = known();
    let mut problems = Vec::new();
    for (seed, judgement) in judged(seeds) {
        for violation in known.unknown(seed, &judgement.violations) {
            if !is_contradicted(seed, violation.property, true) {
                problems.push(format!("seed {seed}: {violation:?}"));
            }
        }
        for property in Property::ALL {
            let found = judgement
                .violations
                .iter()
                .any(|found| found.property == property);
            if known.has(seed, property) && !found && !is_contradicted(seed, property, false) {
                problems.push(format!(
                    "seed {seed}: {} holds now: take the seed out of scenarios/worlds/known.toml",
                    property.name()
                ));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn ten_worlds_have_all_properties_but_known_failures() {
    holds(1..=10);
}

#[test]
#[ignore = "slow: make test-all"]
fn a_hundred_worlds_have_all_properties_but_known_failures() {
    holds(11..=100);
}

#[test]
#[ignore = "slow: make test-all"]
fn known_scenarios_still_fail() {
    for failure in known().failures {
        let Some(file) = failure.scenario else { continue };
        let text = std::fs::read_to_string(directory().join(&file)).expect("the file is committed");
        let scenario = World::parse(&text).expect("TOML").scenario().expect("legal");
        let violations = judge(&scenario, &[failure.property]).violations;
        assert!(
            violations.iter().any(|found| found.property == failure.property),
            "{file}: {} holds now: take it out of known.toml, and keep it as a test of the repair",
            failure.property.name()
        );
    }
}

/// Shrunken worlds whose defect is repaired; another property may be a known failure.
#[test]
fn repaired_scenarios_have_all_properties_but_known_failures() {
    let known = known().failures;
    let files = std::fs::read_dir(directory().join("repaired")).expect("the directory is committed");
    for file in files {
        let path = file.expect("an entry").path();
        let name = Path::new("repaired").join(path.file_name().expect("a file"));
        let is_known = |property: Property| {
            let mut of_file = known.iter().filter(|failure| {
                failure
                    .scenario
                    .as_ref()
                    .is_some_and(|file| name == Path::new(file))
            });
            of_file.any(|failure| failure.property == property)
        };
        let text = std::fs::read_to_string(&path).expect("readable");
        let scenario = World::parse(&text).expect("TOML").scenario().expect("legal");
        let mut violations = judge(&scenario, &Property::ALL).violations;
        violations.retain(|violation| !is_known(violation.property));
        assert!(violations.is_empty(), "{}: {violations:?}", path.display());
    }
}
