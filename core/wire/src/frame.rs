//! Format of inner packets: IP packets of a TUN, or Ethernet frames of a TAP.
//!
//! Only [`Format`] knows the difference: it finds the IP header of an inner packet, and all later
//! steps (flows, segmentation, coalescing, header compression) are the same for both. A frame
//! without a valid IP header (ARP, BPDU, PPPoE) belongs to the ordered flow of its VLAN and
//! EtherType.
//!
//! ```text
//!   | destination 6 | source 6 | 0x8100 tag 2 | ... | EtherType 2 | IP header or other payload |
//!                               +-- none to two VLAN tags --+
//! ```
//!
//! Source: IEEE 802.3 clause 3.2 (frame), IEEE 802.1Q clause 9 (tags), IEEE 802.1ad (two of them).

use std::net::{IpAddr, Ipv6Addr};

use crate::icmp;
use crate::inner::{self, Ecn, FlowKey, Summary};

/// Bytes of an Ethernet header without tags. Source: IEEE 802.3 clause 3.2.
pub const ETHERNET_LEN: usize = 14;
/// Bytes of a VLAN tag. Source: IEEE 802.1Q clause 9.
pub const TAG_LEN: usize = 4;
/// Maximum number of VLAN tags that are parsed. A frame with more is transferred, but its IP header
/// is not parsed. Source: IEEE 802.1ad has two.
pub const MAX_TAGS: usize = 2;
/// Protocol number of frames without IP in a [`FlowKey`]; reserved in IP.
///
/// Source: IANA, assigned Internet protocol numbers.
pub const NOT_IP: u8 = 255;

/// EtherTypes. Source: RFC 894 (IPv4), RFC 2464 section 3 (IPv6), IEEE 802.1Q clause 9 (tags).
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TAGS: [u16; 2] = [0x8100, 0x88a8];

/// Format of a session's inner packets. Both ends must agree on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// IP packet.
    #[default]
    Ip,
    /// Ethernet frame without its checksum.
    Ethernet,
}

/// Ethernet header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    /// Size in bytes, tags included.
    len: usize,
    /// EtherType, or the length of an IEEE 802.3 frame.
    ethertype: u16,
    /// Number of the outermost VLAN; 0 without a tag.
    vlan: u16,
}

impl Link {
    fn parse(frame: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
        let mut link = Self {
            len: ETHERNET_LEN,
            ethertype: word(ETHERNET_LEN - 2)?,
            vlan: 0,
        };
        for tags in 0..MAX_TAGS {
            if !TAGS.contains(&link.ethertype) {
                break;
            }
            let (Some(tag), Some(ethertype)) = (word(link.len), word(link.len + 2)) else {
                break;
            };
            if tags == 0 {
                link.vlan = tag & 0xfff;
            }
            (link.len, link.ethertype) = (link.len + TAG_LEN, ethertype);
        }
        Some(link)
    }
}

impl Format {
    /// Parses the headers of an inner packet; `None` if it is not of this format. A frame without a
    /// valid IP header has only an Ethernet header ([`NOT_IP`]).
    ///
    /// Cost: O(1), no copy.
    #[must_use]
    pub fn parse(self, packet: &[u8]) -> Option<Summary> {
        match self {
            Self::Ip => inner::parse(packet),
            Self::Ethernet => {
                let link = Link::parse(packet)?;
                Some(ip_behind(packet, link).unwrap_or_else(|| without_ip(link)))
            }
        }
    }

    /// Returns the ECN field of a packet.
    #[must_use]
    pub fn ecn(self, packet: &[u8]) -> Ecn {
        let at = match self {
            Self::Ip => Some(0),
            Self::Ethernet => Link::parse(packet)
                .filter(|link| matches!(link.ethertype, IPV4 | IPV6))
                .map(|link| link.len),
        };
        let head = at.and_then(|at| packet.get(at..)?.first_chunk::<2>());
        head.map_or(Ecn::NotEct, |head| match head[0] >> 4 {
            4 => Ecn::from_bits(head[1]),
            6 => Ecn::from_bits(head[1] >> 4),
            _ => Ecn::NotEct,
        })
    }

    /// Returns the size of a packet without the padding that short Ethernet frames have after their
    /// IP packet. `summary` is the result of [`Self::parse`] for the packet.
    #[must_use]
    pub fn unpadded_len(self, packet: &[u8], summary: &Summary) -> usize {
        let ip = &packet[usize::from(summary.ip_at)..];
        if self == Self::Ip || summary.ip_len == 0 {
            return packet.len();
        }
        let word = |at: usize| usize::from(u16::from_be_bytes([ip[at], ip[at + 1]]));
        let said = match ip[0] >> 4 {
            4 => word(2),
            _ => 40 + word(4),
        };
        let len = usize::from(summary.ip_at) + said;
        let is_padded = len >= usize::from(summary.headers_len) && len < packet.len();
        if is_padded { len } else { packet.len() }
    }

