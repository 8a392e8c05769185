//! `hawser check`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use hawser_node::config::{self, ClientConfig, ConfigError, HubConfig};
use serde_json::json;

use crate::refusal::{BAD_CONFIGURATION, complain};

/// Tests a configuration or scenario file, and touches nothing.
///
/// Says file, line and remedy of the first error, and exits with 64 then.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// client.toml, hub.toml or a scenario.
    file: PathBuf,
    /// What the file is; by default told from its name and contents.
    #[arg(long, value_enum)]
    kind: Option<Kind>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// A client's configuration.
    Client,
    /// A hub's configuration.
    Hub,
    /// A scenario for `hawser lab`.
    Scenario,
}

pub(crate) fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let kind = match args.kind {
        Some(kind) => kind,
        None => guess(&args.file)?,
    };
    let problem = match kind {
        Kind::Client => config::load::<ClientConfig>(&args.file)
            .err()
            .map(|error| error.to_string()),
        Kind::Hub => config::load::<HubConfig>(&args.file)
            .err()
            .map(|error| error.to_string()),
        Kind::Scenario => hawser_lab::read_scenario(&args.file, &[])
            .err()
            .map(|error| error.to_string()),
    };
    let name = match kind {
        Kind::Client => "client configuration",
        Kind::Hub => "hub configuration",
        Kind::Scenario => "scenario",
    };
    match (&problem, args.json) {
        (_, true) => say!(
            "{}",
            json!({ "version": 1, "kind": name, "ok": problem.is_none(), "problem": problem })
        )?,
        (None, false) => say!("{}: a good {name}", args.file.display())?,
        (Some(problem), false) => {
            complain(problem);
        }
    }
    Ok(problem.map_or(ExitCode::SUCCESS, |_| ExitCode::from(BAD_CONFIGURATION)))
}

fn guess(file: &Path) -> Result<Kind, ConfigError> {
    let text = std::fs::read_to_string(file).map_err(|source| ConfigError::Read {
        path: file.to_owned(),
        source,
    })?;
    let has = |start: &str| text.lines().any(|line| line.trim_start().starts_with(start));
    let name = file
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    // Rules of a client have a via, too.
    let has_via = has("via ") && !has("[[rule]]");
    Ok(if has("[[network]]") || has("[[workload]]") || has_via {
        Kind::Scenario
    } else if name.contains("hub") || has("endpoints") || has("pool") {
        Kind::Hub
    } else {
        Kind::Client
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_what_it_says() {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, text, kind) in [
            (
                "client.toml",
                "[[rule]]\nport = 22\nvia = \"direct\"\n",
                Kind::Client,
            ),
            (
                "two.toml",
                "via = \"direct\"\n[[workload]]\nkind = \"tcp\"\n",
                Kind::Scenario,
            ),
            ("three.toml", "name = \"three\"\nvia = \"hub\"\n", Kind::Scenario),
            ("hub.toml", "endpoints = [\"hub.example.org:443\"]\n", Kind::Hub),
        ] {
            let file = directory.path().join(name);
            std::fs::write(&file, text).expect("written");
            assert_eq!(guess(&file).expect("it is read"), kind, "{name}");
        }
    }
}
