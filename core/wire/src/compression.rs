//! Compression of inner headers: sent once for a run of segments.
//!
//! The segments of one large packet have the same headers, except for fields that depend on the
//! segment's position: sequence number, length, identification and the flags of the last. So the
//! first segment is sent whole, as a [`Form::Context`], and the others as one byte and their
//! payload. The receiver restores the headers, in the order of the flow.
//!
//! ```text
//!   context     | IP, TCP headers | payload |      sequence s
//!   compressed  | b | payload |                    sequence s + (b & 63)
//!                 +- 0x80: PSH, 0x40: FIN, below: how many segments after its context
//! ```
//!
//! A packet without its context cannot be rebuilt and is lost, so senders compress only packets
//! that are in the retransmission buffer. Fields that change between the packets of a sender
//! (timestamps, acknowledgements) are constant within one large packet.
//!
//! Source: the terms of RFC 5795 (ROHC); the fields of RFC 6846 section 6 that are static or
//! inferred within a train of segments.

use std::net::IpAddr;

use hawser_units::Sequence;

use crate::frame::Format;
use crate::inner::{Summary, protocol, set_lengths, tcp_flag};

/// Size of the compressed header. Source: the layout above. Units: bytes.
pub const COMPRESSED_LEN: usize = 1;
/// Maximum distance of a compressed packet from its context. Source: six bits in the layout above.
pub const MAX_BACK: u16 = 63;
/// Number of flow slots that may have a context. Source: a bound on a receiver's memory of a
/// session, 590 kB of headers of [`MAX_HEADERS`].
pub const CONTEXT_SLOTS: u16 = 4096;
/// Maximum size of a context's headers. Source: Ethernet with two tags (IEEE 802.1Q, 22 bytes),
/// IPv4 (RFC 791, 60) and TCP (RFC 9293, 60) with all options are 142 bytes. Units: bytes.
pub const MAX_HEADERS: usize = 144;

/// Flags of the compressed header. Source: the layout above.
const PUSH: u8 = 0x80;
const FIN: u8 = 0x40;

/// Form in which an inner packet is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Packet with its headers.
    #[default]
    Whole,
    /// Packet with its headers, which are the context of later packets.
    Context,
    /// A [`Compressed`] and the payload.
    Compressed,
}

/// Compressed header, which replaces the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compressed {
    /// Distance from its context in segments: 1 to [`MAX_BACK`].
    pub back: u8,
    /// TCP flags that only the last segment has: PSH and FIN.
    pub last_flags: u8,
}

impl Compressed {
    /// Parses the compressed header.
    #[must_use]
    pub fn parse(byte: u8) -> Option<Self> {
        let flag = |bit, flag| if byte & bit == 0 { 0 } else { flag };
        let back = byte & MAX_BACK as u8;
        (back > 0).then_some(Self {
            back,
            last_flags: flag(PUSH, tcp_flag::PSH) | flag(FIN, tcp_flag::FIN),
        })
    }

    /// Returns the encoded byte.
    #[must_use]
    pub fn emit(self) -> u8 {
        let bit = |flag, bit| if self.last_flags & flag == 0 { 0 } else { bit };
        self.back | bit(tcp_flag::PSH, PUSH) | bit(tcp_flag::FIN, FIN)
    }
}

/// Headers of a context, to which later packets refer.
#[derive(Debug)]
struct Context {
    sequence: Sequence,
    ip_at: u8,
    ip_len: u8,
    headers_len: u8,
    protocol: u8,
    segment: u16,
    bytes: [u8; MAX_HEADERS],
}

/// Rebuilt headers.
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    bytes: [u8; MAX_HEADERS],
    len: u8,
}

impl Headers {
    /// Returns the headers.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns the headers for modification.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..usize::from(self.len)]
    }
}

/// Receiver's state of one session: a context for each flow slot.
///
/// Cost: O(1) a packet.
#[derive(Debug, Default)]
pub struct Contexts {
    format: Format,
    slots: Vec<Option<Box<Context>>>,
}

