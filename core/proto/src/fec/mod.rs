//! Forward error correction: the receiver rebuilds lost packets of real-time flows without a
//! retransmission.
//!
//! If the path of a real-time flow loses packets and a retransmission would be too late, the sender
//! sends parity packets after each group of the flow's packets. A group contains the packets of one
//! [`SPAN`], so a rebuilt packet is late by at most this time. A group of a slow flow is one
//! packet, and its parity is a copy that follows later. The measured loss determines the number of
//! parity packets ([`parity_for`]): as few as keep the remaining loss below [`TOLERATED`]. Without
//! loss there is no parity.
//!
//! ```text
//!   sender:    packets of a flow --> [ Encoder: a group each 20 ms ] --> parity packets, on another path if there is one
//!   receiver:  packets, parity   --> [ Decoder: the newest 64 places of flows with parity ] --> rebuilt packets
//! ```
//!
//! Failure: a receiver with too few packets of a group rebuilds nothing. Packets that arrive twice
//! are delivered once.
//!
//! Scope: random losses. Limitations: bursts of losses that exceed a group's parity are not
//! repaired. A packet of its path's maximum size is not covered, because a parity packet has no
//! room for the header of its symbol.
//!
//! Source: RFC 8627 and RFC 5109 for media with parity; RFC 5510 section 8 for Reed-Solomon codes
//! as ideal erasure codes.

mod code;
mod decoder;
mod encoder;
#[cfg(test)]
mod tests;

use hawser_units::Duration;
use hawser_wire::parity::{MAX_COVERED, MAX_PARITY};

pub use decoder::{Decoder, Rebuilt};
pub use encoder::{Cover, Encoder, Outgoing};

/// Losses that realtime media conceal without a trace: a path that loses no more gets no parity.
/// Source: half of the loss of 0.1 % that docs/notebook/live.md permits.
pub const TOLERATED: f64 = 0.0005;
/// Maximum residual loss of a protected group, as far as the loss is known: less than one in a
/// thousand (docs/notebook/live.md).
const RESIDUAL: f64 = 0.0008;
/// A group holds what a flow sends within this time: media wait for their jitter buffer's 40 to 60
/// ms, and of one packet in a hundred the delay may grow by 15 ms (docs/notebook/live.md).
pub const SPAN: Duration = Duration::from_millis(20);

/// Returns how many parity packets a group of `covered` packets needs on a path that loses a share
/// `loss`: the minimum for which at most eight packets in ten thousand stay lost, bounded by the
/// maximum of a group; none where the path loses no more than [`TOLERATED`].
///
/// A packet stays lost when it is lost, and with it as many of the group's other packets, parity
/// included, as there are parity packets. Losses are taken for independent.
#[must_use]
pub fn parity_for(covered: u8, loss: f64) -> u8 {
    if covered == 0 || loss.is_nan() || loss <= TOLERATED {
        return 0;
    }
    let most = MAX_PARITY.min(covered.saturating_add(2));
    let mut fewest = 1..most;
    fewest
        .find(|parity| residual(covered, *parity, loss) <= RESIDUAL)
        .unwrap_or(most)
}

/// The share of packets that stay lost.
fn residual(covered: u8, parity: u8, loss: f64) -> f64 {
    let others = u32::from(covered.min(MAX_COVERED)) + u32::from(parity) - 1;
    // The binomial distribution's first terms, each from the one before.
    let mut term = (1.0 - loss).powi(others.cast_signed());
    let mut below = 0.0;
    for lost in 0..u32::from(parity) {
        below += term;
        term *= f64::from(others - lost) / f64::from(lost + 1) * loss / (1.0 - loss);
    }
    loss * (1.0 - below).clamp(0.0, 1.0)
}
