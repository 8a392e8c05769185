//! Inner IP packets: what flow a packet belongs to, and the fields that the tunnel reads or
//! rewrites.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IP protocol numbers that the tunnel treats specially.
pub mod protocol {
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// GRE.
    pub const GRE: u8 = 47;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
}

/// The five-tuple. Ports are zero where the transport has none or the packet is a later fragment.
/// An ICMP message has no ports either: the source port of an echo is its identifier, and an error
/// has the ports of the packet that it quotes, so that each is a flow of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// IP protocol (IPv6: the first next header).
    pub protocol: u8,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

/// Where things are in an inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The flow.
    pub key: FlowKey,
    /// Where the IP header begins: 0, or behind the Ethernet header of a frame
    /// ([`crate::frame::Format`]).
    pub ip_at: u16,
    /// Bytes of the IP header, options included; 0 of a frame without IP.
    pub ip_len: u16,
    /// Bytes of all headers together; no more than [`Self::transport_at`] where the transport is
    /// not TCP or UDP.
    pub headers_len: u16,
    /// The TCP flags; zero for others.
    pub tcp_flags: u8,
    /// Differentiated services code point.
    pub dscp: u8,
    /// The ECN field.
    pub ecn: Ecn,
    /// A protocol over UDP that the packet looks like.
    pub signature: Option<Signature>,
}

/// A protocol over UDP that is known by the first bytes of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// Begins a QUIC connection: a long header of version 1 or 2. The second bit says nothing: a
    /// server that knows that its client does not mind sends it at random from its first packet on.
    ///
    /// Source: RFC 9000 section 17.2, RFC 9369 section 3.1, RFC 9287 section 3.1.
    Quic,
    /// A message of WireGuard: its type and three zero bytes, and the length that the type has.
    ///
    /// Source: WireGuard, "Next Generation Kernel Network Tunnel", section 5.4.
    WireGuard,
}

impl Summary {
    /// Where the transport header begins.
    #[must_use]
    pub fn transport_at(&self) -> usize {
        usize::from(self.ip_at) + usize::from(self.ip_len)
    }

    /// Whether it is TCP or UDP, and its header is there.
    #[must_use]
    pub fn has_transport(&self) -> bool {
        usize::from(self.headers_len) > self.transport_at()
    }
}

/// The two ECN bits.
///
/// Source: RFC 3168 section 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// Not ECN-capable.
    NotEct,
    /// Capable (1).
    Ect1,
    /// Capable (0).
    Ect0,
    /// Congestion experienced.
    Ce,
}

impl Ecn {
    /// From the two low bits of a traffic class byte.
    #[must_use]
    pub fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// The two bits.
    #[must_use]
    pub fn bits(self) -> u8 {
        self as u8
    }
}

/// TCP flag bits.
pub mod tcp_flag {
    /// No more data.
    pub const FIN: u8 = 0x01;
    /// Synchronise.
    pub const SYN: u8 = 0x02;
    /// Reset.
    pub const RST: u8 = 0x04;
    /// Push.
    pub const PSH: u8 = 0x08;
    /// Acknowledges.
    pub const ACK: u8 = 0x10;
    /// Echoes congestion marks, or asks for them.
    pub const ECE: u8 = 0x40;
    /// Congestion window reduced.
    pub const CWR: u8 = 0x80;
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// Reads the headers of an IP packet; `None` when it is not IPv4 or IPv6, or is cut short.
///
/// Cost: O(1), no copy. Extension headers of IPv6 are not walked: such packets form a flow per
/// address pair.
#[must_use]
pub fn parse(packet: &[u8]) -> Option<Summary> {
    match packet.first()? >> 4 {
        4 => parse_v4(packet),
        6 => parse_v6(packet),
        _ => None,
    }
}

fn parse_v4(packet: &[u8]) -> Option<Summary> {
    let head = packet.first_chunk::<20>()?;
    let ip_len = usize::from(head[0] & 0x0f) * 4;
    if ip_len < 20 || packet.len() < ip_len {
        return None;
    }
    let source = IpAddr::V4(Ipv4Addr::new(head[12], head[13], head[14], head[15]));
    let destination = IpAddr::V4(Ipv4Addr::new(head[16], head[17], head[18], head[19]));
    let fragment = u16::from_be_bytes([head[6], head[7]]) & 0x3fff != 0;
    finish(packet, ip_len, (source, destination), head[9], head[1], fragment)
}

fn parse_v6(packet: &[u8]) -> Option<Summary> {
    let head = packet.first_chunk::<40>()?;
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&head[at..at + 16]);
        IpAddr::V6(Ipv6Addr::from(octets))
    };
    let class = (head[0] << 4) | (head[1] >> 4);
    finish(packet, 40, (address(8), address(24)), head[6], class, false)
}

