//! Every experiment there is.

use super::experiment::Experiment;

/// All experiments, in the order of the papers. An experiment exists for the runner when it is listed here.
pub static EXPERIMENTS: &[&dyn Experiment] = &[];
