//! `hawser import`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use hawser_config::import::{ImportError, ImportMode, Imported, Source, import_mwan3, import_omr};
use hawser_terminal::{complain, refuse, show};

/// Converts the configuration of another program to client.toml, and changes nothing else.
///
/// Settings without a counterpart are listed on standard error, and in comments of the result. Read
/// the result before you use it; `hawser check client.toml` tests it.
#[derive(Debug, clap::Args)]
pub(crate) struct ImportArgs {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, clap::Subcommand)]
enum From {
    /// Converts mwan3's configuration: /etc/config/mwan3, followed by /etc/config/network, which
    /// names the devices.
    Mwan3 {
        #[command(flatten)]
        files: Files,
        /// Writes a configuration for `hawser up --direct`, without a hub.
        #[arg(long)]
        direct: bool,
    },
    /// Converts OpenMPTCProuter's configuration: /etc/config/network, followed by openmptcprouter,
    /// omr-tracker and sqm; or the output of `uci export`.
    Omr {
        #[command(flatten)]
        files: Files,
    },
}

#[derive(Debug, clap::Args)]
struct Files {
    /// Files in UCI syntax.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Writes the result to this file instead of standard output; the file must not exist.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let (files, result) = match &args.from {
        From::Mwan3 { files, direct } => {
            let mode = if *direct {
                ImportMode::Direct
            } else {
                ImportMode::Hub
            };
            (files, import_mwan3(&read(&files.files)?, mode))
        }
        From::Omr { files } => (files, import_omr(&read(&files.files)?)),
    };
    match result {
        Ok(imported) => {
            write(&imported, files.output.as_deref())?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error @ (ImportError::Uci(_) | ImportError::Nothing(_))) => Ok(refuse(format_args!("{error}"))),
        Err(error) => Err(error.into()),
    }
}

fn read(files: &[PathBuf]) -> anyhow::Result<Vec<Source>> {
    let read = files.iter().map(|file| {
        let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(Source {
            file: file.display().to_string(),
            text: String::from_utf8_lossy(&bytes).into_owned(),
        })
    });
    read.collect()
}

fn write(imported: &Imported, output: Option<&Path>) -> anyhow::Result<()> {
    for note in &imported.notes {
        complain(format_args!("no counterpart: {note}"));
    }
    match output {
        Some(file) => {
            let mut created = std::fs::File::create_new(file)
                .with_context(|| format!("cannot write {} (the file must not exist)", file.display()))?;
            std::io::Write::write_all(&mut created, imported.text.as_bytes())
                .with_context(|| format!("cannot write {}", file.display()))
        }
        None => show!("{}", imported.text),
    }
}
