//! What uses a network: bulk transfers, datagrams at a constant rate, pings.

mod datagram;
mod meter;
mod ping;
mod transfer;

pub use datagram::{Cbr, DatagramSink, Jitter};
pub use meter::Meter;
pub use ping::{Echo, Pinger};
pub use transfer::{TcpSink, TcpSource};

pub(crate) use transfer::outgoing;