fn finish(
    packet: &[u8],
    ip_len: usize,
    (source, destination): (IpAddr, IpAddr),
    protocol: u8,
    class: u8,
    fragment: bool,
) -> Option<Summary> {
    let mut headers_len = ip_len;
    let (mut source_port, mut destination_port, mut tcp_flags) = (0, 0, 0);
    let mut signature = None;
    if !fragment && matches!(protocol, protocol::TCP | protocol::UDP) {
        source_port = u16_at(packet, ip_len)?;
        destination_port = u16_at(packet, ip_len + 2)?;
        if protocol == protocol::TCP {
            let transport = usize::from(packet.get(ip_len + 12)? >> 4) * 4;
            if transport < 20 || packet.len() < ip_len + transport {
                return None;
            }
            tcp_flags = packet[ip_len + 13];
            headers_len += transport;
        } else {
            if packet.len() < ip_len + 8 {
                return None;
            }
            headers_len += 8;
            signature = signature_of(&packet[headers_len..]);
        }
    }
    if !fragment && matches!(protocol, protocol::ICMP | protocol::ICMPV6) {
        (source_port, destination_port) = icmp_ports(&packet[ip_len..], protocol);
    }
    Some(Summary {
        key: FlowKey {
            source,
            destination,
            protocol,
            source_port,
            destination_port,
        },
        ip_at: 0,
        ip_len: ip_len as u16,
        headers_len: headers_len as u16,
        tcp_flags,
        dscp: class >> 2,
        ecn: Ecn::from_bits(class),
        signature,
    })
}

/// The identifier of an echo, or the ports of the packet that an error quotes; zeros for others.
///
/// Source: RFC 792, RFC 4443 (both have eight bytes before the identifier's end or the quotation).
fn icmp_ports(message: &[u8], protocol: u8) -> (u16, u16) {
    let kind = message.first().copied();
    let (is_echo, is_error) = match protocol {
        protocol::ICMP => (matches!(kind, Some(0 | 8)), matches!(kind, Some(3 | 11 | 12))),
        _ => (matches!(kind, Some(128 | 129)), matches!(kind, Some(1..=4))),
    };
    let quoted = || {
        let packet = message.get(8..)?;
        let at = match packet.first()? >> 4 {
            4 => usize::from(packet[0] & 0x0f) * 4,
            _ => 40,
        };
        Some((u16_at(packet, at)?, u16_at(packet, at + 2)?))
    };
    if is_echo {
        (u16_at(message, 4).unwrap_or(0), 0)
    } else if is_error {
        quoted().unwrap_or_default()
    } else {
        (0, 0)
    }
}

fn signature_of(datagram: &[u8]) -> Option<Signature> {
    if is_wireguard(datagram) {
        Some(Signature::WireGuard)
    } else {
        is_quic_long_header(datagram).then_some(Signature::Quic)
    }
}

fn is_wireguard(datagram: &[u8]) -> bool {
    match (datagram, datagram.len()) {
        ([1, 0, 0, 0, ..], 148) | ([2, 0, 0, 0, ..], 92) | ([3, 0, 0, 0, ..], 64) => true,
        ([4, 0, 0, 0, ..], len) => len >= 32 && len % 16 == 0,
        _ => false,
    }
}

fn is_quic_long_header(datagram: &[u8]) -> bool {
    let Some([first, version @ .., id_len]) = datagram.first_chunk::<6>() else {
        return false;
    };
    first & 0x80 != 0 && QUIC_VERSIONS.contains(&u32::from_be_bytes(*version)) && *id_len <= MAX_QUIC_ID
}

const QUIC_VERSIONS: [u32; 2] = [1, 0x6b33_43cf];
/// Bytes of a connection id. Source: RFC 9000 section 17.2.
const MAX_QUIC_ID: u8 = 20;

