//! Rewrites the addresses of inner TCP packets, so that the kernel's own TCP accepts a connection
//! that was addressed to another machine, and answers with the destination's address.
//!
//! ```text
//!   program:40000 -> server:443      becomes   ALIAS:alias port -> program:listener
//!   program:listener -> ALIAS:alias  becomes   server:443 -> program:40000
//! ```
//!
//! The payload is unchanged: a segment of 64 KB stays one segment, and a partial checksum
//! (pseudo-header only) stays partial.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::inner::{self, Summary, checksum_update, protocol, tcp_flag};

/// Source address of split IPv4 connections at this machine's listener.
///
/// Source: RFC 7600 section 5.4 reserves it as a dummy, so no machine has this address.
pub const ALIAS4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
/// Source address of split IPv6 connections. Source: RFC 6666 section 2, the prefix of discarded
/// packets.
pub const ALIAS6: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 8);

/// Returns the alias of the family of an address.
#[must_use]
pub fn alias_for(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => ALIAS4.into(),
        IpAddr::V6(_) => ALIAS6.into(),
    }
}

/// Returns whether an address is an alias.
#[must_use]
pub fn is_alias(address: IpAddr) -> bool {
    address == ALIAS4 || address == ALIAS6
}

/// Kinds of TCP options that bind a connection to its two ends.
///
/// Source: RFC 2385 (MD5), RFC 5925 (TCP-AO), RFC 8684 (MPTCP), RFC 7413 (Fast Open).
const END_TO_END_OPTIONS: [u8; 4] = [19, 29, 30, 34];
/// Bytes of a TCP header without options. Source: RFC 9293 section 3.1.
const TCP_LEN: usize = 20;
/// Offset of the checksum in a TCP header. Source: RFC 9293 section 3.1.
const CHECKSUM_AT: usize = 16;

/// Returns whether a packet requests a TCP connection: SYN without ACK.
#[must_use]
pub fn asks(summary: &Summary) -> bool {
    let flags = tcp_flag::SYN | tcp_flag::ACK | tcp_flag::RST | tcp_flag::FIN;
    summary.key.protocol == protocol::TCP
        && summary.has_transport()
        && summary.tcp_flags & flags == tcp_flag::SYN
}

/// Returns whether a SYN's connection can be split into one TCP connection at each end: it has no
/// data yet, and no option that authenticates or joins the two ends.
#[must_use]
pub fn is_plain(packet: &[u8], summary: &Summary) -> bool {
    let end = usize::from(summary.headers_len);
    let Some(mut options) = packet.get(summary.transport_at() + TCP_LEN..end) else {
        return false;
    };
    if packet.len() != end {
        return false;
    }
    while let Some((kind, rest)) = options.split_first() {
        options = match kind {
            0 => return true,
            1 => rest,
            kind if END_TO_END_OPTIONS.contains(kind) => return false,
            _ => match rest
                .first()
                .and_then(|len| options.get(usize::from(*len).max(2)..))
            {
                Some(rest) => rest,
                None => return false,
            },
        };
    }
    true
}

