//! Headers of an inner IP packet for a packet filter: its addresses, and its upper-layer header
//! (RFC 8200) after all extension headers.
//!
//! [`crate::inner::parse`] extracts the fields for a scheduler and skips no extension header: in a
//! filter, one extension header would be enough for evasion.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::inner::{protocol, tcp_flag};

/// Addresses, protocol and ports of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpperLayer {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol of the upper-layer header; [`NO_NEXT_HEADER`] if there is none.
    pub protocol: u8,
    /// Source and destination port of TCP and UDP; `None` for others and for later fragments.
    pub ports: Option<(u16, u16)>,
    /// Set for a packet that opens a TCP connection: SYN without ACK.
    pub opens_connection: bool,
    /// Type of an ICMP or ICMPv6 message.
    pub icmp_type: Option<u8>,
}

/// Protocol number of a packet without an upper-layer header. Source: RFC 8200 section 4.7.
pub const NO_NEXT_HEADER: u8 = 59;

/// Numbers of extension headers. Source: RFC 8200 section 4, RFC 4302 section 2.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
/// Maximum number of parsed extension headers: each of the five once, and destination options
/// twice.
/// Source: RFC 8200 section 4.1.
const MAX_EXTENSION_HEADERS: usize = 6;

/// IPv4 options for source routing. Source: RFC 791 section 3.1, RFC 7126 section 4.3.
const SOURCE_ROUTES: [u8; 2] = [131, 137];

/// Size of the TCP header up to its flags, bytes. A shorter first fragment would hide the flags.
/// Source: RFC 1858 section 4.2.
const TCP_FLAGS_END: usize = 14;

/// Parses the headers of an IP packet.
///
/// `None` for packets that a filter should drop: not IPv4 or IPv6, truncated, source routed, with
/// more than [`MAX_EXTENSION_HEADERS`] extension headers, and fragments that hide or overwrite a
/// TCP header (RFC 1858, RFC 3128).
///
/// Cost: O(1), no copy.
#[must_use]
pub fn parse(packet: &[u8]) -> Option<UpperLayer> {
    match packet.first()? >> 4 {
        4 => parse_v4(packet),
        6 => parse_v6(packet),
        _ => None,
    }
}

/// Position of a fragment in its packet.
#[derive(Clone, Copy)]
struct Fragment {
    /// Offset in units of eight bytes.
    offset: u16,
}

fn parse_v4(packet: &[u8]) -> Option<UpperLayer> {
    let head = packet.first_chunk::<20>()?;
    let header_len = usize::from(head[0] & 0x0f) * 4;
    if header_len < 20 || is_source_routed(packet.get(20..header_len)?) {
        return None;
    }
    let field = u16::from_be_bytes([head[6], head[7]]);
    let address = |at: usize| IpAddr::V4(Ipv4Addr::new(head[at], head[at + 1], head[at + 2], head[at + 3]));
    let fragment = (field & 0x3fff != 0).then_some(Fragment {
        offset: field & 0x1fff,
    });
    finish(
        &packet[header_len..],
        (address(12), address(16)),
        head[9],
        fragment,
    )
}

/// Returns whether IPv4 options contain a source route, or cannot be parsed.
fn is_source_routed(mut options: &[u8]) -> bool {
    // RFC 791 section 3.1.
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    while let Some((kind, rest)) = options.split_first() {
        match *kind {
            END => return false,
            NO_OPERATION => options = rest,
            kind if SOURCE_ROUTES.contains(&kind) => return true,
            _ => {
                let len = rest.first().map_or(0, |len| usize::from(*len));
                match options.get(len..) {
                    Some(rest) if len >= 2 => options = rest,
                    _ => return true,
                }
            }
        }
    }
    false
}

fn parse_v6(packet: &[u8]) -> Option<UpperLayer> {
    let head = packet.first_chunk::<40>()?;
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&head[at..at + 16]);
        IpAddr::V6(Ipv6Addr::from(octets))
    };
    let addresses = (address(8), address(24));
    let (mut next, mut rest) = (head[6], &packet[40..]);
    let mut fragment = None;
    for _ in 0..=MAX_EXTENSION_HEADERS {
        // The unit of the length differs: RFC 8200 section 4.3, RFC 4302 section 2.2.
        let len = match next {
            HOP_BY_HOP | DESTINATION_OPTIONS => (usize::from(*rest.get(1)?) + 1) * 8,
            ROUTING if *rest.get(3)? != 0 => return None,
            ROUTING => (usize::from(*rest.get(1)?) + 1) * 8,
            AUTHENTICATION => (usize::from(*rest.get(1)?) + 2) * 4,
            FRAGMENT => 8,
            _ => return finish(rest, addresses, next, fragment),
        };
        let header = rest.get(..len)?;
        if next == FRAGMENT {
            let field = u16::from_be_bytes([header[2], header[3]]);
            // A fragment that is the whole packet (RFC 6946) is treated as an unfragmented packet.
            fragment = (field & 0xfff9 != 0).then_some(Fragment { offset: field >> 3 });
        }
        (next, rest) = (header[0], &rest[len..]);
        if fragment.is_some_and(|fragment| fragment.offset > 0) {
            // The rest is from the middle of the packet.
            return finish(rest, addresses, next, fragment);
        }
    }
    None
}

