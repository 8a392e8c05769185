//! The daemon: event loops that join the machines to the kernel, configuration, control channel, metrics.

pub mod dataplane;
