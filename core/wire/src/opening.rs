//! Openings: the first packets on a new route of an existing flow.
//!
//! Translators and firewalls pass a TCP connection only if they have seen its handshake. So before
//! a flow moves to a route, its ends send a handshake of three packets over the route. The two
//! Hawser instances exchange these packets; no socket receives them. Their sequence numbers are
//! [`AHEAD`] of the flow's own and their windows have the maximum size, so that a middlebox that
//! checks windows accepts the flow's later packets. A UDP route is opened by two datagrams. Both
//! kinds contain a number (`nonce`, for TCP in the timestamp option) that identifies the opening.
//! From the first packet the far end learns the translated addresses.
//!
//! A UDP flow has no numbers that only its ends know. So the follower verifies the mover first: it
//! sends a [`Challenge`] over the flow's present route, a datagram with a secret that no socket
//! receives. Only a host that receives the flow's packets can repeat the secret over the control
//! channel.
//!
//! Source: Flow switch section 5 names the problem ("the new network did not see a SYN packet")
//! without a solution.

use std::net::SocketAddr;

use crate::inner::{self, fill_ipv4_checksum, ones_sum, protocol, pseudo_header_sum, tcp_flag};

/// Step of an opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// First packet, from the mover. TCP: SYN.
    Ask,
    /// Answer. TCP: SYN and ACK.
    Accept,
    /// Last packet, from either side, TCP only: it announces the size of the window.
    Confirm,
}

/// Packet of an opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// TCP or UDP.
    pub protocol: u8,
    /// Sender of the packet.
    pub source: SocketAddr,
    /// Receiver of the packet; of the same address family as `source`.
    pub destination: SocketAddr,
    /// Step of the opening.
    pub step: Step,
    /// Nonce of the opening.
    pub nonce: u32,
    /// TCP sequence number.
    pub sequence: u32,
    /// TCP acknowledgement number; zero in the first packet.
    pub acknowledged: u32,
}

impl Opening {
    /// Returns the whole IP packet; `None` for addresses of two families, or another protocol.
    #[must_use]
    pub fn emit(&self) -> Option<Vec<u8>> {
        let transport = match self.protocol {
            protocol::TCP => self.segment(),
            protocol::UDP => self.datagram(),
            _ => return None,
        };
        whole(self.protocol, (self.source, self.destination), &transport)
    }

    fn segment(&self) -> Vec<u8> {
        let flags = match self.step {
            Step::Ask => tcp_flag::SYN,
            Step::Accept => tcp_flag::SYN | tcp_flag::ACK,
            Step::Confirm => tcp_flag::ACK,
        };
        let echo = if self.step == Step::Ask { 0 } else { self.nonce };
        let mut options = vec![1, 1, TIMESTAMPS, 10];
        options.extend_from_slice(&self.nonce.to_be_bytes());
        options.extend_from_slice(&echo.to_be_bytes());
        if self.step != Step::Confirm {
            options.extend_from_slice(&[2, 4, (SEGMENT >> 8) as u8, SEGMENT as u8]);
            options.extend_from_slice(&[1, 3, 3, WIDEST]);
        }
        let mut out = Vec::with_capacity(40);
        out.extend_from_slice(&self.source.port().to_be_bytes());
        out.extend_from_slice(&self.destination.port().to_be_bytes());
        out.extend_from_slice(&self.sequence.to_be_bytes());
        out.extend_from_slice(&self.acknowledged.to_be_bytes());
        out.extend_from_slice(&[
            (((20 + options.len()) / 4) << 4) as u8,
            flags,
            0xff,
            0xff,
            0,
            0,
            0,
            0,
        ]);
        out.extend_from_slice(&options);
        out
    }

    fn datagram(&self) -> Vec<u8> {
        let nonce = self.nonce.to_be_bytes();
        datagram(self.source, self.destination, self.step as u8, &nonce)
    }

    /// Parses a received packet, which may be truncated after its headers; `None` if it is not part
    /// of an opening.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let summary = inner::parse(packet)?;
        let key = summary.key;
        let ip_len = usize::from(summary.ip_len);
        let transport = packet.get(ip_len..)?;
        let (step, nonce, numbers) = match key.protocol {
            protocol::TCP => {
                let options = packet.get(ip_len + 20..usize::from(summary.headers_len))?;
                let (nonce, echo) = timestamps(options)?;
                let step = match summary.tcp_flags {
                    tcp_flag::SYN if echo == 0 => Step::Ask,
                    flags if flags == tcp_flag::SYN | tcp_flag::ACK && echo == nonce => Step::Accept,
                    tcp_flag::ACK if echo == nonce => Step::Confirm,
                    _ => return None,
                };
                (step, nonce, numbers(transport)?)
            }
            protocol::UDP => {
                let rest = transport.get(8..DATAGRAM)?.strip_prefix(&MAGIC)?;
                let step = *[Step::Ask, Step::Accept, Step::Confirm].get(usize::from(rest[0]))?;
                (step, u32_at(rest, 1)?, (0, 0))
            }
            _ => return None,
        };
        Some(Self {
            protocol: key.protocol,
            source: SocketAddr::new(key.source, key.source_port),
            destination: SocketAddr::new(key.destination, key.destination_port),
            step,
            nonce,
            sequence: numbers.0,
            acknowledged: numbers.1,
        })
    }
}

