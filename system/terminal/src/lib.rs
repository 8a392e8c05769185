//! Output of commands, their error messages, and their exit codes: the same in `hawser` and
//! `hawser-lab`.
//!
//! Exit codes: 0 done (or output closed), 1 failed while running, 2 usage, 64 bad configuration
//! (reported before anything is changed).
#![forbid(unsafe_code)]

mod checked;
mod output;
mod refusal;
mod table;

pub use checked::checked;
pub use output::{NobodyReads, print};
pub use refusal::{BAD_CONFIGURATION, complain, end, refuse, unknown};
pub use table::columns;
