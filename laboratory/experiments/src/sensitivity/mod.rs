//! Effect of each constant of the data path: every constant is varied by a factor of two in both
//! directions, over suites of scenarios.
//!
//! The product's constants remain plain `const`, at no cost. The varied program is a copy of the
//! sources in which a function replaces each constant; the function applies the factor if this
//! process varies its constant ([`source`]). So one build serves all constants, installed programs
//! are unaffected, and new or renamed constants need no change here: the list is the table of
//! `docs/design/constants.md`, which a test compares with the sources.
//!
//! ```text
//!   docs/design/constants.md -> [ constants ] --+
//!   sources -> [ copy, constants as functions ] -> build -> a process for each constant and way
//!                                                              | sweep: journal, resumed after a kill
//!                                                              v
//!                                                        [ suites ] -> table of changes
//! ```

pub mod source;
mod table;

pub use table::{Changes, Suite, Varied};
