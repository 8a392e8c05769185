//! The body of a fragment: a piece of an inner packet that no path takes whole.
//!
//! ```text
//!   | offset (16) | length of the whole packet (16) | bytes of the packet from the offset on ...
//! ```
//!
//! Which packet it is of says the inner header ([`crate::data::Inner`]): flow, order and sequence
//! number are the packet's, and so are its flags. Each fragment has its own packet number on its
//! path, so a lost one is reported and sent again like any packet, if need be in smaller pieces.
//!
//! Source: RFC 8200 section 4.5 for offset and length. Deviates: offsets are bytes, and every
//! fragment names the length of the whole, so a receiver can reserve it from whichever arrives
//! first.

/// Bytes in front of the piece.
pub const FRAGMENT_LEN: usize = 4;
/// The longest inner packet that is split: a jumbo frame with its headers.
pub const MAX_SPLIT: usize = 9_216;

/// What stands in front of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Where the piece begins in the packet, bytes.
    pub offset: u16,
    /// Bytes of the whole packet, at most [`MAX_SPLIT`].
    pub total: u16,
}

impl Fragment {
    /// Reads the body of a fragment; `None` where the piece is empty or does not lie within its
    /// packet, or the packet is too long.
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

    /// Writes what stands in front of the piece.
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
