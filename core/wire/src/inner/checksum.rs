//! Checksums of inner packets: the ones' complement sum (RFC 1071), its update after a change of a
//! word, the header checksum of IPv4 and the transport checksums of TCP and UDP.

use super::{Summary, protocol};

/// Returns the ones' complement sum of `bytes`, folded to 16 bits but not complemented.
#[must_use]
pub fn ones_sum(bytes: &[u8], initial: u32) -> u16 {
    let mut sum = u64::from(initial);
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        sum += u64::from(u32::from_be_bytes(*word));
    }
    let mut tail = [0; 4];
    tail[..rest.len()].copy_from_slice(rest);
    sum += u64::from(u32::from_be_bytes(tail));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Writes the complete transport checksum of a TCP or UDP packet; other packets stay unchanged.
///
/// Source: RFC 9293 section 3.1, RFC 768, RFC 8200 section 8.1.
pub fn complete_transport(packet: &mut [u8], summary: &Summary) {
    let Some(field) = checksum_field(packet, summary) else {
        return;
    };
    packet[field..field + 2].fill(0);
    let sum = match !transport_sum(packet, summary) {
        // Zero means "none" in UDP; to TCP both are the same number.
        0 => 0xffff,
        sum => sum,
    };
    packet[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Returns whether a TCP or UDP packet has a complete and correct transport checksum.
#[must_use]
pub fn is_transport_complete(packet: &[u8], summary: &Summary) -> bool {
    let field = checksum_field(packet, summary);
    // A UDP packet over IPv4 may have no checksum.
    field.is_some_and(|field| packet[field..field + 2] != [0, 0]) && transport_sum(packet, summary) == 0xffff
}

/// Returns the offset of the transport checksum.
pub(super) fn checksum_field(packet: &[u8], summary: &Summary) -> Option<usize> {
    let offset = match summary.key.protocol {
        protocol::TCP => 16,
        protocol::UDP => 6,
        _ => return None,
    };
    let field = summary.transport_at() + offset;
    (summary.has_transport() && field + 2 <= packet.len()).then_some(field)
}

fn transport_sum(packet: &[u8], summary: &Summary) -> u16 {
    let transport = &packet[summary.transport_at()..];
    let ip = &packet[usize::from(summary.ip_at)..];
    let pseudo = pseudo_header_sum(ip, summary.key.protocol, transport.len());
    ones_sum(transport, u32::from(pseudo))
}

/// Returns a checksum after the replacement of a 16-bit word.
///
/// Source: RFC 1624 equation 3.
#[must_use]
pub fn checksum_update(checksum: u16, old: u16, new: u16) -> u16 {
    let mut sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Writes the header checksum of an IPv4 packet.
pub fn fill_ipv4_checksum(packet: &mut [u8], ip_len: usize) {
    packet[10..12].fill(0);
    let sum = !ones_sum(&packet[..ip_len], 0);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Returns the pseudo-header sum of a packet whose transport part is `transport_len` bytes long:
/// the value of a transport checksum field until its completion.
#[must_use]
pub fn pseudo_header_sum(packet: &[u8], protocol: u8, transport_len: usize) -> u16 {
    let addresses = if packet[0] >> 4 == 4 {
        &packet[12..20]
    } else {
        &packet[8..40]
    };
    ones_sum(addresses, u32::from(protocol) + transport_len as u32)
}
