//! Data packet: an authenticated outer header, an encrypted inner header, an inner packet, an AEAD
//! tag.
//!
//! ```text
//!  0        1        2                 6                          12
//!  +--------+--------+-----------------+--------------------------+
//!  |00 kind | epoch  | receiver index  | packet number (48 bits)        |   outer, authenticated
//!  +--------+--------+-----------------+--------------------------+
//!  12       13       14        16                20               24
//!  +--------+--------+---------+-----------------+----------------+
//!  | kind   |flags,  | flow    | flow sequence   | send time (us) |   inner, encrypted
//!  |        | class  |         |                 |                |
//!  +--------+--------+---------+-----------------+----------------+
//!  | inner IP packet, or the body of a feedback or probe ...      | tag (16) |
//! ```
//!
//! An inner packet may be sent without its headers: [`crate::compression`].
//!
//! All integers are big-endian. The first two bits are zero, which no QUIC version 1 packet has
//! (RFC 9000 section 17 sets the second bit), so both protocols can share a port.

use hawser_units::{PathId, Sequence};

use crate::compression::Form;

/// Bytes of the outer header. Source: the layout above.
pub const OUTER_LEN: usize = 12;
/// Bytes of the inner header. Source: the layout above.
pub const INNER_LEN: usize = 12;
/// Bytes of the AEAD tag. Source: RFC 5116 section 5.1 (AES-GCM) and RFC 8439 section 2.8
/// (ChaCha20-Poly1305).
pub const TAG_LEN: usize = 16;
/// Bytes that framing adds to an inner packet.
pub const FRAMING: usize = OUTER_LEN + INNER_LEN + TAG_LEN;
/// Maximum packet number; a key must be replaced long before. Source: 48 bits in the layout above.
pub const MAX_PACKET_NUMBER: u64 = (1 << 48) - 1;

/// Returns whether a datagram is a data packet, as opposed to QUIC.
#[must_use]
pub fn is_data(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & 0xc0 == 0)
}

/// Authenticated header at the front of every data packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// Key epoch of the packet.
    pub epoch: u8,
    /// Index that the receiver assigned to this path: random, so that it reveals nothing to an
    /// observer.
    pub index: u32,
    /// Packet number of the path, epoch and direction; at most [`MAX_PACKET_NUMBER`].
    pub packet_number: u64,
}

impl Outer {
    /// Parses the header at the front of `datagram`; `None` if it is too short for a data packet or
    /// of a kind that this version does not know.
    #[must_use]
    pub fn parse(datagram: &[u8]) -> Option<Self> {
        if datagram.len() < FRAMING || datagram[0] != 0 {
            return None;
        }
        let (head, _) = datagram.split_first_chunk::<OUTER_LEN>()?;
        let [_, epoch, i0, i1, i2, i3, c0, c1, c2, c3, c4, c5] = *head;
        Some(Self {
            epoch,
            index: u32::from_be_bytes([i0, i1, i2, i3]),
            packet_number: u64::from_be_bytes([0, 0, c0, c1, c2, c3, c4, c5]),
        })
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; OUTER_LEN]) {
        out[0] = 0;
        out[1] = self.epoch;
        out[2..6].copy_from_slice(&self.index.to_be_bytes());
        out[6..12].copy_from_slice(&self.packet_number.to_be_bytes()[2..]);
    }
}

/// Contents of an encrypted body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Inner IP packet.
    Packet,
    /// Receiver's report about a path: [`Feedback`].
    Feedback,
    /// Request for a [`Kind::ProbeReply`] with the same body: path validation and packet size
    /// probing.
    Probe,
    /// Reply to a probe.
    ProbeReply,
    /// Parity for lost inner packets of a flow: [`crate::parity`]. Sent only to peers whose
    /// [`Feedback::takes_parity`] is set.
    Parity,
    /// Fragment of an inner packet that exceeds the packet size of every path: [`crate::fragment`].
    /// Sent only to peers whose [`Feedback::takes_fragments`] is set.
    Fragment,
    /// Bytes of a stream: [`crate::stream`]. Like [`Kind::StreamControl`], sent only to peers whose
    /// [`Feedback::takes_streams`] is set.
    Stream,
    /// Control frames of streams: [`crate::stream::Frame`].
    StreamControl,
    /// Several small packets of a flow: [`crate::bundle`]. Sent only to peers whose
    /// [`Feedback::takes_bundles`] is set.
    Bundle,
}

