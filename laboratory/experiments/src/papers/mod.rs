//! The experiments of the papers, on the simulator.
//!
//! Each module holds what its paper states of a set-up, and says what it does not state and how
//! that was filled in.

pub mod all_aps;
pub mod flow_switch;
pub mod juggler;
pub mod multifacet;
pub mod piconet;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::registry::EXPERIMENTS;

    #[test]
    fn every_experiment_finds_what_it_says_and_the_same_again() {
        for experiment in EXPERIMENTS {
            let findings = experiment.run(7).expect("comes to an end");
            let found: BTreeSet<String> = findings
                .measured
                .iter()
                .map(|measured| measured.claim.clone())
                .collect();
            let said: BTreeSet<String> = experiment.claims().into_iter().collect();
            assert_eq!(found, said, "{:?}", experiment.setups());
            assert_eq!(found.len(), findings.measured.len(), "one finding for each claim");
            for plot in &findings.plots {
                assert!(
                    experiment.setups().contains(&plot.setup.as_str()),
                    "{}",
                    plot.setup
                );
            }
        }
        let cheap = EXPERIMENTS
            .iter()
            .filter(|experiment| experiment.setups()[0].starts_with("A-"));
        for experiment in cheap {
            assert_eq!(experiment.run(3), experiment.run(3));
        }
    }
}
