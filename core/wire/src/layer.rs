//! Layer marks: importance of a packet within a video stream, read from marks that its sender
//! already sets.
//!
//! The sender of a layered stream marks the dependencies between packets: by separate RTP streams,
//! in an RTP header extension, in the payload's own header, in the code point of the IP header, or
//! by port. A [`Rule`] names the packets and the position of the mark; the result is a [`Layer`].
//! Parsing is stateless, so it works for packets in any order and of any flow.
//!
//! Not parsed: encrypted payloads (the RTP header is not encrypted, so layers by payload type or
//! SSRC work with SRTP), and AV1's dependency descriptor (its template table requires state).

use crate::inner::{Summary, protocol};

/// Importance of a packet within its stream: 0 is the base layer, and a layer is useful only with
/// all layers below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layer(pub u8);

impl Layer {
    /// Least important layer that is distinguished. Source: [`MAX_LAYERS`].
    pub const LAST: Self = Self(MAX_LAYERS - 1);
}

/// Number of distinguished layers. Source: three bits, as in the payload formats (RFC 6190 section
/// 1.1.3, RFC 9628 section 4.2).
pub const MAX_LAYERS: u8 = 8;

/// Fixed part of an RTP header, and the bounds of the payload.
///
/// Source: RFC 3550 section 5.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rtp {
    /// Marker bit: with video, the last packet of a frame.
    pub marker: bool,
    /// Payload type, 7 bits.
    pub payload_type: u8,
    /// Sequence number.
    pub sequence: u16,
    /// Media time, in units of the payload format.
    pub timestamp: u32,
    /// Stream identifier.
    pub ssrc: u32,
    /// Number of bytes before the payload.
    pub header_len: u16,
    /// Number of bytes before the padding.
    pub payload_end: u16,
}

impl Rtp {
    /// Parses the header at the start of a UDP payload; `None` if it is not RTP or is truncated.
    ///
    /// RTCP packets on the same port are rejected by their type (RFC 5761 section 4).
    #[must_use]
    pub fn parse(datagram: &[u8]) -> Option<Self> {
        let head = datagram.first_chunk::<12>()?;
        let total = u16::try_from(datagram.len()).ok()?;
        if head[0] >> 6 != 2 || (192..=223).contains(&head[1]) {
            return None;
        }
        let mut header_len = 12 + usize::from(head[0] & 0x0f) * 4;
        if head[0] & 0x10 != 0 {
            let words = datagram.get(header_len + 2..header_len + 4)?;
            header_len += 4 + usize::from(u16::from_be_bytes([words[0], words[1]])) * 4;
        }
        let padding = match head[0] & 0x20 {
            0 => 0,
            _ => u16::from(*datagram.last()?),
        };
        let payload_end = total.checked_sub(padding)?;
        if header_len > usize::from(payload_end) {
            return None;
        }
        Some(Self {
            marker: head[1] & 0x80 != 0,
            payload_type: head[1] & 0x7f,
            sequence: u16::from_be_bytes([head[2], head[3]]),
            timestamp: u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
            ssrc: u32::from_be_bytes([head[8], head[9], head[10], head[11]]),
            header_len: header_len as u16,
            payload_end,
        })
    }

    /// Returns the payload of the datagram that was parsed; empty for another, shorter datagram.
    #[must_use]
    pub fn payload<'a>(&self, datagram: &'a [u8]) -> &'a [u8] {
        datagram
            .get(usize::from(self.header_len)..usize::from(self.payload_end))
            .unwrap_or_default()
    }

    /// Returns the data of the first header extension element with this id; `None` if the parsed
    /// datagram has none.
    ///
    /// Source: RFC 8285 sections 4.2 (one-byte headers) and 4.3 (two-byte headers).
    ///
    /// Cost: O(elements), no copy.
    #[must_use]
    pub fn extension<'a>(&self, datagram: &'a [u8], id: u8) -> Option<&'a [u8]> {
        let first = *datagram.first()?;
        let at = 12 + usize::from(first & 0x0f) * 4;
        let header = datagram.get(..usize::from(self.header_len))?;
        // The profile, the length in words (which `header_len` includes), the elements.
        let (profile, rest) = header.get(at..)?.split_first_chunk::<2>()?;
        let elements = rest.get(2..)?;
        match u16::from_be_bytes(*profile) {
            ONE_BYTE_HEADERS => element(elements, id, one_byte_header),
            profile if profile & TWO_BYTE_HEADERS_MASK == TWO_BYTE_HEADERS => {
                element(elements, id, two_byte_header)
            }
            _ => None,
        }
    }
}

