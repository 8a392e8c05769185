//! What is measured with the simulator: published evaluations, ideas against each other, and sweeps
//! over scenarios.
//!
//! - [`papers`] builds the experiments of five papers, and [`reproduce`] holds what they find
//!   against what the papers claim (`claims/*.toml`).
//! - [`compare`] lets published ideas compete under conditions that no paper was written for.
//! - [`sweep`] runs one scenario with fields varied, on all cores or on many machines.
//! - [`sensitivity`] varies the constants of the data path, one at a time, over suites of sweeps.
//! - [`worlds`] draws scenarios from seeds and judges properties that must hold in all of them.
//! - [`replay`] makes a scenario of a recording: what another network or policy would have brought.
//!
//! The simulator itself is `hawser-sim`, which knows none of these.
#![forbid(unsafe_code)]

pub mod compare;
pub mod papers;
pub mod parallel;
pub mod registry;
pub mod replay;
pub mod reproduce;
pub mod sensitivity;
pub mod sweep;
pub mod worlds;
