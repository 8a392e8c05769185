//! The experiments of the papers, on the simulator.
//!
//! Each module holds what its paper states of a set-up, and says what it does not state and how that was filled in.

pub mod juggler;
