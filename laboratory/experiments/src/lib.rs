//! Measurements with the simulator: published evaluations, comparisons of algorithms, and sweeps
//! over scenarios.
//!
//! - [`papers`] builds the experiments of five papers, and [`reproduce`] compares their results
//!   with the papers' claims (`claims/*.toml`).
//! - [`compare`] compares published algorithms under conditions outside the papers.
//! - [`sweep`] runs variants of one scenario, on all cores or on many machines.
//! - [`sensitivity`] varies the constants of the data path, one at a time, over suites of sweeps.
//! - [`worlds`] draws scenarios from seeds and checks properties that must hold in all of them.
//! - [`replay`] turns a recording into a scenario, to predict the effect of another network or
//!   policy.
//!
//! The simulator is `hawser-sim`, which does not depend on this crate.
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