/// Header of an element: its id, the length of its data, and its own length.
type ElementHeader = (u8, usize, usize);

fn one_byte_header(bytes: &[u8]) -> Option<ElementHeader> {
    let first = *bytes.first()?;
    match (first >> 4, first & 0x0f) {
        (0, 0) => Some((0, 0, 1)),
        // Padding has no length.
        (0 | RESERVED_ID, _) => None,
        (id, len) => Some((id, usize::from(len) + 1, 1)),
    }
}

fn two_byte_header(bytes: &[u8]) -> Option<ElementHeader> {
    match *bytes.first()? {
        0 => Some((0, 0, 1)),
        id => Some((id, usize::from(*bytes.get(1)?), 2)),
    }
}

fn element(mut bytes: &[u8], id: u8, header: fn(&[u8]) -> Option<ElementHeader>) -> Option<&[u8]> {
    loop {
        let (found, len, header_len) = header(bytes)?;
        let data = bytes.get(header_len..header_len + len)?;
        if found == id && id != 0 {
            return Some(data);
        }
        bytes = &bytes[header_len + len..];
    }
}

/// Profile of one-byte headers. Source: RFC 8285 section 4.2.
const ONE_BYTE_HEADERS: u16 = 0xbede;
/// Profile of two-byte headers; its lower four bits are defined by the application. Source: RFC
/// 8285 section 4.3.
const TWO_BYTE_HEADERS: u16 = 0x1000;
const TWO_BYTE_HEADERS_MASK: u16 = 0xfff0;
/// Id that ends a list of elements with one-byte headers, regardless of the bytes after it. Source:
/// RFC 8285 section 4.2.
const RESERVED_ID: u8 = 15;

/// Kind of a coded picture, by its dependencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Frame {
    /// Independent picture, on which all others depend; parameter sets count as such.
    Intra,
    /// Picture that depends on earlier ones, and on which later ones depend.
    Predicted,
    /// Picture that no other picture refers to.
    Bidirectional,
}

impl Frame {
    /// Returns the layer of a picture: I before P before B.
    ///
    /// Source: Piconet section III-D (frame-priority striping).
    #[must_use]
    pub fn layer(self) -> Layer {
        Layer(self as u8)
    }
}

/// Returns the frame kind of an RTP payload of H.264, from its reference indicator and type,
/// without decoding.
///
/// A picture of type 5, and the parameter sets that it needs, count as intra; other pictures with
/// references to them as predicted; pictures with an indicator of 0 as bidirectional. An aggregate
/// counts as its first unit; its indicator is that of its most important unit.
///
/// Source: RFC 6184 sections 1.3, 5.3, 5.7, 5.8; ITU-T H.264 table 7-1.
#[must_use]
pub fn h264_frame(payload: &[u8]) -> Option<Frame> {
    let first = *payload.first()?;
    let (reference, unit) = (first >> 5 & 3, first & 0x1f);
    let kind = match unit {
        24 => payload.get(3)? & 0x1f,
        25 => payload.get(5)? & 0x1f,
        28 | 29 => payload.get(1)? & 0x1f,
        other => other,
    };
    match (kind, reference) {
        (0 | 24..=31, _) => None,
        (5 | 7 | 8 | 13 | 15, _) => Some(Frame::Intra),
        (_, 0) => Some(Frame::Bidirectional),
        _ => Some(Frame::Predicted),
    }
}

