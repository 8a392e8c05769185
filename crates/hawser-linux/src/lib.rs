//! The kernel side of Hawser: all `unsafe` code lives in this crate.

pub mod tun;
pub mod udp;
pub mod wait;
pub mod clock;
pub mod lab_link;
pub mod netns;
pub mod shutdown;
