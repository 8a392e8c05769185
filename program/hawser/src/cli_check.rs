//! `hawser check`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use hawser_config::{self as config, ClientConfig, ConfigError, HubConfig};
use hawser_terminal::{checked, refuse};

/// Tests a configuration file, without changing anything.
///
/// Prints file, line and remedy of the first error, and exits with 64. `hawser-lab check` does the
/// same for scenarios.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// client.toml or hub.toml.
    file: PathBuf,
    /// Type of the file; by default derived from its name and contents.
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
}

pub(crate) fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let file = &args.file;
    let guessed = match args.kind {
        Some(kind) => Some(kind),
        None => guess(file)?,
    };
    match guessed {
        Some(Kind::Client) => {
            let read = config::load::<ClientConfig>(file).map_err(|error| error.to_string());
            let found = read.and_then(|read| fits_a_mode(file, &read));
            checked(file, "client configuration", found, args.json)
        }
        Some(Kind::Hub) => {
            let read = config::load::<HubConfig>(file);
            let found = read
                .map_err(|error| error.to_string())
                .and_then(|read| match read.unfit() {
                    Some(reason) => Err(format!("{}: {reason}", file.display())),
                    None => Ok(()),
                });
            checked(file, "hub configuration", found, args.json)
        }
        None => Ok(refuse(format_args!(
            "{}: this is a scenario; use `hawser-lab check`",
            file.display()
        ))),
    }
}

/// Rejects a configuration that neither a client of a hub nor direct mode accepts.
fn fits_a_mode(file: &Path, config: &ClientConfig) -> Result<(), String> {
    match (config.unfit_for_hub(), config.unfit_for_direct()) {
        (Some(with_hub), Some(direct)) if with_hub == direct => {
            Err(format!("{}: {with_hub}", file.display()))
        }
        (Some(with_hub), Some(direct)) => Err(format!(
            "{}: {with_hub} (and with --direct: {direct})",
            file.display()
        )),
        (None, _) | (_, None) => Ok(()),
    }
}

/// Returns the type of the file; `None` for a scenario.
fn guess(file: &Path) -> Result<Option<Kind>, ConfigError> {
    let text = std::fs::read_to_string(file).map_err(|source| ConfigError::Read {
        path: file.to_owned(),
        source,
    })?;
    let has = |start: &str| text.lines().any(|line| line.trim_start().starts_with(start));
    let name = file
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    // Rules of a client also have a `via`.
    let has_via = has("via ") && !has("[[rule]]");
    Ok(if has("[[network]]") || has("[[workload]]") || has_via {
        None
    } else if name.contains("hub") || has("endpoints") || has("pool") {
        Some(Kind::Hub)
    } else {
        Some(Kind::Client)
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
                Some(Kind::Client),
            ),
            (
                "two.toml",
                "via = \"direct\"\n[[workload]]\nkind = \"tcp\"\n",
                None,
            ),
            ("three.toml", "name = \"three\"\nvia = \"hub\"\n", None),
            (
                "hub.toml",
                "endpoints = [\"hub.example.org:443\"]\n",
                Some(Kind::Hub),
            ),
        ] {
            let file = directory.path().join(name);
            std::fs::write(&file, text).expect("written");
            assert_eq!(guess(&file).expect("it is read"), kind, "{name}");
        }
    }

    #[test]
    fn a_configuration_that_fits_no_mode_is_refused_with_its_reason() {
        let found = |text: &str| {
            let file = Path::new("client.toml");
            let config: ClientConfig = config::parse(file, text).expect("well-formed");
            fits_a_mode(file, &config)
        };
        for text in ["", "kill_switch = true\n", "[networks.eth0]\nweight = 2\n"] {
            assert_eq!(found(text), Ok(()), "{text}");
        }
        let said = found("kill_switch = true\nlocal = [\"10.0.0.0/8\"]\n").expect_err("of none");
        assert!(
            said.starts_with("client.toml: kill_switch = true blocks all packets"),
            "{said}"
        );
        assert!(
            said.contains("with --direct: kill_switch = true needs a hub"),
            "{said}"
        );
    }
}
