//! Rewriting of a packet's addresses and ports, with checksum updates.

use std::net::{IpAddr, SocketAddr};

use hawser_wire::inner::{Summary, checksum_update, protocol};

/// New addresses and ports of a packet; `None` leaves them unchanged.
///
/// Ports are those of TCP and UDP; of other packets only the addresses change. Addresses inside
/// ICMP errors are not touched.
///
/// Source: Flow switch section 3.1, figure 5.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// The new source.
    pub source: Option<SocketAddr>,
    /// The new destination.
    pub destination: Option<SocketAddr>,
}

/// Reason why a packet cannot be rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RewriteError {
    /// IPv4 address for an IPv6 packet, or vice versa.
    #[error("the new address is of another family than the packet")]
    Family,
}

impl Rewrite {
    /// Rewrites a packet in place. `summary` is the result of [`hawser_wire::inner::parse`] for it.
    /// `complete`: its transport checksum is complete; otherwise the field contains only the sum of
    /// the pseudo-header.
    ///
    /// Source: RFC 1624 equation 3 for each word that changes; RFC 768: a UDP checksum of zero
    /// means none, and stays.
    /// Cost: O(1).
    ///
    /// # Errors
    /// [`RewriteError`]: the packet is unchanged.
    pub fn apply(&self, packet: &mut [u8], summary: &Summary, complete: bool) -> Result<(), RewriteError> {
        let is_v4 = summary.key.source.is_ipv4();
        let ends = [(self.source, true), (self.destination, false)];
        if ends
            .iter()
            .any(|(end, _)| end.is_some_and(|end| end.is_ipv4() != is_v4))
        {
            return Err(RewriteError::Family);
        }
        for (end, is_source) in ends {
            if let Some(end) = end {
                Editor {
                    packet,
                    summary,
                    complete,
                }
                .set(end, is_source);
            }
        }
        Ok(())
    }

    /// Returns a packet's addresses and ports after the rewrite.
    #[must_use]
    pub fn outcome(&self, summary: &Summary) -> (SocketAddr, SocketAddr) {
        let key = &summary.key;
        let has_ports = summary.headers_len > summary.ip_len;
        let end = |new: Option<SocketAddr>, address: IpAddr, port: u16| match new {
            Some(new) if has_ports => new,
            Some(new) => SocketAddr::new(new.ip(), port),
            None => SocketAddr::new(address, port),
        };
        (
            end(self.source, key.source, key.source_port),
            end(self.destination, key.destination, key.destination_port),
        )
    }
}

struct Editor<'a> {
    packet: &'a mut [u8],
    summary: &'a Summary,
    complete: bool,
}

