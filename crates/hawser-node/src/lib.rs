//! The daemon: event loops that join the machines to the kernel, configuration, control channel,
//! metrics.
#![forbid(unsafe_code)]

pub mod atomic_file;
pub mod client;
pub mod config;
pub mod control;
pub mod control_socket;
pub mod dashboard;
pub mod dhcp;
pub mod direct;
pub mod enrolment;
mod handover;
mod http;
pub mod hub;
pub mod identity;
pub mod idle_clients;
pub mod invitation;
pub mod logging;
pub mod metrics;
pub mod neighbours;
mod over_tls;
pub mod peers;
#[cfg(test)]
mod private_bus;
mod program;
pub mod radio;
mod relays;
pub mod repeater;
pub mod run_dir;
mod system_bus;
pub mod usage;
mod waypoint;
