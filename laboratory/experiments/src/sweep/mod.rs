//! Many runs of one scenario with varied fields, on all cores and on many machines.
//!
//! A sweep is a TOML file: a base scenario, axes over any of its fields, and seeds. Its runs are
//! numbered; shard i of n runs every n-th. Each finished run appends one line with a checksum to
//! the shard's journal, so that a kill loses only the unfinished runs: an incomplete line is
//! detected by its checksum, and its run repeated. Tables are made from journals only, so an
//! interrupted sweep and an uninterrupted one give identical files.
//!
//! ```text
//!   sweep.toml -> [ plan: runs 0..n ] -> shard -> workers -> [ journal, append only ] -> results.csv, results.parquet
//!                                          ^                     |
//!                                          +---- what is there --+        journals of all shards -> merge
//! ```

mod engine;
mod journal;
mod pauses;
mod plan;
mod plot;
mod row;
mod simulated;
mod table;
mod versus;

pub use engine::{Progress, Summary, merge, run};
pub use pauses::Pauses;
pub use plan::{Shard, Sweep, SweepError};
pub use plot::plot;
pub use row::{Cell, Row};
pub use simulated::simulated;
pub use table::{Kind, Table};
pub use versus::Versus;

#[cfg(test)]
mod tests;
