//! Location of the program whose daemons the laboratory runs.

use std::path::PathBuf;

use anyhow::{Context, ensure};

/// Returns the program `hawser` in this program's directory: both are built together, with one
/// version.
///
/// # Errors
/// When the program is missing.
pub(crate) fn program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let program = own.with_file_name("hawser");
    ensure!(
        program.is_file(),
        "there is no {}, whose daemons the lab runs; put it there (`cargo build --release` builds both)",
        program.display()
    );
    Ok(program)
}
