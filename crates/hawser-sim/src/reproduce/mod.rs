//! The papers' evaluations, run again: what they claim, what is measured, and whether the one fits the other.
//!
//! Claims are data (`claims/*.toml`), experiments are code that does not see them, and only the runner brings both together.

mod experiment;
mod quantity;
mod registry;

pub use experiment::{Axis, Curve, Experiment, ExperimentError, Findings, Measured, Outcome, Plot};
pub use quantity::{Dimension, Quantity, Unit};
pub use registry::EXPERIMENTS;
