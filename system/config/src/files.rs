//! Reading of files: errors with file and line, and passwords that only their owner may read.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::secrecy::refuse_readers;
use crate::{ClientConfig, HubConfig};

/// Reason why a configuration file cannot be used. It is reported before any change of the system.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot read it: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file has invalid contents.
    #[error("{}:{line}: {message}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Message: the error, and what would be correct.
        message: String,
    },
}

/// Reads a file.
///
/// # Errors
/// [`ConfigError`] with the line.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse(path, &text)
}

/// Reads a file, or returns the default if there is none.
///
/// # Errors
/// [`ConfigError`] with the line.
pub fn load_or_default<T: DeserializeOwned + Default>(path: &Path) -> Result<T, ConfigError> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(path, &text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(T::default()),
        Err(source) => Err(ConfigError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Reads the text of a file; `path` is named in errors.
///
/// # Errors
/// [`ConfigError`] with the line.
pub fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = 1 + text.as_bytes()[..at]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        let message = in_words(&message);
        ConfigError::Content {
            path: path.to_owned(),
            line,
            message,
        }
    })
}

/// Rejects a file with passwords that other users may read.
///
/// # Errors
/// The reason as text, with the remedy.
pub fn check_secrecy(path: &Path, config: &ClientConfig) -> anyhow::Result<()> {
    refuse_readers(path, config.radio.is_secret().then_some("a Wi-Fi password"))
}

/// Checks that only the owner can read a hub's configuration if it contains a secret.
///
/// # Errors
/// Description of the reason, with the remedy.
pub fn check_hub_secrecy(path: &Path, config: &HubConfig) -> anyhow::Result<()> {
    let is_secret = config.store.as_ref().is_some_and(|store| store.url.is_secret());
    refuse_readers(path, is_secret.then_some("a database's password"))
}

/// Replaces the list of known names by the name that was probably meant, and Rust's types by words.
fn in_words(message: &str) -> String {
    if let Some((unknown, known)) = message.split_once(", expected ")
        && unknown.starts_with("unknown ")
        && let [_, given, _] = unknown.split('`').collect::<Vec<_>>()[..]
    {
        let names = known.split('`').skip(1).step_by(2);
        let distances = names.map(|name| (strsim::damerau_levenshtein(given, name), name));
        let nearest = distances
            .min()
            .filter(|(distance, _)| 3 * distance <= given.len());
        if let Some((_, name)) = nearest {
            return format!("{unknown}: did you mean `{name}`?");
        }
    }
    let types = [
        ("u8", "a whole number from 0 to 255"),
        ("u16", "a whole number from 0 to 65535"),
        ("u32", "a whole number from 0 to 4294967295"),
        ("u64", "a whole number, not negative"),
        ("usize", "a whole number, not negative"),
        ("f64", "a number"),
    ];
    let found = types.iter().find_map(|(name, words)| {
        let before = message.strip_suffix(name)?.strip_suffix("expected ")?;
        Some(format!("{before}expected {words}"))
    });
    found.unwrap_or_else(|| message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::in_words;

    #[test]
    fn the_name_that_was_meant_is_proposed() {
        let known = "expected one of `cap_up`, `kill_switch`, `mtu`";
        assert_eq!(
            in_words(&format!("unknown field `kil_switch`, {known}")),
            "unknown field `kil_switch`: did you mean `kill_switch`?"
        );
        for other in ["foo", "cap", "x"] {
            let message = format!("unknown field `{other}`, {known}");
            assert_eq!(in_words(&message), message);
        }
        assert_eq!(
            in_words("unknown variant `hbu`, expected `hub` or `keep`"),
            "unknown variant `hbu`: did you mean `hub`?"
        );
    }

    #[test]
    fn types_read_as_words() {
        assert_eq!(
            in_words("invalid type: string \"big\", expected u16"),
            "invalid type: string \"big\", expected a whole number from 0 to 65535"
        );
        assert_eq!(in_words("expected a table"), "expected a table");
    }
}
