//! The control channel: QUIC between client and hub, mutually authenticated by pinned keys.

pub(crate) mod admission;
pub(crate) mod budget;
pub mod client;
pub mod hub;
pub mod peer;
pub mod quic_socket;
pub mod stream;
pub mod tls;