/// Traffic class of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Bulk transfer: maximum throughput; order matters, a few milliseconds do not.
    #[default]
    Bulk,
    /// Little data for which a person waits: short delay.
    Interactive,
    /// Steady stream that is useless when late.
    Realtime,
    /// Video layers with priorities.
    Layered,
}

impl Class {
    /// Lists all classes, in wire order.
    pub const ALL: [Self; 4] = [Self::Bulk, Self::Interactive, Self::Realtime, Self::Layered];

    /// Returns the name in configuration, status and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bulk => "bulk",
            Self::Interactive => "interactive",
            Self::Realtime => "realtime",
            Self::Layered => "layered",
        }
    }
}

/// Encrypted header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inner {
    /// Kind of the body.
    pub kind: Kind,
    /// Class of the flow.
    pub class: Class,
    /// Set if the inner packet's transport checksum contains only the pseudo-header sum: the AEAD
    /// tag protects the bytes, and the receiving kernel completes the checksum if the packet leaves
    /// the machine.
    pub checksum_partial: bool,
    /// Set if the packet is delivered at once, because its flow needs no order.
    pub unordered: bool,
    /// Set if the sender keeps the packet in its retransmission buffer, for flows that need order.
    pub backed: bool,
    /// Set for a retransmission.
    pub retransmission: bool,
    /// Form of the headers.
    pub form: Form,
    /// Flow slot in the sender's table.
    pub flow: u16,
    /// Sequence number in the flow slot: unordered packets and others are numbered apart. Of a
    /// parity packet: the first sequence number that it covers.
    pub sequence: Sequence,
    /// Time of sending on the path: microseconds of the sender's clock, wrapping.
    pub sent_us: u32,
}

/// Bits of the second byte of the inner header. Source: the layout of this module, whose byte has
/// flags and the class.
const FLAG_CHECKSUM_PARTIAL: u8 = 0x80;
const FLAG_UNORDERED: u8 = 0x40;
const FLAG_BACKED: u8 = 0x20;
const FLAG_RETRANSMISSION: u8 = 0x10;
const FLAG_CONTEXT: u8 = 0x08;
const FLAG_COMPRESSED: u8 = 0x04;
const CLASS_MASK: u8 = 0x03;

impl Inner {
    /// Creates a header with default fields: the first packet of flow slot 0, at time 0.
    #[must_use]
    pub const fn plain(kind: Kind) -> Self {
        Self {
            kind,
            class: Class::Bulk,
            checksum_partial: false,
            unordered: false,
            backed: false,
            retransmission: false,
            form: Form::Whole,
            flow: 0,
            sequence: Sequence(0),
            sent_us: 0,
        }
    }

    /// Parses the header at the front of a decrypted body; returns it and the rest. `None` for a
    /// kind or flag that this version does not know.
    #[must_use]
    pub fn parse(body: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = body.split_first_chunk::<INNER_LEN>()?;
        let [kind, flags, f0, f1, s0, s1, s2, s3, t0, t1, t2, t3] = *head;
        let kind = match kind {
            0 => Kind::Packet,
            1 => Kind::Feedback,
            2 => Kind::Probe,
            3 => Kind::ProbeReply,
            4 => Kind::Parity,
            5 => Kind::Fragment,
            6 => Kind::Stream,
            7 => Kind::StreamControl,
            8 => Kind::Bundle,
            _ => return None,
        };
        let form = match flags & (FLAG_CONTEXT | FLAG_COMPRESSED) {
            0 => Form::Whole,
            FLAG_CONTEXT => Form::Context,
            FLAG_COMPRESSED => Form::Compressed,
            _ => return None,
        };
        let inner = Self {
            kind,
            form,
            class: Class::ALL[usize::from(flags & CLASS_MASK)],
            checksum_partial: flags & FLAG_CHECKSUM_PARTIAL != 0,
            unordered: flags & FLAG_UNORDERED != 0,
            backed: flags & FLAG_BACKED != 0,
            retransmission: flags & FLAG_RETRANSMISSION != 0,
            flow: u16::from_be_bytes([f0, f1]),
            sequence: Sequence(u32::from_be_bytes([s0, s1, s2, s3])),
            sent_us: u32::from_be_bytes([t0, t1, t2, t3]),
        };
        Some((inner, rest))
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; INNER_LEN]) {
        out[0] = match self.kind {
            Kind::Packet => 0,
            Kind::Feedback => 1,
            Kind::Probe => 2,
            Kind::ProbeReply => 3,
            Kind::Parity => 4,
            Kind::Fragment => 5,
            Kind::Stream => 6,
            Kind::StreamControl => 7,
            Kind::Bundle => 8,
        };
        out[1] = self.class as u8;
        for (is_set, flag) in [
            (self.checksum_partial, FLAG_CHECKSUM_PARTIAL),
            (self.unordered, FLAG_UNORDERED),
            (self.backed, FLAG_BACKED),
            (self.retransmission, FLAG_RETRANSMISSION),
            (self.form == Form::Context, FLAG_CONTEXT),
            (self.form == Form::Compressed, FLAG_COMPRESSED),
        ] {
            out[1] |= if is_set { flag } else { 0 };
        }
        out[2..4].copy_from_slice(&self.flow.to_be_bytes());
        out[4..8].copy_from_slice(&self.sequence.0.to_be_bytes());
        out[8..12].copy_from_slice(&self.sent_us.to_be_bytes());
    }
}

