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