/// Returns the layer of an RTP payload of scalable H.264: the spatial and quality layer of its
/// header extension; the base layer has no extension.
///
/// Each dependency id has two layers, its base quality and all refinements, so that no packet
/// precedes one on which it depends.
///
/// Source: RFC 6190 section 1.1.3 (units 14 and 20), RFC 6184 section 5.8 for fragments, which
/// repeat the extension.
#[must_use]
pub fn svc_layer(payload: &[u8]) -> Option<Layer> {
    let unit = |at: usize| payload.get(at).map(|byte| byte & 0x1f);
    let (kind, extension) = match unit(0)? {
        24 => (unit(3)?, 4),
        28 | 29 => (unit(1)?, 2),
        0 => return None,
        other => (other, 1),
    };
    if kind != 20 {
        return (kind < 24).then_some(Layer(0));
    }
    let ids = *payload.get(extension + 1)?;
    let (dependency, quality) = (ids >> 4 & 7, ids & 0x0f);
    Some(Layer((2 * dependency + quality.min(1)).min(Layer::LAST.0)))
}

/// Returns the layer of an RTP payload of VP9: the sum of its spatial and temporal layer.
///
/// A packet depends only on packets whose ids are not larger in either, so by the sum it never
/// precedes one on which it depends.
///
/// Source: RFC 9628 section 4.2.
#[must_use]
pub fn vp9_layer(payload: &[u8]) -> Option<Layer> {
    let flags = *payload.first()?;
    let has_picture = flags & 0x80 != 0;
    if flags & 0x20 == 0 {
        return Some(Layer(0));
    }
    let at = match has_picture {
        false => 1,
        true if payload.get(1)? & 0x80 != 0 => 3,
        true => 2,
    };
    let ids = *payload.get(at)?;
    Some(Layer(((ids >> 5) + (ids >> 1 & 7)).min(Layer::LAST.0)))
}

/// Pattern of packets; a field that is `None` matches all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pattern {
    /// Source or destination port.
    pub port: Option<u16>,
    /// Differentiated services code point.
    pub dscp: Option<u8>,
    /// RTP payload type; a packet that is not RTP does not match.
    pub payload_type: Option<u8>,
    /// RTP stream; a packet that is not RTP does not match.
    pub ssrc: Option<u32>,
    /// RTP header extension; a packet that is not RTP does not match.
    pub extension: Option<Extension>,
}

/// A header extension element that a packet must have.
///
/// With frame marking (RFC 9626) the temporal layer is the first byte's lowest three bits: `mask`
/// 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension {
    /// Id of the extension in the session description: 1 to 14 with one-byte headers, 1 to 255 with
    /// two-byte headers.
    pub id: u8,
    /// Required value of the first byte of the element's data, in the bits of `mask`; `None` for
    /// any data, including none.
    pub value: Option<u8>,
    /// Bits of the first byte that are compared.
    pub mask: u8,
}

impl Extension {
    fn matches(&self, rtp: &Rtp, datagram: &[u8]) -> bool {
        rtp.extension(datagram, self.id).is_some_and(|data| {
            self.value
                .is_none_or(|value| data.first().is_some_and(|first| first & self.mask == value))
        })
    }
}

/// Source of the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Constant layer for all that match.
    Fixed(Layer),
    /// [`h264_frame`].
    H264,
    /// [`svc_layer`].
    Svc,
    /// [`vp9_layer`].
    Vp9,
}

/// Rule for the layer of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Packets that the rule matches.
    pub pattern: Pattern,
    /// Source of their layer.
    pub reading: Reading,
}

impl Pattern {
    fn matches(&self, summary: &Summary, rtp: Option<&Rtp>, datagram: &[u8]) -> bool {
        let key = &summary.key;
        self.port
            .is_none_or(|port| key.source_port == port || key.destination_port == port)
            && self.dscp.is_none_or(|dscp| summary.dscp == dscp)
            && self
                .payload_type
                .is_none_or(|kind| rtp.is_some_and(|rtp| rtp.payload_type == kind))
            && self
                .ssrc
                .is_none_or(|ssrc| rtp.is_some_and(|rtp| rtp.ssrc == ssrc))
            && self
                .extension
                .is_none_or(|extension| rtp.is_some_and(|rtp| extension.matches(rtp, datagram)))
    }
}

