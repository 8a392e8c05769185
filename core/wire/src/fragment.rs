//! Body of a fragment: a piece of an inner packet that exceeds the packet size of every path.
//!
//! ```text
//!   | offset (16) | length of the whole packet (16) | bytes of the packet from the offset on ...
//! ```
//!
//! The inner header ([`crate::data::Inner`]) identifies the packet: flow, order, sequence number
//! and flags are those of the packet. Each fragment has its own packet number on its path, so a
//! lost fragment is reported and retransmitted like any packet, if necessary in smaller pieces.
//!
//! Source: RFC 8200 section 4.5 for offset and length. Deviates: offsets are in bytes, and every
//! fragment contains the length of the whole packet, so that the receiver can allocate the buffer
//! at the first fragment that arrives.

/// Size of the fragment header. Source: the layout above. Units: bytes.
pub const FRAGMENT_LEN: usize = 4;
/// Maximum size of an inner packet that is fragmented: a jumbo frame with its headers. Units:
/// bytes. Source: our choice, the MTU of common switches' jumbo frames; at the smallest path these
/// are 37 of the 64 pieces that the record of a transmission can note (`MIN_PIECE` of
/// `core/proto/src/egress/splitting.rs`).
pub const MAX_SPLIT: usize = 9_216;

/// Header of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Offset of the piece in the packet. Units: bytes.
    pub offset: u16,
    /// Size of the whole packet, at most [`MAX_SPLIT`]. Units: bytes.
    pub total: u16,
}

impl Fragment {
    /// Parses the body of a fragment; `None` if the piece is empty or exceeds its packet, or if the
    /// packet is too long.
    #[must_use]
    pub fn parse(body: &[u8]) -> Option<(Self, &[u8])> {
        let (&[o0, o1, t0, t1], piece) = body.split_first_chunk::<FRAGMENT_LEN>()?;
        let fragment = Self {
            offset: u16::from_be_bytes([o0, o1]),
            total: u16::from_be_bytes([t0, t1]),
        };
        let total = usize::from(fragment.total);
        let is_within = usize::from(fragment.offset) + piece.len() <= total;
        (is_within && !piece.is_empty() && total <= MAX_SPLIT).then_some((fragment, piece))
    }

    /// Writes the fragment header.
    pub fn emit(&self, out: &mut [u8; FRAGMENT_LEN]) {
        out[..2].copy_from_slice(&self.offset.to_be_bytes());
        out[2..].copy_from_slice(&self.total.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_have_their_places() {
        assert_eq!(
            Fragment::parse(&[1, 2, 3, 4, 9, 8]),
            Some((
                Fragment {
                    offset: 0x0102,
                    total: 0x0304
                },
                &[9, 8][..]
            ))
        );
    }

    #[test]
    fn a_piece_outside_of_its_packet_is_refused() {
        assert_eq!(Fragment::parse(&[0, 0, 0, 1]), None, "empty");
        assert!(Fragment::parse(&[0, 1, 0, 2, 0]).is_some());
        assert_eq!(Fragment::parse(&[0, 2, 0, 2, 0]), None);
        assert_eq!(Fragment::parse(&[0xff, 0xff, 0, 2, 0]), None);
        assert_eq!(Fragment::parse(&[0, 0, 0x24, 1, 0]), None, "too long");
        assert_eq!(Fragment::parse(&[0, 0, 0]), None);
    }

    proptest! {
        #[test]
        fn what_parses_emits_the_same_bytes(body in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some((fragment, piece)) = Fragment::parse(&body) {
                let mut head = [0; FRAGMENT_LEN];
                fragment.emit(&mut head);
                prop_assert_eq!(&body[..FRAGMENT_LEN], &head);
                prop_assert_eq!(&body[FRAGMENT_LEN..], piece);
            }
        }
    }
}
