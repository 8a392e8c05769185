//! Decisions without a tunnel: which network a flow should use, and its consequences.
//!
//! Level 1 of the architecture: no clock, socket, thread, runtime or OS randomness. Every machine
//! is driven by `handle_*(input, now)` and drained by `poll_*`. This crate does not know sessions,
//! paths or packets of the tunnel (`hawser-proto` does): direct mode has none of them, and a client
//! runs the same machines in addition to its tunnel.
//!
//! | question | module |
//! |---|---|
//! | which network a flow should use, by rules over conditions | [`policy`] |
//! | which networks take new flows, and which live flows move to others | [`assignment`] |
//! | which route to a destination is the fastest: through the hub or directly | [`destinations`] |
//! | how much of its quota a network has used this month | [`quota`] |
//! | whether a modem is in another operator's network | [`roaming`] |
//! | which resolver is asked for a name, and which rule an address belongs to | [`names`] |
//! | whether a network gives access | [`reachability`] (gateways), [`portal`] (captive portals) |
//! | whether targets beyond its gateway answer | [`health`] |
//! | whether a network with IPv6 only translates IPv4 | [`nat64`] |
//! | which addresses the kernel's MPTCP may use | [`endpoints`] |
//! | which action applies to the packets of a flow | [`flow_table`] |
//! | how a live flow moves to another network | [`migration`] |
//! | how the flows are distributed over networks | [`stitch`] |
//! | how often a password may be tried, and which sessions of a page exist | [`sign_in`] |
//!
//! `hawser-direct` drives these machines on a real machine, `hawser-sim` and `hawser-experiments`
//! on virtual time. A newcomer starts with [`policy`].
#![forbid(unsafe_code)]

pub mod assignment;
pub mod destinations;
pub mod endpoints;
pub mod flow_table;
pub mod health;
pub mod migration;
pub mod names;
pub mod nat64;
pub mod policy;
pub mod portal;
pub mod quota;
pub mod reachability;
pub mod roaming;
pub mod sign_in;
pub mod stitch;
