//! Sans-IO machines: flows, schedulers, paths, resequencer, session.
//!
//! This is a crate of level 1 (ARCHITECTURE.md): it uses no clock, socket, thread, runtime or
//! random numbers of the operating system. Every machine receives inputs by `handle_*(input, now)`
//! and returns outputs by `poll_*`.
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