/// Sets the ECN field of an IP packet that [`parse`] accepted, and mends the IPv4 header checksum.
pub fn set_ecn(packet: &mut [u8], ecn: Ecn) {
    match packet[0] >> 4 {
        4 => {
            let old = u16::from_be_bytes([packet[0], packet[1]]);
            packet[1] = (packet[1] & !3) | ecn.bits();
            let new = u16::from_be_bytes([packet[0], packet[1]]);
            let sum = u16::from_be_bytes([packet[10], packet[11]]);
            packet[10..12].copy_from_slice(&checksum_update(sum, old, new).to_be_bytes());
        }
        _ => packet[1] = (packet[1] & !0x30) | (ecn.bits() << 4),
    }
}

/// What a tunnel exit does with the ECN marks of the outer and the inner packet.
///
/// Source: RFC 6040 section 4.2, figure 4. `None`: the packet must be dropped.
#[must_use]
pub fn ecn_at_exit(inner: Ecn, outer: Ecn) -> Option<Ecn> {
    match (inner, outer) {
        (Ecn::NotEct, Ecn::Ce) => None,
        (Ecn::Ect0 | Ecn::Ect1, Ecn::Ce) | (Ecn::Ce, _) => Some(Ecn::Ce),
        (Ecn::Ect0, Ecn::Ect1) => Some(Ecn::Ect1),
        (inner, _) => Some(inner),
    }
}

/// The ones' complement sum over `bytes`, folded to 16 bits but not complemented.
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

/// Replaces a 16-bit word under a checksum.
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

/// The pseudo-header sum of a packet whose transport part is `transport_len` bytes long: what a
/// transport checksum field holds while its completion is left to later.
#[must_use]
pub fn pseudo_header_sum(packet: &[u8], protocol: u8, transport_len: usize) -> u16 {
    let addresses = if packet[0] >> 4 == 4 {
        &packet[12..20]
    } else {
        &packet[8..40]
    };
    ones_sum(addresses, u32::from(protocol) + transport_len as u32)
}

/// Lowers the maximum segment size that a TCP SYN announces to what fits `mtu` bytes of inner
/// packet. Returns whether it changed anything.
///
/// `complete`: the transport checksum is complete and is mended too; otherwise it covers only the
/// pseudo-header.
///
/// Source: RFC 9293 section 3.7.1; the clamp is the usual one of tunnels and routers.
pub fn clamp_mss(packet: &mut [u8], summary: &Summary, mtu: u16, complete: bool) -> bool {
    if summary.tcp_flags & tcp_flag::SYN == 0 {
        return false;
    }
    let transport = summary.transport_at();
    let most = mtu.saturating_sub(transport as u16 + 20);
    let mut at = transport + 20;
    let end = usize::from(summary.headers_len);
    while at < end {
        match packet[at] {
            0 => return false,
            1 => at += 1,
            kind => {
                let Some(len) = packet.get(at + 1).map(|len| usize::from(*len)) else {
                    return false;
                };
                if len < 2 || at + len > end {
                    return false;
                }
                if kind == 2 && len == 4 {
                    let old = u16::from_be_bytes([packet[at + 2], packet[at + 3]]);
                    if old <= most {
                        return false;
                    }
                    packet[at + 2..at + 4].copy_from_slice(&most.to_be_bytes());
                    if complete {
                        let field = transport + 16;
                        let sum = u16::from_be_bytes([packet[field], packet[field + 1]]);
                        // An option at an odd offset sits in the other half of the words.
                        let (old, new) = if (at - transport).is_multiple_of(2) {
                            (old, most)
                        } else {
                            (old.swap_bytes(), most.swap_bytes())
                        };
                        packet[field..field + 2]
                            .copy_from_slice(&checksum_update(sum, old, new).to_be_bytes());
                    }
                    return true;
                }
                at += len;
            }
        }
    }
    false
}

