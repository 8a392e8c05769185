//! Packet traces for Wireshark and tcpdump.
//!
//! Every link is two interfaces: `<name>` shows what is offered to it, `<name> out` what comes out.
//! Headers are real, payloads are left out, which the recorded length shows. Of TCP options only as
//! many selective acknowledgements are written as the modelled header has room for.
//!
//! Source: draft-ietf-opsawg-pcapng, sections 4.1 to 4.3; link type 101 (raw IP).

use std::io::{self, Write};

use hawser_units::Instant;

use crate::network::{Fate, LinkId, Tap};
use crate::packet::{Address, Body, Datagram, Ecn, Packet, Segment};

/// Writes every packet that a network shows it.
///
/// A failed write ends the trace; [`Self::finish`] reports it.
#[derive(Debug)]
pub struct PcapNg<W> {
    out: W,
    result: io::Result<()>,
    block: Vec<u8>,
}

impl<W: Write> PcapNg<W> {
    /// Begins a trace of a network with these links, in the order in which they were made.
    #[must_use]
    pub fn new(mut out: W, links: &[String]) -> Self {
        let mut block = Vec::new();
        let result = begin(&mut out, &mut block, links);
        Self { out, result, block }
    }

    /// Ends the trace; gives the writer back.
    ///
    /// # Errors
    /// The first error of the writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.result?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn write(&mut self, now: Instant, interface: u32, packet: &Packet) -> io::Result<()> {
        let bytes = headers(packet);
        let time = now.as_nanos();
        let mut body = Vec::with_capacity(bytes.len() + 24);
        for word in [
            interface,
            (time >> 32) as u32,
            time as u32,
            bytes.len() as u32,
            u32::from(packet.size),
        ] {
            body.extend(word.to_le_bytes());
        }
        body.extend(&bytes);
        write_block(&mut self.out, &mut self.block, ENHANCED_PACKET, &body)
    }
}

impl<W: Write + 'static> Tap for PcapNg<W> {
    fn handle(&mut self, now: Instant, link: LinkId, packet: &Packet, fate: Fate) {
        let interface = match fate {
            Fate::Sent => 2 * link.index(),
            Fate::Delivered => 2 * link.index() + 1,
            Fate::Refused | Fate::Lost => return,
        };
        if self.result.is_ok() {
            self.result = self.write(now, interface as u32, packet);
        }
    }
}

fn begin(out: &mut impl Write, block: &mut Vec<u8>, links: &[String]) -> io::Result<()> {
    let mut section = Vec::new();
    section.extend(BYTE_ORDER.to_le_bytes());
    section.extend(1_u16.to_le_bytes());
    section.extend(0_u16.to_le_bytes());
    section.extend(u64::MAX.to_le_bytes());
    write_block(out, block, SECTION_HEADER, &section)?;
    for name in links {
        for name in [name.clone(), format!("{name} out")] {
            let mut interface = Vec::new();
            interface.extend(LINK_TYPE_RAW.to_le_bytes());
            interface.extend(0_u16.to_le_bytes());
            interface.extend(0_u32.to_le_bytes());
            option(&mut interface, OPTION_NAME, name.as_bytes());
            option(&mut interface, OPTION_RESOLUTION, &[NANOSECONDS]);
            option(&mut interface, 0, &[]);
            write_block(out, block, INTERFACE, &interface)?;
        }
    }
    Ok(())
}

fn write_block(out: &mut impl Write, block: &mut Vec<u8>, kind: u32, body: &[u8]) -> io::Result<()> {
    block.clear();
    let padded = body.len().next_multiple_of(4);
    let length = (padded + 12) as u32;
    block.extend(kind.to_le_bytes());
    block.extend(length.to_le_bytes());
    block.extend(body);
    block.resize(padded + 8, 0);
    block.extend(length.to_le_bytes());
    out.write_all(block)
}

fn option(block: &mut Vec<u8>, code: u16, value: &[u8]) {
    block.extend(code.to_le_bytes());
    block.extend((value.len() as u16).to_le_bytes());
    block.extend(value);
    block.resize(block.len().next_multiple_of(4), 0);
}

/// The IP and transport headers of a packet.
fn headers(packet: &Packet) -> Vec<u8> {
    let is_tcp = matches!(packet.body, Body::Tcp(_));
    let mut bytes = ip_header(packet, if is_tcp { 6 } else { 17 });
    bytes.extend((FIRST_PORT.wrapping_add(packet.source_port)).to_be_bytes());
    bytes.extend((FIRST_PORT.wrapping_add(packet.destination_port)).to_be_bytes());
    match &packet.body {
        Body::Tcp(segment) => tcp_header(&mut bytes, packet, segment),
        Body::Datagram(Datagram { number, .. }) => {
            bytes.extend((packet.size.saturating_sub(20)).to_be_bytes());
            bytes.extend([0, 0]);
            bytes.extend(number.to_be_bytes());
        }
        Body::Tunnel(_) => {
            bytes.extend((packet.size.saturating_sub(20)).to_be_bytes());
            bytes.extend([0, 0]);
        }
    }
    bytes.truncate(usize::from(packet.size));
    bytes
}