impl Contexts {
    /// Creates an empty state for packets of that format.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self {
            format,
            slots: Vec::new(),
        }
    }

    /// Stores a packet of [`Form::Context`], `len` bytes long, that begins with `headers`. A late
    /// context does not replace a newer one. A packet that cannot be a context is ignored.
    pub fn remember(&mut self, flow: u16, sequence: Sequence, headers: &[u8], len: usize) {
        let summary = self.format.parse(headers);
        let Some(summary) = summary.filter(|summary| can_be_context(summary, len)) else {
            return;
        };
        if flow >= CONTEXT_SLOTS {
            return;
        }
        let slot = usize::from(flow);
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, || None);
        }
        let context = self.slots[slot].get_or_insert_with(|| Box::new(Context::new(sequence)));
        if sequence.is_before(context.sequence) {
            return;
        }
        let headers_len = usize::from(summary.headers_len);
        context.sequence = sequence;
        context.ip_at = summary.ip_at as u8;
        context.ip_len = summary.ip_len as u8;
        context.headers_len = summary.headers_len as u8;
        context.protocol = summary.key.protocol;
        context.segment = (len - headers_len) as u16;
        context.bytes[..headers_len].copy_from_slice(&headers[..headers_len]);
    }

    /// Removes the contexts of packets from sources for which `is_kept` is false.
    pub fn keep_sources(&mut self, is_kept: impl Fn(IpAddr) -> bool) {
        for slot in &mut self.slots {
            let source = slot.as_ref().and_then(|context| {
                let headers = &context.bytes[..usize::from(context.headers_len)];
                Some(self.format.parse(headers)?.key.source)
            });
            if !source.is_some_and(&is_kept) {
                *slot = None;
            }
        }
    }

    /// Returns the headers of a compressed packet with `payload` bytes; `None` if its context is
    /// not the newest of its flow. The transport checksum is partial if the context's is.
    #[must_use]
    pub fn rebuild(
        &self,
        flow: u16,
        sequence: Sequence,
        compressed: Compressed,
        payload: usize,
    ) -> Option<Headers> {
        let context = self.slots.get(usize::from(flow))?.as_ref()?;
        let back = u32::from(compressed.back);
        if context.sequence.add(back) != sequence || payload > usize::from(context.segment) {
            return None;
        }
        let mut headers = Headers {
            bytes: context.bytes,
            len: context.headers_len,
        };
        let (ip_at, ip_len) = (usize::from(context.ip_at), usize::from(context.ip_len));
        let len = usize::from(context.headers_len) + payload - ip_at;
        if context.protocol == protocol::TCP {
            let (before, rest) = headers.bytes[ip_at + ip_len + 4..].split_first_chunk_mut::<4>()?;
            let at = u32::from_be_bytes(*before).wrapping_add(back * u32::from(context.segment));
            *before = at.to_be_bytes();
            // `rest` begins with the acknowledgement number; the flags are at offset 5.
            rest[5] = rest[5] & !(tcp_flag::CWR | tcp_flag::PSH | tcp_flag::FIN) | compressed.last_flags;
        }
        set_lengths(
            &mut headers.bytes_mut()[ip_at..],
            len,
            ip_len,
            context.protocol,
            u16::from(compressed.back),
        );
        Some(headers)
    }
}

impl Context {
    fn new(sequence: Sequence) -> Self {
        Self {
            sequence,
            ip_at: 0,
            ip_len: 0,
            headers_len: 0,
            protocol: 0,
            segment: 0,
            bytes: [0; MAX_HEADERS],
        }
    }
}