/// Sets the length fields of IP (and UDP) headers to those of a packet of `len` bytes; `id` is
/// added to the IPv4 identification.
pub(crate) fn set_lengths(headers: &mut [u8], len: usize, ip_len: usize, protocol: u8, id: u16) {
    if headers[0] >> 4 == 4 {
        headers[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        let ident = u16::from_be_bytes([headers[4], headers[5]]).wrapping_add(id);
        headers[4..6].copy_from_slice(&ident.to_be_bytes());
        fill_ipv4_checksum(headers, ip_len);
    } else {
        headers[4..6].copy_from_slice(&((len - ip_len) as u16).to_be_bytes());
    }
    if protocol == protocol::UDP {
        headers[ip_len + 4..ip_len + 6].copy_from_slice(&((len - ip_len) as u16).to_be_bytes());
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A TCP packet over IPv4 with timestamps, complete checksums.
    pub(crate) fn tcp_packet(sequence: u32, payload: &[u8], flags: u8) -> Vec<u8> {
        let total = 20 + 32 + payload.len();
        let mut p = vec![0u8; total];
        p[0] = 0x45;
        p[1] = 2;
        p[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        p[6] = 0x40;
        p[8] = 64;
        p[9] = protocol::TCP;
        p[12..16].copy_from_slice(&[10, 0, 0, 1]);
        p[16..20].copy_from_slice(&[10, 0, 0, 2]);
        p[20..22].copy_from_slice(&80u16.to_be_bytes());
        p[22..24].copy_from_slice(&40000u16.to_be_bytes());
        p[24..28].copy_from_slice(&sequence.to_be_bytes());
        p[32] = 8 << 4;
        p[33] = flags;
        p[40..44].copy_from_slice(&[1, 1, 8, 10]);
        p[52..].copy_from_slice(payload);
        fill_ipv4_checksum(&mut p, 20);
        complete_transport(&mut p);
        p
    }

    /// A UDP packet over IPv6, complete checksum.
    pub(crate) fn udp_packet(payload: &[u8]) -> Vec<u8> {
        let transport = (8 + payload.len()) as u16;
        let mut p = vec![0x60, 0, 0, 0];
        p.extend(transport.to_be_bytes());
        p.extend([protocol::UDP, 64]);
        p.extend([0xfd; 32]);
        for field in [40_000, 443, transport, 0] {
            p.extend(field.to_be_bytes());
        }
        p.extend(payload);
        complete_transport(&mut p);
        p
    }

    /// Completes the transport checksum in software.
    pub(crate) fn complete_transport(p: &mut [u8]) {
        let s = parse(p).expect("valid");
        let at = usize::from(s.ip_len);
        let field = at + if s.key.protocol == protocol::TCP { 16 } else { 6 };
        p[field..field + 2].fill(0);
        let pseudo = pseudo_header_sum(p, s.key.protocol, p.len() - at);
        let sum = !ones_sum(&p[at..], u32::from(pseudo));
        p[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }

    fn checksums_hold(p: &[u8]) -> bool {
        let s = parse(p).expect("valid");
        let at = usize::from(s.ip_len);
        let pseudo = pseudo_header_sum(p, s.key.protocol, p.len() - at);
        ones_sum(&p[..at], 0) == 0xffff && ones_sum(&p[at..], u32::from(pseudo)) == 0xffff
    }

    #[test]
    fn finds_the_five_tuple() {
        let s = parse(&tcp_packet(7, b"hello", tcp_flag::PSH)).expect("valid");
        assert_eq!(
            (s.key.source_port, s.key.destination_port, s.headers_len),
            (80, 40000, 52)
        );
        assert_eq!(s.ecn, Ecn::Ect0);
    }

    #[test]
    fn a_quic_connection_is_known_by_its_first_packet() {
        let signature = |payload: &[u8]| parse(&udp_packet(payload)).expect("valid").signature;
        let opens = |payload: &[u8]| signature(payload) == Some(Signature::Quic);
        assert!(opens(&[0xc3, 0, 0, 0, 1, 8]));
        assert!(opens(&[0xd0, 0x6b, 0x33, 0x43, 0xcf, 0]));
        assert!(opens(&[0x83, 0, 0, 0, 1, 20]), "the second bit is greased");
        assert!(!opens(&[0x43, 0, 0, 0, 1, 8]), "a short header");
        assert!(!opens(&[0xc3, 0, 0, 0, 0, 8]), "version negotiation");
        assert!(!opens(&[0xc3, 0, 0, 0, 1, 21]), "no such connection id");
        assert!(!opens(&[0xc3, 0, 0, 0, 1]));
        let tcp = tcp_packet(1, &[0xc3, 0, 0, 0, 1, 8], 0x10);
        assert_eq!(parse(&tcp).expect("valid").signature, None);
    }

    #[test]
    fn wireguard_is_known_by_each_of_its_messages() {
        let is_known = |kind: u8, len: usize| {
            let mut payload = vec![0; len];
            payload[0] = kind;
            parse(&udp_packet(&payload)).expect("valid").signature == Some(Signature::WireGuard)
        };
        for (kind, len) in [(1, 148), (2, 92), (3, 64), (4, 32), (4, 1440)] {
            assert!(is_known(kind, len), "type {kind} of {len} bytes");
        }
        for (kind, len) in [(1, 147), (4, 16), (4, 33), (5, 32), (0, 148)] {
            assert!(!is_known(kind, len), "type {kind} of {len} bytes");
        }
    }

    #[test]
    fn each_ping_and_each_quoted_flow_is_a_flow_of_its_own() {
        let icmp = |message: &[u8]| {
            let mut packet = vec![0; 20];
            packet[0] = 0x45;
            packet[9] = protocol::ICMP;
            packet.extend(message);
            let key = parse(&packet).expect("valid").key;
            (key.source_port, key.destination_port)
        };
        assert_eq!(icmp(&[8, 0, 0, 0, 0x12, 0x34, 0, 1]), (0x1234, 0));
        let mut quoted = vec![3, 3, 0, 0, 0, 0, 0, 0, 0x45];
        quoted.extend([0; 19]);
        quoted.extend([0x9c, 0x40, 0, 53, 0, 0, 0, 0]);
        assert_eq!(icmp(&quoted), (40_000, 53));
        for cut in 0..quoted.len() {
            let _ = icmp(&quoted[..cut]);
        }
        assert_eq!(icmp(&[9, 0, 0, 0, 0x12, 0x34, 0, 1]), (0, 0));
    }

    #[test]
    fn marking_keeps_the_header_checksum_right() {
        let mut p = tcp_packet(7, b"hello", 0);
        set_ecn(&mut p, Ecn::Ce);
        assert!(checksums_hold(&p));
        assert_eq!(parse(&p).expect("valid").ecn, Ecn::Ce);
    }

    #[test]
    fn clamps_only_a_larger_segment_size() {
        let mut p = tcp_packet(7, &[], tcp_flag::SYN);
        p[40..44].copy_from_slice(&[2, 4, 0x05, 0xb4]);
        complete_transport(&mut p);
        let s = parse(&p).expect("valid");
        assert!(!clamp_mss(&mut p, &s, 1500, true));
        assert!(clamp_mss(&mut p, &s, 1432, true));
        assert_eq!(&p[42..44], &1392u16.to_be_bytes());
        assert!(checksums_hold(&p));
    }

    #[test]
    fn clamps_at_an_odd_offset() {
        let mut p = tcp_packet(7, &[], tcp_flag::SYN);
        p[40..46].copy_from_slice(&[1, 2, 4, 0x05, 0xb4, 0]);
        complete_transport(&mut p);
        let s = parse(&p).expect("valid");
        assert!(clamp_mss(&mut p, &s, 1300, true));
        assert!(checksums_hold(&p));
    }

    #[test]
    fn reads_every_field_of_an_ipv6_packet() {
        let mut p = udp_packet(b"hello");
        p[0..2].copy_from_slice(&[0x6b, 0x95]);
        p[8] = 0x20;
        p[39] = 7;
        let s = parse(&p).expect("valid");
        assert_eq!((s.dscp, s.ecn), (0x2e, Ecn::Ect1));
        assert_eq!(
            s.key.source,
            "20fd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd"
                .parse::<IpAddr>()
                .unwrap()
        );
        assert_eq!(
            s.key.destination,
            "fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fd07"
                .parse::<IpAddr>()
                .unwrap()
        );
        assert_eq!(
            (s.key.protocol, s.key.source_port, s.key.destination_port),
            (protocol::UDP, 40_000, 443)
        );
        assert_eq!((s.ip_len, s.headers_len, s.tcp_flags), (40, 48, 0));
    }

    #[test]
    fn reads_the_code_point_and_the_flags_of_an_ipv4_packet() {
        let mut p = tcp_packet(7, b"hello", tcp_flag::PSH | tcp_flag::FIN);
        p[1] = 0xb9;
        let s = parse(&p).expect("valid");
        assert_eq!((s.dscp, s.ecn, s.tcp_flags), (0x2e, Ecn::Ect1, 0x09));
        assert_eq!(s.ip_len, 20);
    }

    /// A fragment other than the first has no ports, and the first one is not told from the rest of
    /// its packet.
    #[test]
    fn fragments_have_no_ports() {
        for (flags, is_fragment) in [
            ([0x20, 0], true),
            ([0, 1], true),
            ([0x40, 0], false),
            ([0x80, 0], false),
        ] {
            let mut p = tcp_packet(7, b"hello", 0x10);
            p[6..8].copy_from_slice(&flags);
            let s = parse(&p).expect("valid");
            let expected = if is_fragment { (0, 0, 20) } else { (80, 40_000, 52) };
            assert_eq!(
                (s.key.source_port, s.key.destination_port, s.headers_len),
                expected,
                "{flags:?}"
            );
        }
    }

    #[test]
    fn headers_that_are_cut_short_or_too_short_are_refused() {
        let tcp = tcp_packet(7, &[], 0x10);
        assert!(parse(&tcp).is_some(), "headers alone are a packet");
        assert!((0..tcp.len()).all(|len| parse(&tcp[..len]).is_none()));
        let udp = udp_packet(&[]);
        assert!(parse(&udp).is_some());
        assert!((0..udp.len()).all(|len| parse(&udp[..len]).is_none()));
        let with = |at: usize, byte: u8| {
            let mut p = tcp.clone();
            p[at] = byte;
            parse(&p)
        };
        assert_eq!(with(0, 0x44), None, "an IP header of 16 bytes");
        assert_eq!(with(0, 0x55), None, "version 5");
        assert_eq!(with(32, 4 << 4), None, "a TCP header of 16 bytes");
        assert_eq!(with(32, 5 << 4).expect("20 bytes").headers_len, 40);
        // Other protocols need no more than the IP header.
        let mut other = tcp[..20].to_vec();
        other[9] = protocol::ICMP;
        assert_eq!(parse(&other).expect("valid").headers_len, 20);
        other[0] = 0x46;
        assert_eq!(parse(&other), None, "24 bytes of header, of which 20 are there");
        other.extend([0; 4]);
        assert_eq!(parse(&other).expect("valid").headers_len, 24);
    }

    #[test]
    fn marking_an_ipv6_packet_changes_nothing_else() {
        let mut p = udp_packet(b"hello");
        p[0..4].copy_from_slice(&[0x6b, 0x9f, 0xff, 0xff]);
        for ecn in [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
            let mut marked = p.clone();
            set_ecn(&mut marked, ecn);
            assert_eq!(marked[1] & 0x30, ecn.bits() << 4);
            marked[1] |= 0x30;
            assert_eq!(marked[1], p[1] | 0x30);
            assert_eq!((&marked[..1], &marked[2..]), (&p[..1], &p[2..]));
        }
    }

    #[test]
    fn marking_an_ipv4_packet_keeps_its_code_point() {
        for (class, ecn) in [
            (0xb8, Ecn::Ce),
            (0xbb, Ecn::NotEct),
            (0xff, Ecn::Ect1),
            (0, Ecn::Ect0),
        ] {
            let mut p = tcp_packet(7, b"hello", 0x10);
            p[1] = class;
            fill_ipv4_checksum(&mut p, 20);
            set_ecn(&mut p, ecn);
            assert_eq!(p[1], class & 0xfc | ecn.bits());
            assert!(checksums_hold(&p));
        }
    }

    /// RFC 1071 section 3 has this sum as its example.
    #[test]
    fn sums_are_those_of_the_standard() {
        assert_eq!(
            ones_sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7], 0),
            0xddf2
        );
        assert_eq!(
            ones_sum(&[0x00, 0x01, 0xf2], 0),
            0xf201,
            "an odd byte is the upper half of a word"
        );
        assert_eq!(ones_sum(&[0xff; 6], 1), 1, "the carry comes round");
        assert_eq!(ones_sum(&[0xff, 0xff], 0), 0xffff);
        // RFC 1624 section 4: the case in which the older equations were wrong.
        assert_eq!(checksum_update(0xdd2f, 0x5555, 0x3285), 0x0000);
        // The words of both addresses, the protocol and the length.
        let v4 = tcp_packet(1, &[], 0x10);
        assert_eq!(
            pseudo_header_sum(&v4, protocol::TCP, 32),
            0x0a00 + 1 + 0x0a00 + 2 + 6 + 32
        );
        assert_eq!(
            pseudo_header_sum(&udp_packet(&[0; 5]), protocol::UDP, 13),
            0xdfdf + 17 + 13
        );
    }

    #[test]
    fn the_segment_size_is_found_among_other_options() {
        // Options, the announced size that is left, and whether it was changed.
        let cases: [(&[u8], bool); 9] = [
            (&[2, 4, 5, 180, 1, 1, 1, 1], true),
            (&[1, 1, 1, 1, 2, 4, 5, 180], true),
            (&[3, 3, 7, 2, 4, 5, 180, 0], true),
            (&[5, 2, 1, 1, 2, 4, 5, 180], true),
            (&[0, 2, 4, 5, 180, 0, 0, 0], false),
            (&[3, 1, 2, 4, 5, 180, 1, 1], false),
            (&[8, 9, 2, 4, 5, 180, 1, 1], false),
            (&[2, 3, 5, 1, 1, 1, 1, 1], false),
            (&[1, 1, 1, 1, 1, 1, 1, 2], false),
        ];
        for (options, is_changed) in cases {
            let mut p = tcp_packet(7, &[], tcp_flag::SYN);
            p[32] = 7 << 4;
            p[40..48].copy_from_slice(options);
            complete_transport(&mut p);
            let before = p.clone();
            let s = parse(&p).expect("valid");
            assert_eq!(clamp_mss(&mut p, &s, 1280, true), is_changed, "{options:?}");
            assert!(checksums_hold(&p), "{options:?}");
            if !is_changed {
                assert_eq!(p, before, "{options:?}");
            }
            let size = p[40..48]
                .windows(4)
                .find(|bytes| bytes[..2] == [2, 4] && is_changed);
            if let Some(size) = size {
                assert_eq!(size[2..], 1240_u16.to_be_bytes());
            }
        }
    }

    #[test]
    fn a_segment_size_that_fits_is_let_be_and_a_partial_checksum_too() {
        let mut p = tcp_packet(7, &[], tcp_flag::SYN | tcp_flag::ACK);
        p[40..44].copy_from_slice(&[2, 4, 0x05, 0xb4]);
        let s = parse(&p).expect("valid");
        assert!(!clamp_mss(&mut p, &s, 1500, false), "1460 bytes fit exactly");
        let sum = [p[36], p[37]];
        assert!(clamp_mss(&mut p, &s, 1499, false));
        assert_eq!(p[42..44], 1459_u16.to_be_bytes());
        assert_eq!([p[36], p[37]], sum);
        let mut later = tcp_packet(7, &[], tcp_flag::ACK);
        later[40..44].copy_from_slice(&[2, 4, 0x05, 0xb4]);
        let s = parse(&later).expect("valid");
        assert!(!clamp_mss(&mut later, &s, 1280, true), "only a SYN announces");
    }

    #[test]
    fn ecn_exit_follows_the_table() {
        use Ecn::{Ce, Ect0, Ect1, NotEct};
        let table = [
            (NotEct, NotEct, Some(NotEct)),
            (NotEct, Ect0, Some(NotEct)),
            (NotEct, Ect1, Some(NotEct)),
            (NotEct, Ce, None),
            (Ect0, NotEct, Some(Ect0)),
            (Ect0, Ect0, Some(Ect0)),
            (Ect0, Ect1, Some(Ect1)),
            (Ect0, Ce, Some(Ce)),
            (Ect1, NotEct, Some(Ect1)),
            (Ect1, Ect0, Some(Ect1)),
            (Ect1, Ect1, Some(Ect1)),
            (Ect1, Ce, Some(Ce)),
            (Ce, NotEct, Some(Ce)),
            (Ce, Ect0, Some(Ce)),
            (Ce, Ect1, Some(Ce)),
            (Ce, Ce, Some(Ce)),
        ];
        for (inner, outer, exit) in table {
            assert_eq!(ecn_at_exit(inner, outer), exit, "inner {inner:?} outer {outer:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_not_but_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            if let Some(s) = parse(&bytes) {
                prop_assert!(usize::from(s.headers_len) <= bytes.len());
                let mut copy = bytes.clone();
                clamp_mss(&mut copy, &s, 1000, true);
            }
        }
    }
}