fn ip_header(packet: &Packet, protocol: u8) -> Vec<u8> {
    let address = |address: Address| (NET_10 | (address.0 & 0x00ff_ffff)).to_be_bytes();
    let ecn = match packet.ecn {
        Ecn::NotCapable => 0,
        Ecn::Capable => 2,
        Ecn::Marked => 3,
    };
    let mut bytes = vec![0x45, ecn];
    bytes.extend(packet.size.to_be_bytes());
    bytes.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    bytes.extend(address(packet.source));
    bytes.extend(address(packet.destination));
    let sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    bytes[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    bytes
}

fn tcp_header(bytes: &mut Vec<u8>, packet: &Packet, segment: &Segment) {
    bytes.extend((segment.sequence as u32).to_be_bytes());
    bytes.extend((segment.ack as u32).to_be_bytes());
    let room = usize::from(packet.size.saturating_sub(40 + segment.payload)).min(40) / 4 * 4;
    bytes.push((((20 + room) / 4) << 4) as u8);
    bytes.push(segment.flags);
    bytes.extend((segment.window.min(65_535) as u16).to_be_bytes());
    bytes.extend([0, 0, 0, 0]);
    let end = bytes.len() + room;
    let count = segment.sack.blocks().len().min(room.saturating_sub(4) / 8);
    if count > 0 {
        bytes.extend([NOP, NOP, OPTION_SACK, 2 + 8 * count as u8]);
        for (start, stop) in &segment.sack.blocks()[..count] {
            bytes.extend((segment.ack as u32).wrapping_add(*start).to_be_bytes());
            bytes.extend((segment.ack as u32).wrapping_add(*stop).to_be_bytes());
        }
    }
    bytes.resize(end, NOP);
}

/// Magic number, block types, link type and options of the file. Source: draft-ietf-opsawg-pcapng
/// section 4, and `LINKTYPE_RAW` of tcpdump.org.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const LINK_TYPE_RAW: u16 = 101;
const OPTION_NAME: u16 = 2;
const OPTION_RESOLUTION: u16 = 9;
/// Ten to the minus nine. Source: `if_tsresol` of draft-ietf-opsawg-pcapng section 4.2.
const NANOSECONDS: u8 = 9;
/// Kind of the option of selective acknowledgements (RFC 2018 section 3).
const OPTION_SACK: u8 = 5;
/// Kind of the option that fills (RFC 9293 section 3.1).
const NOP: u8 = 1;
/// First address of 10.0.0.0/8 (RFC 1918 section 3).
const NET_10: u32 = 10 << 24;
/// First port of the lab. Source: `FIRST_PORT` of `laboratory/testbed/src/workload/mod.rs`.
const FIRST_PORT: u16 = 5201;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{FlowId, flag};

    fn packet(body: Body, size: u16) -> Packet {
        Packet {
            source: Address(1),
            destination: Address(2),
            source_port: 0,
            destination_port: 1,
            flow: FlowId(1),
            size,
            ecn: Ecn::Capable,
            sent: Instant::ZERO,
            body,
        }
    }

    /// The kinds of all blocks, by walking their lengths.
    fn blocks(trace: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let word = |at: usize| u32::from_le_bytes(trace[at..at + 4].try_into().expect("four bytes"));
        let (mut found, mut at) = (Vec::new(), 0);
        while at < trace.len() {
            let length = word(at + 4) as usize;
            assert_eq!(word(at + length - 4) as usize, length, "lengths agree");
            found.push((word(at), trace[at + 8..at + length - 4].to_vec()));
            at += length;
        }
        found
    }

    #[test]
    fn a_trace_has_its_blocks_and_headers() {
        let mut sack = crate::packet::Sack::default();
        assert!(sack.push(1448, 2896));
        let segment = Segment {
            ack: 7,
            flags: flag::ACK,
            sack,
            ..Segment::default()
        };
        let mut network = crate::Network::new(1);
        let node = network.add(crate::Router::default());
        let link = network.connect("a", node, node, hawser_netem::LinkConfig::default());
        let mut trace = PcapNg::new(Vec::new(), network.link_names());
        let ack = packet(Body::Tcp(segment), 52);
        trace.handle(Instant::from_nanos(5_000_000_001), link, &ack, Fate::Sent);
        trace.handle(
            Instant::ZERO,
            link,
            &packet(Body::Datagram(Datagram::default()), 228),
            Fate::Delivered,
        );
        trace.handle(Instant::ZERO, link, &ack, Fate::Lost);
        let bytes = trace.finish().expect("memory");
        let blocks = blocks(&bytes);
        let kinds: Vec<u32> = blocks.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(
            kinds,
            [
                SECTION_HEADER,
                INTERFACE,
                INTERFACE,
                ENHANCED_PACKET,
                ENHANCED_PACKET
            ]
        );
        let first = &blocks[3].1;
        assert_eq!(first[..4], [0; 4], "what is offered to the link");
        assert_eq!(first[8..12], (5_000_000_001_u64 as u32).to_le_bytes());
        let ip = &first[20..];
        let sum: u32 = ip[..20]
            .chunks(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum holds");
        assert_eq!(ip[32] >> 4, 8, "52 bytes of headers");
        assert_eq!(ip[40..44], [NOP, NOP, OPTION_SACK, 10]);
        assert_eq!(ip[44..48], (7_u32 + 1448).to_be_bytes());
        assert_eq!(blocks[4].1[..4], [1, 0, 0, 0], "what comes out of it");
    }
}
