//! Secrets that a person passes to a command: invitations, URLs with passwords.
//!
//! On the command line, every user of the machine can read them while the command is running, and
//! the shell stores them in its history. So they are read from a terminal, standard input or a
//! file. On the command line they are accepted with a warning.

use std::convert::Infallible;
use std::io::{BufRead, IsTerminal, Read};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context;
use hawser_config::invitation::Invitation;
use hawser_terminal::complain;

/// Source of a secret, as a command line names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Secret {
    /// Text on the command line itself.
    Written(String),
    /// `-`: standard input; on a terminal, with a prompt.
    Input,
    /// `@FILE`: a file.
    File(PathBuf),
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(word: &str) -> Result<Self, Infallible> {
        Ok(match word.strip_prefix('@') {
            _ if word == "-" => Self::Input,
            Some(file) => Self::File(file.into()),
            None => Self::Written(word.to_owned()),
        })
    }
}

impl Secret {
    /// Reads the secret; `what` is its name in the prompt of a terminal.
    ///
    /// # Errors
    /// The file or standard input cannot be read.
    pub(crate) fn read(&self, what: &str) -> anyhow::Result<String> {
        let text = match self {
            Self::Written(text) => text.clone(),
            Self::Input if std::io::stdin().is_terminal() => ask(what)?,
            Self::Input => {
                let mut text = String::new();
                std::io::stdin().take(LONGEST).read_to_string(&mut text)?;
                text
            }
            Self::File(path) => {
                let shown = path.display();
                let file =
                    std::fs::File::open(path).with_context(|| format!("cannot read {what} in {shown}"))?;
                let mut text = String::new();
                file.take(LONGEST)
                    .read_to_string(&mut text)
                    .with_context(|| format!("cannot read {what} in {shown}"))?;
                text
            }
        };
        Ok(text.trim().to_owned())
    }

    /// Warns when the secret was written on the command line.
    pub(crate) fn warn_if_written(&self, what: &str) {
        if matches!(self, Self::Written(_)) {
            complain(format_args!(
                "warning: {what} on the command line can be read by all users of this machine and stays in the \
                 shell's history: use - to enter it, or @FILE"
            ));
        }
    }
}

/// Reads an invitation from the source `given`, or from a terminal if there is none.
///
/// # Errors
/// It cannot be read, or is invalid.
pub(crate) fn invitation(given: Option<&Secret>) -> anyhow::Result<Invitation> {
    let given = given.unwrap_or(&Secret::Input);
    let invitation = given.read("the invitation")?.parse()?;
    given.warn_if_written("an invitation");
    Ok(invitation)
}

/// Asks a person at the terminal for a line.
///
/// # Errors
/// The terminal cannot be read.
pub(crate) fn ask(what: &str) -> anyhow::Result<String> {
    eprint!("{what}: ");
    let mut line = String::new();
    std::io::stdin().lock().take(LONGEST).read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

/// Longest secret: an invitation with three hubs has about 300 characters, a URL of a database with
/// several servers fewer than 1,000. Units: bytes. Source: our choice, a bound on what is read from
/// a pipe.
const LONGEST: u64 = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_names_a_secret_or_where_it_is() {
        let read = |word: &str| word.parse::<Secret>().expect("every word is one");
        assert_eq!(read("-"), Secret::Input);
        assert_eq!(read("@/run/invitation"), Secret::File("/run/invitation".into()));
        assert_eq!(read("hawser://x"), Secret::Written("hawser://x".to_owned()));
    }

    #[test]
    fn reads_a_secret_from_a_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("url");
        std::fs::write(&path, "postgresql://a:b@localhost/h\n").expect("a file");
        let secret = Secret::File(path);
        assert_eq!(
            secret.read("the URL").expect("it is there"),
            "postgresql://a:b@localhost/h"
        );
        let missing = Secret::File(directory.path().join("nothing"));
        let error = format!("{:#}", missing.read("the URL").expect_err("it is not there"));
        assert!(
            error.contains("the URL in ") && error.contains("nothing"),
            "{error}"
        );
    }
}
