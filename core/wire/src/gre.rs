//! UDP datagrams in IPv4 in GRE in IPv4: the format in which a neighbour without Hawser relays
//! datagrams between a taker and its hub.
//!
//! ```text
//!  outer IPv4 | flags | protocol | checksum, 0 | key  | sequence | inner IPv4 | UDP | payload
//!  20..60     | 2     | 2        | 4, if C     | 4, K | 4, if S  | 20..60     | 8   |
//! ```
//!
//! The outer packet is as a raw socket receives it: whole, with a checksum that the kernel has
//! verified.
//!
//! Source: RFC 2784 section 2, RFC 2890 section 2. Deviates: sequence numbers are ignored and not
//! written, because the contents have their own; inner packets must be unfragmented UDP over IPv4;
//! the UDP checksum is written but not verified, because kernels leave it to network cards, so that
//! it may never be completed between machines on one host. The contents are encrypted and
//! authenticated.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::inner::{Ecn, ecn_at_exit, fill_ipv4_checksum, ones_sum, protocol, pseudo_header_sum};

/// Datagram with its outer headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Ends of the tunnel: source and destination of the outer packet.
    pub outer: (Ipv4Addr, Ipv4Addr),
    /// Key of the tunnel, if it has one.
    pub key: Option<u32>,
    /// Source of the datagram.
    pub source: SocketAddrV4,
    /// Destination of the datagram.
    pub destination: SocketAddrV4,
    /// Combined ECN field of both packets.
    pub ecn: Ecn,
    /// Payload of the datagram.
    pub payload: &'a [u8],
}

/// Reason why a packet contains no valid datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unfit {
    /// Truncated packet, or contradictory lengths.
    Cut,
    /// Forbidden flag bits are set, or the version is not supported.
    Header,
    /// Contents other than UDP over IPv4.
    Protocol,
    /// A checksum is wrong.
    Checksum,
    /// The inner packet is a fragment.
    Fragment,
    /// The outer packet has a CE mark, but the inner packet is not ECN-capable (RFC 6040 section
    /// 4.2).
    Congestion,
}

/// Parses an outer packet.
///
/// # Errors
/// Reason why it contains no valid datagram.
pub fn parse(packet: &[u8]) -> Result<Datagram<'_>, Unfit> {
    let (outer, gre) = ipv4(packet, protocol::GRE)?;
    let (key, payload) = header(gre)?;
    let (within, udp) = ipv4(payload, protocol::UDP)?;
    if ones_sum(within, 0) != WHOLE {
        return Err(Unfit::Checksum);
    }
    // All but "don't fragment".
    if word(within, 6) & 0xbfff != 0 {
        return Err(Unfit::Fragment);
    }
    let length = usize::from(udp.get(4..6).map(|_| word(udp, 4)).ok_or(Unfit::Cut)?);
    if length < UDP_LEN {
        return Err(Unfit::Cut);
    }
    let udp = udp.get(..length).ok_or(Unfit::Cut)?;
    let ecn = ecn_at_exit(Ecn::from_bits(within[1]), Ecn::from_bits(outer[1]));
    Ok(Datagram {
        outer: (address(outer, 12), address(outer, 16)),
        key,
        source: SocketAddrV4::new(address(within, 12), word(udp, 0)),
        destination: SocketAddrV4::new(address(within, 16), word(udp, 2)),
        ecn: ecn.ok_or(Unfit::Congestion)?,
        payload: &udp[UDP_LEN..],
    })
}

impl Datagram<'_> {
    /// Replaces the contents of `out` by the outer packet; returns false, and writes nothing, if
    /// the payload is too long. Both packets forbid fragmentation and have the same ECN field (RFC
    /// 6040 section 4.1).
    #[must_use]
    pub fn emit(&self, out: &mut Vec<u8>) -> bool {
        out.clear();
        let key = self.key.map(u32::to_be_bytes);
        let around = 2 * IPV4_LEN + GRE_LEN + key.map_or(0, |key| key.len()) + UDP_LEN;
        let Ok(total) = u16::try_from(around + self.payload.len()) else {
            return false;
        };
        let udp_len = (UDP_LEN + self.payload.len()) as u16;
        let within_len = IPV4_LEN as u16 + udp_len;
        self.push_ipv4(total, protocol::GRE, self.outer, out);
        out.extend(if key.is_some() { KEY } else { 0 }.to_be_bytes());
        out.extend(IPV4_TYPE.to_be_bytes());
        out.extend(key.into_iter().flatten());
        let within = out.len();
        let ends = (*self.source.ip(), *self.destination.ip());
        self.push_ipv4(within_len, protocol::UDP, ends, out);
        let udp = out.len();
        for part in [self.source.port(), self.destination.port(), udp_len, 0] {
            out.extend(part.to_be_bytes());
        }
        out.extend_from_slice(self.payload);
        let pseudo = pseudo_header_sum(&out[within..], protocol::UDP, usize::from(udp_len));
        // A sum of 0 is written as all ones, because 0 means no checksum (RFC 768).
        let sum = match !ones_sum(&out[udp..], pseudo.into()) {
            0 => WHOLE,
            sum => sum,
        };
        out[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
        true
    }

    fn push_ipv4(&self, total: u16, protocol: u8, (from, to): (Ipv4Addr, Ipv4Addr), out: &mut Vec<u8>) {
        let at = out.len();
        out.extend([0x45, self.ecn.bits()]);
        out.extend(total.to_be_bytes());
        out.extend([0, 0, 0x40, 0, TTL, protocol, 0, 0]);
        out.extend(from.octets());
        out.extend(to.octets());
        fill_ipv4_checksum(&mut out[at..], IPV4_LEN);
    }
}