/// Datagram over a UDP flow's route, by which the mover proves that it owns the flow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Challenge {
    /// Address of the follower in the flow's packets.
    pub source: SocketAddr,
    /// Address of the other end in the flow's packets; the same family.
    pub destination: SocketAddr,
    /// Number that the mover assigned to the flow.
    pub flow: u32,
    /// Secret that the mover repeats.
    pub secret: u64,
}

impl core::fmt::Debug for Challenge {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Challenge")
            .field("source", &self.source)
            .field("destination", &self.destination)
            .field("flow", &self.flow)
            .finish_non_exhaustive()
    }
}

impl Challenge {
    /// Returns the whole IP packet; `None` for addresses of two families.
    #[must_use]
    pub fn emit(&self) -> Option<Vec<u8>> {
        let mut rest = self.flow.to_be_bytes().to_vec();
        rest.extend_from_slice(&self.secret.to_be_bytes());
        let transport = datagram(self.source, self.destination, CHALLENGE, &rest);
        whole(protocol::UDP, (self.source, self.destination), &transport)
    }

    /// Parses a received packet; `None` if it is not a challenge.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let summary = inner::parse(packet)?;
        let key = summary.key;
        if key.protocol != protocol::UDP {
            return None;
        }
        let content = packet.get(usize::from(summary.ip_len) + 8..)?;
        let rest = content.strip_prefix(&MAGIC)?.strip_prefix(&[CHALLENGE])?;
        let (flow, rest) = rest.split_first_chunk()?;
        Some(Self {
            source: SocketAddr::new(key.source, key.source_port),
            destination: SocketAddr::new(key.destination, key.destination_port),
            flow: u32::from_be_bytes(*flow),
            secret: u64::from_be_bytes(*rest.first_chunk()?),
        })
    }
}

