//! Authentic packets, and their contents.

use hawser_units::{Instant, PathId, Sequence};
use hawser_wire::data::{Class, FEEDBACK_LEN, FRAMING, Feedback, Inner, Kind};
use hawser_wire::inner::protocol;

/// An authentic packet.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) path: PathId,
    pub(crate) packet_number: u64,
    pub(crate) inner: Inner,
    pub(crate) body: Vec<u8>,
}

impl Packet {
    pub(crate) fn udp_len(&self) -> u64 {
        (self.body.len() + FRAMING) as u64
    }
}

/// An inner IP packet.
pub(crate) fn inner_packet(kind: u8, flow: u16, len: usize) -> Vec<u8> {
    let mut packet = vec![0; len.max(40)];
    let len = packet.len() as u16;
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[9] = kind;
    packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    packet[20..22].copy_from_slice(&flow.to_be_bytes());
    packet[22..24].copy_from_slice(&9_u16.to_be_bytes());
    if kind == protocol::TCP {
        packet[32] = 5 << 4;
        packet[33] = hawser_wire::inner::tcp_flag::PSH;
    }
    packet
}

/// The header of a packet of a flow.
pub(crate) fn header(kind: Kind, flow: u16, sequence: u32, now: Instant) -> Inner {
    Inner {
        class: Class::Bulk,
        flow,
        sequence: Sequence(sequence),
        sent_us: now.as_micros_wrapping(),
        ..Inner::plain(kind)
    }
}

/// The body of a report.
pub(crate) fn report_body(report: &Feedback) -> Vec<u8> {
    let mut body = [0; FEEDBACK_LEN];
    report.emit(&mut body);
    body[..report.emitted_len()].to_vec()
}
