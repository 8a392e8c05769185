//! The papers' evaluations, run again: what they claim, what is measured, and whether the one fits
//! the other.
//!
//! Claims are data (`claims/*.toml`), experiments are code that does not see them, and only the
//! runner brings both together.

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
    Bars, ClaimReport, OnRealPackets, PageError, ReproductionReport, SpreadReport, Standing, escape, page,
    with_real_packets,
};
pub use runner::{
    JoinedCurve, JoinedPlot, Plan, Progress, Reproduced, Reproduction, Selected, run, timeline,
};
pub use verdict::{Evidence, Judgement, Verdict, judge};
