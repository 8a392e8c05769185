//! The sans-IO machines: flows, schedulers, paths, resequencer, session.
//!
//! Level 1 of the house: no clock, socket, thread, runtime or OS randomness. Every machine is
//! driven by `handle_*(input, now)` and drained by `poll_*`.
#![forbid(unsafe_code)]

pub mod assignment;
pub mod checkpoint;
pub mod discovery;
pub mod egress;
pub mod endpoints;
pub mod fec;
pub mod flow;
pub mod flow_table;
pub mod ingress;
pub mod migration;
pub mod names;
pub mod path;
pub mod policy;
pub mod pool;
pub mod portal;
pub mod quota;
pub mod reachability;
pub mod replay;
pub mod resequencer;
pub mod scheduler;
pub mod session;
mod smoothed;
pub mod stitch;
pub mod tunnel;
