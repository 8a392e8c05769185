//! Senders of datagrams that do not react to the network, such as a video or a replayed capture.

use hawser_units::Instant;

/// A datagram to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Number of the datagram, from 0.
    pub number: u64,
    /// UDP payload. Units: bytes.
    pub bytes: u32,
    /// Layer of the datagram; `None` for a datagram without a mark.
    pub layer: Option<u8>,
}

/// Machine that sends numbered datagrams at fixed times, without feedback.
pub trait Sender {
    /// Returns the next datagram that is due.
    fn poll_transmit(&mut self, now: Instant) -> Option<Part>;

    /// Returns when the next datagram is due; `None` after the last one.
    fn poll_timeout(&self) -> Option<Instant>;
}
