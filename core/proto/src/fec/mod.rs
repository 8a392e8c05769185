//! Forward error correction: lost packets of realtime flows come back without being sent again.
//!
//! Where the path of a realtime flow loses and a resend would come too late, the sender lets parity
//! packets follow each group of the flow's packets. A group holds what the flow sends within
//! [`SPAN`], so that what is rebuilt is late by no more; of a slow flow that is one packet, and its
//! parity a copy that follows a little later. How many parity packets a group gets follows from the
//! measured loss ([`parity_for`]): as few as keep what stays lost below [`TOLERATED`]. Where
//! nothing is lost, nothing is sent.
//!
//! ```text
//!   sender:    packets of a flow --> [ Encoder: a group each 20 ms ] --> parity packets, on another path if there is one
//!   receiver:  packets, parity   --> [ Decoder: the newest 64 places of flows with parity ] --> rebuilt packets
//! ```
//!
//! It fails soft: a receiver that has too little rebuilds nothing, and what comes twice is
//! delivered once.
//!
//! Scope: losses by chance. Limitations: losses that come in bursts longer than a group's parity
//! stay lost; a packet that fills its path's largest size has no room for its symbol's header in a
//! parity packet and is not covered.
//!
//! Source: RFC 8627 and RFC 5109 for media with parity beside it; RFC 5510 section 8 for
//! Reed-Solomon codes as ideal erasure codes.

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
pub const TOLERATED: f64 = 0.0005;
/// What a group's parity leaves lost at most, as far as the loss is known: less than one in a
/// thousand (docs/notebook/live.md).
const RESIDUAL: f64 = 0.0008;
/// A group holds what a flow sends within this time: media wait for their jitter buffer's 40 to 60
/// ms, and of one packet in a hundred the delay may grow by 15 ms (docs/notebook/live.md).
pub const SPAN: Duration = Duration::from_millis(20);

/// How many parity packets a group of `covered` packets needs on a path that loses a share `loss`:
/// the fewest for which no more than eight packets in ten thousand stay lost, or as many as a group
/// may have; none where the path loses no more than [`TOLERATED`].
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