/// Returns the layer of a packet by the first rule that matches it; `None` if no rule matches, or
/// if the matching rule finds no mark.
///
/// `packet` is an inner packet, `summary` the result of [`crate::inner::parse`] for it.
///
/// Cost: O(rules), no copy; without rules nothing is read.
#[must_use]
pub fn layer_of(packet: &[u8], summary: &Summary, rules: &[Rule]) -> Option<Layer> {
    if rules.is_empty() {
        return None;
    }
    let datagram = match summary.key.protocol {
        protocol::UDP if summary.has_transport() => {
            packet.get(usize::from(summary.headers_len)..).unwrap_or_default()
        }
        _ => &[],
    };
    let rtp = Rtp::parse(datagram);
    let rule = rules
        .iter()
        .find(|rule| rule.pattern.matches(summary, rtp.as_ref(), datagram))?;
    let payload = rtp.map(|rtp| rtp.payload(datagram));
    match rule.reading {
        Reading::Fixed(layer) => Some(layer),
        Reading::H264 => h264_frame(payload?).map(Frame::layer),
        Reading::Svc => svc_layer(payload?),
        Reading::Vp9 => vp9_layer(payload?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inner;
    use proptest::prelude::*;

    fn rtp(payload_type: u8, ssrc: u32, payload: &[u8]) -> Vec<u8> {
        let mut datagram = vec![0x80, payload_type, 0, 7, 0, 0, 0, 9];
        datagram.extend(ssrc.to_be_bytes());
        datagram.extend(payload);
        datagram
    }

    fn udp(dscp: u8, port: u16, datagram: &[u8]) -> Vec<u8> {
        let total = 28 + datagram.len();
        let mut packet = vec![0; 28];
        packet[0] = 0x45;
        packet[1] = dscp << 2;
        packet[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        packet[9] = protocol::UDP;
        packet[22..24].copy_from_slice(&port.to_be_bytes());
        packet.extend(datagram);
        packet
    }

    fn layer(packet: &[u8], rules: &[Rule]) -> Option<Layer> {
        layer_of(packet, &inner::parse(packet).expect("valid"), rules)
    }

    #[test]
    fn reads_contributors_extension_and_padding() {
        let mut datagram = vec![0xb1, 0x80 | 96, 0, 7, 0, 0, 0, 9, 0, 0, 0, 5];
        datagram.extend([1, 2, 3, 4, 0xbe, 0xde, 0, 1, 9, 9, 9, 9, 0x65, 0xaa, 0, 2]);
        let header = Rtp::parse(&datagram).expect("RTP");
        assert!(header.marker);
        assert_eq!((header.payload_type, header.ssrc, header.sequence), (96, 5, 7));
        assert_eq!(header.payload(&datagram), [0x65, 0xaa]);
        for len in 0..datagram.len() {
            if let Some(header) = Rtp::parse(&datagram[..len]) {
                assert!(usize::from(header.payload_end) <= len);
            }
        }
    }

    /// Builds a datagram with these extension words after the fixed header.
    fn extended(profile: u16, elements: &[u8]) -> Vec<u8> {
        let mut datagram = rtp(96, 5, &[]);
        datagram[0] |= 0x10;
        datagram.extend(profile.to_be_bytes());
        datagram.extend((elements.len() as u16 / 4).to_be_bytes());
        datagram.extend(elements);
        datagram.extend([0x65, 0xaa]);
        datagram
    }

    fn found(datagram: &[u8], id: u8) -> Option<Vec<u8>> {
        let header = Rtp::parse(datagram).expect("RTP");
        header.extension(datagram, id).map(<[u8]>::to_vec)
    }

    #[test]
    fn elements_with_one_byte_headers() {
        // Id 1 with one byte, padding, id 3 with two bytes, id 15 which ends them.
        let datagram = extended(0xbede, &[0x10, 0xaa, 0, 0x31, 7, 8, 0xf0, 0x20]);
        assert_eq!(found(&datagram, 1), Some(vec![0xaa]));
        assert_eq!(found(&datagram, 3), Some(vec![7, 8]));
        assert_eq!(found(&datagram, 2), None, "behind the end");
        assert_eq!(found(&datagram, 0), None, "padding is no element");
        assert_eq!(found(&extended(0xbede, &[0x3f, 1, 2, 3]), 3), None, "cut short");
        assert_eq!(
            found(&extended(0xbede, &[0x01, 0x30, 9, 0]), 3),
            None,
            "padding with a length"
        );
    }

    #[test]
    fn elements_with_two_byte_headers() {
        let datagram = extended(0x1003, &[200, 0, 0, 3, 2, 7, 8, 0]);
        assert_eq!(found(&datagram, 200), Some(vec![]));
        assert_eq!(found(&datagram, 3), Some(vec![7, 8]));
        assert_eq!(found(&datagram, 8), None);
        assert_eq!(
            found(&extended(0xc0de, &[0x30, 7, 0, 0]), 3),
            None,
            "another profile"
        );
        assert_eq!(
            found(&rtp(96, 5, &[0xbe, 0xde, 0, 1, 0x30, 7, 0, 0]), 3),
            None,
            "no extension"
        );
    }

    #[test]
    fn a_rule_by_header_extension() {
        let rule = |value, layer| Rule {
            pattern: Pattern {
                extension: Some(Extension {
                    id: 3,
                    value,
                    mask: 7,
                }),
                ..Pattern::default()
            },
            reading: Reading::Fixed(Layer(layer)),
        };
        let rules = [rule(Some(2), 2), rule(None, 0)];
        let marked = |first| udp(0, 5004, &extended(0xbede, &[0x30, first, 0, 0]));
        assert_eq!(
            layer(&marked(0xca), &rules),
            Some(Layer(2)),
            "bits beyond the mask do not count"
        );
        assert_eq!(layer(&marked(0xc9), &rules), Some(Layer(0)));
        assert_eq!(layer(&udp(0, 5004, &rtp(96, 5, &[0x41])), &rules), None);
    }

    #[test]
    fn refuses_what_is_not_rtp() {
        assert_eq!(Rtp::parse(&rtp(96, 1, &[])[..11]), None);
        assert_eq!(Rtp::parse(&[0x40; 20]), None);
        let report = [&[0x80, 200][..], &[0; 20]].concat();
        assert_eq!(Rtp::parse(&report), None);
    }

    #[test]
    fn frames_of_h264_by_type_and_reference() {
        let cases: [(&[u8], Option<Frame>); 9] = [
            (&[0x65], Some(Frame::Intra)),
            (&[0x67], Some(Frame::Intra)),
            (&[0x41], Some(Frame::Predicted)),
            (&[0x01], Some(Frame::Bidirectional)),
            (&[0x7c, 0x85], Some(Frame::Intra)),
            (&[0x5c, 0x41], Some(Frame::Predicted)),
            (&[0x78, 0, 9, 0x67], Some(Frame::Intra)),
            (&[0x1f], None),
            (&[], None),
        ];
        for (payload, frame) in cases {
            assert_eq!(h264_frame(payload), frame, "{payload:?}");
        }
        assert!(Frame::Intra.layer() < Frame::Predicted.layer());
        assert!(Frame::Predicted.layer() < Frame::Bidirectional.layer());
    }

    #[test]
    fn layers_of_scalable_h264() {
        assert_eq!(svc_layer(&[0x65]), Some(Layer(0)));
        assert_eq!(svc_layer(&[0x6e, 0, 0, 0]), Some(Layer(0)));
        assert_eq!(svc_layer(&[0x74, 0x80, 0x10, 0x07]), Some(Layer(2)));
        assert_eq!(svc_layer(&[0x74, 0x80, 0x12, 0x07]), Some(Layer(3)));
        assert_eq!(svc_layer(&[0x7c, 0x94, 0x80, 0x20, 0x07]), Some(Layer(4)));
        assert_eq!(svc_layer(&[0x74, 0x80]), None);
    }

    #[test]
    fn layers_of_vp9() {
        assert_eq!(vp9_layer(&[0x0c]), Some(Layer(0)));
        assert_eq!(vp9_layer(&[0x2c, 0x22]), Some(Layer(2)));
        assert_eq!(vp9_layer(&[0xac, 0x05, 0x20]), Some(Layer(1)));
        assert_eq!(vp9_layer(&[0xac, 0x85, 0x01, 0x04]), Some(Layer(2)));
        assert_eq!(vp9_layer(&[0xac, 0x85]), None);
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let fixed = |pattern, layer| Rule {
            pattern,
            reading: Reading::Fixed(Layer(layer)),
        };
        let any = Pattern::default();
        let rules = [
            fixed(Pattern { ssrc: Some(5), ..any }, 2),
            fixed(
                Pattern {
                    dscp: Some(34),
                    ..any
                },
                1,
            ),
            Rule {
                pattern: Pattern {
                    port: Some(5004),
                    payload_type: Some(96),
                    ..any
                },
                reading: Reading::H264,
            },
        ];
        let stream = |ssrc| rtp(96, ssrc, &[0x41]);
        assert_eq!(layer(&udp(34, 5004, &stream(5)), &rules), Some(Layer(2)));
        assert_eq!(layer(&udp(34, 5004, &stream(6)), &rules), Some(Layer(1)));
        assert_eq!(layer(&udp(0, 5004, &stream(6)), &rules), Some(Layer(1)));
        assert_eq!(layer(&udp(0, 5006, &stream(6)), &rules), None);
        assert_eq!(layer(&udp(0, 5004, &[1, 2, 3]), &rules), None);
    }

    #[test]
    fn reads_every_field_of_a_plain_header() {
        let datagram = [0x80, 111, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0xaa];
        let header = Rtp {
            marker: false,
            payload_type: 111,
            sequence: 0x0102,
            timestamp: 0x0304_0506,
            ssrc: 0x0708_090a,
            header_len: 12,
            payload_end: 13,
        };
        assert_eq!(Rtp::parse(&datagram), Some(header));
        assert_eq!(header.payload(&datagram), [0xaa]);
        assert_eq!(header.payload(&datagram[..12]), []);
        assert_eq!(
            Rtp::parse(&datagram[..12]).expect("a header alone").payload_end,
            12
        );
        // Types 64 to 95 with the marker are those of RTCP.
        for (byte, is_rtp) in [(191, true), (192, false), (223, false), (224, true)] {
            let mut datagram = datagram;
            datagram[1] = byte;
            assert_eq!(Rtp::parse(&datagram).is_some(), is_rtp, "{byte}");
        }
    }

    #[test]
    fn padding_and_extensions_that_reach_beyond_the_packet_are_refused() {
        let mut padded = vec![0xa0, 96, 0, 7, 0, 0, 0, 9, 0, 0, 0, 5, 1, 1, 3];
        assert_eq!(Rtp::parse(&padded).expect("all is padding").payload(&padded), []);
        padded[14] = 4;
        assert_eq!(Rtp::parse(&padded), None, "padding in the header");
        padded[14] = 16;
        assert_eq!(Rtp::parse(&padded), None, "more padding than bytes");
        let mut extended = vec![0x90, 96, 0, 7, 0, 0, 0, 9, 0, 0, 0, 5, 0, 0, 0, 1, 9, 9, 9, 9];
        assert_eq!(Rtp::parse(&extended).expect("valid").header_len, 20);
        extended[15] = 2;
        assert_eq!(Rtp::parse(&extended), None);
        assert_eq!(Rtp::parse(&extended[..15]), None);
    }

    #[test]
    fn units_of_h264_that_are_aggregated_fragmented_or_reserved() {
        let cases: [(&[u8], Option<Frame>); 12] = [
            (&[0x28], Some(Frame::Intra)),
            (&[0x0d], Some(Frame::Intra)),
            (&[0x0f], Some(Frame::Intra)),
            (&[0x60], None),
            (&[0x7e], None),
            (&[0x79, 0, 0, 0, 9, 0x65], Some(Frame::Intra)),
            (&[0x79, 0, 0, 0, 9], None),
            (&[0x78, 0, 9], None),
            (&[0x7d, 0x05], Some(Frame::Intra)),
            (&[0x1c, 0x01], Some(Frame::Bidirectional)),
            (&[0x7c], None),
            (&[0x17], Some(Frame::Bidirectional)),
        ];
        for (payload, frame) in cases {
            assert_eq!(h264_frame(payload), frame, "{payload:?}");
        }
    }

    #[test]
    fn units_of_scalable_h264_that_are_aggregated_fragmented_or_reserved() {
        let cases: [(&[u8], Option<u8>); 12] = [
            (&[0x7c, 0x98], None),
            (&[0x78, 0, 9, 0x74, 0x80, 0x20, 0x07], Some(4)),
            (&[0x78, 0, 9, 0x65], Some(0)),
            (&[0x78, 0, 9], None),
            (&[0x7d, 0x94, 0x80, 0x11, 0x07], Some(3)),
            (&[0x7c, 0x85], Some(0)),
            (&[0x7c], None),
            (&[0x60], None),
            (&[0x77], Some(0)),
            (&[0x7e], None),
            (&[0x74, 0x80, 0x7f], Some(7)),
            (&[0x74, 0x80, 0x0f], Some(1)),
        ];
        for (payload, layer) in cases {
            assert_eq!(svc_layer(payload), layer.map(Layer), "{payload:?}");
        }
    }

    #[test]
    fn layers_of_vp9_add_up_to_the_last_at_most() {
        assert_eq!(vp9_layer(&[0x20, 0x26]), Some(Layer(1 + 3)));
        assert_eq!(vp9_layer(&[0x20, 0xff]), Some(Layer(7)));
        assert_eq!(vp9_layer(&[0x20, 0xe0]), Some(Layer(7)));
        assert_eq!(
            vp9_layer(&[0x20, 0x11]),
            Some(Layer(0)),
            "neither of the two other bits counts"
        );
        assert_eq!(vp9_layer(&[0x20]), None);
        assert_eq!(vp9_layer(&[0x80, 0x85]), Some(Layer(0)));
        assert_eq!(vp9_layer(&[]), None);
    }

    #[test]
    fn a_rule_looks_only_where_it_says() {
        let rule = |pattern, reading| [Rule { pattern, reading }];
        let any = Pattern::default();
        let stream = udp(0, 5004, &rtp(96, 5, &[0x65]));
        assert_eq!(layer(&stream, &[]), None);
        assert_eq!(layer(&stream, &rule(any, Reading::H264)), Some(Layer(0)));
        let scalable = udp(0, 5004, &rtp(96, 5, &[0x74, 0x80, 0x10, 0x07]));
        assert_eq!(layer(&scalable, &rule(any, Reading::Svc)), Some(Layer(2)));
        let vp9 = udp(0, 5004, &rtp(96, 5, &[0x20, 0x26]));
        assert_eq!(layer(&vp9, &rule(any, Reading::Vp9)), Some(Layer(4)));
        let to_port = |port| {
            rule(
                Pattern {
                    port: Some(port),
                    ..any
                },
                Reading::Fixed(Layer(3)),
            )
        };
        let mut answer = udp(0, 9, &[1, 2, 3]);
        answer[20..22].copy_from_slice(&5004_u16.to_be_bytes());
        assert_eq!(
            layer(&answer, &to_port(5004)),
            Some(Layer(3)),
            "the source port counts too"
        );
        assert_eq!(layer(&answer, &to_port(5005)), None);
        let of_type = |kind| Pattern {
            payload_type: Some(kind),
            ..any
        };
        assert_eq!(layer(&stream, &rule(of_type(97), Reading::H264)), None);
        // The same bytes after a TCP header are not a stream.
        let mut tcp = inner::tests::tcp_packet(1, &rtp(96, 5, &[0x65]), 0x10);
        assert_eq!(layer(&tcp, &rule(any, Reading::H264)), None);
        tcp[6..8].copy_from_slice(&[0x20, 0]);
        tcp[9] = protocol::UDP;
        assert_eq!(layer(&tcp, &rule(any, Reading::H264)), None, "nor in a fragment");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_not_but_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some(rtp) = Rtp::parse(&bytes) {
                prop_assert!(rtp.header_len <= rtp.payload_end && usize::from(rtp.payload_end) <= bytes.len());
                for id in 0..=u8::MAX {
                    prop_assert!(rtp.extension(&bytes, id).is_none_or(|data| data.len() < bytes.len()));
                }
            }
            for layer in [svc_layer(&bytes), vp9_layer(&bytes), h264_frame(&bytes).map(Frame::layer)].into_iter().flatten() {
                prop_assert!(layer <= Layer::LAST);
            }
        }
    }
}