/// Receiver's report about one path. It is cumulative, so a lost report does no harm.
///
/// From two reports the sender computes loss (increase of packet numbers minus increase of received
/// packets) and delivery rate (bytes by the receiver's own clock); from one report the round trip,
/// with `delay_us` and the present time minus the time of the report. Delays are means, because on
/// a path that reorders the highest packet number always belongs to one of the fastest packets.
///
/// A CE mark of an outer packet is copied to the inner packet (RFC 6040), whose sender reduces its
/// rate; the counts of marks serve the validation of ECN (RFC 9000 section 13.4.2). If a bit of
/// byte 3 is set, bytes 20 to 23 contain the counts and byte 2 contains flags. Earlier versions
/// sent a count and a key epoch there, which no version reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feedback {
    /// Path that the report describes, which may differ from the path that transfers it.
    pub path: PathId,
    /// Highest packet number received.
    pub highest: u64,
    /// Packets received on the path since the session began, modulo 2^32.
    pub packets: u32,
    /// Bytes of UDP payload received on the path since the session began, modulo 2^48.
    pub bytes: u64,
    /// Arrival time of the newest packet: microseconds of the receiver's clock, wrapping.
    pub received_us: u32,
    /// Time between that arrival and the report, in microseconds.
    pub hold_us: u32,
    /// Mean of arrival time minus send time over the packets since the last report: microseconds
    /// between the two ends' clocks, wrapping.
    pub delay_us: u32,
    /// Mean deviation of single packets from `delay_us`, in microseconds.
    pub spread_us: u32,
    /// Number of missing packets below the highest that may still arrive: the path reorders, and
    /// they are not overdue yet.
    pub open: u16,
    /// Packets that are overdue and have not arrived.
    pub missing: Missing,
    /// Set if the receiver supports [`Kind::Parity`]; false for versions without the flag.
    pub takes_parity: bool,
    /// Set if the receiver supports [`Kind::Fragment`]; false for versions without the flag.
    pub takes_fragments: bool,
    /// ECN codepoints of outer packets received on the path; `None` from versions without the
    /// counts.
    pub marks: Option<Marks>,
    /// Set if a policer limits the reporter's packets on the path; false for versions without the
    /// flag.
    pub is_policed: bool,
    /// Set if the receiver supports [`Kind::Stream`] and [`Kind::StreamControl`]; false for
    /// versions without the flag.
    pub takes_streams: bool,
    /// Set if the receiver supports [`Kind::Bundle`]; false for versions without the flag.
    pub takes_bundles: bool,
}

/// Counts of the ECN codepoints of packets received on a path since the session began.
///
/// Source: RFC 9000 section 19.3.2. Deviates: both values of ECT are counted together, and counts
/// are modulo 2^16, more than the packets between two reports at 6 Gbit/s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Packets that arrived as ECT.
    pub ect: u16,
    /// Packets that arrived as CE.
    pub ce: u16,
}

