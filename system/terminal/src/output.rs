//! What commands print. Whoever reads it may have had enough (`hawser explain '' | head`): then the
//! command ends by itself, its work undone in order, and nothing has failed.
//!
//! A signal would end it more simply, and leave behind what it has made in the system.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};

use anyhow::Context;

/// Nobody reads what the command prints.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads standard output any more")]
pub struct NobodyReads;

/// Prints to standard output.
///
/// # Errors
/// [`NobodyReads`], or what else keeps it from being written (a full disk).
pub fn print(text: Arguments<'_>) -> anyhow::Result<()> {
    match io::stdout().write_fmt(text) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(NobodyReads.into()),
        result => result.context("cannot write to standard output"),
    }
}

/// Prints text as it is, as [`print`] does.
#[macro_export]
macro_rules! show {
    ($($text:tt)*) => { $crate::print(format_args!($($text)*)) };
}

/// Prints a line, as [`print`] does.
#[macro_export]
macro_rules! say {
    ($($line:tt)*) => { $crate::print(format_args!("{}\n", format_args!($($line)*))) };
}
