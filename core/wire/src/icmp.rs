//! ICMP messages of the tunnel: a packet is too large for every path, or the destination of a split
//! connection is unreachable.

use std::net::{IpAddr, Ipv4Addr};

use crate::inner::{self, protocol};

/// Maximum number of bytes that an IPv4 answer quotes from the dropped packet.
///
/// Source: RFC 1812 section 4.3.2.3 (as much as fits 576 bytes).
const QUOTE_V4: usize = 576 - 28;
/// Maximum number of bytes that an IPv6 answer quotes.
///
/// Source: RFC 4443 section 3.2 (as much as fits the minimum MTU).
const QUOTE_V6: usize = 1280 - 48;

/// Returns the answer to a packet larger than `mtu` bytes: "fragmentation needed" (RFC 1191) or
/// "packet too big" (RFC 4443). `None` if no answer is permitted: for packets that cannot be
/// parsed, ICMP errors, and multicast.
#[must_use]
pub fn too_large(packet: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let summary = inner::parse(packet)?;
    let key = &summary.key;
    let is_error = is_icmp_error(key.protocol, packet.get(usize::from(summary.ip_len)));
    let silent = is_error || key.destination.is_multicast() || key.source.is_unspecified();
    if silent {
        return None;
    }
    Some(match (key.source, key.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            v4(packet, ([3, 4], u32::from(mtu)), destination, source)
        }
        _ => v6(packet, ([2, 0], u32::from(mtu))),
    })
}

/// Returns the answer to a packet whose destination is unreachable: "host unreachable" (RFC 792) or
/// "address unreachable" (RFC 4443 section 3.1), with the destination as its source. `None` if the
/// packet cannot be parsed.
#[must_use]
pub fn unreachable(packet: &[u8]) -> Option<Vec<u8>> {
    let key = inner::parse(packet)?.key;
    Some(match (key.source, key.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => v4(packet, ([3, 1], 0), destination, source),
        _ => v6(packet, ([1, 3], 0)),
    })
}

/// Returns whether an ICMP message may be an error, to which no error is sent.
///
/// Source: RFC 1122 section 3.2.2, RFC 4443 section 2.4.
fn is_icmp_error(protocol: u8, kind: Option<&u8>) -> bool {
    match protocol {
        protocol::ICMP => kind.is_none_or(|kind| !matches!(kind, 0 | 8 | 13 | 14)),
        protocol::ICMPV6 => kind.is_none_or(|kind| *kind < 128),
        _ => false,
    }
}

/// Builds an IPv4 message of a type and code, with the word that follows its checksum.
fn v4(packet: &[u8], (kind, word): ([u8; 2], u32), from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let quote = &packet[..packet.len().min(QUOTE_V4)];
    let mut out = vec![0; 28];
    out[0] = 0x45;
    out[2..4].copy_from_slice(&((28 + quote.len()) as u16).to_be_bytes());
    out[8] = 64;
    out[9] = protocol::ICMP;
    // The destination's address is the source: the tunnel has no address that every sender could
    // reach.
    out[12..16].copy_from_slice(&from.octets());
    out[16..20].copy_from_slice(&to.octets());
    out[20..22].copy_from_slice(&kind);
    out[24..28].copy_from_slice(&word.to_be_bytes());
    out.extend_from_slice(quote);
    inner::fill_ipv4_checksum(&mut out, 20);
    let sum = !inner::ones_sum(&out[20..], 0);
    out[22..24].copy_from_slice(&sum.to_be_bytes());
    out
}

