//! Multifacet: an access point and its repeater joined by two radios, one of them on the client's channel.
//!
//! # Scope
//! Constants, channel migration, and the shared channel by packets, with the machines of [`hawser_radio::multifacet`].

mod airtime;
mod searching;
mod striping;

pub use airtime::{Placements, Reaction, SeveralClients};
pub use searching::{Constants, Searching};
pub use striping::Interfered;
