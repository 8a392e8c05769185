//! Inner IP packets: the flow of a packet, and the fields that the tunnel reads or rewrites.

mod checksum;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use checksum::{
    checksum_update, complete_transport, fill_ipv4_checksum, is_transport_complete, ones_sum,
    pseudo_header_sum,
};

/// IP protocol numbers that the tunnel treats specially.
pub mod protocol {
    /// ICMP, RFC 792.
    pub const ICMP: u8 = 1;
    /// TCP, RFC 9293.
    pub const TCP: u8 = 6;
    /// UDP, RFC 768.
    pub const UDP: u8 = 17;
    /// GRE, RFC 2784.
    pub const GRE: u8 = 47;
    /// ICMPv6, RFC 4443.
    pub const ICMPV6: u8 = 58;
}

/// Five-tuple of a flow. Ports are zero if the transport has none or the packet is a fragment. For
/// ICMP messages, the source port of an echo is its identifier, and an error has the ports of the
/// quoted packet, so that each is a separate flow.
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

/// Offsets and fields of an inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Key of the flow.
    pub key: FlowKey,
    /// Offset of the IP header: 0, or after the Ethernet header of a frame
    /// ([`crate::frame::Format`]).
    pub ip_at: u16,
    /// Size of the IP header in bytes, options included; 0 for a frame without IP.
    pub ip_len: u16,
    /// Size of all headers together, bytes; equals [`Self::transport_at`] if the transport is not
    /// TCP or UDP.
    pub headers_len: u16,
    /// TCP flags; zero for other protocols.
    pub tcp_flags: u8,
    /// Differentiated services code point.
    pub dscp: u8,
    /// ECN field.
    pub ecn: Ecn,
    /// Protocol over UDP that the packet seems to belong to.
    pub signature: Option<Signature>,
}

/// Protocol over UDP that is recognised by the first bytes of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// First packet of a QUIC connection: a long header of version 1 or 2. The second bit is
    /// ignored: a server may send it at random from its first packet on, if it knows that its
    /// client permits that.
    ///
    /// Source: RFC 9000 section 17.2, RFC 9369 section 3.1, RFC 9287 section 3.1.
    Quic,
    /// WireGuard message: its type, three zero bytes, and the length of the type.
    ///
    /// Source: WireGuard, "Next Generation Kernel Network Tunnel", section 5.4.
    WireGuard,
}

impl Summary {
    /// Returns the offset of the transport header.
    #[must_use]
    pub fn transport_at(&self) -> usize {
        usize::from(self.ip_at) + usize::from(self.ip_len)
    }

    /// Returns whether the packet is TCP or UDP with a complete header.
    #[must_use]
    pub fn has_transport(&self) -> bool {
        usize::from(self.headers_len) > self.transport_at()
    }
}

/// Values of the two ECN bits.
///
/// Source: RFC 3168 section 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// Transport that is not ECN-capable.
    NotEct,
    /// ECN-capable transport, ECT(1).
    Ect1,
    /// ECN-capable transport, ECT(0).
    Ect0,
    /// Congestion experienced.
    Ce,
}

impl Ecn {
    /// Extracts the ECN field from a traffic class byte.
    #[must_use]
    pub fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// Returns the two bits.
    #[must_use]
    pub fn bits(self) -> u8 {
        self as u8
    }
}

/// TCP flag bits.
pub mod tcp_flag {
    /// No more data, RFC 9293 section 3.1.
    pub const FIN: u8 = 0x01;
    /// Synchronise, RFC 9293 section 3.1.
    pub const SYN: u8 = 0x02;
    /// Reset, RFC 9293 section 3.1.
    pub const RST: u8 = 0x04;
    /// Push, RFC 9293 section 3.1.
    pub const PSH: u8 = 0x08;
    /// Acknowledgement, RFC 9293 section 3.1.
    pub const ACK: u8 = 0x10;
    /// Echo of congestion marks; in a SYN, request for ECN. RFC 3168 section 6.1.
    pub const ECE: u8 = 0x40;
    /// Congestion window reduced, RFC 3168 section 6.1.
    pub const CWR: u8 = 0x80;
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// Parses the headers of an IP packet; `None` if it is not IPv4 or IPv6, or is truncated.
///
/// Cost: O(1), no copy. IPv6 extension headers are not parsed: such packets form one flow per
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

/// Returns the identifier of an echo, or the ports of the packet that an error quotes; zeros for
/// others.
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

/// Versions of QUIC that are recognised. Source: RFC 9000 section 15, RFC 9369 section 3.1.
const QUIC_VERSIONS: [u32; 2] = [1, 0x6b33_43cf];
/// Maximum length of a connection id, bytes. Source: RFC 9000 section 17.2.
const MAX_QUIC_ID: u8 = 20;

/// Sets the ECN field of an IP packet that [`parse`] accepted, and updates the IPv4 header
/// checksum.
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

/// Returns the ECN field of a packet that leaves the tunnel, from those of the outer and the inner
/// packet.
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

/// Reduces the maximum segment size in a TCP SYN to the one that fits `mtu` bytes of inner packet.
/// Returns whether the packet changed.
///
/// `complete`: the transport checksum is complete and is updated too; otherwise it covers only the
/// pseudo-header.
///
/// Source: RFC 9293 section 3.7.1; tunnels and routers commonly clamp in this way.
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
                        // An option at an odd offset is shifted by a byte relative to the
                        // checksum's words.
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
pub(crate) mod tests;