    /// Returns the answer to a packet that is larger than `mtu` bytes, see [`icmp::too_large`]. The
    /// answer to a frame is sent to the frame's source, in the same VLAN. `mtu` is the maximum size
    /// of an inner packet; the answer contains that of an IP packet.
    #[must_use]
    pub fn too_large(self, packet: &[u8], mtu: u16) -> Option<Vec<u8>> {
        if self == Self::Ip {
            return icmp::too_large(packet, mtu);
        }
        let summary = self.parse(packet).filter(|summary| summary.ip_len > 0)?;
        // A group address stands for many hosts (RFC 1122 section 3.2.2).
        if packet[0] & 1 != 0 {
            return None;
        }
        let (link, ip) = packet.split_at(usize::from(summary.ip_at));
        let answer = icmp::too_large(ip, mtu.saturating_sub(summary.ip_at))?;
        let mut frame = Vec::with_capacity(link.len() + answer.len());
        frame.extend_from_slice(&link[6..12]);
        frame.extend_from_slice(&link[..6]);
        frame.extend_from_slice(&link[12..]);
        frame.extend(answer);
        Some(frame)
    }

    /// Returns the fragments of a large IPv4 packet that may be fragmented: each of at most `mtu`
    /// bytes, Ethernet header included. Its checksums must be complete.
    ///
    /// Source: RFC 791 section 3.2 (an example fragmentation procedure). Only packets from a TAP
    /// are fragmented here: packets for a TUN have passed the kernel's own routing and its MTU.
    #[must_use]
    pub fn fragments(self, packet: &[u8], mtu: u16) -> Option<Vec<Vec<u8>>> {
        let summary = self.parse(packet).filter(|summary| summary.ip_len > 0)?;
        let packet = &packet[..self.unpadded_len(packet, &summary)];
        let (ip_at, ip_len) = (usize::from(summary.ip_at), usize::from(summary.ip_len));
        let head = packet.get(ip_at..ip_at + ip_len)?;
        let place = u16::from_be_bytes([head[6], head[7]]);
        // Some options must be omitted in later fragments; packets with options are rare, and
        // dropped.
        let is_plain = self == Self::Ethernet && head[0] == 0x45 && place & DONT_FRAGMENT == 0;
        let room = usize::from(mtu).checked_sub(ip_at + ip_len)? & !7;
        if !is_plain || room == 0 {
            return None;
        }
        let payload = &packet[ip_at + ip_len..];
        let count = payload.len().div_ceil(room);
        let fragments = payload.chunks(room).enumerate().map(|(n, part)| {
            let mut out = packet[..ip_at + ip_len].to_vec();
            out.extend_from_slice(part);
            let offset = (place & OFFSET) as usize + n * room / 8;
            let more = if n + 1 < count {
                MORE_FRAGMENTS
            } else {
                place & MORE_FRAGMENTS
            };
            let ip = &mut out[ip_at..];
            let len = ip.len() as u16;
            ip[2..4].copy_from_slice(&len.to_be_bytes());
            ip[6..8].copy_from_slice(&(offset as u16 & OFFSET | more).to_be_bytes());
            inner::fill_ipv4_checksum(ip, ip_len);
            out
        });
        Some(fragments.collect())
    }
}

fn ip_behind(frame: &[u8], link: Link) -> Option<Summary> {
    let ip = &frame[link.len..];
    let version = match link.ethertype {
        IPV4 => 4,
        IPV6 => 6,
        _ => return None,
    };
    if ip.first()? >> 4 != version {
        return None;
    }
    let summary = inner::parse(ip)?;
    Some(Summary {
        ip_at: link.len as u16,
        headers_len: summary.headers_len + link.len as u16,
        ..summary
    })
}

fn without_ip(link: Link) -> Summary {
    let nowhere = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    Summary {
        key: FlowKey {
            source: nowhere,
            destination: nowhere,
            protocol: NOT_IP,
            source_port: link.vlan,
            destination_port: link.ethertype,
        },
        ip_at: link.len as u16,
        ip_len: 0,
        headers_len: link.len as u16,
        tcp_flags: 0,
        dscp: 0,
        ecn: Ecn::NotEct,
        signature: None,
    }
}

// Flags and offset of a fragment (RFC 791 section 3.1).
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

#[cfg(test)]
mod tests;
