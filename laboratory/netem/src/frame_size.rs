//! What a packet takes up on a link.

/// What an Ethernet frame without its check sequence adds to an IP packet; rates count it, as HTB
/// and netem do.
///
/// Units: bytes.
pub const FRAME_OVERHEAD: u64 = 14;

/// The frame of an IP packet of 1500 bytes.
pub(crate) const FULL_FRAME: u64 = 1500 + FRAME_OVERHEAD;
