//! `hawser-lab uml`: the lab in a kernel of its own, in virtual time.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context;
use hawser_linux::shutdown;
use hawser_terminal::refuse;
use hawser_testbed::{Kernel, cards_wanted, read_scenario};

use crate::cli_lab::LabArgs;
use crate::{daemon, ways};

/// Runs a scenario as `lab` does, in a kernel of its own and in virtual time: no root, and the same
/// result every time.
///
/// The kernel is user-mode Linux, built by `scripts/uml-kernel` when it is first asked for, which
/// takes some minutes. Processor time is not measured there.
#[derive(Debug, clap::Args)]
pub(crate) struct UmlArgs {
    #[command(flatten)]
    lab: LabArgs,
    /// Where the random numbers of kernel and programs begin; those of the links are the
    /// scenario's.
    #[arg(long, value_name = "N", default_value_t = 1)]
    kernel_seed: u64,
    /// Memory of that kernel.
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    memory: String,
    /// Ends the run after so many seconds of real time.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    time_limit: u32,
}

/// Runs the command; 0 done, 1 failed while running, 64 a scenario that cannot be run.
///
/// # Errors
/// When the kernel cannot be run, or time is over.
pub(crate) fn run(args: &UmlArgs) -> anyhow::Result<ExitCode> {
    let scenario = match read_scenario(&args.lab.scenario, &args.lab.settings) {
        Ok(scenario) => scenario,
        Err(error) => return Ok(refuse(error)),
    };
    let file = args.lab.scenario.display();
    if let Err(problem) = ways::in_lab(file, &scenario, args.lab.compare, &args.lab.versus) {
        return Ok(refuse(problem));
    }
    // Missing, it is said here and not in there.
    daemon::program()?;
    let mut kernel = Kernel::find()?;
    kernel.seed = args.kernel_seed;
    kernel.cards = cards_wanted(&scenario);
    kernel.memory.clone_from(&args.memory);
    kernel.time_limit_s = args.time_limit;
    if let Some(keep) = &args.lab.keep {
        std::fs::create_dir_all(keep).with_context(|| format!("cannot make {}", keep.display()))?;
        kernel.kept.push(keep.clone());
    }
    let mut words = vec![OsString::from("lab")];
    words.extend(args.lab.words());
    this_program(&kernel, &words)
}

/// Runs this program in `kernel`, and ends as it does.
///
/// # Errors
/// When the kernel cannot be run, or time is over.
pub(crate) fn this_program(kernel: &Kernel, words: &[OsString]) -> anyhow::Result<ExitCode> {
    shutdown::catch_signals().context("cannot catch signals")?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let status = kernel.run(&program, words)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
