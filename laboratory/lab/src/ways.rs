//! Which ways to carry a scenario's traffic were asked for, and the lab to run them in: shared by
//! the commands that compare them.

use std::fmt::Display;
use std::path::Path;

use hawser_netem::scenario::{Scenario, Via};
use hawser_testbed::{Options, RunDir, prepare_process};

use crate::daemon;

/// The scenario's own way, then each single network when they are to be compared, then those that
/// `--vs` names; each once.
///
/// # Errors
/// `--vs` names no way: one line for the user.
pub(crate) fn asked(scenario: &Scenario, compare: bool, versus: &[String]) -> Result<Vec<Via>, String> {
    let singles = scenario
        .networks
        .iter()
        .map(|network| Via::Single(network.name.clone()));
    let mut ways = vec![scenario.via.clone()];
    let mut asked: Vec<Via> = if compare {
        singles.clone().collect()
    } else {
        Vec::new()
    };
    for label in versus {
        let via = Via::from_label(label)
            .filter(|via| !matches!(via, Via::Single(_)) || singles.clone().any(|single| single == *via));
        asked.push(via.ok_or(format!(
            "--vs {label}: no such way; write hub, direct, peer, repeater, mptcp or single:<network>"
        ))?);
    }
    for via in asked {
        if !ways.contains(&via) {
            ways.push(via);
        }
    }
    Ok(ways)
}

/// As [`asked`], of ways that the lab has. `file` is what the scenario is called.
///
/// # Errors
/// Nothing can be run: one line for the user.
pub(crate) fn in_lab(
    file: impl Display,
    scenario: &Scenario,
    compare: bool,
    versus: &[String],
) -> Result<Vec<Via>, String> {
    let ways = asked(scenario, compare, versus)?;
    if scenario.workloads.is_empty() {
        return Err(format!(
            "{file}: there is no workload; write at least one [[workload]]"
        ));
    }
    Ok(ways)
}

/// Readies this process for the lab, while it has one thread. `keep`: where configurations and logs
/// of the daemons stay.
///
/// # Errors
/// When the program whose daemons run is missing, the process cannot enter namespaces, or the
/// directory cannot be made.
pub(crate) fn lab_options(keep: Option<&Path>) -> anyhow::Result<Options> {
    let program = daemon::program()?;
    prepare_process()?;
    Ok(Options {
        program,
        run_dir: RunDir::new(keep)?,
        tools: Vec::new(),
    })
}
