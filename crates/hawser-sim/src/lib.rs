//! Discrete events in virtual time around the machines of level 1: the same code as the daemon's, without a kernel.
#![forbid(unsafe_code)]

pub mod engine;
pub mod network;
pub mod packet;
mod router;
mod streams;

pub use network::{Context, LinkId, Network, Node, NodeId};
pub use packet::{Address, FlowId, Packet};
pub use router::Router;
pub use streams::Streams;
