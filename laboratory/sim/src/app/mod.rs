//! Applications: bulk transfers in one or both directions, a streaming player's blocks, swarms,
//! datagrams at a constant rate, video, replayed captures, pings.

mod datagram;
mod duplex;
mod fetch;
mod meter;
mod ping;
mod sender;
mod swarm;
mod transfer;

pub use datagram::{Cbr, DatagramSink, Jitter, UDP_HEADER};
pub use duplex::TcpDuplex;
pub use fetch::{BlockClient, BlockServer, Blocks};
pub use meter::Meter;
pub use ping::{Echo, Pinger};
pub use swarm::{Leecher, Pieces, Seeds};
pub use transfer::{TcpSink, TcpSource};

pub(crate) use transfer::outgoing;