/// Maximum size of an emitted [`Feedback`]. Source: the fixed fields, and four bytes for each
/// missing range. Units: bytes.
pub const FEEDBACK_LEN: usize = FEEDBACK_FIXED + 4 * MISSING_RANGES;
/// Size of a [`Feedback`] without missing packets. Source: the layout that [`Feedback::parse`]
/// reads. Units: bytes.
const FEEDBACK_FIXED: usize = 42;
/// Flags in the byte with the number of missing ranges. Versions that do not know the flags read
/// all ranges that are present. Source: the layout that [`Feedback::parse`] reads, with
/// [`MISSING_RANGES`] below the flags.
const TAKES_PARITY: u8 = 0x80;
const TAKES_FRAGMENTS: u8 = 0x40;
/// Source of the counts: RFC 9000 section 19.3.2.
const COUNTS_MARKS: u8 = 0x20;
/// Bit of byte 2, sent by versions that count marks. Source: the lowest bit that is free.
const IS_POLICED: u8 = 0x01;
/// Bit of byte 2 that versions before streams neither send nor parse. Source: the next bit.
const TAKES_STREAMS: u8 = 0x02;
/// Bit of byte 2 that versions before bundles neither send nor parse. Source: the next bit.
const TAKES_BUNDLES: u8 = 0x04;
const FEEDBACK_FLAGS: u8 = TAKES_PARITY | TAKES_FRAGMENTS | COUNTS_MARKS;
/// Maximum number of missing ranges in one report. Source: our choice, 64 bytes of a report; with
/// more, reports take more of a slow uplink, with fewer, scattered losses need several reports.
pub const MISSING_RANGES: usize = 16;

/// Packet numbers of a path that have not arrived, as ranges below the highest one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    ranges: [(u16, u16); MISSING_RANGES],
    len: u8,
}

impl Missing {
    /// Adds `count` packet numbers, the first of which is `back` below the highest one; returns
    /// whether there was room.
    pub fn push(&mut self, back: u16, count: u16) -> bool {
        let Some(range) = self.ranges.get_mut(usize::from(self.len)) else {
            return false;
        };
        *range = (back, count);
        self.len += 1;
        true
    }

    /// Returns whether nothing is missing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns each range as its first packet number and its length, below `highest`.
    pub fn ranges(&self, highest: u64) -> impl Iterator<Item = (u64, u16)> {
        let ranges = self.ranges.into_iter().take(usize::from(self.len));
        ranges.map(move |(back, count)| (highest.saturating_sub(u64::from(back)), count))
    }
}

impl Feedback {
    /// Parses a report; `None` if it is too short. Later versions may append fields.
    #[must_use]
    pub fn parse(body: &[u8]) -> Option<Self> {
        let (b, rest) = body.split_first_chunk::<FEEDBACK_FIXED>()?;
        let mut missing = Missing::default();
        for range in rest.chunks_exact(4).take(usize::from(b[3] & !FEEDBACK_FLAGS)) {
            let [b0, b1, c0, c1] = *range else { return None };
            missing.push(u16::from_be_bytes([b0, b1]), u16::from_be_bytes([c0, c1]));
        }
        let u16_at = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
        let u32_at = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let u48_at = |at: usize| {
            u64::from_be_bytes([0, 0, b[at], b[at + 1], b[at + 2], b[at + 3], b[at + 4], b[at + 5]])
        };
        Some(Self {
            path: PathId(u16_at(0)),
            highest: u48_at(4),
            packets: u32_at(10),
            bytes: u48_at(14),
            received_us: u32_at(24),
            hold_us: u32_at(28),
            delay_us: u32_at(32),
            spread_us: u32_at(36),
            open: u16_at(40),
            missing,
            takes_parity: b[3] & TAKES_PARITY != 0,
            takes_fragments: b[3] & TAKES_FRAGMENTS != 0,
            marks: (b[3] & COUNTS_MARKS != 0).then(|| Marks {
                ect: u16_at(20),
                ce: u16_at(22),
            }),
            is_policed: b[3] & COUNTS_MARKS != 0 && b[2] & IS_POLICED != 0,
            takes_streams: b[3] & COUNTS_MARKS != 0 && b[2] & TAKES_STREAMS != 0,
            takes_bundles: b[3] & COUNTS_MARKS != 0 && b[2] & TAKES_BUNDLES != 0,
        })
    }

    /// Returns the number of bytes that [`Self::emit`] writes.
    #[must_use]
    pub fn emitted_len(&self) -> usize {
        FEEDBACK_FIXED + 4 * usize::from(self.missing.len)
    }

