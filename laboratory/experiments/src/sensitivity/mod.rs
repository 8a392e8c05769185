//! How much each constant of the data path matters: every one is varied by two both ways, over
//! suites of scenarios.
//!
//! The constants stay what they are in the product: plain `const`, at no cost. What is varied is a
//! copy of the sources, in which each of them is a function that looks whether it is the one of
//! this process ([`source`]). So one build serves all of them, nothing of it is in what people
//! install, and a constant that is new or renamed is varied without a word here: the list is the
//! table of `docs/design/constants.md`, which a test holds against the sources.
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
