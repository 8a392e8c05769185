//! Segmentation offload in user space: splits large packets into path-sized ones, and coalesces
//! them again.
//!
//! A TUN with offloads passes up to 64 KB of one flow in one call; the virtio header contains the
//! segment size. [`Segmenter`] splits; [`Coalescer`] joins arriving packets, so that the far kernel
//! also receives few large packets. Transport checksums stay partial (pseudo-header only) in the
//! tunnel, because the AEAD tag protects the bytes.
//!
//! Source: virtio 1.2 section 5.1.6 for the header; the conditions of coalescing follow the
//! kernel's generic receive offload.

use crate::compression::{COMPRESSED_LEN, Compressed, MAX_HEADERS};
use crate::frame::Format;
use crate::inner::{self, protocol, set_lengths, tcp_flag};

/// Bytes of the virtio network header in front of a packet. Source: virtio 1.2 section 5.1.6,
/// without the number of buffers.
pub const VIRTIO_LEN: usize = 10;

/// Flags and segmentation types of the header. Source: virtio 1.2 section 5.1.6.
const NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// Maximum size of a coalesced IP packet. Source: the total length of an IPv4 packet has 16 bits
/// (RFC 791 section 3.1). Units: bytes.
const MAX_COALESCED: usize = 65_535;

/// Segmentation of a packet, from its virtio header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The transport checksum covers only the pseudo-header.
    pub checksum_partial: bool,
    /// Payload bytes of each segment; 0 if the packet is not segmented.
    pub segment: u16,
}

impl Offload {
    /// Parses the virtio header of a packet from a TAP. A forwarded packet may have a partial
    /// checksum outside its own TCP or UDP header (inside another tunnel); such a checksum is
    /// completed here. `None` if header and packet contradict each other.
    #[must_use]
    pub fn settle(header: &[u8; VIRTIO_LEN], packet: &mut [u8], format: Format) -> Option<Self> {
        let offload = Self::parse(header)?;
        if format == Format::Ip || !offload.checksum_partial {
            return Some(offload);
        }
        let summary = format.parse(packet)?;
        let word = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
        let (start, offset) = (word(6), word(8));
        let own = match summary.key.protocol {
            protocol::TCP => 16,
            protocol::UDP => 6,
            _ => 0,
        };
        if summary.has_transport() && (start, offset) == (summary.transport_at(), own) {
            return Some(offload);
        }
        Self::completed(header, packet)
    }

    /// Completes the checksum of the packet. `None` if header and packet contradict each other, or
    /// if the packet would be segmented.
    #[must_use]
    pub fn completed(header: &[u8; VIRTIO_LEN], packet: &mut [u8]) -> Option<Self> {
        let offload = Self::parse(header)?;
        let word = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
        let is_done = !offload.checksum_partial || complete_checksum(packet, word(6), word(8));
        (is_done && offload.segment == 0).then(Self::default)
    }

    /// Parses a native-endian virtio header; `None` for an offload that was not requested.
    #[must_use]
    pub fn parse(header: &[u8; VIRTIO_LEN]) -> Option<Self> {
        let segment = match header[1] & !GSO_ECN {
            0 => 0,
            GSO_TCPV4 | GSO_TCPV6 | GSO_UDP_L4 => u16::from_ne_bytes([header[4], header[5]]),
            _ => return None,
        };
        Some(Self {
            checksum_partial: header[0] & NEEDS_CSUM != 0,
            segment,
        })
    }
}

/// Completes a partial checksum: sums all bytes from `start` on and writes the result at `start +
/// offset`. Returns false if that is outside the packet.
///
/// Source: virtio 1.2 section 5.1.6.2.
fn complete_checksum(packet: &mut [u8], start: usize, offset: usize) -> bool {
    let Some(covered) = packet.get_mut(start..) else {
        return false;
    };
    if covered.get(offset..offset + 2).is_none() {
        return false;
    }
    // The field contains the pseudo-header's sum, so the sum includes it unchanged.
    let sum = match !inner::ones_sum(covered, 0) {
        // Zero means "none" in UDP (RFC 768); to TCP both are the same number.
        0 => 0xffff,
        sum => sum,
    };
    covered[offset..offset + 2].copy_from_slice(&sum.to_be_bytes());
    true
}

