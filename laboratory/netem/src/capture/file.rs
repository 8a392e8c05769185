//! Packets in a file of the format pcap or pcapng.

use pcap_parser::nom;
use pcap_parser::{
    Block, EPB_MAGIC, IDB_MAGIC, InterfaceDescriptionBlock, LegacyPcapBlock, PcapError, SHB_MAGIC, SPB_MAGIC,
    UnknownBlock, parse_block_be, parse_block_le, parse_pcap_frame, parse_pcap_frame_be,
    parse_pcap_frame_modified, parse_pcap_header, parse_unknownblock_be, parse_unknownblock_le,
};

use super::CaptureError;

/// A packet of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    /// Type of the link, as in the registry of tcpdump.org.
    pub(super) link: u32,
    /// Time since 1970; `None` if the packet has none. Units: nanoseconds.
    pub(super) time: Option<u64>,
    /// Captured bytes, link-layer header first.
    pub(super) bytes: &'a [u8],
}

/// End of the packets in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// End of the file, after a whole packet.
    Whole,
    /// End of the file, within a packet.
    Truncated,
    /// Bytes at this offset that are no packet.
    Damaged(usize),
}

impl End {
    /// Describes an end after `packets` packets that is not the regular one.
    pub(super) fn describe(self, packets: u64) -> Option<String> {
        match self {
            Self::Whole => None,
            Self::Truncated => Some(format!(
                "the file ends within a packet, the {packets} before it are used"
            )),
            Self::Damaged(at) => Some(format!(
                "the file is damaged at byte {at}, the {packets} packets before it are used"
            )),
        }
    }
}

type Handle<'h, 'a> = &'h mut dyn FnMut(Record<'a>) -> Result<(), CaptureError>;
type Parsed<'a, T> = nom::IResult<&'a [u8], T, PcapError<&'a [u8]>>;

/// Calls `handle` for each packet of a file.
///
/// # Errors
/// The first error of `handle`, or [`CaptureError::Format`].
pub(super) fn for_each<'a>(bytes: &'a [u8], handle: Handle<'_, 'a>) -> Result<End, CaptureError> {
    if bytes.starts_with(&PCAPNG) {
        return pcapng(bytes, handle);
    }
    pcap(bytes, handle)
}

/// Position in a file.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Parses the next block of at most [`MAX_BLOCK`] bytes.
    ///
    /// # Errors
    /// The end of the packets.
    fn next<T>(&mut self, parse: fn(&'a [u8]) -> Parsed<'a, T>) -> Result<T, End> {
        let rest = &self.bytes[self.at..];
        let window = &rest[..rest.len().min(MAX_BLOCK)];
        if window.is_empty() {
            return Err(End::Whole);
        }
        match parse(window) {
            Ok((after, block)) => {
                self.at += window.len() - after.len();
                Ok(block)
            }
            Err(nom::Err::Incomplete(_)) if window.len() == rest.len() => Err(End::Truncated),
            Err(_) => Err(End::Damaged(self.at)),
        }
    }
}

fn pcap<'a>(bytes: &'a [u8], handle: Handle<'_, 'a>) -> Result<End, CaptureError> {
    let mut cursor = Cursor { bytes, at: 0 };
    let header = cursor.next(parse_pcap_header);
    let header = header.map_err(|_| CaptureError::Format)?;
    let parse: fn(&'a [u8]) -> Parsed<'a, LegacyPcapBlock<'a>> = if header.is_modified_format() {
        parse_pcap_frame_modified
    } else if header.is_bigendian() {
        parse_pcap_frame_be
    } else {
        parse_pcap_frame
    };
    let unit = if header.is_nanosecond_precision() {
        1
    } else {
        1_000
    };
    loop {
        let packet = match cursor.next(parse) {
            Ok(packet) => packet,
            Err(end) => return Ok(end),
        };
        handle(Record {
            // The upper half describes the check sequence.
            link: header.network.0 as u32 & 0xffff,
            time: Some(u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_usec) * unit),
            bytes: packet.data,
        })?;
    }
}

