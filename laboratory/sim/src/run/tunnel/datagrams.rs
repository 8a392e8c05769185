//! Datagrams in flight and the packets in them, as numbers and headers in place of bytes.

use std::collections::VecDeque;

use hawser_proto::flow::Run;
use hawser_proto::tunnel::{Buffers, Burst, Datagram, Items, Opened, Source};
use hawser_units::{Duration, Instant, PathId};
use hawser_wire::data::{FRAMING, Inner, Outer};
use hawser_wire::inner::{fill_ipv4_checksum, protocol};

use crate::packet::{Body, Ecn, Packet};
use crate::run::offload::{Large, cut};
use crate::run::split::FIRST_PORT;
use crate::tcp::QUIC_HEADER;

/// A datagram in flight.
pub(super) struct Flight {
    pub(super) path: PathId,
    pub(super) opened: Opened,
    /// Bytes of the datagram, if its receiver parses them.
    pub(super) body: Vec<u8>,
    pub(super) udp_len: usize,
    /// The ECN bits of its outer packet.
    pub(super) ecn: Ecn,
    pub(super) packet: Option<InnerPacket>,
}

impl Flight {
    pub(super) fn new(
        burst: &Burst<'_, usize, ()>,
        datagram: &Datagram<'_, usize>,
        slots: &mut Slots,
    ) -> Self {
        let outer = Outer {
            epoch: 0,
            index: u32::from(burst.path().0),
            packet_number: datagram.number,
        };
        let packet = datagram.segment().map(|(run, index)| {
            let large = slots.waiting(run.buffer).large;
            let mut packet = cut(&large.packet, index, run.cut.packet_len(), run.cut.len_of(index));
            if run.mark && index == run.next {
                packet.ecn = Ecn::Marked;
            }
            let back = run
                .context
                .map_or(0, |context| index.saturating_sub(context) as u8);
            InnerPacket { packet, back }
        });
        let inner = packet.map_or(Ecn::NotCapable, |inner_packet| inner_packet.packet.ecn);
        Self {
            path: burst.path(),
            opened: Opened {
                outer,
                inner: datagram.inner,
            },
            body: Vec::new(),
            udp_len: datagram.udp_len(),
            ecn: burst.outer_ecn(inner.into()).into(),
            packet,
        }
    }
}

/// An inner packet in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct InnerPacket {
    pub(super) packet: Packet,
    /// Distance from its context, if its headers are compressed.
    pub(super) back: u8,
}

/// Ordered packet, with its inner header.
pub(super) type Ordered = (Inner, InnerPacket);

/// Sender of datagrams on a path, whose port a translator may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DatagramSource {
    pub(super) port: u16,
}

impl Source for DatagramSource {
    fn overhead(&self) -> u16 {
        OVERHEAD
    }
}

/// Objects by number, which expire after [`TIMEOUT`].
pub(super) struct Numbered<V> {
    values: VecDeque<(Instant, Option<V>)>,
    first: u32,
}

impl<V> Numbered<V> {
    pub(super) fn new() -> Self {
        Self {
            values: VecDeque::new(),
            // Zero bytes are not a valid number.
            first: 1,
        }
    }

    pub(super) fn push(&mut self, value: V, now: Instant) -> u32 {
        let is_over = |(since, value): &(Instant, Option<V>)| value.is_none() || now.since(*since) > TIMEOUT;
        while self.values.front().is_some_and(is_over) {
            self.values.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        self.values.push_back((now, Some(value)));
        self.first.wrapping_add(self.values.len() as u32 - 1)
    }

    pub(super) fn slot(&mut self, number: u32) -> Option<&mut Option<V>> {
        let index = number.wrapping_sub(self.first) as usize;
        self.values.get_mut(index).map(|(_, value)| value)
    }
}

/// Inner packets that wait to be sent, by buffer index.
#[derive(Default)]
pub(super) struct Slots {
    pub(super) used: Vec<Option<Waiting>>,
    free: Vec<usize>,
}

pub(super) struct Waiting {
    pub(super) large: Large,
    /// Number in [`Tunnel::named`], once its bytes were requested.
    pub(super) name: Option<u32>,
}

impl Slots {
    pub(super) fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.used.push(None);
            self.used.len() - 1
        })
    }

    fn waiting(&mut self, id: usize) -> &mut Waiting {
        self.used[id]
            .as_mut()
            .expect("a buffer is filled while it is sent")
    }

    pub(super) fn give_back(&mut self, id: usize) {
        self.used[id] = None;
        self.free.push(id);
    }
}

/// View of the sending half: the packets' headers, zeros, and a number at the end by which the
/// packet is found when parity recovers its bytes.
pub(super) struct Written<'a> {
    pub(super) slots: &'a mut Slots,
    pub(super) named: &'a mut Numbered<Packet>,
    pub(super) scratch: &'a mut Vec<u8>,
    pub(super) now: Instant,
}

