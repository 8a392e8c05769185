//! Byte formats: tunnel headers, inner IP packets, control messages.
//!
//! All functions are pure functions of bytes. Untrusted input results in `None` or an error, never
//! in a panic.
#![forbid(unsafe_code)]

pub mod air;
pub mod airtime;
pub mod bundle;
pub mod compression;
pub mod control;
pub mod data;
pub mod deadline;
pub mod fragment;
pub mod frame;
mod framing;
pub mod gre;
pub mod icmp;
pub mod inner;
pub mod key_expiry;
pub mod layer;
mod limit;
pub mod link_hello;
pub mod nat64;
pub mod offload;
pub mod opening;
mod other_hub;
pub mod pairs;
pub mod parity;
pub mod peer;
pub mod pool;
pub mod preference;
pub mod readdress;
mod reasons;
pub mod receipt;
pub mod stream;
pub mod upper_layer;