/// Packet from the TUN that is split into segments, each of which fits a path.
#[derive(Clone, Copy, Debug)]
pub struct Segmenter {
    ip_at: u16,
    ip_len: u16,
    headers_len: u16,
    protocol: u8,
    total: u32,
    segment: u16,
}

impl Segmenter {
    /// Plans the segmentation of `packet`. `None` if header and packet contradict each other.
    #[must_use]
    pub fn new(packet: &[u8], summary: &inner::Summary, offload: Offload) -> Option<Self> {
        let payload = packet.len().checked_sub(usize::from(summary.headers_len))?;
        let cuts = offload.segment > 0 && payload > usize::from(offload.segment);
        if cuts && !matches!(summary.key.protocol, protocol::TCP | protocol::UDP) {
            return None;
        }
        if cuts && !summary.has_transport() {
            return None;
        }
        Some(Self {
            ip_at: summary.ip_at,
            ip_len: summary.ip_len,
            headers_len: summary.headers_len,
            protocol: summary.key.protocol,
            total: packet.len() as u32,
            segment: if cuts {
                offload.segment
            } else {
                payload.min(usize::from(u16::MAX)) as u16
            },
        })
    }

    /// Reduces the segment size of a TCP packet so that each segment's packet fits `mtu`. Other
    /// packets stay unchanged, because their boundaries have a meaning.
    pub fn fit(&mut self, mtu: u16) {
        if self.protocol == protocol::TCP && self.packet_len() > u32::from(mtu) && self.count() > 1 {
            self.segment = self.segment.min(mtu.saturating_sub(self.headers_len).max(1));
        }
    }

    /// Returns the offset of the IP header.
    #[must_use]
    pub fn ip_at(&self) -> usize {
        usize::from(self.ip_at)
    }

    fn transport_at(&self) -> usize {
        usize::from(self.ip_at) + usize::from(self.ip_len)
    }

    /// Returns the number of segments; at least 1.
    #[must_use]
    pub fn count(&self) -> u16 {
        let payload = self.total - u32::from(self.headers_len);
        payload.div_ceil(u32::from(self.segment).max(1)).max(1) as u16
    }

