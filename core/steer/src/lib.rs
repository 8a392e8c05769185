//! What decides without a tunnel: which network a flow should use, and what follows from that.
//!
//! Level 1 of the house: no clock, socket, thread, runtime or OS randomness. Every machine is
//! driven by `handle_*(input, now)` and drained by `poll_*`. Nothing here knows sessions, paths or
//! packets of the tunnel (`hawser-proto` does): direct mode has none, and a client uses the same
//! machines beside its tunnel.
//!
//! | question | module |
//! |---|---|
//! | which network a flow should use, by rules over conditions | [`policy`] |
//! | which networks take new flows, and which live flows move to others | [`assignment`] |
//! | whether a destination is reached sooner through the hub or past it | [`destinations`] |
//! | what a network has carried this month, and what its quota says | [`quota`] |
//! | which network is asked for a name, and which rule an address belongs to | [`names`] |
//! | whether a network leads anywhere | [`reachability`] (gateways), [`portal`] (captive portals) |
//! | whether targets beyond its gateway answer | [`health`] |
//! | which addresses the kernel's MPTCP may use | [`endpoints`] |
//! | what happens to the packets of a flow | [`flow_table`] |
//! | how a live flow moves to another network | [`migration`] |
//! | how many flows are spread over networks | [`stitch`] |
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
pub mod policy;
pub mod portal;
pub mod quota;
pub mod reachability;
pub mod stitch;
