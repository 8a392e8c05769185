//! Output of commands. The reader may close it early (`hawser explain '' | head`): then the command
//! ends normally, undoes its changes in order, and reports no failure.
//!
//! A signal would end it more simply, but would leave its changes to the system in place.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};

use anyhow::Context;

/// Error of an output that the reader has closed.
#[derive(Debug, thiserror::Error)]
#[error("standard output was closed")]
pub struct NobodyReads;

/// Prints to standard output.
///
/// # Errors
/// [`NobodyReads`], or another error of writing (a full disk).
pub fn print(text: Arguments<'_>) -> anyhow::Result<()> {
    match io::stdout().write_fmt(text) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(NobodyReads.into()),
        result => result.context("cannot write to standard output"),
    }
}

/// Prints text unchanged, like [`print`].
#[macro_export]
macro_rules! show {
    ($($text:tt)*) => { $crate::print(format_args!($($text)*)) };
}

/// Prints a line, like [`print`].
#[macro_export]
macro_rules! say {
    ($($line:tt)*) => { $crate::print(format_args!("{}\n", format_args!($($line)*))) };
}