    /// Writes the report; the bytes after [`Self::emitted_len`] are zero.
    pub fn emit(&self, out: &mut [u8; FEEDBACK_LEN]) {
        out.fill(0);
        out[0..2].copy_from_slice(&self.path.0.to_be_bytes());
        out[3] = self.missing.len;
        for (is_set, flag) in [
            (self.takes_parity, TAKES_PARITY),
            (self.takes_fragments, TAKES_FRAGMENTS),
            (self.marks.is_some(), COUNTS_MARKS),
        ] {
            out[3] |= if is_set { flag } else { 0 };
        }
        out[4..10].copy_from_slice(&self.highest.to_be_bytes()[2..]);
        out[10..14].copy_from_slice(&self.packets.to_be_bytes());
        out[14..20].copy_from_slice(&self.bytes.to_be_bytes()[2..]);
        if let Some(marks) = self.marks {
            out[20..22].copy_from_slice(&marks.ect.to_be_bytes());
            out[22..24].copy_from_slice(&marks.ce.to_be_bytes());
            out[2] = if self.is_policed { IS_POLICED } else { 0 };
            out[2] |= if self.takes_streams { TAKES_STREAMS } else { 0 };
            out[2] |= if self.takes_bundles { TAKES_BUNDLES } else { 0 };
        }
        out[24..28].copy_from_slice(&self.received_us.to_be_bytes());
        out[28..32].copy_from_slice(&self.hold_us.to_be_bytes());
        out[32..36].copy_from_slice(&self.delay_us.to_be_bytes());
        out[36..40].copy_from_slice(&self.spread_us.to_be_bytes());
        out[40..42].copy_from_slice(&self.open.to_be_bytes());
        for (bytes, (back, count)) in out[FEEDBACK_FIXED..].chunks_exact_mut(4).zip(self.missing.ranges) {
            bytes[..2].copy_from_slice(&back.to_be_bytes());
            bytes[2..].copy_from_slice(&count.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quic_is_not_data() {
        assert!(!is_data(&[0xc0, 0, 0, 0, 1]));
        assert!(!is_data(&[0x40; 40]));
        assert!(!is_data(&[]));
        assert!(is_data(&[0; 40]));
    }

    #[test]
    fn the_largest_counter_fills_its_six_bytes() {
        let largest = Outer {
            epoch: 0,
            index: 0,
            packet_number: MAX_PACKET_NUMBER,
        };
        let mut datagram = [0; FRAMING];
        largest.emit(datagram.first_chunk_mut().expect("long enough"));
        assert_eq!(datagram[6..12], [0xff; 6]);
        assert_eq!(Outer::parse(&datagram), Some(largest));
    }

    #[test]
    fn missing_ranges_lie_below_the_highest_counter() {
        let mut missing = Missing::default();
        assert!(missing.is_empty());
        assert!(missing.push(10, 3));
        assert!(!missing.is_empty());
        assert!(missing.push(100, 1));
        assert_eq!(missing.ranges(90).collect::<Vec<_>>(), [(80, 3), (0, 1)]);
        for _ in 2..MISSING_RANGES {
            assert!(missing.push(1, 1));
        }
        assert!(!missing.push(1, 1), "there is no room for more");
        assert_eq!(missing.ranges(90).count(), MISSING_RANGES);
    }

    #[test]
    fn a_header_with_an_unknown_kind_or_contradicting_flags_is_refused() {
        let mut header = [0; INNER_LEN];
        for kind in 0..=u8::MAX {
            header[0] = kind;
            assert_eq!(Inner::parse(&header).is_some(), kind <= 8);
        }
        header[0] = 0;
        header[1] = FLAG_CONTEXT | FLAG_COMPRESSED;
        assert_eq!(Inner::parse(&header), None);
        assert_eq!(Inner::parse(&[0; INNER_LEN - 1]), None);
        let mut datagram = [0; FRAMING];
        assert!(Outer::parse(&datagram).is_some());
        datagram[0] = 1;
        assert_eq!(Outer::parse(&datagram), None, "a kind of a later version");
    }

    /// Fixes the bytes on the wire, which other versions must be able to parse.
    #[test]
    fn bits_and_bytes_have_their_places() {
        let mut out = [0; INNER_LEN];
        let inner = Inner {
            class: Class::Layered,
            checksum_partial: true,
            backed: true,
            form: Form::Compressed,
            flow: 0x0102,
            sequence: Sequence(0x0304_0506),
            sent_us: 0x0708_090a,
            ..Inner::plain(Kind::Parity)
        };
        inner.emit(&mut out);
        assert_eq!(out, [4, 0x80 | 0x20 | 0x04 | 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(Inner::parse(&out), Some((inner, &[][..])));
        let other = Inner {
            class: Class::Interactive,
            unordered: true,
            retransmission: true,
            form: Form::Context,
            ..Inner::plain(Kind::Probe)
        };
        other.emit(&mut out);
        assert_eq!(out, [2, 0x40 | 0x10 | 0x08 | 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Inner::parse(&out), Some((other, &[][..])));
        let kinds = [
            Kind::Packet,
            Kind::Feedback,
            Kind::Probe,
            Kind::ProbeReply,
            Kind::Parity,
            Kind::Fragment,
            Kind::Stream,
            Kind::StreamControl,
            Kind::Bundle,
        ];
        for (byte, kind) in kinds.into_iter().enumerate() {
            Inner::plain(kind).emit(&mut out);
            assert_eq!(usize::from(out[0]), byte);
        }
        assert_eq!(
            Class::ALL.map(Class::name),
            ["bulk", "interactive", "realtime", "layered"]
        );
    }

    #[test]
    fn a_report_that_ends_early_is_read_as_far_as_it_goes() {
        let mut missing = Missing::default();
        missing.push(9, 2);
        missing.push(5, 1);
        let report = Feedback {
            missing,
            ..Feedback::default()
        };
        let mut body = [0xff; FEEDBACK_LEN];
        report.emit(&mut body);
        assert_eq!(report.emitted_len(), 50);
        assert!(body[50..].iter().all(|byte| *byte == 0));
        assert_eq!(Feedback::parse(&body[..41]), None);
        let ranges = |len: usize| {
            Feedback::parse(&body[..len])
                .expect("long enough")
                .missing
                .ranges(20)
                .count()
        };
        assert_eq!((ranges(42), ranges(46), ranges(49), ranges(50)), (0, 1, 1, 2));
        body[3] |= 0x1f;
        assert_eq!(
            Feedback::parse(&body).expect("valid").missing.ranges(20).count(),
            MISSING_RANGES
        );
    }

    proptest! {
        #[test]
        fn outer_survives_the_wire(epoch: u8, index: u32, packet_number in 0..=MAX_PACKET_NUMBER) {
            let outer = Outer { epoch, index, packet_number };
            let mut datagram = [0; FRAMING];
            outer.emit(datagram.first_chunk_mut().expect("long enough"));
            prop_assert_eq!(Outer::parse(&datagram), Some(outer));
            prop_assert_eq!(Outer::parse(&datagram[..FRAMING - 1]), None);
        }

        #[test]
        fn what_parses_emits_the_same_bytes(body: [u8; INNER_LEN]) {
            if let Some((inner, rest)) = Inner::parse(&body) {
                prop_assert!(rest.is_empty());
                let mut out = [0; INNER_LEN];
                inner.emit(&mut out);
                prop_assert_eq!(out, body);
            }
        }

        #[test]
        fn feedback_survives_the_wire(path: u16, highest in 0..=MAX_PACKET_NUMBER, packets: u32,
                                      bytes in 0..=MAX_PACKET_NUMBER, [received_us, hold_us, delay_us, spread_us]: [u32; 4], open: u16, takes_parity: bool, takes_fragments: bool, marks: Option<(u16, u16)>, [is_policed, takes_streams, takes_bundles]: [bool; 3],
                                      ranges in proptest::collection::vec(any::<(u16, u16)>(), 0..=MISSING_RANGES)) {
            let mut missing = Missing::default();
            for (back, count) in &ranges {
                prop_assert!(missing.push(*back, *count));
            }
            let marks = marks.map(|(ect, ce)| Marks { ect, ce });
            let report = Feedback { path: PathId(path), highest, packets, bytes, received_us, hold_us, delay_us, spread_us, open, missing, takes_parity, takes_fragments, marks, is_policed: is_policed && marks.is_some(), takes_streams: takes_streams && marks.is_some(), takes_bundles: takes_bundles && marks.is_some() };
            let mut body = [0; FEEDBACK_LEN];
            report.emit(&mut body);
            prop_assert_eq!(Feedback::parse(&body[..report.emitted_len()]), Some(report));
            if marks.is_none() {
                prop_assert_eq!(std::mem::replace(&mut body[2], 0xff), 0, "of an earlier version");
                prop_assert_eq!(std::mem::replace(&mut body[20], 0xff), 0, "of an earlier version");
            }
            prop_assert_eq!(Feedback::parse(&body[..report.emitted_len()]), Some(report));
            prop_assert_eq!(report.missing.ranges(highest).count(), ranges.len());
        }
    }
}
