//! The sans-IO machines: flows, schedulers, paths, resequencer, session.
//!
//! Level 1 of the house: no clock, socket, thread, runtime or OS randomness. Every machine is
//! driven by `handle_*(input, now)` and drained by `poll_*`.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod client_filter;
pub mod discovery;
pub mod egress;
pub mod fec;
pub mod flow;
pub mod ingress;
pub mod limit;
pub mod path;
pub mod pool;
pub mod replay;
pub mod resequencer;
pub mod scheduler;
pub mod session;
mod smoothed;
pub mod stream;
pub mod tunnel;
