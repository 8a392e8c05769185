//! Selection of the systems that transfer a scenario's traffic, and preparation of the lab; shared
//! by the commands that compare systems.

use std::fmt::Display;
use std::path::Path;

use hawser_netem::scenario::{Scenario, Via};
use hawser_testbed::{Options, RunDir, prepare_process};

use crate::daemon;

/// Returns the scenario's own system, then each network alone if `compare` is set, then the systems
/// of `--vs`, without duplicates.
///
/// # Errors
/// When `--vs` names no system; the message is one line for the user.
pub(crate) fn asked(scenario: &Scenario, compare: bool, versus: &[String]) -> Result<Vec<Via>, String> {
    let singles = scenario
        .networks
        .iter()
        .map(|network| Via::Single(network.name.clone()));
    let mut systems = vec![scenario.via.clone()];
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
        if !systems.contains(&via) {
            systems.push(via);
        }
    }
    Ok(systems)
}

/// Returns the systems as [`asked`] does, if the scenario has a workload. `file` is the scenario's
/// name.
///
/// # Errors
/// When nothing can be run; the message is one line for the user.
pub(crate) fn in_lab(
    file: impl Display,
    scenario: &Scenario,
    compare: bool,
    versus: &[String],
) -> Result<Vec<Via>, String> {
    let systems = asked(scenario, compare, versus)?;
    if scenario.workloads.is_empty() {
        return Err(format!(
            "{file}: there is no workload; write at least one [[workload]]"
        ));
    }
    Ok(systems)
}

/// Prepares this process for the lab; call it while the process has one thread. `keep` is the
/// directory in which the daemons' configurations and logs stay.
///
/// # Errors
/// When the daemons' program is missing, the process cannot enter namespaces, or the directory
/// cannot be created.
pub(crate) fn lab_options(keep: Option<&Path>) -> anyhow::Result<Options> {
    let program = daemon::program()?;
    prepare_process()?;
    Ok(Options {
        program,
        run_dir: RunDir::new(keep)?,
        tools: Vec::new(),
    })
}