/// Returns the header and the payload of an IPv4 packet of that protocol.
fn ipv4(packet: &[u8], wanted: u8) -> Result<(&[u8], &[u8]), Unfit> {
    let first = *packet.first().ok_or(Unfit::Cut)?;
    if first >> 4 != 4 {
        return Err(Unfit::Header);
    }
    let header = usize::from(first & 15) * 4;
    if header < IPV4_LEN || packet.len() < header {
        return Err(Unfit::Cut);
    }
    let total = usize::from(word(packet, 2));
    if total < header || packet.len() < total {
        return Err(Unfit::Cut);
    }
    if packet[9] != wanted {
        return Err(Unfit::Protocol);
    }
    Ok((&packet[..header], &packet[header..total]))
}

/// Returns the key and the payload of a GRE packet.
fn header(gre: &[u8]) -> Result<(Option<u32>, &[u8]), Unfit> {
    let fixed = gre.get(..GRE_LEN).ok_or(Unfit::Cut)?;
    let flags = word(fixed, 0);
    // Routing with its fields in RFC 1701, and other versions such as that of PPTP: a receiver
    // discards them (RFC 2784 sections 2.2 and 2.3). The other reserved bits are ignored.
    if flags & (ROUTING | VERSION) != 0 {
        return Err(Unfit::Header);
    }
    let mut rest = &gre[GRE_LEN..];
    if flags & CHECKSUM != 0 {
        take(&mut rest)?;
        if ones_sum(gre, 0) != WHOLE {
            return Err(Unfit::Checksum);
        }
    }
    if word(fixed, 2) != IPV4_TYPE {
        return Err(Unfit::Protocol);
    }
    let key = if flags & KEY != 0 {
        Some(u32::from_be_bytes(take(&mut rest)?))
    } else {
        None
    };
    if flags & SEQUENCE != 0 {
        take(&mut rest)?;
    }
    Ok((key, rest))
}

/// Reads an optional field.
fn take(rest: &mut &[u8]) -> Result<[u8; 4], Unfit> {
    let (field, behind) = rest.split_first_chunk::<4>().ok_or(Unfit::Cut)?;
    *rest = behind;
    Ok(*field)
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn address(header: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3])
}

