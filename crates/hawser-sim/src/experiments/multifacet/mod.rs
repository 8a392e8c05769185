//! Multifacet: an access point and its repeater joined by two radios, one of them on the client's channel.
//!
//! # Scope
//! Constants and channel migration, with the machines of [`hawser_radio::multifacet`].

mod searching;

pub use searching::{Constants, Searching};
