//! Size of a packet on a link.

/// Overhead of an Ethernet frame without its check sequence over an IP packet (RFC 894); rates
/// include it, as those of HTB and netem do. Units: bytes.
pub const FRAME_OVERHEAD: u64 = 14;

/// Frame of an IP packet of 1500 bytes (RFC 894).
pub(crate) const FULL_FRAME: u64 = 1500 + FRAME_OVERHEAD;
