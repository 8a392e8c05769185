//! `hawser-lab uml`: runs the lab in a separate kernel, in virtual time.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context;
use hawser_linux::shutdown;
use hawser_terminal::refuse;
use hawser_testbed::{Kernel, cards_wanted, read_scenario};

use crate::cli_lab::LabArgs;
use crate::{daemon, systems};

/// Runs a scenario as `lab` does, but in a separate kernel and in virtual time: without root, and
/// reproducible.
///
/// The kernel is user-mode Linux; `scripts/uml-kernel` builds it once, which takes some minutes.
/// Processor time is not measured in this kernel.
#[derive(Debug, clap::Args)]
pub(crate) struct UmlArgs {
    #[command(flatten)]
    lab: LabArgs,
    /// Seed of the random numbers of the kernel and of programs; the scenario's seed is that of the
    /// links.
    #[arg(long, value_name = "N", default_value_t = 1)]
    kernel_seed: u64,
    /// Memory of the kernel, e.g. `2G`.
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    memory: String,
    /// Time limit of the run, in seconds of real time.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    time_limit: u32,
}

/// Runs the command; exit code 0 success, 1 failure while running, 64 a scenario that cannot be
/// run.
///
/// # Errors
/// When the kernel cannot be started, or the time limit expires.
pub(crate) fn run(args: &UmlArgs) -> anyhow::Result<ExitCode> {
    let scenario = match read_scenario(&args.lab.scenario, &args.lab.settings) {
        Ok(scenario) => scenario,
        Err(error) => return Ok(refuse(error)),
    };
    let file = args.lab.scenario.display();
    if let Err(problem) = systems::in_lab(file, &scenario, args.lab.compare, &args.lab.versus) {
        return Ok(refuse(problem));
    }
    // Reports a missing daemon before the kernel starts.
    daemon::program()?;
    let mut kernel = Kernel::find()?;
    kernel.seed = args.kernel_seed;
    kernel.cards = cards_wanted(&scenario);
    kernel.memory.clone_from(&args.memory);
    kernel.time_limit_s = args.time_limit;
    if let Some(keep) = &args.lab.keep {
        std::fs::create_dir_all(keep).with_context(|| format!("cannot create {}", keep.display()))?;
        kernel.kept.push(keep.clone());
    }
    let mut words = vec![OsString::from("lab")];
    words.extend(args.lab.words());
    this_program(&kernel, &words)
}

/// Runs this program in `kernel`, and returns its exit code.
///
/// # Errors
/// When the kernel cannot be started, or the time limit expires.
pub(crate) fn this_program(kernel: &Kernel, words: &[OsString]) -> anyhow::Result<ExitCode> {
    shutdown::catch_signals().context("cannot install signal handlers")?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let status = kernel.run(&program, words)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
