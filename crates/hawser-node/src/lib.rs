//! The daemon: event loops that join the machines to the kernel, configuration, control channel, metrics.

pub mod atomic_file;
pub mod config;
pub mod control;
pub mod dataplane;
pub mod enrolment;
pub mod identity;
pub mod invitation;