/// Builds an IPv6 message.
fn v6(packet: &[u8], (kind, word): ([u8; 2], u32)) -> Vec<u8> {
    let quote = &packet[..packet.len().min(QUOTE_V6)];
    let mut out = vec![0; 48];
    out[0] = 0x60;
    out[4..6].copy_from_slice(&((8 + quote.len()) as u16).to_be_bytes());
    out[6] = protocol::ICMPV6;
    out[7] = 64;
    out[8..24].copy_from_slice(&packet[24..40]);
    out[24..40].copy_from_slice(&packet[8..24]);
    out[40..42].copy_from_slice(&kind);
    out[44..48].copy_from_slice(&word.to_be_bytes());
    out.extend_from_slice(quote);
    let pseudo = inner::pseudo_header_sum(&out, protocol::ICMPV6, out.len() - 40);
    let sum = !inner::ones_sum(&out[40..], u32::from(pseudo));
    out[42..44].copy_from_slice(&sum.to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_ipv4_with_a_valid_message() {
        let packet = inner::tests::tcp_packet(1, &[0; 1400], 0x10);
        let answer = too_large(&packet, 1280).expect("an answer");
        assert_eq!(inner::ones_sum(&answer[..20], 0), 0xffff);
        assert_eq!(inner::ones_sum(&answer[20..], 0), 0xffff);
        assert_eq!(&answer[16..20], &packet[12..16]);
        assert_eq!(u16::from_be_bytes([answer[26], answer[27]]), 1280);
        assert!(too_large(&answer, 1280).is_none(), "never an answer to an answer");
    }

    #[test]
    fn an_ipv4_answer_says_what_the_standard_wants() {
        let packet = inner::tests::tcp_packet(1, &[7; 1400], 0x10);
        let answer = too_large(&packet, 1280).expect("an answer");
        assert_eq!(answer.len(), 576);
        assert_eq!(answer[..10], [0x45, 0, 2, 64, 0, 0, 0, 0, 64, protocol::ICMP]);
        assert_eq!(
            (&answer[12..16], &answer[16..20]),
            (&packet[16..20], &packet[12..16])
        );
        assert_eq!((answer[20], answer[21]), (3, 4), "fragmentation needed");
        assert_eq!(answer[24..28], [0, 0, 5, 0]);
        assert_eq!(answer[28..], packet[..548]);
        let short = inner::tests::tcp_packet(1, &[7; 60], 0x10);
        let answer = too_large(&short, 68).expect("an answer");
        assert_eq!((answer.len(), &answer[28..]), (28 + 112, &short[..]));
    }

    #[test]
    fn an_ipv6_answer_says_what_the_standard_wants() {
        let mut packet = inner::tests::udp_packet(&[7; 1400]);
        packet[8..24].fill(0x20);
        let answer = too_large(&packet, 1281).expect("an answer");
        assert_eq!(answer.len(), 1280);
        assert_eq!(answer[..8], [0x60, 0, 0, 0, 4, 216, protocol::ICMPV6, 64]);
        assert_eq!(
            (&answer[8..24], &answer[24..40]),
            (&packet[24..40], &packet[8..24])
        );
        assert_eq!((answer[40], answer[41]), (2, 0), "packet too big");
        assert_eq!(answer[44..48], [0, 0, 5, 1]);
        assert_eq!(answer[48..], packet[..1232]);
        let pseudo = inner::pseudo_header_sum(&answer, protocol::ICMPV6, answer.len() - 40);
        assert_eq!(inner::ones_sum(&answer[40..], u32::from(pseudo)), 0xffff);
    }

    #[test]
    fn an_unreachable_destination_is_named_by_a_valid_message() {
        let packet = inner::tests::tcp_packet(1, &[], 0x02);
        let answer = unreachable(&packet).expect("an answer");
        assert_eq!((answer[20], answer[21]), (3, 1));
        assert_eq!(answer[12..16], packet[16..20], "in the name of the destination");
        assert_eq!(inner::ones_sum(&answer[20..], 0), 0xffff);
        let packet = inner::tests::udp_packet(&[7; 100]);
        let answer = unreachable(&packet).expect("an answer");
        assert_eq!((answer[40], answer[41]), (1, 3));
    }

    /// Source: RFC 1812 section 4.3.2.7, RFC 4443 section 2.4 (e).
    #[test]
    fn nothing_is_said_where_nothing_may_be_said() {
        let silent = |packet: &[u8], change: &dyn Fn(&mut [u8])| {
            assert!(too_large(packet, 1280).is_some());
            let mut packet = packet.to_vec();
            change(&mut packet);
            assert_eq!(too_large(&packet, 1280), None);
        };
        let v4 = inner::tests::tcp_packet(1, &[0; 1400], 0x10);
        silent(&v4, &|p| (p[9], p[20]) = (protocol::ICMP, 3));
        silent(&v4, &|p| p[16] = 224);
        silent(&v4, &|p| p[12..16].fill(0));
        silent(&v4, &|p| p[0] = 0x15);
        let v6 = inner::tests::udp_packet(&[0; 1400]);
        silent(&v6, &|p| (p[6], p[40]) = (protocol::ICMPV6, 1));
        silent(&v6, &|p| p[24] = 0xff);
        let mut ping = v4;
        (ping[9], ping[20]) = (protocol::ICMP, 8);
        assert!(too_large(&ping, 1280).is_some(), "a ping is no error");
        silent(&v6, &|p| p[8..24].fill(0));
    }

    #[test]
    fn answers_ipv6_with_a_valid_message() {
        let mut packet = vec![0; 1400];
        packet[0] = 0x60;
        packet[6] = protocol::UDP;
        packet[8] = 0x20;
        packet[24] = 0x20;
        packet[39] = 1;
        let answer = too_large(&packet, 1280).expect("an answer");
        let pseudo = inner::pseudo_header_sum(&answer, protocol::ICMPV6, answer.len() - 40);
        assert_eq!(inner::ones_sum(&answer[40..], u32::from(pseudo)), 0xffff);
        assert!(answer.len() <= 1280);
    }
}
