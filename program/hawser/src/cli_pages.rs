//! Generates manual pages and completions for packages; the released program does not contain this
//! code.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::Cli;

/// Writes manual pages and completions of shells.
#[derive(Debug, clap::Args)]
pub(crate) struct PagesArgs {
    /// Output directory; it is created if it does not exist.
    directory: PathBuf,
}

pub(crate) fn write(args: &PagesArgs) -> anyhow::Result<ExitCode> {
    let directory = &args.directory;
    std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let mut command = Cli::command();
    clap_mangen::generate_to(command.clone(), directory).context("cannot write manual pages")?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "hawser", directory)
            .context("cannot write completions")?;
    }
    Ok(ExitCode::SUCCESS)
}