    /// Returns the size of the whole packet before segmentation. Units: bytes.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total as usize
    }

    /// Returns the size of a full segment's packet, headers included. Units: bytes.
    #[must_use]
    pub fn packet_len(&self) -> u32 {
        u32::from(self.headers_len) + u32::from(self.segment)
    }

    /// Returns the size of the packet of segment `index`. Units: bytes.
    #[must_use]
    pub fn len_of(&self, index: u16) -> usize {
        let start = u32::from(index) * u32::from(self.segment);
        let payload = (self.total - u32::from(self.headers_len) - start).min(u32::from(self.segment));
        usize::from(self.headers_len) + payload as usize
    }

    /// Returns the size of segment `index` in compressed form. Units: bytes.
    #[must_use]
    pub fn compressed_len(&self, index: u16) -> usize {
        COMPRESSED_LEN + self.len_of(index) - usize::from(self.headers_len)
    }

    /// Writes segment `index` to `out` as a compressed packet whose context is the earlier segment
    /// `context`. `out` must be [`Self::compressed_len`] bytes long.
    ///
    /// # Panics
    /// If `packet` is not the planned one, or `index` or the length of `out` is out of range.
    pub fn emit_compressed(&self, packet: &[u8], index: u16, context: u16, out: &mut [u8]) {
        let start = usize::from(self.headers_len) + usize::from(index) * usize::from(self.segment);
        let (head, payload) = out.split_at_mut(COMPRESSED_LEN);
        let end = start + payload.len();
        payload.copy_from_slice(&packet[start..end]);
        let is_last = self.protocol == protocol::TCP && end == packet.len();
        let flags = if is_last {
            packet[self.transport_at() + 13]
        } else {
            0
        };
        let compressed = Compressed {
            back: (index - context) as u8,
            last_flags: flags & (tcp_flag::PSH | tcp_flag::FIN),
        };
        head[0] = compressed.emit();
    }

    /// Writes the packet of segment `index` into `out`, which must be [`Self::len_of`] bytes long.
    ///
    /// The transport checksum of a split packet stays partial: coalescing or completing it starts
    /// from the pseudo-header.
    ///
    /// # Panics
    /// If `packet` is not the planned one, or `index` or the length of `out` is out of range.
    pub fn emit(&self, packet: &[u8], index: u16, out: &mut [u8]) {
        let headers = usize::from(self.headers_len);
        let (ip_at, ip_len) = (usize::from(self.ip_at), usize::from(self.ip_len));
        let start = headers + usize::from(index) * usize::from(self.segment);
        let payload = out.len() - headers;
        out[..headers].copy_from_slice(&packet[..headers]);
        out[headers..].copy_from_slice(&packet[start..start + payload]);
        if self.count() == 1 {
            return;
        }
        let len = out.len() - ip_at;
        set_lengths(&mut out[ip_at..], len, ip_len, self.protocol, index);
        if self.protocol == protocol::TCP {
            let transport = ip_at + ip_len;
            let at = transport + 4;
            let sequence = u32::from_be_bytes([out[at], out[at + 1], out[at + 2], out[at + 3]])
                .wrapping_add(u32::from(index) * u32::from(self.segment));
            out[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
            let last = start + payload == packet.len();
            if !last {
                out[transport + 13] &= !(tcp_flag::FIN | tcp_flag::PSH);
            }
            if index > 0 {
                out[transport + 13] &= !tcp_flag::CWR;
            }
        }
    }
}

/// Decision of [`Coalescer::push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// Append the packet's payload, from this offset on, to the open run.
    Append(usize),
    /// Flush the open run first; then push the packet again.
    Flush,
    /// The packet has opened a new run; its payload starts at this offset.
    Open(usize),
}

/// Joins consecutive packets of one flow into one large packet for the TUN.
///
/// It stores only the headers; the caller stores the payload pieces and writes `virtio header,
/// headers, pieces...` in one vectored call, so that no payload is copied.
#[derive(Debug)]
pub struct Coalescer {
    format: Format,
    joins_udp: bool,
    headers: [u8; MAX_HEADERS],
    open: Option<Run>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    ip_at: usize,
    /// Offset of the transport header.
    transport: usize,
    headers_len: usize,
    protocol: u8,
    partial: bool,
    segment: usize,
    payload: usize,
    next_sequence: u32,
    closed: bool,
}

impl Coalescer {
    /// Creates a coalescer for packets of that format. `joins_udp`: set if the device accepts
    /// several UDP packets as one.
    #[must_use]
    pub fn new(format: Format, joins_udp: bool) -> Self {
        Self {
            format,
            joins_udp,
            headers: [0; MAX_HEADERS],
            open: None,
        }
    }

