//! Every experiment there is.

use super::experiment::Experiment;
use crate::experiments::juggler;

/// All experiments, in the order of the papers. An experiment exists for the runner when it is listed here.
pub static EXPERIMENTS: &[&dyn Experiment] = &[
    &juggler::Switching,
    &juggler::Background,
    &juggler::Striping,
    &juggler::Video,
    &juggler::Swarm,
    &juggler::SideChannel,
];
