//! Repetition of the papers' evaluations, and comparison of the results with the papers' claims.
//!
//! Claims are data (`claims/*.toml`), experiments are code that does not see them, and only the
//! runner combines both.

mod claims;
mod experiment;
mod quantity;
mod report;
mod runner;
mod verdict;

pub use claims::{Claim, ClaimsError, Expected, Paper, Setup, Source, UnknownSelection, papers, select};
pub use experiment::{Axis, Curve, Experiment, ExperimentError, Findings, Measured, Outcome, Plot};
pub use quantity::{Dimension, Quantity, Unit};
pub(crate) use report::number;
pub use report::{
    Bars, ClaimReport, OnRealPackets, ReproductionReport, SimulatorNote, SpreadReport, Standing, escape, page,
};
pub use runner::{
    MergedCurve, MergedPlot, Plan, Progress, Reproduced, Reproduction, Selected, outcome, run, timeline,
};
pub use verdict::{Evidence, Judgement, Verdict, judge};
