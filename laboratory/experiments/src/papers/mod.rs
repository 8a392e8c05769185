//! Experiments of the papers, on the simulator.
//!
//! Each module contains the set-up as its paper states it, and documents the unstated parts with
//! the values chosen for them.

pub mod all_aps;
pub mod flow_switch;
pub mod juggler;
pub mod multifacet;
pub mod piconet;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::parallel;
    use crate::registry::EXPERIMENTS;

    /// Runs `check` on the index of each experiment in the registry, on all cores; a failure names
    /// the experiment.
    fn check_each(check: impl Fn(usize) + Sync) {
        let results = parallel::run(EXPERIMENTS.len(), parallel::cores(), &|| false, check);
        for (experiment, result) in EXPERIMENTS.iter().zip(results) {
            let result = result.expect("none is left out");
            result.unwrap_or_else(|why| panic!("{:?}: {why}", experiment.setups()));
        }
    }

    #[test]
    fn every_experiment_finds_what_it_says() {
        check_each(|index| {
            let experiment = &EXPERIMENTS[index];
            let findings = experiment.run(7).expect("comes to an end");
            let found: BTreeSet<String> = findings
                .measured
                .iter()
                .map(|measured| measured.claim.clone())
                .collect();
            let said: BTreeSet<String> = experiment.claims().into_iter().collect();
            assert_eq!(found, said);
            assert_eq!(found.len(), findings.measured.len(), "one finding for each claim");
            for plot in &findings.plots {
                let is_own = experiment.setups().contains(&plot.setup.as_str());
                assert!(is_own, "{}", plot.setup);
            }
        });
    }

    #[test]
    fn the_same_seed_finds_the_same_again() {
        check_each(|index| {
            let experiment = &EXPERIMENTS[index];
            // The other experiments take too long for a test.
            if experiment.setups()[0].starts_with("A-") {
                assert_eq!(experiment.run(3), experiment.run(3));
            }
        });
    }
}