/// Rewrites both ends of a TCP packet that [`inner::parse`] accepted, and updates its checksums.
/// `is_partial`: the TCP checksum covers only the pseudo-header.
///
/// # Panics
/// If an end is of another family than the packet.
pub fn readdress(
    packet: &mut [u8],
    summary: &Summary,
    (source, destination): (SocketAddr, SocketAddr),
    is_partial: bool,
) {
    let mut addresses = [0; 32];
    let at = match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            addresses[..4].copy_from_slice(&source.octets());
            addresses[4..8].copy_from_slice(&destination.octets());
            12..20
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            addresses[..16].copy_from_slice(&source.octets());
            addresses[16..].copy_from_slice(&destination.octets());
            8..40
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {
            panic!("ends of one family")
        }
    };
    let (transport, is_v4) = (summary.transport_at(), at.len() == 8);
    let field = transport + CHECKSUM_AT;
    let mut checksum = u16::from_be_bytes([packet[field], packet[field + 1]]);
    let mut ip_checksum = u16::from_be_bytes([packet[10], packet[11]]);
    let fresh = &addresses[..at.len()];
    for (old, new) in packet[at.clone()]
        .as_chunks::<2>()
        .0
        .iter()
        .zip(fresh.as_chunks::<2>().0)
    {
        let (old, new) = (u16::from_be_bytes(*old), u16::from_be_bytes(*new));
        ip_checksum = checksum_update(ip_checksum, old, new);
        checksum = if is_partial {
            // The field holds the sum itself, not its complement.
            !checksum_update(!checksum, old, new)
        } else {
            checksum_update(checksum, old, new)
        };
    }
    packet[at].copy_from_slice(fresh);
    for (at, port) in [(transport, source.port()), (transport + 2, destination.port())] {
        let old = u16::from_be_bytes([packet[at], packet[at + 1]]);
        if !is_partial {
            checksum = checksum_update(checksum, old, port);
        }
        packet[at..at + 2].copy_from_slice(&port.to_be_bytes());
    }
    packet[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    if is_v4 {
        packet[10..12].copy_from_slice(&ip_checksum.to_be_bytes());
    }
}

