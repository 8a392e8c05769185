//! The kernel side of Hawser: all `unsafe` code lives in this crate.

pub mod tun;
pub mod udp;
pub mod wait;