/// Interface of a section of pcapng.
struct Interface {
    link: u32,
    /// Time that is added to all of its packets. Units: seconds.
    offset: i64,
    /// Units of its times per second; `None`: too many to count.
    per_second: Option<u64>,
}

impl Interface {
    fn of(block: &InterfaceDescriptionBlock<'_>) -> Self {
        let exponent = u32::from(block.if_tsresol & 0x7f);
        let base: u64 = if block.if_tsresol & 0x80 == 0 { 10 } else { 2 };
        Self {
            link: block.linktype.0 as u32,
            offset: block.if_tsoffset,
            per_second: base.checked_pow(exponent),
        }
    }

    fn time(&self, high: u32, low: u32) -> Option<u64> {
        let units = i128::from(high) << 32 | i128::from(low);
        let nanos = units * 1_000_000_000 / i128::from(self.per_second?);
        u64::try_from(nanos + i128::from(self.offset) * 1_000_000_000).ok()
    }
}

fn pcapng<'a>(bytes: &'a [u8], handle: Handle<'_, 'a>) -> Result<End, CaptureError> {
    let mut cursor = Cursor { bytes, at: 0 };
    let mut is_big_endian = false;
    let mut interfaces: Vec<Interface> = Vec::new();
    loop {
        let start = cursor.at;
        let block = match cursor.next(if is_big_endian { block_be } else { block_le }) {
            Ok(block) => block,
            Err(end) => return Ok(end),
        };
        if let Block::SectionHeader(section) = &block {
            is_big_endian = section.big_endian();
            interfaces.clear();
        } else if let Block::InterfaceDescription(interface) = &block {
            interfaces.push(Interface::of(interface));
        } else if let Block::EnhancedPacket(packet) = &block {
            let Some(interface) = interfaces.get(packet.if_id as usize) else {
                return Ok(End::Damaged(start));
            };
            handle(Record {
                link: interface.link,
                time: interface.time(packet.ts_high, packet.ts_low),
                bytes: captured(packet.data, packet.caplen),
            })?;
        } else if let (Block::SimplePacket(packet), Some(interface)) = (&block, interfaces.first()) {
            handle(Record {
                link: interface.link,
                time: None,
                bytes: packet.data,
            })?;
        }
    }
}

fn block_le(bytes: &[u8]) -> Parsed<'_, Block<'_>> {
    match bytes.first_chunk().map(|kind| u32::from_le_bytes(*kind)) {
        Some(SHB_MAGIC | IDB_MAGIC | EPB_MAGIC | SPB_MAGIC) => parse_block_le(bytes),
        _ => skipped(parse_unknownblock_le(bytes)),
    }
}

fn block_be(bytes: &[u8]) -> Parsed<'_, Block<'_>> {
    match bytes.first_chunk().map(|kind| u32::from_be_bytes(*kind)) {
        Some(SHB_MAGIC | IDB_MAGIC | EPB_MAGIC | SPB_MAGIC) => parse_block_be(bytes),
        _ => skipped(parse_unknownblock_be(bytes)),
    }
}

/// Returns a block whose content is not used. The parsers of such blocks are avoided: that of
/// process information overflows if the block is shorter than its header.
fn skipped<'a>(parsed: Parsed<'a, UnknownBlock<'a>>) -> Parsed<'a, Block<'a>> {
    parsed.map(|(after, block)| (after, Block::Unknown(block)))
}

/// Returns the captured bytes of a block's data, which end with padding.
fn captured(data: &[u8], length: u32) -> &[u8] {
    data.get(..length as usize).unwrap_or(data)
}

/// Maximum size of a block, which bounds the memory for its options. Source: tcpdump captures at
/// most 256 KiB of a packet; names and secrets of a section have room in the rest. Units: bytes.
const MAX_BLOCK: usize = 16 << 20;
/// First bytes of pcapng: the type of a section header. Source: draft-ietf-opsawg-pcapng section
/// 4.1.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
