//! Body of a bundle: several small UDP packets of one flow in one datagram.
//!
//! On a slow link the headers of a call's packets take longer than its voice. A bundle has one
//! outer packet, one tag and one inner header for all of them. Each packet after the first contains
//! only the header fields that differ from the first one's.
//!
//! ```text
//!   | length (8) | first packet ...
//!   | payload length (8) | [IPv4 identification (16)] | UDP checksum (16) | payload ...   repeated
//! ```
//!
//! The inner header ([`crate::data::Inner`]) identifies the flow: its sequence number is that of
//! the first packet, the others follow, and its flags apply to all of them. A bundle contains its
//! own context, so the loss of a bundle affects only its own packets.
//!
//! Source: RFC 5795 section 3 (headers of one flow differ in few fields) and RFC 3095 section A.1
//! (the fields that differ). Deviates: the context is in the same datagram.

use crate::inner::{fill_ipv4_checksum, ones_sum, protocol};

/// Maximum size of a bundled packet, bytes. Source: the length field has eight bits.
pub const MAX_PACKET: usize = 255;
/// Maximum number of packets in a bundle. Source: their headers are a sixth of what a bundle of two
/// has for each.
pub const MAX_PACKETS: usize = 8;

/// Size of an IPv4 header without options, RFC 791 section 3.1. Units: bytes.
const IPV4_LEN: usize = 20;
/// Size of an IPv6 header, RFC 8200 section 3. Units: bytes.
const IPV6_LEN: usize = 40;
/// Size of a UDP header, RFC 768. Units: bytes.
const UDP_LEN: usize = 8;

/// Header fields that all packets of a bundle share, in addition to addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    fields: [u8; 5],
    is_ipv6: bool,
}

impl Shape {
    /// Returns the shape of a packet; `None` if it is not a whole UDP packet of at most
    /// [`MAX_PACKET`] bytes whose lengths and IPv4 checksum follow from the other fields.
    #[must_use]
    pub fn of(packet: &[u8]) -> Option<Self> {
        if packet.len() > MAX_PACKET {
            return None;
        }
        let shape = match *packet.first()? {
            0x45 => Self::of_ipv4(packet)?,
            first if first >> 4 == 6 => Self::of_ipv6(packet)?,
            _ => return None,
        };
        let udp = &packet[shape.headers_len() - UDP_LEN..];
        (usize::from(u16::from_be_bytes([udp[4], udp[5]])) == udp.len()).then_some(shape)
    }

    fn of_ipv4(packet: &[u8]) -> Option<Self> {
        let (ip, udp) = packet.split_first_chunk::<IPV4_LEN>()?;
        let is_whole = usize::from(u16::from_be_bytes([ip[2], ip[3]])) == packet.len()
            && (ip[6] & 0x3f, ip[7]) == (0, 0)
            && ip[9] == protocol::UDP
            && udp.len() >= UDP_LEN
            && ones_sum(ip, 0) == 0xffff;
        is_whole.then_some(Self {
            fields: [ip[0], ip[1], ip[6], ip[8], 0],
            is_ipv6: false,
        })
    }

    fn of_ipv6(packet: &[u8]) -> Option<Self> {
        let (ip, udp) = packet.split_first_chunk::<IPV6_LEN>()?;
        let is_whole = usize::from(u16::from_be_bytes([ip[4], ip[5]])) == udp.len()
            && ip[6] == protocol::UDP
            && udp.len() >= UDP_LEN;
        is_whole.then_some(Self {
            fields: [ip[0], ip[1], ip[2], ip[3], ip[7]],
            is_ipv6: true,
        })
    }

    fn headers_len(self) -> usize {
        UDP_LEN + if self.is_ipv6 { IPV6_LEN } else { IPV4_LEN }
    }

    /// Returns the size of a later packet's short header. Units: bytes.
    const fn short_len(self) -> usize {
        if self.is_ipv6 { 3 } else { 5 }
    }

    /// Returns the number of bytes that a packet of `len` bytes adds to a bundle.
    #[must_use]
    pub fn item_len(self, len: usize, is_first: bool) -> usize {
        if is_first {
            1 + len
        } else {
            self.short_len() + len.saturating_sub(self.headers_len())
        }
    }
}

/// Adds a packet to a bundle, which is empty before the first.
///
/// # Panics
/// If `packet` has no [`Shape`].
pub fn push(bundle: &mut Vec<u8>, packet: &[u8]) {
    let shape = Shape::of(packet).expect("what is bundled has a shape");
    if bundle.is_empty() {
        bundle.push(packet.len() as u8);
        bundle.extend(packet);
        return;
    }
    let (headers, payload) = packet.split_at(shape.headers_len());
    bundle.push(payload.len() as u8);
    if !shape.is_ipv6 {
        bundle.extend(&headers[4..6]);
    }
    bundle.extend(&headers[headers.len() - 2..]);
    bundle.extend(payload);
}

/// Iterator over the packets of a bundle, with their headers rebuilt.
///
/// Cost: a copy of each packet; at most [`MAX_PACKETS`]. It ends at bytes that [`push`] cannot have
/// written.
#[derive(Clone, Debug)]
pub struct Packets<'a> {
    first: &'a [u8],
    shape: Option<Shape>,
    rest: &'a [u8],
    count: usize,
}

impl<'a> Packets<'a> {
    /// Parses the body of a bundle.
    #[must_use]
    pub fn parse(body: &'a [u8]) -> Self {
        let split = body
            .split_first()
            .and_then(|(len, rest)| rest.split_at_checked(usize::from(*len)));
        let (first, rest) = split.unwrap_or_default();
        Self {
            first,
            shape: Shape::of(first),
            rest,
            count: 0,
        }
    }

