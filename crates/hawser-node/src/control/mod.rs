//! The control channel: QUIC between client and hub, mutually authenticated by pinned keys.

pub mod client;
pub mod hub;
pub mod peer;
pub mod quic_socket;
pub mod stream;
pub mod tls;
