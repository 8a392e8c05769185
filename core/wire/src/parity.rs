//! Body of a parity packet, and the symbols of its code.
//!
//! The packets of a flow are covered in groups of consecutive packets. From a group of `n` packets
//! and its parity packets, any `n` are enough to recover the group. The inner header
//! ([`crate::data::Inner`]) contains the flow and the first sequence number of the group.
//!
//! ```text
//!   parity packet:  | covered | parity | index | symbol ...
//!   symbol:         | flags   | length (16)    | inner packet in the form it was sent | zeros ...
//! ```
//!
//! `covered`: packets in the group; `parity`: parity packets of the group; `index`: index of this
//! parity packet. All symbols of a group have one length, which is even; `flags` are those of the
//! packet's inner header.
//!
//! Source: RFC 6865 section 4 for the symbols (F, L, ADU, Pad). Deviates: F contains a packet's
//! flags, because a group has one flow; the header has no block identifiers, because sequence
//! numbers identify the group. RFC 5109 section 7 for groups that are identified by their first
//! packet.

use crate::data::{INNER_LEN, Inner, Kind};

/// Size of the header before the symbol. Source: the layout above. Units: bytes.
pub const PARITY_LEN: usize = 3;
/// Maximum number of packets in one group. Source: our choice, the packets of a video of 15 Mbit/s
/// within `SPAN` of `core/proto/src/fec`, 20 ms; larger groups cost memory of both ends and save
/// little, as a group of 32 needs one packet for 3 %.
pub const MAX_COVERED: u8 = 32;
/// Maximum number of parity packets of one group. Source: our choice, a quarter of the largest
/// group; where more is lost, other paths are better than parity.
pub const MAX_PARITY: u8 = 8;
/// Size of a symbol's header before its packet. Source: the layout above. Units: bytes.
pub const SYMBOL_HEADER: usize = 3;
/// Maximum size of a covered packet. Source: [`MAX_SYMBOL`] is 2,048 bytes. Units: bytes.
pub const MAX_PACKET: usize = 2_044;
/// Maximum size of a symbol. Source: [`MAX_PACKET`], the header and a zero that makes the length
/// even. Units: bytes.
pub const MAX_SYMBOL: usize = MAX_PACKET + SYMBOL_HEADER + 1;

/// Header of a parity packet's symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parity {
    /// Packets in the group: 1 to [`MAX_COVERED`].
    pub covered: u8,
    /// Parity packets of the group: 1 to [`MAX_PARITY`].
    pub parity: u8,
    /// Index of the symbol: below `parity`.
    pub index: u8,
}

impl Parity {
    /// Parses the body of a parity packet; `None` if a number is out of range or the symbol's
    /// length is impossible.
    #[must_use]
    pub fn parse(body: &[u8]) -> Option<(Self, &[u8])> {
        let (&[covered, parity, index], symbol) = body.split_first_chunk::<PARITY_LEN>()?;
        let is_possible = (1..=MAX_COVERED).contains(&covered)
            && (1..=MAX_PARITY).contains(&parity)
            && index < parity
            && (SYMBOL_HEADER + 1..=MAX_SYMBOL).contains(&symbol.len())
            && symbol.len().is_multiple_of(2);
        is_possible.then_some((
            Self {
                covered,
                parity,
                index,
            },
            symbol,
        ))
    }

    /// Writes the header before the symbol.
    pub fn emit(&self, out: &mut [u8; PARITY_LEN]) {
        *out = [self.covered, self.parity, self.index];
    }
}

/// Returns the size of the shortest symbol that fits a packet. Units: bytes.
#[must_use]
pub const fn symbol_len(packet: usize) -> usize {
    (SYMBOL_HEADER + packet).next_multiple_of(2)
}

/// Fills a symbol with a packet.
///
/// # Panics
/// If `symbol` is shorter than [`symbol_len`] of the packet.
pub fn emit_symbol(inner: &Inner, packet: &[u8], symbol: &mut [u8]) {
    let mut header = [0; INNER_LEN];
    inner.emit(&mut header);
    symbol[0] = header[1];
    symbol[1..SYMBOL_HEADER].copy_from_slice(&(packet.len() as u16).to_be_bytes());
    let (content, padding) = symbol[SYMBOL_HEADER..].split_at_mut(packet.len());
    content.copy_from_slice(packet);
    padding.fill(0);
}

/// Parses a rebuilt symbol: returns the flags of its packet, as an inner header without sequence
/// number and time, and the packet; `None` if no sender can have created it.
#[must_use]
pub fn parse_symbol(symbol: &[u8]) -> Option<(Inner, &[u8])> {
    let (&[flags, l0, l1], content) = symbol.split_first_chunk::<SYMBOL_HEADER>()?;
    let mut header = [0; INNER_LEN];
    Inner::plain(Kind::Packet).emit(&mut header);
    header[1] = flags;
    let (inner, _) = Inner::parse(&header)?;
    let packet = content.get(..usize::from(u16::from_be_bytes([l0, l1])))?;
    Some((inner, packet))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Class;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn numbers_out_of_range_are_refused() {
        let body = |numbers: [u8; PARITY_LEN], symbol: usize| [&numbers[..], &vec![0; symbol]].concat();
        assert_eq!(symbol_len(MAX_PACKET), MAX_SYMBOL, "the longest packet fits");
        assert!(Parity::parse(&body([8, 2, 1], 4)).is_some());
        assert!(Parity::parse(&body([32, 8, 7], MAX_SYMBOL)).is_some());
        for (numbers, symbol) in [
            ([0, 2, 1], 4),
            ([33, 2, 1], 4),
            ([8, 0, 0], 4),
            ([8, 9, 1], 4),
            ([8, 2, 2], 4),
            ([8, 2, 1], 0),
            ([8, 2, 1], 2),
            ([8, 2, 1], 5),
            ([8, 2, 1], MAX_SYMBOL + 2),
        ] {
            assert_eq!(
                Parity::parse(&body(numbers, symbol)),
                None,
                "{numbers:?} {symbol}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_parses_emits_the_same_bytes(body in vec(any::<u8>(), 0..64)) {
            if let Some((parity, symbol)) = Parity::parse(&body) {
                let mut out = [0; PARITY_LEN];
                parity.emit(&mut out);
                prop_assert_eq!([&out[..], symbol].concat(), body);
            }
        }

        #[test]
        fn any_symbol_is_read_without_a_panic(symbol in vec(any::<u8>(), 0..64)) {
            if let Some((inner, packet)) = parse_symbol(&symbol) {
                let mut out = vec![0; symbol.len()];
                emit_symbol(&inner, packet, &mut out);
                prop_assert_eq!(&out[..SYMBOL_HEADER + packet.len()], &symbol[..SYMBOL_HEADER + packet.len()]);
            }
        }

        #[test]
        fn a_packet_survives_its_symbol(packet in vec(any::<u8>(), 0..MAX_PACKET), unordered: bool, more in 0..8_usize) {
            let inner = Inner { class: Class::Realtime, unordered, ..Inner::plain(Kind::Packet) };
            let mut symbol = vec![1; symbol_len(packet.len()) + more];
            emit_symbol(&inner, &packet, &mut symbol);
            prop_assert_eq!(parse_symbol(&symbol), Some((inner, &packet[..])));
        }
    }
}