    /// Offers the next packet in order: `len` bytes, of which `packet` contains at least the
    /// headers. `partial`: its transport checksum covers only the pseudo-header.
    ///
    /// A packet that cannot be parsed is passed on alone, with all its bytes as payload.
    pub fn push(&mut self, packet: &[u8], len: usize, partial: bool) -> Join {
        let summary = self.format.parse(packet);
        if let Some(run) = &mut self.open {
            let Some(summary) = summary else {
                return Join::Flush;
            };
            return match append(&mut self.headers, run, (packet, len), &summary, partial) {
                true => Join::Append(run.headers_len),
                false => Join::Flush,
            };
        }
        let headers_len = summary.map_or(0, |s| usize::from(s.headers_len));
        let headers_len = if headers_len > self.headers.len() {
            0
        } else {
            headers_len
        };
        self.headers[..headers_len].copy_from_slice(&packet[..headers_len]);
        let mut run = Run {
            ip_at: 0,
            transport: 0,
            headers_len,
            protocol: 0,
            partial: false,
            segment: len - headers_len,
            payload: len - headers_len,
            next_sequence: 0,
            closed: true,
        };
        if let Some(s) = summary.filter(|_| headers_len > 0) {
            run.ip_at = usize::from(s.ip_at);
            run.transport = s.transport_at();
            run.protocol = s.key.protocol;
            run.partial = partial && s.has_transport();
            if run.partial && run.payload > 0 {
                run.closed = ends_run(&s, self.joins_udp);
                run.next_sequence = match s.key.protocol {
                    protocol::TCP => sequence_of(packet, run.transport).wrapping_add(run.payload as u32),
                    _ => 0,
                };
            }
        }
        self.open = Some(run);
        Join::Open(headers_len)
    }

    /// Returns whether a run is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Closes the open run; returns the virtio header and the headers to write before the payload
    /// pieces.
    pub fn finish(&mut self) -> Option<([u8; VIRTIO_LEN], &[u8])> {
        let run = self.open.take()?;
        let mut virtio = [0; VIRTIO_LEN];
        if run.partial {
            let field: usize = if run.protocol == protocol::TCP { 16 } else { 6 };
            let len = run.headers_len - run.transport + run.payload;
            let sum = inner::pseudo_header_sum(&self.headers[run.ip_at..], run.protocol, len);
            self.headers[run.transport + field..run.transport + field + 2]
                .copy_from_slice(&sum.to_be_bytes());
            virtio[0] = NEEDS_CSUM;
            virtio[6..8].copy_from_slice(&(run.transport as u16).to_ne_bytes());
            virtio[8..10].copy_from_slice(&(field as u16).to_ne_bytes());
        }
        if run.payload > run.segment {
            let total = run.headers_len + run.payload - run.ip_at;
            let ip_len = run.transport - run.ip_at;
            set_lengths(&mut self.headers[run.ip_at..], total, ip_len, run.protocol, 0);
            virtio[1] = match (run.protocol, self.headers[run.ip_at] >> 4) {
                (protocol::UDP, _) => GSO_UDP_L4,
                (_, 4) => GSO_TCPV4,
                _ => GSO_TCPV6,
            };
            if run.protocol == protocol::TCP && self.headers[run.transport + 13] & tcp_flag::CWR != 0 {
                virtio[1] |= GSO_ECN;
            }
            virtio[2..4].copy_from_slice(&(run.headers_len as u16).to_ne_bytes());
            virtio[4..6].copy_from_slice(&(run.segment as u16).to_ne_bytes());
        }
        Some((virtio, &self.headers[..run.headers_len]))
    }
}

fn sequence_of(packet: &[u8], transport: usize) -> u32 {
    u32::from_be_bytes([
        packet[transport + 4],
        packet[transport + 5],
        packet[transport + 6],
        packet[transport + 7],
    ])
}

/// Returns whether no packet may follow this one in its run.
fn ends_run(summary: &inner::Summary, joins_udp: bool) -> bool {
    match summary.key.protocol {
        protocol::TCP => summary.tcp_flags & !(0x10 | tcp_flag::CWR | 0x40) != 0,
        protocol::UDP => !joins_udp,
        _ => true,
    }
}