/// Returns the reset that rejects a SYN's connection, with the destination's address.
///
/// Source: RFC 9293 section 3.10.7.1.
#[must_use]
pub fn refusal(packet: &[u8], summary: &Summary) -> Option<Vec<u8>> {
    let transport = summary.transport_at();
    let sequence = packet.get(transport + 4..transport + 8)?;
    let sequence = u32::from_be_bytes(sequence.try_into().ok()?);
    let key = &summary.key;
    let ip_len = if key.source.is_ipv4() { 20 } else { 40 };
    let mut out = vec![0; ip_len + TCP_LEN];
    match (key.source, key.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            out[0] = 0x45;
            out[2..4].copy_from_slice(&((20 + TCP_LEN) as u16).to_be_bytes());
            (out[6], out[8], out[9]) = (0x40, 64, protocol::TCP);
            out[12..16].copy_from_slice(&destination.octets());
            out[16..20].copy_from_slice(&source.octets());
            inner::fill_ipv4_checksum(&mut out, 20);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            out[0] = 0x60;
            out[4..6].copy_from_slice(&(TCP_LEN as u16).to_be_bytes());
            (out[6], out[7]) = (protocol::TCP, 64);
            out[8..24].copy_from_slice(&destination.octets());
            out[24..40].copy_from_slice(&source.octets());
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
    }
    let tcp = &mut out[ip_len..];
    tcp[..2].copy_from_slice(&key.destination_port.to_be_bytes());
    tcp[2..4].copy_from_slice(&key.source_port.to_be_bytes());
    tcp[8..12].copy_from_slice(&sequence.wrapping_add(1).to_be_bytes());
    (tcp[12], tcp[13]) = ((TCP_LEN as u8 / 4) << 4, tcp_flag::RST | tcp_flag::ACK);
    let pseudo = inner::pseudo_header_sum(&out, protocol::TCP, TCP_LEN);
    let sum = !inner::ones_sum(&out[ip_len..], u32::from(pseudo));
    let field = ip_len + CHECKSUM_AT;
    out[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inner::tests::tcp_packet;

    /// Builds a SYN with these options and a complete checksum.
    fn syn(options: &[u8]) -> Vec<u8> {
        let mut packet = tcp_packet(7, &[], tcp_flag::SYN);
        packet.truncate(40);
        packet.extend_from_slice(options);
        let len = packet.len() as u16;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet[32] = (((TCP_LEN + options.len()) / 4) as u8) << 4;
        fill(&mut packet);
        packet
    }

    fn fill(packet: &mut [u8]) {
        packet[36..38].fill(0);
        let pseudo = inner::pseudo_header_sum(packet, protocol::TCP, packet.len() - 20);
        let sum = !inner::ones_sum(&packet[20..], u32::from(pseudo));
        packet[36..38].copy_from_slice(&sum.to_be_bytes());
        inner::fill_ipv4_checksum(packet, 20);
    }

    fn is_valid(packet: &[u8]) -> bool {
        let pseudo = inner::pseudo_header_sum(packet, protocol::TCP, packet.len() - 20);
        inner::ones_sum(&packet[20..], u32::from(pseudo)) == 0xffff
            && inner::ones_sum(&packet[..20], 0) == 0xffff
    }

    const ENDS: [&str; 2] = ["192.0.0.8:1024", "100.96.0.2:45678"];

    fn ends() -> (SocketAddr, SocketAddr) {
        let [source, destination] = ENDS.map(|end| end.parse().expect("an address"));
        (source, destination)
    }

    #[test]
    fn a_rewritten_packet_has_the_ends_and_valid_checksums() {
        let mut packet = tcp_packet(7, &[9; 301], tcp_flag::ACK);
        fill(&mut packet);
        assert!(is_valid(&packet));
        let summary = inner::parse(&packet).expect("a packet");
        readdress(&mut packet, &summary, ends(), false);
        assert!(is_valid(&packet));
        let key = inner::parse(&packet).expect("a packet").key;
        assert_eq!(SocketAddr::new(key.source, key.source_port), ends().0);
        assert_eq!(SocketAddr::new(key.destination, key.destination_port), ends().1);
    }

    #[test]
    fn a_partial_checksum_is_still_that_of_the_pseudo_header() {
        let mut packet = tcp_packet(7, &[9; 300], tcp_flag::ACK);
        inner::fill_ipv4_checksum(&mut packet, 20);
        let pseudo = inner::pseudo_header_sum(&packet, protocol::TCP, packet.len() - 20);
        packet[36..38].copy_from_slice(&pseudo.to_be_bytes());
        let summary = inner::parse(&packet).expect("a packet");
        readdress(&mut packet, &summary, ends(), true);
        let pseudo = inner::pseudo_header_sum(&packet, protocol::TCP, packet.len() - 20);
        assert_eq!(packet[36..38], pseudo.to_be_bytes());
    }

    #[test]
    fn a_refusal_is_what_a_closed_port_answers() {
        let packet = syn(&[2, 4, 5, 0xb4]);
        let summary = inner::parse(&packet).expect("a packet");
        let answer = refusal(&packet, &summary).expect("an answer");
        assert!(is_valid(&answer));
        let said = inner::parse(&answer).expect("a packet");
        assert_eq!(said.tcp_flags, tcp_flag::RST | tcp_flag::ACK);
        assert_eq!(
            (said.key.source, said.key.source_port),
            (summary.key.destination, summary.key.destination_port)
        );
        let sequence = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
        assert_eq!(
            sequence(&answer[28..32]),
            sequence(&packet[24..28]).wrapping_add(1)
        );
    }

    #[test]
    fn options_that_bind_both_ends_leave_a_connection_whole() {
        let asked = |packet: &[u8]| {
            let summary = inner::parse(packet).expect("a packet");
            assert!(asks(&summary));
            is_plain(packet, &summary)
        };
        assert!(asked(&syn(&[])));
        assert!(asked(&syn(&[
            2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7
        ])));
        assert!(!asked(&syn(&[30, 12, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0])), "MPTCP");
        assert!(!asked(&syn(&[1, 1, 34, 2])), "Fast Open");
        assert!(
            !asked(&syn(&[
                19, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1
            ])),
            "MD5"
        );
        assert!(!asked(&syn(&[8, 60, 0, 0])), "cut short");
        let mut with_data = syn(&[]);
        with_data.push(1);
        assert!(!asked(&with_data));
        let answer = tcp_packet(7, &[], tcp_flag::SYN | tcp_flag::ACK);
        assert!(!asks(&inner::parse(&answer).expect("a packet")));
    }
}
