//! What every daemon needs of its machine: where it runs, who asks it, and what the machine has.
//!
//! Level 3 of the house, below the products: nothing here knows a tunnel, a hub or a session.
//!
//! | question | module |
//! |---|---|
//! | where a daemon's lock, socket and journal are | [`run_dir`] |
//! | what a daemon is asked by commands, and answers | [`control_socket`] |
//! | figures for others, the dashboard | [`metrics`], [`dashboard`], over [`http`] |
//! | signals, the log filter, how a client is run | [`signals`], [`logging`], [`options`] |
//! | TLS towards servers for whom somebody vouches | [`authorities`] |
//! | programs of others that a daemon runs | [`program`] |
//! | services on the system's message bus | [`system_bus`] |
//! | addresses by DHCP | [`dhcp`] |
//! | which resolvers a network has, and questions to them | [`dns`] |
//! | whether a captive portal stands before a network, who is told | [`portal`], `notification` |
//! | whether targets beyond a network answer | [`health`] |
//! | position, power, signal and cost of networks | [`sensors`] |
//! | what networks have carried, kept on the disk | [`usage`] |
//! | networks, links and clients' paths alike, as commands show them | [`lines`] |
//! | how they were over a day and a year, kept on the disk | [`history`] |
//! | what products ask of each other | [`beside`] |
//! | values that others watch | [`watched`] |
//!
//! The networks themselves, routes and rules are `hawser-linux`'s. A newcomer starts with
//! [`control_socket`] (what a daemon can be asked) and [`beside`] (how products meet).
#![forbid(unsafe_code)]

pub mod authorities;
pub mod beside;
pub mod control_socket;
pub mod dashboard;
pub mod database;
pub mod dhcp;
pub mod dns;
pub mod finding;
pub mod health;
pub mod history;
pub mod http;
pub mod http_client;
pub mod lines;
pub mod logging;
pub mod metrics;
pub mod notification;
pub mod options;
mod ownership;
pub mod portal;
pub mod portals;
#[cfg(test)]
mod private_bus;
pub mod program;
pub mod run_dir;
pub mod sensors;
pub mod signals;
pub mod system_bus;
pub mod usage;
pub mod watched;