/// Appends to the run if the packet continues it; updates the fields that the last segment
/// determines (PSH, FIN).
fn append(
    headers: &mut [u8; MAX_HEADERS],
    run: &mut Run,
    (packet, len): (&[u8], usize),
    summary: &inner::Summary,
    partial: bool,
) -> bool {
    let headers_len = usize::from(summary.headers_len);
    let payload = len - headers_len;
    if run.closed
        || !partial
        || headers_len != run.headers_len
        || payload == 0
        || payload > run.segment
        || run.headers_len + run.payload + payload > MAX_COALESCED
        || summary.key.protocol != run.protocol
    {
        return false;
    }
    let (ip_at, at) = (run.ip_at, run.transport);
    let is_alike = usize::from(summary.ip_at) == ip_at
        && summary.transport_at() == at
        && headers[..ip_at] == packet[..ip_at]
        && same_ip_header(&headers[ip_at..at], &packet[ip_at..at]);
    if !is_alike || headers[at..at + 4] != packet[at..at + 4] {
        return false;
    }
    if run.protocol == protocol::TCP {
        let flags = summary.tcp_flags;
        let same_rest = headers[at + 8..at + 13] == packet[at + 8..at + 13]
            && headers[at + 14..at + 16] == packet[at + 14..at + 16]
            && headers[at + 18..headers_len] == packet[at + 18..headers_len];
        let allowed = tcp_flag::FIN | tcp_flag::PSH;
        let differing = (headers[at + 13] ^ flags) & !(allowed | tcp_flag::CWR);
        if !same_rest
            || differing != 0
            || flags & tcp_flag::CWR != 0
            || sequence_of(packet, at) != run.next_sequence
        {
            return false;
        }
        headers[at + 13] |= flags & allowed;
        run.next_sequence = run.next_sequence.wrapping_add(payload as u32);
        run.closed = flags & allowed != 0;
    }
    run.closed |= payload < run.segment;
    run.payload += payload;
    true
}

