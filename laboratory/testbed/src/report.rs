//! Results of a run, as JSON and as text: the same as the simulator's.

pub use hawser_netem::report::*;
