//! Openings: the first packets on a new route of a flow that is older than the route.
//!
//! Translators and firewalls let a TCP connection pass whose beginning they have seen, and drop
//! what comes in the middle of one. So before a flow moves to a route, its ends show the route a
//! beginning: a handshake of three packets from the two Hawsers themselves, which no socket ever
//! sees. Its sequence numbers lie [`AHEAD`] of the flow's own and its windows are as wide as they
//! can be, so that what follows, the flow's own packets, is within the window in the eyes of one
//! that checks. A UDP route opens with two datagrams. Both say by a number (`nonce`, for TCP in the
//! timestamp option) which opening it is, and the far end learns from the first what addresses the
//! packets have when they come out of the translators.
//!
//! A UDP flow has no numbers that only its ends know. So before its mover is believed, the follower
//! sends a [`Challenge`] over the flow's present route: a datagram with a secret, for no socket,
//! which only who receives the flow's packets can repeat over the control channel.
//!
//! Source: Flow switch section 5 names the problem ("the new network did not see a SYN packet") and
//! no remedy.

use std::net::SocketAddr;

use crate::inner::{self, fill_ipv4_checksum, ones_sum, protocol, pseudo_header_sum, tcp_flag};

/// Which packet of an opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The first, from the mover. TCP: SYN.
    Ask,
    /// The answer. TCP: SYN and ACK.
    Accept,
    /// The last, from either side, for TCP alone: it says how wide the window is.
    Confirm,
}

/// A packet of an opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// TCP or UDP.
    pub protocol: u8,
    /// From whom.
    pub source: SocketAddr,
    /// To whom; of the same family.
    pub destination: SocketAddr,
    /// Which packet.
    pub step: Step,
    /// Which opening.
    pub nonce: u32,
    /// Of TCP.
    pub sequence: u32,
    /// Of TCP; zero in the first packet.
    pub acknowledged: u32,
}

impl Opening {
    /// The whole IP packet; `None` for addresses of two families, or another protocol.
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

    /// Reads a packet that came in, whole or cut behind its headers; `None` when it is none of an
    /// opening.
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

/// A datagram over a UDP flow's route, by which its mover proves that the flow is its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Challenge {
    /// The follower, as the flow's packets name it.
    pub source: SocketAddr,
    /// The other end, as they do; of the same family.
    pub destination: SocketAddr,
    /// The mover's number for the flow.
    pub flow: u32,
    /// What is to be repeated.
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
    /// The whole IP packet; `None` for addresses of two families.
    #[must_use]
    pub fn emit(&self) -> Option<Vec<u8>> {
        let mut rest = self.flow.to_be_bytes().to_vec();
        rest.extend_from_slice(&self.secret.to_be_bytes());
        let transport = datagram(self.source, self.destination, CHALLENGE, &rest);
        whole(protocol::UDP, (self.source, self.destination), &transport)
    }

    /// Reads a packet that came in; `None` when it is no challenge.
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

/// A packet from its transport's header on, whose checksum is to be filled in.
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

/// Sequence and acknowledgement number of a TCP header.
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

/// Value and echo of the timestamp option (RFC 7323 section 3.2).
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

/// How far an opening's sequence numbers lie ahead of what is known of the flow: more than it
/// carries in the meantime, and well within the widest window, so that both what was sent before
/// and what comes after fit.
pub const AHEAD: u32 = 1 << 28;

const TIMESTAMPS: u8 = 8;
/// The largest window scale (RFC 7323 section 2.3): a window of 1 GB.
const WIDEST: u8 = 14;
/// Segments that fit everywhere; nobody sends any by this.
const SEGMENT: u16 = 1220;
/// Tells these datagrams from everything else, and, by its first two bits, from a long header of
/// QUIC and from data packets.
const MAGIC: [u8; 8] = *b"hwsrOpen";
const DATAGRAM: usize = 8 + 8 + 1 + 4;
/// Behind [`MAGIC`], in place of an opening's step.
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