/// Returns whether two IP headers differ only in lengths, identification and checksum.
fn same_ip_header(a: &[u8], b: &[u8]) -> bool {
    if a[0] >> 4 == 4 {
        a[..2] == b[..2] && a[6..10] == b[6..10] && a[12..] == b[12..]
    } else {
        a[..4] == b[..4] && a[6..] == b[6..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inner::tests::{complete_transport, tcp_packet, udp_packet};
    use proptest::prelude::*;

    fn cut(packet: &[u8], segment: u16) -> Vec<Vec<u8>> {
        let summary = inner::parse(packet).expect("valid");
        let s = Segmenter::new(
            packet,
            &summary,
            Offload {
                checksum_partial: true,
                segment,
            },
        )
        .expect("plan");
        (0..s.count())
            .map(|i| {
                let mut out = vec![0; s.len_of(i)];
                s.emit(packet, i, &mut out);
                out
            })
            .collect()
    }

    /// Coalesces as the data plane does; returns (virtio, packet) as the TUN would receive them.
    fn join(packets: &[Vec<u8>], partial: bool) -> Vec<([u8; VIRTIO_LEN], Vec<u8>)> {
        join_by(Coalescer::new(Format::Ip, true), packets, partial)
    }

    fn join_by(
        mut coalescer: Coalescer,
        packets: &[Vec<u8>],
        partial: bool,
    ) -> Vec<([u8; VIRTIO_LEN], Vec<u8>)> {
        let mut out = Vec::new();
        let mut pieces: Vec<u8> = Vec::new();
        let close = |coalescer: &mut Coalescer, pieces: &mut Vec<u8>, out: &mut Vec<_>| {
            if let Some((virtio, headers)) = coalescer.finish() {
                let mut packet = headers.to_vec();
                packet.append(pieces);
                out.push((virtio, packet));
            }
        };
        for packet in packets {
            loop {
                match coalescer.push(packet, packet.len(), partial) {
                    Join::Append(at) | Join::Open(at) => {
                        pieces.extend_from_slice(&packet[at..]);
                        break;
                    }
                    Join::Flush => close(&mut coalescer, &mut pieces, &mut out),
                }
            }
        }
        close(&mut coalescer, &mut pieces, &mut out);
        out
    }

    #[test]
    fn datagrams_stay_apart_where_the_device_takes_them_so() {
        let packet = udp_packet(&[7; 3000]);
        let segments = cut(&packet, 1000);
        let joined = join_by(Coalescer::new(Format::Ip, false), &segments, true);
        assert_eq!(joined.len(), 3);
        assert!(joined.iter().all(|(virtio, _)| virtio[1] == 0));
        assert_eq!(join(&segments, true).len(), 1);
    }

    #[test]
    fn a_lost_segment_splits_the_join() {
        let packet = tcp_packet(1000, &[7; 5000], tcp_flag::PSH | 0x10);
        let mut segments = cut(&packet, 1000);
        segments.remove(2);
        let joined = join(&segments, true);
        assert_eq!(
            joined.iter().map(|(_, p)| p.len() - 52).collect::<Vec<_>>(),
            [2000, 2000]
        );
    }

    #[test]
    fn complete_checksums_are_never_joined() {
        let segments = cut(&tcp_packet(1000, &[7; 5000], 0x10), 1000);
        assert_eq!(join(&segments, false).len(), 5);
    }

    #[test]
    fn garbage_passes_alone_and_whole() {
        let joined = join(&[vec![0xff; 30], vec![0x45; 3]], true);
        assert_eq!(joined[0], ([0; VIRTIO_LEN], vec![0xff; 30]));
        assert_eq!(joined[1], ([0; VIRTIO_LEN], vec![0x45; 3]));
    }

    #[test]
    fn a_finer_cut_fits_a_narrow_path() {
        let packet = tcp_packet(1, &[1; 4000], 0x10);
        let summary = inner::parse(&packet).expect("valid");
        let mut s = Segmenter::new(
            &packet,
            &summary,
            Offload {
                checksum_partial: true,
                segment: 1400,
            },
        )
        .expect("plan");
        s.fit(1000);
        assert!((0..s.count()).all(|i| s.len_of(i) <= 1000));
        let bytes: usize = (0..s.count()).map(|i| s.len_of(i) - 52).sum();
        assert_eq!(bytes, 4000);
    }

    #[test]
    fn nothing_follows_a_short_segment() {
        let packet = tcp_packet(1000, &[7; 2500], 0x10);
        let mut segments = cut(&packet, 1000);
        segments.push(tcp_packet(3500, &[7; 500], 0x10));
        let lengths: Vec<_> = join(&segments, true).iter().map(|(_, p)| p.len() - 52).collect();
        assert_eq!(lengths, [2500, 500]);
    }

    #[test]
    fn a_coalescer_is_open_from_the_first_packet_until_it_is_finished() {
        let mut coalescer = Coalescer::new(Format::Ip, true);
        assert!(!coalescer.is_open() && coalescer.finish().is_none());
        let packet = tcp_packet(1, &[7; 100], 0x10);
        assert_eq!(coalescer.push(&packet, packet.len(), true), Join::Open(52));
        assert!(coalescer.is_open());
        assert!(coalescer.finish().is_some());
        assert!(!coalescer.is_open());
    }

    #[test]
    fn a_packet_that_is_not_to_be_cut_stays_whole_on_a_narrow_path() {
        for packet in [tcp_packet(1, &[1; 1400], 0x10), udp_packet(&[1; 1400])] {
            for segment in [0, 1400, 2000] {
                let offload = Offload {
                    checksum_partial: true,
                    segment,
                };
                let summary = inner::parse(&packet).expect("valid");
                let mut plan = Segmenter::new(&packet, &summary, offload).expect("plan");
                plan.fit(1000);
                assert_eq!((plan.count(), plan.len_of(0)), (1, packet.len()));
            }
        }
        // The boundaries of datagrams have a meaning.
        let packet = udp_packet(&[1; 3000]);
        let summary = inner::parse(&packet).expect("valid");
        let offload = Offload {
            checksum_partial: true,
            segment: 1400,
        };
        let mut plan = Segmenter::new(&packet, &summary, offload).expect("plan");
        plan.fit(1000);
        assert_eq!((plan.count(), plan.len_of(0), plan.len_of(2)), (3, 1448, 248));
    }

    #[test]
    fn what_contradicts_itself_is_not_planned() {
        let segment = |segment| Offload {
            checksum_partial: true,
            segment,
        };
        let packet = tcp_packet(1, &[1; 400], 0x10);
        let summary = inner::parse(&packet).expect("valid");
        assert!(
            Segmenter::new(&packet[..51], &summary, segment(0)).is_none(),
            "cut in its headers"
        );
        assert!(Segmenter::new(&packet[..52], &summary, segment(100)).is_some());
        let mut icmp = packet.clone();
        icmp[9] = protocol::ICMP;
        let summary = inner::parse(&icmp).expect("valid");
        assert!(
            Segmenter::new(&icmp, &summary, segment(100)).is_none(),
            "nobody can cut that"
        );
        assert!(
            Segmenter::new(&icmp, &summary, segment(432)).is_some(),
            "it need not be cut"
        );
        let mut fragment = packet;
        fragment[7] = 1;
        let summary = inner::parse(&fragment).expect("valid");
        assert!(Segmenter::new(&fragment, &summary, segment(100)).is_none());
    }

    #[test]
    fn the_lengths_of_every_segment_are_its_own() {
        let length = |packet: &[u8], at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
        for (index, segment) in cut(&udp_packet(&[7; 2500]), 1000).iter().enumerate() {
            let payload = if index < 2 { 1000 } else { 500 };
            assert_eq!(
                (segment.len(), length(segment, 4), length(segment, 44)),
                (48 + payload, 8 + payload, 8 + payload)
            );
        }
        let mut packet = tcp_packet(u32::MAX - 999, &[7; 2500], 0x19 | tcp_flag::CWR);
        packet[4..6].copy_from_slice(&[0xff, 0xff]);
        for (index, segment) in cut(&packet, 1000).iter().enumerate() {
            assert_eq!(length(segment, 2), segment.len());
            assert_eq!(inner::ones_sum(&segment[..20], 0), 0xffff);
            assert_eq!(
                length(segment, 4),
                [0xffff, 0, 1][index],
                "identifications are counted on"
            );
            let sequence = sequence_of(segment, 20);
            assert_eq!(sequence, [u32::MAX - 999, 0, 1000][index]);
            assert_eq!(segment[33], [0x10 | tcp_flag::CWR, 0x10, 0x19][index]);
        }
    }

    #[test]
    fn a_joined_packet_tells_the_kernel_how_it_may_be_cut_again() {
        let header = |packets: &[Vec<u8>]| join(packets, true)[0].0;
        let fields = |kind: u8, headers: u16, start: u16, field: u16| {
            let mut virtio = [NEEDS_CSUM, kind, 0, 0, 0, 0, 0, 0, 0, 0];
            for (at, value) in [(2, headers), (4, 1000), (6, start), (8, field)] {
                virtio[at..at + 2].copy_from_slice(&value.to_ne_bytes());
            }
            virtio
        };
        let tcp = cut(&tcp_packet(1, &[7; 2500], 0x10), 1000);
        assert_eq!(header(&tcp), fields(GSO_TCPV4, 52, 20, 16));
        let reduced = cut(&tcp_packet(1, &[7; 2500], 0x10 | tcp_flag::CWR), 1000);
        assert_eq!(header(&reduced), fields(GSO_TCPV4 | GSO_ECN, 52, 20, 16));
        let udp = cut(&udp_packet(&[0xff; 2500]), 1000);
        assert_eq!(header(&udp), fields(GSO_UDP_L4, 48, 40, 6));
        let mut six = udp_packet(&[0; 2512]);
        six[6] = protocol::TCP;
        six[52..54].copy_from_slice(&[5 << 4, 0x10]);
        assert_eq!(header(&cut(&six, 1000)), fields(GSO_TCPV6, 60, 40, 16));
        // Alone it is not segmented, and the packet that it opens is no run of segments.
        let one = [tcp_packet(1, &[7; 100], 0x10)];
        assert_eq!(header(&one)[..6], [NEEDS_CSUM, 0, 0, 0, 0, 0]);
    }

    /// Conditions under which the kernel coalesces: RFC 9293 section 3.8.6 for the window, RFC 3168
    /// section 6.1.2 for CWR.
    #[test]
    fn packets_that_differ_in_more_than_their_place_are_not_joined() {
        let first = tcp_packet(1, &[7; 1000], 0x10);
        let next = tcp_packet(1001, &[7; 1000], 0x10);
        let joined = |first: &[u8], next: &[u8]| join(&[first.to_vec(), next.to_vec()], true).len() == 1;
        assert!(joined(&first, &next));
        // Code point, fragment bits, time to live, addresses, ports, acknowledgement, window,
        // urgent pointer, options.
        for at in [1, 6, 8, 12, 19, 20, 23, 28, 34, 38, 44, 51] {
            let mut other = next.clone();
            other[at] ^= 4;
            assert!(!joined(&first, &other), "byte {at}");
        }
        for flag in [tcp_flag::CWR, tcp_flag::SYN, tcp_flag::RST, 0x20] {
            assert!(
                !joined(&first, &tcp_packet(1001, &[7; 1000], 0x10 | flag)),
                "{flag}"
            );
        }
        for flag in [tcp_flag::PSH, tcp_flag::FIN] {
            let ending = tcp_packet(1001, &[7; 1000], 0x10 | flag);
            assert!(joined(&first, &ending));
            assert!(
                !joined(&tcp_packet(1, &[7; 1000], 0x10 | flag), &next),
                "it ends a run"
            );
        }
        assert!(
            !joined(&first, &tcp_packet(1001, &[7; 1001], 0x10)),
            "longer than those before"
        );
        assert!(
            !joined(&first, &tcp_packet(1001, &[], 0x10)),
            "nothing but headers"
        );
        assert!(
            !joined(&first, &tcp_packet(1002, &[7; 1000], 0x10)),
            "a byte is missing"
        );
    }

    proptest! {
        #[test]
        fn joining_undoes_cutting(payload in proptest::collection::vec(any::<u8>(), 1..6000), segment in 100u16..1400,
                                  sequence: u32, push: bool) {
            let flags = 0x10 | if push { tcp_flag::PSH } else { 0 };
            let packet = tcp_packet(sequence, &payload, flags);
            let segments = cut(&packet, segment);
            prop_assert!(segments.iter().all(|s| inner::parse(s).is_some()));
            let mut joined = join(&segments, true);
            prop_assert_eq!(joined.len(), 1);
            let (virtio, mut whole) = joined.pop().expect("one");
            prop_assert_eq!(virtio[0], NEEDS_CSUM);
            if payload.len() > usize::from(segment) {
                prop_assert_eq!(u16::from_ne_bytes([virtio[4], virtio[5]]), segment);
            }
            complete_transport(&mut whole);
            prop_assert_eq!(whole, packet);
        }

        #[test]
        fn hostile_packets_never_panic(a in proptest::collection::vec(any::<u8>(), 0..90),
                                       b in proptest::collection::vec(any::<u8>(), 0..90), partial: bool) {
            for first in [&a, &b] {
                let mut first = first.clone();
                if let Some(byte) = first.first_mut() { *byte = 0x45; }
                join(&[first, b.clone()], partial);
            }
        }
    }
}
