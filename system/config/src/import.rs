//! Configurations of other programs, converted to `client.toml`: mwan3 and OpenMPTCProuter.
//!
//! The files are untrusted text. Settings without a counterpart are listed in a note and never
//! guessed. The result is parsed, so it is a configuration that a daemon accepts.

mod devices;
mod mwan3;
mod omr;
#[cfg(test)]
mod tests;
mod tracker;
mod uci;
mod written;

use std::path::Path;

use crate::{ClientConfig, parse};

pub use uci::UciError;

/// File of another program.
#[derive(Clone, Debug)]
pub struct Source {
    /// Name for messages.
    pub file: String,
    /// Contents.
    pub text: String,
}

impl Source {
    /// Reads the sections; a file without `package` is the package of its own name.
    fn sections(&self) -> Result<Vec<uci::Section>, UciError> {
        let name = Path::new(&self.file).file_name();
        let name = name.and_then(|name| name.to_str()).unwrap_or_default();
        uci::parse(&self.file, &self.text, name)
    }
}

/// Mode for which a configuration is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportMode {
    /// A client of a hub.
    Hub,
    /// Direct mode.
    Direct,
}

/// Converted configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Text of `client.toml`, which begins with the notes.
    pub text: String,
    /// Lines about settings without a counterpart.
    pub notes: Vec<String>,
}

/// Reason why nothing was converted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// A file is not understood.
    #[error(transparent)]
    Uci(#[from] UciError),
    /// The files have no settings to convert.
    #[error("{0}")]
    Nothing(&'static str),
    /// The result is an invalid configuration: a defect of this program.
    #[error("the result is not a valid configuration ({0}): please report this with the file")]
    Unfit(String),
}

/// Converts `/etc/config/mwan3`, with the names of devices from `/etc/config/network`.
///
/// # Errors
/// If a file cannot be parsed, or contains no interface.
pub fn import_mwan3(sources: &[Source], mode: ImportMode) -> Result<Imported, ImportError> {
    let sections = all_sections(sources)?;
    let written = mwan3::convert(&sections, mode).ok_or(ImportError::Nothing(
        "no interface of mwan3 is enabled in it: name /etc/config/mwan3, and /etc/config/network after it",
    ))?;
    finish(written, "mwan3", sources, mode)
}

/// Converts the configuration of an OpenMPTCProuter: `/etc/config/network`, and after it
/// `openmptcprouter`, `omr-tracker` and `sqm`, or all of them as `uci export` prints them.
///
/// # Errors
/// If a file cannot be parsed, or contains no network.
pub fn import_omr(sources: &[Source]) -> Result<Imported, ImportError> {
    let sections = all_sections(sources)?;
    let written = omr::convert(&sections).ok_or(ImportError::Nothing(
        "no interface with option multipath is in it: name /etc/config/network, or what `uci export` prints",
    ))?;
    finish(written, "omr", sources, ImportMode::Hub)
}

fn all_sections(sources: &[Source]) -> Result<Vec<uci::Section>, UciError> {
    let read = sources.iter().map(Source::sections);
    Ok(read.collect::<Result<Vec<_>, _>>()?.concat())
}

fn finish(
    written: written::Written,
    command: &str,
    sources: &[Source],
    mode: ImportMode,
) -> Result<Imported, ImportError> {
    let (body, notes) = written.finish();
    let files: Vec<_> = sources
        .iter()
        .map(|source| format!("{:?}", source.file))
        .collect();
    let up = match mode {
        ImportMode::Hub => "hawser up",
        ImportMode::Direct => "hawser up --direct",
    };
    let mut text = format!(
        "# Converted by `hawser import {command}` from {}, for `{up}`.\n",
        files.join(" and ")
    );
    if !notes.is_empty() {
        text += "# Without a counterpart:\n";
    }
    notes.iter().for_each(|note| text += &format!("# - {note}\n"));
    text += &body;
    let unfit = |reason: String| ImportError::Unfit(reason);
    let config: ClientConfig =
        parse(Path::new("client.toml"), &text).map_err(|error| unfit(error.to_string()))?;
    let problem = match mode {
        ImportMode::Hub => config.unfit_for_hub(),
        ImportMode::Direct => config.unfit_for_direct(),
    };
    match problem {
        Some(problem) => Err(unfit(problem.to_owned())),
        None => Ok(Imported { text, notes }),
    }
}
