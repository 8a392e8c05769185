//! The kernel side of Hawser: all `unsafe` code lives in this crate.

pub mod bpf;
pub mod clock;
pub mod conntrack;
pub mod conversion;
pub mod direct;
pub mod echo;
pub mod journal;
pub mod mptcp;
pub mod netlink;
mod netlink_bytes;
pub mod netns;
mod offload;
pub mod process;
pub mod shutdown;
pub mod switch;
pub mod system;
pub mod tap;
pub mod tun;
pub mod udp;
pub mod wait;
pub mod wireless;
