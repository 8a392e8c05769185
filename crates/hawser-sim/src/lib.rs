//! Discrete events in virtual time around the machines of level 1: the same code as the daemon's, without a kernel.
#![forbid(unsafe_code)]

pub mod parallel;
pub mod recording;
pub mod reproduce;
pub mod sweep;