/// Returns whether segments after a packet of `len` bytes can be rebuilt from it.
fn can_be_context(summary: &Summary, len: usize) -> bool {
    let headers_len = usize::from(summary.headers_len);
    summary.has_transport() && headers_len <= MAX_HEADERS && len > headers_len && len <= usize::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inner;
    use crate::inner::tests::{tcp_packet, udp_packet};
    use crate::offload::{Offload, Segmenter};
    use proptest::prelude::*;

    fn plan(packet: &[u8], segment: u16) -> Segmenter {
        let offload = Offload {
            checksum_partial: true,
            segment,
        };
        let summary = inner::parse(packet).expect("valid");
        Segmenter::new(packet, &summary, offload).expect("plan")
    }

    fn whole(cut: &Segmenter, packet: &[u8], index: u16) -> Vec<u8> {
        let mut out = vec![0; cut.len_of(index)];
        cut.emit(packet, index, &mut out);
        out
    }

    /// Sends the segments from `from` on, with `from` as their context; returns the rebuilt
    /// packets.
    fn travel(packet: &[u8], segment: u16, from: u16) -> Vec<Vec<u8>> {
        let cut = plan(packet, segment);
        let sequence = |index: u16| Sequence(u32::MAX - 3).add(u32::from(index));
        let first = whole(&cut, packet, from);
        let mut contexts = Contexts::default();
        contexts.remember(9, sequence(from), &first, first.len());
        let mut arrived = vec![first];
        for index in from + 1..cut.count().min(from + MAX_BACK + 1) {
            let mut body = vec![0; cut.compressed_len(index)];
            cut.emit_compressed(packet, index, from, &mut body);
            let compressed = Compressed::parse(body[0]).expect("valid");
            let payload = &body[COMPRESSED_LEN..];
            let headers = contexts
                .rebuild(9, sequence(index), compressed, payload.len())
                .expect("its context came");
            arrived.push([headers.bytes(), payload].concat());
        }
        arrived
    }

    #[test]
    fn what_has_no_context_is_not_rebuilt() {
        let packet = tcp_packet(1, &[7; 3000], 0x10);
        let cut = plan(&packet, 1000);
        let first = whole(&cut, &packet, 0);
        let one = Compressed {
            back: 1,
            last_flags: 0,
        };
        let mut contexts = Contexts::default();
        assert!(contexts.rebuild(0, Sequence(6), one, 1000).is_none());
        contexts.remember(0, Sequence(5), &first, first.len());
        assert!(contexts.rebuild(0, Sequence(6), one, 1000).is_some());
        assert!(contexts.rebuild(0, Sequence(7), one, 1000).is_none(), "another's");
        assert!(
            contexts.rebuild(1, Sequence(6), one, 1000).is_none(),
            "another flow"
        );
        assert!(contexts.rebuild(0, Sequence(6), one, 1001).is_none(), "too long");
        contexts.remember(0, Sequence(4), &first, first.len());
        assert!(
            contexts.rebuild(0, Sequence(6), one, 1000).is_some(),
            "an older one came late"
        );
        contexts.remember(0, Sequence(9), &first, first.len());
        assert!(contexts.rebuild(0, Sequence(6), one, 1000).is_none(), "replaced");
    }

    #[test]
    fn a_context_of_bare_headers_or_of_no_transport_is_let_be() {
        let mut contexts = Contexts::default();
        let bare = tcp_packet(1, &[], 0x10);
        contexts.remember(0, Sequence(0), &bare, bare.len());
        contexts.remember(1, Sequence(0), &[0x45; 19], 19);
        contexts.remember(CONTEXT_SLOTS, Sequence(0), &tcp_packet(1, &[1], 0x10), 53);
        let one = Compressed {
            back: 1,
            last_flags: 0,
        };
        for flow in [0, 1, CONTEXT_SLOTS] {
            assert!(contexts.rebuild(flow, Sequence(1), one, 0).is_none());
        }
    }

    proptest! {
        #[test]
        fn rebuilt_segments_are_those_that_were_cut(payload in proptest::collection::vec(any::<u8>(), 200..6000),
                                                    segment in 100u16..1400, from in 0u16..2, sequence: u32, flags in 0u8..=255, udp: bool) {
            let flags = flags & !(tcp_flag::SYN | tcp_flag::RST) | 0x10;
            let packet = if udp { udp_packet(&payload) } else { tcp_packet(sequence, &payload, flags) };
            let cut = plan(&packet, segment);
            prop_assume!(from + 1 < cut.count());
            for (at, arrived) in travel(&packet, segment, from).iter().enumerate() {
                prop_assert_eq!(arrived, &whole(&cut, &packet, from + at as u16));
            }
        }

        #[test]
        fn hostile_contexts_never_panic(headers in proptest::collection::vec(any::<u8>(), 0..140), version in 4u8..=6, len in 0usize..70_000,
                                        byte: u8, payload in 0usize..70_000) {
            let mut headers = headers;
            if let Some(first) = headers.first_mut() { *first = version << 4 | *first & 0x0f; }
            let mut contexts = Contexts::default();
            contexts.remember(1, Sequence(0), &headers, len.max(headers.len()));
            if let Some(compressed) = Compressed::parse(byte) {
                prop_assert_eq!(compressed.emit(), byte);
                let _ = contexts.rebuild(1, Sequence(u32::from(compressed.back)), compressed, payload);
            }
        }
    }
}