impl Editor<'_> {
    fn set(&mut self, end: SocketAddr, is_source: bool) {
        match end.ip() {
            IpAddr::V4(address) => self.words(if is_source { 12 } else { 16 }, &address.octets(), true),
            IpAddr::V6(address) => self.words(if is_source { 8 } else { 24 }, &address.octets(), false),
        }
        if self.summary.headers_len > self.summary.ip_len {
            let at = usize::from(self.summary.ip_len) + if is_source { 0 } else { 2 };
            let old = self.word(at);
            self.put(at, end.port());
            if self.complete {
                self.mend_transport(old, end.port());
            }
        }
    }

    /// Replaces an address, word by word. The IPv4 header checksum covers it too.
    fn words(&mut self, at: usize, new: &[u8], is_v4: bool) {
        for (index, word) in new.as_chunks::<2>().0.iter().enumerate() {
            let (old, new) = (self.word(at + 2 * index), u16::from_be_bytes(*word));
            self.put(at + 2 * index, new);
            if is_v4 {
                let sum = checksum_update(self.word(10), old, new);
                self.put(10, sum);
            }
            self.mend_transport(old, new);
        }
    }

    fn mend_transport(&mut self, old: u16, new: u16) {
        let ip_len = usize::from(self.summary.ip_len);
        let at = match self.summary.key.protocol {
            _ if self.summary.headers_len == self.summary.ip_len => return,
            protocol::TCP => ip_len + 16,
            protocol::UDP => ip_len + 6,
            _ => return,
        };
        let sum = self.word(at);
        let is_udp = self.summary.key.protocol == protocol::UDP;
        if self.complete {
            if is_udp && sum == 0 {
                return;
            }
            let mended = checksum_update(sum, old, new);
            // A UDP checksum of zero means none; 0xffff is the same number in ones' complement.
            self.put(at, if is_udp && mended == 0 { 0xffff } else { mended });
        } else {
            // The field holds the sum itself, not its complement.
            self.put(at, !checksum_update(!sum, old, new));
        }
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.packet[at], self.packet[at + 1]])
    }

    fn put(&mut self, at: usize, word: u16) {
        self.packet[at..at + 2].copy_from_slice(&word.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_wire::inner::{fill_ipv4_checksum, ones_sum, parse, pseudo_header_sum};
    use proptest::prelude::*;

    fn packet(v6: bool, is_udp: bool, ends: [u8; 2], payload: &[u8]) -> Vec<u8> {
        let (ip_len, transport) = (if v6 { 40 } else { 20 }, if is_udp { 8 } else { 20 });
        let mut packet = vec![0; ip_len + transport];
        packet.extend(payload);
        let total = packet.len() as u16;
        let number = if is_udp { protocol::UDP } else { protocol::TCP };
        if v6 {
            packet[0] = 0x60;
            packet[4..6].copy_from_slice(&(total - 40).to_be_bytes());
            packet[6] = number;
            packet[23] = ends[0];
            packet[39] = ends[1];
        } else {
            packet[0] = 0x45;
            packet[2..4].copy_from_slice(&total.to_be_bytes());
            packet[9] = number;
            packet[15] = ends[0];
            packet[19] = ends[1];
            fill_ipv4_checksum(&mut packet, 20);
        }
        if !is_udp {
            packet[ip_len + 12] = 5 << 4;
        }
        packet
    }

    fn field(packet: &[u8]) -> usize {
        let summary = parse(packet).expect("valid");
        let at = usize::from(summary.ip_len);
        at + if summary.key.protocol == protocol::TCP {
            16
        } else {
            6
        }
    }

    fn seal(packet: &mut [u8], complete: bool) {
        let summary = parse(packet).expect("valid");
        let (at, field) = (usize::from(summary.ip_len), field(packet));
        packet[field..field + 2].fill(0);
        let pseudo = pseudo_header_sum(packet, summary.key.protocol, packet.len() - at);
        let sum = if complete {
            !ones_sum(&packet[at..], u32::from(pseudo))
        } else {
            pseudo
        };
        packet[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }

    proptest! {
        #[test]
        fn a_rewritten_packet_is_as_if_made_so(
            v6: bool, is_udp: bool, complete: bool, ends: [u8; 2], new: [u8; 2], ports: [u16; 2],
            payload in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let address = |last| -> IpAddr {
                if v6 { std::net::Ipv6Addr::from(u128::from(last)).into() } else { std::net::Ipv4Addr::new(0, 0, 0, last).into() }
            };
            let mut got = packet(v6, is_udp, ends, &payload);
            seal(&mut got, complete);
            let summary = parse(&got).expect("valid");
            let rewrite = Rewrite {
                source: Some(SocketAddr::new(address(new[0]), ports[0])),
                destination: Some(SocketAddr::new(address(new[1]), ports[1])),
            };
            let outcome = rewrite.outcome(&summary);
            prop_assert_eq!(rewrite.apply(&mut got, &summary, complete), Ok(()));
            let after = parse(&got).expect("valid").key;
            prop_assert_eq!(outcome, (SocketAddr::new(after.source, after.source_port), SocketAddr::new(after.destination, after.destination_port)));

            let mut expected = packet(v6, is_udp, new, &payload);
            let ip_len = if v6 { 40 } else { 20 };
            expected[ip_len..ip_len + 2].copy_from_slice(&ports[0].to_be_bytes());
            expected[ip_len + 2..ip_len + 4].copy_from_slice(&ports[1].to_be_bytes());
            seal(&mut expected, complete);
            // Ones' complement has two zeros; everything else must be equal.
            let zeros = |packet: &mut Vec<u8>| for at in [10, field(&packet.clone())] {
                if packet[at..at + 2] == [0xff, 0xff] && (at != 10 || !v6) {
                    packet[at..at + 2].fill(0);
                }
            };
            zeros(&mut got);
            zeros(&mut expected);
            prop_assert_eq!(got, expected);
        }
    }

    #[test]
    fn no_checksum_stays_none_and_families_do_not_mix() {
        let mut p = packet(false, true, [1, 2], b"x");
        let summary = parse(&p).expect("valid");
        let to = Rewrite {
            destination: Some("10.0.0.9:53".parse().expect("an address")),
            ..Rewrite::default()
        };
        assert_eq!(to.apply(&mut p, &summary, true), Ok(()));
        assert_eq!(&p[26..28], [0, 0]);
        let before = p.clone();
        let mixed = Rewrite {
            source: Some("[::1]:1".parse().expect("an address")),
            ..to
        };
        assert_eq!(mixed.apply(&mut p, &summary, true), Err(RewriteError::Family));
        assert_eq!(p, before);
    }
}
