//! Errors of changes to the system.

use std::io;

use thiserror::Error;

use crate::wireless::cards::WirelessError;

/// Reason why the system cannot be changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SystemError {
    /// The journal cannot be written, so nothing was changed.
    #[error("cannot record a change in {path}")]
    Journal {
        /// The journal.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// No netlink socket is available.
    #[error("cannot open a netlink socket")]
    Socket(#[from] io::Error),
    /// The kernel refuses.
    #[error("cannot {what}")]
    Netlink {
        /// Attempted action.
        what: String,
        /// Why.
        source: rtnetlink::Error,
    },
    /// The interface does not exist.
    #[error("there is no interface {0}")]
    NoInterface(String),
    /// A kernel setting cannot be read or written.
    #[error("cannot set {key}")]
    Sysctl {
        /// Path below `/proc/sys`.
        key: String,
        /// Why.
        source: io::Error,
    },
    /// The path manager of MPTCP refuses.
    #[error("the path manager of MPTCP rejects the change")]
    Multipath(#[source] io::Error),
    /// Name of an object that exists and was not created by Hawser.
    #[error(
        "{0} is not Hawser's and is not changed (use another name for the interface, or remove it by hand)"
    )]
    NotOurs(String),
    /// A Wi-Fi card refuses.
    #[error(transparent)]
    Wireless(WirelessError),
    /// A program is missing or fails.
    #[error("{program} failed: {message}")]
    Program {
        /// Name of the program.
        program: &'static str,
        /// Message of the program.
        message: String,
    },
}

/// Returns an error in one line, with the causes that it names as its sources.
#[must_use]
pub fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}
