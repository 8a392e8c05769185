//! Parts shared by all daemons: directories, control sockets, and the state of the machine.
//!
//! Level 3 of the architecture, below the products: nothing here depends on tunnels, hubs or
//! sessions.
//!
//! | question | module |
//! |---|---|
//! | a daemon's lock, socket and journal | [`run_dir`] |
//! | requests of commands to a daemon, and its answers | [`control_socket`] |
//! | metrics, the dashboard | [`metrics`], [`dashboard`], over [`http`] |
//! | the page with which a LAN administers its gateway | [`administration`] |
//! | usage of a LAN's devices | [`lan_devices`] |
//! | signals, the log filter, how a client is run | [`signals`], [`logging`], [`options`] |
//! | TLS towards servers with certificates of public authorities | [`authorities`] |
//! | other programs that a daemon runs | [`program`] |
//! | services on the system's message bus | [`system_bus`] |
//! | addresses by DHCP | [`dhcp`] |
//! | resolvers of a network, and queries to them | [`dns`] |
//! | captive portals of networks, and notifications | [`portal`], `notification` |
//! | health checks of targets beyond a network | [`health`] |
//! | the translator of a network with IPv6 only | [`nat64`] |
//! | position, power, signal and cost of networks | [`sensors`] |
//! | present devices, for sections that belong to devices | [`devices`] |
//! | usage of networks, stored on the disk | [`usage`] |
//! | networks, links and clients' paths in the form that commands show | [`lines`] |
//! | their history over a day and a year, stored on the disk | [`history`] |
//! | interfaces between products | [`product_interfaces`] |
//! | watched values | [`watched`] |
//!
//! Networks, routes and rules are in `hawser-linux`. New readers start with [`control_socket`]
//! (requests to a daemon) and [`product_interfaces`] (interfaces between products).
#![forbid(unsafe_code)]

pub mod administration;
pub mod authorities;
pub mod control_socket;
pub mod dashboard;
pub mod database;
pub mod devices;
pub mod dhcp;
pub mod dns;
pub mod finding;
pub mod health;
pub mod history;
pub mod http;
pub mod http_client;
pub mod lan_devices;
mod legible;
pub mod lines;
pub mod logging;
pub mod metrics;
pub mod nat64;
pub mod notification;
pub mod options;
mod ownership;
pub mod portal;
pub mod portals;
#[cfg(test)]
mod private_bus;
pub mod product_interfaces;
pub mod program;
pub mod run_dir;
pub mod sensors;
pub mod signals;
pub mod system_bus;
pub mod usage;
pub mod watched;