impl Buffers<usize> for Written<'_> {
    fn packet(&mut self, run: &Run<usize>) -> &[u8] {
        let waiting = self.slots.waiting(run.buffer);
        let packet = waiting.large.packet;
        write_headers(self.scratch, &packet);
        if packet.size >= MIN_NAMED {
            let name = *waiting
                .name
                .get_or_insert_with(|| self.named.push(packet, self.now));
            let tail = self.scratch.last_chunk_mut().expect("long enough to be named");
            *tail = name.to_be_bytes();
        }
        self.scratch
    }

    fn release(&mut self, id: usize) {
        self.slots.give_back(id);
    }
}

/// View of the receiving half of a datagram.
pub(super) struct Arrived<'a> {
    pub(super) body: &'a [u8],
    pub(super) named: &'a mut Numbered<Packet>,
}

impl Items<Ordered> for Arrived<'_> {
    fn body(&self, _: &Ordered) -> &[u8] {
        self.body
    }

    fn store(&mut self, bytes: &[u8], inner: &Inner) -> Option<Ordered> {
        let name = u32::from_be_bytes(*bytes.last_chunk()?);
        let mut packet = (*self.named.slot(name)?)?;
        if usize::from(packet.size) != bytes.len() {
            return None;
        }
        if bytes[1] & 3 == 3 {
            packet.ecn = Ecn::Marked;
        }
        Some((*inner, InnerPacket { packet, back: 0 }))
    }

    fn join(&mut self, _: &[u8], inner: &Inner, (_, inner_packet): &Ordered) -> Option<Ordered> {
        // Each piece refers to the whole packet.
        Some((
            *inner,
            InnerPacket {
                back: 0,
                ..*inner_packet
            },
        ))
    }

    fn free(&mut self, _: Ordered) {}
}

pub(super) fn placeholder(udp_len: usize, now: Instant) -> Packet {
    Packet {
        source: Default::default(),
        destination: Default::default(),
        source_port: TUNNEL_PORT,
        destination_port: TUNNEL_PORT,
        flow: Default::default(),
        size: udp_len as u16 + UDP_AND_IP,
        ecn: Ecn::NotCapable,
        sent: now,
        body: Body::Tunnel(0),
    }
}

/// Writes the headers that a flow table parses, followed by zeros up to the packet's length.
pub(super) fn write_headers(bytes: &mut Vec<u8>, packet: &Packet) {
    bytes.clear();
    bytes.resize(usize::from(packet.size), 0);
    bytes[0] = 0x45;
    bytes[1] = match packet.ecn {
        Ecn::NotCapable => 0,
        Ecn::Capable => 2,
        Ecn::Marked => 3,
    };
    bytes[2..4].copy_from_slice(&packet.size.to_be_bytes());
    bytes[12..16].copy_from_slice(&(0x0a00_0000 + packet.source.0).to_be_bytes());
    bytes[16..20].copy_from_slice(&(0x0a00_0000 + packet.destination.0).to_be_bytes());
    bytes[20..22].copy_from_slice(&(FIRST_PORT + packet.source_port).to_be_bytes());
    bytes[22..24].copy_from_slice(&(FIRST_PORT + packet.destination_port).to_be_bytes());
    bytes[9] = protocol::UDP;
    if let Body::Datagram(datagram) = packet.body {
        bytes[1] |= (datagram.mark as u8) << 2;
        bytes[24..26].copy_from_slice(&(packet.size - 20).to_be_bytes());
        fill_ipv4_checksum(bytes, 20);
    }
    if let Body::Tcp(segment) = packet.body {
        let header = (packet.size - 20).saturating_sub(segment.payload);
        if header + 20 == QUIC_HEADER {
            // Any packet may be the first of its flow here, and thus opens it.
            bytes[28..33].copy_from_slice(&[0xc0, 0, 0, 0, 1]);
            return;
        }
        bytes[9] = protocol::TCP;
        bytes[32] = ((header.clamp(20, 60) / 4) << 4) as u8;
        bytes[33] = segment.flags;
    }
}

/// Headers of IPv4 (RFC 791) and UDP (RFC 768).
const UDP_AND_IP: u16 = 28;
/// Header bytes between an inner packet and its outer IP packet. Source: [`UDP_AND_IP`] and the
/// framing.
pub(super) const OVERHEAD: u16 = UDP_AND_IP + FRAMING as u16;
const TUNNEL_PORT: u16 = 4430;
/// Minimum size of a packet with room for a number behind its headers. Source: 28 bytes of headers
/// and 4 of the number. Units: IP bytes.
const MIN_NAMED: u16 = 32;
/// Lifetime of objects, longer than any packet is in flight. Source: our choice; queues of
/// scenarios have some seconds at most.
const TIMEOUT: Duration = Duration::from_secs(20);