/// Sizes of headers without options. Source: RFC 791 section 3.1, RFC 2784 section 2, RFC 768.
/// Units: bytes.
const IPV4_LEN: usize = 20;
const GRE_LEN: usize = 4;
const UDP_LEN: usize = 8;
/// Sum over bytes that include their own valid checksum. Source: RFC 1071 section 1.
const WHOLE: u16 = 0xffff;
// RFC 2784 section 2.1, RFC 2890 section 2.
const CHECKSUM: u16 = 0x8000;
const KEY: u16 = 0x2000;
const SEQUENCE: u16 = 0x1000;
const ROUTING: u16 = 0x4c00;
const VERSION: u16 = 0x0007;
/// EtherType of IPv4. Source: RFC 894.
const IPV4_TYPE: u16 = 0x0800;
/// Default TTL of operating systems (RFC 1340).
const TTL: u8 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inner;
    use proptest::prelude::*;

    const KEYED: Datagram<'_> = Datagram {
        outer: (Ipv4Addr::new(198, 51, 100, 7), Ipv4Addr::new(203, 0, 113, 1)),
        key: Some(7),
        source: SocketAddrV4::new(Ipv4Addr::new(192, 168, 1, 9), 40_000),
        destination: SocketAddrV4::new(Ipv4Addr::new(10, 47, 47, 1), 47_474),
        ecn: Ecn::Ect0,
        payload: b"sealed",
    };

    fn packet(datagram: &Datagram<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(datagram.emit(&mut out));
        out
    }

    /// Builds a packet with the fields of `flags` (C, K, S) between GRE's header and the inner
    /// packet.
    fn with(flags: u16, fields: &[u8]) -> Vec<u8> {
        let plain = packet(&Datagram { key: None, ..KEYED });
        let mut out = [&plain[..20], &flags.to_be_bytes(), &[8, 0], fields, &plain[24..]].concat();
        let total = out.len() as u16;
        out[2..4].copy_from_slice(&total.to_be_bytes());
        fill_ipv4_checksum(&mut out, 20);
        out
    }

    #[test]
    fn the_bytes_are_those_of_the_standards() {
        let out = packet(&KEYED);
        assert_eq!(out[20..28], [0x20, 0, 8, 0, 0, 0, 0, 7]);
        assert_eq!(out.len(), 20 + 8 + 20 + 8 + 6);
        assert_eq!((out[9], out[1] & 3, out[6]), (47, 2, 0x40));
        let pseudo = pseudo_header_sum(&out[28..], protocol::UDP, 14);
        assert_eq!(ones_sum(&out[48..], pseudo.into()), WHOLE, "the checksum of UDP");
        // Another parser of IP packets agrees.
        let within = inner::parse(&out[28..]).unwrap();
        assert_eq!(within.key.destination, KEYED.destination.ip().to_owned());
        assert_eq!(packet(&Datagram { key: None, ..KEYED }).len(), out.len() - 4);
    }

    #[test]
    fn optional_fields_are_read_in_their_order() {
        let fields = [0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 1, 0];
        let mut out = with(CHECKSUM | KEY | SEQUENCE, &fields);
        assert_eq!(parse(&out), Err(Unfit::Checksum));
        let sum = !ones_sum(&out[20..], 0);
        out[24..26].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(
            parse(&out),
            Ok(Datagram {
                key: Some(9),
                ..KEYED
            })
        );
        let out = with(SEQUENCE, &[0, 0, 1, 0]);
        assert_eq!(parse(&out), Ok(Datagram { key: None, ..KEYED }));
    }

    #[test]
    fn what_no_receiver_may_take_is_refused() {
        // Routing (RFC 1701), strict routes, recursion, and PPTP's version.
        for flags in [0x4000, 0x0800, 0x0400, 0x0001] {
            assert_eq!(parse(&with(flags, &[])), Err(Unfit::Header), "{flags:x}");
        }
        // Reserved bits that are ignored.
        assert!(parse(&with(0x03f8, &[])).is_ok());
        let change = |at: usize, to: u8| {
            let mut out = packet(&KEYED);
            out[at] = to;
            out
        };
        assert_eq!(parse(&change(22, 0x86)), Err(Unfit::Protocol));
        assert_eq!(parse(&change(0, 0x65)), Err(Unfit::Header));
        assert_eq!(parse(&change(9, 17)), Err(Unfit::Protocol));
        assert_eq!(parse(&change(28 + 10, 0)), Err(Unfit::Checksum));
        // The inner header: a fragment with a valid checksum, and a packet of another protocol.
        let inner = |at: usize, to: u8| {
            let mut out = packet(&KEYED);
            out[28 + at] = to;
            fill_ipv4_checksum(&mut out[28..], 20);
            parse(&out).map(drop)
        };
        assert_eq!(inner(6, 0x20), Err(Unfit::Fragment));
        assert_eq!(inner(7, 1), Err(Unfit::Fragment));
        assert_eq!(inner(9, 6), Err(Unfit::Protocol));
        assert_eq!(inner(3, 255), Err(Unfit::Cut));
    }

    #[test]
    fn marks_of_routers_reach_the_datagram() {
        let mut out = packet(&KEYED);
        out[1] |= 3;
        assert_eq!(parse(&out).unwrap().ecn, Ecn::Ce);
        let mut out = packet(&Datagram {
            ecn: Ecn::NotEct,
            ..KEYED
        });
        out[1] |= 3;
        assert_eq!(parse(&out), Err(Unfit::Congestion));
    }

    #[test]
    fn a_payload_that_fits_no_packet_is_not_written() {
        let payload = vec![0; 65_535];
        let long = Datagram {
            payload: &payload,
            ..KEYED
        };
        assert!(!long.emit(&mut Vec::new()));
        let long = Datagram {
            payload: &payload[..65_535 - 56],
            ..KEYED
        };
        assert!(parse(&packet(&long)).is_ok());
    }

    proptest! {
        #[test]
        fn survives_its_bytes(
            key: Option<u32>, ports: (u16, u16), ends: [u32; 4], ecn in 0_u8..4,
            payload in prop::collection::vec(any::<u8>(), 0..200), cut in 1_usize..90,
        ) {
            let [a, b, c, d] = ends.map(Ipv4Addr::from_bits);
            let datagram = Datagram {
                outer: (a, b),
                key,
                source: SocketAddrV4::new(c, ports.0),
                destination: SocketAddrV4::new(d, ports.1),
                ecn: Ecn::from_bits(ecn),
                payload: &payload,
            };
            let out = packet(&datagram);
            prop_assert_eq!(parse(&out), Ok(datagram));
            let cut = out.len().saturating_sub(cut);
            prop_assert_eq!(parse(&out[..cut]), Err(Unfit::Cut));
        }

        #[test]
        fn any_change_is_a_datagram_or_none(at in 0_usize..62, to: u8) {
            let mut out = packet(&KEYED);
            out[at] = to;
            let _ = parse(&out);
        }
    }
}