fn datagram(source: SocketAddr, destination: SocketAddr, kind: u8, rest: &[u8]) -> Vec<u8> {
    let len = 8 + MAGIC.len() + 1 + rest.len();
    let mut out = Vec::with_capacity(len);
    out.extend_from_slice(&source.port().to_be_bytes());
    out.extend_from_slice(&destination.port().to_be_bytes());
    out.extend_from_slice(&(len as u16).to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(&MAGIC);
    out.push(kind);
    out.extend_from_slice(rest);
    out
}

/// Builds an IP packet from its transport header and payload, and completes the transport checksum.
fn whole(protocol: u8, ends: (SocketAddr, SocketAddr), transport: &[u8]) -> Option<Vec<u8>> {
    let mut packet = header(protocol, ends, transport.len())?;
    let ip_len = packet.len();
    packet.extend_from_slice(transport);
    let at = ip_len + if protocol == protocol::TCP { 16 } else { 6 };
    let pseudo = pseudo_header_sum(&packet, protocol, transport.len());
    let sum = !ones_sum(&packet[ip_len..], u32::from(pseudo));
    // A UDP checksum of zero would mean that there is none (RFC 768).
    let sum = if sum == 0 && protocol == protocol::UDP {
        0xffff
    } else {
        sum
    };
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    Some(packet)
}

/// Returns the sequence and acknowledgement number of a TCP header.
#[must_use]
pub fn numbers(transport: &[u8]) -> Option<(u32, u32)> {
    Some((u32_at(transport, 4)?, u32_at(transport, 8)?))
}

fn header(protocol: u8, ends: (SocketAddr, SocketAddr), len: usize) -> Option<Vec<u8>> {
    match ends {
        (SocketAddr::V4(source), SocketAddr::V4(destination)) => {
            let mut out = vec![0x45, 0];
            out.extend_from_slice(&((20 + len) as u16).to_be_bytes());
            out.extend_from_slice(&[0, 0, 0x40, 0, 64, protocol, 0, 0]);
            out.extend_from_slice(&source.ip().octets());
            out.extend_from_slice(&destination.ip().octets());
            fill_ipv4_checksum(&mut out, 20);
            Some(out)
        }
        (SocketAddr::V6(source), SocketAddr::V6(destination)) => {
            let mut out = vec![0x60, 0, 0, 0];
            out.extend_from_slice(&(len as u16).to_be_bytes());
            out.extend_from_slice(&[protocol, 64]);
            out.extend_from_slice(&source.ip().octets());
            out.extend_from_slice(&destination.ip().octets());
            Some(out)
        }
        (SocketAddr::V4(_), SocketAddr::V6(_)) | (SocketAddr::V6(_), SocketAddr::V4(_)) => None,
    }
}

/// Returns value and echo of the timestamp option (RFC 7323 section 3.2).
fn timestamps(mut options: &[u8]) -> Option<(u32, u32)> {
    loop {
        match options {
            [1, rest @ ..] => options = rest,
            [TIMESTAMPS, 10, rest @ ..] => return Some((u32_at(rest, 0)?, u32_at(rest, 4)?)),
            [0, ..] | [] | [_] => return None,
            [_, len, ..] => options = options.get(usize::from(*len).max(2)..)?,
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|word| u32::from_be_bytes(*word))
}

/// Distance of an opening's sequence numbers from the known ones of the flow: more than the flow
/// transfers in the meantime. Source: a quarter of the largest window (RFC 7323 section 2.3), so
/// that both earlier and later segments fit.
pub const AHEAD: u32 = 1 << 28;

/// Kind of the timestamp option. Source: RFC 7323 section 3.2.
const TIMESTAMPS: u8 = 8;
/// The largest window scale (RFC 7323 section 2.3): a window of 1 GB.
const WIDEST: u8 = 14;
/// Segment size that fits every path; the opening itself transfers no data. Source: the default of
/// IPv6, RFC 9293 section 3.7.1.
const SEGMENT: u16 = 1220;
/// Identifies these datagrams. Its first two bits differ from those of a long header of QUIC and of
/// a data packet.
const MAGIC: [u8; 8] = *b"hwsrOpen";
/// Length of a datagram. Source: the header of UDP (8 bytes, RFC 768), [`MAGIC`], a code, and a
/// nonce of 32 bits.
const DATAGRAM: usize = 8 + 8 + 1 + 4;
/// Code after [`MAGIC`], instead of an opening's step. Source: the number after those of the steps.
const CHALLENGE: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn opening(protocol: u8, v6: bool, step: Step) -> Opening {
        let address = |last: u8, port| match v6 {
            false => SocketAddr::from(([10, 0, 0, last], port)),
            true => SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)], port)),
        };
        let is_tcp = protocol == protocol::TCP;
        Opening {
            protocol,
            source: address(1, 61_000),
            destination: address(2, 4_443),
            step,
            nonce: 0xdead_beef,
            sequence: if is_tcp { 7 } else { 0 },
            acknowledged: if is_tcp && step != Step::Ask { 9 } else { 0 },
        }
    }

    #[test]
    fn every_packet_is_read_back_and_its_checksums_hold() {
        for protocol in [protocol::TCP, protocol::UDP] {
            for v6 in [false, true] {
                for step in [Step::Ask, Step::Accept, Step::Confirm] {
                    let opening = opening(protocol, v6, step);
                    let packet = opening.emit().unwrap();
                    assert_eq!(Opening::parse(&packet), Some(opening));
                    if protocol == protocol::UDP {
                        let at = if v6 { 44 } else { 24 };
                        assert_eq!(packet[at..at + 2], (DATAGRAM as u16).to_be_bytes());
                    }
                    let ip_len = if v6 { 40 } else { 20 };
                    let pseudo = pseudo_header_sum(&packet, protocol, packet.len() - ip_len);
                    assert_eq!(ones_sum(&packet[ip_len..], u32::from(pseudo)), 0xffff);
                    for cut in 0..packet.len() {
                        let _ = Opening::parse(&packet[..cut]);
                    }
                }
            }
        }
    }

    #[test]
    fn a_challenge_is_read_back_and_is_no_opening() {
        for v6 in [false, true] {
            let like = opening(protocol::UDP, v6, Step::Ask);
            let challenge = Challenge {
                source: like.source,
                destination: like.destination,
                flow: 7,
                secret: 0x0123_4567_89ab_cdef,
            };
            let packet = challenge.emit().unwrap();
            assert_eq!(Challenge::parse(&packet), Some(challenge));
            assert_eq!(Opening::parse(&packet), None);
            assert_eq!(Challenge::parse(&like.emit().unwrap()), None);
            let ip_len = if v6 { 40 } else { 20 };
            let pseudo = pseudo_header_sum(&packet, protocol::UDP, packet.len() - ip_len);
            assert_eq!(ones_sum(&packet[ip_len..], u32::from(pseudo)), 0xffff);
            for cut in 0..packet.len() {
                assert_eq!(Challenge::parse(&packet[..cut]), None);
            }
            let shown = format!("{challenge:?}");
            assert!(!shown.contains("81985529216486895"), "{shown}");
        }
    }

    #[test]
    fn an_ordinary_handshake_is_none() {
        let mut packet = opening(protocol::TCP, false, Step::Accept).emit().unwrap();
        packet[20 + 20 + 8] ^= 1;
        assert_eq!(Opening::parse(&packet), None, "its echo is another number");
        let mixed = Opening {
            destination: "[::1]:1".parse().unwrap(),
            ..opening(protocol::TCP, false, Step::Ask)
        };
        assert_eq!(mixed.emit(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_fail(mut bytes in prop::collection::vec(any::<u8>(), 0..100), v6: bool, udp: bool) {
            if let Some(first) = bytes.first_mut() {
                *first = if v6 { 0x60 } else { 0x45 };
            }
            if let Some(next) = bytes.get_mut(if v6 { 6 } else { 9 }) {
                *next = if udp { protocol::UDP } else { protocol::TCP };
            }
            let _ = Opening::parse(&bytes);
            let _ = Challenge::parse(&bytes);
        }
    }
}