fn finish(
    body: &[u8],
    (source, destination): (IpAddr, IpAddr),
    protocol: u8,
    fragment: Option<Fragment>,
) -> Option<UpperLayer> {
    let mut found = UpperLayer {
        source,
        destination,
        protocol,
        ports: None,
        opens_connection: false,
        icmp_type: None,
    };
    if let Some(Fragment { offset: 1.. }) = fragment {
        let overwrites_flags = protocol == protocol::TCP && fragment.is_some_and(|one| one.offset == 1);
        return (!overwrites_flags).then_some(found);
    }
    match protocol {
        protocol::TCP => {
            let head = body.get(..TCP_FLAGS_END)?;
            found.ports = Some(ports(head)?);
            found.opens_connection = head[13] & (tcp_flag::SYN | tcp_flag::ACK) == tcp_flag::SYN;
        }
        protocol::UDP => found.ports = Some(ports(body)?),
        protocol::ICMP | protocol::ICMPV6 => found.icmp_type = Some(*body.first()?),
        _ => {}
    }
    Some(found)
}

fn ports(transport: &[u8]) -> Option<(u16, u16)> {
    let [a, b, c, d] = *transport.first_chunk::<4>()?;
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Builds an IPv4 packet with these options and this fragment field.
    fn v4(protocol: u8, options: &[u8], fragment: u16, body: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 20];
        packet[0] = 0x45 + (options.len() / 4) as u8;
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet[9] = protocol;
        packet[12..16].copy_from_slice(&[100, 96, 0, 2]);
        packet[16..20].copy_from_slice(&[203, 0, 113, 9]);
        [&packet, options, body].concat()
    }

    /// Builds an IPv6 packet; `headers` are extension headers without their first byte, by number.
    fn v6(headers: &[(u8, &[u8])], last: u8, body: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 40];
        packet[0] = 0x60;
        packet[6] = headers.first().map_or(last, |(number, _)| *number);
        for (at, (_, rest)) in headers.iter().enumerate() {
            packet.push(headers.get(at + 1).map_or(last, |(number, _)| *number));
            packet.extend_from_slice(rest);
        }
        [&packet, body].concat()
    }

    fn tcp(flags: u8) -> Vec<u8> {
        let mut header = vec![0; 20];
        header[..4].copy_from_slice(&[0x9c, 0x40, 0, 22]);
        header[12] = 0x50;
        header[13] = flags;
        header
    }

    #[test]
    fn a_connection_is_opened_by_syn_without_ack() {
        let of = |flags| parse(&v4(6, &[], 0, &tcp(flags))).expect("valid");
        assert!(of(tcp_flag::SYN).opens_connection);
        assert!(of(tcp_flag::SYN | tcp_flag::ECE | tcp_flag::CWR).opens_connection);
        assert!(!of(tcp_flag::SYN | tcp_flag::ACK).opens_connection);
        assert!(!of(tcp_flag::ACK).opens_connection);
        assert_eq!(of(tcp_flag::ACK).ports, Some((40000, 22)));
    }

    #[test]
    fn headers_in_front_hide_nothing() {
        let body = tcp(tcp_flag::SYN);
        let options: &[u8] = &[0, 0, 0, 0, 0, 0, 0];
        let authentication: &[u8] = &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let fragment_of_one: &[u8] = &[0, 0, 0, 0, 0, 0, 7];
        let all = [
            (HOP_BY_HOP, options),
            (DESTINATION_OPTIONS, options),
            (ROUTING, options),
            (FRAGMENT, fragment_of_one),
            (AUTHENTICATION, authentication),
            (DESTINATION_OPTIONS, options),
        ];
        for count in 0..=all.len() {
            let found = parse(&v6(&all[..count], 6, &body)).expect("valid");
            assert_eq!(found.ports, Some((40000, 22)), "{count} headers");
            assert!(found.opens_connection);
        }
        let seven = [(DESTINATION_OPTIONS, options); 7];
        assert_eq!(parse(&v6(&seven, 6, &body)), None);
        let none = parse(&v6(&[], NO_NEXT_HEADER, &[])).expect("valid");
        assert_eq!((none.protocol, none.ports), (NO_NEXT_HEADER, None));
    }

    #[test]
    fn a_route_that_the_sender_chose_is_refused() {
        let body = tcp(tcp_flag::SYN);
        let segments_left: &[u8] = &[0, 0, 1, 0, 0, 0, 0];
        assert_eq!(parse(&v6(&[(ROUTING, segments_left)], 6, &body)), None);
        for kind in SOURCE_ROUTES {
            assert_eq!(parse(&v4(6, &[1, kind, 7, 4, 1, 2, 3, 4], 0, &body)), None);
        }
        // A router alert as the last option.
        assert!(parse(&v4(6, &[148, 4, 0, 0], 0, &body)).is_some());
        for unreadable in [[7, 0, 0, 0], [7, 1, 0, 0], [7, 9, 0, 0]] {
            assert_eq!(parse(&v4(6, &unreadable, 0, &body)), None);
        }
    }

    #[test]
    fn fragments_cannot_hide_or_overwrite_a_tcp_header() {
        const MORE: u16 = 0x2000;
        let body = tcp(tcp_flag::SYN);
        assert_eq!(parse(&v4(6, &[], MORE, &body[..8])), None, "flags hidden");
        assert_eq!(parse(&v4(6, &[], 1, &body)), None, "flags overwritten");
        let first = parse(&v4(6, &[], MORE, &body)).expect("valid");
        assert!(first.opens_connection);
        let later = parse(&v4(6, &[], MORE | 2, &body)).expect("valid");
        assert_eq!((later.ports, later.opens_connection), (None, false));
        let later: &[u8] = &[0, 0, 16, 0, 0, 0, 7];
        let later = parse(&v6(&[(FRAGMENT, later)], 17, &[1])).expect("valid");
        assert_eq!((later.protocol, later.ports), (17, None));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_not_but_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..160)) {
            let _ = parse(&bytes);
        }
    }
}
