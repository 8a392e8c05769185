//! What a command prints, what it says of failures, and how it ends: the same in `hawser` and
//! `hawser-lab`.
//!
//! Exit codes: 0 done (or nobody reads on), 1 failed while running, 2 usage, 64 bad configuration
//! (said before anything is touched).
#![forbid(unsafe_code)]

mod checked;
mod output;
mod refusal;
mod table;

pub use checked::checked;
pub use output::{NobodyReads, print};
pub use refusal::{BAD_CONFIGURATION, complain, end, refuse, unknown};
pub use table::columns;
