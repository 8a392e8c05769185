//! Time, rates, sizes and identifiers shared by every Hawser crate.
//!
//! Level 0 of the architecture: no dependencies and no clock. The caller provides each [`Instant`],
//! so the same code runs with the daemon's and the lab's monotonic clock, and with the simulator's
//! virtual one.
#![forbid(unsafe_code)]

mod net;
mod private;
mod random;
mod rate;
mod service;
pub mod text;
mod time;

pub use core::time::Duration;
pub use net::Net;
pub use private::{PRIVATE4, PRIVATE6, is_private};
pub use random::{Random, split_mix};
pub use rate::{MeasuredRate, PredictedRate, Rate};
pub use service::Service;
pub use time::Instant;

/// A number of bytes.
///
/// Units: what is counted (payload, IP packet, Ethernet frame) is said where a value is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// Bytes of inner IP packets: what applications send, without the tunnel's framing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InnerBytes(pub u64);

/// Bytes of UDP payload: inner packets with the tunnel's framing. What rates and windows of a path
/// count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UdpBytes(pub u64);

impl InnerBytes {
    /// The same number of bytes of UDP payload, framing left out.
    ///
    /// Where times over several paths are compared, the framing of 40 bytes lengthens all of them
    /// alike: by 3 % of a full packet.
    #[must_use]
    pub const fn unframed(self) -> UdpBytes {
        UdpBytes(self.0)
    }
}

impl UdpBytes {
    /// Returns the bytes that remain for inner packets when each packet of `packet` bytes of UDP
    /// payload has `framing` bytes of framing.
    #[must_use]
    pub const fn inner(self, packet: Self, framing: u64) -> InnerBytes {
        InnerBytes(self.0 - self.0 / packet.0 * framing)
    }
}

/// Identifies a network of a machine; the driver of the machine chooses the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkId(pub u32);

/// Id of one network of a session. Never reused within a key epoch, because nonces are built from
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub u16);

/// The position of a packet in its flow: wraps at 2^32 and compares by serial number arithmetic.
///
/// Source: RFC 1982 (serial number arithmetic), `SERIAL_BITS` = 32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sequence(pub u32);

impl Sequence {
    /// The sequence number `n` positions later.
    #[must_use]
    #[expect(
        clippy::should_implement_trait,
        reason = "serial numbers are not a group: only a count can be added"
    )]
    pub fn add(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }

    /// Returns the signed distance from `earlier` to `self`; negative if `self` is before it.
    #[must_use]
    pub fn distance_from(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0).cast_signed()
    }

    /// Returns whether `self` is before `other`.
    #[must_use]
    pub fn is_before(self, other: Self) -> bool {
        self.distance_from(other) < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_compares_across_the_wrap() {
        let last = Sequence(u32::MAX);
        assert!(last.is_before(last.add(1)));
        assert_eq!(last.add(3).distance_from(last), 3);
        assert!(!Sequence(5).is_before(Sequence(5)));
    }
}