    fn rebuild(&mut self, shape: Shape) -> Option<Vec<u8>> {
        let (short, rest) = self.rest.split_at_checked(shape.short_len())?;
        let (payload, rest) = rest.split_at_checked(usize::from(short[0]))?;
        self.rest = rest;
        let ip_len = shape.headers_len() - UDP_LEN;
        let mut packet = Vec::with_capacity(shape.headers_len() + payload.len());
        packet.extend(&self.first[..shape.headers_len()]);
        packet.extend(payload);
        let udp = ((UDP_LEN + payload.len()) as u16).to_be_bytes();
        packet[ip_len + 4..ip_len + 6].copy_from_slice(&udp);
        packet[ip_len + 6..ip_len + 8].copy_from_slice(&short[short.len() - 2..]);
        if shape.is_ipv6 {
            packet[4..6].copy_from_slice(&udp);
        } else {
            let total = (packet.len() as u16).to_be_bytes();
            packet[2..4].copy_from_slice(&total);
            packet[4..6].copy_from_slice(&short[1..3]);
            fill_ipv4_checksum(&mut packet, IPV4_LEN);
        }
        Some(packet)
    }
}

impl Iterator for Packets<'_> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let shape = self.shape.filter(|_| self.count < MAX_PACKETS)?;
        self.count += 1;
        if self.count == 1 {
            return Some(self.first.to_vec());
        }
        let packet = self.rebuild(shape);
        if packet.is_none() {
            self.count = MAX_PACKETS;
        }
        packet
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inner::tests::{complete_transport, udp_packet};
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn ipv4(identification: u16, payload: &[u8]) -> Vec<u8> {
        let total = IPV4_LEN + UDP_LEN + payload.len();
        let mut packet = vec![0x45, 0xb8];
        packet.extend((total as u16).to_be_bytes());
        packet.extend(identification.to_be_bytes());
        packet.extend([0x40, 0, 64, protocol::UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        for field in [5_004, 5_006, (UDP_LEN + payload.len()) as u16, 0] {
            packet.extend(field.to_be_bytes());
        }
        packet.extend(payload);
        fill_ipv4_checksum(&mut packet, IPV4_LEN);
        complete_transport(&mut packet);
        packet
    }

    fn bundle_of(packets: &[Vec<u8>]) -> Vec<u8> {
        let mut bundle = Vec::new();
        for packet in packets {
            let expected = Shape::of(packet)
                .expect("small")
                .item_len(packet.len(), bundle.is_empty());
            let before = bundle.len();
            push(&mut bundle, packet);
            assert_eq!(bundle.len() - before, expected);
        }
        bundle
    }

    #[test]
    fn a_packet_behind_the_first_takes_five_bytes_and_its_payload() {
        let packets = [ipv4(7, &[1; 40]), ipv4(9, &[2; 40]), ipv4(10, &[])];
        let bundle = bundle_of(&packets);
        assert_eq!(bundle.len(), 1 + 68 + 45 + 5);
        assert_eq!(Packets::parse(&bundle).collect::<Vec<_>>(), packets);
    }

    #[test]
    fn only_whole_small_udp_packets_are_bundled() {
        let packet = ipv4(7, &[1; 40]);
        assert!(Shape::of(&packet).is_some());
        assert!(Shape::of(&ipv4(7, &[1; 228])).is_none(), "too long");
        assert!((0..packet.len()).all(|len| Shape::of(&packet[..len]).is_none()));
        // Version, total length, fragment, protocol, checksum, UDP length.
        for at in [0, 3, 6, 7, 9, 10, 25] {
            let mut other = packet.clone();
            other[at] ^= 0x21;
            assert!(Shape::of(&other).is_none(), "byte {at}");
        }
        let ipv6 = udp_packet(&[1; 40]);
        assert!((0..ipv6.len()).all(|len| Shape::of(&ipv6[..len]).is_none()));
        assert!(Shape::of(&ipv6).is_some_and(|shape| Some(shape) != Shape::of(&packet)));
    }

    #[test]
    fn a_bundle_that_is_cut_short_gives_its_whole_packets() {
        let packets = [ipv4(7, &[1; 40]), ipv4(9, &[2; 20]), ipv4(10, &[3; 10])];
        let bundle = bundle_of(&packets);
        let counts = (0..=bundle.len()).map(|len| Packets::parse(&bundle[..len]).count());
        assert_eq!(
            counts.collect::<Vec<_>>(),
            [vec![0; 69], vec![1; 25], vec![2; 15], vec![3]].concat()
        );
    }

    proptest! {
        #[test]
        fn what_is_bundled_comes_out_again(payloads in vec(vec(any::<u8>(), 0..200), 1..=MAX_PACKETS), is_ipv6: bool) {
            let of = |(n, payload): (usize, &Vec<u8>)| {
                if is_ipv6 { udp_packet(payload) } else { ipv4(n as u16 * 77, payload) }
            };
            let packets: Vec<_> = payloads.iter().enumerate().map(of).collect();
            prop_assert_eq!(Packets::parse(&bundle_of(&packets)).collect::<Vec<_>>(), packets);
        }

        #[test]
        fn any_bytes_give_packets_that_are_whole(body in vec(any::<u8>(), 0..300)) {
            for packet in Packets::parse(&body).skip(1) {
                prop_assert!(packet.len() > MAX_PACKET || Shape::of(&packet).is_some());
            }
        }
    }
}
