//! Headers in front of the IP packet of a captured frame.
//!
//! Source: the registry of link types of tcpdump.org; IEEE 802.1Q for VLAN tags.

/// Content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content<'a> {
    /// IP packet, with padding and check sequence where the frame has them.
    Ip(&'a [u8]),
    /// Another protocol, or a frame cut within its header.
    Other,
    /// Frame of a link whose header is not known here.
    UnknownLink,
}

/// Returns the content of a frame of this link type.
pub(super) fn content(link: u32, frame: &[u8]) -> Content<'_> {
    let packet = match link {
        NULL | LOOP => frame.get(4..),
        ETHERNET => ethernet(frame),
        RAW | RAW_BSD | RAW_OPENBSD | IPV4 | IPV6 => Some(frame),
        LINUX_SLL => after(frame, 14, 16),
        LINUX_SLL2 => after(frame, 0, 20),
        _ => return Content::UnknownLink,
    };
    match packet {
        Some(packet) if matches!(packet.first().map(|first| first >> 4), Some(4 | 6)) => Content::Ip(packet),
        _ => Content::Other,
    }
}

fn ethernet(frame: &[u8]) -> Option<&[u8]> {
    let mut kind = 12;
    for _ in 0..=MAX_TAGS {
        if !TAGS.contains(&u16_at(frame, kind)?) {
            return after(frame, kind, kind + 2);
        }
        kind += 4;
    }
    None
}

/// Returns the bytes from `start` on if the protocol number at `kind` is that of IP.
fn after(frame: &[u8], kind: usize, start: usize) -> Option<&[u8]> {
    let is_ip = matches!(u16_at(frame, kind)?, ETHERTYPE_IPV4 | ETHERTYPE_IPV6);
    is_ip.then(|| frame.get(start..)).flatten()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// Loopback of BSD and macOS: the address family, 4 bytes. Source: LINKTYPE_NULL.
const NULL: u32 = 0;
/// Source: LINKTYPE_ETHERNET.
pub(super) const ETHERNET: u32 = 1;
/// Raw IP, in the numbers of some systems' own files. Source: DLT_RAW of BSD.
const RAW_BSD: u32 = 12;
/// Source: DLT_RAW of OpenBSD.
const RAW_OPENBSD: u32 = 14;
/// Source: LINKTYPE_RAW.
const RAW: u32 = 101;
/// Loopback of OpenBSD, as [`NULL`]. Source: LINKTYPE_LOOP.
const LOOP: u32 = 108;
/// Linux's device "any", version 1. Source: LINKTYPE_LINUX_SLL.
const LINUX_SLL: u32 = 113;
/// Source: LINKTYPE_IPV4.
const IPV4: u32 = 228;
/// Source: LINKTYPE_IPV6.
const IPV6: u32 = 229;
/// Linux's device "any", version 2. Source: LINKTYPE_LINUX_SLL2.
const LINUX_SLL2: u32 = 276;
/// Source: RFC 894.
const ETHERTYPE_IPV4: u16 = 0x0800;
/// Source: RFC 2464 section 3.
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Tags of VLANs and of providers' VLANs. Source: IEEE 802.1Q section 9.6.
const TAGS: [u16; 2] = [0x8100, 0x88a8];
/// Maximum number of tags. Source: IEEE 802.1Q section 9.6, one of each kind.
const MAX_TAGS: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    const IP: [u8; 4] = [0x45, 0, 0, 28];

    fn frame(parts: &[&[u8]]) -> Vec<u8> {
        [&parts.concat()[..], &IP].concat()
    }

    #[test]
    fn finds_the_packet_behind_every_known_header() {
        let addresses = [2; 12];
        let frames = [
            (NULL, frame(&[&[2, 0, 0, 0]])),
            (ETHERNET, frame(&[&addresses, &[8, 0]])),
            (ETHERNET, frame(&[&addresses, &[0x81, 0, 0, 7, 8, 0]])),
            (
                ETHERNET,
                frame(&[&addresses, &[0x88, 0xa8, 0, 1, 0x81, 0, 0, 7, 8, 0]]),
            ),
            (RAW, frame(&[])),
            (IPV4, frame(&[])),
            (LINUX_SLL, frame(&[&[0; 14], &[8, 0]])),
            (LINUX_SLL2, frame(&[&[8, 0], &[0; 18]])),
        ];
        for (link, frame) in &frames {
            assert_eq!(content(*link, frame), Content::Ip(&IP), "link type {link}");
            for len in 0..frame.len() - IP.len() {
                assert_eq!(content(*link, &frame[..len]), Content::Other, "{link}, {len}");
            }
        }
    }

    #[test]
    fn other_protocols_and_links_are_no_packets() {
        let arp = [&[2; 12][..], &[8, 6], &IP].concat();
        assert_eq!(content(ETHERNET, &arp), Content::Other);
        let tags = [&[2; 12][..], &[0x81, 0, 0, 7].repeat(3), &[8, 0], &IP].concat();
        assert_eq!(content(ETHERNET, &tags), Content::Other);
        // LINKTYPE_IEEE802_11_RADIOTAP.
        assert_eq!(content(127, &IP), Content::UnknownLink);
    }
}
