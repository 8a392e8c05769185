//! Many runs of one scenario with fields varied, on all cores and on many machines.
//!
//! A sweep is a TOML file: a base scenario, axes over any of its fields, and seeds. Its runs are
//! numbered; a shard takes every n-th. Each finished run is one line, with a checksum, at the end
//! of the shard's journal, so that a kill at any point costs at most the runs that were under way:
//! what is half written is found by its checksum and run again. Tables are made from journals only,
//! so an interrupted sweep and one that ran through give the same bytes.
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
